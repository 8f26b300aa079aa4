//! Prefill and decode at the same time, where the engines find each other by themselves.
//!
//! A prefill worker that says where it can be met (`bootstrap_host` and `bootstrap_port`, as SGLang's engines have them)
//! gets the request together with the decode worker. Both are told the same room there: the decode engine waits in it
//! for the blocks, and the router waits for nothing. The prefill runs in the background. If it fails before the decode
//! worker answers, the decode is cancelled and the request fails as any other whose prefill fails; once there is an
//! answer the blocks have arrived, and what the prefill worker says then is only counted.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use fastrand::Rng;
use http::request::Parts;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{
    app::App,
    counters::Handover,
    error::ApiError,
    handover::{bootstrap_decode_body, bootstrap_prefill_body, one_answer},
    place::Placed,
    retry::Tries,
    route::{self, Asked, Send},
    traces,
    two_hop::{self, Failure, Split},
    watch::InFlight,
};
use crate::{
    fleet::RankMember,
    proxy::{Answer, ProxyError},
};

/// Where two engines meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meeting {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) room: u64,
}

impl Meeting {
    /// At the worker of a prefill, if it can be met.
    fn at(prefill: &RankMember) -> Option<Self> {
        let (host, port) = prefill.worker.bootstrap()?;
        let room = room(prefill.rank.0, prefill.worker.spec.ranks, &mut Rng::new());
        Some(Self { host: host.to_owned(), port, room })
    }
}

/// Whether a prefill can run beside its decode.
pub(super) fn possible(prefill: &Placed) -> bool {
    prefill.member.worker.bootstrap().is_some()
}

/// A number of 63 bits that is the rank, modulo the number of ranks: by that an engine knows which of them it is for.
fn room(rank: u32, ranks: u32, rng: &mut Rng) -> u64 {
    let ranks = u64::from(ranks.max(1));
    rng.u64(..(1 << 63) / ranks) * ranks + u64::from(rank) % ranks
}

/// How a request ended whose prefill ran beside its decode.
enum Ended {
    /// Boxed, for its size.
    Answered(Box<(Answer, Placed)>),
    /// By the decode hop.
    Refused(ApiError),
    /// By the prefill.
    Failed(Failure),
}

/// Serves a request whose prefill is placed already.
pub(super) async fn serve(
    app: Arc<App>,
    in_flight: InFlight,
    head: Parts,
    asked: Asked,
    split: Split,
    prefill: Placed,
) -> Response {
    if !one_answer(&asked.body) {
        return in_flight.refuse(ApiError::bad_field(
            "n",
            "several answers to one request are not served by prefill and decode workers that meet by themselves; send \
             one request for each",
        ));
    }
    let body = asked.body.clone();
    let mut send = asked.decoding(split.decode, None);
    let both = beside(&app, &head, &body, &split, &mut send, prefill);
    match in_flight.in_time(both).await.unwrap_or_else(Ended::Refused) {
        Ended::Answered(answered) => {
            let (answer, placed) = *answered;
            route::respond(answer, in_flight, placed, send.hints.metadata, send.prefiller)
        }
        Ended::Refused(error) => in_flight.refuse(error),
        Ended::Failed(failure) => {
            two_hop::after_failure(app, in_flight, head, Send { body, ..send }, failure).await
        }
    }
}

