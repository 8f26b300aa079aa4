//! The thread of one stream: it moves bytes between the sockets, the state machine and the sink.

use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

use zmq::Message;

use super::{
    handle::Inbox,
    replays::Permit,
    sink::{Note, Pace, Sink, Taken},
    source::{Arrival, EndpointMode, Feed, Lent, ReplaySocket, Subscriber, SubscriberEvent},
    stream::{Memory, Output, StreamMachine},
};

/// Messages taken from a socket before the others get their turn.
const TURN: usize = 1_000;
/// Pause before a socket that met a stranger is opened again.
const REOPEN: Duration = Duration::from_secs(2);
/// How long a socket may try to connect before it is made anew. ZMQ goes on trying by itself; this is for whatever keeps it from that.
const UNCONNECTED: Duration = Duration::from_secs(60);

/// In milliseconds, rounded up: waking a moment early would spin until the time has come.
fn poll_timeout(wait: Option<Duration>) -> i64 {
    wait.map_or(-1, |wait| i64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX))
}

pub(super) struct Driver<S> {
    machine: StreamMachine<Message>,
    sink: S,
    subscriber: Subscriber,
    replay: Option<ReplaySocket>,
    /// From which batch on a replay is to be asked for once it may be; as long as there is one, the sink was told last that it waits.
    wanted: Option<u64>,
    /// The turn of the replay that is asked for, or wanted.
    permit: Option<Permit>,
    connections: u32,
    reopen_at: Option<Duration>,
    inbox: Inbox,
    start: Instant,
    feed: Feed,
    lent: Lent,
}

impl<S: Sink> Driver<S> {
    pub(super) fn new(feed: Feed, sink: S, subscriber: Subscriber, lent: Lent, inbox: Inbox) -> Self {
        Self {
            machine: StreamMachine::new(feed.settings, feed.replay.is_some()),
            sink,
            subscriber,
            replay: None,
            wanted: None,
            permit: None,
            connections: 0,
            reopen_at: Some(UNCONNECTED),
            inbox,
            start: Instant::now(),
            feed,
            lent,
        }
    }

    /// The same for a stream that goes on from where another one stood, if its engine can replay.
    pub(super) fn resuming(mut self, memory: Option<Memory>) -> Self {
        if let Some(memory) = memory.filter(|_| self.feed.replay.is_some()) {
            self.machine = self.machine.resuming(memory);
        }
        self
    }

