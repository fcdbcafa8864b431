//! Notices that a file is changed while a run reads it.
//!
//! A run reads a file in pieces, and some runs read it twice. If another program writes the file in
//! the meantime, the run would read rows of two files, or halves of rows. So a run keeps what the
//! system says of the file when it opens it, and compares it after each piece that it reads. A
//! program that writes a new file and renames it over the old one does no harm: the open file stays
//! the old one.
//!
//! A change is seen by the file's length and its time of change. The file's inode is not compared:
//! some network file systems give an unchanged file another inode at each open, and the second pass
//! of a run would refuse it. A file that replaces another between the passes is seen by the same
//! two marks, because a new file has a time of its own unless a program sets it.
//!
//! The system's clock for such times has steps of some milliseconds, so a change within the step of
//! the change before it goes unseen if the length stays the same.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;

use embank::locks::Mutex;

use crate::error::{Error, Result};

/// What the system says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileState {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }

    /// The file's time of change, in nanoseconds since 1970.
    pub(super) fn modified_ns(&self) -> i64 {
        let (seconds, nanoseconds) = self.modified;
        seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
    }

    /// Fails if the open file `file` differs from this state.
    pub(super) fn check(&self, file: &File, input: &str) -> Result<()> {
        let metadata = file.metadata().map_err(|source| Error::Io {
            doing: "look at",
            path: input.into(),
            source,
        })?;
        self.check_same(&Self::of(&metadata), input)
    }

    fn check_same(&self, now: &Self, input: &str) -> Result<()> {
        if self == now {
            return Ok(());
        }
        let what = if self.bytes != now.bytes {
            format!("it had {} bytes and has {}", self.bytes, now.bytes)
        } else {
            "its time of change is another".to_owned()
        };
        Err(Error::InputChanged { input: input.to_owned(), what })
    }
}

/// The states of a run's inputs when the run first opened them. A run of two passes opens each
/// input twice, and must find an unchanged file.
#[derive(Debug, Default)]
pub(crate) struct FileStates(Mutex<Vec<Option<FileState>>>);

impl FileStates {
    /// Records the state of input number `place`, or compares it with the recorded one.
    pub(super) fn check(&self, place: usize, state: Option<&FileState>, input: &str) -> Result<()> {
        let Some(state) = state else { return Ok(()) };
        let mut states = self.0.lock();
        if states.len() <= place {
            states.resize(place + 1, None);
        }
        let known = states[place].get_or_insert(*state);
        known.check_same(state, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a run of two passes refuses a file that was replaced between them. The counts of
    /// the first pass would be those of other rows.
    #[test]
    fn the_second_pass_must_find_the_same_files() {
        let file = |bytes, seconds| FileState { bytes, modified: (seconds, 0) };
        let states = FileStates::default();
        for pass in 0..2 {
            for place in [3, 0] {
                states.check(place, Some(&file(9, 5)), "t").unwrap();
            }
            states.check(1, None, "memory").unwrap_or_else(|error| panic!("{pass}: {error}"));
        }
        for (changed, told) in
            [(file(8, 5), "it had 9 bytes and has 8"), (file(9, 6), "its time of change")]
        {
            let error = states.check(3, Some(&changed), "t").unwrap_err().to_string();
            assert!(error.starts_with("t: ") && error.contains(told), "{error}");
        }
    }
    /// Regression test: some network file systems give a file another inode at each open. A run of
    /// two passes refused such a file, although it was unchanged.
    #[test]
    fn another_inode_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let modified = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9);
        // Both files exist, so their inodes differ.
        let [one, other] = ["one", "other"].map(|name| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(modified).unwrap();
            file.metadata().unwrap()
        });
        assert_ne!(one.ino(), other.ino());
        let states = FileStates::default();
        for metadata in [one, other] {
            states.check(0, Some(&FileState::of(&metadata)), "t").unwrap();
        }
    }
}
