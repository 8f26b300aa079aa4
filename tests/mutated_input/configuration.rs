//! Cards and configuration files, as people and engines would write them.

use std::{fs, path::Path};

use kvroute::{
    config::{self, ConfigFile, WorkerFile},
    fleet::{RouterConfig, WorkerSpec},
};
use tempfile::tempdir;

use crate::mutation::Inputs;

const FRONTEND: &str = r#"
host = "127.0.0.1"
port = 0
max_body_bytes = 1000
drain_timeout = 5.5

[router]
router_mode = "kv"
router_kv_overlap_score_credit = 2.0
router_temperature = 0.5
router_queue_threshold = 4.0

[[models]]
name = "m"
tokenizer = "/nowhere"

[[workers]]
url = "http://127.0.0.1:8000"
model = "m"
block_size = 16
kv_events_endpoint = "tcp://127.0.0.1:5557"
kv_replay_endpoint = "tcp://127.0.0.1:5558"
"#;

const WORKER: &str = r#"
frontend = ["http://127.0.0.1:9091"]

[router]
router_mode = "kv"
router_hold = 0.5
active_decode_blocks_threshold = 0.9
"#;

#[test]
fn damaged_files_are_errors_that_say_where() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("router.toml");
    let corpus: Vec<Vec<u8>> = [FRONTEND, WORKER, include_str!("../../docs/router.toml")]
        .map(|text| text.as_bytes().to_vec())
        .to_vec();
    let (mut good, mut bad) = (0, 0);
    for input in Inputs::of(&corpus) {
        let text = String::from_utf8_lossy(&input.bytes);
        let report = config::check(Path::new("router.toml"), &text, &|_| Ok(()));
        // The parser finds two things wrong with some single bytes.
        let errors = report.count(config::Severity::Error);
        assert!(errors <= 2 * text.len() + 8, "{errors} errors in {} bytes", text.len());
        fs::write(&path, &input.bytes).unwrap();
        let read = ConfigFile::read(&path).map(drop).map_err(|error| error.to_string());
        let worker = WorkerFile::read(&path).map(drop).map_err(|error| error.to_string());
        for result in [read, worker] {
            match result {
                Ok(()) => good += 1,
                Err(error) => {
                    assert!(error.contains("router.toml"), "which file? {error}");
                    bad += 1;
                }
            }
        }
    }
    println!("{good} good, {bad} bad");
    assert!(good > 0 && bad > 0);
}

#[test]
fn damaged_cards_are_read_or_refused_with_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cards");
    let cards = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut corpus: Vec<_> = cards.filter(|path| path.extension().is_some_and(|is| is == "json")).collect();
    corpus.sort();
    let mut corpus: Vec<Vec<u8>> = corpus
        .into_iter()
        .filter_map(|path| {
            let record: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            Some(record["card_json"].get("router_config")?.to_string().into_bytes())
        })
        .collect();
    assert!(corpus.len() > 5);
    corpus.push(serde_json::to_vec(&WorkerSpec::new("http://127.0.0.1:8000", "m")).unwrap());
    let (mut good, mut bad) = (0, 0);
    for input in Inputs::of(&corpus) {
        match serde_json::from_slice::<RouterConfig>(&input.bytes) {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                bad += 1;
            }
        }
        if let Ok(spec) = serde_json::from_slice::<WorkerSpec>(&input.bytes)
            && spec.validate().is_ok()
        {
            drop(spec.card());
        }
    }
    println!("{good} good, {bad} bad");
    assert!(good > 0 && bad > 0);
}
