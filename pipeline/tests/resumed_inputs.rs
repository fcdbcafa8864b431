//! Tests that a feed that resumes has the inputs of the feed that stopped.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use embank_pipeline::{
    Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, FeedPosition, Field, FieldKind,
    Output, Pipeline, RunOptions, Spec,
};

fn pipeline() -> Pipeline {
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32).required()],
        columns: vec![Column::field("n")],
        outputs: vec![Output::new("n", Dtype::I32, ["n"])],
        ..Spec::default()
    };
    Pipeline::new(&spec, &RunOptions { threads: 2, ..RunOptions::default() }).unwrap()
}

/// Writes a file of five rows.
fn write(folder: &Path, name: &str, first: i32) {
    let text: String = (first..first + 5).map(|n| format!("{n}\n")).collect();
    std::fs::write(folder.join(name), text).unwrap();
}

fn feed(folder: &Path, options: &FeedOptions) -> Feed {
    pipeline().feed(vec![FeedInput::file(folder)], options).unwrap()
}

fn numbers(batch: &Batch) -> Vec<i32> {
    batch.i32(0).unwrap().to_vec()
}

fn rest(feed: Feed) -> Result<Vec<i32>, Error> {
    feed.map(|batch| batch.map(|batch| numbers(&batch)))
        .collect::<Result<Vec<_>, _>>()
        .map(|all| all.concat())
}

/// A folder of the files b and c, and the position after 4 rows of b and 4 more rows.
fn stopped(folder: &Path, options: &FeedOptions) -> (Vec<i32>, FeedPosition) {
    write(folder, "b.tsv", 10);
    write(folder, "c.tsv", 20);
    let mut feed = feed(folder, options);
    let mut taken = numbers(&feed.next().unwrap().unwrap());
    assert!(feed.resume_position().inputs[0].name.ends_with("b.tsv"));
    taken.extend(numbers(&feed.next().unwrap().unwrap()));
    (taken, feed.resume_position())
}

fn options(shuffle_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows: 4, shuffle_rows, ..FeedOptions::default() }
}

/// Regression test: a file that sorts before the others appeared between stop and resume. Five rows
/// came twice, and five never, without an error.
#[test]
fn a_change_of_the_inputs_before_the_position_is_an_error_that_names_it() {
    type Change = fn(&Path);
    let changes: [(Change, &str, &str); 4] = [
        (|folder| write(folder, "a.tsv", 0), "input 1", "a.tsv"),
        (|folder| std::fs::remove_file(folder.join("b.tsv")).unwrap(), "input 1", "c.tsv"),
        (|folder| std::fs::write(folder.join("c.tsv"), "7\n").unwrap(), "input 2", "of 2 bytes"),
        (|folder| std::fs::remove_file(folder.join("c.tsv")).unwrap(), "input 2", "is not there"),
    ];
    for shuffle_rows in [0, 3] {
        for (change, input, what) in changes {
            let folder = tempfile::tempdir().unwrap();
            let options = options(shuffle_rows);
            let (_, position) = stopped(folder.path(), &options);
            change(folder.path());
            let error = rest(feed(folder.path(), &options.resume(&position).unwrap())).unwrap_err();
            assert!(matches!(error, Error::OtherInputs { rows: 8, .. }), "{error}");
            for part in [input, what, "8 rows to skip"] {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
            // The number of rows alone is not checked.
            let unchecked = FeedOptions { skip_rows: 1, ..options };
            rest(feed(folder.path(), &unchecked)).unwrap();
        }
    }
}

#[test]
fn files_after_the_position_may_be_added() {
    for shuffle_rows in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let options = options(shuffle_rows);
        let (mut taken, position) = stopped(folder.path(), &options);
        let resumed = options.resume(&position).unwrap();
        let text = serde_json::to_string(&position).unwrap();
        assert_eq!(serde_json::from_str::<FeedPosition>(&text).unwrap(), position);
        taken.extend(rest(feed(folder.path(), &resumed)).unwrap());
        taken.sort_unstable();
        assert_eq!(taken, (10..15).chain(20..25).collect::<Vec<_>>());

        write(folder.path(), "d.tsv", 30);
        let added = rest(feed(folder.path(), &resumed));
        if shuffle_rows == 0 {
            assert_eq!(added.unwrap(), [23, 24, 30, 31, 32, 33, 34]);
        } else {
            // The last rows of the shuffle would come in another order.
            let error = added.unwrap_err().to_string();
            assert!(error.contains("input 3 was not there") && error.contains("d.tsv"), "{error}");
        }
    }
}

#[test]
fn a_position_of_another_shuffle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, position) = stopped(folder.path(), &options(3));
    for other in [options(0), options(4), FeedOptions { seed: 1, ..options(3) }] {
        let error = other.resume(&position).unwrap_err().to_string();
        assert!(error.contains("shuffle_rows 3 and seed 0"), "{error}");
    }
}

/// A feed that resumes and is stopped before its first batch has the position that it was given.
#[test]
fn a_position_survives_a_feed_without_batches() {
    let folder = tempfile::tempdir().unwrap();
    let (_, position) = stopped(folder.path(), &options(0));
    let resumed = feed(folder.path(), &options(0).resume(&position).unwrap());
    assert_eq!(resumed.resume_position(), position);
    assert_eq!(feed(folder.path(), &options(0)).resume_position(), FeedPosition::default());
}
