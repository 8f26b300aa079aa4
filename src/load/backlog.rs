//! The prefill work that a slot has before it.

use std::time::Duration;

/// Prefill work booked on a slot whose end was not seen, in tokens of work: tokens that are not cached, and a fixed
/// number for each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// Requests whose first token has not come.
    pub requests: u32,
    /// The work of all of them.
    pub work: u64,
    /// The work of the one that was booked first, which the engine computes first.
    pub head_work: u64,
    /// Since when the engine has been at that one: the later of its booking and the last first token there.
    pub head_since: Duration,
}

/// A prefill's place in a [`Queue`]. It is good for one leave; the queue may also have let the prefill go before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    place: u32,
    stamp: u32,
}

/// The prefills of one slot in order of booking. A linked list in an array: every operation takes the same time
/// whatever the length, and none allocates once the array is as long as the queue has ever been.
#[derive(Debug)]
pub(super) struct Queue {
    places: Vec<Place>,
    /// Front, back, and the first free place, or [`NOWHERE`].
    front: u32,
    back: u32,
    free: u32,
    requests: u32,
    work: u64,
    /// When the last first token came.
    last_first_token: Duration,
    /// A prefill left without one, so that the time until the next says nothing of that one's work.
    disturbed: bool,
    /// Of the next prefill. It tells holders of old tickets from that of the present.
    stamp: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    work: u64,
    booked: Duration,
    /// Whether its first token will be seen.
    seen: bool,
    /// `None` while the place is free.
    stamp: Option<u32>,
    before: u32,
    /// Also links the free places.
    behind: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Default for Queue {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            front: NOWHERE,
            back: NOWHERE,
            free: NOWHERE,
            requests: 0,
            work: 0,
            last_first_token: Duration::ZERO,
            disturbed: false,
            stamp: 0,
        }
    }
}

impl Queue {
    /// A prefill of `work` tokens is booked behind all others. If its first token will not be `seen`, it is held to be
    /// done when its time is over; see [`Queue::expire`].
    pub(super) fn enter(&mut self, work: u64, now: Duration, seen: bool) -> Ticket {
        let stamp = self.stamp;
        self.stamp = stamp.wrapping_add(1);
        let place = Place { work, booked: now, seen, stamp: Some(stamp), before: self.back, behind: NOWHERE };
        let at = self.free;
        let at = if let Some(free) = self.places.get_mut(at as usize) {
            self.free = free.behind;
            *free = place;
            at
        } else {
            self.places.push(place);
            // A slot has far fewer requests than u32 can count.
            u32::try_from(self.places.len() - 1).unwrap_or(NOWHERE)
        };
        match self.places.get_mut(self.back as usize) {
            Some(back) => back.behind = at,
            None => self.front = at,
        }
        self.back = at;
        self.requests = self.requests.saturating_add(1);
        self.work = self.work.saturating_add(work);
        Ticket { place: at, stamp }
    }

    /// The first token of a prefill came. Says how much work was done in which time since the engine began with what was
    /// first in the queue, if that says anything.
    pub(super) fn first_token(&mut self, ticket: Ticket, now: Duration) -> Option<(u64, Duration)> {
        let since = self.backlog().head_since;
        let work = self.remove(ticket)?;
        self.last_first_token = self.last_first_token.max(now);
        // A clock that went back says nothing, like a time of zero.
        let took = now.saturating_sub(since);
        (!std::mem::take(&mut self.disturbed)).then_some((work, took))
    }

