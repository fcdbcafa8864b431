//! Reads edited Parquet and Arrow files, and arbitrary bytes. The pipeline must read or refuse each
//! of them.

use std::fs;
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use arrow_array::builder::{ListBuilder, StringDictionaryBuilder, UInt8Builder};
use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Float32Array, Float64Array, Int8Array,
    Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray, StringViewArray,
    UInt32Array, UInt64Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use embank_pipeline::{
    BadRows, Column, Dtype, Field, FieldKind, Format, Input, Level, Operator, Output, RunOptions,
    Spec,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use super::edits::{Edit, change};
use super::reference::{expected_of_input, run};

const ROWS: usize = 37;
const BYTES_MAX: usize = 64 << 10;

/// A damaged file, and the options for reading it.
#[derive(Debug, Arbitrary)]
pub struct Damaged {
    which: u8,
    edits: Vec<Edit>,
    /// Arbitrary bytes to read in place of a file.
    raw: Option<Vec<u8>>,
    /// True to read from a file on disk, not from memory.
    in_file: bool,
    chunk: u16,
    threads: u8,
}

/// A spec with fields of every kind except `Uint64`.
pub fn columns_spec() -> Spec {
    let kinds = [
        ("small", FieldKind::Int32),
        ("large", FieldKind::Int64),
        ("ratio", FieldKind::Float32),
        ("site", FieldKind::Hex32),
        ("word", FieldKind::Bytes),
        ("bytes", FieldKind::Bytes),
    ];
    let column = |(name, kind)| {
        let column = Column::field(name);
        let fill = |value| Operator::FillMissing(value);
        match kind {
            FieldKind::Bytes => column
                .then(fill("none".into()))
                .then(Operator::Hash { seed: 1 })
                .then(Operator::Modulus(1 << 30)),
            FieldKind::Float32 => column.then(fill(0.5.into())),
            _ => column.then(fill(9.into())),
        }
    };
    let names = |wide: bool| {
        kinds.into_iter().filter(move |(name, _)| (*name == "large") == wide).map(|(name, _)| name)
    };
    Spec {
        fields: kinds.iter().map(|&(name, kind)| Field::new(name, kind)).collect(),
        columns: kinds.map(column).into(),
        outputs: vec![
            Output::new("words", Dtype::Bits32, names(false)),
            Output::new("wides", Dtype::I64, names(true)),
        ],
        bad_rows: BadRows::Skip,
        // All rows of an intact file may be bad.
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

fn batch(of: usize) -> RecordBatch {
    let numbers = || (0..ROWS).map(|n| (n % 5 > 0).then_some(n as i64 * 7));
    let words = || (0..ROWS).map(|n| (n % 4 > 0).then(|| format!("{}", n % 9 * 11)));
    let small: ArrayRef = match of {
        0 => Arc::new(numbers().map(|n| n.map(|n| n as i32)).collect::<Int32Array>()),
        1 => Arc::new(numbers().map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>()),
        _ => Arc::new(numbers().map(|n| n.map(|n| (n % 100) as i8)).collect::<Int8Array>()),
    };
    let large: ArrayRef = match of {
        0 => Arc::new(numbers().collect::<Int64Array>()),
        1 => Arc::new(numbers().map(|n| n.map(|n| n as u64)).collect::<UInt64Array>()),
        _ => Arc::new(words().collect::<StringViewArray>()),
    };
    let ratio: ArrayRef = match of {
        0 => Arc::new(numbers().map(|n| n.map(|n| n as f64 / 4.0)).collect::<Float64Array>()),
        _ => Arc::new(numbers().map(|n| n.map(|n| n as f32 / 4.0)).collect::<Float32Array>()),
    };
    let site: ArrayRef = match of {
        0 => Arc::new(numbers().map(|n| n.map(|n| n as u32)).collect::<UInt32Array>()),
        _ => Arc::new(words().collect::<LargeStringArray>()),
    };
    let word: ArrayRef = match of {
        2 => Arc::new(words().map(|w| w.map(String::into_bytes)).collect::<BinaryViewArray>()),
        _ => Arc::new(words().collect::<StringArray>()),
    };
    let bytes = words().map(|w| w.map(String::into_bytes)).collect::<BinaryArray>();
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("word", word),
        ("small", small),
        ("large", large),
        ("ratio", ratio),
        ("site", site),
        ("bytes", Arc::new(bytes)),
    ];
    if of == 0 {
        let mut list = ListBuilder::new(UInt8Builder::new());
        let mut dictionary = StringDictionaryBuilder::<Int8Type>::new();
        for row in 0..ROWS {
            list.append_value((0..row as u8 % 3).map(Some));
            dictionary.append_value(format!("{}", row % 3));
        }
        columns.push(("list", Arc::new(list.finish())));
        columns.push(("dictionary", Arc::new(dictionary.finish())));
    }
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

/// Returns Parquet files of several codecs, encodings and versions.
pub fn parquet_files() -> &'static [Vec<u8>] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let file = |(of, codec, plain): (usize, Compression, bool)| {
            let batch = batch(of);
            let mut properties = WriterProperties::builder()
                .set_compression(codec)
                .set_data_page_row_count_limit(16)
                .set_write_batch_size(8)
                .set_max_row_group_row_count(Some(29));
            if plain {
                properties = properties
                    .set_dictionary_enabled(false)
                    .set_statistics_enabled(EnabledStatistics::None)
                    .set_offset_index_disabled(true)
                    .set_column_encoding("word".into(), Encoding::DELTA_BYTE_ARRAY)
                    .set_column_encoding("bytes".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY)
                    .set_column_encoding("large".into(), Encoding::DELTA_BINARY_PACKED)
                    .set_column_encoding("ratio".into(), Encoding::BYTE_STREAM_SPLIT)
                    .set_writer_version(WriterVersion::PARQUET_2_0);
            }
            let mut writer =
                ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build()))
                    .expect("a writer");
            writer.write(&batch).expect("it goes to memory");
            writer.into_inner().expect("it goes to memory")
        };
        let zstd = Compression::ZSTD(ZstdLevel::default());
        [
            (0, Compression::UNCOMPRESSED, false),
            (0, Compression::UNCOMPRESSED, true),
            (1, Compression::SNAPPY, false),
            (1, Compression::UNCOMPRESSED, true),
            (2, zstd, false),
            (2, Compression::UNCOMPRESSED, false),
        ]
        .map(file)
        .into()
    })
}

