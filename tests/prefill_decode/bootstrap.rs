//! Prefill workers that decode engines meet by themselves: both hops run at the same time.

use kvroute::{
    fleet::{WorkerSpec, WorkerType},
    frontend::PrefillFallback,
    select::Mode,
    worker::mock::{MockSettings, Role},
};
use serde_json::{Value, json};

use crate::rig::{
    self, engine_settings, eventually, plan,
    pools::{CHAT, COMPLETIONS, Pools, hops, small},
    prose,
    upstream::{Recorded, Upstream, plain},
};

/// Slow enough to be looked at while it works.
fn slow(prefill_tokens_per_second: f64) -> MockSettings {
    MockSettings {
        speedup: 1.0,
        prefill_tokens_per_second,
        max_num_batched_tokens: 32,
        decode_tokens_per_second: 1000.0,
        ..engine_settings()
    }
}

/// Prefill workers that can be met.
fn met(pools: Pools) -> Pools {
    pools.change(WorkerType::Prefill, |worker| worker.bootstrap_port = Some(8998))
}

fn long() -> Value {
    json!({
        "model": rig::MODEL,
        "max_tokens": 4,
        "prompt": prose(2, 100),
        "nvext": { "extra_fields": ["worker_id"] },
    })
}

fn body(recorded: &Recorded) -> Value {
    serde_json::from_str(&recorded.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_decode_hop_does_not_wait_for_the_prefill() {
    let (prefill, decode) = (Upstream::start(plain).await, Upstream::start(plain).await);
    let mut pools = Pools::start(0, 0).await;
    pools.workers.push(WorkerSpec { worker_type: WorkerType::Prefill, ..prefill.worker(1, rig::MODEL) });
    pools.workers.push(WorkerSpec { worker_type: WorkerType::Decode, ..decode.worker(2, rig::MODEL) });
    let rig = met(pools).behind(Mode::Kv).await;
    // As long as the test wants it to compute.
    let computes = prefill.hold().await;
    let answer = rig.post(COMPLETIONS, &long()).await;
    assert_eq!(hops(&answer), (1, 2));
    eventually("the prefill worker is asked, too", async || prefill.recorded().len() == 1).await;
    assert_eq!(rig.workers().await[0]["load"]["requests"], 1, "it computes still, and is booked for as long");
    assert_eq!(rig.metric("kvroute_prefills_total", "handed_over").await, 0.0);
    let told = body(&decode.last());
    assert_eq!((&told["bootstrap_host"], &told["bootstrap_port"]), (&json!("127.0.0.1"), &json!(8998)));
    assert_eq!((&told["max_tokens"], told.get("nvext")), (&json!(4), None));
    drop(computes);
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prefills_total", "handed_over").await, 1.0);
    assert_eq!(rig.outcomes("ok").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_engines_are_told_one_room_of_the_rank_that_was_chosen() {
    let (prefill, decode) = (Upstream::start(plain).await, Upstream::start(plain).await);
    let mut pools = Pools::start(0, 0).await;
    let of = |worker_type, worker: WorkerSpec| WorkerSpec { worker_type, ..worker };
    pools.workers.push(WorkerSpec {
        ranks: 3,
        bootstrap_host: Some("10.0.0.7".to_owned()),
        ..of(WorkerType::Prefill, prefill.worker(1, rig::MODEL))
    });
    pools.workers.push(of(WorkerType::Decode, decode.worker(2, rig::MODEL)));
    let rig = met(pools).behind(Mode::RoundRobin).await;
    let mut rooms = Vec::new();
    for turn in 1..=6 {
        let mut asked = small();
        asked["stream"] = json!(false);
        asked["bootstrap_room"] = json!(77);
        assert_eq!(rig.post(CHAT, &asked).await.status, 200);
        eventually("the prefill worker is asked, too", async || prefill.recorded().len() == turn).await;
        let (first, second) = (prefill.last(), decode.last());
        let (asked_first, asked_second) = (body(&first), body(&second));
        for name in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
            assert_eq!(asked_first[name], asked_second[name], "{name}");
        }
        assert_eq!(
            (&asked_first["bootstrap_host"], &asked_first["max_tokens"]),
            (&json!("10.0.0.7"), &json!(1))
        );
        let room = asked_first["bootstrap_room"].as_u64().unwrap();
        let rank: u64 = first.headers["x-data-parallel-rank"].to_str().unwrap().parse().unwrap();
        assert!(room % 3 == rank && room < 1 << 63, "{room} {rank}");
        assert_eq!(first.headers["x-request-id"], second.headers["x-request-id"]);
        assert!(!rooms.contains(&room) && room != 77, "a room of its own");
        rooms.push(room);
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_before_the_answer_fails_the_request() {
    for (fallback, status) in [(PrefillFallback::None, 500), (PrefillFallback::Decode, 200)] {
        let mut pools = Pools::start(1, 0).await;
        pools.add(Role::Decode, slow(300.0)).await;
        let with = |workers| {
            let mut plan = plan(Mode::Kv, workers);
            plan.settings.prefill_fallback = fallback;
            plan
        };
        let rig = met(pools).behind_plan(with).await;
        rig.engines[0].fail_next(http::StatusCode::INTERNAL_SERVER_ERROR);
        let answer = rig.post(COMPLETIONS, &long()).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        if status == 200 {
            assert_eq!(hops(&answer), (2, 2));
        } else {
            assert!(answer.text.contains("told to answer 500"), "the engine's own words: {}", answer.text);
        }
        assert_eq!(rig.metric("kvroute_prefills_total", "failed").await, 1.0);
        rig.wait_for_free_engines().await;
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_cannot_be_reached_is_replaced_and_the_decode_begins_anew() {
    let mut pools = Pools::start(2, 0).await;
    pools.add(Role::Decode, slow(300.0)).await;
    // Nobody listens there.
    pools.workers[0].url = "http://127.0.0.1:9".to_owned();
    let rig = met(pools).behind(Mode::RoundRobin).await;
    assert_eq!(hops(&rig.post(COMPLETIONS, &long()).await), (2, 3));
    assert_eq!(rig.metric("kvroute_prefills_total", "handed_over").await, 1.0);
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("ok").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_both() {
    let rig = met(Pools::start_with(1, 1, slow(50.0)).await).behind(Mode::Kv).await;
    let (client, url) = (rig.client.clone(), format!("{}{COMPLETIONS}", rig.public()));
    let request = tokio::spawn(async move { client.post(&url, &long()).await });
    eventually("both run", async || rig.engines.iter().all(|engine| engine.running() == 1)).await;
    request.abort();
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
    eventually("the request is counted as cancelled", async || rig.outcomes("cancelled").await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_would_need_several_rooms() {
    let rig = met(Pools::start(1, 1).await).behind(Mode::Kv).await;
    let mut body = small();
    body["n"] = json!(2);
    let refused = rig.post(CHAT, &body).await;
    assert_eq!((refused.status.as_u16(), refused.json["error"]["param"].as_str()), (400, Some("n")));
    rig.wait_for_idle().await;
}
