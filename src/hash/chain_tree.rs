//! Chains of blocks that share their beginnings, held once.
//!
//! A tree whose nodes are runs of blocks: a chain is the way from a root to a node's last block. Two chains part where a run
//! ends, so a run is cut in two where one parts from the middle of it, or ends there. A long chain that nobody else
//! shares is one node, and costs as much as a short one but for the copy.
//!
//! A block is named by all that stands before it: where two chains have the same name at the same place, they are the same
//! up to there. So how far a chain goes along a run is found by halving. Names that collide make two chains look alike for
//! longer than they are, and nothing worse: what belongs to whom goes by nodes.

use ahash::AHashMap;

use super::SequenceHash;

/// Chains, with a `T` for each run of them.
#[derive(Debug)]
pub(crate) struct ChainTree<T> {
    nodes: Vec<Node<T>>,
    /// Places of `nodes` that are free. Their runs are empty and keep their memory for those that come, so that a tree which has
    /// been as large as it gets allocates nothing.
    free: Vec<u32>,
    /// By the node before, if any, and the first block.
    after: AHashMap<(Option<ChainEnd>, SequenceHash), ChainEnd>,
}

/// Where a chain ends: a node's last block. It stays valid until the node is removed, whatever is cut before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ChainEnd(u32);

#[derive(Debug)]
struct Node<T> {
    parent: Option<ChainEnd>,
    /// Empty where the place is free.
    run: Vec<SequenceHash>,
    value: T,
}

/// How far a chain goes along what is there.
#[derive(Clone, Copy)]
struct Reach {
    /// Blocks in all.
    blocks: usize,
    /// The last node, if any, and how many blocks of its run.
    last: Option<(ChainEnd, usize)>,
}

impl<T> Default for ChainTree<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), after: AHashMap::new() }
    }
}

impl<T> ChainTree<T> {
    /// How many runs there are.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn runs(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// How many leading blocks of `chain` are there, and the value of the last of them.
    pub(crate) fn find(&self, chain: &[SequenceHash]) -> (usize, Option<&T>) {
        let Reach { blocks, last } = self.reach(chain);
        (blocks, last.and_then(|(end, _)| self.get(end)))
    }

    /// The value of the run that ends at `end`; `None` if there is none any more.
    pub(crate) fn get(&self, end: ChainEnd) -> Option<&T> {
        self.node(end).map(|node| &node.value)
    }

    pub(crate) fn get_mut(&mut self, end: ChainEnd) -> Option<&mut T> {
        self.node_mut(end).map(|node| &mut node.value)
    }

    /// Where the run before the one that ends at `end` ends.
    pub(crate) fn before(&self, end: ChainEnd) -> Option<ChainEnd> {
        self.node(end)?.parent
    }

    /// All blocks up to `end`, first block first.
    pub(crate) fn chain(&self, end: ChainEnd) -> Vec<SequenceHash> {
        let runs = std::iter::successors(self.node(end), |node| self.node(node.parent?));
        let mut chain: Vec<_> = runs.flat_map(|node| node.run.iter().rev().copied()).collect();
        chain.reverse();
        chain
    }

    /// Takes the last `count` blocks from the run that ends at `end`, the last of all first, or as many as it has. The run must
    /// be the last of its chains: nothing may come after it. Returns whether it is gone.
    pub(crate) fn shorten(
        &mut self,
        end: ChainEnd,
        count: usize,
        mut gone: impl FnMut(SequenceHash),
    ) -> bool {
        let Some(node) = self.node_mut(end) else { return true };
        let left = node.run.len().saturating_sub(count);
        node.run[left..].iter().rev().copied().for_each(&mut gone);
        let key = (node.parent, node.run[0]);
        node.run.truncate(left);
        if left > 0 {
            return false;
        }
        self.after.remove(&key);
        self.free.push(end.0);
        true
    }

    fn node(&self, end: ChainEnd) -> Option<&Node<T>> {
        self.nodes.get(end.0 as usize).filter(|node| !node.run.is_empty())
    }

    fn node_mut(&mut self, end: ChainEnd) -> Option<&mut Node<T>> {
        self.nodes.get_mut(end.0 as usize).filter(|node| !node.run.is_empty())
    }

    fn reach(&self, chain: &[SequenceHash]) -> Reach {
        let mut reach = Reach { blocks: 0, last: None };
        loop {
            let rest = &chain[reach.blocks..];
            let before = reach.last.map(|(end, _)| end);
            let next = rest.first().and_then(|&first| self.after.get(&(before, first)));
            let Some((&end, node)) = next.and_then(|end| Some((end, self.node(*end)?))) else { return reach };
            let along = shared(&node.run, rest);
            reach.blocks += along;
            reach.last = Some((end, along));
            if along < node.run.len() {
                return reach;
            }
        }
    }
}

impl<T: Clone + Default> ChainTree<T> {
    /// Puts `chain`, which is not empty, among the others, and has `each` see the value of every run of it, the last first:
    /// the default of those that are new. Returns how many leading blocks were there before, and where it ends.
    pub(crate) fn enter(
        &mut self,
        chain: &[SequenceHash],
        mut each: impl FnMut(&mut T),
    ) -> (usize, ChainEnd) {
        let Reach { blocks, last } = self.reach(chain);
        let end = match last.map(|(end, along)| self.cut(end, along)) {
            Some(end) if blocks == chain.len() => end,
            before => self.append(before, &chain[blocks..]),
        };
        let mut next = Some(end);
        while let Some(node) = next.and_then(|end| self.node_mut(end)) {
            each(&mut node.value);
            next = node.parent;
        }
        (blocks, end)
    }

