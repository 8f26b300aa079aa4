//! Keys of clients.

use std::{fs, sync::Arc};

use http::Method;
use kvroute::{
    frontend::{ApiKeys, FrontendSettings},
    select::Mode,
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    KEY, OTHER_KEY, bearer, planned, rig,
    rig::{Answer, MODEL, Rig, chat, eventually, pools::CHAT, upstream::Upstream},
};

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn guarded(settings: FrontendSettings, file: &NamedTempFile) -> FrontendSettings {
    let api_keys = Some(Arc::new(ApiKeys::open(file.path()).unwrap()));
    FrontendSettings { api_keys, ..settings }
}

async fn ask(rig: &Rig, method: Method, path: &str, authorization: Option<&str>) -> Answer {
    let body = if method == Method::GET { Value::Null } else { chat("a", "b") };
    let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
    rig.client.request(method, &format!("{}{path}", rig.public()), &headers, &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_but_health_and_readiness_wants_a_key() {
    let keys = file(&format!("# clients\n{KEY} search\n"));
    let rig = rig(1, |settings| guarded(settings, &keys)).await;
    let routes = [
        (Method::POST, CHAT),
        (Method::POST, "/v1/completions"),
        (Method::POST, "/v1/embeddings"),
        (Method::GET, "/v1/models"),
        (Method::GET, "/v1/models/mock"),
        // Nor does a stranger learn what there is and what is not.
        (Method::GET, "/nowhere"),
        (Method::DELETE, "/v1/models"),
    ];
    let shown = [None, Some(bearer(OTHER_KEY)), Some(format!("Basic {KEY}")), Some(KEY.to_owned())];
    for (method, path) in routes.clone() {
        for authorization in &shown {
            let answer = ask(&rig, method.clone(), path, authorization.as_deref()).await;
            assert_eq!(answer.status, 401, "{method} {path} {authorization:?}: {}", answer.text);
            let error = &answer.json["error"];
            assert_eq!(
                (&error["type"], &error["code"]),
                (&json!("invalid_request_error"), &json!("invalid_api_key"))
            );
            assert!(error["message"].is_string() && error["param"].is_null());
            let challenge = answer.headers["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer "), "{challenge}");
            assert_eq!(challenge.contains("invalid_token"), *authorization == Some(bearer(OTHER_KEY)));
            assert!(!answer.text.contains("sk-") && !answer.text.contains(MODEL), "{}", answer.text);
        }
        let answer = ask(&rig, method.clone(), path, Some(&bearer(KEY))).await;
        assert_ne!(answer.status, 401, "{method} {path}");
    }
    assert_eq!(ask(&rig, Method::POST, CHAT, Some(&bearer(KEY))).await.status, 200);

    assert_eq!(ask(&rig, Method::GET, "/health", None).await.status, 200);
    let ready = ask(&rig, Method::GET, "/ready", None).await;
    assert_eq!((ready.status.as_u16(), &ready.json), (200, &json!({ "status": "ready" })), "and no models");
    let ready = ask(&rig, Method::GET, "/ready", Some(&bearer(KEY))).await;
    assert_eq!(ready.json["models"][0]["model"], MODEL);

    let turned_away = async |reason: &str| {
        rig.metric("kvroute_turned_away_total", &format!("reason=\"{reason}\"")).await as usize
    };
    assert_eq!(turned_away("unknown_key").await, routes.len());
    assert_eq!(turned_away("no_key").await, 3 * routes.len());
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_without_a_key_is_told_so_before_the_connection_closes() {
    let keys = file(KEY);
    let rig = rig(1, |settings| guarded(settings, &keys)).await;
    for _ in 0..3 {
        let body = chat("a", &"word ".repeat(1 << 20));
        assert_eq!(rig.post(CHAT, &body).await.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_s_key_stays_here_and_workers_are_shown_their_own() {
    let keys = file(KEY);
    let upstream = Upstream::start(rig::upstream::plain).await;
    let workers = || vec![upstream.worker(1, MODEL)];
    let sent = async |rig: &Rig, path: &str| {
        let shown = [("authorization", "Bearer sk-aaaaaaaaaaaaaaaa")];
        let body = json!({ "model": MODEL, "prompt": [1, 2, 3], "input": "x" });
        let answer =
            rig.client.request(Method::POST, &format!("{}{path}", rig.public()), &shown, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let headers = upstream.last().headers;
        headers.get("authorization").map(|value| value.to_str().unwrap().to_owned())
    };
    let mut own = FrontendSettings::default().upstream;
    own.authorization = Some("Bearer of-the-workers".parse().unwrap());

    let open = Rig::start_plan(planned(workers(), |settings| settings), Vec::new()).await;
    assert_eq!(sent(&open, "/v1/completions").await, Some(bearer(KEY)), "without keys of ours it passes");
    let plan = planned(workers(), |settings| guarded(settings, &keys));
    let closed = Rig::start_plan(plan, Vec::new()).await;
    assert_eq!(sent(&closed, "/v1/completions").await, None);
    let plan = planned(workers(), |settings| FrontendSettings { upstream: own, ..guarded(settings, &keys) });
    let keyed = Rig::start_plan(plan, Vec::new()).await;
    assert_eq!(sent(&keyed, "/v1/completions").await.as_deref(), Some("Bearer of-the-workers"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_is_read_and_a_bad_one_changes_nothing() {
    let keys = file(KEY);
    let rig = rig(1, |settings| guarded(settings, &keys)).await;
    let status =
        async |key: &str| ask(&rig, Method::GET, "/v1/models", Some(&bearer(key))).await.status.as_u16();
    assert_eq!((status(KEY).await, status(OTHER_KEY).await), (200, 401));

    fs::write(keys.path(), format!("{KEY}\n{OTHER_KEY}\n")).unwrap();
    eventually("the second key counts", async || status(OTHER_KEY).await == 200).await;
    assert_eq!(status(KEY).await, 200);

    fs::write(keys.path(), "short\n").unwrap();
    let failing = async || rig.metric("kvroute_file_reload_failing", "file=\"api_keys\"").await;
    eventually("the file is found to be bad", async || failing().await == 1.0).await;
    assert_eq!((status(KEY).await, status(OTHER_KEY).await), (200, 200));

    fs::write(keys.path(), OTHER_KEY).unwrap();
    eventually("the first key counts no more", async || status(KEY).await == 401).await;
    assert_eq!((status(OTHER_KEY).await, failing().await), (200, 0.0));
    let reloads = async |result: &str| {
        rig.metric("kvroute_file_reloads_total", &format!("file=\"api_keys\",result=\"{result}\"")).await
    };
    assert_eq!((reloads("ok").await, reloads("failed").await), (2.0, 1.0));
    assert_eq!(rig.frontend.app().fleet().view().sets[0].config.mode, Mode::Kv);
}
