//! How long one frontend takes to learn what a fleet of engines has cached, from their replays and from another frontend.
//!
//! ```sh
//! cargo run --release --example recovery                     # two million events of 64 ranks
//! cargo run --release --example recovery -- 200000 16 1000   # events in all, ranks, batches that short buffers keep
//! ```
//!
//! The engines are sockets that answer replays as vLLM does: one batch an event, made when it is asked for and always with
//! the same bytes. The frontend is the whole one, with its listeners. A choice is right if the rank that is credited with the
//! longest prefix is the one that holds the prompt.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    reason = "an example says what went wrong and ends"
)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use kvroute::{
    cli::assemble,
    config::FrontendPlan,
    fleet::{RouterConfig, StreamState, WorkerSpec},
    frontend::{Frontend, FrontendSettings, SnapshotSource},
    hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt},
    index::Scratch,
    select::Mode,
    slot::WorkerId,
};

const MODEL: &str = "recovered";
const BLOCK: u64 = 16;
/// A chain is stored by so many events of two blocks each, and then the one that was stored `KEPT` chains ago is removed.
const STORES: u64 = 8;
const KEPT: u64 = 500;
/// Prompts that are looked at, over all ranks.
const PROMPTS: u64 = 512;

/// Engines' buffers keep batches from here on.
static OLDEST: AtomicU64 = AtomicU64::new(0);

