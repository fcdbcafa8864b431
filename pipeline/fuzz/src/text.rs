//! Reads texts, with and without quotes. Every level, chunk size and number of threads must give
//! the result of the reference.

use std::fs;

use arbitrary::Arbitrary;
use embank_pipeline::{BadRows, Input};

use super::reference::{self, Kind, OneField, Shape, check, fields};

const TEXT_BYTES_MAX: usize = 96 << 10;
const PIECES_MAX: usize = 24;
const CHUNKS_MAX: usize = 600;

/// A part of a text.
#[derive(Debug, Clone, Arbitrary)]
pub enum Piece {
    Raw(Vec<u8>),
    /// Each byte selects a character that matters to the decoder.
    Characters(Vec<u8>),
    /// Rows of the fields, with occasional faults.
    Rows {
        count: u16,
        seed: u64,
        faults: u8,
    },
    /// A copy of a part of the text so far.
    Again {
        from: u16,
        bytes: u16,
    },
}

/// A text, and the options for reading it.
#[derive(Debug, Clone, Arbitrary)]
pub struct Text {
    pub fields: Vec<OneField>,
    separator: u8,
    header: bool,
    pub skip: bool,
    chunk: u16,
    threads: u8,
    in_file: bool,
    split: Option<u16>,
    pub pieces: Vec<Piece>,
}

struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn characters(shape: Shape) -> [u8; 32] {
    let (separator, quote) = (shape.separator, shape.quote.unwrap_or(b'7'));
    [
        separator, separator, separator, separator, b'\n', b'\n', b'\n', b'\r', quote, quote,
        quote, b'0', b'1', b'2', b'5', b'9', b'a', b'c', b'F', b'g', b'-', b'-', b'.', b'e', b'E',
        b'+', b' ', 0, 0x7F, 0x80, 0xFF, b',',
    ]
}

fn field(kind: Kind, draws: &mut Draws, shape: Shape) -> Vec<u8> {
    let digits = 1 + draws.below(12) as u32;
    let number = draws.next() % 10_u64.pow(digits);
    let sign = if draws.below(4) == 0 { "-" } else { "" };
    let text = match kind {
        _ if draws.below(6) == 0 => String::new(),
        Kind::Int32 => format!("{sign}{}", number % 2_147_483_648),
        Kind::Int64 => match draws.below(9) {
            0 => i64::MIN.to_string(),
            1 => i64::MAX.to_string(),
            _ => format!("{sign}{number}"),
        },
        Kind::Hex32 if draws.below(2) == 0 => format!("{:08x}", number as u32),
        Kind::Hex32 => format!("{:X}", number as u32),
        Kind::Float32 => format!("{sign}{number}.{}e{}", draws.below(1000), draws.below(20)),
        Kind::Bytes | Kind::Skip => {
            let bytes = match draws.below(40) {
                0 => draws.below(300),
                1 => 65_534 + draws.below(4),
                _ => draws.below(12),
            };
            "word".chars().cycle().take(bytes as usize).collect()
        }
    };
    let mut text = text.into_bytes();
    let Some(quote) = shape.quote.filter(|_| draws.below(3) == 0) else { return text };
    if matches!(kind, Kind::Bytes | Kind::Skip) && draws.below(2) == 0 {
        text.push(characters(shape)[draws.below(11) as usize]);
    }
    let inner = text.iter().flat_map(|&byte| vec![byte; 1 + usize::from(byte == quote)]);
    [quote].into_iter().chain(inner).chain([quote]).collect()
}

/// Assembles a text from its pieces.
pub fn assemble(pieces: &[Piece], fields: &[OneField], shape: Shape) -> Vec<u8> {
    let mut text = Vec::new();
    for piece in pieces.iter().take(PIECES_MAX) {
        match piece {
            Piece::Raw(bytes) => text.extend_from_slice(bytes),
            Piece::Characters(bytes) => {
                let all = characters(shape);
                text.extend(bytes.iter().map(|byte| all[usize::from(byte % 32)]));
            }
            Piece::Rows { count, seed, faults } => {
                let mut draws = Draws(*seed);
                for _ in 0..count % 2500 {
                    if text.len() > TEXT_BYTES_MAX {
                        break;
                    }
                    for (place, of) in fields.iter().enumerate() {
                        if place > 0 {
                            text.push(shape.separator);
                        }
                        text.extend(field(of.kind, &mut draws, shape));
                        if draws.below(2048) < u64::from(*faults) {
                            text.push(characters(shape)[draws.below(32) as usize]);
                        }
                    }
                    let end: &[u8] = if draws.below(5) == 0 { b"\r\n" } else { b"\n" };
                    text.extend_from_slice(end);
                }
            }
            Piece::Again { from, bytes } => {
                let from = usize::from(*from).min(text.len());
                let end = text.len().min(from + usize::from(*bytes));
                text.extend_from_within(from..end);
            }
        }
        text.truncate(TEXT_BYTES_MAX);
    }
    text
}

/// True if the pipeline would decompress the text.
pub fn looks_compressed(text: &[u8]) -> bool {
    text.starts_with(&[0x1F, 0x8B, 8]) || text.starts_with(&[0x28, 0xB5, 0x2F, 0xFD])
}

impl Text {
    /// Returns the fields, the format and the inputs. `None` if an input looks compressed.
    pub fn inputs(&self, quoted: bool) -> Option<(Vec<OneField>, Shape, Vec<Vec<u8>>)> {
        let fields = fields(&self.fields);
        let separator = match self.separator {
            b'\n' | b'\r' => b'\t',
            other if other % 3 == 0 => other,
            other if other % 3 == 1 => b'\t',
            _ => b',',
        };
        let quote = quoted.then_some(if separator == b'"' { b'\'' } else { b'"' });
        let shape = Shape { separator, header: self.header, quote };
        let mut text = assemble(&self.pieces, &fields, shape);
        let mut inputs = Vec::new();
        if let Some(at) = self.split {
            let at = usize::from(at) % (text.len() + 1);
            let rest = text.split_off(at);
            inputs.push(text);
            text = rest;
        }
        inputs.push(text);
        (!inputs.iter().any(|text| looks_compressed(text))).then_some((fields, shape, inputs))
    }

    /// Returns the options of a run over `bytes` bytes: bad rows, threads and chunk size.
    pub fn how(&self, bytes: usize) -> (BadRows, usize, usize) {
        let bad_rows = if self.skip { BadRows::Skip } else { BadRows::Fail };
        let odd = match self.chunk % 4 {
            0 => usize::from(self.chunk % 70) + 1,
            1 => usize::from(self.chunk % 1000) + 1,
            _ => usize::from(self.chunk) + 1,
        };
        (bad_rows, usize::from(self.threads % 3) + 1, odd.max(bytes / CHUNKS_MAX))
    }

    /// Reads the text, with quotes or without, and compares with the reference.
    pub fn run(&self, quoted: bool) {
        let Some((fields, shape, texts)) = self.inputs(quoted) else { return };
        let how = self.how(texts.iter().map(Vec::len).sum());
        let name = reference::name;
        if !self.in_file {
            let inputs: Vec<_> =
                texts.iter().enumerate().map(|(i, text)| Input::memory(name(i), text)).collect();
            check(&inputs, &texts, &fields, shape, how);
            return;
        }
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let inputs: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(i, text)| {
                let path = dir.path().join(name(i));
                fs::write(&path, text).expect("a file");
                Input::file(path)
            })
            .collect();
        check(&inputs, &texts, &fields, shape, how);
    }
}
