//! Requests that wait: who leaves a queue when, rule by rule, without workers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use kvroute::{
    hash::SequenceHash,
    select::queue::{
        Expired, Limits, Look, MOST_REQUESTS, Polled, Queue, QueuePolicy,
        QueuePolicy::{Fcfs, Lcfs, Wspt},
        QueueSettings, Urgency, Waiting,
    },
};
use proptest::prelude::*;
use std::time::Duration;

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn at(arrived: f64) -> Waiting {
    Waiting {
        arrived: secs(arrived),
        urgency: Urgency::default(),
        lane: 0,
        tenant: "".into(),
        isl_tokens: 1000,
        uncached_tokens: 1000,
        prefill_seconds: 0.1,
        prefix: None,
    }
}

fn jump(arrived: f64, seconds: f64) -> Waiting {
    let urgency = Urgency { priority_jump: seconds, ..Urgency::default() };
    Waiting { urgency, ..at(arrived) }
}

fn strict(arrived: f64, strict_priority: u32) -> Waiting {
    Waiting { urgency: Urgency { strict_priority, ..Urgency::default() }, ..at(arrived) }
}

fn until(arrived: f64, deadline: f64) -> Waiting {
    let urgency = Urgency { deadline: Some(secs(deadline)), ..Urgency::default() };
    Waiting { urgency, ..at(arrived) }
}

fn work(arrived: f64, uncached_tokens: u64) -> Waiting {
    Waiting { uncached_tokens, ..at(arrived) }
}

fn pinned(arrived: f64, lane: u64) -> Waiting {
    Waiting { lane, ..at(arrived) }
}

fn of(tenant: &str, mut waiting: Waiting) -> Waiting {
    waiting.tenant = tenant.into();
    waiting
}

fn policy(policy: QueuePolicy) -> QueueSettings {
    QueueSettings { policy, ..QueueSettings::default() }
}

fn filled(settings: QueueSettings, requests: impl IntoIterator<Item = Waiting>) -> Queue<usize> {
    let mut queue = Queue::new(settings);
    for (number, waiting) in requests.into_iter().enumerate() {
        queue.push(waiting, 1, number).unwrap();
    }
    queue
}

/// Everybody in order, where everybody may go.
fn order(mut queue: Queue<usize>, now: f64) -> Vec<usize> {
    let mut order = Vec::new();
    while let Polled::Ready(number, ()) = queue.poll(secs(now), true, |_, _, _| Look::Leaves(())) {
        order.push(number);
    }
    assert!(queue.is_empty() && queue.isl_tokens() == 0);
    order
}

#[test]
fn each_rule_of_the_order() {
    for (rule, by, requests, expected) in [
        ("first come, first served", Fcfs, vec![at(1.0), at(2.0), at(3.0)], vec![0, 1, 2]),
        (
            "a jump overtakes those who came within it",
            Fcfs,
            vec![at(1.0), at(2.0), jump(3.0, 1.5)],
            vec![0, 2, 1],
        ),
        ("a jump below zero is none", Fcfs, vec![jump(1.0, -9.0), at(2.0)], vec![0, 1]),
        ("a jump that is no number is none", Fcfs, vec![at(1.0), jump(2.0, f64::NAN)], vec![0, 1]),
        ("equal scores go in order of coming", Fcfs, vec![at(1.0), at(1.0), at(1.0)], vec![0, 1, 2]),
        ("last come, first served", Lcfs, vec![at(1.0), at(2.0), at(3.0)], vec![2, 1, 0]),
        (
            "a jump overtakes those who came within it later",
            Lcfs,
            vec![jump(1.0, 1.5), at(2.0), at(3.0)],
            vec![2, 0, 1],
        ),
        ("least work first", Wspt, vec![work(1.0, 300), work(2.0, 100), work(3.0, 200)], vec![1, 2, 0]),
        ("work is what is not cached, at least a token", Wspt, vec![work(1.0, 1), work(2.0, 0)], vec![0, 1]),
        (
            "a jump makes work weigh less",
            Wspt,
            vec![work(1.0, 300), Waiting { urgency: jump(0.0, 3.0).urgency, ..work(2.0, 1000) }],
            vec![1, 0],
        ),
        (
            "strict priority goes before all",
            Fcfs,
            vec![jump(1.0, 99.0), until(1.0, 9.0), strict(2.0, 1), strict(3.0, 2)],
            vec![3, 2, 1, 0],
        ),
        ("then the earliest deadline", Fcfs, vec![until(1.0, 9.0), until(2.0, 8.0)], vec![1, 0]),
        ("without a deadline last", Fcfs, vec![jump(1.0, 99.0), until(2.0, 99.0)], vec![1, 0]),
        ("deadlines go before least work", Wspt, vec![work(1.0, 1), until(2.0, 9.0)], vec![1, 0]),
    ] {
        assert_eq!(order(filled(policy(by), requests), 3.0), expected, "{rule}");
    }
}

