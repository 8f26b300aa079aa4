//! Where a stream stands, for another one that goes on from there.
//!
//! A stream that *resumes* from what another one remembered believes none of it before the engine has shown the last batch, with
//! the same bytes, and said all that it has said since. No number that happens to follow stands in for that, as it would
//! after a connection that was lost for a moment.

use std::ops::Deref;

use super::{Fingerprint, Purpose, StreamMachine};

/// Where a stream stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Number of the last batch applied.
    pub sequence: u64,
    /// XXH3-64 of its bytes, which no other incarnation of the engine sends: they carry its clock.
    pub fingerprint: u64,
    /// Batches before this number are lost for good.
    pub lost_before: Option<u64>,
}

impl<P: Deref<Target = [u8]>> StreamMachine<P> {
    /// The stream of a rank of which the index holds already what another stream was told, up to where that stood. To be used
    /// before anything is told, and for engines that can replay.
    #[must_use]
    pub fn resuming(mut self, memory: Memory) -> Self {
        let last = Fingerprint { sequence: memory.sequence, hash: memory.fingerprint };
        self.last = Some(last);
        self.handed.resume(last);
        self.cursor.advance(memory.sequence);
        self.lost_before = memory.lost_before;
        self.resumes = true;
        self
    }

    /// Where the stream stands, if that is certain: what was applied is the connected engine's, and nothing is known to be missing
    /// that may still come.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        let is_whole = self.request.as_ref().is_none_or(|request| request.purpose == Purpose::Check);
        let is_certain = self.connected && self.proven && !self.resumes && is_whole && self.room_at.is_none();
        let Fingerprint { sequence, hash } = self.last.filter(|_| is_certain)?;
        Some(Memory { sequence, fingerprint: hash, lost_before: self.lost_before })
    }
}
