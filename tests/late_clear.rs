//! An engine whose cache was emptied while it had nothing to do says so with its next step, and no sooner.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::select::Mode;
use serde_json::json;

use crate::rig::{Rig, chat, credit, prose};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reset_emptied_is_credited_until_the_engine_says_so_and_not_after_its_next_step() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let prompt = chat(&prose(1, 60), "what now?");
    assert_eq!(rig.post("/v1/chat/completions", &prompt).await.status, 200);
    rig.wait_for_events().await;
    let held = credit(&rig.explain(&prompt).await, 1);
    assert!(held > 0);

    rig.wait_for_free_engines().await;
    let url = format!("http://{}/reset_prefix_cache", rig.engines[0].http_addr());
    let answer = rig.client.post(&url, &json!({})).await;
    assert_eq!(answer.json["success"], true, "{}", answer.text);
    // Nobody knows: the engine has said nothing.
    assert_eq!(credit(&rig.explain(&prompt).await, 1), held);

    // The next request, whatever it is for, brings the clear; one that counted on the cache finds nothing there, once.
    let other = chat("be brief", "hello");
    assert_eq!(rig.post("/v1/chat/completions", &other).await.cached_tokens(), 0);
    rig.wait_for_events().await;
    assert_eq!(credit(&rig.explain(&prompt).await, 1), 0);
    assert_eq!(rig.worker(1).await["stream"]["state"], "live");
}
