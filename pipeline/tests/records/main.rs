//! Tests of record files: their names, their format, and damaged files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod formats;
mod names;
#[expect(unreachable_pub, reason = "shared with a fuzz target")]
#[path = "../../fuzz/src/seals.rs"]
mod seals;

use std::path::Path;

use embank_pipeline::{
    Batch, Column, Dtype, FeedInput, FeedOptions, Field, FieldKind, Matrix, MatrixInfo, Output,
    Pipeline, RecordFile, RecordOptions, RecordWriter, RunOptions, Spec,
};

/// A pipeline with an output of each dtype.
fn pipeline() -> Pipeline {
    let spec = Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![Column::field("n"), Column::field("c")],
        outputs: vec![
            Output::new("floats", Dtype::F32, ["n"]),
            Output::new("whole", Dtype::I32, ["n", "n"]),
            Output::new("wide", Dtype::I64, ["c", "n"]),
            Output::new("bits", Dtype::Bits32, ["c", "n", "c"]),
        ],
        ..Spec::default()
    };
    Pipeline::new(&spec, &RunOptions { threads: 1, ..RunOptions::default() }).unwrap()
}

fn outputs() -> Vec<MatrixInfo> {
    pipeline().outputs().to_vec()
}

/// The number in column `c` of row `n`.
fn category(n: usize) -> u32 {
    (n as u32).wrapping_mul(0x9E37_79B9)
}

/// Batches of rows `first`, `first + 1` and so on.
fn batches(first: usize, rows: usize) -> Vec<Batch> {
    let line = |n: usize| format!("{n}\t{:x}\n", category(n));
    let text: String = (first..first + rows).map(line).collect();
    let inputs = vec![FeedInput::memory("rows", text.into_bytes())];
    let options = FeedOptions { batch_rows: 77, ..FeedOptions::default() };
    pipeline().feed(inputs, &options).unwrap().map(Result::unwrap).collect()
}

/// Writes a file of rows `first`, `first + 1` and so on.
fn write(path: &Path, first: usize, rows: usize, options: RecordOptions) {
    let mut writer = RecordWriter::create(path, &outputs(), options).unwrap();
    batches(first, rows).iter().try_for_each(|batch| writer.write(batch)).unwrap();
    writer.finish().unwrap();
}

/// True if the matrices are those of rows `first`, `first + 1` and so on.
fn is_right(batch: Batch, first: usize) -> bool {
    let numbers = first..first + batch.rows();
    let row = |n: usize| (n as i32, category(n));
    let matrices: [Matrix; 4] = batch.into_matrices().try_into().unwrap();
    let [Matrix::F32(floats), Matrix::I32(whole), Matrix::I64(wide), Matrix::Bits32(bits)] =
        matrices
    else {
        return false;
    };
    let rows = || numbers.clone().map(row);
    floats == rows().map(|(n, _)| n as f32).collect::<Vec<_>>()
        && whole == rows().flat_map(|(n, _)| [n, n]).collect::<Vec<_>>()
        && wide == rows().flat_map(|(n, c)| [i64::from(c), i64::from(n)]).collect::<Vec<_>>()
        && bits == rows().flat_map(|(n, c)| [c, n as u32, c]).collect::<Vec<_>>()
}

/// Fails unless the file has exactly the rows `first`, `first + 1` and so on.
fn assert_rows(path: &Path, first: usize, rows: usize) {
    let file = RecordFile::open(path).unwrap();
    assert_eq!((file.rows(), file.outputs()), (rows as u64, &outputs()[..]));
    for (number, group) in file.groups().iter().enumerate() {
        let batch = file.read(number).unwrap();
        assert_eq!(batch.rows(), group.rows);
        assert!(is_right(batch, first + group.first_row as usize), "group {number}");
    }
}
