//! The queue of one worker set, and the task that drives it.

use std::{
    fmt,
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{Left, NotPlaced, Rules, Tally, wait::TurnedAway};
use crate::{
    fleet::{Fleet, SetKey, SetView},
    frontend::{
        asking::{Asking, Hop, Prompt},
        counters::Counters,
        decision_log::Recorder,
        place::{Patience, Placed, Placing, Trial},
        workspace::{Hashed, Tools},
    },
    load::Loads,
    select::{
        Refusal,
        queue::{Look, Overflow, Polled, Queue, Ticket, WaitReason, Waiting},
    },
};

/// Requests of one worker set that wait.
pub(in crate::frontend) struct SetQueue {
    key: SetKey,
    /// The loads of the set that it was made for; one that is founded anew has others.
    loads: Arc<Loads>,
    rules: Rules,
    state: Mutex<State>,
    signal: Arc<Signal>,
    tally: Arc<Tally>,
}

struct State {
    queue: Queue<Waiter>,
    /// Whether there is a task.
    driven: bool,
}

/// A request that waits, and who is to be told.
pub(super) struct Waiter {
    /// Without its tokens.
    pub(super) prompt: Prompt,
    pub(super) isl_tokens: usize,
    pub(super) hop: Hop,
    pub(super) blocks: Hashed,
    pub(super) answer: oneshot::Sender<Result<Placed, NotPlaced>>,
}

/// What the task places requests with.
#[derive(Clone)]
pub(super) struct Means {
    pub(super) fleet: Arc<Fleet>,
    pub(super) counters: Arc<Counters>,
    pub(super) decisions: Arc<Recorder>,
}

/// Wakes the task.
struct Signal(Notify);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

impl fmt::Debug for SetQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetQueue({})", self.key)
    }
}

/// What a queue is like now.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::frontend) struct Depth {
    pub(in crate::frontend) requests: usize,
    pub(in crate::frontend) isl_tokens: u64,
    /// How long the one has waited that came first.
    pub(in crate::frontend) oldest: Duration,
}

impl SetQueue {
    pub(super) fn new(set: &SetView, rules: Rules, tally: &Arc<Tally>) -> Arc<Self> {
        let loads = Arc::clone(set.selector.loads());
        let signal = Arc::new(Signal(Notify::new()));
        let is_only = loads.wake_on_relief(Waker::from(Arc::clone(&signal)));
        debug_assert!(is_only, "there is one queue for these loads: nobody wakes another");
        let state = Mutex::new(State { queue: Queue::new(rules.settings(set)), driven: false });
        let tally = Arc::clone(tally);
        Arc::new(Self { key: set.key.clone(), loads, rules, state, signal, tally })
    }

    /// Whether it is that of `set`, and not of one that was there before under the same name.
    fn is_of(&self, set: &SetView) -> bool {
        Arc::ptr_eq(&self.loads, set.selector.loads())
    }

