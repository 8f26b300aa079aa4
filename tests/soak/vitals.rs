//! Memory and descriptors of a process, and whether they grow.

use std::{fmt, fs, thread, time::Duration};

use crossbeam_channel::{Sender, bounded};

/// At one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vitals {
    /// Resident memory in KiB.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
}

impl Vitals {
    pub(crate) fn of(process: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        Self { resident, descriptors }
    }
}

impl fmt::Display for Vitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB resident, {} descriptors", self.resident as f64 / 1024.0, self.descriptors)
    }
}

/// Looks once a second.
pub(crate) struct Sampler {
    stop: Sender<()>,
    looking: thread::JoinHandle<Vec<Vitals>>,
}

impl Sampler {
    pub(crate) fn start(process: u32) -> Self {
        let (stop, stopped) = bounded(1);
        let looking = thread::spawn(move || {
            let mut samples = Vec::new();
            while stopped.recv_timeout(Duration::from_secs(1)).is_err() {
                samples.push(Vitals::of(process));
            }
            samples
        });
        Self { stop, looking }
    }

    pub(crate) fn stop(self) -> Samples {
        self.stop.send(()).unwrap();
        Samples(self.looking.join().unwrap())
    }
}

/// What it was like under load.
pub(crate) struct Samples(Vec<Vitals>);

/// By how much the mean of the last third of the memory's samples may exceed that of the middle third. In the first third caches fill, and
/// of a short soak that goes on to its end: it shows what leaks at once, a long one what leaks slowly.
const GROWTH: f64 = 1.05;
const GROWTH_OF_SHORT_ONES: f64 = 1.25;

/// From how many samples on a soak is a long one: twenty minutes.
const LONG: usize = 20 * 60;

impl Samples {
    /// What grows that should not. Requests in flight come and go, and descriptors with them; so they are compared where all is
    /// quiet, and here only as far as a leak would show.
    pub(crate) fn growth(&self) -> Option<String> {
        let resident: Vec<_> = self.0.iter().map(|vitals| vitals.resident as f64).collect();
        let descriptors: Vec<_> = self.0.iter().map(|vitals| vitals.descriptors as f64).collect();
        let [(memory, later), (some, others)] = [thirds(&resident), thirds(&descriptors)];
        println!(
            "middle third: {:.1} MiB, {some:.1} descriptors; last third: {:.1} MiB, {others:.1} descriptors; {} samples",
            memory / 1024.0,
            later / 1024.0,
            self.0.len()
        );
        let most = if self.0.len() < LONG { GROWTH_OF_SHORT_ONES } else { GROWTH };
        let grown = later > memory * most;
        grown.then(|| {
            format!("memory grew from {memory:.0} KiB to {later:.0} KiB, to more than {most} times that")
        })
    }
}

/// The means of the middle third and of the last.
fn thirds(values: &[f64]) -> (f64, f64) {
    let third = values.len() / 3;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    (mean(&values[third..2 * third]), mean(&values[2 * third..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(resident: impl Fn(u64) -> u64) -> Samples {
        Samples((0..LONG as u64).map(|at| Vitals { resident: resident(at), descriptors: 9 }).collect())
    }

    #[test]
    fn what_fills_and_stays_is_flat_and_what_goes_on_is_not() {
        assert_eq!(samples(|at| 50_000 + 50 * at.min(400)).growth(), None);
        assert_eq!(samples(|at| 50_000 + at % 7 * 1000).growth(), None);
        assert!(samples(|at| 50_000 + 15 * at).growth().is_some());
        let short = |resident: fn(u64) -> u64| Samples(samples(resident).0.into_iter().take(180).collect());
        assert_eq!(short(|at| 40_000 + 50 * at).growth(), None);
        assert!(short(|at| 40_000 + 1000 * at).growth().is_some());
    }
}