#[test]
fn a_deadline_that_passes_turns_away_and_wakes() {
    let mut queue = filled(QueueSettings::default(), [at(1.0), until(1.0, 3.0), until(2.0, 2.5)]);
    let mut poll = |now: f64| queue.poll(secs(now), false, |_, _, _| Look::<()>::LaneWaits);
    assert_eq!(poll(2.0), Polled::WaitUntil(Some(secs(2.5))));
    assert_eq!(poll(2.5), Polled::Rejected(2, Expired { waited: secs(0.5) }));
    assert_eq!(poll(2.5), Polled::WaitUntil(Some(secs(3.0))));
    assert_eq!(poll(9.0), Polled::Rejected(1, Expired { waited: secs(8.0) }));
    assert_eq!(poll(9.0), Polled::WaitUntil(None));
    assert_eq!(queue.len(), 1);
}

#[test]
fn what_holds_up_one_lane_holds_up_no_other() {
    let requests = [at(1.0), at(2.0), pinned(3.0, 7), pinned(4.0, 8), pinned(5.0, 8)];
    let mut queue = filled(QueueSettings::default(), requests);
    let mut looked_at = Vec::new();
    let mut poll = |queue: &mut Queue<usize>| {
        queue.poll(secs(9.0), true, |waiting, number, _| {
            looked_at.push(*number);
            if waiting.lane == 8 { Look::Leaves(()) } else { Look::LaneWaits }
        })
    };
    assert_eq!(poll(&mut queue), Polled::Ready(3, ()));
    assert_eq!(poll(&mut queue), Polled::Ready(4, ()));
    assert_eq!(poll(&mut queue), Polled::WaitUntil(None));
    assert_eq!(looked_at, [0, 2, 3, 0, 2, 4, 0, 2], "the second of a lane that waits is not asked");
}

#[test]
fn while_nothing_is_free_only_those_with_a_pin_are_looked_at() {
    let mut queue = filled(QueueSettings::default(), [at(1.0), at(2.0), pinned(3.0, 7)]);
    let mut looked_at = Vec::new();
    for free in [true, false, true] {
        let polled = queue.poll(secs(3.0), free, |_, number, _| {
            looked_at.push(*number);
            Look::<()>::LaneWaits
        });
        assert_eq!(polled, Polled::WaitUntil(None));
    }
    assert_eq!(looked_at, [0, 2, 2, 0, 2]);
}

#[test]
fn each_limit() {
    let requests = Limits { requests: Some(2), isl_tokens: None };
    let tokens = Limits { requests: None, isl_tokens: Some(1500) };
    for (rule, limits, workers, taken) in [
        ("requests a worker", requests, 1, 2),
        ("times the workers", requests, 3, 6),
        ("what crosses a limit of tokens is taken", tokens, 1, 2),
        ("tokens times the workers", tokens, 2, 3),
        ("no workers, no queue", requests, 0, 0),
        ("no limit is a limit all the same", Limits::default(), 1, MOST_REQUESTS),
    ] {
        let mut queue = Queue::new(QueueSettings { limits, ..QueueSettings::default() });
        let full = (0..).find_map(|n| queue.push(at(0.0), workers, n).err().map(|error| (n, error)));
        let (number, error) = full.unwrap();
        assert_eq!(number, taken, "{rule}");
        assert!(error.current >= error.limit, "{rule}: {error}");
        queue.poll(secs(1.0), true, |_, _, _| Look::Leaves(()));
        assert_eq!(queue.push(at(0.0), workers, 0).is_ok(), taken > 0, "{rule}: there is room again");
    }
}

