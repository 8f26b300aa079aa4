//! Mistakes that others made with prefill and decode workers, and that are not to be made here.

use kvroute::{
    fleet::{WorkerSpec, WorkerType},
    select::Mode,
};
use serde_json::{Value, json};

use crate::{
    process::Process,
    rig::{
        self, Answer, Http, metric,
        pools::{CHAT, Pools, Timing, all_same, alternate, converse, hops, small},
    },
};

/// A frontend in a process of its own, whose log can be read.
struct Frontend {
    process: Process,
    client: Http,
    public: String,
    admin: String,
}

impl Frontend {
    async fn start(decode: &WorkerSpec) -> Self {
        let worker = format!("url={},model={},worker_type=decode", decode.url, decode.model);
        let common = ["frontend", "--port", "0", "--admin-port", "0", "--tokenizer", rig::TINY];
        let process = Process::start(&[&common[..], &["--worker", &worker]].concat());
        let up = process.logged("frontend is up").await;
        let at = |listener: &str| {
            let port = up[listener].as_str().unwrap().rsplit(':').next().unwrap();
            format!("http://127.0.0.1:{port}")
        };
        Self { public: at("public"), admin: at("admin"), client: Http::new(), process }
    }

    async fn chat(&self) -> Answer {
        self.client.post(&format!("{}{CHAT}", self.public), &small()).await
    }

    async fn register(&self, card: &Value) -> Answer {
        self.client.post(&format!("{}/v1/workers", self.admin), card).await
    }

    async fn pool_is(&self, state: &str) -> bool {
        let page = self.client.get(&format!("{}/metrics", self.admin)).await;
        metric(&page.text, "kvroute_prefill_pool_state", &format!("state=\"{state}\"")) == 1.0
    }
}

/// Cards of prefill workers that nobody could read were dropped, one debug line each: a deployment whose cards all came
/// so went on without its prefill workers, and one of which some came so had fewer than it seemed.
#[tokio::test(flavor = "multi_thread")]
async fn review_finding_03_unreadable_prefill_cards_are_counted_and_never_dropped_silently() {
    let pools = Pools::start(2, 1).await;
    let frontend = Frontend::start(&pools.workers[2]).await;
    assert!(frontend.pool_is("none").await);
    assert_eq!(frontend.chat().await.status, 200, "nobody knows of prefill workers yet");

    let card = |worker: usize, mode: &str| {
        let mut card = serde_json::to_value(&pools.workers[worker]).unwrap();
        card["id"] = Value::Null;
        card["lease_secs"] = json!(600);
        card["router_config"] = json!({ "router_mode": mode });
        card
    };
    for worker in [0, 1] {
        assert_eq!(frontend.register(&card(worker, "from the future")).await.status, 400);
    }
    let failed = frontend.process.logged("failed to activate prefill router target").await;
    assert_eq!(failed["level"], "ERROR");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("no readable prefill model card") && reason.contains("unreadable"), "{reason}");
    assert!(frontend.pool_is("pending").await);
    let refused = frontend.chat().await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"), "{}", refused.text);
    for says in ["still activating", "all 2 published cards are unreadable"] {
        assert!(refused.text.contains(says), "{}", refused.text);
    }

    // One is readable: it serves, and the log says how many there are.
    assert_eq!(frontend.register(&card(1, "round_robin")).await.status, 201);
    let warned =
        frontend.process.logged("some prefill cards cannot be read; their workers get no requests").await;
    assert_eq!(
        (&warned["level"], &warned["readable"], &warned["total"]),
        (&json!("WARN"), &json!(1), &json!(2))
    );
    assert!(warned["prefill"].as_str().unwrap().ends_with("/prefill"), "{warned}");
    let activated = frontend.process.logged("prefill router target activated").await;
    assert_eq!(activated["prefill_mode"], "round-robin", "{activated}");
    assert!(frontend.pool_is("active").await);
    let (prefill, decode) = hops(&frontend.chat().await);
    assert_ne!(prefill, decode, "two hops");
}

/// The loop that holds a growing conversation stood in every test that needed one, each a little different. It is
/// [`converse`] alone: how many turns, whether timing is asked for, and it says who computed and who decoded.
#[tokio::test(flavor = "multi_thread")]
async fn review_finding_05_one_helper_holds_every_conversation() {
    let pools = Pools::start(2, 2).await.advertise(WorkerType::Prefill, Mode::Kv);
    let rig = pools.behind(Mode::RoundRobin).await;
    for timing in [Timing::Asked, Timing::Not] {
        let (prefill, decode) = converse(&rig, 4, timing).await;
        assert_eq!((prefill.len(), decode.len()), (4, 4));
        assert!(all_same(&prefill) && prefill.iter().all(|id| [1, 2].contains(id)), "{prefill:?}");
        assert!(alternate(&decode) && decode.iter().all(|id| [3, 4].contains(id)), "{decode:?}");
    }
}
