//! A segment file and its transfers.

use crate::device::contract::BLOCK_BYTES_MAX;
use crate::device::transfer;
use crate::device::transfer::Progress;
use crate::error::{Error, Result};
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Makes the error for a failed read: the system's error with file and offset.
pub(crate) fn read_failed(path: PathBuf, offset: u64, source: &io::Error) -> Error {
    let source = io::Error::new(source.kind(), format!("at offset {offset}: {source}"));
    Error::io("read", path, source)
}

/// An open segment file.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) place: Place,
    pub(crate) file: HeldFile,
}

impl Segment {
    pub(crate) fn file(&self) -> &File {
        self.file.file()
    }

    pub(crate) fn truncated(&self, offset: u64, expected: usize, found: usize) -> Error {
        Error::Truncated {
            path: self.place.path(),
            offset,
            expected: expected as u64,
            found: found as u64,
        }
    }

    /// Makes the error for a failed read: the system's error with file and offset.
    pub(crate) fn read_failed(&self, offset: u64, source: &io::Error) -> Error {
        read_failed(self.place.path(), offset, source)
    }

    pub(crate) fn write_failed(&self, offset: u64, source: &io::Error) -> Error {
        let source = io::Error::new(source.kind(), format!("at offset {offset}: {source}"));
        Error::io("write", &self.place, source)
    }

    /// Fills `buffer` from offset `offset` of the file. Continues after a short read.
    pub(crate) fn read_exact(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        let mut retries = 0;
        loop {
            let moved = match self.file().read_at(&mut buffer[done..], offset + done as u64) {
                Ok(moved) => moved,
                Err(error) if transfer::is_transient(&error) => {
                    retries += 1;
                    if retries > transfer::retries_max(1) {
                        return Err(self.read_failed(offset + done as u64, &error));
                    }
                    continue;
                }
                Err(error) => return Err(self.read_failed(offset + done as u64, &error)),
            };
            match Progress::after(buffer.len(), done, moved) {
                Progress::Complete => return Ok(()),
                Progress::More => done += moved,
                Progress::EndOfFile => {
                    return Err(self.truncated(offset, buffer.len(), done + moved));
                }
            }
        }
    }

    /// Writes all of `bytes`. If a write stops inside a block of the largest size, the next write
    /// begins at that block's start, because a direct write must begin at a block.
    pub(crate) fn write_all(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.check().map_err(|e| self.write_failed(offset, &e))?;
        let mut done = 0;
        let mut retries = 0;
        while done < bytes.len() {
            match self.file().write_at(&bytes[done..], offset + done as u64) {
                Ok(moved) if done + moved >= bytes.len() => break,
                Ok(moved) if moved >= BLOCK_BYTES_MAX => {
                    done += moved / BLOCK_BYTES_MAX * BLOCK_BYTES_MAX;
                }
                // The next write says why.
                Ok(moved) if moved > 0 && retries < transfer::retries_max(1) => retries += 1,
                Ok(_) => {
                    let source = io::Error::from(io::ErrorKind::WriteZero);
                    return Err(self.write_failed(offset + done as u64, &source));
                }
                Err(error) if transfer::is_transient(&error) => {
                    retries += 1;
                    if retries > transfer::retries_max(1) {
                        return Err(self.write_failed(offset + done as u64, &error));
                    }
                }
                Err(error) => return Err(self.write_failed(offset + done as u64, &error)),
            }
        }
        Ok(())
    }
}
