//! What a card comes down to: a short name for everything of it that routing depends on.

use std::fmt;

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

/// Names the routing facts of a card. Equal facts have equal fingerprints in every frontend and every run: it is
/// XXH3-64 (seed 0) of the facts as JSON without spaces, with the keys of every object sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of facts whose keys are sorted.
    pub(super) fn of(facts: &Value) -> Self {
        Self(xxh3_64(facts.to_string().as_bytes()))
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// `value` with the keys of all its objects sorted.
pub(super) fn canonical(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<_> = object.into_iter().collect();
            entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(entries.into_iter().map(|(key, value)| (key, canonical(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(canonical).collect()),
        plain => plain,
    }
}

/// The paths of the innermost keys at which two objects differ, as in `a.b`, in order.
pub(super) fn differing_paths(one: &Value, other: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    if let (Value::Object(one), Value::Object(other)) = (one, other) {
        compare(one, other, "", &mut paths);
    }
    paths.sort_unstable();
    paths
}

fn compare(one: &Map<String, Value>, other: &Map<String, Value>, above: &str, paths: &mut Vec<String>) {
    let only_other = other.keys().filter(|key| !one.contains_key(*key));
    for key in one.keys().chain(only_other) {
        let path = format!("{above}{key}");
        match (one.get(key), other.get(key)) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                compare(one, other, &format!("{path}."), paths);
            }
            (one, other) if one != other => paths.push(path),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> Value {
        canonical(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn the_order_of_keys_says_nothing() {
        let (one, other) =
            (facts(r#"{"a":{"c":1,"b":[2,3]},"d":null}"#), facts(r#"{"d":null,"a":{"b":[2,3],"c":1}}"#));
        assert_eq!(one.to_string(), r#"{"a":{"b":[2,3],"c":1},"d":null}"#);
        assert_eq!(Fingerprint::of(&one), Fingerprint::of(&other));
        assert_ne!(Fingerprint::of(&one), Fingerprint::of(&facts(r#"{"a":{"b":[3,2],"c":1},"d":null}"#)));
    }

    #[test]
    fn a_fingerprint_is_the_same_everywhere() {
        // Written down so that two versions in one deployment do not silently disagree.
        let fingerprint = Fingerprint::of(&facts(r#"{"block_size":16}"#));
        assert_eq!(fingerprint.to_string(), "00520f9547344e8e");
    }

    #[test]
    fn differences_are_named_by_their_innermost_keys() {
        let one = facts(r#"{"a":1,"b":{"c":1,"d":{"e":1}},"f":[1],"g":0}"#);
        let other = facts(r#"{"a":2,"b":{"c":1,"d":{"e":2,"h":1}},"f":[1,2],"g":0}"#);
        assert_eq!(differing_paths(&one, &other), ["a", "b.d.e", "b.d.h", "f"]);
        assert_eq!(differing_paths(&other, &one), ["a", "b.d.e", "b.d.h", "f"]);
        assert!(differing_paths(&one, &one).is_empty());
    }
}
