//! What a request is tried again for, and why it is not.

use http::{HeaderMap, StatusCode};

use crate::{
    frontend::error,
    proxy::{ErrorKind, ProxyError, Retry},
};

/// What happened at the worker that was tried, where another may be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::frontend) enum RetryReason {
    /// There is no connection to it, or no secure one.
    Unreachable,
    /// The connection was lost before the request was sent.
    ConnectionLost,
    /// It answered 429.
    TooManyRequests,
    /// It answered 502.
    BadGateway,
    /// It answered 503.
    Unavailable,
}

impl RetryReason {
    pub(super) const ALL: [Self; 5] =
        [Self::Unreachable, Self::ConnectionLost, Self::TooManyRequests, Self::BadGateway, Self::Unavailable];

    /// The label in metrics, and the name in logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::ConnectionLost => "connection_lost",
            Self::TooManyRequests => "429",
            Self::BadGateway => "502",
            Self::Unavailable => "503",
        }
    }

    /// That of an answer, if it is one. A worker that is a router itself may say that its own worker has perhaps run the request.
    pub(super) fn of_answer(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        match status {
            _ if error::is_unsafe(headers) => None,
            StatusCode::TOO_MANY_REQUESTS => Some(Self::TooManyRequests),
            StatusCode::BAD_GATEWAY => Some(Self::BadGateway),
            StatusCode::SERVICE_UNAVAILABLE => Some(Self::Unavailable),
            _ => None,
        }
    }

    /// That of an error, if the worker has seen nothing of the request.
    pub(super) fn of_error(error: &ProxyError) -> Option<Self> {
        match error.kind {
            _ if error.retry() != Retry::Safe => None,
            ErrorKind::NotSent => Some(Self::ConnectionLost),
            _ => Some(Self::Unreachable),
        }
    }
}

/// Why a request that failed so is not tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GivenUp {
    /// As many others were tried as may be.
    Limit,
    /// The budget is used up.
    Budget,
    /// Nobody else would take it.
    NoWorker,
}

impl GivenUp {
    pub(super) const ALL: [Self; 3] = [Self::Limit, Self::Budget, Self::NoWorker];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Budget => "budget",
            Self::NoWorker => "no_worker",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Origin;

    #[test]
    fn of_answers_three_are_tried_elsewhere() {
        let tried: Vec<_> = (100..600)
            .filter(|&code| {
                RetryReason::of_answer(StatusCode::from_u16(code).unwrap(), &HeaderMap::new()).is_some()
            })
            .collect();
        assert_eq!(tried, [429, 502, 503]);
    }

    #[test]
    fn of_another_router_s_answers_those_are_that_it_calls_safe() {
        for (retry, expected) in [(Retry::Safe, true), (Retry::Unsafe, false)] {
            let mut headers = HeaderMap::new();
            error::tell(&mut headers, Origin::Worker, retry);
            assert_eq!(RetryReason::of_answer(StatusCode::BAD_GATEWAY, &headers).is_some(), expected);
        }
    }
}