#[test]
fn who_gives_up_leaves_no_trace() {
    let mut queue = Queue::new(QueueSettings::default());
    let [first, second] = [until(1.0, 2.0), at(1.0)].map(|waiting| queue.push(waiting, 1, ()).unwrap());
    assert!(queue.withdraw(first).is_some() && queue.withdraw(first).is_none());
    assert_eq!((queue.len(), queue.isl_tokens(), queue.oldest()), (1, 1000, Some(secs(1.0))));
    assert_eq!(queue.poll(secs(9.0), false, |_, (), _| Look::<()>::Waits), Polled::WaitUntil(None));
    assert!(queue.withdraw(second).is_some() && queue.is_empty());
}

#[test]
fn other_settings_hold_for_those_who_wait_already() {
    let mut queue = filled(QueueSettings::default(), [work(1.0, 300), until(1.0, 9.0), work(2.0, 100)]);
    queue.reconfigure(policy(Wspt));
    queue.push(work(3.0, 200), 1, 3).unwrap();
    assert_eq!(order(queue, 4.0), [1, 2, 3, 0]);
}

#[test]
fn a_position_is_the_number_of_those_who_go_before() {
    let queue = filled(policy(Wspt), [work(1.0, 100), work(1.0, 300), strict(1.0, 1)]);
    assert_eq!(
        [work(2.0, 50), work(2.0, 200), work(2.0, 900)].map(|waiting| queue.ahead_of(&waiting)),
        [1, 2, 3]
    );
}

mod tenants {
    use super::*;

    fn share() -> QueueSettings {
        QueueSettings { tenants_share: true, ..QueueSettings::default() }
    }

    #[test]
    fn a_tenant_with_many_requests_does_not_keep_others_waiting() {
        let many = (0..6).map(|n| of("many", work(f64::from(n), 4096)));
        let requests = many.chain([of("few", work(9.0, 4096)), of("few", work(9.0, 4096))]);
        assert_eq!(order(filled(share(), requests), 9.0), [0, 6, 1, 7, 2, 3, 4, 5]);
    }

    #[test]
    fn without_sharing_they_go_in_one_order() {
        let requests = [of("a", at(1.0)), of("a", at(2.0)), of("b", at(3.0))];
        assert_eq!(order(filled(QueueSettings::default(), requests), 9.0), [0, 1, 2]);
    }

    #[test]
    fn strict_priority_is_among_a_tenant_s_own() {
        let requests = [of("a", strict(1.0, 9)), of("a", strict(1.0, 9)), of("b", at(2.0))];
        let requests = requests.map(|waiting| Waiting { uncached_tokens: 4096, ..waiting });
        assert_eq!(order(filled(share(), requests), 9.0), [0, 2, 1]);
    }

    #[test]
    fn a_limit_is_of_each_tenant() {
        let limits = Limits { requests: Some(1), isl_tokens: None };
        let mut queue = Queue::new(QueueSettings { limits, ..share() });
        for (tenant, taken) in [("a", true), ("a", false), ("b", true)] {
            assert_eq!(queue.push(of(tenant, at(1.0)), 1, ()).is_ok(), taken, "{tenant}");
        }
    }

