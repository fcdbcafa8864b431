//! Chunks with costly columns, whose arrays decoders make.
//!
//! **Problem.** A decoder may be a device that answers after a while and in any order. A thread
//! that waited for each answer would let the processor and the device idle in turn.
//!
//! **Approach.** A thread reads the rows of a chunk into blocks, copies the values to decode into
//! a [`DecodeUnit`] for each column of arrays, and submits the units. The room for the arrays is
//! the memory of the chunk's batch, so no array is copied. While units are free, the thread goes on
//! with the next chunk. When all units of a chunk are back, the thread runs the other steps on its
//! blocks. A decoder that works in the thread itself answers at once, and takes the same way.
//!
//! **Order.** Chunks are committed in the order of the input, however they come back ([`order`]).
//! A thread waits for the window of uncommitted chunks only if it has no open chunk. If it has one,
//! it waits for that chunk's units. So the thread with the oldest chunk never waits for others.
//!
//! [`order`]: super::order

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::setup::Setup;
use super::work::Work;
use crate::arrays::{ArrayCounts, DecodeChannel, DecodeUnit, NoArray, Outcome, Place, SpoolReader};
use crate::decode::{BadRow, Block, Fault};
use crate::error::{Error, Result};
use crate::input::Claim;
use crate::plan::Plan;

/// Bytes of a path that a report shows.
const NAME_BYTES_MAX: usize = 200;
/// Largest number of bytes of the values of a column in a chunk.
const VALUES_OF_CHUNK_MAX: usize = 2 << 30;
/// Interval at which a thread that waits for a decoder checks whether the run has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A chunk whose rows are read and whose arrays may not be complete.
pub(super) struct OpenChunk<'i> {
    claim: Claim<'i>,
    done: Work,
    blocks: Vec<Block>,
    /// For each row of the blocks the place of a report about it.
    places: Vec<BadRow>,
    /// For each column of arrays its unit.
    units: Vec<UnitPlace>,
    /// For each column of arrays the key of each row whose array is to be made. 0 without a cache.
    keys: Vec<Vec<Option<u128>>>,
    /// Why the chunk's units could not all be submitted.
    failure: Option<Error>,
}

enum UnitPlace {
    /// The unit of this ticket is out.
    Out(u64),
    Back(DecodeUnit),
}

impl UnitPlace {
    fn back(&mut self) -> &mut DecodeUnit {
        match self {
            Self::Back(unit) => unit,
            Self::Out(_) => unreachable!("the chunk is complete"),
        }
    }
}

impl<'i> OpenChunk<'i> {
    pub(super) fn new(
        claim: Claim<'i>,
        done: Work,
        blocks: Vec<Block>,
        places: Vec<BadRow>,
    ) -> Self {
        Self { claim, done, blocks, places, units: Vec::new(), keys: Vec::new(), failure: None }
    }

    /// Returns the chunk's claim, and its work and blocks or the failure.
    pub(super) fn into_parts(self) -> (Claim<'i>, Result<(Work, Vec<Block>)>) {
        let Self { claim, done, blocks, failure, .. } = self;
        (claim, failure.map_or(Ok((done, blocks)), Err))
    }

    fn is_complete(&self) -> bool {
        self.failure.is_some() || self.units.iter().all(|unit| matches!(unit, UnitPlace::Back(_)))
    }

    /// Puts the arrays that decoders have made into the cache. Returns their number.
    fn keep_arrays(&mut self, setup: &Setup<'_, 'i>) -> u64 {
        let mut made = 0;
        for (column, (unit, keys)) in self.units.iter_mut().zip(&self.keys).enumerate() {
            let unit = unit.back();
            for (row, key) in keys.iter().enumerate() {
                let Some(key) = *key else { continue };
                if *unit.outcome(row) != Outcome::Finished {
                    continue;
                }
                made += 1;
                if let Some(cache) = setup.cache {
                    cache.insert(column, key, unit.array(row));
                }
            }
        }
        made
    }

