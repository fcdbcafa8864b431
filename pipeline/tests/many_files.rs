//! Tests runs over more files than the process may have open.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Output, Pipeline,
    RunOptions, Spec,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn spec() -> Spec {
    Spec {
        fields: vec![Field::new("n", FieldKind::Int32).required()],
        columns: vec![Column::field("n")],
        outputs: vec![Output::new("n", Dtype::I32, ["n"])],
        ..Spec::default()
    }
}

fn run(format: Format, inputs: &[Input<'_>]) -> Result<Vec<i32>, Error> {
    let options = RunOptions { format, threads: 3, ..RunOptions::default() };
    let mut all = Vec::new();
    Pipeline::new(&spec(), &options)?.run(inputs, &mut |batch: &mut Batch| {
        all.extend_from_slice(batch.i32(0).unwrap());
        Ok(())
    })?;
    Ok(all)
}

/// Regression test: all inputs were opened before the first one was read. A run over 1,024 inputs
/// failed at the usual limit of open files.
#[test]
fn more_files_than_descriptors() {
    const FILES: i32 = 300;
    // The limit holds for the whole process. No other test of this process opens files.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let zipped = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let paths: Vec<PathBuf> = (0..FILES)
        .map(|n| {
            let path =
                directory.path().join(if n % 2 == 0 { format!("{n}") } else { format!("{n}.zst") });
            let text = format!("n\n{n}\n{n}\n");
            std::fs::write(&path, if n % 2 == 0 { text.into_bytes() } else { zipped(&text) })
                .unwrap();
            path
        })
        .collect();
    let inputs: Vec<_> = paths.iter().map(Input::file).collect();
    let expected: Vec<i32> = (0..FILES).flat_map(|n| [n, n]).collect();
    for quote in [None, Some(b'"')] {
        let format = Format::Text { separator: b','.into(), header: Header::Names, quote };
        assert_eq!(run(format, &inputs).unwrap(), expected);
    }
    let pipeline = Pipeline::new(&spec(), &RunOptions::default()).unwrap();
    assert!(pipeline.read_rate(&inputs).unwrap() > 0.0);
    packed(&directory.path().join("packed"));
    #[cfg(feature = "parquet")]
    parquet(&directory.path().join("n.parquet"));
}

fn packed(path: &std::path::Path) {
    std::fs::write(path, 7_i32.to_le_bytes()).unwrap();
    let inputs = vec![Input::file(path); 200];
    assert_eq!(run(Format::Packed, &inputs).unwrap(), [7; 200]);
}

#[cfg(feature = "parquet")]
fn parquet(path: &std::path::Path) {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int32Array, RecordBatch};
    let column: ArrayRef = Arc::new(Int32Array::from(vec![5]));
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let inputs = vec![Input::file(path); 200];
    assert_eq!(run(Format::Columns, &inputs).unwrap(), [5; 200]);
}

/// A missing file is reported before any input is read.
#[test]
fn a_file_that_is_not_there_is_told_before_rows_come_out() {
    let mut batches = 0;
    let mut pipeline = Pipeline::new(&spec(), &RunOptions::default()).unwrap();
    let inputs = [Input::memory("rows", b"1\n2\n"), Input::file("/not/there.tsv")];
    let error = pipeline.run(&inputs, &mut |_: &mut Batch| {
        batches += 1;
        Ok(())
    });
    assert!(error.unwrap_err().to_string().contains("/not/there.tsv"));
    assert_eq!(batches, 0);
}

/// Regression test: a run over an empty list of inputs succeeded without rows.
#[test]
fn no_inputs_are_an_error() {
    let told = "there are no inputs";
    let mut pipeline = Pipeline::new(&spec(), &RunOptions::default()).unwrap();
    let run = pipeline.run(&[], &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(run.to_string().contains(told), "{run}");
    assert!(pipeline.generate(&[]).unwrap_err().to_string().contains(told));
    assert!(pipeline.read_rate(&[]).unwrap_err().to_string().contains(told));
    let mut feed = pipeline.feed(Vec::new(), &Default::default()).unwrap();
    assert!(feed.next().unwrap().unwrap_err().to_string().contains(told));
}
