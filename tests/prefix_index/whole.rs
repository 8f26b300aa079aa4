//! The index as a whole.

use super::*;

#[test]
fn memory_follows_what_is_held() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(5));
    f.store(B, None, &[(21, 1), (22, 9)]);
    f.remove(A, &[13]);
    assert_eq!(f.totals().places, 6, "the hole keeps its place: blocks hang below it");
    f.remove(A, &[14, 15]);
    assert_eq!(f.totals().places, 3);
    f.remove(A, &[11]);
    assert_eq!(f.totals().places, 3, "12 is still held, 11 by the other slot");
    f.remove(A, &[12]);
    f.remove(B, &[21]);
    assert_eq!(f.totals().places, 2);
    f.remove(B, &[22]);
    f.assert_empty();
}

#[test]
fn shards_answer_together_and_know_only_their_own_names() {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::new(2).unwrap());
    let (even, odd) = (Slot { index: 4, generation: 0 }, Slot { index: 9, generation: 0 });
    writers[0].apply(even, &stored(Tier::Gpu, None, &chain(2)));
    let orphan = writers[1].apply(odd, &stored(Tier::Gpu, Some(11), &[(12, 2)]));
    assert_eq!(orphan, Applied { pending: 1, ..NOTHING });
    writers[1].apply(odd, &stored(Tier::Gpu, None, &chain(1)));
    let mut scratch = Scratch::new();
    let overlaps = index.clone().overlap(&[BlockHash(1), BlockHash(2)], &mut scratch);
    assert_eq!((overlaps.of(even).gpu, overlaps.of(odd).gpu), (2, 2));
    assert_eq!((index.blocks(even), index.blocks(odd)), ([2, 0, 0, 0], [2, 0, 0, 0]));
    assert_eq!(index.totals().places, 4, "each shard has its own tree");
}

#[test]
fn lookups_from_other_threads_see_whole_events() {
    fn assert_shared<T: Clone + Send + Sync>(_: &T) {}
    fn assert_send<T: Send>(_: &T) {}
    let mut f = Fixture::new();
    assert_shared(&f.index);
    assert_send(&f.writer);
    let prompt: Vec<_> = (1..=8).map(BlockHash).collect();
    let index = f.index.clone();
    let mut scratch = Scratch::new();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            for _ in 0..500 {
                f.store(A, None, &chain(8));
                f.clear(A, None);
            }
        });
        while !writer.is_finished() {
            let gpu = index.overlap(&prompt, &mut scratch).of(A).gpu;
            assert!(gpu == 0 || gpu == 8, "{gpu} blocks of an event of 8");
        }
        // ThreadSanitizer knows that a thread is over from this, and not from the scope's end.
        writer.join().unwrap();
    });
}

#[test]
fn counts_of_events_add_up() {
    let mut sum = Applied { stored: 2, moved: 1, ..NOTHING };
    sum += Applied { stored: 3, stale: true, ..NOTHING };
    assert_eq!(sum, Applied { stored: 5, moved: 1, stale: true, ..NOTHING });
}
