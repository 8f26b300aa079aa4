//! A frontend that serves some namespaces takes in the workers of those and of no others.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{
    fleet::{Namespaces, WorkerSpec, WorkerType},
    select::Mode,
};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, chat, plan, registration,
    upstream::{Upstream, plain},
};

/// Longer than any test takes.
const LEASE: Option<f64> = Some(30.0);

/// A frontend that serves `namespaces`, with a file that has workers 1 of `team-a`, 2 of `team-b` and 3 of `other`.
async fn serving(namespaces: Namespaces) -> (Rig, Upstream) {
    let upstream = Upstream::start(plain).await;
    let workers = (1..).zip(["team-a", "team-b", "other"]);
    let workers = workers.map(|(id, namespace)| of(namespace, &upstream.worker(id, MODEL))).collect();
    let mut plan = plan(Mode::RoundRobin, workers);
    plan.settings.namespaces = namespaces;
    (Rig::start_plan(plan, Vec::new()).await, upstream)
}

fn of(namespace: &str, spec: &WorkerSpec) -> WorkerSpec {
    WorkerSpec { namespace: namespace.to_owned(), ..spec.clone() }
}

async fn ids(rig: &Rig) -> Vec<Value> {
    rig.workers().await.iter().map(|worker| worker["id"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_other_namespaces_are_left_out_and_counted() {
    for (namespaces, served) in [
        (Namespaces::Every, vec![1, 2, 3]),
        (Namespaces::Named("team-a".to_owned()), vec![1]),
        (Namespaces::WithPrefix("team-".to_owned()), vec![1, 2]),
        (Namespaces::Named("team-".to_owned()), vec![]),
    ] {
        let (rig, _upstream) = serving(namespaces.clone()).await;
        assert_eq!(json!(ids(&rig).await), json!(served), "{namespaces}");
        let strangers = rig.metric("kvroute_foreign_registrations_total", "").await;
        assert_eq!(strangers, 3.0 - served.len() as f64, "{namespaces}");
        let answer = rig.post("/v1/chat/completions", &chat("a", "b")).await;
        assert_eq!(answer.status.as_u16(), if served.is_empty() { 404 } else { 200 }, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_from_elsewhere_is_refused_with_what_is_served() {
    let (rig, upstream) = serving(Namespaces::Named("team-a".to_owned())).await;
    let newcomer = upstream.worker(7, MODEL);
    for (count, namespace) in (3..).zip(["other", "team-b", "default"]) {
        let refused = rig.register(&of(namespace, &newcomer), LEASE).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        let error = &refused.json["error"];
        assert_eq!(error["param"], "namespace");
        assert_eq!(
            error["message"],
            format!(
                "namespace '{namespace}' is not served here: this frontend serves namespace 'team-a' (--namespace, \
                 --namespace-prefix)"
            )
        );
        assert_eq!(rig.metric("kvroute_foreign_registrations_total", "").await, f64::from(count));
    }
    assert_eq!(rig.register(&of("team-a", &newcomer), LEASE).await.status, 201);
    assert_eq!(ids(&rig).await, [1, 7]);
}

/// A prefill worker elsewhere whose card does not read is somebody else's worry.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_card_from_elsewhere_stops_nobody() {
    let (rig, upstream) = serving(Namespaces::WithPrefix("team".to_owned())).await;
    let roles = |namespace: &str, worker_type, id| WorkerSpec {
        worker_type,
        model: "split".to_owned(),
        ..of(namespace, &upstream.worker(id, MODEL))
    };
    assert_eq!(rig.register(&roles("team-a", WorkerType::Decode, 11), LEASE).await.status, 201);
    let prefill = async |namespace: &str| {
        let mut unreadable = registration(&roles(namespace, WorkerType::Prefill, 12), LEASE);
        unreadable["router_config"] = json!({ "router_mode": "no-mode" });
        assert_eq!(rig.ask("/v1/workers", &unreadable).await.status, 400);
        let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
        let sets = sets["worker_sets"].as_array().unwrap().clone();
        sets.iter().find(|set| set["model"] == "split").unwrap()["prefill"]["state"].clone()
    };
    // The same name in a namespace that is not served, then in the one that is.
    assert_eq!(prefill("other").await, "none");
    assert_eq!(prefill("team-a").await, "pending");
}
