//! `strftime` for chat templates that print the date.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats `now` in UTC with the C locale. Engines run in containers whose clock is UTC; an engine
/// in another zone differs near midnight. Unknown directives stay as they are written.
pub(super) fn strftime(now: SystemTime, format: &str) -> String {
    let moment = Moment::of(now);
    let mut out = String::with_capacity(format.len() + 16);
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = rest.next();
        // glibc's flag for "no padding", used by templates for days without a leading zero.
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        match directive {
            Some(directive) => moment.write(directive, padded, &mut out),
            None => out.push_str(if padded { "%" } else { "%-" }),
        }
    }
    out
}

/// A point in time, taken apart.
struct Moment {
    year: i64,
    month: i64,
    day: i64,
    weekday: i64,
    day_of_year: i64,
    second_of_day: i64,
    micros: u32,
}

impl Moment {
    fn of(now: SystemTime) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
        let days = seconds / 86_400;
        let (year, month, day) = civil(days);
        Self {
            year,
            month,
            day,
            weekday: (days + 4) % 7, // 1970-01-01 was a Thursday
            day_of_year: days - days_before(year),
            second_of_day: seconds % 86_400,
            micros: since.subsec_micros(),
        }
    }

    fn write(&self, directive: char, padded: bool, out: &mut String) {
        let (hour, minute, second) =
            (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
        let day_name = DAYS[usize::try_from(self.weekday).unwrap_or(0) % 7];
        let month_name = MONTHS[usize::try_from(self.month - 1).unwrap_or(0) % 12];
        let number = |out: &mut String, value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            // Writing to a string cannot fail.
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            'Y' => number(out, self.year, 4),
            'y' => number(out, self.year % 100, 2),
            'm' => number(out, self.month, 2),
            'd' => number(out, self.day, 2),
            'e' => {
                let width = if padded { 2 } else { 0 };
                let _ = write!(out, "{:width$}", self.day);
            }
            'j' => number(out, self.day_of_year + 1, 3),
            'w' => number(out, self.weekday, 0),
            'u' => number(out, if self.weekday == 0 { 7 } else { self.weekday }, 0),
            'H' => number(out, hour, 2),
            'I' => number(out, twelve, 2),
            'M' => number(out, minute, 2),
            'S' => number(out, second, 2),
            'f' => number(out, i64::from(self.micros), 6),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'A' => out.push_str(day_name),
            'a' => out.push_str(&day_name[..3]),
            'B' => out.push_str(month_name),
            'b' | 'h' => out.push_str(&month_name[..3]),
            'F' => "Y-m-d".chars().for_each(|part| self.write_part(part, out)),
            'T' => "H:M:S".chars().for_each(|part| self.write_part(part, out)),
            'R' => "H:M".chars().for_each(|part| self.write_part(part, out)),
            'D' => "m/d/y".chars().for_each(|part| self.write_part(part, out)),
            // Python's naive `now()` has no zone: both are empty.
            'Z' | 'z' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                out.push('%');
                out.push(other);
            }
        }
    }

    /// One character of a compound directive: a letter stands for itself as a directive.
    fn write_part(&self, part: char, out: &mut String) {
        if part.is_ascii_alphabetic() { self.write(part, true, out) } else { out.push(part) }
    }
}

/// Year, month and day of the proleptic Gregorian calendar, `days` after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // A first guess that is at most one year too late, then walk back.
    let mut year = 1970 + days / 365;
    while days_before(year) > days {
        year -= 1;
    }
    let mut left = days - days_before(year);
    let mut month = 1;
    while left >= days_in(year, month) {
        left -= days_in(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

/// Days from 1970-01-01 to the first of January of `year` (1970 or later).
fn days_before(year: i64) -> i64 {
    let leap_years = |year: i64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_years(year - 1) - leap_years(1969)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(at(0, "%Y-%m-%d %A %j"), "1970-01-01 Thursday 001");
        assert_eq!(at(951_782_400, "%d %b %Y %a"), "29 Feb 2000 Tue");
        assert_eq!(at(1_764_440_838, "%F %T, %B %-d, %I%p"), "2025-11-29 18:27:18, November 29, 06PM");
        assert_eq!(at(4_107_542_399, "%Y-%m-%d"), "2100-02-28");
        assert_eq!(at(4_107_542_400, "%Y-%m-%d"), "2100-03-01");
    }

    #[test]
    fn odd_formats_are_kept() {
        assert_eq!(at(0, "100%% %Q %"), "100% %Q %");
        assert_eq!(at(0, "%"), "%");
        assert_eq!(at(0, "%-"), "%-");
    }
}
