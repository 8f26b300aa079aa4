//! A task that wakes itself is polled again at once.
//!
//! Within one connection's task much is handed from one part to another: pieces of a request's body, of an answer's, and the word
//! that the next one is wanted. Each hand-over wakes the task, which runs already. To the runtime that is a task that
//! gave up its turn: it is queued, and another thread is woken to take it, which costs more than all that there was to do.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// Polls in a row before others have their turn.
const TURNS: u32 = 8;

/// The future of a task, polled again in place when it woke itself.
pub(super) struct InPlace<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Rung by whoever has something for the task.
///
/// SeqCst on both flags: the ringer stores `rung` and then loads `polling`, the poller stores `polling` and then loads `rung`. With
/// one order of all four at least one of them sees the other's store: the ringer that nobody polls, and wakes the
/// task, or the poller that it was rung, and polls again. A wake-up too many does no harm.
#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    polling: AtomicBool,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, SeqCst);
        if !self.polling.load(SeqCst) {
            self.task.wake();
        }
    }
}

impl<F: Future> InPlace<F> {
    pub(super) fn new(future: F) -> Self {
        let bell = Arc::<Bell>::default();
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&bell)), bell }
    }
}

impl<F: Future> Future for InPlace<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell, waker } = &mut *self;
        bell.task.register(cx.waker());
        for _ in 0..TURNS {
            bell.polling.store(true, SeqCst);
            // A swap, which reads what the last ringer stored: the poll then sees all that was brought before.
            bell.rung.swap(false, SeqCst);
            let polled = future.as_mut().poll(&mut Context::from_waker(waker));
            bell.polling.store(false, SeqCst);
            if polled.is_ready() || !bell.rung.load(SeqCst) {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        thread,
    };

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Polls once; how often the future was polled by that, and how often the task was woken.
    fn poll_once(wakes: u32) -> (u32, u32, bool) {
        let (woken, mut polls) = (Arc::<Woken>::default(), 0);
        let mut task = InPlace::new(poll_fn(|cx| {
            polls += 1;
            if polls > wakes {
                return if wakes.is_multiple_of(2) { Poll::Ready(()) } else { Poll::Pending };
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let waker = Waker::from(Arc::clone(&woken));
        let ready = Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_ready();
        drop(task);
        (polls, woken.0.load(Relaxed), ready)
    }

    #[test]
    fn a_task_that_wakes_itself_is_polled_again_and_nobody_woken() {
        assert_eq!(poll_once(0), (1, 0, true));
        assert_eq!(poll_once(2), (3, 0, true));
        assert_eq!(poll_once(3), (4, 0, false));
    }

    #[test]
    fn one_that_does_not_stop_gives_others_their_turn() {
        assert_eq!(poll_once(100), (TURNS, 1, false));
    }

    #[test]
    fn no_wake_up_of_another_thread_is_lost() {
        const EACH: u32 = 20_000;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (given, latest) = (Arc::<AtomicU32>::default(), Arc::new(AtomicWaker::new()));
        let (take, tell) = (Arc::clone(&given), Arc::clone(&latest));
        let mut taken = 0;
        let task = runtime.spawn(InPlace::new(poll_fn(move |cx| {
            tell.register(cx.waker());
            taken += take.swap(0, SeqCst);
            if taken == 2 * EACH { Poll::Ready(()) } else { Poll::Pending }
        })));
        let giving = (0..2).map(|_| {
            let (given, latest) = (Arc::clone(&given), Arc::clone(&latest));
            thread::spawn(move || {
                for _ in 0..EACH {
                    given.fetch_add(1, SeqCst);
                    latest.wake();
                }
            })
        });
        giving.collect::<Vec<_>>().into_iter().for_each(|giver| giver.join().unwrap());
        // A lost one leaves it waiting for ever.
        runtime.block_on(task).unwrap();
    }
}