    /// Deficit round robin as its authors wrote it: go around, grant, and serve while the grant lasts.
    fn literal(mut queues: Vec<Vec<u64>>, quantum: u64) -> Vec<(usize, u64)> {
        let mut deficits = vec![0; queues.len()];
        let mut served = Vec::new();
        let mut at = 0;
        while queues.iter().any(|queue| !queue.is_empty()) {
            if !queues[at].is_empty() {
                deficits[at] += quantum;
                while let Some(&cost) = queues[at].first().filter(|&&cost| cost <= deficits[at]) {
                    deficits[at] -= cost;
                    served.push((at, cost));
                    queues[at].remove(0);
                }
                if queues[at].is_empty() {
                    deficits[at] = 0;
                }
            }
            at = (at + 1) % queues.len();
        }
        served
    }

    proptest! {
        #[test]
        fn turns_are_those_of_deficit_round_robin(
            queues in prop::collection::vec(prop::collection::vec(1_u64..20_000, 1..6), 1..5)
        ) {
            let mut queue = Queue::new(share());
            let longest = queues.iter().map(Vec::len).max().unwrap();
            for place in 0..longest {
                for (tenant, costs) in queues.iter().enumerate() {
                    if let Some(&cost) = costs.get(place) {
                        let waiting = of(&tenant.to_string(), work(place as f64, cost));
                        queue.push(waiting, 1, (tenant, cost)).unwrap();
                    }
                }
            }
            let mut served = Vec::new();
            while let Polled::Ready(what, ()) = queue.poll(secs(99.0), true, |_, _, _| Look::Leaves(())) {
                served.push(what);
            }
            prop_assert_eq!(served, literal(queues, 4096));
        }
    }
}

mod holding {
    use super::*;

    fn hold(seconds: f64) -> QueueSettings {
        QueueSettings { hold: Some(secs(seconds)), ..QueueSettings::default() }
    }

    fn prefill(arrived: f64, prefill_seconds: f64) -> Waiting {
        Waiting { prefill_seconds, ..at(arrived) }
    }

    #[test]
    fn shorter_prefills_go_first_and_waiting_makes_shorter() {
        let requests = [prefill(0.0, 1.0), prefill(0.0, 0.2), prefill(0.0, 0.5)];
        assert_eq!(order(filled(hold(60.0), requests), 0.0), [1, 2, 0]);
        // 1 s after 20 s of waiting counts as 0.2 s.
        let requests = [prefill(0.0, 1.0), prefill(20.0, 0.25), prefill(20.0, 0.15)];
        assert_eq!(order(filled(hold(60.0), requests), 20.0), [2, 0, 1]);
    }

    #[test]
    fn one_that_cannot_go_is_in_nobody_s_way() {
        let mut queue = filled(hold(9.0), [prefill(0.0, 0.1), prefill(0.0, 0.2), prefill(0.0, 0.3)]);
        let polled = queue.poll(secs(1.0), true, |_, number, _| match *number {
            1 => Look::Leaves(()),
            _ => Look::Waits,
        });
        assert_eq!(polled, Polled::Ready(1, ()));
    }

    #[test]
    fn who_has_just_come_is_looked_at_even_if_nothing_is_free() {
        let mut queue = filled(hold(9.0), [at(0.0)]);
        let mut looks = 0;
        for _ in 0..3 {
            let polled = queue.poll(secs(0.0), false, |_, _, _| {
                looks += 1;
                Look::<()>::Waits
            });
            assert_eq!(polled, Polled::WaitUntil(Some(secs(9.0))));
        }
        assert_eq!(looks, 1);
    }

    #[test]
    fn who_shares_a_prefix_is_looked_at_when_another_one_of_it_is_booked() {
        let with = |prefix| Waiting { prefix: Some(SequenceHash(prefix)), ..at(0.0) };
        let mut queue = filled(hold(9.0), [with(1), with(2), with(1)]);
        let mut seen = Vec::new();
        let mut poll = |queue: &mut Queue<usize>, leaves: Option<usize>| {
            let polled = queue.poll(secs(1.0), leaves.is_some(), |_, number, _| {
                seen.push(*number);
                if Some(*number) == leaves { Look::Leaves(()) } else { Look::Waits }
            });
            matches!(polled, Polled::Ready(..))
        };
        assert!(!poll(&mut queue, None));
        assert!(!poll(&mut queue, None));
        assert!(poll(&mut queue, Some(0)));
        assert!(!poll(&mut queue, None));
        queue.booked(Some(SequenceHash(2)));
        queue.booked(None);
        assert!(!poll(&mut queue, None));
        assert_eq!(seen, [0, 1, 2, 0, 2, 1]);
    }