/// Sends a request to both of its workers, and to another prefill worker if one fails before it answers.
async fn beside(
    app: &Arc<App>,
    head: &Parts,
    body: &Bytes,
    split: &Split,
    send: &mut Send,
    mut prefill: Placed,
) -> Ended {
    let mut set = Arc::clone(&split.set);
    app.retries.request();
    let mut tries = Tries::default();
    loop {
        let worker = Arc::clone(&prefill.member.worker);
        let Some(meeting) = Meeting::at(&prefill.member) else {
            // Those of a set are all alike, but for a change of the set in this very moment.
            return Ended::Failed(Failure::Refused(ApiError::unavailable(
                "the prefill workers are changing; send the request again",
            )));
        };
        let bodies = bootstrap_prefill_body(body, &meeting)
            .and_then(|prefill| Ok((prefill, bootstrap_decode_body(body, &meeting)?)));
        let prefill_body = match bodies {
            Ok((prefill, decode)) => {
                send.body = decode;
                prefill
            }
            Err(error) => return Ended::Refused(error),
        };
        send.prefiller = Some((prefill.choice.worker.0, prefill.choice.rank.0));
        let computing = compute(Arc::clone(app), two_hop::prefill_head(head), prefill_body, prefill);
        let ended = both(app, head, send, AbortOnDropHandle::new(tokio::spawn(computing))).await;
        let last = match ended {
            // The prefill worker turned it away.
            Ok(Ended::Failed(Failure::Answered(answered)))
                if tries.after_answer(app, &answered.0, &worker, head) =>
            {
                Some(Failure::Answered(answered))
            }
            Ok(ended) => return ended,
            Err(error) if tries.after_error(app, &error, &worker, head) => None,
            Err(error) => {
                warn!(%error, "prefill failed");
                app.counters.prefill(Handover::Failed);
                return Ended::Failed(Failure::Refused(ApiError::upstream(&error)));
            }
        };
        let whole = two_hop::Whole { prompt: &send.prompt, hints: &send.hints, decode: &send.set };
        let placing = two_hop::place_prefill(app, &whole, &mut set, split.prefill, &tries);
        prefill = match traces::placing(head, placing).await {
            Ok(placed) => placed,
            Err(error) => {
                tries.nobody(app);
                return Ended::Failed(last.unwrap_or(Failure::Refused(error)));
            }
        };
        tries.placed(app);
    }
}

/// Waits for the decode hop's answer, or for a prefill that fails before it. An error is a prefill worker that could not
/// be asked.
async fn both(
    app: &App,
    head: &Parts,
    send: &mut Send,
    mut prefill: AbortOnDropHandle<Result<(), Unserved>>,
) -> Result<Ended, ProxyError> {
    let mut decode = std::pin::pin!(route::reach(app, head, send));
    let reached = tokio::select! {
        // A failure that is known already is the better reason.
        biased;
        prefilled = &mut prefill => match prefilled {
            Ok(Ok(())) => decode.await,
            Ok(Err(Unserved::Unreached(error))) => return Err(error),
            Ok(Err(Unserved::Failed(failure))) => return Ok(Ended::Failed(failure)),
            Err(error) => return Ok(Ended::Failed(Failure::Refused(ApiError::internal(error.to_string())))),
        },
        reached = &mut decode => {
            if reached.as_ref().is_ok_and(|(answer, _)| answer.status().is_success()) {
                // It has done its work, and is listened to until it says so.
                drop(prefill.detach());
            }
            reached
        }
    };
    Ok(match reached {
        Ok(answered) => Ended::Answered(Box::new(answered)),
        Err(error) => Ended::Refused(error),
    })
}

/// Why a prefill did not run to its end.
enum Unserved {
    Unreached(ProxyError),
    Failed(Failure),
}

/// Has a prefill worker compute the prompt; what is booked there goes back with its answer.
async fn compute(app: Arc<App>, head: Parts, body: Bytes, mut placed: Placed) -> Result<(), Unserved> {
    let worker = Arc::clone(&placed.member.worker);
    let answer = route::forward(&app, &head, &mut placed, body).await;
    let answer = answer.map_err(Unserved::Unreached)?;
    route::note_answer(&app, &answer, &worker);
    let read = two_hop::read_whole(&app, answer, placed).await;
    app.counters.prefill(if read.is_ok() { Handover::HandedOver } else { Handover::Failed });
    read.map(drop).map_err(Unserved::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_the_rank_s_and_has_63_bits() {
        let mut rng = Rng::with_seed(7);
        for ranks in [1, 2, 3, 8, 1024] {
            for rank in [0, 1, ranks - 1, ranks, 2 * ranks + 1] {
                let room = room(rank, ranks, &mut rng);
                assert!(room < 1 << 63, "{room}");
                assert_eq!(room % u64::from(ranks), u64::from(rank % ranks), "{rank} of {ranks}");
            }
        }
        let rooms: std::collections::BTreeSet<_> = (0..100).map(|_| room(0, 4, &mut rng)).collect();
        assert_eq!(rooms.len(), 100);
        assert!(rooms.iter().any(|room| *room > 1 << 60), "all of the bits");
    }
}
