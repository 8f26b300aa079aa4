//! A fleet whose streams are notes, and how to look at it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use kvroute::{
    fleet::{
        Fleet, FleetView, IndexKey, OnConfigMismatch, RouterConfig, SetView, StreamSource, StreamStatus,
        Streams, WorkerSpec,
    },
    index::IndexWriter,
    select::{Exclusion, Mode, Tuning},
    slot::Slot,
};
use parking_lot::Mutex;

/// Notes what the fleet asks for, and checks that it asks for it in a sensible order.
#[derive(Clone, Default)]
pub(crate) struct Recorder(pub(crate) Arc<Notes>);

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) fleet: OnceLock<Weak<Fleet>>,
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) indexes: Vec<IndexKey>,
    pub(crate) open: BTreeMap<(u32, u32), (IndexKey, Arc<StreamStatus>)>,
    /// Every stream ever closed that had been open.
    pub(crate) closed: Vec<(u32, u32)>,
    /// Every slot that `close` was called for.
    pub(crate) ended: BTreeSet<(u32, u32)>,
    /// No index can be made.
    pub(crate) has_no_thread: bool,
    /// Slots whose workers say that they were started anew, and when.
    pub(crate) restarted: Vec<((u32, u32), u64)>,
    /// The ranks whose streams do not open.
    pub(crate) broken: BTreeSet<u32>,
}

pub(crate) fn name(slot: Slot) -> (u32, u32) {
    (slot.index, slot.generation)
}

impl Streams for Recorder {
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>) -> Result<(), String> {
        assert_eq!(writers.len(), 1);
        let state = &mut self.0.state.lock();
        if state.has_no_thread {
            return Err("no thread is left".to_owned());
        }
        assert!(!state.indexes.contains(key), "an index of {key:?} is there already");
        state.indexes.push(key.clone());
        Ok(())
    }

    fn index_dropped(&self, key: &IndexKey) {
        let mut state = self.0.state.lock();
        assert!(state.open.values().all(|(opened, _)| opened != key), "an index goes before its streams");
        let position = state.indexes.iter().position(|known| known == key);
        state.indexes.remove(position.expect("an index that nobody made"));
    }

    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String> {
        let mut state = self.0.state.lock();
        assert!(state.indexes.contains(key), "a stream without its index");
        assert!(!state.ended.contains(&name(source.slot)), "slot {} comes back to life", source.slot);
        if state.broken.contains(&source.rank.0) {
            return Err(format!("rank {} is broken", source.rank));
        }
        let sharing = state.open.keys().find(|open| open.0 == source.slot.index);
        assert_eq!(sharing, None, "slot {} is taken", source.slot);
        state.open.insert(name(source.slot), (key.clone(), status));
        Ok(())
    }

    fn restarted(&self, slot: Slot, started_ms: u64) {
        let mut state = self.0.state.lock();
        assert!(!state.ended.contains(&name(slot)), "slot {slot} is gone");
        state.restarted.push((name(slot), started_ms));
    }

    fn close(&self, key: &IndexKey, slot: Slot) {
        if let Some(fleet) = self.0.fleet.get().and_then(Weak::upgrade) {
            let view = fleet.view();
            assert!(view.members().all(|(_, member)| member.slot != slot), "closed while in the view");
        }
        let mut state = self.0.state.lock();
        assert!(state.ended.insert(name(slot)), "slot {slot} closed twice");
        if let Some((opened, _)) = state.open.remove(&name(slot)) {
            assert_eq!(&opened, key);
            state.closed.push(name(slot));
        }
    }
}

pub(crate) fn fleet_with(config: RouterConfig, policy: OnConfigMismatch) -> (Arc<Fleet>, Recorder) {
    let recorder = Recorder::default();
    let fleet = Fleet::new(config, Box::new(recorder.clone())).on_config_mismatch(policy);
    let fleet = Arc::new(fleet);
    recorder.0.fleet.set(Arc::downgrade(&fleet)).unwrap();
    (fleet, recorder)
}

pub(crate) fn fleet() -> (Arc<Fleet>, Recorder) {
    fleet_with(RouterConfig::default(), OnConfigMismatch::Stop)
}

pub(crate) fn spec(id: Option<u64>, model: &str, ranks: u32) -> WorkerSpec {
    WorkerSpec {
        id,
        ranks,
        kv_events_endpoint: Some("tcp://*:5557".into()),
        ..WorkerSpec::new("http://10.0.0.1:8000", model)
    }
}

pub(crate) fn slots(fleet: &Fleet) -> Vec<(u32, u32)> {
    fleet.view().members().map(|(_, member)| name(member.slot)).collect()
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn mode(mode: Mode) -> Option<RouterConfig> {
    Some(RouterConfig { mode, tuning: Tuning::default() })
}

pub(crate) fn only_set(view: &FleetView) -> &Arc<SetView> {
    assert_eq!(view.sets.len(), 1);
    &view.sets[0]
}

/// The workers that take requests now.
pub(crate) fn admitted(fleet: &Fleet) -> Vec<u64> {
    let (view, now) = (fleet.view(), fleet.now_ms());
    let members = view.members().filter(|(set, member)| set.exclusion(member, now).is_none());
    members.map(|(_, member)| member.worker.id.0).collect()
}

/// Why a worker takes no requests now.
pub(crate) fn exclusion(fleet: &Fleet, id: u64) -> Option<Exclusion> {
    let (view, now) = (fleet.view(), fleet.now_ms());
    let (set, member) = view.members().find(|(_, member)| member.worker.id.0 == id).unwrap();
    set.exclusion(member, now)
}
