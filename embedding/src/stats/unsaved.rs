//! What closing a bank loses.

use std::path::Path;

use embank_kv::StoreStats;

/// Changes that closing a bank loses.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(1))?;
/// table.put(&[1, 2], &[0.5, 1.5])?;
/// let unsaved = bank.unsaved().unwrap();
/// assert_eq!((unsaved.changes, unsaved.checkpoint), (2, None));
/// let number = bank.checkpoint(b"")?;
/// assert_eq!(bank.unsaved(), None);
/// table.put(&[1], &[2.5])?;
/// assert_eq!(bank.unsaved().unwrap().checkpoint, Some(number));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsaved {
    /// Changes of rows since the newest checkpoint; at least 1. A row that was made, updated, put
    /// or deleted counts once for each call that did it. Rows of vocabularies count too. If
    /// other threads change rows during a checkpoint, the number may include changes that are in
    /// the checkpoint.
    pub changes: u64,
    /// The newest checkpoint's number; `None` if there is none.
    pub checkpoint: Option<u64>,
}

impl Unsaved {
    pub(crate) fn of(stats: &StoreStats) -> Option<Self> {
        let changes = stats.changed_since_checkpoint;
        let newest = stats.newest_checkpoint;
        let checkpoint = (newest > 0).then_some(newest);
        (changes > 0).then_some(Self { changes, checkpoint })
    }

    /// Says what happens to the changes when the bank at `path` closes, and what saves them.
    #[must_use]
    pub fn describe(&self, path: &Path) -> String {
        let Self { changes, checkpoint } = self;
        let lost = match changes {
            1 => "1 change of a row".to_owned(),
            _ => format!("{changes} changes of rows"),
        };
        let since = match checkpoint {
            Some(number) => format!(" since checkpoint {number}"),
            None => ", and has no checkpoint".to_owned(),
        };
        format!("bank {path:?} loses {lost}{since}: take a checkpoint before the bank is closed")
    }
}
