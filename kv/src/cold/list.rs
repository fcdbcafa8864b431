//! The list of a checkpoint's parts: the file `cold.<n>`.
//!
//! ```text
//! next part (8) | next run (8) | cursor (8) | clean from (8) | number of parts (8)
//! for each part: number (8) | salt (8) | first run (8) | last run (8) | first hash (8)
//!   | last hash (8) | log begin (8) | log end (8) | file length (8) | CRC of the trailer (4)
//!   | kind (1) | level (1) | block bits (1) | zero (1)
//! ```
//!
//! The file is a checked stream, which has checksums (see `checked_stream`). A correct checksum
//! shows that the bytes are as written, but not that the writer was correct. The decoder therefore
//! checks all that lookups rely on ([`PartList::check`], [`check_shape`]).
//!
//! **Invariants of a list's parts.**
//! 1. There is no base part, or the base parts cover all hashes, and no two of them overlap. So a
//!    lost base part can't look like missing rows.
//! 2. The parts of a run have one range of run numbers and one level, and no two of them overlap.
//! 3. The run numbers of two runs are disjoint, or those of one lie within those of the other. The
//!    outer run has the rows of the inner one, except for hashes that could not be consolidated.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::checkpoint::identity::CheckpointIdentity;
use crate::cold::head::{COLD_BEGIN, Kind, PartHead};
use crate::device::placement::part_span_bytes;
use crate::error::Result;
use crate::files::checked_stream::{CheckedReader, CheckedWriter, StreamKind};
use crate::files::directory::Place;

/// The kind of the stream. If the version of the parts' format rises, this version must rise too:
/// then an older program calls the list newer, and not its parts damaged.
pub(crate) const KIND: StreamKind =
    StreamKind { name: "cold list", magic: *b"EMBKCOLD", oldest: 1, newest: 1 };
const HEAD_BYTES: usize = 40;
const ENTRY_BYTES: usize = 80;
/// Header and trailer of a part have this length each, and its sections are padded to it.
const PART_UNIT_BYTES: u64 = 4096;

/// One part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedPart {
    pub(crate) head: PartHead,
    /// Length of the part's file in bytes.
    pub(crate) file_bytes: u64,
    /// The checksum in the part's trailer.
    pub(crate) trailer_crc: u32,
}

/// What a checkpoint says about the cold tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartList {
    /// The number that the next part gets. No part of the checkpoint has this number or a larger
    /// one.
    pub(crate) next_part: u64,
    /// The number that the next run gets. Runs count from 1.
    pub(crate) next_run: u64,
    /// The hash at which the next base merge begins.
    pub(crate) cursor: u64,
    /// The mark *clean* of a record below this log address has no meaning: programs before format 7
    /// used its bit as a part of the generation.
    pub(crate) clean_from: u64,
    pub(crate) parts: Vec<ListedPart>,
}

impl Default for PartList {
    fn default() -> Self {
        PartList { next_part: 0, next_run: 1, cursor: 0, clean_from: 0, parts: Vec::new() }
    }
}

impl PartList {
    /// True if the bank never had a part. Its checkpoints then have no list.
    pub(crate) fn is_unused(&self) -> bool {
        self.next_part == 0
    }

