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

/// A link to a folder is an error: the folder's rows could come twice, or without end.
#[test]
fn links_to_folders_are_an_error() {
    for (link, to) in [("a/back", ""), ("latest", "a")] {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/1.tsv", "1\n");
        std::os::unix::fs::symlink(root.path().join(to), root.path().join(link)).unwrap();
        let error = run(&[Input::file(root.path())]).unwrap_err();
        assert!(matches!(error, Error::Inputs(_)), "{error}");
        assert!(error.to_string().contains("is a link to a folder"), "{error}");
    }
}

#[test]
fn folders_that_lie_too_deep_are_an_error() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), &format!("{}1.tsv", "a/".repeat(17)), "1\n");
    let error = run(&[Input::file(root.path())]).unwrap_err();
    assert!(error.to_string().contains("16 folders deep"), "{error}");
}

/// A partition's folder counts whatever its column's name is; other names with `_` do not.
#[test]
fn a_partition_may_have_a_hidden_name() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "_hash=1/1.tsv", "1\n");
    write(root.path(), "_temporary/2.tsv", "2\n");
    write(root.path(), ".hidden=1/3.tsv", "3\n");
    assert_eq!(run(&[Input::file(root.path())]).unwrap(), [1]);
}
