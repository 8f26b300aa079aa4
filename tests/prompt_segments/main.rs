//! The tokens of a prompt are the same whether they are made afresh or put together from a cache, for tokenizers and
//! templates of every common shape and for any text.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod families;

use std::sync::LazyLock;

use kvroute::prompt::{ChatInput, Encoded, Encoder, SegmentCache};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{TestCaseError, TestRunner},
};
use serde_json::{Value, json};

use crate::families::Family;

static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(families::all);

/// Runs `body` on random inputs for each family; names the family that fails.
fn for_each_family<S: Strategy>(
    cases: u32,
    input: impl Fn(&Family) -> S,
    body: impl Fn(&Family, S::Value) -> Result<(), TestCaseError>,
) {
    for family in &*FAMILIES {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let run = TestRunner::new(config).run(&input(family), |input| body(family, input));
        run.unwrap_or_else(|failure| panic!("{}: {failure}", family.name));
    }
}

/// Texts with what tokenizers and templates may stumble over.
fn text(family: &Family) -> impl Strategy<Value = String> + use<> {
    let words =
        ["hello", "Hello", "the begin", "user", "rain", " to", "it's", "1234567", "abcd", "x", "</S>"];
    let spaces =
        [" ", "  ", "    ", "\n", "\n\n", "\r\n", " \n ", "\t", "\u{a0}", "\u{3000}", "\u{200b}", "▁"];
    let others = ["é", "e\u{301}", "\u{301}", "日本語", "ﬁ", "İ", "👩‍👩‍👧", "\u{0}", "…", "_", "-"];
    let broken = ["<|", "|>", "<|im_", "<s", "<", ">", "[", "INST]", "<|user", "<|im_start", "｜", "<｜"];
    let specials = family.specials.clone();
    let fragment = prop_oneof![
        4 => select(words.to_vec()).prop_map(str::to_owned),
        4 => select(spaces.to_vec()).prop_map(str::to_owned),
        2 => select(others.to_vec()).prop_map(str::to_owned),
        2 => select(broken.to_vec()).prop_map(str::to_owned),
        3 => select(specials),
        1 => vec(any::<char>(), 1..4).prop_map(|characters| characters.into_iter().collect()),
    ];
    vec(fragment, 0..10).prop_map(|fragments| fragments.concat())
}

/// Conversations, by turns, with or without a system message.
fn conversation(family: &Family) -> impl Strategy<Value = Vec<Value>> + use<> {
    let (system, turns) = (proptest::option::of(text(family)), vec(text(family), 1..6));
    (system, turns).prop_map(|(system, turns)| {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let roles = ["user", "assistant"].into_iter().cycle();
        let turns = turns.into_iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text}));
        system.into_iter().chain(turns).collect()
    })
}

fn cached_chat(encoder: &Encoder, input: &ChatInput<'_>, cache: &SegmentCache) -> Encoded {
    let draft = encoder.draft_chat(input, cache).unwrap();
    encoder.finish(draft, cache, &|| false).unwrap().unwrap()
}

fn cached_text(encoder: &Encoder, text: &str, special: bool, cache: &SegmentCache) -> Encoded {
    let draft = encoder.draft_text(text.to_owned(), special, cache);
    encoder.finish(draft, cache, &|| false).unwrap().unwrap()
}

/// One with room, one that drops nearly all, one that keeps nothing; for all families at once.
fn caches() -> [SegmentCache; 3] {
    [4 << 20, 600, 0].map(SegmentCache::new)
}

#[test]
fn every_turn_of_a_conversation_has_the_tokens_that_it_has_afresh() {
    let caches = caches();
    for_each_family(48, conversation, |family, messages| {
        for turn in 1..=messages.len() {
            let messages = json!(messages[..turn]);
            for add_special_tokens in [false, true] {
                let input = ChatInput { add_special_tokens, ..ChatInput::new(&messages) };
                let fresh = family.encoder.encode_chat(&input).unwrap();
                for cache in &caches {
                    prop_assert_eq!(&cached_chat(&family.encoder, &input, cache), &fresh);
                }
            }
        }
        Ok(())
    });
    let [roomy, narrow, off] = &caches;
    let (found, made) = (roomy.cached_bytes(), roomy.tokenised_bytes());
    assert!(found > 2 * made, "{found} bytes found, {made} tokenised");
    assert!(narrow.evictions() > 1000 && narrow.bytes() <= 600);
    assert_eq!((off.cached_bytes(), off.segments()), (0, 0));
}