    /// Returns the bytes of all parts' files.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.file_bytes))
    }

    /// Returns the parts that `base`, the list of an earlier checkpoint, lacks.
    pub(crate) fn parts_beyond<'a>(&'a self, base: &PartList) -> Vec<&'a ListedPart> {
        let known: BTreeSet<u64> = base.parts.iter().map(|part| part.head.number).collect();
        self.parts.iter().filter(|part| !known.contains(&part.head.number)).collect()
    }

    /// True if parts that have one number in both lists are the same.
    pub(crate) fn agrees(&self, other: &PartList) -> bool {
        let by_number: BTreeMap<u64, &ListedPart> =
            other.parts.iter().map(|part| (part.head.number, part)).collect();
        let same =
            |part: &ListedPart| by_number.get(&part.head.number).is_none_or(|it| *it == part);
        self.parts.iter().all(same)
    }

    /// Writes the list durably, except for the file's name. Returns the file's length in bytes.
    pub(crate) fn write(&self, place: &Place, of: CheckpointIdentity) -> Result<u64> {
        let mut out = CheckedWriter::create(place, of.stream(KIND))?;
        out.write(&self.encode())?;
        let (file, bytes) = out.finish()?;
        file.sync_all().map_err(|e| crate::error::Error::io("sync", place, e))?;
        Ok(bytes)
    }

    /// Reads and checks a list. `segment_bytes` is the bank's segment size.
    ///
    /// # Errors
    /// `Damaged` or `Truncated` if the file fails its checks. `Io` if it can't be read.
    pub(crate) fn read(
        place: &Place,
        of: CheckpointIdentity,
        file_bytes: u64,
        segment_bytes: u64,
    ) -> Result<Self> {
        let mut input = CheckedReader::open(place, of.stream(KIND))?;
        let content = input.read_to_end(file_bytes as usize)?;
        input.finish()?;
        Self::decode(&content, of.bank, segment_bytes).map_err(|what| input.damaged(0, what))
    }

    /// Returns the content of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * self.parts.len());
        let count = self.parts.len() as u64;
        for word in [self.next_part, self.next_run, self.cursor, self.clean_from, count] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for ListedPart { head, file_bytes, trailer_crc } in &self.parts {
            let PartHead { number, salt, runs, hashes, log, .. } = head;
            let ends = [*runs.start(), *runs.end(), *hashes.start(), *hashes.end()];
            for word in [*number, *salt].into_iter().chain(ends) {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            for word in [log.start, log.end, *file_bytes] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&trailer_crc.to_le_bytes());
            bytes.extend_from_slice(&[head.kind as u8, head.level, head.block_bits, 0]);
        }
        bytes
    }

    /// Decodes the content of a list of the bank `bank`, and checks it.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(crate) fn decode(
        content: &[u8],
        bank: u64,
        segment_bytes: u64,
    ) -> std::result::Result<Self, String> {
        let Some((head, entries)) = content.split_at_checked(HEAD_BYTES) else {
            return Err(format!("{} bytes hold no list of parts", content.len()));
        };
        let count = word(head, 32);
        if Some(entries.len() as u64) != count.checked_mul(ENTRY_BYTES as u64) {
            return Err(format!("{} bytes do not hold {count} parts", entries.len()));
        }
        let parts = entries.chunks_exact(ENTRY_BYTES).map(|entry| decode_part(entry, bank));
        let list = PartList {
            next_part: word(head, 0),
            next_run: word(head, 8),
            cursor: word(head, 16),
            clean_from: word(head, 24),
            parts: parts.collect::<std::result::Result<_, _>>()?,
        };
        list.check(segment_bytes)?;
        Ok(list)
    }

    /// Checks all values of the list. `segment_bytes` is the bank's segment size.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(crate) fn check(&self, segment_bytes: u64) -> std::result::Result<(), String> {
        let span_bytes = part_span_bytes(segment_bytes);
        if self.next_part > (u64::MAX - COLD_BEGIN) / span_bytes {
            return Err(format!("the next part, {}, has no address", self.next_part));
        }
        if self.is_unused() {
            return Err("it lists the parts of a bank that never had one".into());
        }
        if self.clean_from > COLD_BEGIN {
            return Err(format!("marks are valid from {:#x} on", self.clean_from));
        }
        let mut numbers = BTreeSet::new();
        for ListedPart { head, file_bytes, .. } in &self.parts {
            let PartHead { number, runs, hashes, log, .. } = head;
            let fits = [
                (*number < self.next_part, "number"),
                (numbers.insert(*number), "number, which another part has too,"),
                (*runs.end() < self.next_run && runs.start() <= runs.end(), "range of runs"),
                (*runs.start() > 0 || head.kind == Kind::Base, "range of runs"),
                (hashes.start() <= hashes.end(), "range of hashes"),
                (log.start <= log.end && log.end <= COLD_BEGIN, "range of the log"),
                ((12..=14).contains(&head.block_bits), "block size"),
                (file_bytes.is_multiple_of(PART_UNIT_BYTES), "length"),
                ((2 * PART_UNIT_BYTES..=span_bytes).contains(file_bytes), "length"),
            ];
            if let Some((_, what)) = fits.iter().find(|(fits, _)| !fits) {
                return Err(format!("part {number} has a {what} that does not fit"));
            }
        }
        check_shape(self.parts.iter().map(|part| &part.head))
    }
}

