//! A fleet that caches more than the index may hold: the coldest rank stops growing, and is whole again once there is room.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod log_capture;
mod rig;

use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::{
    log_capture::Log,
    rig::{Rig, chat, credit, engine_settings, eventually, plan, pools::Pools, prose},
};

const LIMIT: u64 = 256 << 10;
/// What is set aside and free comes on top of what the limit counts: at most a chunk of each arena here.
const SET_ASIDE: u64 = 1 << 20;

struct Fleet {
    rig: Rig,
    /// Prompts sent so far, by worker.
    sent: [u64; 3],
}

impl Fleet {
    fn prompt(at: usize, number: u64) -> Value {
        let mut body = chat(&prose(at as u64 * 1_000 + number, 250), "go on");
        body["nvext"] = json!({ "backend_instance_id": at + 1 });
        body
    }

    /// Sends a worker a prompt, and returns what was predicted and what it found cached, in tokens.
    async fn send(&self, at: usize, number: u64) -> (u64, u64) {
        let body = Self::prompt(at, number);
        let credited = credit(&self.rig.explain(&body).await, at as u64 + 1);
        let answer = self.rig.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        // The engine always computes the last token, and with it that token's block.
        let reachable = (answer.prompt_tokens() - 1) / 16;
        (credited.min(reachable) * 16, answer.cached_tokens())
    }

    async fn send_new(&mut self, at: usize) {
        self.sent[at] += 1;
        self.send(at, self.sent[at]).await;
        self.rig.wait_for_events().await;
    }

    async fn used(&self) -> u64 {
        self.rig.metric("kvroute_index_memory_bytes", "").await as u64
    }

    async fn stopped(&self) -> u64 {
        let stopped = self.rig.metric("kvroute_index_stopped_ranks", "").await as u64;
        let each = self.rig.metric("kvroute_worker_growth_stopped", "").await as u64;
        assert!(each <= stopped.max(1));
        stopped
    }

    async fn state(&self, at: usize) -> String {
        self.rig.worker(at as u64 + 1).await["stream"]["state"].as_str().unwrap().to_owned()
    }
}

/// A fleet of which the third worker's rank has just stopped growing. `None` if a table that happened to double took the room
/// between two marks at once, so that a second rank stopped with it: the marks lie close at so small a limit.
async fn filled() -> Option<Fleet> {
    let limited = |workers| {
        let mut plan = plan(Mode::Kv, workers);
        plan.settings.index_memory_limit = Some(LIMIT);
        plan
    };
    let rig = Pools::of(vec![engine_settings(); 3]).await.behind_plan(limited).await;
    let mut fleet = Fleet { rig, sent: [0; 3] };
    assert_eq!(fleet.rig.metric("kvroute_index_memory_limit_bytes", "").await as u64, LIMIT);

    // The first two are matched, the third never.
    for at in 0..2 {
        fleet.send_new(at).await;
    }
    while fleet.used().await < LIMIT / 2 {
        fleet.send_new(1).await;
    }
    for at in 0..2 {
        let (predicted, found) = fleet.send(at, 1).await;
        assert!(predicted > 0 && predicted == found, "{predicted} {found}");
    }
    while fleet.stopped().await == 0 {
        assert!(fleet.used().await < LIMIT);
        fleet.send_new(2).await;
    }
    (fleet.stopped().await == 1).then_some(fleet)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coldest_rank_stops_growing_and_is_whole_again_once_there_is_room() {
    let log = Log::start("warn");
    let mut attempts = 0;
    let mut fleet = loop {
        log.clear();
        if let Some(fleet) = filled().await {
            break fleet;
        }
        attempts += 1;
        assert!(attempts < 8, "two ranks stop at once every time");
    };
    let used = fleet.used().await;
    assert_eq!(log.lines_with("memory limit"), 1);

    // From here on it does not grow, and neither does the index, while the engine caches more.
    for _ in 0..4 {
        fleet.send_new(2).await;
    }
    assert!(fleet.used().await <= used && used < LIMIT, "{used} and then {}", fleet.used().await);
    let bytes = fleet.rig.metric("kvroute_index_bytes", "").await as u64;
    assert!(bytes <= LIMIT + SET_ASIDE, "{bytes} bytes");
    let states = [fleet.state(0).await, fleet.state(1).await, fleet.state(2).await];
    assert_eq!(states, ["live", "live", "incomplete"]);
    // The others are exact, and of the one that stopped nothing is believed that is not so.
    for (at, sent) in fleet.sent.into_iter().enumerate() {
        let mut missed = 0;
        for number in 1..=sent {
            let (predicted, found) = fleet.send(at, number).await;
            assert!(predicted <= found && (at == 2 || predicted == found), "{at}: {predicted} {found}");
            missed += found - predicted;
        }
        assert_eq!(missed > 0, at == 2);
    }
    assert_eq!(log.lines_with("memory limit"), 1, "one warning for it all");

    // The second leaves, and with it the want of room.
    fleet.rig.remove(2).await;
    eventually("the third is whole again", async || {
        fleet.stopped().await == 0 && fleet.state(2).await == "live"
    })
    .await;
    assert!(fleet.used().await < LIMIT);
    for at in [0, 2] {
        for number in 1..=fleet.sent[at] {
            let (predicted, found) = fleet.send(at, number).await;
            assert!(found > 0 && predicted == found, "{at}: {predicted} {found}");
        }
    }
}
