//! Connections that nobody uses at the moment.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ahash::AHashMap;
use http::{Uri, uri::Authority};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::connection::Connection;

/// Where a connection leads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Destination {
    secure: bool,
    authority: Authority,
}

impl Destination {
    /// That of a URL with a scheme and a host.
    pub(super) fn of(to: &Uri) -> Self {
        let authority = to.authority().cloned();
        Self {
            secure: to.scheme_str() == Some("https"),
            authority: authority.unwrap_or(Authority::from_static("localhost")),
        }
    }
}

/// The connections of a pool that are kept for later. Clones share them.
#[derive(Clone)]
pub(super) struct Kept(Arc<Shared>);

struct Shared {
    /// How long each is kept; `None` is for ever.
    keep_alive: Option<Duration>,
    /// How many of one destination.
    most: usize,
    kept: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// The longest unused first. No list is empty for longer than a sweep.
    of: AHashMap<Destination, Vec<(Box<Connection>, Instant)>>,
    /// Somebody looks for those that were kept for too long.
    swept: bool,
}

/// Where one connection belongs.
#[derive(Clone)]
pub(super) struct Lender {
    kept: Kept,
    destination: Destination,
}

impl Kept {
    pub(super) fn new(keep_alive: Option<Duration>, most: usize) -> Self {
        Self(Arc::new(Shared { keep_alive, most, kept: Mutex::default() }))
    }

    /// Where connections to `destination` belong.
    pub(super) fn lender(&self, destination: Destination) -> Lender {
        Lender { kept: self.clone(), destination }
    }
}

impl Lender {
    /// The connection that was used last of those that are still good: the others may be let go.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        loop {
            let (mut connection, since) = self.kept.0.kept.lock().of.get_mut(&self.destination)?.pop()?;
            // Those below it are older still, and the sweep's.
            if self.kept.0.is_over(since, Instant::now()) {
                connection.close();
                return None;
            }
            if connection.is_free() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, connection: Box<Connection>) {
        let shared = &self.kept.0;
        let mut kept = shared.kept.lock();
        let list = kept.of.entry(self.destination.clone()).or_default();
        let surplus = if list.len() < shared.most {
            list.push((connection, Instant::now()));
            None
        } else {
            Some(connection)
        };
        let swept = std::mem::replace(&mut kept.swept, true);
        drop(kept);
        if let Some(surplus) = surplus {
            surplus.close();
        }
        if !swept {
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(sweep(Arc::downgrade(shared), shared.keep_alive))),
                // Dropped outside of it, which a server does not do: the next one has it swept.
                Err(_) => shared.kept.lock().swept = false,
            }
        }
    }
}

impl Shared {
    fn is_over(&self, since: Instant, now: Instant) -> bool {
        self.keep_alive.is_some_and(|keep_alive| now.duration_since(since) >= keep_alive)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (connection, _) in self.kept.get_mut().of.drain().flat_map(|(_, list)| list) {
            connection.close();
        }
    }
}

/// How often connections that are kept for ever are looked at: those that their worker has closed have to go.
const LOOK: Duration = Duration::from_secs(30);

/// Closes what was kept for too long, until nothing is left or the pool is gone.
async fn sweep(of: Weak<Shared>, keep_alive: Option<Duration>) {
    // A connection is open for up to one and a half times as long; it is not used any more after once.
    let pause = keep_alive.map_or(LOOK, |keep_alive| (keep_alive / 2).max(Duration::from_millis(10)));
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = of.upgrade() else { return };
        let now = Instant::now();
        let mut over = Vec::new();
        let mut kept = shared.kept.lock();
        kept.of.retain(|_, list| {
            let fresh = list.partition_point(|(_, since)| shared.is_over(*since, now));
            over.extend(list.drain(..fresh));
            if keep_alive.is_none() {
                list.retain_mut(|(connection, _)| connection.is_free());
            }
            !list.is_empty()
        });
        kept.swept = !kept.of.is_empty();
        let swept = kept.swept;
        drop(kept);
        // Closing takes a system call or two each.
        over.into_iter().for_each(|(connection, _)| connection.close());
        if !swept {
            return;
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("keep_alive", &self.0.keep_alive).finish_non_exhaustive()
    }
}
