//! From the library to the choices: agents beside mock engines, each with a GPU of its own, and a frontend.

use std::{process, time::Duration};

use kvroute::{
    device::Visible,
    fleet::WorkerSpec,
    select::Mode,
    worker::{
        agent::{self, AgentSettings, DescribeError, Pace},
        backend::Backend,
        devices::DeviceSettings,
        facts::{Facts, PublishKvEvents},
        mock::{MockEngine, MockSettings},
    },
};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    rig::{Rig, candidate, chat, engine_settings, eventually, plan, prose},
    stand_in::{StandIn, gpu, gpu_with, lost},
};

const SAMPLE: Duration = Duration::from_millis(50);

/// An agent that runs, and what stops it.
type Agent = (oneshot::Sender<()>, JoinHandle<Result<(), DescribeError>>);

/// A frontend, and engines with their agents on a machine with GPUs.
struct Machine {
    rig: Rig,
    gpus: StandIn,
    engines: Vec<MockEngine>,
    agents: Vec<Agent>,
}

fn name(worker: usize) -> String {
    format!("GPU-{worker}")
}

impl Machine {
    /// Worker n has `GPU-n`.
    async fn start(mode: Mode, workers: usize, engine: &MockSettings) -> Self {
        let devices: Vec<_> = (1..=workers).map(|worker| gpu(&name(worker))).collect();
        let mut machine = Self {
            rig: Rig::start_plan(plan(mode, Vec::new()), Vec::new()).await,
            gpus: StandIn::with_devices(&devices),
            engines: Vec::new(),
            agents: Vec::new(),
        };
        for worker in 1..=workers {
            let engine = MockEngine::start(engine.clone()).await.unwrap();
            let devices = DeviceSettings {
                nvml_library: Some(machine.gpus.path()),
                interval: SAMPLE,
                named: Some(Visible::parse(&name(worker))),
                engine_pid: Some(process::id()),
                ..DeviceSettings::default()
            };
            machine.agent(worker, &engine, devices);
            machine.engines.push(engine);
        }
        eventually("every worker tells of its GPU", async || {
            let all = machine.rig.workers().await;
            all.len() == workers && all.iter().all(|worker| worker["devices"].is_object())
        })
        .await;
        machine
    }

    fn agent(&mut self, id: usize, engine: &MockEngine, devices: DeviceSettings) {
        let url: http::Uri = format!("http://{}", engine.http_addr()).parse().unwrap();
        let settings = AgentSettings {
            backend: Backend::Vllm,
            advertised: url.clone(),
            engine: url,
            frontends: vec![self.rig.admin().parse().unwrap()],
            authorization: None,
            lease: Duration::from_secs(3600),
            facts: Facts::default(),
            publish_kv_events: PublishKvEvents::default(),
            spec: WorkerSpec { id: Some(id as u64), ..WorkerSpec::new("", "model") },
            devices,
            pace: Pace {
                health_interval: SAMPLE,
                first_retry: SAMPLE,
                longest_retry: SAMPLE,
                ..Pace::default()
            },
        };
        let (stop, stopped) = oneshot::channel();
        let stopped = async { drop(stopped.await) };
        self.agents.push((stop, tokio::spawn(agent::run(settings, stopped))));
    }

    /// How often each worker was chosen.
    async fn chosen(&self) -> Vec<f64> {
        let mut chosen = Vec::new();
        for id in 1..=self.engines.len() {
            chosen.push(self.rig.metric("kvroute_worker_chosen_total", &format!("worker=\"{id}\"")).await);
        }
        chosen
    }

    async fn excluded(&self, id: u64) -> Value {
        self.rig.worker(id).await["excluded"].clone()
    }

