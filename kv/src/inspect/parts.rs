//! Reads the parts of the cold tier with plain reads.
//!
//! A checkpoint's list names its parts. Each part is read by a survey (`cold::survey`), which goes
//! on behind damage. The rows of all parts are merged, and the newest version of each row counts. A
//! version is *doubtful* if a newer one may have been in a damaged block.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::Damage;
use crate::checkpoint::manifest::{Manifest, TableEntry};
use crate::cold::head::{COLD_BEGIN, Kind, PAGE_BYTES, PartHead, PartSite, part_address};
use crate::cold::list::{ListedPart, PartList};
use crate::cold::newest::{Newest, OrderedRows, Source};
use crate::cold::part::Part;
use crate::cold::row::ColdRow;
use crate::cold::survey::{Gap, Survey};
use crate::device::placement::file_bytes_max;
use crate::device::segments::names::{first_offset, segment_name};
use crate::device::{AlignedBuffer, Device, Freed, PartFile, Read};
use crate::error::{Error, Result};
use crate::files::directory::{Directory, Place};
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

/// The files of a bank's parts, for reading.
#[derive(Debug)]
pub(super) struct PartFiles {
    folder: Place,
    bank: PathBuf,
    segment_bytes: u64,
    key_hash: KeyHash,
}

impl PartFiles {
    /// Opens the parts of the bank that `manifest` describes.
    pub(super) fn new(bank: &Arc<Directory>, manifest: &Manifest) -> Self {
        PartFiles {
            folder: bank.place("log"),
            bank: bank.path().to_owned(),
            segment_bytes: manifest.segment_bytes,
            key_hash: KeyHash::new(manifest.hash_seed),
        }
    }

    pub(super) fn site(&self) -> PartSite<'_> {
        PartSite { device: self, segment_size_bytes: self.segment_bytes, key_hash: self.key_hash }
    }

    /// Returns the file of an address of a part, and the offset in the file.
    pub(super) fn place(&self, address: u64) -> (Place, u64) {
        let within = address % file_bytes_max(address, self.segment_bytes);
        (self.folder.join(segment_name(address - within)), within)
    }

    /// Returns the path of a part's file.
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.place(part_address(number, self.segment_bytes)).0.path()
    }

    /// Returns the numbers of the parts that are there, and the lengths of their files.
    pub(super) fn numbers(&self) -> Vec<(u64, u64)> {
        let span = part_address(1, self.segment_bytes) - COLD_BEGIN;
        let mut found = Vec::new();
        for name in self.folder.names().unwrap_or_default() {
            if let Some(within) = first_offset(&name).and_then(|at| at.checked_sub(COLD_BEGIN))
                && within.is_multiple_of(span)
                && let Ok(bytes) = self.folder.join(&name).len()
            {
                found.push((within / span, bytes));
            }
        }
        found.sort_unstable();
        found
    }

    /// Returns the checksum in a part's trailer, which may be damaged.
    pub(super) fn trailer_crc(&self, number: u64, file_bytes: u64) -> Result<u32> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let begin = part_address(number, self.segment_bytes);
        let offset = begin + file_bytes.saturating_sub(PAGE_BYTES as u64);
        self.read_many(&mut [Read { offset, buffer: &mut page }])?;
        Ok(u32::from_le_bytes([page[12], page[13], page[14], page[15]]))
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::ReadOnly { path: self.bank.clone() })
    }
}

impl Device for PartFiles {
    fn name(&self) -> &'static str {
        "plain reads"
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        for Read { offset, buffer } in reads {
            let (place, within) = self.place(*offset);
            let failed = |e| Error::io("read", &place, e);
            let expected = buffer.len() as u64;
            let truncated = |found| {
                let path = place.path();
                Err(Error::Truncated { path, offset: within, expected, found })
            };
            let file = match place.open() {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return truncated(0),
                Err(e) => return Err(Error::io("open", &place, e)),
            };
            let mut done = 0;
            // The loop ends: each turn reads at least one byte, or returns.
            while done < buffer.len() {
                match file.read_at(&mut buffer[done..], within + done as u64) {
                    Ok(0) => return truncated(done as u64),
                    Ok(moved) => done += moved,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(failed(e)),
                }
            }
        }
        Ok(())
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        self.refuse()
    }

    fn sync(&self) -> Result<()> {
        self.refuse()
    }

    fn truncate(&self, _end: u64) -> Result<()> {
        self.refuse()
    }

    fn free(&self, _below: u64) -> Result<Freed> {
        self.refuse()
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.refuse()
    }

    fn remove_part(&self, _begin: u64) -> Result<()> {
        self.refuse()
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        let (place, within) = self.place(offset);
        (place.path(), within)
    }
}

/// A part of a checkpoint, and the hashes for which it counts.
#[derive(Debug, Clone)]
pub(super) struct RangedPart {
    pub(super) part: ListedPart,
    pub(super) hashes: RangeInclusive<u64>,
}