    /// Whether nobody else knows its loads any more: neither a view of its set nor a request.
    pub(super) fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.loads) == 1
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    pub(in crate::frontend) fn depth(&self, now: Duration) -> Depth {
        let state = self.state.lock();
        let oldest = state.queue.oldest().map_or(Duration::ZERO, |oldest| now.saturating_sub(oldest));
        Depth { requests: state.queue.len(), isl_tokens: state.queue.isl_tokens(), oldest }
    }

    /// How many would go before a request that comes now.
    pub(super) fn ahead_of(&self, waiting: &Waiting) -> usize {
        self.state.lock().queue.ahead_of(waiting)
    }

    /// Takes a request in, and sees to it that somebody looks at it.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) fn join(
        self: &Arc<Self>,
        waiting: Waiting,
        waiter: Waiter,
        workers: u64,
        means: &Means,
    ) -> Result<Ticket, Overflow> {
        let mut state = self.state.lock();
        let ticket = state.queue.push(waiting, workers, waiter)?;
        if std::mem::replace(&mut state.driven, true) {
            drop(state);
            self.signal.0.notify_one();
        } else {
            drop(state);
            tokio::spawn(drive(Arc::clone(self), means.clone()));
        }
        Ok(ticket)
    }

    /// Takes a request out whose client is gone.
    pub(super) fn withdraw(&self, ticket: Ticket) {
        let waiter = self.state.lock().queue.withdraw(ticket);
        if waiter.is_some() {
            self.tally.count(Left::Cancelled);
        }
    }

    /// Lets everybody go who can, up to [`AT_ONCE`] of them.
    fn settle(&self, means: &Means) -> Next {
        let Means { fleet, counters, decisions } = means;
        let view = fleet.view();
        let set = view.sets.iter().find(|set| set.key == self.key && self.is_of(set));
        let Some(set) = set else { return self.abandon() };
        let placing = Placing { fleet, counters, decisions, set };
        let settings = self.rules.settings(set);
        for _ in 0..AT_ONCE {
            let mut state = self.state.lock();
            if *state.queue.settings() != settings {
                state.queue.reconfigure(settings);
            }
            let now = fleet.clock().now();
            let (polled, at) = Tools::lend(|tools| {
                let outlook = tools.outlook(fleet, set);
                let polled = state.queue.poll(now, outlook.free, |waiting, waiter, hold_over| {
                    match try_to_place(placing, tools, waiter, hold_over) {
                        Ok(Trial::Placed(placed)) => Look::Leaves((Ok(placed), waiting.arrived)),
                        Ok(Trial::Waits(WaitReason::Hold)) => Look::Waits,
                        Ok(Trial::Waits(WaitReason::Threshold)) => Look::LaneWaits,
                        Err(refusal) => Look::Leaves((Err(refusal), waiting.arrived)),
                    }
                });
                (polled, outlook.at)
            });
            match polled {
                Polled::Ready(waiter, (outcome, arrived)) => {
                    drop(state);
                    self.tally.count(if outcome.is_ok() { Left::Placed } else { Left::Refused });
                    if outcome.is_ok() {
                        self.tally.waited.observe(now.saturating_sub(arrived));
                    }
                    // Who is not there any more needs no worker: what is sent is dropped, and returns what it booked.
                    let _ = waiter.answer.send(outcome.map_err(NotPlaced::Refused));
                }
                Polled::Rejected(waiter, expired) => {
                    drop(state);
                    self.tally.count(Left::Late);
                    let _ = waiter.answer.send(Err(NotPlaced::TurnedAway(TurnedAway::Late(expired))));
                }
                Polled::WaitUntil(_) if state.queue.is_empty() => {
                    state.driven = false;
                    return Next::Nobody;
                }
                Polled::WaitUntil(moment) => return Next::Look(moment.into_iter().chain(at).min()),
            }
        }
        Next::More
    }

    /// The set is gone: its requests look for another one.
    fn abandon(&self) -> Next {
        let mut state = self.state.lock();
        state.driven = false;
        let left: Vec<_> = state.queue.take_all().collect();
        drop(state);
        for waiter in left {
            self.tally.count(Left::Refused);
            let _ = waiter.answer.send(Err(NotPlaced::Refused(Refusal::NoWorkers)));
        }
        Next::Nobody
    }
}

/// Requests that leave before others get a turn on the task's thread.
const AT_ONCE: usize = 32;

/// What the task does next.
enum Next {
    /// End: nobody waits.
    Nobody,
    /// Go on at once.
    More,
    /// Look again when something changes, or at this moment.
    Look(Option<Duration>),
}

fn try_to_place(
    placing: Placing<'_>,
    tools: &mut Tools,
    waiter: &Waiter,
    hold_over: bool,
) -> Result<Trial, Refusal> {
    let Waiter { ref prompt, isl_tokens, hop, ref blocks, .. } = *waiter;
    let asking = Asking { prompt, isl_tokens, hop };
    placing.place(tools, blocks.blocks(), &asking, Patience::Waits { hold_over })
}

/// Drives a queue until nobody is in it.
async fn drive(queue: Arc<SetQueue>, means: Means) {
    let _driving = Driving(&queue);
    let mut changes = means.fleet.changes();
    loop {
        let moment = match queue.settle(&means) {
            Next::Nobody => return,
            Next::More => {
                tokio::task::yield_now().await;
                continue;
            }
            Next::Look(moment) => moment,
        };
        let left = moment.map(|moment| moment.saturating_sub(means.fleet.clock().now()));
        let timer = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        // Each of them is heard of even if it happened before: the signal keeps a permit, the fleet a generation.
        tokio::select! {
            () = queue.signal.0.notified() => {}
            _ = changes.changed() => {}
            () = timer => {}
        }
    }
}

/// A task that ends otherwise than it should leaves nobody waiting: they hear that nobody will answer.
struct Driving<'a>(&'a SetQueue);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state.lock();
            state.driven = false;
            let left: Vec<_> = state.queue.take_all().collect();
            drop(state);
            drop(left);
        }
    }
}
