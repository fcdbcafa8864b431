//! Tests files of outputs: their content, and that they appear complete or not at all.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use embank_pipeline::{
    Column, Dtype, Error, Field, FieldKind, FileFormat, FileSink, Format, Input, Operator, Output,
    Pipeline, RunOptions, RunReport, Spec,
};

fn spec() -> Spec {
    let fill = || Operator::FillMissing(0.into());
    Spec {
        fields: vec![Field::new("a", FieldKind::Int32), Field::new("b", FieldKind::Hex32)],
        columns: vec![
            Column::field("a").then(fill()),
            Column { name: "f".into(), ..Column::field("a") }.then(fill()).then(Operator::Float),
            Column::field("b").then(fill()),
        ],
        outputs: vec![
            Output::new("floats", Dtype::F32, ["f"]),
            Output::new("whole", Dtype::I32, ["a"]),
            Output::new("wide", Dtype::I64, ["b", "a"]),
            Output::new("bits", Dtype::Bits32, ["b", "a"]),
        ],
        ..Spec::default()
    }
}

const ROWS: i64 = 3000;

fn text() -> String {
    (0..ROWS).map(|n| format!("{}\t{n:x}\n", -n)).collect()
}

fn run(spec: &Spec, dir: &Path, format: FileFormat, text: &str) -> Result<RunReport, Error> {
    let options = RunOptions { threads: 2, chunk_bytes: 2000, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(spec, &options).unwrap();
    let mut sink = FileSink::create(dir, format, pipeline.outputs())?;
    let report = pipeline.run(&[Input::memory("text", text.as_bytes())], &mut sink)?;
    assert_eq!(sink.rows(), report.rows);
    let files = sink.finish()?;
    assert_eq!(files.len(), spec.outputs.len());
    Ok(report)
}

fn expected_bits() -> Vec<u8> {
    (0..ROWS as i32).flat_map(|n| [n.to_le_bytes(), (-n).to_le_bytes()].concat()).collect()
}

#[test]
fn npy_files_have_header_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("made/by it");
    run(&spec(), &out, FileFormat::Npy, &text()).unwrap();
    let read = |name: &str, kind: &str, columns: usize| {
        let bytes = std::fs::read(out.join(name)).unwrap();
        assert_eq!(bytes[..10], *b"\x93NUMPY\x01\x00\x76\x00");
        let header = format!(
            "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({ROWS}, {columns}), }}"
        );
        assert_eq!(std::str::from_utf8(&bytes[10..128]).unwrap().trim_end(), header);
        assert_eq!(bytes[127], b'\n');
        bytes[128..].to_vec()
    };
    let floats: Vec<u8> = (0..ROWS).flat_map(|n| ((-n) as f32).to_le_bytes()).collect();
    assert_eq!(read("floats.npy", "<f4", 1).len(), floats.len());
    let wide: Vec<u8> =
        (0..ROWS).flat_map(|n| [n.to_le_bytes(), (-n).to_le_bytes()].concat()).collect();
    assert_eq!(read("wide.npy", "<i8", 2), wide);
    assert_eq!(read("bits.npy", "<u4", 2), expected_bits());
    let whole: Vec<u8> = (0..ROWS as i32).flat_map(|n| (-n).to_le_bytes()).collect();
    assert_eq!(read("whole.npy", "<i4", 1), whole);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 4);
}

#[test]
fn packed_files_have_nothing_but_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec();
    let error = run(&spec, dir.path(), FileFormat::Packed, &text()).unwrap_err();
    assert!(matches!(&error, Error::Spec(why) if why.contains("Bits32")), "{error}");
    spec.outputs.remove(2);
    run(&spec, dir.path(), FileFormat::Packed, &text()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("bits.bin")).unwrap(), expected_bits());
}

#[test]
fn a_run_that_fails_leaves_nothing_and_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bits.npy"), "before").unwrap();
    let error = run(&spec(), dir.path(), FileFormat::Npy, &(text() + "x\n")).unwrap_err();
    assert!(matches!(error, Error::BadRow(_)), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read(dir.path().join("bits.npy")).unwrap(), b"before");
    run(&spec(), dir.path(), FileFormat::Npy, "").unwrap();
    assert_eq!(std::fs::read(dir.path().join("bits.npy")).unwrap().len(), 128);
}