/// Checks the invariants of a list's parts, in the order of this module's essay.
///
/// # Errors
/// A text that says what is wrong.
pub(crate) fn check_shape<'h>(
    heads: impl Iterator<Item = &'h PartHead>,
) -> std::result::Result<(), String> {
    let mut base = Vec::new();
    let mut runs: BTreeMap<(u64, u64), Vec<&PartHead>> = BTreeMap::new();
    for head in heads {
        match head.kind {
            Kind::Base => base.push(head),
            Kind::Run => {
                runs.entry((*head.runs.start(), *head.runs.end())).or_default().push(head);
            }
        }
    }
    in_order(&mut base)?;
    let gapless = base.is_empty()
        || *base[0].hashes.start() == 0
            && *base[base.len() - 1].hashes.end() == u64::MAX
            && base.windows(2).all(|two| two[0].hashes.end() + 1 == *two[1].hashes.start());
    if !gapless {
        return Err("the base parts do not cover all hashes".into());
    }
    for ((first, last), parts) in &mut runs {
        in_order(parts)?;
        if parts.iter().any(|part| part.level != parts[0].level) {
            return Err(format!("run {first} to {last} has parts of different levels"));
        }
    }
    // Ends of the runs that contain the next one, outermost first.
    let mut outer: Vec<u64> = Vec::new();
    // An outer run begins before an inner one, or begins with it and ends later.
    let mut ranges: Vec<(u64, u64)> = runs.into_keys().collect();
    ranges.sort_unstable_by_key(|&(first, last)| (first, std::cmp::Reverse(last)));
    for (first, last) in ranges {
        while outer.last().is_some_and(|&end| end < first) {
            outer.pop();
        }
        if outer.last().is_some_and(|&end| end < last) {
            return Err(format!("run {first} to {last} overlaps another run"));
        }
        outer.push(last);
    }
    Ok(())
}

/// Sorts parts by hash. Fails if two of them overlap.
fn in_order(parts: &mut [&PartHead]) -> std::result::Result<(), String> {
    parts.sort_unstable_by_key(|part| *part.hashes.start());
    let overlap = parts.windows(2).find(|two| two[0].hashes.end() >= two[1].hashes.start());
    overlap.map_or(Ok(()), |two| {
        Err(format!("parts {} and {} have the same hashes", two[0].number, two[1].number))
    })
}