    /// Leaves out the rows whose arrays could not be made, and moves the other arrays together.
    fn leave_bad_out(&mut self) {
        let plan = Arc::clone(&self.claim.plan);
        let mut kept = Vec::new();
        let (mut row, mut next) = (0, 0);
        for block in &mut self.blocks {
            kept.clear();
            for in_block in 0..block.rows {
                let fault = fault(&plan, &mut self.units, block, row, in_block);
                kept.push(fault.is_none());
                if let Some(fault) = fault {
                    let mut bad = self.places[row].clone();
                    bad.fault.fill_in(fault);
                    self.done.bad.add(bad);
                } else {
                    if next != row {
                        self.units.iter_mut().for_each(|unit| unit.back().move_array(row, next));
                    }
                    next += 1;
                }
                row += 1;
            }
            if kept.contains(&false) {
                block.retain(&kept);
            }
        }
    }
}

/// Returns the fault of a chunk's row, if one of its arrays could not be made. `in_block` is the
/// row's number in its block.
fn fault(
    plan: &Plan,
    units: &mut [UnitPlace],
    block: &Block,
    row: usize,
    in_block: usize,
) -> Option<Fault> {
    plan.arrays.iter().zip(units).find_map(|(array, unit)| {
        let Outcome::Failed(why) = unit.back().outcome(row) else { return None };
        let name = match array.place {
            Place::File(column) => {
                let name = block.bytes[column].get(in_block);
                name[..name.len().min(NAME_BYTES_MAX)].to_vec()
            }
            Place::Bytes(_) => Vec::new(),
        };
        Some(Fault::Array { field: array.field, name, why: why.clone() })
    })
}

/// A channel to a decoder, with its units.
struct Channel {
    channel: Box<dyn DecodeChannel>,
    column: String,
    units_max: usize,
    timeout: Duration,
    /// Number of units that are out.
    out: usize,
    spare: Vec<DecodeUnit>,
    /// Units that are out, and whose chunk has failed.
    orphans: Vec<u64>,
}

impl Channel {
    fn failed(&self, what: impl Into<String>) -> Error {
        Error::Decoder { column: self.column.clone(), what: what.into() }
    }

    fn drain(&mut self, wait: Duration) -> Result<Vec<DecodeUnit>> {
        let units = self.channel.drain(wait);
        units.map_err(|error| self.failed(format!("failed: {error}")))
    }
}

/// The open chunks of a thread, and its channels to decoders.
pub(super) struct Offload<'i> {
    /// For each column of arrays.
    channels: Vec<Channel>,
    /// The oldest first.
    open: Vec<OpenChunk<'i>>,
    sources: Sources,
}

/// Where the values of a thread's units and the arrays of its cache come from.
#[derive(Default)]
struct Sources {
    /// The bytes of a file.
    file: Vec<u8>,
    spool: SpoolReader,
    counts: ArrayCounts,
}