    async fn stop(self) {
        for (stop, task) in self.agents {
            stop.send(()).unwrap();
            task.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_is_fenced_and_its_requests_finish_elsewhere() {
    let mut machine = Machine::start(Mode::RoundRobin, 3, &engine_settings()).await;
    machine.gpus.set_devices(&[gpu("GPU-1"), lost("GPU-2"), gpu("GPU-3")]);
    eventually("the worker is fenced", async || machine.excluded(2).await == "fenced").await;
    let told = machine.rig.worker(2).await;
    assert_eq!(told["devices"]["fault"], json!({ "gpu": "GPU-2", "reason": "lost" }));
    // The engine goes with its GPU, and nobody notices but the fence.
    machine.engines.remove(1).stop().await;
    let before = machine.rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await;
    for seed in 0..8 {
        let answer = machine.rig.post("/v1/chat/completions", &chat(&prose(seed, 20), "hello")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(machine.rig.metric("kvroute_retries_total", "").await, 0.0, "nothing was tried there");
    let workers = machine.rig.workers().await;
    if workers.iter().any(|worker| worker["id"] == 2) {
        assert_eq!(machine.rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, before);
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_comes_and_goes_does_not_take_requests_each_time() {
    // One sampler, which sees every third answer that there is.
    let machine = Machine::start(Mode::Kv, 1, &engine_settings()).await;
    machine.gpus.set_devices(&[gpu_with("GPU-1", &json!({ "lost_every": 3 }))]);
    eventually("the fence", async || machine.excluded(1).await == "fenced").await;
    // Two samples of three are clean, and a fence takes five in a row.
    for _ in 0..30 {
        tokio::time::sleep(SAMPLE).await;
        assert_eq!(machine.excluded(1).await, "fenced");
    }
    machine.gpus.set_devices(&[gpu("GPU-1")]);
    eventually("it is back", async || machine.excluded(1).await.is_null()).await;
    assert_eq!(machine.rig.worker(1).await["devices"]["fault"], Value::Null);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_gpu_gets_a_smaller_share_and_its_own_again_later() {
    // Slow enough that requests overlap: what is spread is load.
    let slow = MockSettings { speedup: 2.0, ..engine_settings() };
    let machine = Machine::start(Mode::DeviceAwareWeighted, 2, &slow).await;
    let throttled = gpu_with("GPU-1", &json!({ "throttle": 0x40, "sm_clock": 500 }));
    machine.gpus.set_devices(&[throttled, gpu("GPU-2")]);
    let weight = async |id| machine.rig.worker(id).await["devices"]["weight"]["weight"].as_f64().unwrap();
    eventually("the weight falls", async || weight(1).await < 0.5).await;
    assert_eq!(weight(2).await, 1.0);

    let before = machine.chosen().await;
    let bodies: Vec<_> = (0..20).map(|seed| chat(&prose(seed, 200), "hello")).collect();
    let answers = bodies.iter().map(|body| machine.rig.post("/v1/chat/completions", body));
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.status, 200);
    }
    let after = machine.chosen().await;
    let (slow, fast) = (after[0] - before[0], after[1] - before[1]);
    assert!(slow * 1.5 <= fast, "{slow} against {fast}, of 20");

    let explain = machine.rig.explain(&bodies[0]).await;
    let device = &candidate(&explain, 1)["device"];
    assert!(device["capability"].as_f64().unwrap() < 0.5 && device["freshness"] == 1.0, "{device}");
    machine.gpus.set_devices(&[gpu("GPU-1"), gpu("GPU-2")]);
    eventually("the weight rises", async || weight(1).await > 0.7).await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_works_for_others_weighs_less_if_it_is_the_engine_s_for_sure() {
    let machine = Machine::start(Mode::Kv, 2, &engine_settings()).await;
    // This process stands for both engines; it is on one of the GPUs only.
    let busy = |uuid, pid: u32| gpu_with(uuid, &json!({ "utilisation": 60, "processes": [pid] }));
    machine.gpus.set_devices(&[busy("GPU-1", process::id()), busy("GPU-2", 1)]);
    let external = async |id| {
        let rank = format!("worker=\"{id}\"");
        machine.rig.metric("kvroute_worker_device_external_load", &rank).await
    };
    eventually("the load of others shows", async || external(1).await > 0.1).await;
    assert_eq!(external(2).await, 0.0);
    let explain = machine.rig.explain(&chat(&prose(1, 60), "hello")).await;
    assert_eq!(explain["choice"]["worker_id"], 2, "{explain}");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_gpu_everything_works_as_without_telemetry() {
    let mut machine = Machine::start(Mode::Kv, 0, &engine_settings()).await;
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let nowhere = DeviceSettings {
        nvml_library: Some("/none/libnvidia-ml.so.1".into()),
        interval: SAMPLE,
        ..DeviceSettings::default()
    };
    machine.agent(1, &engine, nowhere);
    machine.engines.push(engine);
    eventually("it is registered", async || machine.rig.workers().await.len() == 1).await;
    assert_eq!(machine.rig.post("/v1/chat/completions", &chat("", "hello")).await.status, 200);
    let explain = machine.rig.explain(&chat("", "hello")).await;
    assert_eq!(candidate(&explain, 1)["device"], Value::Null);
    assert_eq!(machine.rig.metric("kvroute_worker_device_telemetry", "").await, 0.0);
    machine.stop().await;
}
