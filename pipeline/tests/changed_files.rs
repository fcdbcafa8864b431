//! Tests that a file that is changed while a run reads it is an error, for every form of input.
//!
//! Regression tests: a text that was rewritten in place while a feed read it gave the rows of both
//! texts, and halves of rows, without an error.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Format, Input, Operator, Output, Pipeline,
    RunOptions, Spec,
};

/// Rows of a file. A chunk has a few hundred of them.
const ROWS: i32 = 20_000;

fn spec() -> Spec {
    Spec {
        fields: vec![Field::new("a", FieldKind::Int32)],
        columns: vec![Column::field("a").then(Operator::FillMissing(0.into()))],
        outputs: vec![Output::new("a", Dtype::I32, ["a"])],
        ..Spec::default()
    }
}

/// Writes a file whose time of change is an hour ago. A later change then has another time,
/// whatever the step of the system's clock is.
fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

type Change = dyn Fn(&Path) + Sync;

/// Runs over a file and calls `change` when the first rows have come.
fn run(format: Format, path: &Path, change: &Change) -> Result<Vec<i32>, Error> {
    // One thread: a chunk is read only after the batch before it was consumed.
    let options = RunOptions { threads: 1, chunk_bytes: 2000, format, ..RunOptions::default() };
    let mut rows = Vec::new();
    Pipeline::new(&spec(), &options)?.run(&[Input::file(path)], &mut |batch: &mut Batch| {
        if rows.is_empty() {
            change(path);
        }
        rows.extend_from_slice(batch.i32(0).unwrap());
        Ok(())
    })?;
    Ok(rows)
}

/// The same rows in every form of input that a build reads, with the file's name.
fn forms() -> Vec<(Format, &'static str, Vec<u8>)> {
    let text: String = (0..ROWS).map(|row| format!("{row:07}\n")).collect();
    let quoted: String = (0..ROWS).map(|row| format!("\"{row}\"\n")).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gzip.write_all(text.as_bytes()).unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let no_header = Format::CSV.with(embank_pipeline::TextSettings {
        header: Some(embank_pipeline::Header::None),
        ..Default::default()
    });
    let mut forms = vec![
        (Format::TSV, "t.tsv", text.into_bytes()),
        (no_header.unwrap(), "t.csv", quoted.into_bytes()),
        (Format::TSV, "t.tsv.gz", gzip.finish().unwrap()),
        (Format::TSV, "t.tsv.zst", zstd),
        (Format::Packed, "t.bin", (0..ROWS).flat_map(i32::to_le_bytes).collect()),
    ];
    #[cfg(feature = "parquet")]
    forms.extend(column_forms());
    forms
}

#[cfg(feature = "parquet")]
fn column_forms() -> Vec<(Format, &'static str, Vec<u8>)> {
    use arrow_array::{Int32Array, RecordBatch};
    use arrow_ipc::writer::{FileWriter, StreamWriter};

    let batch = |rows: std::ops::Range<i32>| {
        let column = std::sync::Arc::new(Int32Array::from_iter_values(rows)) as _;
        RecordBatch::try_from_iter([("a", column)]).unwrap()
    };
    let all = batch(0..ROWS);
    let mut parquet = parquet::arrow::ArrowWriter::try_new(Vec::new(), all.schema(), None).unwrap();
    parquet.write(&all).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), &all.schema()).unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &all.schema()).unwrap();
    for begin in (0..ROWS).step_by(500) {
        file.write(&batch(begin..begin + 500)).unwrap();
        stream.write(&batch(begin..begin + 500)).unwrap();
    }
    vec![
        (Format::Columns, "t.parquet", parquet.into_inner().unwrap()),
        (Format::Columns, "t.arrow", file.into_inner().unwrap()),
        (Format::Columns, "t.arrows", stream.into_inner().unwrap()),
    ]
}

fn writable(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

#[test]
fn a_file_that_is_changed_in_place_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let rewrite = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        writable(path).write_all(&bytes).unwrap();
    };
    let append = |path: &Path| {
        let mut file = writable(path);
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"0000001\n").unwrap();
    };
    let cut = |path: &Path| writable(path).set_len(3).unwrap();
    let changes: [(&str, &Change); 3] = [("rewrite", &rewrite), ("append", &append), ("cut", &cut)];
    for (format, name, bytes) in forms() {
        let path = folder.path().join(name);
        for (change_name, change) in changes {
            write(&path, &bytes);
            let error = run(format, &path, change).unwrap_err();
            let told = error.to_string();
            assert!(matches!(error, Error::InputChanged { .. }), "{name}, {change_name}: {told}");
            assert!(told.contains(name) && told.contains("while the run read it"), "{told}");
        }
    }
}

/// Shows that a new file that is renamed over the old one does no harm: the run reads the old one.
#[test]
fn a_file_that_is_replaced_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let replace = |path: &Path| {
        let new = path.with_extension("new");
        std::fs::write(&new, b"7\n").unwrap();
        std::fs::rename(&new, path).unwrap();
    };
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    for (format, name, bytes) in forms() {
        let path = folder.path().join(name);
        for change in [&replace as &Change, &remove] {
            write(&path, &bytes);
            let rows = run(format, &path, change).unwrap();
            assert!(rows.into_iter().eq(0..ROWS), "{name}");
        }
    }
}