    /// Makes the first `along` blocks of a run one of their own, and says where it ends. The rest keeps its end.
    fn cut(&mut self, end: ChainEnd, along: usize) -> ChainEnd {
        let Some(rest) = self.node(end).and_then(|node| node.run.len().checked_sub(along)) else {
            return end;
        };
        if rest == 0 {
            return end;
        }
        let cut = self.place(rest);
        let mut run = std::mem::take(&mut self.nodes[cut.0 as usize].run);
        let node = &mut self.nodes[end.0 as usize];
        run.extend_from_slice(&node.run[along..]);
        node.run.truncate(along);
        let second = run[0];
        let head = Node {
            parent: node.parent.replace(cut),
            run: std::mem::replace(&mut node.run, run),
            value: node.value.clone(),
        };
        self.after.insert((head.parent, head.run[0]), cut);
        self.after.insert((Some(cut), second), end);
        self.nodes[cut.0 as usize] = head;
        cut
    }

    fn append(&mut self, parent: Option<ChainEnd>, run: &[SequenceHash]) -> ChainEnd {
        let end = self.place(run.len());
        let node = &mut self.nodes[end.0 as usize];
        node.parent = parent;
        node.run.extend_from_slice(run);
        node.value = T::default();
        self.after.insert((parent, run[0]), end);
        end
    }

    /// A free place whose run is empty and has memory for so many blocks. It is the caller's to fill.
    fn place(&mut self, blocks: usize) -> ChainEnd {
        let latest = self.free.len().saturating_sub(LOOKED_AT)..self.free.len();
        let fits = |&at: &usize| self.nodes[self.free[at] as usize].run.capacity() >= blocks;
        if let Some(at) = latest.rev().find(fits) {
            return ChainEnd(self.free.swap_remove(at));
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node { parent: None, run: Vec::new(), value: T::default() });
            // Four billion runs have no room in any memory.
            u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
        });
        self.nodes[place as usize].run.reserve_exact(blocks.next_power_of_two().max(LEAST_ROOM));
        ChainEnd(place)
    }
}

/// Free places among which one with enough memory is looked for.
const LOOKED_AT: usize = 8;
/// Blocks for which a run has memory at least. Rounded up from there, runs of much the same length fit in each other's place.
const LEAST_ROOM: usize = 16;

/// How many leading blocks the two share, of which the first is one.
fn shared(run: &[SequenceHash], chain: &[SequenceHash]) -> usize {
    let both = run.len().min(chain.len());
    if both > 0 && run[both - 1] == chain[both - 1] {
        return both;
    }
    let (mut held, mut beyond) = (0, both);
    while held + 1 < beyond {
        let middle = held.midpoint(beyond);
        if run[middle] == chain[middle] {
            held = middle;
        } else {
            beyond = middle;
        }
    }
    (held + 1).min(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(names: &[u64]) -> Vec<SequenceHash> {
        names.iter().map(|&name| SequenceHash(name)).collect()
    }

    /// A tree that counts who entered.
    fn enter(tree: &mut ChainTree<u32>, names: &[u64]) -> (usize, ChainEnd) {
        tree.enter(&chain(names), |count| *count += 1)
    }

    #[test]
    fn an_end_stays_where_it_is_when_others_part_before_it() {
        let mut tree = ChainTree::default();
        let (_, long) = enter(&mut tree, &[1, 2, 3, 4]);
        let (shared, other) = enter(&mut tree, &[1, 2, 9]);
        let (all, short) = enter(&mut tree, &[1]);
        assert_eq!((shared, all, tree.runs()), (2, 1, 4));
        for (end, names) in [(long, &[1, 2, 3, 4][..]), (other, &[1, 2, 9]), (short, &[1])] {
            assert_eq!(tree.chain(end), chain(names));
        }
        let counts = [&[1][..], &[1, 2], &[1, 2, 3], &[1, 2, 9], &[1, 2, 3, 4, 5]];
        let counts =
            counts.map(|names| tree.find(&chain(names))).map(|(blocks, count)| (blocks, *count.unwrap()));
        assert_eq!(counts, [(1, 3), (2, 2), (3, 1), (3, 1), (4, 1)]);
        assert_eq!(tree.find(&chain(&[2])), (0, None));
        // Its own end as well as others'.
        assert_eq!(enter(&mut tree, &[1, 2, 3, 4]), (4, long));
    }

    #[test]
    fn a_run_is_shortened_from_its_end_until_it_is_gone() {
        let mut tree = ChainTree::default();
        let (_, end) = enter(&mut tree, &[1, 2, 3]);
        let mut gone = Vec::new();
        assert!(!tree.shorten(end, 2, |name| gone.push(name.0)));
        assert_eq!(tree.chain(end), chain(&[1]));
        assert!(tree.shorten(end, 2, |name| gone.push(name.0)));
        assert_eq!((gone, tree.get(end), tree.runs()), (vec![3, 2, 1], None, 0));
        assert_eq!(tree.find(&chain(&[1])), (0, None));
        let (shared, again) = enter(&mut tree, &[1, 2]);
        assert_eq!((shared, tree.get(again), tree.nodes.len()), (0, Some(&1), 1));
    }
}
