//! Tests folders as inputs: which files they stand for, and in which order.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Input, Output, Pipeline, RunOptions, Spec,
};

fn run(inputs: &[Input<'_>]) -> Result<Vec<i32>, Error> {
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32).required()],
        columns: vec![Column::field("n")],
        outputs: vec![Output::new("n", Dtype::I32, ["n"])],
        ..Spec::default()
    };
    let mut all = Vec::new();
    Pipeline::new(&spec, &RunOptions::default())?.run(inputs, &mut |batch: &mut Batch| {
        all.extend_from_slice(batch.i32(0).unwrap());
        Ok(())
    })?;
    Ok(all)
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Regression test: a folder in a folder was refused, so that the folders of a partitioned data set
/// had to be listed one by one.
#[test]
fn a_folder_stands_for_the_files_of_all_folders_in_it_in_order() {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("day=2/part-0.tsv", "20\n"),
        ("day=1/part-1.tsv", "11\n"),
        ("day=1/part-0.tsv", "10\n"),
        ("day=1/hour=3/part-0.tsv", "1\n"),
        ("day=15.tsv", "15\n"),
        ("_temporary/part-0.tsv", "bad\n"),
        (".hidden/part-0.tsv", "bad\n"),
        ("day=1/_SUCCESS", "bad\n"),
    ] {
        write(root.path(), name, text);
    }
    std::fs::create_dir(root.path().join("empty")).unwrap();
    assert_eq!(run(&[Input::file(root.path())]).unwrap(), [1, 10, 11, 15, 20]);
    let expanded = Input::expand(&[Input::file(root.path().join("day=1"))]).unwrap();
    let names: Vec<_> = expanded.iter().map(|input| input.name().to_owned()).collect();
    assert!(names[0].ends_with("day=1/hour=3/part-0.tsv"), "{names:?}");
    let error = run(&[Input::file(root.path().join("empty"))]).unwrap_err().to_string();
    assert!(error.contains("without a file"), "{error}");
}

/// A link that leads back to a folder above it ends the search with an error.
#[test]
fn folders_without_end_are_an_error() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a/1.tsv", "1\n");
    std::os::unix::fs::symlink(root.path(), root.path().join("a/back")).unwrap();
    let error = run(&[Input::file(root.path())]).unwrap_err();
    assert!(matches!(error, Error::Inputs(_)), "{error}");
    assert!(error.to_string().contains("16 folders deep"), "{error}");
}
