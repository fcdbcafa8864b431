//! Round trips through record files, and their limits.

use std::sync::Arc;

use proptest::prelude::*;

use super::{ALIGNMENT, RecordFile, RecordOptions, RecordWriter, verify_records};
use crate::batch::{Batch, MatrixInfo};
use crate::error::Error;
use crate::spec::Dtype;

pub(super) fn info(name: &str, dtype: Dtype, columns: usize) -> MatrixInfo {
    let shape = if dtype == Dtype::U8 { vec![columns, 3] } else { vec![columns] };
    let columns = if dtype == Dtype::U8 { 1 } else { columns };
    let columns = (0..columns).map(|column| format!("{name}{column}")).collect();
    MatrixInfo { name: name.to_owned(), columns, dtype, shape }
}

/// Makes a batch with bytes from a generator of random numbers. With `repeats`, zstd can compress
/// them.
pub(super) fn random(infos: &Arc<[MatrixInfo]>, rows: usize, seed: u64, repeats: bool) -> Batch {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut batch = Batch::new(Arc::clone(infos));
    let filled: Result<(), ()> = batch.fill(rows, |values| {
        values.fill_with(|| random.u8(..) & if repeats { 1 } else { 255 });
        Ok(())
    });
    filled.unwrap();
    batch
}

/// The bytes of all rows of some batches, for each output.
fn values(batches: &[Batch], outputs: usize) -> Vec<Vec<u8>> {
    let of = |output| batches.iter().flat_map(move |batch| batch.little_endian(output).to_vec());
    (0..outputs).map(|output| of(output).collect()).collect()
}

