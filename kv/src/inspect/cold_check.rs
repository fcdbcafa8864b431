//! Verifies the parts of the cold tier.
//!
//! Each part is read once, however many checkpoints name it. Then the rows of each checkpoint are
//! counted: those of its log and, slice by slice, the newest version of each other row in its
//! parts.
//!
//! After blind puts, the manifest's number of rows is not the number of rows. It is the number of
//! rows whose newest version that is not uncounted is a row (`record::layout`). Verification then
//! counts a second time, without the uncounted versions of the log and the parts.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::Damage;
use super::Progress;
use super::bank::BankFiles;
use super::hot_rows::HotRows;
use super::log_files::{LogFiles, PageRead};
use super::parts::{NewestRows, PartFiles, RangedPart, damage_of, gap_damage, list_damage, value};
use super::walk::{Broken, Deleted, Row, Source, Visit, walk};
use crate::checkpoint::manifest::TableEntry;
use crate::cold::head::{PAGE_BYTES, PartHead, part_address};
use crate::cold::list::ListedPart;
use crate::cold::newest::OrderedRows;
use crate::cold::part::Part;
use crate::cold::survey::Survey;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;
use crate::record::layout::record_bytes;

/// The parts of the checkpoints that are verified.
#[derive(Debug)]
pub(super) struct ColdCheck {
    /// `None` if no checkpoint has parts.
    files: Option<PartFiles>,
    /// For each checkpoint, its parts. `None` if it has no parts, or if its list can't be read.
    sources: Vec<Option<ColdSource>>,
    /// For each checkpoint, true if its list or one of its parts is damaged.
    is_damaged: Vec<bool>,
    /// Number of parts that were read.
    pub(super) parts: u64,
}

#[derive(Debug)]
struct ColdSource {
    parts: Vec<RangedPart>,
    hot: HotRows,
    /// The rows of the log that are not uncounted. `None` if no version is uncounted.
    counted: Option<HotRows>,
}

/// What was found of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Found {
    pub(super) rows: u64,
    /// Bytes of the records of these rows.
    pub(super) bytes: u64,
    /// The number of rows that the manifest must have. Differs from `rows` after blind puts.
    pub(super) counted: u64,
}

impl ColdCheck {
    /// Checks the lists and the parts of all `sources`, and adds what is damaged to `damage`.
    /// Rows of the log take at most `memory_bytes` of memory.
    pub(super) fn new(
        dir: &Arc<Directory>,
        files: &BankFiles,
        sources: &[Source],
        memory_bytes: u64,
        damage: &mut Vec<Damage>,
    ) -> Result<Self> {
        let mut check = ColdCheck {
            files: None,
            sources: Vec::new(),
            is_damaged: vec![false; sources.len()],
            parts: 0,
        };
        let mut read = BTreeSet::new();
        let mut damaged = BTreeSet::new();
        for (place, source) in sources.iter().enumerate() {
            let number = source.identity.checkpoint;
            check.sources.push(None);
            let Some(manifest) = files.manifest(number) else { continue };
            let list = match files.checkpoints.parts(manifest) {
                Ok(list) => list,
                Err(error @ Error::NewerFormat { .. }) => return Err(error),
                Err(error) => {
                    let path = files.checkpoints.list_path(number);
                    damage.push(list_damage(&error, &path, number));
                    check.is_damaged[place] = true;
                    continue;
                }
            };
            if list.parts.is_empty() {
                continue;
            }
            let part_files = check.files.get_or_insert_with(|| PartFiles::new(dir, manifest));
            for listed in &list.parts {
                // Parts of two lists with one number are the same part, or one of them is damaged.
                let key = (listed.head.number, listed.head.salt);
                if read.insert(key) {
                    let found = check_part(part_files, listed, &source.tables);
                    check.parts += 1;
                    if !found.is_empty() {
                        damaged.insert(key);
                    }
                    damage.extend(found);
                }
                check.is_damaged[place] |= damaged.contains(&key);
            }
            let parts = list.parts.into_iter().map(RangedPart::from).collect();
            let marked = manifest.cold.as_ref();
            let marked = marked.is_some_and(|cold| cold.uncounted.iter().any(|&of| of > 0));
            let noted_bytes = memory_bytes / sources.len() as u64 / (1 + u64::from(marked));
            let hot = HotRows::new(noted_bytes);
            let counted = marked.then(|| HotRows::new(noted_bytes));
            check.sources[place] = Some(ColdSource { parts, hot, counted });
        }
        Ok(check)
    }

