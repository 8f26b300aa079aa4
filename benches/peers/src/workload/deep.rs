//! Workload V: very long conversations with a fork every few blocks.

use fastrand::Rng;

use super::{Block, Segment, Workload, builder::Builder, text::names};

const BLOCK_SIZE: u32 = 16;
const TRUNKS: u64 = 6;
const TRUNK_BLOCKS: u32 = 131_072 / BLOCK_SIZE;
/// Blocks from one fork to the next, and blocks of a fork.
const STEP: u32 = 16;
/// Blocks in one store of a trunk.
const PIECE: usize = 512;
/// Of the forks of the worker that holds a whole trunk, one of so many is looked up.
const LOOKED_UP: u32 = 8;
const UNSEEN_BLOCKS: u32 = 64;
const LOOKUPS: usize = 600;

/// Six trunks of 128k tokens, each held by four workers (by the first to its end, by the others to five, six and seven
/// eighths of it), and on each worker a fork of 16 blocks after every 16 blocks.
pub(super) fn forks(letter: char, workers: u32) -> Workload {
    let mut out = Builder::new(letter, "128k-token trunks with forks", workers, BLOCK_SIZE);
    let mut rng = Rng::with_seed(13);
    let mut resident = 0;
    for trunk in 0..TRUNKS {
        let trunk = Segment { seed: trunk + 1, blocks: TRUNK_BLOCKS };
        let homes = rng.choose_multiple(0..workers, 4);
        for (worker, eighths) in homes.into_iter().zip([8, 5, 6, 7]) {
            let mut home = Home { out: &mut out, rng: &mut rng, worker, trunk };
            resident += home.grow(TRUNK_BLOCKS * eighths / 8, eighths == 8);
        }
        for _ in 0..8 {
            out.prompt(&[trunk]);
        }
    }
    out.finish_with_picks(LOOKUPS, &mut rng, resident)
}

/// A worker that holds a trunk.
struct Home<'a> {
    out: &'a mut Builder,
    rng: &'a mut Rng,
    worker: u32,
    trunk: Segment,
}

impl Home<'_> {
    /// Stores `blocks` of the trunk and the forks from them; says how many blocks these are together.
    fn grow(&mut self, blocks: u32, looked_up: bool) -> usize {
        let contents = self.out.hashes(&[Segment { blocks, ..self.trunk }]);
        let names = names(None, &contents);
        let chain: Vec<Block> =
            names.into_iter().zip(contents).map(|(name, content)| Block { name, content }).collect();
        let mut parent = None;
        for piece in chain.chunks(PIECE) {
            self.out.stored(self.worker, parent, piece.iter().copied());
            parent = piece.last().map(|block| block.name);
        }
        let mut forks = 0;
        for at in (STEP..blocks).step_by(STEP as usize) {
            self.fork(chain[at as usize - 1].name, at, looked_up && at % (STEP * LOOKED_UP) == 0);
            forks += STEP as usize;
        }
        chain.len() + forks
    }

    fn fork(&mut self, parent: u64, at: u32, looked_up: bool) {
        let fork = Segment { seed: self.rng.u64(..), blocks: STEP };
        let contents = self.out.hashes(&[fork]);
        let names = names(Some(parent), &contents);
        let blocks = names.into_iter().zip(contents).map(|(name, content)| Block { name, content });
        self.out.stored(self.worker, Some(parent), blocks);
        if looked_up {
            let unseen = Segment { seed: self.rng.u64(..), blocks: UNSEEN_BLOCKS };
            self.out.prompt(&[Segment { blocks: at, ..self.trunk }, fork, unseen]);
        }
    }
}
