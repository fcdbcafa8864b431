//! Encodes small structures, such as manifests, with `bincode`, and adds a header with a version
//! and a checksum. No other module uses `bincode`.
//!
//! ```text
//! magic "EMBKMETA" (8) | format version (4) | CRC-32C (4) | length (8) | bincode
//! ```
//!
//! Up to version 6, the checksum covers everything after itself. From version 7 on, it also covers
//! what stands before it. A build of version 6 knows both rules. So it tells a newer file from a
//! file with damage in its version.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, versions};

pub use bincode::{Decode, Encode};

const MAGIC: [u8; 8] = *b"EMBKMETA";
/// The format version of everything except the files of a bank with a cold tier.
pub(crate) const VERSION: u32 = 6;
/// The format version of the manifest of a bank that has had parts, and of such a delta's head.
pub(crate) const VERSION_WITH_PARTS: u32 = 7;
/// The oldest format version that this build reads. Version 5 differs from `VERSION` only in the
/// manifest: see `checkpoint::manifest::ManifestV5`.
pub(crate) const VERSION_OLDEST: u32 = 5;
/// The first format version whose checksum covers the version.
const VERSION_CHECKED: u32 = 7;
const HEADER_BYTES: usize = 24;

/// Why bytes can't be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are sound, and their format version is newer than this program reads.
    Newer {
        /// The name of the format.
        kind: &'static str,
        /// The format version of the bytes.
        found: u32,
        /// The oldest format version that this program reads.
        oldest: u32,
        /// The newest format version that this program reads.
        newest: u32,
    },
    /// The bytes are damaged, or are no encoded value. The text names the fault: the magic number,
    /// the version, the length, the checksum or the content.
    Damaged(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Newer { kind, found, oldest, newest } => write!(
                formatter,
                "it has version {found} of the {kind} format, this program reads {}; use a newer Embank",
                versions(*oldest, *newest)
            ),
            DecodeError::Damaged(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<String> for DecodeError {
    fn from(what: String) -> Self {
        DecodeError::Damaged(what)
    }
}

impl From<&str> for DecodeError {
    fn from(what: &str) -> Self {
        DecodeError::Damaged(what.to_owned())
    }
}

impl DecodeError {
    /// Returns the error of the file at `path`, in which the bytes begin at offset 0.
    #[must_use]
    pub fn of_file(self, path: PathBuf) -> Error {
        match self {
            DecodeError::Newer { kind, found, oldest, newest } => {
                Error::NewerFormat { path, kind, found, oldest, newest }
            }
            DecodeError::Damaged(what) => Error::Damaged { path, offset: 0, what },
        }
    }
}

/// Encodes a value with a header.
#[must_use]
pub fn encode<T: Encode>(value: &T) -> Vec<u8> {
    encode_as(VERSION, value)
}

/// Encodes a value with a header that gives this format version.
#[must_use]
pub(crate) fn encode_as<T: Encode>(version: u32, value: &T) -> Vec<u8> {
    let body = bincode::encode_to_vec(value, bincode::config::standard())
        .expect("encoding into memory fails only for types that refuse it");
    frame(version, &body)
}

fn frame(version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = checksum(version, &bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the checksum that a file of this format version must have.
fn checksum(version: u32, bytes: &[u8]) -> u32 {
    let before = if version < VERSION_CHECKED { 0 } else { crc32c::crc32c(&bytes[..12]) };
    crc32c::crc32c_append(before, &bytes[16..])
}

/// Returns the format version that the header gives. The checksum is not checked, so the bytes may
/// be damaged. 0 if there is no header.
pub(crate) fn version(bytes: &[u8]) -> u32 {
    bytes.get(8..12).map_or(0, |at| u32::from_le_bytes([at[0], at[1], at[2], at[3]]))
}

/// Decodes a value that [`encode`] encoded.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> std::result::Result<T, DecodeError> {
    decode_up_to(VERSION, bytes)
}

/// Decodes a value of a format version up to `newest`. The caller has chosen the type by the
/// version that the header gives ([`version`]).
pub(crate) fn decode_up_to<T: Decode<()>>(
    newest: u32,
    bytes: &[u8],
) -> std::result::Result<T, DecodeError> {
    if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
        return Err("it does not begin like Embank metadata".into());
    }
    let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    let version = word(8);
    let stored = word(12);
    let computed = checksum(version, bytes);
    if stored != computed {
        return Err(format!("its checksum is {computed:#010x}, not {stored:#010x}").into());
    }
    if version > newest {
        return Err(DecodeError::Newer {
            kind: "metadata",
            found: version,
            oldest: VERSION_OLDEST,
            newest,
        });
    }
    if version < VERSION_OLDEST {
        let what = format!(
            "format version {version} is not {VERSION_OLDEST} to {newest}, which this build reads"
        );
        return Err(what.into());
    }
    let body = &bytes[HEADER_BYTES..];
    if u64::from(word(16)) | u64::from(word(20)) << 32 != body.len() as u64 {
        return Err("its length is wrong".into());
    }
    let config = bincode::config::standard().with_limit::<{ 256 << 20 }>();
    match bincode::decode_from_slice(body, config) {
        Ok((value, used)) if used == body.len() => Ok(value),
        Ok(_) => Err("bytes follow its content".into()),
        Err(e) => Err(format!("its content does not decode: {e}").into()),
    }
}

/// Decodes a value from the start of the content, and ignores the bytes after the value. Checks no
/// header and no checksum.
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_start<T: Decode<()>>(bytes: &[u8]) -> Option<T> {
    let body = bytes.get(HEADER_BYTES..)?;
    bincode::decode_from_slice(body, bincode::config::standard()).ok().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flip_and_cut_is_noticed() {
        let value = (String::from("user"), 16u32, vec![1u8, 2, 3]);
        let bytes = encode(&value);
        assert_eq!(decode::<(String, u32, Vec<u8>)>(&bytes).unwrap(), value);
        for i in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[i] ^= 1;
            assert!(decode::<(String, u32, Vec<u8>)>(&flipped).is_err(), "flip at {i}");
            assert!(decode::<(String, u32, Vec<u8>)>(&bytes[..i]).is_err(), "cut at {i}");
        }
    }

    #[test]
    fn a_newer_version_is_not_damage() {
        let newer = frame(VERSION + 1, b"what only a newer build can decode");
        let error = decode::<u64>(&newer).unwrap_err();
        assert!(matches!(error, DecodeError::Newer { found, .. } if found == VERSION + 1));
        for bit in 0..newer.len() * 8 {
            let mut flipped = newer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = decode::<u64>(&flipped).unwrap_err();
            assert!(matches!(error, DecodeError::Damaged(_)), "bit {bit}: {error}");
        }
    }

    /// Without this, damage to the version would send the user to a newer build that does not
    /// exist.
    #[test]
    fn damage_to_the_version_is_damage() {
        let bytes = encode(&7_u64);
        for bit in 64..96 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = decode::<u64>(&flipped).unwrap_err();
            assert!(matches!(error, DecodeError::Damaged(_)), "bit {bit}: {error}");
        }
    }
}
