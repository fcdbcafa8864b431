//! Reads edited tar archives, and compares with a reader that goes through the archive in one
//! stream.

use std::fs;
use std::io::Read;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use embank_pipeline::{
    BadRows, Column, Dtype, Field, FieldKind, Format, Input, Operator, Output, RunOptions, Spec,
};

use super::edits::{Edit, change};
use super::reference::{HASH_SEED, MODULUS, expected_of_input, run};

const BLOCK_BYTES: usize = 512;
const BYTES_MAX: usize = 64 << 10;
/// Where a header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A damaged archive, and the options for reading it.
#[derive(Debug, Arbitrary)]
pub struct Damaged {
    which: u8,
    edits: Vec<Edit>,
    /// Arbitrary bytes in place of a header, whose checksum is then right.
    header: Option<(u8, Vec<u8>)>,
    /// True to correct the checksums of headers after the edits.
    seals: bool,
    /// True to read from a file on disk, not from memory.
    in_file: bool,
    chunk: u16,
    threads: u8,
}

fn spec() -> Spec {
    let hash = Operator::Hash { seed: HASH_SEED };
    Spec {
        fields: vec![
            Field::new("txt", FieldKind::Bytes).required(),
            Field::new("cls", FieldKind::Int64),
        ],
        columns: vec![
            Column::field("txt").then(hash).then(Operator::Modulus(MODULUS)),
            Column::field("cls").then(Operator::FillMissing(7.into())),
        ],
        outputs: vec![Output::new("both", Dtype::I64, ["txt", "cls"])],
        bad_rows: BadRows::Skip,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

fn files() -> &'static [Vec<u8>] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let long = format!("{}/d.txt", "long".repeat(40));
        let members: [(&str, &[u8]); 7] = [
            ("a.txt", b"one"),
            ("a.cls", b"1\n"),
            ("train/b.txt", &[0; 600]),
            ("README", b"no row"),
            (&long, b"three"),
            ("c.cls", b"3"),
            ("c.txt", b""),
        ];
        [tar::Header::new_gnu(), tar::Header::new_ustar()]
            .map(|empty| {
                let mut archive = tar::Builder::new(Vec::new());
                for (number, (name, bytes)) in members.iter().enumerate() {
                    let is_posix = empty.as_ustar().is_some();
                    if is_posix && number == 2 {
                        let names = [("path", name.as_bytes()), ("comment", b"none")];
                        archive.append_pax_extensions(names).expect("it goes to memory");
                    }
                    let mut header = empty.clone();
                    header.set_size(bytes.len() as u64);
                    header.set_mode(0o644);
                    archive.append_data(&mut header, name, *bytes).expect("it goes to memory");
                }
                archive.into_inner().expect("it goes to memory")
            })
            .into()
    })
}

/// Corrects the checksum of each header that lies where the members before it say.
fn seal(archive: &mut [u8]) {
    let mut at = 0;
    // The loop ends: each turn moves on by a block at least.
    while let Some(block) = archive.get_mut(at..at + BLOCK_BYTES) {
        if block.iter().all(|&byte| byte == 0) {
            return;
        }
        seal_header(block);
        let header =
            tar::Header::from_byte_slice(archive[at..][..BLOCK_BYTES].try_into().expect("a block"));
        let Ok(bytes) = header.entry_size() else { return };
        let Some(after) = bytes.checked_next_multiple_of(BLOCK_BYTES as u64) else { return };
        at = (at + BLOCK_BYTES).saturating_add(after as usize);
        if at > archive.len() {
            return;
        }
    }
}

fn seal_header(block: &mut [u8]) {
    block[CHECKSUM].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// A row of the reference: its name, and the bytes of both fields.
type Row = (Vec<u8>, [Option<Vec<u8>>; 2]);

/// Returns the rows of an archive. `None` if the `tar` crate refuses it as a stream.
fn rows(archive: &[u8]) -> Option<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut stream = tar::Archive::new(archive);
    for entry in stream.entries().ok()? {
        let mut entry = entry.ok()?;
        let path = entry.path_bytes().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).ok()?;
        let begin = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let Some(dot) = path[begin..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)
        else {
            continue;
        };
        let (name, extension) = (&path[..begin + dot], &path[begin + dot + 1..]);
        let field = ["txt", "cls"]
            .iter()
            .position(|field| field.as_bytes().eq_ignore_ascii_case(extension));
        let Some(field) = field else { continue };
        if rows.last().is_none_or(|(last, _)| last != name) {
            rows.push((name.to_owned(), [None, None]));
        }
        rows.last_mut()?.1[field] = Some(bytes);
    }
    Some(rows)
}

/// The values of a good row. `None` for a bad row.
fn values([text, class]: &[Option<Vec<u8>>; 2]) -> Option<[u64; 2]> {
    let trimmed = |bytes: &Option<Vec<u8>>| {
        let bytes = bytes.clone()?;
        let end = bytes.strip_suffix(b"\r\n").or(bytes.strip_suffix(b"\n"));
        Some(end.unwrap_or(&bytes).to_vec())
    };
    let text = trimmed(text).filter(|text| (1..=1 << 16).contains(&text.len()))?;
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&text, HASH_SEED) % u64::from(MODULUS);
    let class = match trimmed(class) {
        None => 7,
        Some(class) if class.is_empty() => 7,
        Some(class) => number(&class)?,
    };
    Some([hash, class as u64])
}

/// Reads a whole number of at most 64 bits, without a sign of plus.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then_some(())?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl Damaged {
    /// Reads the archive.
    pub fn run(&self) {
        let mut bytes = files()[usize::from(self.which) % files().len()].clone();
        if let Some((number, raw)) = &self.header {
            let blocks = bytes.len() / BLOCK_BYTES;
            let block = &mut bytes[usize::from(*number) % blocks * BLOCK_BYTES..][..BLOCK_BYTES];
            let length = raw.len().min(BLOCK_BYTES);
            block[..length].copy_from_slice(&raw[..length]);
            seal_header(block);
        }
        change(&mut bytes, &self.edits);
        bytes.truncate(BYTES_MAX);
        if self.seals {
            seal(&mut bytes);
        }
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let input = if self.in_file {
            let path = dir.path().join("archive.tar");
            fs::write(&path, &bytes).expect("a file");
            Input::file(path)
        } else {
            Input::memory("archive.tar", &bytes)
        };
        let options = RunOptions {
            threads: usize::from(self.threads % 2) + 1,
            format: Format::Columns,
            chunk_bytes: usize::from(self.chunk) + 1,
            ..RunOptions::default()
        };
        match run(&spec(), &options, &[input]) {
            Ok(decoded) => {
                // An archive that is read has every row of the stream, with its values.
                let rows = rows(&bytes).expect("a stream that is read");
                let good: Vec<_> =
                    rows.iter().filter_map(|(_, row)| values(row)).flatten().collect();
                assert_eq!(decoded.wides.iter().map(|&wide| wide as u64).collect::<Vec<_>>(), good);
                assert_eq!(decoded.rows + decoded.bad_rows, rows.len() as u64);
            }
            Err(error) => {
                assert!(!self.edits.is_empty() || self.header.is_some(), "{error}");
                expected_of_input(&error);
            }
        }
    }
}
