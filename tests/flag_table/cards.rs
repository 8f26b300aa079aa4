//! What a card says with the keys of the flags is judged like the flags.

use kvroute::{
    config::flags::{Group, Kind, Row, TABLE},
    fleet::{DeviceWeights, RouterConfig},
};
use serde_json::{Value as Json, json};

/// What a card with these flags' keys is refused with; none if no card can say them.
pub(crate) fn refusal(words: &[&str]) -> Option<String> {
    let mut card = json!({ "router_mode": "k_v", "kv_router_config": {}, "load_threshold_config": {} });
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").unwrap();
        let row = TABLE.iter().find(|row| row.spellings().any(|spelling| spelling == name)).unwrap();
        let value = if matches!(row.kind, Kind::Switch { .. }) {
            json!(!name.starts_with("no-"))
        } else {
            value(row, words.next().unwrap())?
        };
        // One key stands for several there.
        let key = row.key.filter(|_| row.flag != "router-conditional-disagg-config")?;
        match row.group {
            Group::Router => card[key] = value,
            Group::Threshold => card["load_threshold_config"][key] = value,
            Group::Kv => card["kv_router_config"][key] = value,
            Group::Devices => card["device_weights"][key] = value,
            Group::Card | Group::FrontendOnly => return None,
        }
    }
    // They stand beside the configuration, not in it.
    if !card["device_weights"].is_null() {
        let weights = serde_json::from_value::<DeviceWeights>(card["device_weights"].take());
        return Some(
            weights.map(|read| panic!("it reads as {read:?}")).unwrap_or_else(|error| error.to_string()),
        );
    }
    let read = serde_json::from_value::<RouterConfig>(card.clone());
    Some(read.map(|config| panic!("{card} reads as {config:?}")).unwrap_or_else(|error| error.to_string()))
}

/// JSON has no nan and no infinity, and keys of whole numbers take none below 0 anyway.
fn value(row: &Row, text: &str) -> Option<Json> {
    match row.kind {
        Kind::Number { .. } => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Json::from),
        Kind::Whole { .. } => text.parse::<u64>().ok().map(Json::from),
        // Old spellings are for flags; a card's own is the old one.
        _ => Some(json!(text)),
    }
}

/// An error's text as a card words it: by its keys, and with its own spellings of the modes.
pub(crate) fn as_worded_there(text: &str) -> String {
    let text = text.split(';').next().unwrap_or(text);
    let Some((flag, rest)) = text.strip_prefix("--").and_then(|text| text.split_once(' ')) else {
        return text.to_owned();
    };
    let row = TABLE.iter().find(|row| row.flag == flag).unwrap();
    format!("{} {rest}", row.key.unwrap_or(flag))
}

#[test]
fn every_range_of_a_key_holds_on_a_card() {
    for row in &TABLE {
        // What stands beside the configuration is judged with the rest of a worker's description.
        let Some(key) = row.key.filter(|_| row.group != Group::Card) else { continue };
        let (Kind::Number { range, .. } | Kind::Whole { range, .. }) = row.kind else { continue };
        for bad in ["-0.5", "0", "1.5", "31536001"] {
            let problem = row.read(bad, false);
            let flag = format!("--{}", row.flag);
            // What the flag takes, or is no number of the key's kind, is none of this.
            let (Err(problem), true) = (problem, value(row, bad).is_some()) else { continue };
            let refusal = refusal(&[&flag, bad]).unwrap();
            assert!(refusal.contains(&problem), "{key} = {bad} ({}): {refusal}", range.words());
        }
    }
}