/// Returns Arrow files and streams.
pub fn arrow_files() -> &'static [Vec<u8>] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let file = |(of, codec, stream): (usize, Option<CompressionType>, bool)| {
            let batch = batch(of);
            let options = IpcWriteOptions::default().try_with_compression(codec).expect("a codec");
            let mut file = Vec::new();
            let wrote = "it goes to memory";
            if stream {
                let mut writer =
                    StreamWriter::try_new_with_options(&mut file, &batch.schema(), options)
                        .expect(wrote);
                writer.write(&batch).expect(wrote);
                writer.write(&batch.slice(3, 20)).expect(wrote);
                writer.finish().expect(wrote);
            } else {
                let mut writer =
                    FileWriter::try_new_with_options(&mut file, &batch.schema(), options)
                        .expect(wrote);
                writer.write(&batch).expect(wrote);
                writer.write(&batch.slice(3, 20)).expect(wrote);
                writer.finish().expect(wrote);
            }
            file
        };
        let (zstd, lz4) = (Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME));
        [
            (0, None, false),
            (0, None, true),
            (1, lz4, false),
            (1, zstd, true),
            (2, zstd, false),
            (2, None, true),
        ]
        .map(file)
        .into()
    })
}

impl Damaged {
    /// Reads the file. Arbitrary bytes get `magic` before them.
    pub fn run(&self, files: &[Vec<u8>], magic: &[u8]) {
        let mut bytes = match &self.raw {
            Some(raw) => [magic, raw.as_slice()].concat(),
            None => files[usize::from(self.which) % files.len()].clone(),
        };
        change(&mut bytes, &self.edits);
        bytes.truncate(BYTES_MAX);
        let dir = tempfile::tempdir_in(super::folder()).expect("a directory");
        let input = if self.in_file {
            let path = dir.path().join("columns");
            fs::write(&path, &bytes).expect("a file");
            Input::file(path)
        } else {
            Input::memory("columns", &bytes)
        };
        let options = RunOptions {
            threads: usize::from(self.threads % 2) + 1,
            level: Level::detect(),
            format: Format::Columns,
            chunk_bytes: usize::from(self.chunk) + 1,
            ..RunOptions::default()
        };
        match run(&columns_spec(), &options, &[input]) {
            Ok(_) => {}
            Err(error) => {
                assert!(self.raw.is_some() || !self.edits.is_empty(), "{error}");
                expected_of_input(&error);
            }
        }
    }
}
