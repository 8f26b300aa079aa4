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
    device::{
        Healths,
        nvml::{Sample, Sampler, SamplerSettings},
    },
    fleet::{DeviceKind, WorkerSpec},
    worker::agent::{AgentSettings, Described, is_same},
};

/// Samples the machine's GPUs for as long as the second part lives, and tells of the engine's while it is described: before,
/// nobody can tell which ranks it has.
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
        healths: Healths::default(),
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
    /// Of all GPUs here, whether or not an engine is: what happens while there is none is the next one's.
    healths: Healths,
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
        let now_ms = u64::try_from(sample.taken.duration_since(self.epoch).as_millis()).unwrap_or(u64::MAX);
        self.healths.observe(&sample.devices, now_ms);
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
        // Adapters come and go without it; and a list of GPUs may be read otherwise once one of them is gone.
        if self.watched.as_ref().is_none_or(|(of, _)| !is_same(&spec, of)) {
            self.watched = self.assigned(&spec, sample);
        }
        let (_, watch) = self.watched.as_mut()?;
        let engine = &self.engine;
        let (ranks, changed) =
            watch.observe(&sample.devices, &self.healths, |pid| engine.has(pid), now_ms)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceReading, Visible};

    /// A feed of two GPUs, the first of which is the engine's.
    fn feed(described: &channel::Sender<Described>) -> (Feed, NewsFeed) {
        let (publish, news) = channel::channel(None);
        let feed = Feed {
            settings: DeviceSettings { named: Some(Visible::parse("GPU-a")), ..DeviceSettings::default() },
            described: described.subscribe(),
            engine: EngineProcesses::new(Root::Unknown),
            healths: Healths::default(),
            watched: None,
            publish,
            alarm: 0,
            said: None,
            epoch: Instant::now(),
        };
        (feed, news)
    }

    fn sample(xids: &[u64]) -> Sample {
        let a = DeviceReading { xids: xids.to_vec(), ..DeviceReading::of("GPU-a") };
        Sample { taken: Instant::now(), absence: None, devices: vec![a, DeviceReading::of("GPU-b")] }
    }

    fn described(started_ms: u64, adapters: &[&str]) -> Described {
        let lora_adapters = adapters.iter().map(|&name| name.to_owned()).collect();
        let spec = WorkerSpec::new("http://h:1", "m");
        Some(Arc::new(WorkerSpec { registered_ms: Some(started_ms), lora_adapters, ..spec }))
    }

    fn fault(news: &NewsFeed) -> Option<String> {
        let news = news.borrow().clone()?;
        news.ranks[0].fault.as_ref().map(|fault| fault.reason.clone())
    }

    #[test]
    fn an_xid_holds_whatever_becomes_of_the_description() {
        let (describe, _) = channel::channel(described(1, &[]));
        let (mut feed, news) = feed(&describe);
        feed.take(&sample(&[79]));
        let expected = Some("xid 79".to_owned());
        assert_eq!(fault(&news), expected);
        describe.send_replace(described(1, &["sql"]));
        feed.take(&sample(&[]));
        assert_eq!(fault(&news), expected, "an adapter came");
        describe.send_replace(None);
        feed.take(&sample(&[]));
        assert!(news.borrow().is_none());
        describe.send_replace(described(2, &[]));
        feed.take(&sample(&[]));
        assert_eq!(fault(&news), expected, "the engine was started again");
    }

    #[test]
    fn an_xid_that_comes_while_no_engine_is_there_counts_for_the_next_one() {
        let (describe, _) = channel::channel(None);
        let (mut feed, news) = feed(&describe);
        feed.take(&sample(&[79]));
        describe.send_replace(described(1, &[]));
        feed.take(&sample(&[]));
        assert_eq!(fault(&news).as_deref(), Some("xid 79"));
    }

    #[test]
    fn another_adapter_is_no_reason_to_look_for_the_gpus_again() {
        let (describe, _) = channel::channel(described(1, &[]));
        let (mut feed, news) = feed(&describe);
        feed.settings.named = Some(Visible::parse("0"));
        feed.take(&sample(&[]));
        describe.send_replace(described(1, &["sql"]));
        // One that is not listed any more is the last, so that the numbers are other GPUs'.
        let gone = DeviceReading { missing: true, ..DeviceReading::of("GPU-a") };
        let devices = vec![DeviceReading::of("GPU-b"), gone];
        feed.take(&Sample { devices, ..sample(&[]) });
        assert_eq!(fault(&news).as_deref(), Some("lost"));
    }
}
