//! The engine loop: steps, one after the other, as long as there is work.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::pace::{Pace, Speed};
use super::publisher::Publisher;
use super::scheduler::{Request, Scheduler};
use super::stats::Stats;

/// What the HTTP side asks of the loop.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Request),
    Reset { preempt_running: bool, done: oneshot::Sender<bool> },
}

/// Runs until every sender of commands is gone.
///
/// A step is planned, its time passes, its cache events are published, and then its tokens go out: whoever
/// has seen a token can rely on the events of its step having been handed to the publisher.
pub(super) async fn run(
    mut scheduler: Scheduler,
    mut commands: mpsc::UnboundedReceiver<Command>,
    speed: Speed,
    publisher: Option<Arc<Publisher>>,
    stats: Arc<Stats>,
) {
    let mut pace = Pace::new();
    loop {
        if scheduler.is_idle() {
            let Some(command) = commands.recv().await else { return };
            apply(&mut scheduler, command, &stats);
            pace.restart();
        }
        while let Ok(command) = commands.try_recv() {
            apply(&mut scheduler, command, &stats);
        }
        if scheduler.is_idle() {
            // A reset of an idle engine: its event waits for the next step.
            continue;
        }
        let step = scheduler.schedule();
        stats.record(&mut scheduler);
        pace.spend(speed.duration(&step)).await;
        let events = scheduler.take_events();
        if let Some(publisher) = publisher.as_ref().filter(|_| !events.is_empty()) {
            publisher.publish(events);
        }
        let outcome = scheduler.finish();
        stats.record(&mut scheduler);
        stats.record_output(&outcome);
        for (sink, produced) in outcome.produced {
            // A closed sink is noticed at the next step.
            let _ = sink.send(produced);
        }
    }
}

fn apply(scheduler: &mut Scheduler, command: Command, stats: &Stats) {
    match command {
        Command::Submit(request) => scheduler.submit(request),
        Command::Reset { preempt_running, done } => {
            let succeeded = scheduler.reset(preempt_running);
            // Before the answer: whoever has it finds the counts after the reset.
            stats.record(scheduler);
            let _ = done.send(succeeded);
        }
    }
}
