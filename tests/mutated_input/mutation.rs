//! Damage to inputs that are good.

use std::{
    env,
    time::{Duration, Instant},
};

use fastrand::Rng;

/// What numbers, names and structure are replaced with.
const ODDITIES: [&str; 28] = [
    "0",
    "-1",
    "-0",
    "1e999",
    "18446744073709551616",
    "9223372036854775808",
    "4294967296",
    "0.1",
    "null",
    "true",
    "false",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "}}",
    "\\u0000",
    "\\ud800",
    "\u{FEFF}",
    "\u{202E}",
    "é",
    "🦀",
    "\r\n",
    "\n\n",
    "data:",
    ":",
    "\t",
    "NaN",
];

/// Inputs made from `corpus`, one for each seed, for as long as a target runs.
pub(crate) struct Inputs<'c> {
    corpus: &'c [Vec<u8>],
    seed: u64,
    until: Instant,
    told: bool,
}

/// An input, which tells its seed if it is dropped by a panic.
pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
    seed: u64,
}

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "KVROUTE_FUZZ_SEED={} makes this input of {} bytes again: {}",
                self.seed,
                self.bytes.len(),
                self.bytes.escape_ascii()
            );
        }
    }
}

impl<'c> Inputs<'c> {
    pub(crate) fn of(corpus: &'c [Vec<u8>]) -> Self {
        assert!(corpus.iter().all(|good| !good.is_empty()) && !corpus.is_empty());
        let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
        let seconds = number("KVROUTE_FUZZ_SECONDS").map_or(Duration::from_millis(500), Duration::from_secs);
        let seed = number("KVROUTE_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 48));
        Self { corpus, seed, until: Instant::now() + seconds, told: false }
    }
}

impl Iterator for Inputs<'_> {
    type Item = Input;

    fn next(&mut self) -> Option<Input> {
        if Instant::now() >= self.until {
            return None;
        }
        let seed = self.seed;
        if !self.told {
            println!("from seed {seed} on");
            self.told = true;
        }
        self.seed += 1;
        let mut rng = Rng::with_seed(seed);
        let mut bytes = rng.choice(self.corpus).unwrap().clone();
        for _ in 0..rng.usize(0..6) {
            damage(&mut bytes, self.corpus, &mut rng);
        }
        Some(Input { bytes, seed })
    }
}

/// One change.
fn damage(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(..=bytes.len());
    let end = (at + rng.usize(0..24)).min(bytes.len());
    match rng.u8(..9) {
        0 if !bytes.is_empty() => {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u8(..8);
        }
        1 => bytes.truncate(at),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let copy = bytes[at..end].to_vec();
            let times = rng.usize(1..40);
            drop(bytes.splice(at..at, copy.repeat(times)));
        }
        4 => drop(bytes.splice(at..end, (0..rng.usize(..12)).map(|_| rng.u8(..)).collect::<Vec<_>>())),
        5 => {
            let other = rng.choice(corpus).unwrap();
            let from = rng.usize(..other.len());
            drop(bytes.splice(at.., other[from..].iter().copied()));
        }
        _ => {
            // In place of a whole word or number, where there is one.
            let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
            let begin = at - bytes[..at].iter().rev().take_while(|byte| word(byte)).count();
            let end = at + bytes[at..].iter().take_while(|byte| word(byte)).count();
            drop(bytes.splice(begin..end, rng.choice(ODDITIES).unwrap().bytes()));
        }
    }
}