    /// Notes a row or a tombstone of the log.
    pub(super) fn note(&mut self, key_hash: KeyHash, row: Deleted) {
        let Deleted { source, table, key, uncounted } = row;
        let Some(cold) = &mut self.sources[source] else { return };
        let hash = key_hash.of(table, key);
        cold.hot.note(hash, table);
        if let Some(counted) = cold.counted.as_mut().filter(|_| !uncounted) {
            counted.note(hash, table);
        }
    }

    /// True if the list or a part of a checkpoint is damaged.
    pub(super) fn is_damaged(&self, source: usize) -> bool {
        self.is_damaged[source]
    }

    /// True if one of the checkpoints that `kept` accepts has the part.
    pub(super) fn is_named(&self, part: u64, kept: impl Fn(usize) -> bool) -> bool {
        let named = self.sources.iter().enumerate().filter(|(place, _)| kept(*place));
        named
            .filter_map(|(_, cold)| cold.as_ref())
            .any(|cold| cold.parts.iter().any(|ranged| ranged.part.head.number == part))
    }

    /// Counts the rows of the parts that the log does not have. `found` has what was found of each
    /// checkpoint and table. The log has been walked once.
    pub(super) fn count_rows(
        &mut self,
        files: &BankFiles,
        log: &mut LogFiles,
        sources: &[Source],
        memory_bytes: u64,
        found: &mut [Vec<Found>],
        damage: &mut Vec<Damage>,
    ) -> Result<()> {
        let Some(part_files) = &self.files else { return Ok(()) };
        for ((cold, source), found) in self.sources.iter_mut().zip(sources).zip(found) {
            let Some(ColdSource { parts, hot, counted }) = cold else { continue };
            let has_marks = counted.is_some();
            for (hot, is_counted) in
                [Some((hot, false)), counted.as_mut().map(|of| (of, true))].into_iter().flatten()
            {
                // The loop ends: each slice has higher hashes.
                loop {
                    hot.slice.end_noting();
                    let rows = match is_counted {
                        false => NewestRows::new(part_files, parts, hot.slice.first()),
                        true => NewestRows::counted(part_files, parts, hot.slice.first()),
                    };
                    let count = |found: &mut Found, bytes| {
                        if !is_counted {
                            found.rows += 1;
                            found.bytes += bytes;
                        }
                        found.counted += u64::from(is_counted == has_marks);
                    };
                    count_slice(part_files, rows, hot, source, found, count, damage)?;
                    if !hot.slice.next() {
                        break;
                    }
                    let mut noting = Noting { hot, key_hash: source.key_hash, is_counted };
                    walk(files, log, std::slice::from_ref(source), memory_bytes, &mut noting)?;
                }
            }
        }
        Ok(())
    }
}

/// Calls `count` for the tables of the rows of one slice, with the bytes of each row's record.
fn count_slice(
    files: &PartFiles,
    mut rows: NewestRows<'_>,
    hot: &mut HotRows,
    source: &Source,
    found: &mut [Found],
    count: impl Fn(&mut Found, u64),
    damage: &mut Vec<Damage>,
) -> Result<()> {
    // The loop ends with the last row of the slice.
    while rows.advance()? {
        let (row, _) = rows.row();
        if row.hash > hot.slice.last() {
            break;
        }
        if row.flags.tombstone || hot.hides(row.hash, row.table) {
            continue;
        }
        // Merges leave out rows of dropped tables, but parts may still have them.
        let table = source.table(row.table, 0).filter(|table| !table.dropped);
        let Some(table) = table else { continue };
        match value(table, row) {
            Ok(value) => {
                let bytes = record_bytes(value.len()) as u64;
                count(&mut found[usize::from(row.table.0) - 1], bytes);
            }
            Err(what) => {
                let what = rows.damage_here(files, what);
                if !damage.contains(&what) {
                    damage.push(what);
                }
            }
        }
    }
    Ok(())
}

