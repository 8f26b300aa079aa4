//! Engines that compute prompts and engines that decode, and a conversation that goes through both.

use kvroute::{
    config::FrontendPlan,
    fleet::{RouterConfig, WorkerSpec, WorkerType},
    select::Mode,
    worker::mock::{MockEngine, MockSettings, Role},
};
use serde_json::{Value, json};

use super::{Answer, MODEL, Rig, chat, engine_settings, plan, prose, worker};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// Engines, prefill before decode where there are both, and how the frontend is told of them.
pub(crate) struct Pools {
    pub(crate) engines: Vec<MockEngine>,
    pub(crate) workers: Vec<WorkerSpec>,
}

impl Pools {
    pub(crate) async fn start(prefill: usize, decode: usize) -> Self {
        Self::start_with(prefill, decode, engine_settings()).await
    }

    pub(crate) async fn start_with(prefill: usize, decode: usize, settings: MockSettings) -> Self {
        let of = |role, count| vec![MockSettings { role, ..settings.clone() }; count];
        Self::of([of(Role::Prefill, prefill), of(Role::Decode, decode)].concat()).await
    }

    /// An engine by each of these settings.
    pub(crate) async fn of(settings: Vec<MockSettings>) -> Self {
        let mut pools = Self { engines: Vec::new(), workers: Vec::new() };
        for settings in settings {
            pools.add(settings.role, settings).await;
        }
        pools
    }

    pub(crate) async fn add(&mut self, role: Role, settings: MockSettings) {
        let engine = MockEngine::start(MockSettings { role, ..settings }).await.unwrap();
        let worker_type = match role {
            Role::Aggregated => WorkerType::Aggregated,
            Role::Prefill => WorkerType::Prefill,
            Role::Decode => WorkerType::Decode,
        };
        let id = self.engines.len() as u64 + 1;
        self.workers.push(WorkerSpec { worker_type, ..worker(id, &engine) });
        self.engines.push(engine);
    }

    /// Every worker of a role advertises `mode`.
    pub(crate) fn advertise(self, role: WorkerType, mode: Mode) -> Self {
        let config = RouterConfig { mode, ..RouterConfig::default() };
        self.change(role, |worker| worker.router_config = Some(config.clone()))
    }

    /// Every worker of a role is described otherwise.
    pub(crate) fn change(mut self, role: WorkerType, change: impl Fn(&mut WorkerSpec)) -> Self {
        self.workers.iter_mut().filter(|worker| worker.worker_type == role).for_each(change);
        self
    }

    /// Behind a frontend that routes by `mode`.
    pub(crate) async fn behind(self, mode: Mode) -> Rig {
        self.behind_plan(|workers| plan(mode, workers)).await
    }

    pub(crate) async fn behind_plan(self, plan: impl FnOnce(Vec<WorkerSpec>) -> FrontendPlan) -> Rig {
        Rig::assemble(plan(self.workers), self.engines).await
    }
}

/// A chat of which `turns` turns were had, so that each asks what the one before asked and more.
pub(crate) fn growing(turns: u64) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": prose(1, 60) })];
    for turn in 0..=turns {
        messages.push(json!({ "role": "user", "content": prose(100 + turn, 20) }));
    }
    json!({
        "model": MODEL,
        "max_tokens": 20,
        "messages": messages,
        "nvext": { "extra_fields": ["worker_id"] },
    })
}

/// A chat of a few words.
pub(crate) fn small() -> Value {
    let mut body = chat("a", "b");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

/// The workers of both hops, as the answer names them.
pub(crate) fn hops(answer: &Answer) -> (u64, u64) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let workers = &answer.json["nvext"]["worker_id"];
    (workers["prefill_worker_id"].as_u64().unwrap(), workers["decode_worker_id"].as_u64().unwrap())
}

/// Whether a conversation asks for its timing, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    Asked,
    Not,
}

/// Sends the same growing chat `turns` times, each turn once the index has what the one before left in the caches; the
/// workers of each turn's hops. The one way in which tests hold a conversation with prefill and decode workers.
pub(crate) async fn converse(rig: &Rig, turns: u64, timing: Timing) -> (Vec<u64>, Vec<u64>) {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        let mut body = growing(turn);
        if timing == Timing::Asked {
            body["nvext"]["extra_fields"] = json!(["worker_id", "timing"]);
        }
        let answer = rig.post(CHAT, &body).await;
        let (first, second) = hops(&answer);
        assert_eq!(answer.json["usage"]["completion_tokens"], 20, "the decode hop has the client's limit");
        if first != second {
            assert_eq!(
                answer.cached_tokens(),
                answer.prompt_tokens() - 1,
                "the prompt was computed elsewhere"
            );
        }
        let told = &answer.json["nvext"]["timing"];
        match timing {
            Timing::Not => assert!(told.is_null(), "unasked: {told}"),
            Timing::Asked => {
                let [first, total] = ["ttft_ms", "total_time_ms"].map(|name| told[name].as_f64().unwrap());
                assert!(0.0 < first && first <= total, "{told}");
            }
        }
        prefill.push(first);
        decode.push(second);
        rig.wait_for_events().await;
    }
    (prefill, decode)
}

pub(crate) fn all_same(ids: &[u64]) -> bool {
    ids.windows(2).all(|pair| pair[0] == pair[1])
}

pub(crate) fn alternate(ids: &[u64]) -> bool {
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

/// What the admin listener says of the set of a role.
pub(crate) async fn set(rig: &Rig, role: &str) -> Value {
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let of_role = sets["worker_sets"].as_array().unwrap().iter().find(|set| set["worker_type"] == role);
    of_role.unwrap_or_else(|| panic!("no {role} in {sets:?}")).clone()
}
