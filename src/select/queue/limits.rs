//! How much may wait.

/// Requests of one queue that may wait whoever they are from, and however many workers there are.
pub const MOST_REQUESTS: u64 = 65_536;

/// What may wait for each worker of a set; where tenants share, of each tenant.
///
/// A limit is compared with what waits already, so that the request that crosses it is still taken in: one whose prompt
/// alone is beyond a limit of tokens could never wait otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Requests a worker; `None`: as many as come, up to [`MOST_REQUESTS`] in all.
    pub requests: Option<u64>,
    /// Prompt tokens a worker; `None`: as many as come.
    pub isl_tokens: Option<u64>,
}

/// The queue is full for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{current} {what} wait already, and {limit} may")]
pub struct Overflow {
    /// What there is too much of, for a person.
    pub what: &'static str,
    /// The name used in metrics.
    pub name: &'static str,
    /// How much of it waits.
    pub current: u64,
    /// How much of it may.
    pub limit: u64,
}

/// What waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Volume {
    pub(super) requests: u64,
    pub(super) isl_tokens: u64,
}

impl Volume {
    pub(super) const fn enter(&mut self, isl_tokens: u64) {
        self.requests = self.requests.saturating_add(1);
        self.isl_tokens = self.isl_tokens.saturating_add(isl_tokens);
    }

    pub(super) const fn leave(&mut self, isl_tokens: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.isl_tokens = self.isl_tokens.saturating_sub(isl_tokens);
    }
}

impl Limits {
    /// Whether one more may wait, where `own` of its tenant and `all` together wait for `workers`.
    pub(super) fn check(&self, own: Volume, all: Volume, workers: u64) -> Result<(), Overflow> {
        let full = |what, name, current, limit| Err(Overflow { what, name, current, limit });
        let over = |limit: Option<u64>, current| {
            limit.map(|limit| limit.saturating_mul(workers)).filter(|limit| current >= *limit)
        };
        if let Some(limit) = over(self.requests, own.requests) {
            return full("requests", "requests", own.requests, limit);
        }
        if let Some(limit) = over(self.isl_tokens, own.isl_tokens) {
            return full("prompt tokens", "tokens", own.isl_tokens, limit);
        }
        if all.requests >= MOST_REQUESTS {
            return full("requests", "requests", all.requests, MOST_REQUESTS);
        }
        Ok(())
    }
}
