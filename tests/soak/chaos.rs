//! What goes wrong meanwhile: engines that die and come back, engines that stand still, and operators who change their minds.

use std::{fmt, sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{settings::Settings, world::World};

/// Breaks things, so that most engines are there at any time.
pub(crate) struct Chaos {
    rng: Rng,
    world: Arc<World>,
    done: Done,
}

/// What was done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    kills: u64,
    stalls: u64,
    reloads: u64,
    refused: u64,
}

impl Chaos {
    pub(crate) fn new(settings: &Settings, world: &Arc<World>) -> Self {
        let rng = Rng::with_seed(settings.seed ^ 0xc4a0);
        Self { rng, world: Arc::clone(world), done: Done::default() }
    }

    /// Goes on until `end`. Every engine runs then.
    pub(crate) async fn run(mut self, end: Instant) -> Done {
        loop {
            sleep_until(end.min(Instant::now() + Duration::from_millis(self.rng.u64(2000..6000)))).await;
            if Instant::now() >= end {
                return self.done;
            }
            match self.rng.u8(..10) {
                0..4 => self.kill(end).await,
                4 => self.stall(end).await,
                _ => self.reconfigure().await,
            }
        }
    }

    /// One or two engines die, and come back with empty caches.
    async fn kill(&mut self, end: Instant) {
        let first = self.rng.usize(..self.world.engines.len());
        let mut dead = vec![first];
        if self.rng.u8(..4) == 0 {
            dead.push((first + 1) % self.world.engines.len());
        }
        for &engine in &dead {
            self.world.engines[engine].kill();
            self.done.kills += 1;
        }
        sleep(Duration::from_millis(self.rng.u64(200..4000))).await;
        if self.rng.bool() && Instant::now() < end {
            self.reconfigure().await;
        }
        for engine in dead {
            self.world.engines[engine].start().await;
        }
    }

    /// An engine stands still, and goes on.
    async fn stall(&mut self, end: Instant) {
        let engine = &self.world.engines[self.rng.usize(..self.world.engines.len())];
        engine.signal("STOP");
        sleep_until(end.min(Instant::now() + Duration::from_millis(self.rng.u64(500..3000)))).await;
        engine.signal("CONT");
        self.done.stalls += 1;
    }

    async fn reconfigure(&mut self) {
        let bad = self.rng.u8(..4) == 0;
        let file = if bad { self.bad() } else { self.good() };
        self.world.reload(&file, !bad, self.rng.u8(..4) == 0).await;
        self.done.reloads += 1;
        self.done.refused += u64::from(bad);
    }

    fn bad(&mut self) -> String {
        let files = [
            "router_mode = 'best'",
            "router_mode = ",
            "router_mode = 'kv'\nrouter_temperature = -1.0",
            "router_mode = 'kv'\nrouter_kv_events = false",
            "router_mode = 'kv'\nrouter_replica_sync = true",
        ];
        files[self.rng.usize(..files.len())].to_owned()
    }

    fn good(&mut self) -> String {
        let rng = &mut self.rng;
        let modes = ["kv", "kv", "kv", "kv", "round-robin", "random", "least-loaded", "power-of-two"];
        let credit = 0.5 + rng.f64();
        let mut lines = vec![
            format!("router_mode = '{}'", modes[rng.usize(..modes.len())]),
            format!("router_kv_overlap_score_credit = {credit:.3}"),
        ];
        // One of these at most: who is held goes by an order of its own.
        let waits = [
            "",
            "router_queue_threshold = 0.3",
            "router_queue_threshold = 0.1\nrouter_queue_policy = 'wspt'",
            "router_hold = 0.5",
        ];
        lines.push(waits[rng.usize(..waits.len())].to_owned());
        for line in [
            "router_cost_model = 'blocks'",
            "router_temperature = 0.4",
            "router_track_active_blocks = false",
            "router_track_output_blocks = false",
            "router_session_affinity_ttl_secs = 5",
        ] {
            if rng.u8(..3) == 0 {
                lines.push(line.to_owned());
            }
        }
        lines.join("\n")
    }
}

impl Done {
    /// What a soak of this length should have done and has not: one that breaks nothing shows nothing.
    pub(crate) fn too_little(&self, length: Duration) -> Option<String> {
        let least = length.as_secs() / 60;
        let short =
            self.kills < least || self.reloads - self.refused < least || self.refused == 0 && least > 2;
        short.then(|| format!("too little happened: {self}"))
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, stalls, reloads, refused } = self;
        write!(
            f,
            "{kills} engines killed, {stalls} stalled, {reloads} reloads of which {refused} were refused as they should"
        )
    }
}