/// Notes the rows of the log, and nothing else.
struct Noting<'a> {
    hot: &'a mut HotRows,
    key_hash: KeyHash,
    /// True if uncounted rows are left out.
    is_counted: bool,
}

impl Noting<'_> {
    fn note(&mut self, table: TableNumber, key: u64, uncounted: bool) {
        if !(self.is_counted && uncounted) {
            self.hot.note(self.key_hash.of(table, key), table);
        }
    }
}

impl Visit for Noting<'_> {
    fn page(&mut self, _log: &LogFiles, _page: &PageRead) -> Result<()> {
        Ok(())
    }

    fn missing(&mut self, _log: &LogFiles, _start: u64, _end: u64) {}

    fn row(&mut self, row: Row<'_>) -> Result<bool> {
        self.note(row.table, row.key, row.uncounted);
        Ok(true)
    }

    fn tombstone(&mut self, Deleted { table, key, uncounted, .. }: Deleted) {
        self.note(table, key, uncounted);
    }

    fn broken(&mut self, _log: &LogFiles, _broken: Broken<'_>) -> Result<()> {
        Ok(())
    }

    fn progress(&mut self, _progress: Progress) {}
}

/// Checks a whole part: header, trailer, fences and filters, and each row. Returns all damage.
fn check_part(files: &PartFiles, listed: &ListedPart, tables: &[TableEntry]) -> Vec<Damage> {
    let ListedPart { head, file_bytes, trailer_crc } = listed;
    let site = files.site();
    let number = head.number;
    let (place, _) = files.place(part_address(number, site.segment_size_bytes));
    let mut found = Vec::new();
    let in_part = |offset, what: String| {
        let what = format!("part {number}: {what}");
        Damage::in_part(place.path(), offset, number, what)
    };
    match place.len() {
        Ok(bytes) if bytes == *file_bytes => {}
        Ok(bytes) => {
            let what =
                format!("the file has {bytes} bytes, the checkpoint's list says {file_bytes}");
            found.push(in_part(bytes.min(*file_bytes), what));
        }
        Err(error) => {
            let what = match error.kind() {
                io::ErrorKind::NotFound => "the file is not there".to_owned(),
                _ => error.to_string(),
            };
            found.push(in_part(0, what));
            return found;
        }
    }
    match PartHead::read(site, number) {
        Ok(read) if read == *head => {}
        Ok(_) => {
            let what = "the header is not the one that the checkpoint's list names".to_owned();
            found.push(in_part(0, what));
        }
        Err(error) => found.push(damage_of(&error, number, place.path())),
    }
    let part = Part::load(site, head, *file_bytes, *trailer_crc);
    let part = part.map_err(|error| found.push(damage_of(&error, number, place.path()))).ok();
    let mut survey = Survey::new(site, head, *file_bytes, part.as_ref(), 0);
    let (mut rows, mut tombstones, mut uncounted, mut astray) = (0, 0, 0, 0);
    // The loop ends with the last row. A survey never fails.
    while survey.advance().unwrap_or(false) {
        let Some(row) = survey.row() else { break };
        rows += 1;
        tombstones += u64::from(row.flags.tombstone);
        uncounted += u64::from(row.flags.uncounted);
        let Some(part) = &part else { continue };
        let leads = part.block_of(row.hash).is_some_and(|place| place.address >= survey.address());
        if !leads || !part.may_have(row.hash) {
            astray += 1;
            if astray == 1 {
                let (_, offset) = files.locate(survey.address());
                let of = if leads { "filters deny" } else { "fences do not lead to" };
                found.push(in_part(offset, format!("its {of} key {}", row.key)));
            }
        }
    }
    let gaps = survey.gaps().iter();
    found.extend(gaps.filter_map(|gap| gap_damage(number, gap, files, tables)));
    if let Some(part) = part.filter(|_| survey.gaps().is_empty()) {
        let counts = (rows, tombstones, uncounted);
        let expected = (part.rows(), part.tombstones(), part.uncounted());
        if counts != expected {
            let what = format!(
                "its rows, tombstones and uncounted rows are {counts:?}, the trailer says {expected:?}"
            );
            found.push(in_part(file_bytes - PAGE_BYTES as u64, what));
        }
    }
    found
}