impl<'i> Offload<'i> {
    /// # Errors
    /// [`Error::Decoder`] if a decoder can't open a channel.
    pub(super) fn new(setup: &Setup<'_, 'i>) -> Result<Self> {
        let arrays = setup.plan.arrays.iter().zip(setup.decoders);
        let channels = arrays.map(|(array, decoder)| {
            let opened = decoder.open(&array.shape, array.dtype);
            let column = array.column.clone();
            let channel = opened.map_err(|error| Error::Decoder {
                column: column.clone(),
                what: format!("can't be opened: {error}"),
            })?;
            let units_max = decoder.units().max(1);
            let timeout = decoder.timeout();
            Ok(Channel {
                channel,
                column,
                units_max,
                timeout,
                out: 0,
                spare: Vec::new(),
                orphans: Vec::new(),
            })
        });
        Ok(Self {
            channels: channels.collect::<Result<_>>()?,
            open: Vec::new(),
            sources: Sources::default(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// True if each channel has a free unit.
    pub(super) fn has_free_units(&self) -> bool {
        self.channels.iter().all(|channel| channel.out < channel.units_max)
    }

    /// Submits the values of a chunk. If that fails, the chunk is complete with a failure.
    pub(super) fn submit(&mut self, setup: &Setup<'_, 'i>, mut chunk: OpenChunk<'i>) {
        chunk.failure = self.submit_units(setup, &mut chunk).err();
        self.open.push(chunk);
    }

    fn submit_units(&mut self, setup: &Setup<'_, 'i>, chunk: &mut OpenChunk<'i>) -> Result<()> {
        let plan = Arc::clone(&chunk.claim.plan);
        let rows = chunk.places.len();
        for (place, array) in plan.arrays.iter().enumerate() {
            let channel = &mut self.channels[place];
            let mut unit = channel.spare.pop().unwrap_or_else(DecodeUnit::new);
            let matrix = &mut chunk.done.batch.matrices[array.output];
            let values: usize = array.shape.iter().product();
            matrix.grow(rows * values);
            unit.begin(matrix.take(), array.bytes());
            let mut keys = Vec::new();
            for block in &chunk.blocks {
                self.sources.fill(&mut unit, &mut keys, block, (place, array.place), setup)?;
            }
            chunk.keys.push(keys);
            chunk.units.push(UnitPlace::Out(unit.ticket()));
            channel.out += 1;
            let submitted = channel.channel.submit(unit);
            submitted.map_err(|error| channel.failed(format!("failed: {error}")))?;
        }
        for block in &mut chunk.blocks {
            block.drop_blobs(&plan.layout);
        }
        Ok(())
    }

    /// Takes complete units back, without waiting.
    ///
    /// # Errors
    /// [`Error::Decoder`].
    pub(super) fn drain(&mut self) -> Result<()> {
        for place in 0..self.channels.len() {
            if self.channels[place].out > 0 {
                let units = self.channels[place].drain(Duration::ZERO)?;
                self.take_back(place, units)?;
            }
        }
        Ok(())
    }

    /// Waits until a unit of the oldest open chunk is back, or `has_ended` returns true.
    ///
    /// # Errors
    /// [`Error::Decoder`] if the decoder does not answer within its time. [`Error::Stopped`].
    pub(super) fn wait(
        &mut self,
        setup: &Setup<'_, 'i>,
        has_ended: impl Fn() -> bool,
    ) -> Result<()> {
        let Some(oldest) = self.open.first() else { return Ok(()) };
        let out = oldest.units.iter().position(|unit| matches!(unit, UnitPlace::Out(_)));
        let Some(place) = out else { return Ok(()) };
        let mut silent = Duration::ZERO;
        // The loop ends: `silent` grows to the decoder's limit.
        while !has_ended() {
            if setup.chunks.is_stopped() {
                return Err(Error::Stopped);
            }
            let begun = Instant::now();
            let units = self.channels[place].drain(LOOK_INTERVAL)?;
            if !units.is_empty() {
                return self.take_back(place, units);
            }
            let channel = &self.channels[place];
            if silent >= channel.timeout {
                let (out, seconds) = (channel.out, channel.timeout.as_secs_f64());
                return Err(channel
                    .failed(format!("has not answered for {seconds} s, and {out} units are out")));
            }
            // A suspension of the process counts as one interval.
            silent += begun.elapsed().min(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Puts units that came back to their chunks.
    fn take_back(&mut self, place: usize, units: Vec<DecodeUnit>) -> Result<()> {
        for unit in units {
            let ticket = unit.ticket();
            let is_its = |chunk: &&mut OpenChunk<'i>| {
                let unit = chunk.units.get(place);
                unit.is_some_and(|unit| matches!(unit, UnitPlace::Out(out) if *out == ticket))
            };
            let channel = &mut self.channels[place];
            if let Some(orphan) = channel.orphans.iter().position(|&orphan| orphan == ticket) {
                channel.orphans.swap_remove(orphan);
                channel.out -= 1;
                continue;
            }
            let Some(chunk) = self.open.iter_mut().find(is_its) else {
                return Err(channel.failed("gave back a unit that this channel has not submitted"));
            };
            if let Some(row) = unit.waiting().next() {
                return Err(channel.failed(format!(
                    "gave back a unit of {} rows whose row {row} is neither finished nor failed",
                    unit.rows()
                )));
            }
            channel.out -= 1;
            chunk.units[place] = UnitPlace::Back(unit);
        }
        Ok(())
    }

    /// Takes a complete chunk out. Its arrays are in its batch.
    pub(super) fn take_complete(&mut self, setup: &Setup<'_, 'i>) -> Option<OpenChunk<'i>> {
        let place = self.open.iter().position(OpenChunk::is_complete)?;
        let mut chunk = self.open.remove(place);
        if chunk.failure.is_none() {
            self.sources.counts.made += chunk.keep_arrays(setup);
            chunk.leave_bad_out();
        }
        let plan = Arc::clone(&chunk.claim.plan);
        for (place, unit) in chunk.units.drain(..).enumerate() {
            let channel = &mut self.channels[place];
            match unit {
                UnitPlace::Back(mut unit) => {
                    *chunk.done.batch.matrices[plan.arrays[place].output] = unit.take_room();
                    channel.spare.push(unit);
                }
                UnitPlace::Out(ticket) => channel.orphans.push(ticket),
            }
        }
        Some(chunk)
    }

    /// Returns the claim of the oldest open chunk, and drops all chunks.
    pub(super) fn take_oldest(&mut self) -> Option<Claim<'i>> {
        self.open.drain(..).next().map(|chunk| chunk.claim)
    }

    /// Where the arrays of this thread came from.
    pub(super) fn counts(&self) -> ArrayCounts {
        self.sources.counts
    }
}

impl Sources {
    /// Appends the rows of a block to the unit of the column of arrays of this number. A row whose
    /// array the cache has is complete. `keys` gets the key of each other row.
    ///
    /// # Errors
    /// [`Error::Io`] if a file can't be read. [`Error::Decoder`] if the values are too large.
    fn fill(
        &mut self,
        unit: &mut DecodeUnit,
        keys: &mut Vec<Option<u128>>,
        block: &Block,
        (column, place): (usize, Place),
        setup: &Setup<'_, '_>,
    ) -> Result<()> {
        let Self { file, spool, counts } = self;
        let (Place::Bytes(slot) | Place::File(slot)) = place;
        for row in 0..block.rows {
            let mut value = block.bytes[slot].get(row);
            if let (Place::File(_), Some(root)) = (place, setup.root) {
                match root.read(value, file) {
                    Ok(()) => value = file,
                    Err(NoArray::Bad(why)) => {
                        unit.push_failed(why);
                        keys.push(None);
                        continue;
                    }
                    Err(NoArray::Failed(error)) => return Err(error),
                }
            }
            let key = setup.cache.map_or(0, |cache| cache.key(column, value));
            let is_cached = setup
                .cache
                .is_some_and(|cache| cache.read(column, key, unit.next_array(), spool, counts));
            if is_cached {
                unit.push_finished();
            } else if unit.value_bytes() + value.len() > VALUES_OF_CHUNK_MAX {
                let column = setup.plan.arrays[column].column.clone();
                let what = format!(
                    "would get more than {VALUES_OF_CHUNK_MAX} bytes of values for one chunk: set a smaller chunk_bytes"
                );
                return Err(Error::Decoder { column, what });
            } else {
                unit.push(value);
            }
            keys.push((!is_cached).then_some(key));
        }
        Ok(())
    }
}