    #[test]
    fn a_hold_that_is_over_says_so() {
        let mut queue = filled(hold(2.0), [at(1.0), at(2.5)]);
        let mut poll = |now: f64| {
            queue.poll(secs(now), false, |_, _, over| if over { Look::Leaves(()) } else { Look::Waits })
        };
        assert_eq!(poll(2.9), Polled::WaitUntil(Some(secs(3.0))));
        assert_eq!(poll(3.0), Polled::Ready(0, ()));
        assert_eq!(poll(3.0), Polled::WaitUntil(Some(secs(4.5))));
        assert_eq!(poll(4.5), Polled::Ready(1, ()));
    }

    #[test]
    fn more_than_are_looked_at_leave_when_their_time_is_over() {
        let mut queue = filled(hold(1.0), (0..2000).map(|_| at(0.0)));
        let mut looks = 0;
        let mut look_at = |queue: &mut Queue<usize>, free| {
            looks = 0;
            queue.poll(secs(0.5), free, |_, _, _| {
                looks += 1;
                Look::<()>::Waits
            });
            looks
        };
        assert_eq!([false, false, true].map(|free| look_at(&mut queue, free)), [2000, 0, 512]);
        let mut left = 0;
        while let Polled::Ready(..) =
            queue.poll(secs(1.0), false, |_, _, over| if over { Look::Leaves(()) } else { Look::Waits })
        {
            left += 1;
        }
        assert_eq!(left, 2000);
    }

    proptest! {
        /// Whatever comes when, whoever may go when: nobody is held for longer than was said, if the queue is polled when it
        /// asks for that.
        #[test]
        fn a_hold_is_bounded(
            hold_ms in 1_u64..5000,
            share in any::<bool>(),
            steps in prop::collection::vec((0_u64..2000, 0_u64..100, 0_u32..3, 0_usize..3, any::<bool>()), 1..60),
            goes in prop::collection::vec(any::<bool>(), 16),
        ) {
            let settings = QueueSettings { tenants_share: share, ..hold(hold_ms as f64 / 1e3) };
            let bound = Duration::from_millis(hold_ms);
            let mut queue = Queue::new(settings);
            let mut now = Duration::ZERO;
            let mut wake = None;
            let mut looks = 0;
            let (mut came, mut left) = (0, 0);
            let mut settle = |queue: &mut Queue<Duration>, now: Duration, free: bool| loop {
                let polled = queue.poll(now, free, |_, _, over| {
                    looks += 1;
                    if over || goes[looks % goes.len()] { Look::Leaves(()) } else { Look::Waits }
                });
                match polled {
                    Polled::Ready(arrived, ()) => {
                        left += 1;
                        assert!(now - arrived <= bound, "held for {:?} of {bound:?}", now - arrived);
                    }
                    Polled::Rejected(..) => panic!("nobody has a deadline"),
                    Polled::WaitUntil(at) => break at,
                }
            };
            for (gap, work, strict_priority, tenant, free) in steps {
                let next = now + Duration::from_millis(gap);
                while let Some(at) = wake.filter(|at| *at <= next) {
                    now = at;
                    wake = settle(&mut queue, now, false);
                }
                now = next;
                let urgency = Urgency { strict_priority, ..Urgency::default() };
                let waiting = Waiting { urgency, arrived: now, prefill_seconds: work as f64, ..at(0.0) };
                queue.push(of(["a", "b", "c"][tenant], waiting), 1, now).unwrap();
                came += 1;
                wake = settle(&mut queue, now, free);
            }
            while let Some(at) = wake {
                now = at;
                wake = settle(&mut queue, now, false);
            }
            prop_assert_eq!((left, queue.len()), (came, 0));
        }
    }
}