/// A number that is always the same for the same place.
fn mix(rank: u64, chain: u64, at: u64) -> u64 {
    let mut x = rank << 48 ^ chain << 16 ^ at ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn token(rank: u64, chain: u64, at: u64) -> u32 {
    (mix(rank, chain, at) % 50_000) as u32
}

/// What the engine calls a block of a chain.
fn name(rank: u64, chain: u64, block: u64) -> u64 {
    mix(rank, chain, 1 << 15 | block)
}

/// The batch of a number: one event, as vLLM writes it.
fn batch(rank: u64, sequence: u64) -> Vec<u8> {
    let (chain, step) = (sequence / (STORES + 1), sequence % (STORES + 1));
    let mut out = Vec::with_capacity(160);
    let write = &mut out;
    rmp::encode::write_array_len(write, 3).expect("memory");
    rmp::encode::write_f64(write, 1.0 + sequence as f64).expect("memory");
    rmp::encode::write_array_len(write, 1).expect("memory");
    if step < STORES {
        rmp::encode::write_array_len(write, 6).expect("memory");
        rmp::encode::write_str(write, "BlockStored").expect("memory");
        rmp::encode::write_array_len(write, 2).expect("memory");
        for block in [2 * step, 2 * step + 1] {
            rmp::encode::write_uint(write, name(rank, chain, block)).expect("memory");
        }
        match step {
            0 => rmp::encode::write_nil(write).expect("memory"),
            _ => drop(rmp::encode::write_uint(write, name(rank, chain, 2 * step - 1)).expect("memory")),
        }
        rmp::encode::write_array_len(write, 2 * BLOCK as u32).expect("memory");
        for at in 2 * step * BLOCK..2 * (step + 1) * BLOCK {
            rmp::encode::write_uint(write, token(rank, chain, at).into()).expect("memory");
        }
        rmp::encode::write_uint(write, BLOCK).expect("memory");
        rmp::encode::write_nil(write).expect("memory");
    } else {
        rmp::encode::write_array_len(write, 2).expect("memory");
        rmp::encode::write_str(write, "BlockRemoved").expect("memory");
        let gone = if chain >= KEPT { 2 * STORES } else { 0 };
        rmp::encode::write_array_len(write, gone as u32).expect("memory");
        // The end of a chain first, as engines evict.
        for block in (0..gone).rev() {
            rmp::encode::write_uint(write, name(rank, chain - KEPT, block)).expect("memory");
        }
    }
    rmp::encode::write_uint(write, 0).expect("memory");
    out
}

/// The sockets of a rank that has published `batches` and publishes no more; its endpoints.
fn engine(context: &zmq::Context, rank: u64, batches: u64) -> (String, String) {
    let bound = |kind| {
        let socket = context.socket(kind).expect("a socket");
        socket.bind("tcp://127.0.0.1:*").expect("a port");
        let endpoint = socket.get_last_endpoint().expect("an endpoint").expect("an endpoint");
        (socket, endpoint)
    };
    let (events, events_endpoint) = bound(zmq::PUB);
    let (replay, replay_endpoint) = bound(zmq::ROUTER);
    // Whoever reads slowly is waited for, and not sent less.
    replay.set_router_mandatory(true).expect("an option");
    std::thread::spawn(move || {
        let _events = events;
        while let Ok(request) = replay.recv_multipart(0) {
            let [client, _, from] = &request[..] else { continue };
            let from = from.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            for sequence in from.max(OLDEST.load(Relaxed))..batches {
                let payload = batch(rank, sequence);
                let frames = [&client[..], b"", b"", &sequence.to_be_bytes(), &payload];
                if replay.send_multipart(frames, 0).is_err() {
                    break;
                }
            }
            let _ = replay.send_multipart([&client[..], b"", b"", &(-1_i64).to_be_bytes(), b""], 0);
        }
    });
    (events_endpoint, replay_endpoint)
}

struct Fleet {
    workers: Vec<WorkerSpec>,
    batches: u64,
    prompts: Vec<(WorkerId, Vec<BlockHash>)>,
}

impl Fleet {
    fn start(context: &zmq::Context, ranks: u64, batches: u64) -> Self {
        let workers = (0..ranks).map(|rank| {
            let (events, replay) = engine(context, rank, batches);
            WorkerSpec {
                id: Some(rank),
                block_size: BLOCK as u32,
                kv_events_endpoint: Some(events),
                kv_replay_endpoint: Some(replay),
                ..WorkerSpec::new(&format!("http://127.0.0.1:{}", rank + 1), MODEL)
            }
        });
        let size = BlockSize::new(BLOCK as u32).expect("a size");
        let whole = batches / (STORES + 1);
        let prompts = (0..PROMPTS).map(|number| {
            let rank = number % ranks;
            // Spread over all that the rank still holds.
            let chain = whole - 1 - mix(rank, number, 7) % KEPT.min(whole);
            let tokens: Vec<u32> = (0..2 * STORES * BLOCK).map(|at| token(rank, chain, at)).collect();
            let mut hashes = Vec::new();
            BlockHasher::new(size, Identity::plain()).hash(&Prompt::text(&tokens), &mut hashes);
            (WorkerId(rank), hashes)
        });
        Self { workers: workers.collect(), batches, prompts: prompts.collect() }
    }

    fn plan(&self, from: Option<SocketAddr>) -> FrontendPlan {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let from = from
            .map(|at| SnapshotSource { url: format!("http://{at}").parse().expect("a URL"), token: None });
        FrontendPlan {
            settings: FrontendSettings {
                public: local,
                admin: local,
                index_snapshot_from: from,
                ..FrontendSettings::default()
            },
            router: RouterConfig { mode: Mode::Kv, ..RouterConfig::default() },
            workers: self.workers.clone(),
            models: Vec::new(),
        }
    }

    /// The share of prompts for which the rank with the longest credited prefix is the one that has it all.
    fn right(&self, frontend: &Frontend) -> f64 {
        let view = frontend.app().fleet().view();
        let Some(set) = view.sets.first() else { return 0.0 };
        let (index, mut scratch) = (&set.members[0].cohort.index, Scratch::new());
        let is_right = |(owner, prompt): &&(WorkerId, Vec<BlockHash>)| {
            let overlaps = index.overlap(prompt, &mut scratch);
            let credited = set.members.iter().filter(|member| member.status.state().credits_overlap());
            let best = credited.max_by_key(|member| overlaps.of(member.slot).gpu);
            best.is_some_and(|best| best.worker.id == *owner && overlaps.of(best.slot).gpu > 0)
        };
        self.prompts.iter().filter(is_right).count() as f64 / self.prompts.len() as f64
    }

    /// Starts a frontend, waits until every rank's stream has come to rest, and prints how that went.
    async fn recover(&self, title: &str, from: Option<SocketAddr>) -> Frontend {
        println!("\n{title}");
        let (memory, start) = (resident(), Instant::now());
        let frontend = assemble(self.plan(from)).await.expect("a frontend");
        let mut shares = Vec::new();
        let mut said = Duration::ZERO;
        loop {
            let view = frontend.app().fleet().view();
            let states: Vec<_> = view.members().map(|(_, member)| member.status.state()).collect();
            let through = view.members().filter(|(_, m)| m.status.cursor() == Some(self.batches - 1)).count();
            let share = self.right(&frontend);
            shares.push(share);
            let is_at_rest =
                |state: &StreamState| matches!(state, StreamState::Live | StreamState::Incomplete);
            let done = through == states.len() && states.iter().all(is_at_rest);
            if done || start.elapsed() - said >= Duration::from_secs(1) {
                said = start.elapsed();
                println!(
                    "  {:6.2} s  {through:3} of {} ranks through  {:5.1} % right",
                    said.as_secs_f64(),
                    states.len(),
                    share * 100.0
                );
            }
            if done {
                let live = states.iter().filter(|state| **state == StreamState::Live).count();
                let set = &view.sets[0];
                let totals = set.members[0].cohort.index.totals();
                println!(
                    "  live {live}, incomplete {}; {} blocks in {:.1} MiB of index; resident memory +{:.1} MiB; \
                     {:.1} % right on average meanwhile",
                    states.len() - live,
                    totals.blocks[0],
                    mebibytes(totals.bytes),
                    mebibytes(resident().saturating_sub(memory)),
                    100.0 * shares.iter().sum::<f64>() / shares.len() as f64,
                );
                return frontend;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Bytes that this process has in memory, the engines' threads included.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let events = arguments.next().unwrap_or(2_000_000);
    let ranks = arguments.next().unwrap_or(64);
    let short = arguments.next().unwrap_or(1_000);
    let batches = events / ranks;
    let context = zmq::Context::new();
    let fleet = Fleet::start(&context, ranks, batches);
    println!("{} events of {ranks} ranks, {batches} batches each", batches * ranks);

    let first = fleet.recover("replays that reach back to the start", None).await;
    let second =
        fleet.recover("the same with a snapshot of the first frontend", Some(first.admin_addr())).await;
    drop(second);
    OLDEST.store(batches.saturating_sub(short), Relaxed);
    let third = fleet.recover(&format!("replays of the last {short} batches"), None).await;
    drop(third);
    fleet.recover("the same with a snapshot of the first frontend", Some(first.admin_addr())).await;
}
