//! Which namespaces a frontend serves.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use ahash::AHashSet;
use parking_lot::Mutex;
use tracing::info;

use super::base_url::without_user;

/// The namespaces whose workers a fleet takes in. Workers of others belong to other frontends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Namespaces {
    /// All.
    #[default]
    Every,
    /// One.
    Named(String),
    /// All that begin so.
    WithPrefix(String),
}

impl Namespaces {
    /// Whether workers of `namespace` are served.
    #[must_use]
    pub fn serve(&self, namespace: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Named(name) => name == namespace,
            Self::WithPrefix(prefix) => namespace.starts_with(prefix),
        }
    }
}

/// As the end of "this frontend serves".
impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every => f.write_str("every namespace"),
            Self::Named(name) => write!(f, "namespace '{name}'"),
            Self::WithPrefix(prefix) => write!(f, "namespaces that begin with '{prefix}'"),
        }
    }
}

/// Workers of other namespaces that came here all the same. They may come again every few seconds, so a namespace is
/// logged once and each visit is counted.
#[derive(Default)]
pub(super) struct Strangers {
    /// Relaxed: a statistic.
    seen: AtomicU64,
    logged: Mutex<AHashSet<String>>,
}

/// How many namespaces are logged. Whoever may announce workers may name many.
const MANY_LOGGED: usize = 64;

impl Strangers {
    pub(super) fn note(&self, namespace: &str, url: &str, served: &Namespaces) {
        self.seen.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock();
        if logged.len() < MANY_LOGGED && logged.insert(namespace.to_owned()) {
            info!(namespace, url = %without_user(url), %served, "workers of this namespace are not taken in");
        }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_serves_what_begins_so_and_a_name_only_itself() {
        let served = |namespaces: Namespaces| {
            ["team", "team-a", "other", ""].map(|namespace| namespaces.serve(namespace))
        };
        assert_eq!(served(Namespaces::Every), [true; 4]);
        assert_eq!(served(Namespaces::Named("team".into())), [true, false, false, false]);
        assert_eq!(served(Namespaces::WithPrefix("team".into())), [true, true, false, false]);
    }
}
