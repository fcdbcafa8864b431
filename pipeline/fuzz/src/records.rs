//! Reads edited record files, also with arbitrary bytes in their parts. A group must be refused or
//! have the right rows, and a check of the file must find every edit.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use embank_pipeline::{
    Batch, Column, Dtype, Error, FeedInput, FeedOptions, Field, FieldKind, Matrix, Output,
    Pipeline, RecordFile, RecordOptions, RecordWriter, RunOptions, Spec, verify_records,
};

use super::edits::{Edit, change};
use super::seals::seal;

const ROWS: usize = 900;
/// Bytes of the head before the description.
const PREFIX_BYTES: usize = 64;
const HEAD_BYTES: usize = 4096;
const TRAILER_BYTES: usize = 64;

/// A damaged record file.
#[derive(Debug, Arbitrary)]
pub struct Damaged {
    which: u8,
    edits: Vec<Edit>,
    raw: Option<Raw>,
    /// True to correct the checksums after the edits.
    seals: bool,
}

/// Arbitrary bytes in place of a part of the file.
#[derive(Debug, Arbitrary)]
enum Raw {
    /// In place of the description, which gets their length.
    Description(Vec<u8>),
    /// In place of the first bytes of a group.
    Group(u8, Vec<u8>),
    /// In place of the first bytes of the footer and the trailer.
    Footer(Vec<u8>),
}

/// A record file, with the offset and the values of each of its groups.
struct Intact {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
    groups: Vec<Vec<Matrix>>,
}

fn spec() -> Spec {
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![Column::field("n"), Column::field("c")],
        outputs: vec![
            Output::new("floats", Dtype::F32, ["n"]),
            Output::new("wides", Dtype::I64, ["c", "n"]),
            Output::new("bits", Dtype::Bits32, ["c", "n", "c"]),
        ],
        ..Spec::default()
    }
}

fn batches(rows: usize) -> Vec<Batch> {
    let pipeline = Pipeline::new(&spec(), &RunOptions { threads: 1, ..Default::default() });
    let line = |row: usize| format!("{row}\t{:x}\n", row.wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF);
    let text: String = (0..rows).map(line).collect();
    let inputs = vec![FeedInput::memory("rows", text.into_bytes())];
    let options = FeedOptions { batch_rows: 97, ..Default::default() };
    let feed = pipeline.and_then(|pipeline| pipeline.feed(inputs, &options)).expect("a feed");
    feed.map(|batch| batch.expect("a batch")).collect()
}

fn intact(folder: &Path, rows: usize, rows_per_group: usize, zstd_level: Option<i32>) -> Intact {
    let path = folder.join("intact.records");
    let pipeline = Pipeline::new(&spec(), &RunOptions::default()).expect("a pipeline");
    let metadata = [("key".to_owned(), "value".to_owned())].into();
    let options = RecordOptions { rows_per_group, zstd_level, metadata };
    let mut writer = RecordWriter::create(&path, pipeline.outputs(), options).expect("a writer");
    for batch in batches(rows) {
        writer.write(&batch).expect("rows");
    }
    writer.finish().expect("a file");
    let file = RecordFile::open(&path).expect("an intact file");
    let group = |group| file.read(group).expect("an intact group").into_matrices();
    let groups = (0..file.groups().len()).map(group).collect();
    let offsets = file.groups().iter().map(|group| group.offset as usize).collect();
    Intact { bytes: fs::read(&path).expect("a file"), offsets, groups }
}

fn files() -> &'static [Intact] {
    static FILES: OnceLock<Vec<Intact>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let file = |(rows, rows_per_group, level)| intact(dir.path(), rows, rows_per_group, level);
        [(ROWS, 200, None), (ROWS, 65_536, Some(1)), (ROWS, 300, Some(9)), (0, 1, None)]
            .map(file)
            .into()
    })
}

impl Raw {
    fn put(&self, file: &mut [u8], offsets: &[usize]) {
        match self {
            Self::Description(raw) => {
                let room = &mut file[PREFIX_BYTES..HEAD_BYTES];
                room.fill(0);
                let length = raw.len().min(room.len());
                room[..length].copy_from_slice(&raw[..length]);
                file[16..24].copy_from_slice(&(length as u64).to_le_bytes());
            }
            Self::Group(number, raw) => {
                if let Some(at) = offsets.get(usize::from(*number) % offsets.len().max(1)) {
                    overwrite(file, *at, raw);
                }
            }
            Self::Footer(raw) => {
                let trailer = file.len() - TRAILER_BYTES;
                let mut offset = [0; 8];
                offset.copy_from_slice(&file[trailer + 16..trailer + 24]);
                overwrite(file, u64::from_le_bytes(offset) as usize, raw);
            }
        }
    }
}

fn overwrite(file: &mut [u8], at: usize, raw: &[u8]) {
    let length = raw.len().min(file.len() - at);
    file[at..at + length].copy_from_slice(&raw[..length]);
}

impl Damaged {
    /// Reads the file, and checks it.
    pub fn run(&self) {
        let intact = &files()[usize::from(self.which) % files().len()];
        let mut bytes = intact.bytes.clone();
        if let Some(raw) = &self.raw {
            raw.put(&mut bytes, &intact.offsets);
        }
        change(&mut bytes, &self.edits);
        if self.seals {
            seal(&mut bytes);
        }
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let path = dir.path().join("damaged.records");
        fs::write(&path, &bytes).expect("a file");
        // With correct checksums, other values are other values of the writer.
        let expected = (!self.seals).then_some(intact);
        let read = read(&path, expected);
        let report = match verify_records(&path, &mut |_| {}) {
            Ok(report) => report,
            Err(Error::NewerRecords { .. }) => {
                assert!(read.is_none());
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(read.unwrap_or(0), report.sound_groups);
        assert!(report.damage.iter().all(|damage| damage.path == path));
        if bytes == intact.bytes {
            assert!(report.is_clean() && report.sound_groups == intact.groups.len() as u64);
        } else if expected.is_some() {
            assert!(!report.is_clean(), "an edit was not found");
        }
    }
}

/// Reads every group. Returns the number of groups that were handed out. `None` if the file was
/// refused.
fn read(path: &Path, expected: Option<&Intact>) -> Option<u64> {
    let file = match RecordFile::open(path) {
        Ok(file) => file,
        Err(Error::Records(_) | Error::NewerRecords { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut sound = 0;
    let (mut batch, mut scratch) = (Batch::default(), Vec::new());
    for (number, group) in file.groups().iter().enumerate() {
        match file.read_into(number, &mut batch, &mut scratch) {
            Ok(()) => {
                sound += 1;
                assert_eq!(batch.rows(), group.rows);
                if let Some(intact) = expected {
                    assert!(same(&batch.take().into_matrices(), &intact.groups[number]));
                }
            }
            Err(Error::Records(damage)) => {
                assert_eq!((damage.group, batch.rows()), (Some(number as u64), 0));
            }
            Err(error) => panic!("{error}"),
        }
    }
    Some(sound)
}

/// True if the values have equal bits.
fn same(a: &[Matrix], b: &[Matrix]) -> bool {
    let pair = |(a, b): (&Matrix, &Matrix)| match (a, b) {
        (Matrix::F32(a), Matrix::F32(b)) => {
            a.iter().map(|value| value.to_bits()).eq(b.iter().map(|value| value.to_bits()))
        }
        (a, b) => a == b,
    };
    a.len() == b.len() && a.iter().zip(b).all(pair)
}
