//! Each rank's queue before its applier.
//!
//! An applier serves its ranks by turns, a job a turn. So a rank that sends more than can be applied fills its own queue,
//! and each batch of another waits for one of its batches at most.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};

use super::{applier::Job, settings::IngestSettings, sink::Pace};

/// What a batch weighs at least, in blocks: one without any takes room and time, too.
const LEAST: u64 = 256;
/// How often a stream that waits looks whether it is to stop.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// The end of a queue into which things are put. Clones are the same queue.
#[derive(Clone)]
pub(super) struct Lane(Arc<Queue>);

struct Queue {
    /// Blocks of batches that may wait.
    limit: u64,
    patience: Duration,
    waiting: Mutex<Waiting>,
    /// Told whenever a batch waits no more.
    left: Condvar,
    turns: Sender<Turn>,
}

#[derive(Default)]
struct Waiting {
    /// With what they weigh.
    jobs: VecDeque<(u64, Job)>,
    blocks: u64,
    /// Whether the applier knows that something waits.
    has_turn: bool,
    /// Since when live batches have found no room, or not for long.
    full_since: Option<Instant>,
}

/// Says that something waits in a queue. An applier receives one for each queue in which something does.
pub(super) struct Turn(Arc<Queue>);

/// What came of putting a batch into a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    Queued,
    /// There has been no room for too long.
    Refused,
    /// There is no room, and the stream is to stop.
    Stopped,
}

impl Lane {
    /// A queue whose applier receives `turns`.
    pub(super) fn new(turns: Sender<Turn>, settings: &IngestSettings) -> Self {
        Self(Arc::new(Queue {
            limit: settings.share_blocks,
            patience: settings.patience,
            waiting: Mutex::default(),
            left: Condvar::new(),
            turns,
        }))
    }

    /// Queues a batch of so many blocks, once there is room. Only then is it made: what making it changes is not to be changed by a
    /// batch that is refused, which comes again.
    pub(super) fn put_batch(
        &self,
        blocks: usize,
        pace: Pace,
        stopped: &dyn Fn() -> bool,
        make: impl FnOnce() -> Job,
    ) -> Put {
        let weight = (blocks as u64).max(LEAST);
        let queue = &self.0;
        let mut waiting = queue.waiting.lock();
        // A batch that is larger than all that may wait has the queue to itself.
        while waiting.blocks > 0 && waiting.blocks + weight > queue.limit {
            if pace == Pace::Live {
                let full_since = *waiting.full_since.get_or_insert_with(Instant::now);
                if full_since.elapsed() >= queue.patience {
                    waiting.full_since = None;
                    return Put::Refused;
                }
            }
            if stopped() {
                return Put::Stopped;
            }
            queue.left.wait_for(&mut waiting, STOP_CHECK);
        }
        if waiting.blocks <= queue.limit / 2 {
            waiting.full_since = None;
        }
        waiting.blocks += weight;
        drop(waiting);
        let job = make();
        let mut waiting = queue.waiting.lock();
        self.push(&mut waiting, weight, job);
        Put::Queued
    }

    /// Queues what weighs so many blocks if there is room now.
    pub(super) fn try_put(&self, blocks: usize, job: Job) -> Put {
        let weight = (blocks as u64).max(LEAST);
        let mut waiting = self.0.waiting.lock();
        if waiting.blocks > 0 && waiting.blocks + weight > self.0.limit {
            return Put::Refused;
        }
        waiting.blocks += weight;
        self.push(&mut waiting, weight, job);
        Put::Queued
    }

    /// Queues what is no batch, and takes no room: at most a few such come for each batch or connection.
    pub(super) fn put(&self, job: Job) {
        self.push(&mut self.0.waiting.lock(), 0, job);
    }

    /// Puts what was taken and is not through back to where it was, before everything that waits.
    pub(super) fn put_first(&self, job: Job) {
        let mut waiting = self.0.waiting.lock();
        waiting.jobs.push_front((0, job));
        self.wants_turn(&mut waiting);
    }

    /// Puts at the end what has its room already.
    fn push(&self, waiting: &mut Waiting, weight: u64, job: Job) {
        waiting.jobs.push_back((weight, job));
        self.wants_turn(waiting);
    }

    fn wants_turn(&self, waiting: &mut Waiting) {
        if !std::mem::replace(&mut waiting.has_turn, true) {
            // An error means that the applier is gone, and the index's writer with it.
            let _ = self.0.turns.send(Turn(Arc::clone(&self.0)));
        }
    }