impl From<ListedPart> for RangedPart {
    fn from(part: ListedPart) -> Self {
        RangedPart { hashes: part.head.hashes.clone(), part }
    }
}

/// Returns the damage of a part that an error describes.
pub(super) fn damage_of(error: &Error, number: u64, path: PathBuf) -> Damage {
    let (path, offset, what) = place_of(error, path);
    let what = match what.contains("part ") {
        true => what,
        false => format!("part {number}: {what}"),
    };
    Damage::in_part(path, offset, number, what)
}

/// Returns the place of an error and its text. `path` is the file if the error names none.
fn place_of(error: &Error, path: PathBuf) -> (PathBuf, u64, String) {
    match error {
        Error::Damaged { path, offset, what } => (path.clone(), *offset, what.clone()),
        Error::Truncated { path, offset, expected, found } => {
            let what = format!("the file is cut short: {found} of {expected} bytes are there");
            (path.clone(), *offset, what)
        }
        error => (path, 0, error.to_string()),
    }
}

/// Returns the damage of a checkpoint's list of parts, which can't be read.
pub(super) fn list_damage(error: &Error, place: &Place, checkpoint: u64) -> Damage {
    let (path, offset, what) = place_of(error, place.path());
    Damage::in_file(path, offset, checkpoint, what)
}

/// Returns the parts of a list that may have versions of a hash, newest first.
pub(super) fn candidates(list: &PartList, hash: u64) -> Vec<&ListedPart> {
    let has = |part: &&ListedPart| part.head.hashes.contains(&hash);
    let base = list.parts.iter().filter(has).find(|part| part.head.kind == Kind::Base);
    let through = base.map_or(0, |part| *part.head.runs.end());
    let runs = list.parts.iter().filter(has).filter(|part| part.head.kind == Kind::Run);
    let mut found: Vec<_> = runs.filter(|part| *part.head.runs.end() > through).collect();
    found.sort_by_key(|part| newest_first(&part.head));
    found.extend(base);
    found
}

/// Orders runs newest first. Of two runs with the same last number, the one with more numbers comes
/// first.
fn newest_first(head: &PartHead) -> (Reverse<u64>, u64) {
    (Reverse(*head.runs.end()), *head.runs.start())
}

/// The parts of a run or of the base, one after the other.
#[derive(Debug)]
pub(super) struct PartChain<'d> {
    site: PartSite<'d>,
    /// By hash. The next part comes last.
    parts: Vec<RangedPart>,
    from: u64,
    /// The present part, and the last hash for which it counts.
    survey: Option<(Survey<'d>, u64)>,
    /// True if the chain leaves out uncounted versions.
    is_counted: bool,
    /// The damaged blocks of the parts that were read, with the parts' numbers.
    gaps: Vec<(u64, Gap)>,
    /// The errors of parts whose fences and filters can't be read.
    unread: Vec<(u64, Error)>,
}

impl PartChain<'_> {
    /// True if a row with this hash may have been in a damaged block.
    fn may_have_lost(&self, hash: u64) -> bool {
        let present = self.survey.as_ref().map_or(&[][..], |(survey, _)| survey.gaps());
        let before = self.gaps.iter().map(|(_, gap)| gap);
        before.chain(present).any(|gap| gap.hashes.contains(&hash))
    }
}

impl OrderedRows for PartChain<'_> {
    fn advance(&mut self) -> Result<bool> {
        // The loop ends with the last row of the last part.
        loop {
            if let Some((survey, last)) = &mut self.survey {
                if survey.advance()?
                    && let Some(row) = survey.row()
                    && row.hash <= *last
                {
                    if self.is_counted && row.flags.uncounted {
                        continue;
                    }
                    return Ok(true);
                }
                let number = survey.head().number;
                self.gaps.extend(survey.gaps().iter().map(|gap| (number, gap.clone())));
                self.survey = None;
            }
            let Some(RangedPart { part: listed, hashes }) = self.parts.pop() else {
                return Ok(false);
            };
            let ListedPart { head, file_bytes, trailer_crc } = &listed;
            let part = Part::load(self.site, head, *file_bytes, *trailer_crc);
            let part = part.map_err(|error| self.unread.push((head.number, error))).ok();
            let from = self.from.max(*hashes.start());
            let survey = Survey::new(self.site, head, *file_bytes, part.as_ref(), from);
            self.survey = Some((survey, *hashes.end()));
        }
    }

    fn row(&self) -> Option<ColdRow<'_>> {
        self.survey.as_ref()?.0.row()
    }
}

/// The newest sound version of each row, in order of the hashes.
#[derive(Debug)]
pub(super) struct NewestRows<'d> {
    rows: Newest<PartChain<'d>>,
    /// The source of the present row.
    place: usize,
    sources: usize,
}

