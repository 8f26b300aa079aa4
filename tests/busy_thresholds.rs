//! Workers over a busy threshold in a running frontend: left out, told apart from unavailable ones, set at run time.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http::StatusCode;
use kvroute::{
    fleet::WorkerType,
    load::Thresholds,
    select::{Mode, Tuning},
    worker::mock::MockSettings,
};
use serde_json::{Value, json};

use crate::rig::{MODEL, Rig, Transcript, candidate, engine_settings, pools::Pools, prose, stream_of, tuned};

async fn start(mode: Mode, busy: Thresholds, engines: usize, status: u16) -> Rig {
    let slow = MockSettings { speedup: 1.0, ..engine_settings() };
    let pools = Pools::of(vec![slow; engines]).await.change(WorkerType::Aggregated, |worker| {
        worker.total_kv_blocks = Some(100);
        worker.max_num_batched_tokens = Some(8192);
    });
    let planned = |workers| {
        let mut plan = tuned(mode, Tuning { busy, ..Tuning::default() }, workers);
        plan.settings.overload_status = StatusCode::from_u16(status).unwrap();
        plan
    };
    pools.behind_plan(planned).await
}

fn blocks(share: f64) -> Thresholds {
    Thresholds { active_decode_blocks: Some(share), ..Thresholds::default() }
}

fn completion() -> Value {
    json!({ "model": MODEL, "prompt": prose(9, 20), "max_tokens": 1, "nvext": { "extra_fields": ["worker_id"] } })
}

/// A stream that lasts until it is dropped.
async fn long_stream(rig: &Rig) -> http::Response<hyper::body::Incoming> {
    let url = format!("{}/v1/completions", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 5_000)).await;
    assert_eq!(response.status(), 200);
    Transcript::default().read(response.body_mut(), |seen| seen.tokens() >= 1).await;
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_is_left_out_and_all_busy_is_529() {
    for mode in [Mode::RoundRobin, Mode::Kv] {
        let rig = start(mode, blocks(0.0), 2, 529).await;
        let first = long_stream(&rig).await;
        let answer = rig.post("/v1/completions", &completion()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let explain = rig.explain(&completion()).await;
        let busy = 3 - answer.worker();
        assert_eq!(candidate(&explain, busy)["excluded"], "overloaded", "{explain}");
        assert_eq!(candidate(&explain, busy)["busy"], true, "{explain}");
        assert_eq!(rig.metric("kvroute_worker_busy", &format!("worker=\"{busy}\"")).await, 1.0);

        let second = long_stream(&rig).await;
        let refused = rig.post("/v1/completions", &completion()).await;
        assert_eq!(refused.status.as_u16(), 529, "{}", refused.text);
        assert!(refused.headers.contains_key("retry-after"));
        assert!(refused.text.contains("all workers are busy, please retry later"), "{}", refused.text);
        assert_eq!(rig.metric("kvroute_refusals_total", "reason=\"busy\"").await, 1.0);
        drop((first, second));
        rig.wait_for_idle().await;
        assert_eq!(rig.post("/v1/completions", &completion()).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_the_operator_s() {
    let rig = start(Mode::LeastLoaded, blocks(0.0), 1, 503).await;
    let _busy = long_stream(&rig).await;
    assert_eq!(rig.post("/v1/completions", &completion()).await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_are_read_and_set_at_run_time() {
    let rig = start(Mode::LeastLoaded, blocks(0.9), 1, 529).await;
    let thresholds = |share: Value| {
        json!({
            "model": MODEL,
            "active_decode_blocks_threshold": share,
            "active_prefill_tokens_threshold": null,
            "active_prefill_tokens_threshold_frac": null,
        })
    };
    let listed = async || rig.client.get(&format!("{}/busy_threshold", rig.admin())).await.json;
    assert_eq!(listed().await, json!({ "thresholds": [thresholds(json!(0.9))] }));
    let read = rig.ask("/busy_threshold", &json!({ "model": MODEL })).await;
    assert_eq!((read.status.as_u16(), &read.json), (200, &thresholds(json!(0.9))));

    let busy = long_stream(&rig).await;
    assert_eq!(rig.post("/v1/completions", &completion()).await.status, 200);
    let set =
        rig.ask("/busy_threshold", &json!({ "model": MODEL, "active_decode_blocks_threshold": 0.0 })).await;
    assert_eq!(set.json, thresholds(json!(0.0)));
    assert_eq!(rig.post("/v1/completions", &completion()).await.status.as_u16(), 529);
    let unset = json!({ "model": MODEL, "active_decode_blocks_threshold": null });
    assert_eq!(rig.ask("/busy_threshold", &unset).await.json, thresholds(Value::Null));
    assert_eq!(rig.post("/v1/completions", &completion()).await.status, 200);
    drop(busy);

    for (body, status, says) in [
        (json!({ "model": "other" }), 404, "does not exist"),
        (json!({}), 400, "'model' is missing"),
        (json!({ "model": MODEL, "active_decode_blocks_threshold": 1.5 }), 400, "between 0.0 and 1.0"),
        (
            json!({ "model": MODEL, "active_prefill_tokens_threshold": -1 }),
            400,
            "active_prefill_tokens_threshold",
        ),
        (json!({ "model": MODEL, "active_decode_blocks": 0.5 }), 400, "is no threshold"),
    ] {
        let answer = rig.ask("/busy_threshold", &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.text);
        assert!(answer.text.contains(says), "{body}: {}", answer.text);
    }
    assert_eq!(listed().await, json!({ "thresholds": [thresholds(Value::Null)] }), "nothing was changed");
}