    /// Whether at least half of the room is free.
    pub(super) fn has_room(&self) -> bool {
        self.0.waiting.lock().blocks <= self.0.limit / 2
    }

    /// How much waits, batches and other.
    pub(super) fn len(&self) -> usize {
        self.0.waiting.lock().jobs.len()
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("waiting", &self.len()).finish_non_exhaustive()
    }
}

impl Turn {
    /// The oldest that waits. What comes after it has another turn.
    pub(super) fn take(self) -> Option<Job> {
        let mut waiting = self.0.waiting.lock();
        let (weight, job) = waiting.jobs.pop_front()?;
        waiting.blocks -= weight;
        waiting.has_turn = !waiting.jobs.is_empty();
        if waiting.has_turn {
            let _ = self.0.turns.send(Turn(Arc::clone(&self.0)));
        }
        self.0.left.notify_all();
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;
    use crate::slot::Slot;

    fn job(index: u32) -> Job {
        Job::Retire(Slot { index, generation: 0 })
    }

    fn lane(share_blocks: u64, patience: Duration) -> (Lane, Receiver<Turn>) {
        let settings = IngestSettings { share_blocks, patience, ..IngestSettings::default() };
        let (turns, inbox) = unbounded();
        (Lane::new(turns, &settings), inbox)
    }

    fn live(lane: &Lane, blocks: usize) -> Put {
        lane.put_batch(blocks, Pace::Live, &|| false, || job(0))
    }

    fn serve(inbox: &Receiver<Turn>) -> Option<u32> {
        match inbox.try_recv().ok()?.take()? {
            Job::Retire(slot) => Some(slot.index),
            _ => None,
        }
    }

    #[test]
    fn no_more_waits_than_may_but_a_batch_that_has_the_queue_to_itself() {
        let (lane, inbox) = lane(1_000, Duration::ZERO);
        assert_eq!((live(&lane, 600), live(&lane, 600)), (Put::Queued, Put::Refused));
        // An empty batch counts, too; what is no batch always has room.
        assert_eq!((live(&lane, 0), live(&lane, 200)), (Put::Queued, Put::Refused));
        lane.put(job(0));
        assert_eq!((lane.has_room(), lane.len()), (false, 3));
        serve(&inbox);
        assert!(lane.has_room());
        assert_eq!(live(&lane, 5_000), Put::Refused);
        while serve(&inbox).is_some() {}
        assert_eq!((live(&lane, 5_000), live(&lane, 0)), (Put::Queued, Put::Refused));
    }

    #[test]
    fn a_batch_that_is_refused_is_not_made() {
        let (lane, _inbox) = lane(1_000, Duration::ZERO);
        assert_eq!(live(&lane, 900), Put::Queued);
        let put =
            lane.put_batch(200, Pace::Live, &|| false, || unreachable!("reading it would be learning twice"));
        assert_eq!(put, Put::Refused);
    }

    #[test]
    fn queues_are_served_by_turns_and_each_in_order() {
        let (turns, inbox) = unbounded();
        let settings = IngestSettings::default();
        let (first, second) = (Lane::new(turns.clone(), &settings), Lane::new(turns, &settings));
        (1..=3).for_each(|at| first.put(job(at)));
        (11..=12).for_each(|at| second.put(job(at)));
        let order: Vec<_> = std::iter::from_fn(|| serve(&inbox)).collect();
        assert_eq!(order, [1, 11, 2, 12, 3]);
        second.put(job(13));
        assert_eq!((serve(&inbox), serve(&inbox)), (Some(13), None));
    }

    #[test]
    fn a_replay_waits_until_there_is_room_or_the_stream_stops() {
        let (lane, inbox) = lane(300, Duration::ZERO);
        assert_eq!(live(&lane, 300), Put::Queued);
        assert_eq!(lane.put_batch(300, Pace::Replay, &|| true, || job(1)), Put::Stopped);
        thread_that_waits(&lane, Pace::Replay, || serve(&inbox));
    }

    #[test]
    fn live_batches_wait_for_a_while() {
        let (lane, inbox) = lane(300, Duration::from_secs(600));
        assert_eq!(live(&lane, 300), Put::Queued);
        thread_that_waits(&lane, Pace::Live, || serve(&inbox));
    }

    fn thread_that_waits(lane: &Lane, pace: Pace, serve: impl Fn() -> Option<u32>) {
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lane.put_batch(300, pace, &|| false, || job(1)));
            assert_eq!(serve(), Some(0));
            assert_eq!(waits.join().unwrap(), Put::Queued);
            assert_eq!(serve(), Some(1));
        });
    }
}
