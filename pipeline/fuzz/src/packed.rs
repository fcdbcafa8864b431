//! Reads rows of 32-bit numbers, from memory and from files. Every level must give the numbers in
//! the bytes.

use std::fs;

use arbitrary::Arbitrary;
use embank_pipeline::{BadRows, Error, Format, Input, Level, RunOptions};

use super::reference::{Decoded, Kind, OneField, fields, run, spec};

const BYTES_MAX: usize = 64 << 10;

/// Packed rows, and the options for reading them.
#[derive(Debug, Arbitrary)]
pub struct Packed {
    fields: Vec<OneField>,
    chunk: u16,
    threads: u8,
    in_file: bool,
    /// True to cut the bytes to complete rows.
    whole: bool,
    again: u8,
    bytes: Vec<u8>,
}

impl Packed {
    /// Reads the rows at every level and compares.
    pub fn run(&self) {
        let mut fields = fields(&self.fields);
        for field in &mut fields {
            if matches!(field.kind, Kind::Int64 | Kind::Bytes) {
                field.kind = Kind::Hex32;
            }
        }
        let row_bytes = fields.len() * 4;
        let mut bytes = self.bytes.repeat(usize::from(self.again) + 1);
        bytes.truncate(BYTES_MAX);
        if self.whole {
            bytes.truncate(bytes.len() / row_bytes * row_bytes);
        }
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let input = if self.in_file {
            let path = dir.path().join("rows");
            fs::write(&path, &bytes).expect("a file");
            Input::file(path)
        } else {
            Input::memory("rows", &bytes)
        };
        let mut expected = Decoded::default();
        for row in bytes.chunks_exact(row_bytes) {
            expected.rows += 1;
            for (field, value) in fields.iter().zip(row.as_chunks::<4>().0) {
                if field.kind != Kind::Skip {
                    expected.words.push(u32::from_le_bytes(*value));
                }
            }
        }
        let chunk_bytes = (usize::from(self.chunk) + 1).max(bytes.len() / 500);
        for level in Level::available() {
            let options = RunOptions {
                threads: usize::from(self.threads % 3) + 1,
                level,
                format: Format::Packed,
                chunk_bytes,
                ..RunOptions::default()
            };
            let found = run(&spec(&fields, BadRows::Fail), &options, std::slice::from_ref(&input));
            if !bytes.len().is_multiple_of(row_bytes) {
                assert!(matches!(found, Err(Error::NoWholeRows { .. })), "{level}: {found:?}");
                continue;
            }
            let found = found.expect("rows can be read");
            found.expect_equal(&expected, level);
        }
    }
}