fn outputs() -> impl Strategy<Value = Arc<[MatrixInfo]>> {
    let dtype = prop_oneof![
        Just(Dtype::F32),
        Just(Dtype::I32),
        Just(Dtype::I64),
        Just(Dtype::Bits32),
        Just(Dtype::U8)
    ];
    let outputs = prop::collection::vec(("[a-zé\" ]{0,6}", dtype, 0_usize..5), 0..5);
    outputs.prop_map(|outputs| {
        let infos = outputs.iter().map(|(name, dtype, columns)| info(name, *dtype, *columns));
        infos.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any rows come back with their bits, in groups of the wanted length.
    #[test]
    fn rows_come_back(
        infos in outputs(),
        batch_rows in prop::collection::vec(0_usize..400, 0..6),
        rows_per_group in prop_oneof![1_usize..60, 60_usize..500, Just(65_536)],
        zstd_level in prop_oneof![Just(None), (-3_i32..20).prop_map(Some)],
        repeats in any::<bool>(),
        metadata in prop::collection::btree_map("[a-z]{1,4}", ".{0,9}", 0..3),
        seed in any::<u64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.records");
        let batches: Vec<_> = (seed..)
            .zip(&batch_rows)
            .map(|(seed, &rows)| random(&infos, rows, seed, repeats))
            .collect();
        let options = RecordOptions { rows_per_group, zstd_level, metadata: metadata.clone() };
        let mut writer = RecordWriter::create(&path, &infos, options).unwrap();
        batches.iter().try_for_each(|batch| writer.write(batch)).unwrap();
        let rows: usize = batch_rows.iter().sum();
        prop_assert_eq!(writer.rows(), rows as u64);
        let file_bytes = writer.finish().unwrap();

        let file = RecordFile::open(&path).unwrap();
        prop_assert_eq!((file.rows(), file.file_bytes()), (rows as u64, file_bytes));
        prop_assert_eq!((file.outputs(), file.metadata()), (&infos[..], &metadata));
        let mut expected_row = 0;
        let mut read = Vec::new();
        for (number, group) in file.groups().iter().enumerate() {
            prop_assert_eq!(group.first_row, expected_row);
            prop_assert!(group.offset.is_multiple_of(ALIGNMENT));
            let batch = file.read(number).unwrap();
            prop_assert_eq!((batch.rows(), batch.first_row()), (group.rows, expected_row));
            expected_row += group.rows as u64;
            prop_assert!(group.rows == rows_per_group || expected_row == rows as u64);
            read.push(batch);
        }
        prop_assert_eq!(file.groups().len(), rows.div_ceil(rows_per_group));
        prop_assert_eq!(values(&read, infos.len()), values(&batches, infos.len()));
        let mean = file.fidelities()[0].mean_row_bytes * rows as f64;
        let stored: u64 = file.groups().iter().map(|group| group.stored_bytes).sum();
        prop_assert!((mean - stored as f64).abs() < 1e-6 * stored as f64 + 1e-9);

        let mut done = 0;
        let report = verify_records(&path, &mut |bytes| done = bytes).unwrap();
        prop_assert!(report.is_clean());
        prop_assert_eq!((report.sound_rows, report.rows, done), (rows as u64, rows as u64, file_bytes));
    }
}

#[test]
fn parts_of_batches_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let infos: Arc<[MatrixInfo]> = [info("a", Dtype::I32, 2), info("b", Dtype::I64, 1)].into();
    let batch = random(&infos, 100, 1, false);
    let mut writer = RecordWriter::create(&path, &infos, RecordOptions::default()).unwrap();
    for rows in [0..40, 40..40, 40..100] {
        writer.write_rows(&batch, rows).unwrap();
    }
    writer.finish().unwrap();
    let read = [RecordFile::open(&path).unwrap().read(0).unwrap()];
    assert_eq!(values(&read, 2), values(&[batch], 2));
}

#[test]
fn a_batch_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let infos: Arc<[MatrixInfo]> = [info("a", Dtype::F32, 3)].into();
    let batch = random(&infos, 100, 2, true);
    let path = dir.path().join("rows.records");
    let options = RecordOptions { rows_per_group: 70, zstd_level: Some(1), ..Default::default() };
    let mut writer = RecordWriter::create(&path, &infos, options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let file = RecordFile::open(&path).unwrap();
    // A batch of other outputs is replaced.
    let mut into = random(&[info("b", Dtype::I64, 1)].into(), 9, 3, true);
    let mut scratch = vec![1; 9];
    let mut all = Vec::new();
    for group in [0, 1] {
        file.read_into(group, &mut into, &mut scratch).unwrap();
        all.extend(into.little_endian(0).to_vec());
    }
    assert_eq!((into.infos(), into.rows(), all), (&infos[..], 30, batch.little_endian(0).to_vec()));
}

#[test]
fn options_and_rows_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let infos: Arc<[MatrixInfo]> = [info("a", Dtype::F32, 3)].into();
    let refused = |options| match RecordWriter::create(&path, &infos, options) {
        Err(Error::Spec(why)) => why,
        other => panic!("{other:?}"),
    };
    let default = RecordOptions::default;
    for rows_per_group in [0, 65_537] {
        let why = refused(RecordOptions { rows_per_group, ..default() });
        assert!(why.contains(&rows_per_group.to_string()), "{why}");
    }
    assert!(refused(RecordOptions { zstd_level: Some(23), ..default() }).contains("23"));
    let long = [("key".to_owned(), "x".repeat(17 << 20))].into();
    assert!(refused(RecordOptions { metadata: long, ..default() }).contains("metadata"));

    let mut writer = RecordWriter::create(&path, &infos, default()).unwrap();
    let other = random(&[info("a", Dtype::I32, 3)].into(), 1, 1, false);
    let error = writer.write(&other).unwrap_err().to_string();
    assert!(error.contains("other outputs"), "{error}");
    // Rows that were refused leave the writer as it was.
    writer.write(&random(&infos, 5, 1, false)).unwrap();
    writer.finish().unwrap();
    assert_eq!(RecordFile::open(&path).unwrap().rows(), 5);
}
