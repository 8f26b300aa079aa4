//! What a soak is told.

use std::{env, fmt, str::FromStr, time::Duration};

/// How long, how much, and which of all possible soaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    pub(crate) users: u64,
    /// Requests per second of all users together, as far as answers are quick.
    pub(crate) rate: f64,
}

impl Settings {
    pub(crate) fn from_environment() -> Self {
        let minutes: f64 = variable("KVROUTE_SOAK_MINUTES").unwrap_or(3.0);
        Self {
            length: Duration::from_secs_f64(minutes * 60.0),
            seed: variable("KVROUTE_SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000)),
            users: 16,
            rate: variable("KVROUTE_SOAK_RATE").unwrap_or(8.0),
        }
    }

    /// How long a user thinks between two requests, on average.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_secs_f64(self.users as f64 / self.rate)
    }
}

#[expect(clippy::disallowed_methods, reason = "the variables are of this test, not of kvroute")]
fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, seed, users, rate } = self;
        let minutes = length.as_secs_f64() / 60.0;
        write!(
            f,
            "soak: {minutes} minutes, {users} users, {rate} requests/s, seed {seed} (KVROUTE_SOAK_SEED={seed} again)"
        )
    }
}