    /// A prefill leaves without a first token: its request ended, or went elsewhere.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        if self.remove(ticket).is_some() {
            self.disturbed = self.requests > 0;
        }
    }

    /// Lets go of prefills at the front whose first tokens nobody will see and whose time is over, at `seconds` a token.
    pub(super) fn expire(&mut self, now: Duration, seconds: f64) {
        while let Some(&Place { work, seen: false, stamp: Some(stamp), .. }) =
            self.places.get(self.front as usize)
        {
            let since = self.backlog().head_since;
            let Ok(takes) = Duration::try_from_secs_f64(work as f64 * seconds) else { break };
            let done = since.saturating_add(takes);
            if done > now {
                break;
            }
            self.remove(Ticket { place: self.front, stamp });
            self.last_first_token = self.last_first_token.max(done);
        }
    }

    /// What is before a request that comes now.
    pub(super) fn backlog(&self) -> Backlog {
        let head = self.places.get(self.front as usize);
        Backlog {
            requests: self.requests,
            work: self.work,
            head_work: head.map_or(0, |head| head.work),
            head_since: head.map_or(Duration::ZERO, |head| head.booked.max(self.last_first_token)),
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<u64> {
        let place = self.places.get_mut(ticket.place as usize).filter(|p| p.stamp == Some(ticket.stamp))?;
        let Place { work, before, behind, .. } = *place;
        (place.stamp, place.behind) = (None, self.free);
        self.free = ticket.place;
        match self.places.get_mut(before as usize) {
            Some(before) => before.behind = behind,
            None => self.front = behind,
        }
        match self.places.get_mut(behind as usize) {
            Some(behind) => behind.before = before,
            None => self.back = before,
        }
        self.requests = self.requests.saturating_sub(1);
        self.work = self.work.saturating_sub(work);
        if self.requests == 0 {
            // Sums that stopped at the largest value end here, and so does what was disturbed.
            (self.work, self.disturbed) = (0, false);
        }
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_head_is_timed_from_its_booking_or_the_last_first_token() {
        let mut queue = Queue::default();
        let first = queue.enter(100, at(10), true);
        let second = queue.enter(200, at(20), true);
        let expected = Backlog { requests: 2, work: 300, head_work: 100, head_since: at(10) };
        assert_eq!(queue.backlog(), expected);
        assert_eq!(queue.first_token(first, at(50)), Some((100, at(40))));
        assert_eq!(queue.backlog().head_since, at(50));
        assert_eq!(queue.first_token(second, at(75)), Some((200, at(25))));
        assert_eq!(queue.backlog(), Backlog::default());
        let third = queue.enter(5, at(90), true);
        assert_eq!(queue.backlog().head_since, at(90));
        assert_eq!(queue.first_token(third, at(80)), Some((5, Duration::ZERO)), "no time runs backwards");
    }

    #[test]
    fn a_prefill_that_overtakes_takes_the_time_and_leaves_the_head() {
        let mut queue = Queue::default();
        let slow = queue.enter(100, at(0), true);
        let quick = queue.enter(1, at(0), true);
        assert_eq!(queue.first_token(quick, at(30)), Some((1, at(30))));
        assert_eq!(queue.backlog().head_work, 100);
        assert_eq!(queue.first_token(slow, at(40)), Some((100, at(10))));
        assert_eq!(queue.first_token(slow, at(50)), None, "once");
    }

    #[test]
    fn after_one_left_without_a_first_token_the_next_time_says_nothing() {
        let mut queue = Queue::default();
        let gone = queue.enter(100, at(0), true);
        let [second, third] = [queue.enter(10, at(0), true), queue.enter(20, at(0), true)];
        queue.leave(gone);
        assert_eq!(queue.first_token(second, at(90)), None);
        assert_eq!(queue.first_token(third, at(99)), Some((20, at(9))));
        let gone = queue.enter(100, at(100), true);
        queue.leave(gone);
        let alone = queue.enter(7, at(200), true);
        assert_eq!(queue.first_token(alone, at(201)), Some((7, at(1))), "an empty queue is not disturbed");
    }

    #[test]
    fn unseen_prefills_end_when_their_time_is_over() {
        let mut queue = Queue::default();
        let unseen = queue.enter(100, at(0), false);
        queue.enter(50, at(0), false);
        let seen = queue.enter(10, at(0), true);
        queue.enter(10, at(0), false);
        queue.expire(at(99), 1e-3);
        assert_eq!(queue.backlog().requests, 4);
        queue.expire(at(149), 1e-3);
        assert_eq!((queue.backlog().requests, queue.backlog().head_since), (3, at(100)));
        queue.expire(at(9_000), 1e-3);
        assert_eq!((queue.backlog().requests, queue.backlog().head_since), (2, at(150)), "one is seen");
        queue.enter(1, at(9_000), true);
        assert_eq!(queue.places.len(), 4, "places are used again");
        queue.leave(unseen);
        assert_eq!(queue.backlog().requests, 3, "an old ticket is worth nothing");
        assert_eq!(queue.first_token(seen, at(9_001)), Some((10, at(8_851))));
        queue.expire(at(9_001), f64::INFINITY);
        queue.expire(at(9_001), f64::NAN);
        assert_eq!(queue.backlog().requests, 2);
    }

    proptest! {
        /// Against a plain list.
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), 0_u64..1000), 0..80)) {
            let mut queue = Queue::default();
            let mut list: Vec<(Ticket, u64, Duration)> = Vec::new();
            let mut last = Duration::ZERO;
            for (now, (step, which, work)) in (1..).map(at).zip(steps) {
                if step < 2 || list.is_empty() {
                    list.push((queue.enter(work, now, true), work, now));
                } else {
                    let (ticket, work, _) = list.remove(which.index(list.len()));
                    if step == 2 {
                        queue.leave(ticket);
                    } else {
                        prop_assert!(queue.first_token(ticket, now).is_none_or(|(seen, _)| seen == work));
                        last = now;
                    }
                }
                let head = list.first();
                let expected = Backlog {
                    requests: u32::try_from(list.len()).unwrap(),
                    work: list.iter().map(|(_, work, _)| work).sum(),
                    head_work: head.map_or(0, |head| head.1),
                    head_since: head.map_or(Duration::ZERO, |head| head.2.max(last)),
                };
                prop_assert_eq!(queue.backlog(), expected);
            }
            prop_assert!(queue.places.len() <= 80);
        }
    }
}
