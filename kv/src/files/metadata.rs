//! Encodes small structures, such as manifests, with `bincode`, and adds a header with a version
//! and a checksum. No other module uses `bincode`.
//!
//! ```text
//! magic "EMBKMETA" (8) | format version (4) | CRC-32C of the rest (4) | length (8) | bincode
//! ```

pub use bincode::{Decode, Encode};

const MAGIC: [u8; 8] = *b"EMBKMETA";
pub(crate) const VERSION: u32 = 6;
/// The oldest format version that this build reads. Version 5 differs from `VERSION` only in the
/// manifest: see `checkpoint::manifest::ManifestV5`.
pub(crate) const VERSION_OLDEST: u32 = 5;
const HEADER_BYTES: usize = 24;

/// Encodes a value with a header.
#[must_use]
pub fn encode<T: Encode>(value: &T) -> Vec<u8> {
    let body = bincode::encode_to_vec(value, bincode::config::standard())
        .expect("encoding into memory fails only for types that refuse it");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    let crc = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// True if the header gives format version 5. The checksum is not checked, so the bytes may be
/// damaged.
pub(crate) fn is_version_5(bytes: &[u8]) -> bool {
    bytes.get(8..12) == Some(&5_u32.to_le_bytes())
}

/// Decodes a value that [`encode`] encoded.
///
/// # Errors
/// A text that names the fault: the magic number, the version, the length, the checksum or the
/// content.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> std::result::Result<T, String> {
    if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
        return Err("it does not begin like Embank metadata".into());
    }
    let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    let stored = word(12);
    let computed = crc32c::crc32c(&bytes[16..]);
    if stored != computed {
        return Err(format!("its checksum is {computed:#010x}, not {stored:#010x}"));
    }
    let version = word(8);
    if !(VERSION_OLDEST..=VERSION).contains(&version) {
        return Err(format!(
            "format version {version} is not {VERSION_OLDEST} to {VERSION}, which this build reads"
        ));
    }
    let body = &bytes[HEADER_BYTES..];
    if u64::from(word(16)) | u64::from(word(20)) << 32 != body.len() as u64 {
        return Err("its length is wrong".into());
    }
    let config = bincode::config::standard().with_limit::<{ 256 << 20 }>();
    match bincode::decode_from_slice(body, config) {
        Ok((value, used)) if used == body.len() => Ok(value),
        Ok(_) => Err("bytes follow its content".into()),
        Err(e) => Err(format!("its content does not decode: {e}")),
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
}
