//! Files of a fleet in a bank's directory: made whole, or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use embank_kv::OutputFile;
use embank_kv::metadata::DecodeError;

use crate::error::{Error, Result, StoreError};

/// Bytes of a frame's header.
const HEADER_BYTES: usize = 16;

/// Puts a header before a frame's body: magic, version, and a checksum of the header and the body.
///
/// ```text
/// at  bytes  content
/// 0   8      magic
/// 8   4      version
/// 12  4      CRC-32C of bytes 0..12 and of everything from byte 16
/// 16         body
/// ```
pub(super) fn frame(magic: [u8; 8], version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(magic);
    bytes.extend(version.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes), body);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Checks a frame, and returns its body. `kind` is the name of the format in errors.
pub(super) fn unframe<'b>(
    bytes: &'b [u8],
    kind: &'static str,
    magic: [u8; 8],
    version: u32,
) -> std::result::Result<&'b [u8], DecodeError> {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(format!(
            "it has {} bytes, and its header alone has {HEADER_BYTES}",
            bytes.len()
        )
        .into());
    };
    if header[..8] != magic {
        return Err(format!("it does not begin with {}", String::from_utf8_lossy(&magic)).into());
    }
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), body);
    if word(12) != computed {
        return Err(format!("its checksum is {computed:#010x}, not {:#010x}", word(12)).into());
    }
    match word(8) {
        found if found == version => Ok(body),
        found if found > version => {
            Err(DecodeError::Newer { kind, found, oldest: version, newest: version })
        }
        found => Err(format!("its format version is {found}, not {version}").into()),
    }
}

/// Reads the bytes of a body from its start.
pub(super) struct Body<'b>(pub(super) &'b [u8]);

impl<'b> Body<'b> {
    pub(super) fn take<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        let (first, rest) = self.0.split_first_chunk().ok_or("it is cut short")?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u32(&mut self) -> std::result::Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> std::result::Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn slice(&mut self, len: u64) -> std::result::Result<&'b [u8], String> {
        let len = usize::try_from(len).map_err(|_| "it is cut short")?;
        let (first, rest) = self.0.split_at_checked(len).ok_or("it is cut short")?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn end(self) -> std::result::Result<(), String> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes follow its content")),
        }
    }
}

/// Returns the error of the file at `path`. `cure` follows the text of a damage.
pub(super) fn unreadable(error: DecodeError, path: PathBuf, cure: &str) -> Error {
    let error = match error {
        DecodeError::Damaged(what) => DecodeError::Damaged(format!("{what}; {cure}")),
        newer @ DecodeError::Newer { .. } => newer,
    };
    error.of_file(path).into()
}

/// Creates a file durably. After a crash, the file is whole or does not exist.
///
/// # Errors
/// `Io`, also if the name exists. After an error, the file does not exist.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OutputFile::create(path)?;
    file.write_all(bytes).map_err(|error| StoreError::io("write", path, error))?;
    file.sync()?;
    Ok(file.publish_new()?)
}

/// Reads a file. `None` if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", path, error).into()),
    }
}

/// Makes a directory durably, if it does not exist.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(StoreError::io("create", path, error).into())
        }
        // Synced even if the directory exists: the process that made it may have been killed before
        // its sync.
        _ => path.parent().map_or(Ok(()), sync),
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    Ok(synced.map_err(|error| StoreError::io("sync", dir, error))?)
}

/// Removes a file if it exists.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::io("remove", path, error).into())
        }
        _ => Ok(()),
    }
}

/// Lists the names in a directory that `parse` understands, sorted. The list is empty if the
/// directory does not exist.
pub(super) fn list<T: Ord>(dir: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let failed = |error: io::Error| StoreError::io("list", dir, error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry.map_err(failed)?.file_name().to_str().and_then(&parse));
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns the number that a name of exactly `digits` decimal digits gives.
pub(super) fn number_of(name: &str, digits: usize) -> Option<u64> {
    let are_digits = name.len() == digits && name.bytes().all(|byte| byte.is_ascii_digit());
    are_digits.then(|| name.parse().ok()).flatten()
}
