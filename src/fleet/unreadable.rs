//! Prefill workers that are there and cannot be used, since nobody here can read their cards.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::worker_set::SetKey;

/// Prefill workers that announced themselves with a card that cannot be read.
#[derive(Default)]
pub(super) struct Unreadable {
    seen: Mutex<Vec<Announced>>,
}

struct Announced {
    model: String,
    namespace: String,
    url: String,
    until: Instant,
}

/// How many are remembered. Whoever may announce workers may announce many.
const MANY_ANNOUNCED: usize = 1024;

impl Unreadable {
    /// Remembers one for `length`; true if it was not known.
    pub(super) fn note(&self, [model, namespace, url]: [&str; 3], now: Instant, length: Duration) -> bool {
        let mut seen = self.seen.lock();
        let until = now + length;
        let known = seen.iter_mut().find(|one| one.is([model, namespace, url]));
        if let Some(known) = known {
            known.until = until;
            return false;
        }
        if seen.len() >= MANY_ANNOUNCED {
            return false;
        }
        let [model, namespace, url] = [model, namespace, url].map(str::to_owned);
        seen.push(Announced { model, namespace, url, until });
        true
    }

    /// The worker at `url` has come with a card that can be read.
    pub(super) fn forget(&self, url: &str) {
        self.seen.lock().retain(|one| one.url != url);
    }

    /// Whether some were not heard of for too long.
    pub(super) fn any_over(&self, now: Instant) -> bool {
        self.seen.lock().iter().any(|one| one.until <= now)
    }

    /// Forgets those; true if there were any.
    pub(super) fn end_over(&self, now: Instant) -> bool {
        let mut seen = self.seen.lock();
        let before = seen.len();
        seen.retain(|one| one.until > now);
        seen.len() < before
    }

    /// How many there are beside a set.
    pub(super) fn count(&self, key: &SetKey) -> usize {
        let seen = self.seen.lock();
        seen.iter().filter(|one| one.model == key.model && one.namespace == key.namespace).count()
    }
}

impl Announced {
    fn is(&self, [model, namespace, url]: [&str; 3]) -> bool {
        self.model == model && self.namespace == namespace && self.url == url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_card_is_remembered_until_it_is_replaced_or_over() {
        let (unreadable, now, second) = (Unreadable::default(), Instant::now(), Duration::from_secs(1));
        assert!(unreadable.note(["m", "n", "http://a"], now, second));
        assert!(!unreadable.note(["m", "n", "http://a"], now + second, second), "known: it is prolonged");
        assert!(unreadable.note(["m", "n", "http://b"], now, second));
        assert!(unreadable.any_over(now + second) && unreadable.end_over(now + second));
        assert!(!unreadable.any_over(now + second));
        unreadable.forget("http://a");
        assert!(!unreadable.end_over(now + second * 9), "nobody is left");
    }
}
