//! Which workers the two hops go to.

use http::Method;
use kvroute::{
    fleet::{Api, ModelType, WorkerSpec, WorkerType},
    select::{
        CostModel::{Blocks, Time},
        Mode,
    },
};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, Transcript, plan,
    pools::{CHAT, COMPLETIONS, Pools, Timing, all_same, alternate, converse, growing, hops, set, small},
    stream_of,
    upstream::{Upstream, plain},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_prompt_keeps_its_prefill_worker_while_decode_workers_rotate() {
    let pools = Pools::start(3, 2).await.advertise(WorkerType::Prefill, Mode::Kv);
    let rig = pools.behind(Mode::RoundRobin).await;
    let (prefill, decode) = converse(&rig, 6, Timing::Not).await;
    assert!(all_same(&prefill) && (1..=3).contains(&prefill[0]), "{prefill:?}");
    assert!(alternate(&decode) && decode.iter().all(|id| [4, 5].contains(id)), "{decode:?}");
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prefills_total", "handed_over").await, 6.0);

    // What the engines reported is the prefill workers' own cache.
    let reported = rig.metric("kvroute_reported_answers_total", "").await;
    assert_eq!(reported, 6.0);
    let cached = rig.metric("kvroute_worker_cached_tokens_total", "").await;
    let of_prefill =
        rig.metric("kvroute_worker_cached_tokens_total", &format!("worker=\"{}\"", prefill[0])).await;
    assert!(cached > 0.0 && cached == of_prefill, "{cached} {of_prefill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_prefill_card_inherits_from_the_decode_set_and_not_from_the_frontend() {
    let pools = Pools::start(3, 1).await.advertise(WorkerType::Decode, Mode::Kv);
    let rig = pools.behind(Mode::RoundRobin).await;
    let prefill = set(&rig, "prefill").await;
    assert_eq!(prefill["router_config"]["router_mode"], "k_v", "{prefill}");
    assert_eq!(prefill["router_config"]["kv_router_config"]["router_track_active_blocks"], false);
    assert_eq!(prefill["router_config_from"], "decode_set");
    let decode = set(&rig, "decode").await;
    assert_eq!(decode["prefill"]["state"], "active", "{decode}");
    assert_eq!(decode["router_config"]["kv_router_config"]["router_track_active_blocks"], true);
    let (prefill, decode) = converse(&rig, 4, Timing::Not).await;
    assert!(all_same(&prefill) && all_same(&decode), "{prefill:?} {decode:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn and_the_other_way_round() {
    let pools = Pools::start(2, 2).await.advertise(WorkerType::Prefill, Mode::RoundRobin);
    let rig = pools.behind(Mode::Kv).await;
    let (prefill, _) = converse(&rig, 4, Timing::Not).await;
    assert!(alternate(&prefill), "{prefill:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_decoded_with_the_client_s_own_options() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    let mut response =
        rig.client.open(&format!("{}{COMPLETIONS}", rig.public()), &stream_of("hello", 12)).await;
    assert_eq!(response.status(), 200);
    let transcript = Transcript::of(response.body_mut()).await;
    assert!(transcript.is_done() && transcript.tokens() == 12, "{}", transcript.text);
    assert!(transcript.text.contains("\"usage\""), "{}", transcript.text);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_both_hops() {
    let rig =
        Pools::start(2, 2).await.advertise(WorkerType::Prefill, Mode::Kv).behind(Mode::RoundRobin).await;
    let (first, _) = hops(&rig.post(CHAT, &growing(0)).await);
    rig.wait_for_events().await;
    let explain = rig.explain(&growing(1)).await;
    assert_eq!((&explain["phase"], &explain["router_mode"]), (&json!("decode"), &json!("round-robin")));
    let prefill = &explain["prefill"];
    assert_eq!((&prefill["phase"], &prefill["router_mode"]), (&json!("prefill"), &json!("kv")), "{explain}");
    assert_eq!(prefill["choice"]["worker_id"], first);
    assert_eq!(prefill["pool"]["state"], "active");
    let ids = |hop: &Value| -> Vec<u64> {
        hop["candidates"].as_array().unwrap().iter().map(|row| row["worker_id"].as_u64().unwrap()).collect()
    };
    assert_eq!((ids(prefill), ids(&explain)), (vec![1, 2], vec![3, 4]));

    let mut question = growing(1);
    question["nvext"] = json!({ "annotations": ["query_instance_id:"] });
    let told = rig.ask(CHAT, &question).await.json["nvext"]["worker_id"].clone();
    assert_eq!(told["prefill_worker_id"], first);
    assert!([3, 4].contains(&told["decode_worker_id"].as_u64().unwrap()), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_hop_has_its_own_pin() {
    let rig = Pools::start(2, 2).await.behind(Mode::RoundRobin).await;
    let ask = async |nvext: Value| {
        let mut body = small();
        body["nvext"] = nvext;
        body["nvext"]["extra_fields"] = json!(["worker_id"]);
        rig.post(CHAT, &body).await
    };
    for _ in 0..3 {
        let answer = ask(json!({ "prefill_worker_id": 2, "decode_worker_id": 3 })).await;
        assert_eq!(hops(&answer), (2, 3));
        assert_eq!(hops(&ask(json!({ "backend_instance_id": 4 })).await).1, 4);
        assert_eq!(hops(&ask(json!({ "backend_instance_id": 1 })).await).0, 1);
    }
    for unknown in [json!({ "prefill_worker_id": 3 }), json!({ "decode_worker_id": 1 })] {
        let answer = ask(unknown.clone()).await;
        assert_eq!(answer.status, 400, "{unknown}: {}", answer.text);
        assert!(answer.text.contains("does not identify a known worker"), "{}", answer.text);
    }
    // What no decode worker would take costs no prefill.
    let before = rig.metric("kvroute_prefills_total", "").await;
    ask(json!({ "backend_instance_id": 9 })).await;
    assert_eq!(rig.metric("kvroute_prefills_total", "").await, before);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_prefill_hop_has_to_be_named_as_such() {
    let rig = Pools::start(2, 1).await.advertise(WorkerType::Prefill, Mode::Direct).behind(Mode::Kv).await;
    let mut body = small();
    for nvext in [json!({}), json!({ "backend_instance_id": 1 })] {
        body["nvext"] = nvext;
        let refused = rig.post(CHAT, &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        let says = "Prefill worker ID required in Direct routing mode but none found in request";
        assert!(refused.text.contains(says) && refused.text.contains("x-dynamo-prefill-instance-id"));
    }
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let (url, named) = (format!("{}{CHAT}", rig.public()), [("x-dynamo-prefill-instance-id", "2")]);
    let answer = rig.client.request(Method::POST, &url, &named, &body).await;
    assert_eq!(hops(&answer), (2, 3));
}

/// What a decode worker computes follows blocks that only prefill workers reported.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_after_a_taken_prompt_are_held_and_start_no_resync() {
    let rig = Pools::start(1, 1).await.advertise(WorkerType::Prefill, Mode::Kv).behind(Mode::Kv).await;
    converse(&rig, 4, Timing::Not).await;
    let decode = rig.workers().await[1].clone();
    assert!(decode["cached_blocks"]["gpu"].as_u64().unwrap() >= 4, "{decode}");
    assert_eq!(rig.metric("kvroute_index_pending_blocks", "").await, 0.0, "the parents' places are known");
    let stream = &decode["stream"];
    assert_eq!((&stream["state"], &stream["gaps"]), (&json!("live"), &json!(0)), "{decode}");
    assert!(stream["replays"].as_u64().unwrap() <= 1, "the first catch-up and no other: {decode}");
    // They do not make the worker hold a prompt's beginning, and it is not priced for a prefill that is done elsewhere.
    let explained = rig.explain(&growing(3)).await;
    assert_eq!(explained["choice"]["overlap_blocks"], 0);
    let cost = &explained["candidates"][0]["cost"];
    assert_eq!((&cost["own_prefill"], &cost["queue"]), (&json!(0.0), &json!(0.0)), "{explained}");
    assert!(explained["prefill"]["choice"]["overlap_blocks"].as_u64().unwrap() > 10, "{explained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_set_has_the_cost_model_of_its_card_else_of_whoever_the_rest_is_from() {
    // The frontend has the default, time.
    for (advertises, own, decode, expected, from) in [
        (false, None, None, Time, "decode_set"),
        (false, None, Some(Blocks), Blocks, "decode_set"),
        (false, Some(Time), Some(Blocks), Time, "card"),
        (true, None, Some(Blocks), Time, "frontend"),
        (true, Some(Blocks), None, Blocks, "card"),
    ] {
        let mut pools = Pools::start(1, 1).await;
        if advertises {
            pools = pools.advertise(WorkerType::Prefill, Mode::Kv);
        }
        pools.workers[0].router_cost_model = own;
        pools.workers[1].router_cost_model = decode;
        let rig = pools.behind(Mode::Kv).await;
        let of = async |role| {
            let set = set(&rig, role).await;
            (set["router_cost_model"].clone(), set["router_cost_model_from"].clone())
        };
        assert_eq!(
            of("prefill").await,
            (json!(expected.name()), json!(from)),
            "{advertises} {own:?} {decode:?}"
        );
        let from = if decode.is_some() { "card" } else { "frontend" };
        assert_eq!(of("decode").await, (json!(decode.unwrap_or(Time).name()), json!(from)));
    }
}

/// By `kv_transfer_params` and SGLang's fields an engine reads blocks of whom they name, or keeps its own for whoever comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_never_gets_a_client_s_word_on_blocks() {
    let engine = Upstream::start(plain).await;
    let model_type = ModelType::of(&[Api::Chat, Api::Completions, Api::Embedding]);
    let decode = WorkerSpec { worker_type: WorkerType::Decode, model_type, ..engine.worker(1, MODEL) };
    let rig = Rig::start_plan(plan(Mode::RoundRobin, vec![decode]), Vec::new()).await;
    let own = json!({
        "kv_transfer_params": {"do_remote_decode": true}, "bootstrap_host": "10.0.0.9", "bootstrap_port": 1,
        "bootstrap_room": 2, "unknown_to_the_router": "remains",
    });
    for (path, mut body) in [
        (CHAT, small()),
        (COMPLETIONS, json!({"model": MODEL, "prompt": "hello"})),
        ("/v1/embeddings", json!({"model": MODEL, "input": "hello"})),
    ] {
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let answer = rig.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let sent = engine.last();
        assert_eq!(sent.path, path);
        assert!(!sent.body.contains("transfer") && !sent.body.contains("bootstrap"), "{}", sent.body);
        assert!(sent.body.contains("remains"), "{}", sent.body);
    }
}