fn decode_part(entry: &[u8], bank: u64) -> std::result::Result<ListedPart, String> {
    let number = word(entry, 0);
    let between = |first: u64, last: u64| -> RangeInclusive<u64> { first..=last };
    let kind = match (entry[76], entry[79]) {
        (0, 0) => Kind::Base,
        (1, 0) => Kind::Run,
        _ => return Err(format!("part {number} is of an unknown kind")),
    };
    let head = PartHead {
        bank,
        salt: word(entry, 8),
        number,
        kind,
        level: entry[77],
        block_bits: entry[78],
        runs: between(word(entry, 16), word(entry, 24)),
        hashes: between(word(entry, 32), word(entry, 40)),
        log: word(entry, 48)..word(entry, 56),
    };
    let trailer_crc = (word(entry, 72) & u64::from(u32::MAX)) as u32;
    Ok(ListedPart { head, file_bytes: word(entry, 64), trailer_crc })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 1 << 20;
    const HALF: u64 = 1 << 63;

    fn part(number: u64, runs: RangeInclusive<u64>, hashes: RangeInclusive<u64>) -> ListedPart {
        let kind = if *runs.start() == 0 { Kind::Base } else { Kind::Run };
        let level = u8::from(runs.start() != runs.end());
        let (salt, bank, block_bits, log) = (number + 77, 5, 12, 64..8192);
        let head = PartHead { bank, salt, number, kind, level, block_bits, runs, hashes, log };
        ListedPart { head, file_bytes: 5 * 4096, trailer_crc: 0xABCD_0000 + number as u32 }
    }

    fn list() -> PartList {
        let parts = vec![
            part(3, 0..=2, 0..=HALF - 1),
            part(9, 0..=4, HALF..=u64::MAX),
            part(4, 3..=6, 0..=100),
            part(5, 3..=6, 101..=u64::MAX),
            part(7, 5..=5, 0..=u64::MAX),
            part(8, 7..=7, 0..=u64::MAX),
        ];
        PartList { next_part: 10, next_run: 8, cursor: HALF, clean_from: 640, parts }
    }

    fn decode(bytes: &[u8]) -> std::result::Result<PartList, String> {
        PartList::decode(bytes, 5, SEGMENT_BYTES)
    }

    #[test]
    fn a_list_reads_back() {
        let empty = PartList { next_part: 1, ..PartList::default() };
        for list in [list(), empty] {
            assert_eq!(decode(&list.encode()), Ok(list));
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let changes: [&dyn Fn(&mut PartList); 23] = [
            &|list| list.clean_from = COLD_BEGIN + 1,
            &|list| list.next_part = 0,
            &|list| list.next_part = 9,
            &|list| list.next_part = u64::MAX,
            &|list| list.next_run = 7,
            &|list| list.parts[0].head.number = 9,
            &|list| list.parts[0].head.runs = RangeInclusive::new(2, 1),
            &|list| list.parts[4].head.runs = 0..=0,
            &|list| list.parts[0].head.hashes = RangeInclusive::new(1, 0),
            &|list| list.parts[0].head.log = std::ops::Range { start: 1, end: 0 },
            &|list| list.parts[0].head.log = 0..COLD_BEGIN + 1,
            &|list| list.parts[0].head.block_bits = 11,
            &|list| list.parts[0].head.block_bits = 15,
            &|list| list.parts[0].file_bytes = 4096,
            &|list| list.parts[0].file_bytes = 5 * 4096 + 512,
            &|list| list.parts[0].file_bytes = (16 << 20) + 4096,
            // The base has a gap at its begin, in its middle and at its end, or overlaps.
            &|list| list.parts[0].head.hashes = 1..=HALF - 1,
            &|list| list.parts[0].head.hashes = 0..=HALF - 2,
            &|list| list.parts.truncate(1),
            &|list| list.parts[0].head.hashes = 0..=HALF,
            // Parts of a run overlap, or have different levels. Runs overlap.
            &|list| list.parts[3].head.hashes = 100..=u64::MAX,
            &|list| list.parts[3].head.level = 2,
            &|list| list.parts[4].head.runs = 5..=7,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut list = list();
            change(&mut list);
            assert!(decode(&list.encode()).is_err(), "change {number}");
        }
        let whole = list().encode();
        for cut in [0, HEAD_BYTES - 1, HEAD_BYTES, whole.len() - 1] {
            assert!(decode(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for (at, byte) in [(32, 7), (HEAD_BYTES + 76, 2), (HEAD_BYTES + 79, 1)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert!(decode(&bytes).is_err(), "byte {at}");
        }
    }

    /// Each bit of a list counts: a changed bit gives an error or another list.
    #[test]
    fn no_bit_is_ignored() {
        let whole = list().encode();
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err() || decode(&bytes) != Ok(list()), "bit {bit}");
        }
    }
}
