//! Finds a checkpoint's parts by their headers, if the checkpoint's list can't be read.
//!
//! The folder `log` has the checkpoint's parts, and may have parts of other checkpoints: those that
//! a merge has replaced, and those that were written later. A part of the first kind lies below
//! newer parts, which have its rows. A run of the second kind has rows of the log that the
//! checkpoint's own index leads to, or rows that the checkpoint lacks: it is left out.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use super::Damage;
use super::parts::{PartFiles, RangedPart};
use crate::checkpoint::manifest::Manifest;
use crate::cold::head::{Kind, PartHead};
use crate::cold::list::{ListedPart, check_shape};
use crate::cold::part::Part;

/// The parts that the headers name.
pub(super) struct FoundParts {
    pub(super) parts: Vec<RangedPart>,
    /// True if these are certainly the checkpoint's parts.
    pub(super) is_exact: bool,
    pub(super) damage: Vec<Damage>,
}

/// Finds the parts of the checkpoint of `manifest`.
pub(super) fn find_parts(files: &PartFiles, manifest: &Manifest) -> FoundParts {
    let mut damage = Vec::new();
    let mut found = Vec::new();
    for (number, file_bytes) in files.numbers() {
        match read(files, number, file_bytes) {
            Ok(listed) if is_of(&listed.head, manifest) => found.push(listed),
            Ok(_) => {}
            Err(error) => damage.push(super::parts::damage_of(&error, number, files.path(number))),
        }
    }
    let is_exact = damage.is_empty() && is_one_list(&found);
    let (mut base, runs): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|part| part.head.kind == Kind::Base);
    base.sort_by_key(|part| (Reverse(*part.head.runs.end()), Reverse(part.head.number)));
    let mut parts: Vec<RangedPart> = Vec::new();
    for part in base {
        // The hashes that no newer base part has.
        let mut free = vec![part.head.hashes.clone()];
        for newer in &parts {
            free = free.iter().flat_map(|range| without(range, &newer.hashes)).collect();
        }
        parts.extend(free.into_iter().map(|hashes| RangedPart { part: part.clone(), hashes }));
    }
    parts.extend(runs.into_iter().map(RangedPart::from));
    FoundParts { parts, is_exact, damage }
}

/// Reads the header and the trailer's checksum of a part, and checks its fences and filters.
fn read(files: &PartFiles, number: u64, file_bytes: u64) -> crate::error::Result<ListedPart> {
    let site = files.site();
    let head = PartHead::read(site, number)?;
    let trailer_crc = files.trailer_crc(number, file_bytes)?;
    Part::load(site, &head, file_bytes, trailer_crc)?;
    Ok(ListedPart { head, file_bytes, trailer_crc })
}

/// False for a part of another bank, and for a run that has rows of the checkpoint's log, or later
/// ones.
fn is_of(head: &PartHead, manifest: &Manifest) -> bool {
    let is_spilled = head.kind == Kind::Run && !head.log.is_empty();
    head.bank == manifest.bank && !(is_spilled && head.log.start >= manifest.log_begin)
}

/// True if the parts are those of one list: none replaces another.
fn is_one_list(parts: &[ListedPart]) -> bool {
    let runs = || parts.iter().map(|part| &part.head).filter(|head| head.kind == Kind::Run);
    let base = || parts.iter().map(|part| &part.head).filter(|head| head.kind == Kind::Base);
    let is_nested = |run: &PartHead| {
        runs().any(|outer| outer.runs != run.runs && outer.runs.contains(run.runs.end()))
    };
    let merged = base().map(|part| *part.runs.end()).min().unwrap_or(0);
    check_shape(parts.iter().map(|part| &part.head)).is_ok()
        && runs().all(|run| !is_nested(run) && *run.runs.end() > merged)
}

/// Returns the hashes of `range` that `other` lacks.
fn without(range: &RangeInclusive<u64>, other: &RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
    let (first, last) = (*range.start(), *range.end());
    if last < *other.start() || first > *other.end() {
        return vec![range.clone()];
    }
    let mut left = Vec::new();
    if first < *other.start() {
        left.push(first..=other.start() - 1);
    }
    if last > *other.end() {
        left.push(other.end() + 1..=last);
    }
    left
}