#[test]
fn outputs_that_can_be_no_files_are_refused() {
    for name in ["../up", "a/b", ".hidden", "."] {
        let mut spec = spec();
        spec.outputs[0].name = name.to_owned();
        let dir = tempfile::tempdir().unwrap();
        let error = run(&spec, dir.path(), FileFormat::Npy, "").unwrap_err();
        assert!(error.to_string().contains("slashes"), "{error}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_have_a_column_for_each() {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Int32Type, Int64Type, UInt32Type};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    let dir = tempfile::tempdir().unwrap();
    run(&spec(), dir.path(), FileFormat::Parquet, &text()).unwrap();
    let read = |name: &str| {
        let file = std::fs::File::open(dir.path().join(name)).unwrap();
        let mut reader = ParquetRecordBatchReader::try_new(file.try_clone().unwrap(), 5000);
        reader.as_mut().unwrap().next().unwrap().unwrap()
    };
    let wide = read("wide.parquet");
    let names: Vec<_> = wide.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["b", "a"]);
    let numbers = |at: usize| wide.column(at).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(numbers(0), (0..ROWS).collect::<Vec<_>>());
    assert_eq!(numbers(1), (0..ROWS).map(|n| -n).collect::<Vec<_>>());
    assert_eq!(read("bits.parquet").column(0).as_primitive::<UInt32Type>().value(7), 7);
    assert_eq!(read("whole.parquet").column(0).as_primitive::<Int32Type>().value(7), -7);
    assert_eq!(read("floats.parquet").column(0).as_primitive::<Float32Type>().value(7), -7.0);

    let mut spec = spec();
    spec.outputs[2].columns = vec!["a".into(), "a".into()];
    let error = run(&spec, dir.path(), FileFormat::Parquet, "").unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
}

fn of_one(
    format: FileFormat,
    sink: impl Fn(&Pipeline) -> Result<FileSink, Error>,
) -> Result<FileSink, Error> {
    let spec = Spec { outputs: vec![Output::new("bits", Dtype::Bits32, ["b", "a"])], ..spec() };
    let mut pipeline = Pipeline::new(&spec, &RunOptions::default()).unwrap();
    let mut sink = sink(&pipeline)?;
    let text = text();
    pipeline.run(&[Input::memory("text", text.as_bytes())], &mut sink)?;
    assert_eq!(sink.rows(), ROWS as u64, "{format:?}");
    Ok(sink)
}

/// Regression test: an output replaced a link by a file, and every user could read the new file.
#[test]
fn links_are_written_through_and_modes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::fs::write(at("real/v1.bin"), "old").unwrap();
    std::fs::set_permissions(at("real/v1.bin"), PermissionsExt::from_mode(0o600)).unwrap();
    symlink("real/v1.bin", at("bits.bin")).unwrap();
    let create =
        |pipeline: &Pipeline| FileSink::create(dir.path(), FileFormat::Packed, pipeline.outputs());
    of_one(FileFormat::Packed, create).unwrap().finish().unwrap();
    assert!(at("bits.bin").is_symlink());
    assert_eq!(std::fs::read(at("real/v1.bin")).unwrap(), expected_bits());
    let mode = std::fs::metadata(at("real/v1.bin")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn devices_pipes_and_directories_are_refused() {
    for what in ["device", "pipe", "directory"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bits.bin");
        match what {
            "device" => symlink("/dev/full", &path).unwrap(),
            "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            _ => std::fs::create_dir(&path).unwrap(),
        }
        let create = |pipeline: &Pipeline| {
            FileSink::create(dir.path(), FileFormat::Packed, pipeline.outputs())
        };
        let refused = of_one(FileFormat::Packed, create).unwrap_err().to_string();
        assert!(refused.contains("bits.bin") && refused.contains(what), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

/// Regression test: a pipeline whose output was one of its inputs replaced the input.
#[test]
fn an_output_that_is_an_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bits.bin");
    std::fs::write(&path, expected_bits()).unwrap();
    let spec = Spec { outputs: vec![Output::new("bits", Dtype::Bits32, ["b", "a"])], ..spec() };
    let options = RunOptions { format: Format::Packed, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    for input in [Input::file(&path), Input::file(dir.path())] {
        let mut sink =
            FileSink::create(dir.path(), FileFormat::Packed, pipeline.outputs()).unwrap();
        let refused = pipeline.run(&[input], &mut sink).unwrap_err().to_string();
        assert!(
            refused.contains("place of the input") && refused.contains("bits.bin"),
            "{refused}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), expected_bits());
}

/// A writer whose bytes a test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn one_output_can_be_streamed() {
    let to = Shared::default();
    let stream = |format| {
        let to = to.clone();
        move |pipeline: &Pipeline| FileSink::stream(to.clone(), format, pipeline.outputs())
    };
    let sink = of_one(FileFormat::Packed, stream(FileFormat::Packed)).unwrap();
    assert_eq!(sink.finish().unwrap(), Vec::<PathBuf>::new());
    assert_eq!(*to.0.lock().unwrap(), expected_bits());
    if cfg!(feature = "parquet") {
        to.0.lock().unwrap().clear();
        of_one(FileFormat::Parquet, stream(FileFormat::Parquet)).unwrap().finish().unwrap();
        let written = to.0.lock().unwrap();
        assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"));
    }
    let refused = of_one(FileFormat::Npy, stream(FileFormat::Npy)).unwrap_err().to_string();
    assert!(refused.contains("number of rows"), "{refused}");
    let pipeline = Pipeline::new(&spec(), &RunOptions::default()).unwrap();
    let refused = FileSink::stream(to, FileFormat::Packed, pipeline.outputs()).unwrap_err();
    assert!(refused.to_string().contains("a stream has one output"), "{refused}");
}
