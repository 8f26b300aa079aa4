//! What is dropped, and what is kept beside it.

use kvroute::event::Tier;
use rmpv::Value;

use crate::engine::*;

#[test]
fn groups_are_known_by_the_stores_that_named_their_kind() {
    let mut rank = normaliser(2);
    let of_group = |group: i64, kind: Option<&str>| {
        let kind = kind.map(|kind| ("kv_cache_spec_kind", kind.into()));
        [("group_idx", group.into())].into_iter().chain(kind).collect::<Vec<_>>()
    };
    let batch = batch_of([
        remove(&[1], of_group(0, None)),
        remove(&[2], of_group(1, None)),
        store(&[3], None, &[1, 2], of_group(1, Some("mla_attention"))),
        store(&[4], None, &[1, 2], of_group(0, Some("sliding_window"))),
        store(&[5], None, &[1, 2], of_group(2, Some("a_kind_of_tomorrow"))),
        remove(&[3], of_group(1, None)),
        remove(&[4], of_group(0, None)),
        remove(&[6], []),
        store(&[7], None, &[], [("medium", "DISK".into()), ("group_idx", 9.into())]),
    ]);
    assert_eq!(
        feed(&mut rank, &batch),
        [
            removed(Tier::Gpu, &[1]),
            stored(None, &[(3, plain(&[1, 2]))]),
            removed(Tier::Gpu, &[3]),
            removed(Tier::Gpu, &[6]),
            stored_in(Tier::Disk, None, &[(7, None)]),
        ]
    );
    assert_eq!(
        counted(&rank),
        [
            ("non_main_attention_kind", 1),
            ("unknown_kind", 1),
            ("non_main_attention_group", 1),
            ("unlearned_group_idx", 1)
        ]
    );
}