impl<'d> NewestRows<'d> {
    /// Returns the rows with at least the hash `from`. The ranges of base parts do not overlap.
    pub(super) fn new(files: &'d PartFiles, parts: &[RangedPart], from: u64) -> Self {
        Self::of(files, parts, from, false)
    }

    /// Returns the newest version of each row that is not uncounted.
    pub(super) fn counted(files: &'d PartFiles, parts: &[RangedPart], from: u64) -> Self {
        Self::of(files, parts, from, true)
    }

    fn of(files: &'d PartFiles, parts: &[RangedPart], from: u64, is_counted: bool) -> Self {
        let mut runs: BTreeMap<_, Vec<&RangedPart>> = BTreeMap::new();
        let mut base = Vec::new();
        for ranged in parts {
            match ranged.part.head.kind {
                Kind::Base => base.push(ranged),
                Kind::Run => runs.entry(newest_first(&ranged.part.head)).or_default().push(ranged),
            }
        }
        base.sort_by_key(|ranged| *ranged.hashes.start());
        let chain = |mut parts: Vec<&RangedPart>| {
            parts.retain(|ranged| *ranged.hashes.end() >= from);
            parts.sort_by_key(|ranged| Reverse(*ranged.hashes.start()));
            PartChain {
                site: files.site(),
                parts: parts.into_iter().cloned().collect(),
                from,
                survey: None,
                is_counted,
                gaps: Vec::new(),
                unread: Vec::new(),
            }
        };
        let through = |ranged: &&RangedPart| (*ranged.hashes.end(), *ranged.part.head.runs.end());
        let through = base.iter().map(through).collect();
        let mut sources = Vec::new();
        for ((Reverse(last), _), parts) in runs {
            sources.push(Source { rows: chain(parts), run: Some(last) });
        }
        sources.push(Source { rows: chain(base), run: None });
        let count = sources.len();
        NewestRows { rows: Newest::new(sources, through), place: 0, sources: count }
    }

    /// Moves to the next row. False after the last one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Some(place) = self.rows.advance()? else { return Ok(false) };
        self.place = place;
        Ok(true)
    }

    /// Returns the row to which `advance` has moved, and true if it is doubtful.
    pub(super) fn row(&self) -> (ColdRow<'_>, bool) {
        let row = self.rows.source(self.place).row().expect("the merge has moved to a row");
        let mut newer = 0..self.place;
        (row, newer.any(|place| self.rows.source(place).may_have_lost(row.hash)))
    }

    /// Returns the damage of the present row.
    pub(super) fn damage_here(&self, files: &PartFiles, what: String) -> Damage {
        let chain = self.rows.source(self.place);
        let (survey, _) = chain.survey.as_ref().expect("the merge has moved to a row");
        let (path, offset) = files.locate(survey.address());
        let part = survey.head().number;
        Damage::in_part(path, offset, part, format!("part {part}: {what}"))
    }

    /// Returns the damage of the parts that were read.
    pub(super) fn damage(&self, files: &PartFiles, tables: &[TableEntry]) -> Vec<Damage> {
        let mut found = Vec::new();
        for place in 0..self.sources {
            let chain = self.rows.source(place);
            let unread = chain.unread.iter();
            found.extend(unread.map(|(part, error)| damage_of(error, *part, files.path(*part))));
            let gaps = chain.gaps.iter();
            found.extend(gaps.filter_map(|(part, gap)| gap_damage(*part, gap, files, tables)));
        }
        found
    }
}

/// Returns the value of a row of a part.
///
/// # Errors
/// A description of what is wrong if the table does not permit the value's length.
pub(super) fn value<'a>(
    table: &TableEntry,
    row: ColdRow<'a>,
) -> std::result::Result<&'a [u8], String> {
    let bytes = row.value.len() - usize::from(row.unused_bytes);
    let longest = table.value_bytes as usize;
    let fits = if table.variable { bytes <= longest } else { bytes == longest };
    if fits {
        Ok(&row.value[..bytes])
    } else {
        Err(format!("the length of key {}'s value is not that of table {:?}", row.key, table.name))
    }
}

/// Returns the damage of a part's blocks. `None` for a gap that may be no damage at all: it lies
/// behind the last sound block of a part whose trailer can't be read.
pub(super) fn gap_damage(
    part: u64,
    gap: &Gap,
    files: &PartFiles,
    tables: &[TableEntry],
) -> Option<Damage> {
    if gap.is_open {
        return None;
    }
    let (path, offset) = files.locate(gap.address);
    let Gap { address, bytes, what, .. } = gap;
    let what = format!("part {part}, {bytes} bytes of rows at address {address:#x}: {what}");
    let name = |number: &TableNumber| {
        let entry = tables.get(usize::from(number.0).checked_sub(1)?)?;
        (!entry.dropped).then(|| entry.name.clone())
    };
    let names: BTreeSet<String> = gap.tables.iter().filter_map(name).collect();
    let tables = names.into_iter().collect();
    Some(Damage { tables, ..Damage::in_part(path, offset, part, what) })
}
