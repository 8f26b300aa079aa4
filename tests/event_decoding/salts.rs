//! Which salt a block is cached under.

use kvroute::event::Event;
use rmpv::Value;

use crate::engine::*;

#[test]
fn a_chain_told_over_several_batches_keeps_the_salt_it_began_with() {
    let mut rank = normaliser(2);
    let salted = |tokens: &[u32]| content(tokens, None, Some("s1"), &[]);
    let head =
        store(&[1, 2], None, &[1, 2, 3, 4], [("extra_keys", array([array(["s1".into()]), Value::Nil]))]);
    let head = feed(&mut rank, &batch_of([head]));
    assert_eq!(head, [stored(None, &[(1, salted(&[1, 2])), (2, salted(&[3, 4]))])]);
    let child =
        feed(&mut rank, &batch_of([store(&[3], Some(2), &[5, 6], [("extra_keys", array([Value::Nil]))])]));
    assert_eq!(child, [stored(Some(2), &[(3, salted(&[5, 6]))])]);
    assert_eq!(rank.salted_blocks(), 3);

    rank.reset();
    let child = feed(&mut rank, &batch_of([store(&[4], Some(2), &[5, 6], [])]));
    assert_eq!(
        child,
        [stored(Some(2), &[(4, plain(&[5, 6]))])],
        "a new incarnation knows nothing of the old"
    );
}

#[test]
fn copies_that_are_told_again_from_the_start_are_counted_once() {
    let mut rank = normaliser(2);
    let head = batch_of([store(&[1], None, &[1, 2], [("cache_salt", "s1".into())])]);
    feed(&mut rank, &head);
    rank.forget_blocks();
    feed(&mut rank, &head);
    feed(&mut rank, &batch_of([remove(&[1], [])]));
    assert_eq!(rank.salted_blocks(), 0);
}

#[test]
fn salts_are_found_where_each_engine_puts_them() {
    let of = |lora: Option<&str>, salt: Option<&str>, objects: [&[u64]; 2]| {
        let block = |at: usize, tokens: &[u32]| content(tokens, lora, salt, objects[at]);
        vec![stored(None, &[(1, block(0, &[1, 2])), (2, block(1, &[3, 4]))])]
    };
    let salted = |lora| of(lora, Some("s"), [&[], &[]]);
    let keys = |first: &[Value], second: &[Value]| {
        ("extra_keys", array([array(first.to_vec()), array(second.to_vec())]))
    };
    let text = |text: &str| Value::from(text);
    let router = format!("0123456789abcdef{}", "0".repeat(48));
    let digest = "ab".repeat(32);
    let image = || array([text("image"), (-3).into()]);
    let lora = ("lora_name", text("ad1"));
    type Case<'a> = (&'a str, Vec<(&'a str, Value)>, Vec<Event>);
    let cases: Vec<Case<'_>> = vec![
        ("field", vec![("cache_salt", text("s"))], salted(None)),
        ("field and key", vec![("cache_salt", text("s")), keys(&[text("s")], &[])], salted(None)),
        ("empty field", vec![("cache_salt", text(""))], of(None, None, [&[], &[]])),
        ("marked", vec![keys(&[text("dynamo-cache-salt:s")], &[])], salted(None)),
        ("native", vec![keys(&[text("s")], &[])], salted(None)),
        ("key alone", vec![("extra_keys", array([text("s"), Value::Nil]))], salted(None)),
        (
            "adapter",
            vec![lora.clone(), keys(&[text("ad1")], &[text("ad1")])],
            of(Some("ad1"), None, [&[], &[]]),
        ),
        (
            "adapter, native",
            vec![lora.clone(), keys(&[text("ad1"), text("s")], &[text("ad1")])],
            salted(Some("ad1")),
        ),
        (
            "salt named as the adapter",
            vec![lora, keys(&[text("ad1"), text("ad1")], &[text("ad1")])],
            of(Some("ad1"), Some("ad1"), [&[], &[]]),
        ),
        (
            "image, native",
            vec![keys(&[image(), text("s")], &[])],
            of(None, Some("s"), [&[identifier("image")], &[]]),
        ),
        ("images only", vec![keys(&[image()], &[image()])], of(None, None, [&[identifier("image")]; 2])),
        (
            "an image without offset that spans blocks",
            vec![keys(&[text("i")], &[text("i")])],
            of(None, None, [&[identifier("i")]; 2]),
        ),
        (
            "an image without offset, native",
            vec![keys(&[text("i"), text("s")], &[text("i")])],
            of(None, Some("s"), [&[identifier("i")]; 2]),
        ),
        (
            "the router's own form",
            vec![keys(&[text(&router)], &[])],
            of(None, None, [&[0x0123_4567_89ab_cdef], &[]]),
        ),
        ("a digest as salt", vec![keys(&[text(&digest)], &[])], of(None, Some(&digest), [&[], &[]])),
        (
            "objects told by hash",
            vec![
                keys(&[image(), text("s")], &[]),
                (
                    "block_mm_infos",
                    array([map([("mm_objects", array([map([("mm_hash", 9.into())])]))]), Value::Nil]),
                ),
            ],
            of(None, Some("s"), [&[9], &[]]),
        ),
        (
            "embeddings",
            vec![keys(&[text("s"), Value::Binary(vec![1, 2])], &[Value::Binary(vec![3])])],
            of(None, Some("s"), [&[0x0102], &[3]]),
        ),
        (
            "keys that nobody knows",
            vec![keys(&[7.into(), Value::F64(1.0), true.into(), array([array([])]), Value::Nil], &[])],
            of(None, None, [&[], &[]]),
        ),
    ];
    for (name, more, expected) in cases {
        let event = store(&[1, 2], None, &[1, 2, 3, 4], more);
        assert_eq!(read(&batch_of([event])), (expected, vec![]), "{name}");
    }
}

