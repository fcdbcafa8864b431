//! Checks every byte of a record file.

use std::path::Path;

use super::fault::RecordDamage;
use super::reader::RecordFile;
use crate::batch::Batch;
use crate::error::{Error, Result};

/// What a check of a record file found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordReport {
    /// Number of groups in the index. 0 if the index can't be read.
    pub groups: u64,
    /// Number of rows in the index. 0 if the index can't be read.
    pub rows: u64,
    /// Groups that can be read.
    pub sound_groups: u64,
    /// Rows of these groups.
    pub sound_rows: u64,
    /// All damage. If the head or the index is damaged, that alone: no group can be read then.
    pub damage: Vec<RecordDamage>,
}

impl RecordReport {
    /// True if the file is not damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Checks every byte of a record file, and goes on after a damaged group. `progress` is called with
/// the number of bytes that have been checked.
///
/// # Errors
/// [`Error::NewerRecords`] if a newer version of Embank wrote the file. [`Error::Io`] if the head
/// or the index can't be read. A group that can't be read counts as damaged.
///
/// # Examples
/// ```
/// use embank_pipeline::{RecordOptions, RecordWriter, verify_records};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("empty.records");
/// RecordWriter::create(&path, &[], RecordOptions::default())?.finish()?;
/// assert!(verify_records(&path, &mut |_| {})?.is_clean());
///
/// let mut bytes = std::fs::read(&path).unwrap();
/// bytes[100] ^= 1;
/// std::fs::write(&path, bytes).unwrap();
/// assert_eq!(verify_records(&path, &mut |_| {})?.damage.len(), 1);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
pub fn verify_records(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<RecordReport> {
    let file = match RecordFile::open(path) {
        Ok(file) => file,
        Err(Error::Records(damage)) => {
            return Ok(RecordReport { damage: vec![damage], ..RecordReport::default() });
        }
        Err(error) => return Err(error),
    };
    let mut report = RecordReport {
        groups: file.groups().len() as u64,
        rows: file.rows(),
        ..RecordReport::default()
    };
    let (mut batch, mut scratch) = (Batch::default(), Vec::new());
    progress(file.head_bytes());
    for (number, group) in file.groups().iter().enumerate() {
        match damage_of(&file, number, &mut batch, &mut scratch)? {
            None => {
                report.sound_groups += 1;
                report.sound_rows += group.rows as u64;
            }
            Some(damage) => report.damage.push(damage),
        }
        let damage = |offset, what| file.damage(Some(number as u64), offset, what);
        match file.nonzero_after(number, &mut scratch) {
            Ok(None) => {}
            Ok(Some(at)) => {
                report.damage.push(damage(at, "bytes after it are not zero".to_owned()));
            }
            Err(error) => {
                let end = group.offset + group.stored_bytes;
                report.damage.push(damage(end, unreadable(error)?));
            }
        }
        progress(file.next_offset(number));
    }
    progress(file.file_bytes());
    Ok(report)
}

/// Returns the damage of a group. `None` if the group can be read.
fn damage_of(
    file: &RecordFile,
    group: usize,
    batch: &mut Batch,
    scratch: &mut Vec<u8>,
) -> Result<Option<RecordDamage>> {
    match file.read_into(group, batch, scratch) {
        Ok(()) => Ok(None),
        Err(Error::Records(damage)) => Ok(Some(damage)),
        Err(error) => {
            let offset = file.groups()[group].offset;
            Ok(Some(file.damage(Some(group as u64), offset, unreadable(error)?)))
        }
    }
}

/// Says that bytes can't be read. Passes other errors on.
fn unreadable(error: Error) -> Result<String> {
    match error {
        Error::Io { source, .. } => Ok(format!("it can't be read: {source}")),
        other => Err(other),
    }
}