#[test]
fn every_text_has_the_tokens_that_it_has_afresh() {
    let caches = caches();
    for_each_family(192, text, |family, text| {
        for special in [false, true] {
            let fresh = family.encoder.encode_text(&text, special).unwrap();
            for cache in &caches {
                // Made, then found.
                for _ in 0..2 {
                    prop_assert_eq!(&cached_text(&family.encoder, &text, special, cache), &fresh);
                }
            }
        }
        Ok(())
    });
}

/// What the same text is in another place: at the beginning, behind a token, behind other text.
#[test]
fn a_segment_is_not_taken_for_the_same_text_at_the_beginning() {
    for family in &*FAMILIES {
        let cache = SegmentCache::new(1 << 20);
        for special in ["", family.specials[0].as_str(), family.specials[1].as_str()] {
            for text in ["rain", " rain", "rain rain", "\nrain"] {
                let text = format!("{special}{text}");
                let fresh = family.encoder.encode_text(&text, false).unwrap();
                assert_eq!(
                    cached_text(&family.encoder, &text, false, &cache),
                    fresh,
                    "{} {text:?}",
                    family.name
                );
            }
        }
    }
}

#[test]
fn a_prompt_that_goes_on_with_an_image_has_the_tokens_that_it_has_afresh() {
    let caches = caches();
    let turns = |family: &Family| (conversation(family), text(family), text(family));
    for_each_family(48, turns, |family, (mut messages, before, after)| {
        messages.push(json!({"role": "user", "content": [
            {"type": "text", "text": before},
            {"type": "image_url", "image_url": {"url": "data:,"}},
            {"type": "text", "text": after},
        ]}));
        let messages = json!(messages);
        for add_special_tokens in [false, true] {
            let input = ChatInput { add_special_tokens, ..ChatInput::new(&messages) };
            let fresh = family.encoder.encode_chat(&input).unwrap();
            prop_assert!(!fresh.complete);
            for cache in &caches {
                let cached = cached_chat(&family.encoder, &input, cache);
                // A token that takes whitespace along ends behind it or before it, as one sees it.
                if family.strips {
                    prop_assert!(fresh.tokens.starts_with(&cached.tokens) && !cached.complete);
                    prop_assert!(cached.tokens.len() + 1 >= fresh.tokens.len());
                } else {
                    prop_assert_eq!(&cached, &fresh);
                }
            }
        }
        Ok(())
    });
}

#[test]
fn of_a_conversation_only_its_last_turn_is_tokenised() {
    for family in FAMILIES.iter().filter(|family| family.cuts) {
        let cache = SegmentCache::new(4 << 20);
        let mut messages = Vec::new();
        for turn in 0..6 {
            let said = format!("turn {turn}: {}", "some words of it ".repeat(20));
            // Together, since not every template closes what a user says.
            for role in ["user", "assistant"] {
                messages.push(json!({"role": role, "content": said}));
            }
            let messages = json!(messages);
            let input = ChatInput::new(&messages);
            let draft = family.encoder.draft_chat(&input, &cache).unwrap();
            // The template's own words are new in the first turns.
            let open = draft.open_bytes();
            assert!(open < 2 * said.len() + 80, "{}: {open} bytes of turn {turn}", family.name);
            family.encoder.finish(draft, &cache, &|| false).unwrap().unwrap();
            let again = family.encoder.draft_chat(&input, &cache).unwrap();
            assert_eq!(again.open_bytes(), 0, "{}", family.name);
        }
        assert_eq!(cache.evictions(), 0);
    }
}

#[test]
fn tokenising_is_given_up_between_segments() {
    let family = &FAMILIES[0];
    let cache = SegmentCache::new(1 << 20);
    let messages = json!([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]);
    let draft = || family.encoder.draft_chat(&ChatInput::new(&messages), &cache).unwrap();
    assert_eq!(family.encoder.finish(draft(), &cache, &|| true).unwrap(), None);
    assert_eq!(cache.segments(), 0);
    let asked = std::cell::Cell::new(0);
    let later = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    assert_eq!(family.encoder.finish(draft(), &cache, &later).unwrap(), None);
    assert!(cache.segments() > 0, "what was made stays");
}

#[test]
fn a_cache_stays_within_its_bytes() {
    let family = &FAMILIES[0];
    let cache = SegmentCache::new(10_000);
    for number in 0..500 {
        let text = format!("<|im_start|>{number} {}<|im_end|>", "word ".repeat(number % 90));
        cached_text(&family.encoder, &text, false, &cache);
        assert!(cache.bytes() <= 10_000, "{}", cache.bytes());
    }
    assert!(cache.segments() > 10 && cache.evictions() > 100);
}