    pub(super) fn run(mut self) {
        while !self.inbox.stopped() {
            self.wait();
            self.inbox.empty();
            if self.inbox.engine_started() {
                self.machine.engine_start_changed(self.now());
                self.drain();
            }
            if self.inbox.rebuild_wanted() {
                self.machine.rebuild(self.now());
                self.drain();
            }
            if self.inbox.resync_wanted() {
                self.machine.resync(self.now());
                self.drain();
            }
            if let Some(request) = self.inbox.export_wanted() {
                self.sink.export(self.machine.memory(), request);
            }
            self.begin_replay();
            self.connection_events();
            self.live();
            self.replay();
            // Last: a deadline counts only once everything that has arrived was told.
            self.machine.poll(self.now());
            self.drain();
            if self.machine.wants_room(self.now()) && self.sink.has_room() {
                self.machine.room(self.now());
                self.drain();
            }
            self.reopen();
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&self) {
        let now = self.now();
        let wake = [self.machine.next_wake(), self.reopen_at].into_iter().flatten().min();
        let timeout = poll_timeout(wake.map(|wake| wake.saturating_sub(now)));
        let [live, monitor] = self.subscriber.poll_items();
        let mut items = vec![live, monitor, self.inbox.poll_item()];
        items.extend(self.replay.as_ref().map(ReplaySocket::poll_item));
        if let Err(error) = zmq::poll(&mut items, timeout)
            && error != zmq::Error::EINTR
        {
            // Nothing known leads here. If something does, a slow stream is better than a spinning thread.
            tracing::error!(address = self.feed.endpoint.address, %error, "waiting for KV events failed");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Tells the machine what happened to the connection.
    fn connection_events(&mut self) {
        let mut events = VecDeque::new();
        loop {
            self.new_events(&mut events);
            let Some(event) = events.pop_front() else { return };
            if event == SubscriberEvent::Disconnected {
                self.live_before_loss(&mut events);
            }
            self.connection_event(event);
        }
    }

    fn new_events(&mut self, events: &mut VecDeque<SubscriberEvent>) {
        while let Some(event) = self.subscriber.event() {
            events.push_back(event);
        }
    }

    fn connection_event(&mut self, event: SubscriberEvent) {
        let now = self.now();
        match event {
            SubscriberEvent::Connected => {
                self.connections += 1;
                self.machine.connected(now);
            }
            SubscriberEvent::Disconnected => {
                self.connections = self.connections.saturating_sub(1);
                self.machine.disconnected();
                if self.connections > 0 {
                    // Two engines had connected to our address; the one that stayed must show who it is.
                    self.machine.connected(now);
                }
            }
            SubscriberEvent::Refused => {
                self.connections = 0;
                self.machine.disconnected();
                self.reopen_at = Some(now + REOPEN);
            }
        }
        self.drain();
    }

    /// What arrived before the connection broke is still the lost engine's word, so it is told before the
    /// loss. Not so once a new connection stands: then nobody knows whose the queued batches are, and the
    /// machine judges them under the proof.
    fn live_before_loss(&mut self, events: &mut VecDeque<SubscriberEvent>) {
        while !self.inbox.stopped() && !events.contains(&SubscriberEvent::Connected) {
            let Some(arrival) = self.subscriber.receive() else { return };
            self.arrived(arrival);
            self.new_events(events);
        }
    }

    /// Takes a turn at the live socket.
    fn live(&mut self) {
        for _ in 0..TURN {
            if self.inbox.stopped() {
                return;
            }
            let Some(arrival) = self.subscriber.receive() else { return };
            if self.connections == 0 {
                // Its connection was reported before it was delivered, but perhaps after we last looked.
                while let Some(event) = self.subscriber.event() {
                    self.connection_event(event);
                }
            }
            self.arrived(arrival);
        }
    }

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Batch { sequence, payload } => self.machine.live(self.now(), sequence, payload),
            Arrival::End | Arrival::Malformed => self.sink.note(Note::BadMessage),
        }
        self.drain();
    }

    fn replay(&mut self) {
        for _ in 0..TURN {
            if self.inbox.stopped() {
                return;
            }
            let Some(arrival) = self.replay.as_ref().and_then(ReplaySocket::receive) else { return };
            match arrival {
                Arrival::Batch { sequence, payload } => self.machine.replayed(self.now(), sequence, payload),
                Arrival::End => self.machine.replay_ended(self.now()),
                Arrival::Malformed => self.sink.note(Note::BadMessage),
            }
            self.drain();
        }
    }

    /// Does what the machine asks for, all of it.
    fn drain(&mut self) {
        let stopped = self.inbox.stop_check();
        while let Some(output) = self.machine.next_output() {
            match output {
                Output::Apply { sequence, payload } => {
                    let pace = if self.machine.awaits_replay() { Pace::Replay } else { Pace::Live };
                    match self.sink.apply(sequence, &payload, pace, &stopped) {
                        Taken::Taken => {}
                        Taken::Emptied => self.machine.emptied(sequence),
                        Taken::Unreadable => self.machine.unreadable(sequence),
                        Taken::Refused => self.machine.refused(self.now(), sequence),
                    }
                }
                Output::Clear => self.sink.clear(),
                Output::State(state) => self.sink.publish(state),
                Output::GapFound => self.sink.note(Note::Gap),
                Output::Anew => self.sink.note(Note::Anew),
                Output::RestartFound => self.sink.note(Note::Restart),
                Output::Reconnect => self.reconnect(),
                Output::AskReplay { from, purpose } => {
                    self.sink.note(Note::Replay(purpose));
                    self.ask(from);
                }
            }
        }
        if !self.machine.awaits_replay() {
            self.replay = None;
            self.permit = None;
            // Not by the permit: it may have been granted since anybody looked.
            if self.wanted.take().is_some() {
                self.sink.note(Note::ReplayWaits(false));
            }
        }
    }

    /// Asks for a replay, or gets in line. A stream that asks again while it replays, or waits, keeps its turn.
    fn ask(&mut self, from: u64) {
        self.replay = None;
        let waited = self.wanted.replace(from).is_some();
        let permit = self.permit.get_or_insert_with(|| self.lent.replays.ask(self.inbox.waker()));
        if permit.is_granted() {
            if waited {
                self.sink.note(Note::ReplayWaits(false));
            }
            self.open_replay();
        } else {
            self.sink.note(Note::ReplayWaits(true));
            self.machine.replay_waits();
        }
    }

    /// Asks for the replay that waited, if it is its turn.
    fn begin_replay(&mut self) {
        if self.wanted.is_some() && self.permit.as_ref().is_some_and(Permit::is_granted) {
            self.sink.note(Note::ReplayWaits(false));
            self.machine.replay_begins(self.now());
            self.open_replay();
            self.drain();
        }
    }

    fn open_replay(&mut self) {
        let (Some(address), Some(from)) = (&self.feed.replay, self.wanted.take()) else { return };
        match ReplaySocket::ask(&self.lent.context, address, from) {
            Ok(socket) => self.replay = Some(socket),
            Err(error) => {
                tracing::warn!(address, %error, "no replay of KV events could be asked for");
                self.machine.replay_failed(self.now());
            }
        }
    }

    /// Gives up a subscriber that is connected and brings nothing. Where the engine connects to us there is nothing to give up.
    fn reconnect(&mut self) {
        if self.feed.endpoint.mode == EndpointMode::Bind {
            return;
        }
        self.sink.note(Note::Reconnect);
        self.connections = 0;
        self.machine.disconnected();
        self.reopen_at = Some(self.now());
    }

    /// Replaces a subscriber that may have stopped trying. One that listens goes on by itself.
    fn reopen(&mut self) {
        let now = self.now();
        if self.connections > 0 || self.feed.endpoint.mode == EndpointMode::Bind {
            self.reopen_at = None;
            return;
        }
        if *self.reopen_at.get_or_insert(now + UNCONNECTED) > now {
            return;
        }
        self.reopen_at = Some(now + REOPEN);
        if let Ok(subscriber) = Subscriber::open(&self.lent.context, &self.feed) {
            self.subscriber = subscriber;
            self.reopen_at = Some(now + UNCONNECTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc};

    use super::*;
    use crate::{
        fleet::StreamState,
        ingest::{
            replays::Replays,
            source::{Contexts, Endpoint},
        },
    };

    /// Remembers whether a replay was last said to wait.
    #[derive(Default)]
    struct Told(Option<bool>);

    impl Sink for Told {
        fn apply(&mut self, _: u64, _: &[u8], _: Pace, _: &dyn Fn() -> bool) -> Taken {
            Taken::Taken
        }

        fn clear(&mut self) {}

        fn publish(&mut self, _: StreamState) {}

        fn note(&mut self, note: Note) {
            if let Note::ReplayWaits(waits) = note {
                self.0 = Some(waits);
            }
        }
    }

    /// A stream that wants a replay while the only one that may run is another's, which is returned too.
    fn waiting() -> (Driver<Told>, Permit) {
        let replays = Replays::new(NonZeroUsize::MIN);
        let other = replays.ask(|| {});
        let lent = Contexts::with(Arc::clone(&replays)).lend();
        // Nobody is there, and nobody has to be.
        let endpoint = Endpoint::connect("tcp://127.0.0.1:1");
        let feed = Feed { replay: Some("tcp://127.0.0.1:1".to_owned()), ..Feed::new(endpoint) };
        let subscriber = Subscriber::open(&lent.context, &feed).unwrap();
        let mut driver = Driver::new(feed, Told::default(), subscriber, lent, Inbox::new().unwrap());
        driver.machine.connected(driver.now());
        driver.drain();
        assert_eq!((driver.sink.0, driver.wanted), (Some(true), Some(0)));
        (driver, other)
    }

    #[test]
    fn a_stream_that_needs_no_replay_any_more_does_not_say_that_it_waits_for_one() {
        for is_granted in [false, true] {
            let (mut driver, other) = waiting();
            let _held = (!is_granted).then_some(other);
            driver.machine.disconnected();
            driver.drain();
            assert_eq!(driver.sink.0, Some(false), "granted meanwhile: {is_granted}");
            assert!(driver.permit.is_none());
        }
    }

    #[test]
    fn a_stream_that_asks_again_when_it_may_does_not_say_that_it_waits() {
        let (mut driver, other) = waiting();
        driver.machine.connected(driver.now());
        driver.drain();
        assert_eq!(driver.sink.0, Some(true), "it keeps its turn");
        drop(other);
        driver.machine.connected(driver.now());
        driver.drain();
        assert_eq!((driver.sink.0, driver.replay.is_some()), (Some(false), true));
    }
}
