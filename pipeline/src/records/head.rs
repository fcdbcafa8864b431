//! The head of a record file: magic, version, and the description of its outputs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fault::{Fault, check_sum};
use super::segment::{info_of, shape_of};
use super::{ALIGNMENT, FULL, VERSION, aligned, first_nonzero, u32_at, u64_at};
use crate::batch::MatrixInfo;
use crate::error::{Result, refused};
use crate::spec::Dtype;

const MAGIC: [u8; 8] = *b"EMBKRECS";
/// Bytes of the head before the description.
///
/// ```text
/// bytes 0..8    magic                  8..12   version
/// bytes 12..16  CRC-32C of bytes 0..12 and 16..64
/// bytes 16..24  bytes of the description
/// bytes 24..28  CRC-32C of the description
/// bytes 28..64  zero
/// ```
pub(super) const PREFIX_BYTES: usize = 64;
/// Largest number of bytes of a description.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// What a file says of its content, stored as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    outputs: Vec<DescribedOutput>,
    /// Names of the fidelities, lowest first. A group has a segment for each.
    fidelities: Vec<String>,
    /// The caller's own words.
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedOutput {
    name: String,
    columns: Vec<String>,
    dtype: Dtype,
    /// Shape of a row.
    shape: Vec<u64>,
}

/// The fixed part of a head, whose checksum was right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The checksum of the fixed part. The trailer repeats it.
    pub(super) crc: u32,
    description_bytes: u64,
    description_crc: u32,
}

impl Description {
    pub(super) fn new(outputs: &[MatrixInfo], metadata: BTreeMap<String, String>) -> Self {
        let described = |info: &MatrixInfo| DescribedOutput {
            name: info.name.clone(),
            columns: info.columns.clone(),
            dtype: info.dtype,
            shape: shape_of(info),
        };
        let outputs = outputs.iter().map(described).collect();
        Self { outputs, fidelities: vec![FULL.to_owned()], metadata }
    }

    /// Returns the head with its zeros, and the checksum of its fixed part.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if the description is too long.
    pub(super) fn to_head(&self) -> Result<(Vec<u8>, u32)> {
        let text = serde_json::to_vec(self).expect("text and numbers become JSON");
        if text.len() as u64 > DESCRIPTION_BYTES_MAX {
            return refused(format!(
                "the head of a record file describes outputs and metadata in {} bytes, and may have \
                 {DESCRIPTION_BYTES_MAX}; shorten the metadata",
                text.len()
            ));
        }
        let mut head = Vec::with_capacity(PREFIX_BYTES + text.len() + ALIGNMENT as usize);
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 4]);
        head.extend((text.len() as u64).to_le_bytes());
        head.extend(crc32c::crc32c(&text).to_le_bytes());
        head.resize(PREFIX_BYTES, 0);
        let crc = crc_of(&head);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
        head.extend(text);
        head.resize(aligned(head.len() as u64) as usize, 0);
        Ok((head, crc))
    }

    /// Reads the description and the zeros that follow the fixed part.
    pub(super) fn parse(prefix: &Prefix, rest: &[u8]) -> std::result::Result<Self, Fault> {
        let (text, zeros) = rest.split_at(prefix.description_bytes as usize);
        check_sum(PREFIX_BYTES as u64, prefix.description_crc, crc32c::crc32c(text))?;
        if let Some(at) = first_nonzero(zeros) {
            let offset = (PREFIX_BYTES + text.len() + at) as u64;
            return Err(Fault::damage(offset, "bytes after its description are not zero"));
        }
        let description: Self = serde_json::from_slice(text).map_err(|error| {
            let what = format!("its description can't be read: {error}");
            // Other members and values are those of a newer program. Every program writes JSON.
            match error.is_data() {
                true => Fault::newer(what),
                false => Fault::damage(PREFIX_BYTES as u64, what),
            }
        })?;
        if description.fidelities.len() != 1 {
            let what = format!("it has {} fidelities", description.fidelities.len());
            return Err(Fault::newer(what));
        }
        Ok(description)
    }

    /// Returns the outputs.
    pub(super) fn infos(&self) -> std::result::Result<Vec<MatrixInfo>, Fault> {
        let info = |output: &DescribedOutput| {
            let DescribedOutput { name, columns, dtype, shape } = output;
            info_of(name, columns, *dtype, shape).ok_or_else(|| {
                let columns = columns.len();
                let what =
                    format!("rows of output {name:?} have {columns} columns and shape {shape:?}");
                Fault::newer(what)
            })
        };
        self.outputs.iter().map(info).collect()
    }

    /// The name of the fidelity.
    pub(super) fn fidelity(&self) -> &str {
        &self.fidelities[0]
    }
}

impl Prefix {
    pub(super) fn parse(bytes: &[u8; PREFIX_BYTES]) -> std::result::Result<Self, Fault> {
        if bytes[..8] != MAGIC {
            let what =
                "it does not begin as a record file; it is a file of another kind, or damaged";
            return Err(Fault::damage(0, what));
        }
        let crc = u32_at(bytes, 12);
        check_sum(0, crc, crc_of(bytes))?;
        check_version(0, u32_at(bytes, 8))?;
        if let Some(at) = first_nonzero(&bytes[28..]) {
            return Err(Fault::damage(28 + at as u64, "bytes of its head are not zero"));
        }
        let description_bytes = u64_at(bytes, 16);
        if description_bytes > DESCRIPTION_BYTES_MAX {
            let what = format!("its description is to have {description_bytes} bytes");
            return Err(Fault::damage(16, what));
        }
        Ok(Self { crc, description_bytes, description_crc: u32_at(bytes, 24) })
    }

    /// Offset of the first group.
    pub(super) fn head_bytes(&self) -> u64 {
        aligned(PREFIX_BYTES as u64 + self.description_bytes)
    }
}

/// Checks a version after its checksum was found right.
pub(super) fn check_version(offset: u64, version: u32) -> std::result::Result<(), Fault> {
    match version {
        VERSION => Ok(()),
        0 => Err(Fault::damage(offset, "it has version 0, which no program writes")),
        newer => Err(Fault::newer(format!("it has version {newer} of the format"))),
    }
}

/// Returns the checksum of a structure of 64 bytes that has its checksum in bytes 12..16.
pub(super) fn crc_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..64])
}
