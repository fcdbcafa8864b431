//! Reads compressed texts. An input is a whole or damaged text, or arbitrary bytes after the magic
//! bytes of a compression.

use std::io::Write;

use arbitrary::Arbitrary;
use embank_pipeline::{BadRows, Input, Level, RunOptions};

use super::edits::{Edit, change};
use super::reference::{check, expected_of_input, name, run, spec};
use super::text::Text;

/// A compressed text.
#[derive(Debug, Arbitrary)]
pub struct Compressed {
    zstd: bool,
    /// Whether zstd adds a checksum.
    checksum: bool,
    level: u8,
    /// Places that cut the text. Each part becomes a frame or member of its own.
    cuts: [Option<u16>; 2],
    quoted: bool,
    /// Arbitrary bytes to read in place of a text.
    raw: Option<Vec<u8>>,
    edits: Vec<Edit>,
    text: Text,
}

impl Compressed {
    fn compress(&self, text: &[u8]) -> Vec<u8> {
        if self.zstd {
            let level = i32::from(self.level % 6);
            let mut encoder =
                zstd::stream::write::Encoder::new(Vec::new(), level).expect("an encoder");
            encoder.include_checksum(self.checksum).expect("a setting");
            encoder.write_all(text).expect("it goes to memory");
            return encoder.finish().expect("it goes to memory");
        }
        let level = flate2::Compression::new(u32::from(self.level % 10));
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(text).expect("it goes to memory");
        encoder.finish().expect("it goes to memory")
    }

    /// Reads the text. Without edits, the result must equal the reference.
    pub fn run(&self) {
        let Some((fields, shape, mut texts)) = self.text.inputs(self.quoted) else { return };
        let text = texts.remove(0);
        let how = self.text.how(text.len());
        let mut bytes = Vec::new();
        if let Some(raw) = &self.raw {
            let magic: &[u8] = if self.zstd { &[0x28, 0xB5, 0x2F, 0xFD] } else { &[0x1F, 0x8B, 8] };
            bytes.extend_from_slice(magic);
            bytes.extend_from_slice(raw);
        } else {
            let mut cuts: Vec<_> =
                self.cuts.iter().flatten().map(|&at| usize::from(at) % (text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            for part in cuts.windows(2) {
                bytes.extend(self.compress(&text[part[0]..part[1]]));
            }
            if self.edits.is_empty() {
                let inputs = [Input::memory(name(0), &bytes)];
                check(&inputs, &[text], &fields, shape, how);
                return;
            }
            change(&mut bytes, &self.edits);
        }
        let options = RunOptions {
            threads: how.1,
            level: Level::detect(),
            format: shape.format(),
            chunk_bytes: how.2,
            ..RunOptions::default()
        };
        let input = Input::memory(name(0), &bytes);
        if let Err(error) = run(&spec(&fields, BadRows::Skip), &options, &[input]) {
            expected_of_input(&error);
        }
    }
}
