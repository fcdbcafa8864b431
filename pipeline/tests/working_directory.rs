//! A sink writes to the directory that its relative path meant when the sink was made, even if the
//! working directory changes later. This file has no other test, because the working directory
//! belongs to the process.

use std::env;
use std::fs;
use std::path::Path;

use embank_pipeline::{FileFormat, FileSink, Pipeline, RunOptions, Spec};

#[test]
fn a_relative_path_is_resolved_once() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    fs::create_dir_all(&here).unwrap();
    fs::create_dir_all(there.join("out")).unwrap();
    fs::write(there.join("out/row.npy"), "another's").unwrap();
    env::set_current_dir(&here).unwrap();
    let pipeline = Pipeline::new(&Spec::criteo(50), &RunOptions::default()).unwrap();
    let sink = FileSink::create(Path::new("out"), FileFormat::Npy, pipeline.outputs()).unwrap();
    env::set_current_dir(&there).unwrap();
    let files = sink.finish().unwrap();
    assert_eq!(files, [here.canonicalize().unwrap().join("out/row.npy")]);
    assert!(files[0].exists());
    assert_eq!(fs::read(there.join("out/row.npy")).unwrap(), b"another's");
}
