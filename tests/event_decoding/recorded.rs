//! Payloads as engines published them.

use kvroute::event::{Event, Tier};
use serde_json::Value as Json;

use crate::engine::{content, counted, decoded, identifier, normaliser, removed, stored_in};

const FRAMES: &str = include_str!("../fixtures/kv_event_frames.jsonl");

/// The payloads of the fixture; its first line says where they come from.
pub(crate) fn frames() -> Vec<Json> {
    FRAMES.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn payload(frame: &Json) -> Vec<u8> {
    hex::decode(frame["payload"].as_str().unwrap()).unwrap()
}

fn u64s(list: &Json) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

fn tier(name: &Json) -> Tier {
    Tier::ALL.into_iter().find(|tier| Some(tier.name()) == name.as_str()).unwrap()
}

fn expected(event: &Json) -> Event {
    if event == "cleared" {
        return Event::Cleared(None);
    }
    if let Some(gone) = event.get("removed") {
        return removed(tier(&gone["tier"]), &u64s(&gone["hashes"]));
    }
    let fact = &event["stored"];
    let tokens: Vec<u32> = u64s(&fact["tokens"]).iter().map(|&token| u32::try_from(token).unwrap()).collect();
    let size = usize::try_from(fact["block_size"].as_u64().unwrap()).unwrap();
    let blocks: Vec<_> = u64s(&fact["hashes"])
        .into_iter()
        .zip(tokens.chunks(size))
        .enumerate()
        .map(|(at, (engine, tokens))| {
            let objects = fact["objects"].get(at.to_string());
            let objects = objects.map_or_else(Vec::new, |list| {
                list.as_array().unwrap().iter().map(|id| identifier(id.as_str().unwrap())).collect()
            });
            let hash = content(tokens, fact["lora"].as_str(), fact["salt"].as_str(), &objects);
            (engine, Some(hash))
        })
        .collect();
    stored_in(tier(&fact["tier"]), fact["parent"].as_u64(), &blocks)
}

#[test]
fn recorded_payloads_say_what_they_are_known_to_say() {
    let frames = frames();
    assert!(frames.len() >= 24, "the fixture lost lines");
    for frame in frames {
        let from = &frame["from"];
        let batch = decoded(&payload(&frame));
        assert_eq!(batch.timestamp_ms, frame["timestamp_ms"].as_u64().unwrap(), "{from}");
        assert_eq!(batch.rank.map(u64::from), frame["rank"].as_u64(), "{from}");
        assert!(!batch.truncated, "{from}");

        let facts = frame["events"].as_array().unwrap();
        let block_size = facts.iter().find_map(|event| event["stored"]["block_size"].as_u64()).unwrap_or(2);
        let mut normaliser = normaliser(u32::try_from(block_size).unwrap());
        let mut events = vec![Event::Cleared(None)];
        normaliser.normalise(&batch, &mut events);
        assert_eq!(events, facts.iter().map(expected).collect::<Vec<_>>(), "{from}");

        let reasons: Vec<_> =
            counted(&normaliser).into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        let known: Vec<_> = frame.get("rejected").and_then(Json::as_object).map_or_else(Vec::new, |map| {
            map.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
        });
        assert_eq!(reasons, known, "{from}");
    }
}
