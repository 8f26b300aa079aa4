//! The figures as a drawing: times to first token over the rates.

use std::fmt::Write as _;

use super::sweep::Row;
use crate::simulate::Figures;

/// What is drawn of a run.
type Figure = fn(&Figures) -> f64;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 36.0;
const BELOW: f64 = 44.0;

/// Colours that also those tell apart who see few, by Okabe and Ito.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// One panel each for the mean, the median and the 99th percentile, with a line for each policy and bars for how far its
/// runs lie apart. Times are on a logarithmic scale, on which policies differ by factors.
pub(super) fn svg(rows: &[Row]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let panels: [(&str, Figure); 3] = [
        ("TTFT mean", |run| run.first_token.mean),
        ("TTFT p50", |run| run.first_token.p50),
        ("TTFT p99", |run| run.first_token.p99),
    ];
    let (width, legend) = (panels.len() as f64 * (WIDTH + LEFT) + 16.0, 20.0 * policies.len() as f64);
    let height = TOP + HEIGHT + BELOW + legend;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>"#
    );
    for (number, (title, of)) in panels.into_iter().enumerate() {
        let left = LEFT + number as f64 * (WIDTH + LEFT);
        let _ = write!(text, r#"<g transform="translate({left} {TOP})">"#);
        Panel::over(rows, of).draw(&mut text, title, rows, &policies, of);
        text += "</g>";
    }
    for (number, policy) in policies.iter().enumerate() {
        let y = TOP + HEIGHT + BELOW + 20.0 * number as f64;
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            text,
            r#"<path d="M {LEFT} {y} h 24" stroke="{colour}" stroke-width="2"/><text x="{}" y="{}">{}</text>"#,
            LEFT + 32.0,
            y + 4.0,
            escaped(policy)
        );
    }
    text + "</svg>\n"
}

/// What a panel's axes span.
struct Panel {
    rates: (f64, f64),
    /// Powers of ten.
    decades: (i32, i32),
}

impl Panel {
    fn over(rows: &[Row], of: Figure) -> Self {
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)))
        };
        let (least, most) = span(&mut rows.iter().map(|row| row.over(of).0.max(1e-3)));
        let decades = (least.log10().floor() as i32, most.log10().ceil() as i32);
        Self {
            rates: span(&mut rows.iter().map(|row| row.rate)),
            decades: (decades.0, decades.1.max(decades.0 + 1)),
        }
    }

    fn x(&self, rate: f64) -> f64 {
        let (first, last) = self.rates;
        if last > first { WIDTH * (0.04 + 0.92 * (rate - first) / (last - first)) } else { WIDTH / 2.0 }
    }

    fn y(&self, seconds: f64) -> f64 {
        let (first, last) = self.decades;
        let height = (seconds.max(1e-9).log10() - f64::from(first)) / f64::from(last - first);
        HEIGHT * (1.0 - height.clamp(0.0, 1.0))
    }

    fn draw(&self, text: &mut String, title: &str, rows: &[Row], policies: &[&str], of: Figure) {
        let _ = write!(
            text,
            r##"<text y="-12" font-weight="bold">{title} (s)</text><rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>"##
        );
        for decade in self.decades.0..=self.decades.1 {
            let (seconds, y) = (10_f64.powi(decade), self.y(10_f64.powi(decade)));
            let _ = write!(
                text,
                r##"<path d="M 0 {y:.1} h {WIDTH}" stroke="#ddd"/><text x="-6" y="{:.1}" text-anchor="end">{seconds}</text>"##,
                y + 4.0
            );
        }
        let mut rates: Vec<f64> = rows.iter().map(|row| row.rate).collect();
        rates.dedup();
        for rate in rates {
            let _ = write!(
                text,
                r#"<text x="{:.1}" y="{}" text-anchor="middle">{rate}</text>"#,
                self.x(rate),
                HEIGHT + 16.0
            );
        }
        let _ = write!(
            text,
            r#"<text x="{}" y="{}" text-anchor="middle">rate</text>"#,
            WIDTH / 2.0,
            HEIGHT + 32.0
        );
        for (number, policy) in policies.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let (mut line, mut bars) = (String::new(), String::new());
            for row in rows.iter().filter(|row| row.policy == *policy) {
                let (mean, apart) = row.over(of);
                let (x, y) = (self.x(row.rate), self.y(mean));
                let _ = write!(line, "{} {x:.1} {y:.1} ", if line.is_empty() { "M" } else { "L" });
                let _ = write!(bars, "M {x:.1} {:.1} V {:.1} ", self.y(mean - apart), self.y(mean + apart));
                let _ = write!(text, r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{colour}"/>"#);
            }
            let _ = write!(
                text,
                r#"<path d="{line}" fill="none" stroke="{colour}" stroke-width="2"/><path d="{bars}" stroke="{colour}"/>"#
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Times;

    #[test]
    fn every_policy_has_a_line_in_every_panel() {
        let row = |policy: &str, rate, mean| {
            let times = Times { mean, p50: mean / 2.0, p90: mean, p99: 9.0 * mean };
            let run = Figures { first_token: times, ..Figures::default() };
            Row { policy: policy.to_owned(), rate, runs: vec![run], unserved: 0, broken: 0 }
        };
        let text =
            svg(&[row("time", 1.0, 0.1), row("a<b", 1.0, 0.5), row("time", 2.0, 0.2), row("a<b", 2.0, 0.0)]);
        assert_eq!(text.matches(r##"fill="none" stroke="#0072b2""##).count(), 3);
        assert_eq!(text.matches("<circle").count(), 12);
        assert!(text.contains("a&lt;b") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
    }
}
