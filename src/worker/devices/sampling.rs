//! From the sampler's thread to the heartbeats.

use std::{sync::Arc, time::Instant};

use tokio::sync::watch as channel;
use tracing::{info, warn};

use super::{
    DeviceSettings, News, NewsFeed,
    assignment::assign,
    processes::{EngineProcesses, Root},
    watch::Watch,
};
use crate::{
    device::nvml::{Sample, Sampler, SamplerSettings},
    fleet::{DeviceKind, WorkerSpec},
    worker::agent::{AgentSettings, Described},
};

/// Samples the engine's GPUs for as long as the second part lives, and while the engine is described: before, nobody can
/// tell which ranks it has.
pub(in crate::worker) fn start(
    settings: &AgentSettings,
    described: channel::Receiver<Described>,
) -> (NewsFeed, Option<Sampler>) {
    let (publish, news) = channel::channel(None);
    let DeviceSettings { enabled, nvml_library, interval, engine_pid, .. } = settings.devices.clone();
    if !enabled {
        return (news, None);
    }
    let root = engine_pid.map_or_else(|| root_of(settings), Root::Process);
    let mut feed = Feed {
        settings: settings.devices.clone(),
        described,
        engine: EngineProcesses::new(root),
        watched: None,
        publish,
        alarm: 0,
        said: None,
        epoch: Instant::now(),
    };
    let sampler = Sampler::start(
        SamplerSettings { nvml_library, interval, ..SamplerSettings::default() },
        move |sample| {
            feed.take(&sample);
        },
    );
    let sampler = sampler.inspect_err(|error| warn!(%error, "GPUs are not read: no thread to do it"));
    (news, sampler.ok())
}

/// The engine's port, if it is on this host.
fn root_of(settings: &AgentSettings) -> Root {
    let host = settings.engine.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match settings.engine.port_u16() {
        Some(port) if here => Root::Port(port),
        _ => Root::Unknown,
    }
}

struct Feed {
    settings: DeviceSettings,
    described: channel::Receiver<Described>,
    engine: EngineProcesses,
    /// The watch over the GPUs of the engine that was so described.
    watched: Option<(Arc<WorkerSpec>, Watch)>,
    publish: channel::Sender<Option<Arc<News>>>,
    alarm: u64,
    /// What was last said of GPUs that are not read, so that it is said once.
    said: Option<String>,
    epoch: Instant,
}

impl Feed {
    fn take(&mut self, sample: &Sample) {
        let news = self.news(sample).map(Arc::new);
        self.publish.send_replace(news);
    }

    fn news(&mut self, sample: &Sample) -> Option<News> {
        let spec = self.described.borrow().clone();
        let Some(spec) = spec else {
            // Another engine may come in its place.
            self.watched = None;
            return None;
        };
        if let Some(absence) = &sample.absence {
            self.say(absence.to_string());
            return None;
        }
        if spec.device == DeviceKind::Cpu {
            self.say("the engine computes on the CPU".to_owned());
            return None;
        }
        self.engine.refresh();
        if self.watched.as_ref().is_none_or(|(of, _)| !Arc::ptr_eq(of, &spec)) {
            self.watched = self.assigned(&spec, sample);
        }
        let (_, watch) = self.watched.as_mut()?;
        let engine = &self.engine;
        let now_ms = u64::try_from(sample.taken.duration_since(self.epoch).as_millis()).unwrap_or(u64::MAX);
        let (ranks, changed) = watch.observe(&sample.devices, |pid| engine.has(pid), now_ms)?;
        if changed {
            self.alarm += 1;
            for fault in ranks.iter().filter_map(|rank| rank.fault.as_ref()) {
                warn!(gpu = fault.gpu, reason = fault.reason, "a GPU of the engine is at fault");
            }
        }
        Some(News { taken: sample.taken, ranks, alarm: self.alarm })
    }

    fn assigned(&mut self, spec: &Arc<WorkerSpec>, sample: &Sample) -> Option<(Arc<WorkerSpec>, Watch)> {
        if sample.devices.is_empty() {
            self.say("the driver lists none".to_owned());
            return None;
        }
        match assign(&self.settings, &sample.devices, |pid| self.engine.has(pid)) {
            Ok(found) if found.uuids.is_empty() => {
                self.say(format!("{} names none", found.by));
                None
            }
            Ok(found) => {
                info!(gpus = found.uuids.join(","), from = found.by, "GPUs of the engine");
                self.said = None;
                Some((Arc::clone(spec), Watch::new(&found.uuids, spec.ranks)))
            }
            Err(problem) => {
                self.say(problem);
                None
            }
        }
    }

    /// Says once why no GPUs are read.
    fn say(&mut self, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            info!(reason, "no GPUs of the engine are read; it is routed to as without them");
            self.said = Some(reason);
        }
    }
}