#[test]
fn a_bad_event_costs_itself_only() {
    let bad: Vec<(&str, Value)> = vec![
        ("malformed", Value::Nil),
        ("malformed", 7.into()),
        ("malformed", array([])),
        ("malformed", array([1.into()])),
        ("malformed", map([("block_hashes", numbers(&[1]))])),
        ("malformed", array(["BlockStored".into()])),
        ("malformed", store(&[1], None, &[], [("token_ids", numbers(&[-1]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", numbers(&[1_u64 << 32]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", array([numbers(&[1, 2]), 3.into()]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", array([numbers(&[1, 2, 3])]))])),
        ("malformed", store(&[], None, &[1, 2], [("block_hashes", array([Value::Nil]))])),
        ("malformed", store(&[1], None, &[1, 2], [("lora_name", array([]))])),
        (
            "malformed",
            store(
                &[1],
                None,
                &[1, 2],
                [("block_mm_infos", array([map([("mm_objects", array([map([])]))])]))],
            ),
        ),
        ("short_hash", store(&[], None, &[1, 2], [("block_hashes", array([Value::Binary(vec![1; 7])]))])),
        ("short_hash", store(&[1], None, &[1, 2], [("parent_block_hash", Value::Binary(vec![]))])),
        ("unknown_tag", array(["BlockInactive".into(), 1.into()])),
        ("unknown_tag", map([("block_hashes", "odd".into()), ("type", "BlockInactive".into())])),
        ("ignored_event", array(["Ignored".into()])),
    ];
    for (reason, event) in bad {
        let good = || store(&[8], None, &[1, 2], [("lora_name", "ad1".into())]);
        let payload = batch_of([remove(&[5], []), event.clone(), good()]);
        let survivors =
            vec![removed(Tier::Gpu, &[5]), stored(None, &[(8, content(&[1, 2], Some("ad1"), None, &[]))])];
        assert_eq!(read(&payload), (survivors, vec![(reason, 1)]), "{event}");
        assert_eq!(decoded(&payload).rank, Some(0), "{event}");
    }
}

/// What a removal that nobody understands took away is still in the index: whoever applies the batch must be told.
#[test]
fn a_batch_says_whether_blocks_went_that_nobody_can_name() {
    let short = || array([2.into(), Value::Binary(vec![1; 7])]);
    let cleared = |more: (&'static str, Value)| map([("type", "AllBlocksCleared".into()), more]);
    for (lost, event) in [
        (true, remove(&[], [("block_hashes", short())])),
        (true, remove(&[], [("block_hashes", array([1.into(), Value::Nil]))])),
        (true, remove(&[1], [("block_hashes", Value::Nil)])),
        (true, array(["BlockRemoved".into(), true.into()])),
        (true, array(["BlockRemoved".into()])),
        (true, remove(&[1], [("medium", 7.into())])),
        (true, remove(&[1], [("locality", array([]))])),
        (true, array(["AllBlocksCleared".into(), "someone".into()])),
        (true, cleared(("medium", 7.into()))),
        // Of caches that the index holds nothing of.
        (false, remove(&[1], [("medium", "TAPE".into())])),
        (false, remove(&[1], [("ownership", "someone".into())])),
        (false, remove(&[1], [("locality", "REMOTE".into())])),
        (false, remove(&[1], [("group_idx", 3.into())])),
        (false, array(["AllBlocksCleared".into(), "kvcr".into()])),
        (false, cleared(("medium", "TAPE".into()))),
        // They take nothing away, as far as anybody knows.
        (false, store(&[], None, &[1, 2], [("block_hashes", short())])),
        (false, store(&[1], None, &[1, 2], [("medium", 7.into())])),
        (false, array(["BlockInactive".into(), short()])),
        (false, remove(&[1], [("medium", Value::Nil)])),
        (false, remove(&[1], [("remaining_copy_counts", "odd".into())])),
    ] {
        let payload = batch_of([remove(&[5], []), event.clone(), store(&[8], None, &[1, 2], [])]);
        assert_eq!(decoded(&payload).lost_removal, lost, "{event}");
    }
}

#[test]
fn each_reason_to_drop_a_readable_event_is_counted() {
    let dropped: Vec<(&str, Value)> = vec![
        ("unsupported_ownership", store(&[1], None, &[1, 2], [("ownership", "kvcr".into())])),
        ("unknown_ownership", remove(&[1], [("ownership", "someone".into())])),
        ("unknown_ownership", array(["AllBlocksCleared".into(), "someone".into()])),
        ("non_local_locality", store(&[1], None, &[1, 2], [("locality", "REMOTE".into())])),
        ("non_local_locality", remove(&[1], [("locality", 7.into())])),
        ("unknown_medium", store(&[1], None, &[1, 2], [("medium", "TAPE".into())])),
        ("unknown_medium", remove(&[1], [("medium", 7.into())])),
        ("unknown_medium", map([("type", "AllBlocksCleared".into()), ("medium", "TAPE".into())])),
        ("non_main_attention_kind", store(&[1], None, &[1, 2], [("kv_cache_spec_kind", "mamba".into())])),
        ("unknown_kind", store(&[1], None, &[1, 2], [("kv_cache_spec_kind", "other".into())])),
        ("unknown_kind", array(["BlockRemoved".into(), numbers(&[1_u64]), "GPU".into(), 0.into(), 5.into()])),
        ("unlearned_group_idx", remove(&[1], [("group_idx", 3.into())])),
        ("empty_store", store(&[], None, &[1, 2], [])),
        ("repeated_block", store(&[1, 2, 1], None, &[1, 2, 3, 4, 5, 6], [])),
        ("repeated_block", store(&[1, 2], Some(2), &[1, 2, 3, 4], [])),
        ("unnamed_lora", store(&[1], None, &[1, 2], [("lora_id", 1.into())])),
        ("block_size_mismatch", store(&[1], None, &[1, 2], [("block_size", 4.into())])),
        ("block_size_mismatch", store(&[1], None, &[1, 2], [("block_size", Value::Nil)])),
        ("tokens_run_out", store(&[1], None, &[1], [])),
        ("tokens_run_out", store(&[1], None, &[], [])),
    ];
    for (reason, event) in dropped {
        assert_eq!(read(&batch_of([event.clone()])), (vec![], vec![(reason, 1)]), "{event}");
    }
}

#[test]
fn blocks_before_the_tokens_run_out_are_kept() {
    let event = store(&[1, 2, 3], None, &[1, 2, 3, 4, 5], []);
    let kept = stored(None, &[(1, plain(&[1, 2])), (2, plain(&[3, 4]))]);
    assert_eq!(read(&batch_of([event])), (vec![kept], vec![("tokens_run_out", 1)]));
}
