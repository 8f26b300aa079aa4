//! A frontend that starts beside engines that have long run, with what another frontend knows of them and without.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http::{Method, header};
use kvroute::{
    config::FrontendPlan,
    frontend::{AdminToken, SnapshotSource},
    select::Mode,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};

use crate::rig::{
    Http, Rig, chat, credit, engine_settings, eventually, plan, pools::Pools, prose, with_lasting_ports,
    worker,
};

const TOKEN: &str = "s3cret";
/// More than the engines' buffers keep batches.
const PROMPTS: u64 = 12;

/// An engine that replays a few batches only.
fn short_memory() -> MockSettings {
    MockSettings { buffer_steps: 4, ..engine_settings() }
}

fn token(text: &str) -> Option<AdminToken> {
    Some(AdminToken::new(text).unwrap())
}

fn prompt(number: u64) -> Value {
    let mut body = chat(&prose(number, 60), "what now?");
    body["max_tokens"] = json!(1);
    body
}

/// Two engines and a frontend that has heard all that they said, and asks for a token.
async fn first() -> Rig {
    let pools = Pools::of(vec![short_memory(), short_memory()]).await;
    let rig = pools.behind_plan(|workers| plan(Mode::Kv, workers)).await;
    fill(&rig).await;
    rig
}

async fn fill(rig: &Rig) {
    for number in 0..PROMPTS {
        let mut body = prompt(number);
        // By turns: every engine says more than its buffer keeps.
        body["nvext"] = json!({ "backend_instance_id": 1 + number % rig.engines.len() as u64 });
        let answer = rig.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    rig.wait_for_events().await;
}

/// A plan for the same engines, which begins with what a frontend at `url` knows.
fn resuming(url: &str, token: Option<AdminToken>, first: &Rig) -> FrontendPlan {
    let workers = (1..).zip(&first.engines).map(|(id, engine)| worker(id, engine));
    let mut plan = plan(Mode::Kv, workers.collect());
    plan.settings.index_snapshot_from = Some(SnapshotSource { url: url.parse().unwrap(), token });
    plan
}

/// What a frontend credits to each engine for each prompt.
async fn credits(rig: &Rig) -> Vec<[u64; 2]> {
    let mut credits = Vec::new();
    for number in 0..PROMPTS {
        let explain = rig.explain(&prompt(number)).await;
        credits.push([credit(&explain, 1), credit(&explain, 2)]);
    }
    credits
}

/// Waits until every stream knows where it stands, and says what `field` is of each.
async fn settled(rig: &Rig, field: &str) -> Vec<Value> {
    eventually("streams settle", async || {
        let workers = rig.workers().await;
        workers.iter().all(|of| of["stream"]["state"] == "live" || of["stream"]["state"] == "incomplete")
    })
    .await;
    rig.workers().await.iter().map(|worker| worker["stream"][field].clone()).collect()
}

async fn ranks(rig: &Rig, result: &str) -> f64 {
    rig.metric("kvroute_snapshot_ranks_total", &format!("result=\"{result}\"")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_frontend_knows_what_the_engines_have_long_forgotten_to_replay() {
    let first = first().await;
    let expected = credits(&first).await;
    assert!(expected.iter().all(|credits| credits.iter().any(|&blocks| blocks > 0)), "{expected:?}");

    // Without the snapshot it knows only of the last few prompts.
    let workers = (1..).zip(&first.engines).map(|(id, engine)| worker(id, engine));
    let without = Rig::start_plan(plan(Mode::Kv, workers.collect()), Vec::new()).await;
    assert_eq!(settled(&without, "state").await, ["incomplete", "incomplete"]);
    assert_eq!(settled(&without, "index_from").await, ["events", "events"]);
    let known = credits(&without).await;
    assert!(known[0] == [0, 0] && known != expected, "{known:?}");

    let second = Rig::start_plan(resuming(&first.admin(), None, &first), Vec::new()).await;
    assert_eq!(settled(&second, "state").await, ["live", "live"]);
    assert_eq!(settled(&second, "index_from").await, ["snapshot", "snapshot"]);
    assert_eq!(credits(&second).await, expected);
    assert_eq!((ranks(&second, "resumed").await, ranks(&second, "given_up").await), (2.0, 0.0));
    let explain = second.explain(&prompt(0)).await;
    assert_eq!(explain["candidates"][0]["index_from"], "snapshot");

    assert_eq!(settled(&second, "cursor").await, settled(&first, "cursor").await);

    // It can hand on what it was given.
    let third = Rig::start_plan(resuming(&second.admin(), None, &first), Vec::new()).await;
    assert_eq!(settled(&third, "index_from").await, ["snapshot", "snapshot"]);
    assert_eq!(credits(&third).await, expected);
    drop(third);

    // And it goes on by itself: what the engines say from here on has the names that the snapshot gave.
    for number in 0..PROMPTS {
        let mut longer = prompt(number);
        longer["messages"].as_array_mut().unwrap().push(json!({ "role": "user", "content": prose(99, 40) }));
        second.post("/v1/chat/completions", &longer).await;
    }
    eventually("both have heard the rest", async || {
        let cursors = async |rig: &Rig| -> Vec<Value> {
            rig.workers().await.iter().map(|worker| worker["stream"]["cursor"].clone()).collect()
        };
        let said: Vec<Value> = first.engines.iter().map(|engine| json!(engine.last_sequence())).collect();
        cursors(&first).await == said && cursors(&second).await == said
    })
    .await;
    assert_eq!(credits(&second).await, credits(&first).await);
    let blocks = async |rig: &Rig| -> Vec<Value> {
        rig.workers().await.iter().map(|worker| worker["cached_blocks"].clone()).collect()
    };
    assert_eq!(blocks(&second).await, blocks(&first).await);
    assert_eq!(first.metric("kvroute_snapshots_written_total", "").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_snapshot_is_credited_to_an_engine_that_was_started_again_since() {
    let settings = with_lasting_ports(short_memory());
    let mut first = Rig::start_with(Mode::Kv, vec![settings.clone()]).await;
    fill(&first).await;
    let spec = worker(1, &first.engines[0]);
    let mut without_workers = resuming(&first.admin(), None, &first);
    without_workers.workers.clear();
    let second = Rig::start_plan(without_workers, Vec::new()).await;
    assert_eq!(second.metric("kvroute_snapshot_waiting_ranks", "").await, 1.0);

    first.engines.remove(0).stop().await;
    first.engines.push(MockEngine::start(settings).await.unwrap());
    assert_eq!(second.register(&spec, Some(60.0)).await.status, 201);
    eventually("the successor is recognised", async || ranks(&second, "given_up").await == 1.0).await;
    assert_eq!(settled(&second, "state").await, ["live"]);
    assert_eq!(settled(&second, "index_from").await, ["events"]);
    assert_eq!(second.metric("kvroute_worker_cached_blocks", "").await, 0.0);
    assert_eq!(second.metric("kvroute_snapshot_waiting_ranks", "").await, 0.0);
    assert!(second.metric("kvroute_snapshot_blocks_total", "").await > 0.0, "there was something to drop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_the_engine_s_buffer_does_not_reach_back_to_is_given_up() {
    let first = Rig::start_with(Mode::Kv, vec![short_memory()]).await;
    fill(&first).await;
    let mut without_workers = resuming(&first.admin(), None, &first);
    without_workers.workers.clear();
    let second = Rig::start_plan(without_workers, Vec::new()).await;
    // Twice as many batches as the buffer keeps.
    for number in 100..108 {
        first.post("/v1/chat/completions", &prompt(number)).await;
    }
    assert_eq!(second.register(&worker(1, &first.engines[0]), Some(60.0)).await.status, 201);
    assert_eq!(settled(&second, "state").await, ["incomplete"]);
    assert_eq!(ranks(&second, "given_up").await, 1.0);
    let explain = second.explain(&prompt(0)).await;
    assert_eq!(credit(&explain, 1), 0, "{explain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_there_is_no_snapshot_and_the_start_goes_on() {
    let pools = Pools::of(vec![short_memory(), short_memory()]).await;
    let mut guarded = plan(Mode::Kv, Vec::new());
    guarded.settings.admin_token = token(TOKEN);
    let guarded = Rig::start_plan(guarded, pools.engines).await;
    let url = format!("{}/v1/index/snapshot", guarded.admin());
    assert_eq!(guarded.client.get(&url).await.status, 401);
    let shown = [(header::AUTHORIZATION.as_str(), "Bearer s3cret")];
    let answer = guarded.client.request(Method::GET, &url, &shown, &Value::Null).await;
    assert_eq!(answer.status, 200);

    for (url, token) in [
        (guarded.admin(), None),
        (guarded.admin(), token("wrong")),
        ("http://127.0.0.1:1".to_owned(), None),
        // Something that answers, but with no snapshot.
        (guarded.public(), token(TOKEN)),
    ] {
        let rig = Rig::start_plan(resuming(&url, token, &guarded), Vec::new()).await;
        rig.wait_for_streams("live").await;
        assert_eq!(rig.metric("kvroute_snapshot_waiting_ranks", "").await, 0.0);
        assert_eq!(ranks(&rig, "resumed").await, 0.0);
    }
    let right = Rig::start_plan(resuming(&guarded.admin(), token(TOKEN), &guarded), Vec::new()).await;
    right.wait_for_streams("live").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_can_be_of_one_model() {
    let rig = Rig::start(Mode::Kv, 1).await;
    fill(&rig).await;
    let size = async |query: &str| {
        let url = format!("{}/v1/index/snapshot{query}", rig.admin());
        let answer = Http::new().get(&url).await;
        (answer.status.as_u16(), answer.text.len())
    };
    let (all, of_it, of_another) = (size("").await, size("?model=mock").await, size("?model=other").await);
    assert_eq!((all.0, of_it.0, of_another.0), (200, 200, 200));
    assert!(of_it.1 > of_another.1, "{of_it:?} {of_another:?}");
    assert_eq!(size("?mdoel=mock").await.0, 400);
}
