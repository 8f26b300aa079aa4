//! Candidates' rows.

use super::{BEYOND, Malformed, Source, Wire, codes, fields};
use crate::{
    device::{DeviceClass, Speed, Terms},
    index::Overlap,
    load::{Backlog, Capacity, SlotLoad},
    select::{AffinityMode, Exclusion, Row, cost::predicted},
    slot::{Rank, Slot, WorkerId},
};

fields!(Slot { index, generation });
fields!(Overlap { gpu, host, disk, external });
fields!(SlotLoad { requests, prefill_tokens, decode_blocks });
fields!(Capacity { kv_blocks, batch_tokens });
fields!(Backlog { requests, work, head_work, head_since });
fields!(Terms { capability, external_load, freshness, weight });
codes!(AffinityMode { Hard = 1, Soft = 2 });
codes!(DeviceClass { Cpu = 1, Accelerator = 2 });
codes!(Exclusion {
    Unroutable = 1,
    Draining = 2,
    Overloaded = 3,
    Fenced = 4,
    ConflictingConfiguration = 5,
    AlreadyTried = 6,
    NotPinned = 7,
    Retired = 8,
    OtherSession = 9,
    AdapterNotLoaded = 10,
    Unhealthy = 11,
});

impl Wire for WorkerId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        u64::get(from).map(Self)
    }
}

impl Wire for Rank {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        u32::get(from).map(Self)
    }
}

/// By what was seen: the rest follows from it.
impl Wire for Speed {
    fn put(&self, out: &mut Vec<u8>) {
        let (seconds, tokens, outliers) = self.seen();
        seconds.put(out);
        tokens.put(out);
        outliers.put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        Ok(Self::of_seen(f64::get(from)?, f64::get(from)?, u8::get(from)?))
    }
}

/// Something that is nearly always at its default.
fn put_rare<T: Wire + Default + PartialEq + Copy>(value: T, out: &mut Vec<u8>) {
    (value != T::default()).then_some(value).put(out);
}

fn take_rare<T: Wire + Default>(from: &mut Source<'_>) -> Result<T, Malformed> {
    Ok(Option::get(from)?.unwrap_or_default())
}

/// Without its cost: a row is kept as it was before it was priced.
impl Wire for Row {
    fn put(&self, out: &mut Vec<u8>) {
        let Self {
            slot,
            worker,
            rank,
            class,
            device,
            slow_start,
            exclusion,
            tied,
            overlap,
            withheld,
            expected,
            cached_tokens,
            carried,
            carriers,
            predicted: reached,
            new_blocks,
            prefill_work,
            load,
            backlog,
            speed,
            capacity,
            busy,
            cost: _,
        } = self;
        slot.put(out);
        worker.put(out);
        rank.put(out);
        class.put(out);
        device.put(out);
        // Nearly all weigh 1.
        (*slow_start != 1.0).then_some(*slow_start).put(out);
        exclusion.put(out);
        tied.put(out);
        put_rare(*overlap, out);
        withheld.put(out);
        expected.put(out);
        cached_tokens.put(out);
        carried.put(out);
        carriers.put(out);
        // It follows from two others, unless somebody made the row by hand.
        (*reached != predicted(*overlap, *carried)).then_some(*reached).put(out);
        new_blocks.put(out);
        prefill_work.put(out);
        put_rare(*load, out);
        put_rare(*backlog, out);
        put_rare(*speed, out);
        put_rare(*capacity, out);
        busy.put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let mut row = Self {
            slot: Wire::get(from)?,
            worker: Wire::get(from)?,
            rank: Wire::get(from)?,
            class: Wire::get(from)?,
            device: Wire::get(from)?,
            slow_start: Option::get(from)?.unwrap_or(1.0),
            exclusion: Wire::get(from)?,
            tied: Wire::get(from)?,
            overlap: take_rare(from)?,
            withheld: Wire::get(from)?,
            expected: Wire::get(from)?,
            cached_tokens: Wire::get(from)?,
            carried: Wire::get(from)?,
            carriers: Wire::get(from)?,
            predicted: Overlap::default(),
            new_blocks: 0,
            prefill_work: 0,
            load: SlotLoad::default(),
            backlog: Backlog::default(),
            speed: Speed::default(),
            capacity: Capacity::default(),
            busy: false,
            cost: None,
        };
        row.predicted = Option::get(from)?.unwrap_or_else(|| predicted(row.overlap, row.carried));
        row.new_blocks = Wire::get(from)?;
        row.prefill_work = Wire::get(from)?;
        row.load = take_rare(from)?;
        row.backlog = take_rare(from)?;
        row.speed = take_rare(from)?;
        row.capacity = take_rare(from)?;
        row.busy = Wire::get(from)?;
        // Tiers add up, and their sum is a number that fits.
        let fits = |overlap: Overlap| {
            let Overlap { gpu, host, disk, external } = overlap;
            gpu.checked_add(host).and_then(|sum| sum.checked_add(disk)?.checked_add(external)).is_some()
        };
        let all = [Some(row.overlap), row.withheld, Some(row.predicted)];
        let weighs = row.slow_start > 0.0 && row.slow_start <= 1.0;
        if weighs && all.into_iter().flatten().all(fits) { Ok(row) } else { Err(BEYOND) }
    }
}
