//! A frontend with a GPU for the prompts that come in bulk.

use kvroute::{
    accel::AcceleratorSettings, config::FrontendPlan, frontend::FrontendSettings, select::Mode,
    worker::mock::MockEngine,
};
use serde_json::json;

use crate::{
    batches::settings,
    child::{self, Library},
    rig::{self, MODEL, Rig},
};

/// A frontend over one engine, asked about a hundred prompts, and its metrics page.
async fn asked(accelerator: AcceleratorSettings) -> (Rig, String) {
    let engine = MockEngine::start(rig::engine_settings()).await.unwrap();
    let plan = rig::plan(Mode::Kv, vec![rig::worker(1, &engine)]);
    let settings = FrontendSettings { accelerator, ..plan.settings };
    let rig = Rig::assemble(FrontendPlan { settings, ..plan }, vec![engine]).await;
    let prompt = |first: u32| (first..first + 40).map(|token| token % 200).collect::<Vec<_>>();
    rig.post("/v1/completions", &json!({ "model": MODEL, "prompt": prompt(50), "max_tokens": 1 })).await;
    rig.wait_for_events().await;
    let prompts: Vec<_> = (0..100).map(prompt).collect();
    let answer = rig.ask("/v1/route/overlaps", &json!({ "model": MODEL, "prompts": prompts })).await;
    let found: Vec<_> = answer.json["prompts"].as_array().unwrap().iter().collect();
    for (first, found) in found.into_iter().enumerate() {
        assert_eq!(found["held_by"].as_array().unwrap().len(), usize::from(first == 50), "{first}: {found}");
    }
    let page = rig.client.get(&format!("{}/metrics", rig.admin())).await.text;
    (rig, page)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

#[test]
fn cuda_answers_a_bulk_question() {
    child::run("cuda_frontend::cuda_answers_a_bulk_question", Library::StandIn(""), || {
        let (_rig, page) = runtime().block_on(asked(settings(1)));
        assert!(page.contains("kvroute_hash_device{state=\"ready\"} 1\n"), "{page}");
        assert!(page.contains("kvroute_hash_batches_total{place=\"gpu\"} 1\n"), "{page}");
        assert!(page.contains("kvroute_hash_batch_blocks_total{place=\"gpu\"} 200\n"), "{page}");
    });
}

#[test]
fn cuda_is_not_there_and_the_answer_is_the_same() {
    let name = "cuda_frontend::cuda_is_not_there_and_the_answer_is_the_same";
    child::run(name, Library::None, || {
        let (_rig, page) = runtime().block_on(asked(settings(1)));
        assert!(page.contains("kvroute_hash_device{state=\"absent\"} 1\n"), "{page}");
        assert!(page.contains("kvroute_hash_batches_total{place=\"cpu_no_device\"} 1\n"), "{page}");
    });
}
