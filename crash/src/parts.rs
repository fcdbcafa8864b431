//! Which parts of a cold tier a bank has written: runs that left the log, runs that were joined,
//! and parts of the base. The first bytes of a part say this (`docs/format.md`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::journal::{Journal, Node, Op};

/// Bytes of a part's header up to and with its level.
const HEAD_BYTES: usize = 42;

/// True if a file of the folder `log` is a part. The addresses of parts begin at 2^49.
#[must_use]
pub fn is_part(name: &str) -> bool {
    name.starts_with("0002") && name.ends_with(".seg")
}

/// Counts of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts {
    /// Runs that left the log.
    pub runs: u64,
    /// Parts of runs that were joined from several runs.
    pub joined: u64,
    /// Parts of the base.
    pub base: u64,
    /// Parts without a header, whose writing was interrupted.
    pub unfinished: u64,
    /// Files of parts that were removed.
    pub removed: u64,
}

impl std::ops::AddAssign for Parts {
    fn add_assign(&mut self, other: Parts) {
        self.runs += other.runs;
        self.joined += other.joined;
        self.base += other.base;
        self.unfinished += other.unfinished;
        self.removed += other.removed;
    }
}

impl Parts {
    /// Counts the parts that a recorded life has completed and removed.
    #[must_use]
    pub fn of_journal(journal: &Journal) -> Self {
        let mut names: BTreeMap<Node, &str> = BTreeMap::new();
        let mut parts = Parts::default();
        for op in &journal.ops {
            match op {
                Op::Make { name, node, is_dir: false, .. } => _ = names.insert(*node, name),
                // The header is written last.
                Op::Write { node, offset: 0, bytes }
                    if names.get(node).is_some_and(|n| is_part(n)) =>
                {
                    parts.note(bytes);
                }
                Op::Unlink { name, .. } => parts.removed += u64::from(is_part(name)),
                _ => {}
            }
        }
        parts
    }

    /// Counts the parts in the folder `log` of the bank in `dir`.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn of_bank(dir: &Path) -> std::io::Result<Self> {
        let mut parts = Parts::default();
        for entry in std::fs::read_dir(dir.join("log"))? {
            let entry = entry?;
            if is_part(&entry.file_name().to_string_lossy()) {
                let mut head = Vec::new();
                let file = std::fs::File::open(entry.path())?;
                file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
                parts.note(&head);
            }
        }
        Ok(parts)
    }

    /// Counts the part that begins with these bytes.
    fn note(&mut self, bytes: &[u8]) {
        match (bytes.starts_with(b"EMBKPART"), bytes.get(40), bytes.get(41)) {
            (true, Some(0), Some(_)) => self.base += 1,
            (true, Some(_), Some(0)) => self.runs += 1,
            (true, Some(_), Some(_)) => self.joined += 1,
            _ => self.unfinished += 1,
        }
    }
}
