//! A user: talks, leaves in the middle, makes mistakes.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::{Client, received},
    conversation::{Asked, Conversation},
    ending::{Ending, OF_A_DEATH},
    malformed::{Malformed, leave_halfway},
    settings::Settings,
    world::World,
};

/// One of many, who does one thing at a time.
pub(crate) struct User {
    rng: Rng,
    pause: Duration,
    world: Arc<World>,
    client: Client,
    conversation: Conversation,
}

/// How long an answer may take; one that never ends is lost.
const PATIENCE: Duration = Duration::from_secs(120);

impl User {
    pub(crate) fn new(number: u64, settings: &Settings, world: &Arc<World>) -> Self {
        Self {
            rng: Rng::with_seed(settings.seed.wrapping_mul(1000).wrapping_add(number)),
            pause: settings.pause(),
            world: Arc::clone(world),
            client: Client::new(),
            conversation: Conversation::new(),
        }
    }

    /// Goes on until `end`.
    pub(crate) async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            match self.rng.u32(..100) {
                0..10 => self.leave().await,
                10..18 => self.err().await,
                18..20 => self.look_around().await,
                _ => self.ask().await,
            }
            // Exponential, so that requests of all users come as they like.
            let pause = self.pause.mul_f64(-(1.0 - self.rng.f64()).ln());
            sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// Says the next thing, and holds the answer against the right one.
    pub(crate) async fn ask(&mut self) {
        let Asked { path, body, streams } = self.conversation.next(&mut self.rng);
        let expected = self.world.reference.expect(path, &body).await;
        let url = format!("{}{path}", self.world.public);
        let ending = match timeout(PATIENCE, self.client.post(&url, body.to_string())).await {
            Ok(Ok(received)) => received.judge(&expected, streams),
            Ok(Err(problem)) => Ending::Defect(problem),
            Err(_) => Ending::Defect(format!("no end after {PATIENCE:?}: {}", self.client_said(&body))),
        };
        self.conversation.answered(&expected.text);
        self.world.tally.ended(if streams { "streamed" } else { "in one piece" }, ending);
    }

    fn client_said(&self, body: &serde_json::Value) -> String {
        let text = body.to_string();
        text.chars().take(200).collect()
    }

    /// Asks, and leaves before the end: before the first byte, or after some.
    async fn leave(&mut self) {
        let Asked { path, body, streams } = self.conversation.next(&mut self.rng);
        let expected = self.world.reference.expect(path, &body).await;
        self.conversation.answered(&expected.text);
        let url = format!("{}{path}", self.world.public);
        let opening = self.client.open(&url, "application/json", body.to_string());
        let patience = Duration::from_millis(self.rng.u64(..60));
        let tally = &self.world.tally;
        if !streams || self.rng.bool() {
            match timeout(patience, opening).await {
                Ok(Ok(answer)) => drop(answer),
                Ok(Err(problem)) => return tally.ended("left", Ending::Defect(problem)),
                Err(_) => {}
            }
            return tally.note("left", "before the answer, or with its head");
        }
        match timeout(PATIENCE, opening).await {
            Ok(Ok(answer)) => {
                let most = self.rng.usize(1..4000);
                let (came, rest) = received(answer, most).await;
                drop(rest);
                let broken = came.status == 200 && !came.whole;
                // What came until then is right; all of it may have come.
                match came.judge(&expected, true) {
                    Ending::Broken { .. } if broken => tally.note("left", "in the middle"),
                    ending => tally.ended("left too late", ending),
                }
            }
            Ok(Err(problem)) => tally.ended("left", Ending::Defect(problem)),
            Err(_) => tally.ended("left", Ending::Defect("no answer to leave".to_owned())),
        }
    }

    /// Sends what cannot be served.
    async fn err(&mut self) {
        if self.rng.u8(..5) == 0 {
            let address = self.world.public.trim_start_matches("http://");
            leave_halfway(address, &mut self.rng).await;
            return self.world.tally.note("malformed", "half a body");
        }
        let Malformed { path, kind, body, status } = Malformed::any(&mut self.rng);
        let shown = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
        // Much of it is the engine's to judge, which may die meanwhile as with any other request.
        let accepted = [(status, None), OF_A_DEATH];
        let url = format!("{}{path}", self.world.public);
        let opening = self.client.open(&url, kind, body);
        let ending = match timeout(PATIENCE, opening).await {
            Ok(Ok(answer)) => match received(answer, usize::MAX).await.0.judge_error(&accepted) {
                Ending::Defect(what) => Ending::Defect(format!("{what}\nto {shown}")),
                ending => ending,
            },
            Ok(Err(problem)) => Ending::Defect(problem),
            Err(_) => Ending::Defect("no answer to a malformed body".to_owned()),
        };
        self.world.tally.ended("malformed", ending);
    }

    async fn look_around(&self) {
        let ending = match self.client.get(&format!("{}/v1/models", self.world.public)).await {
            Ok(came) if came.status == 200 && came.whole => Ending::Complete,
            Ok(came) => Ending::Defect(format!("models: {came:?}")),
            Err(problem) => Ending::Defect(problem),
        };
        self.world.tally.ended("models", ending);
    }
}