#[test]
fn a_text_below_a_parent_is_an_object_and_not_a_salt() {
    let event = store(&[2], Some(1), &[1, 2], [("extra_keys", array([array(["image".into()])]))]);
    let expected = stored(Some(1), &[(2, content(&[1, 2], None, None, &[identifier("image")]))]);
    assert_eq!(read(&batch_of([event])), (vec![expected], vec![]));
}

#[test]
fn a_salt_is_known_until_the_last_copy_of_its_block_is_removed() {
    let mut rank = normaliser(2);
    let head = || store(&[1], None, &[1, 2], [("cache_salt", "s".into())]);
    let gone = || remove(&[1], []);
    let child = |hash| store(&[hash], Some(1), &[3, 4], []);
    let under = |hash, salt| stored(Some(1), &[(hash, content(&[3, 4], None, salt, &[]))]);
    let events = feed(&mut rank, &batch_of([head(), head(), gone(), child(2), gone(), child(3)]));
    assert_eq!(events[3], under(2, Some("s")));
    assert_eq!(events[5], under(3, None));
}

#[test]
fn a_salt_too_large_to_remember_is_used_and_counted() {
    let huge = "x".repeat(64 << 20);
    let mut rank = normaliser(2);
    let event = store(&[1], None, &[1, 2], [("cache_salt", huge.as_str().into())]);
    let expected = stored(None, &[(1, content(&[1, 2], None, Some(&huge), &[]))]);
    assert_eq!(feed(&mut rank, &batch_of([event])), [expected]);
    assert_eq!((counted(&rank), rank.salted_blocks()), (vec![("salt_memory_full", 1)], 0));
}

#[test]
fn a_block_cached_under_two_salts_has_no_unsalted_children() {
    let mut rank = normaliser(2);
    let salt = |salt: &str| [("cache_salt", Value::from(salt))];
    feed(
        &mut rank,
        &batch_of([store(&[1], None, &[1, 2], salt("s")), store(&[1], None, &[1, 2], salt("t"))]),
    );
    let child = || store(&[2], Some(1), &[3, 4], []);
    assert_eq!(feed(&mut rank, &batch_of([child()])), []);
    assert_eq!(counted(&rank), [("ambiguous_cache_namespace", 1)]);
    let own = feed(&mut rank, &batch_of([store(&[2], Some(1), &[3, 4], salt("s"))]));
    assert_eq!(own, [stored(Some(1), &[(2, content(&[3, 4], None, Some("s"), &[]))])]);

    let gone = feed(&mut rank, &batch_of([array(["AllBlocksCleared".into()]), child()]));
    assert_eq!(gone, [Event::Cleared(None), stored(Some(1), &[(2, plain(&[3, 4]))])]);
}
