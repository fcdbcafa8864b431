//! Tests the memory of a feed's batches: the feed reuses the memory of a batch that is dropped, and
//! never changes a batch that the caller holds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::thread;

use embank_pipeline::{
    Batch, Column, Dtype, Feed, FeedInput, FeedOptions, Field, FieldKind, Matrix, Operator, Output,
    Pipeline, RunOptions, Spec,
};

const ROWS: usize = 20_000;
const BATCH_ROWS: usize = 128;

fn feed(threads: usize, options: &FeedOptions) -> Feed {
    let spec = Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![
            Column::field("n"),
            Column::field("c")
                .then(Operator::Modulus(97))
                .then(Operator::Vocabulary("c".to_owned())),
        ],
        outputs: vec![
            Output::new("i", Dtype::I32, ["n"]),
            Output::new("w", Dtype::I64, ["c", "n"]),
        ],
        ..Spec::default()
    };
    let line = |row: usize| format!("{row}\t{:x}\n", (row * 7919) % 1013);
    let text = (0..ROWS).map(line).collect::<String>().into_bytes();
    let run_options = RunOptions { threads, chunk_bytes: 2000, ..Default::default() };
    let pipeline = Pipeline::new(&spec, &run_options).unwrap();
    pipeline.feed(vec![FeedInput::memory("text", text)], options).unwrap()
}

fn options(shuffle_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows: BATCH_ROWS, shuffle_rows, seed: 3, ..Default::default() }
}

type Content = (Vec<i32>, Vec<i64>);

/// A copy of a batch's values.
fn content(batch: &Batch) -> Content {
    (batch.i32(0).unwrap().to_vec(), batch.i64(1).unwrap().to_vec())
}

/// The values of all batches, each copied when it came.
fn contents(options: &FeedOptions) -> Vec<Content> {
    feed(1, options).map(|batch| content(&batch.unwrap())).collect()
}

#[test]
fn batches_that_are_dropped_share_little_memory() {
    for batches_ahead in [1, 2, 5] {
        let options = FeedOptions { batches_ahead, ..options(0) };
        let mut places = [HashSet::new(), HashSet::new()];
        let mut batches = 0;
        for batch in feed(2, &options) {
            let batch = batch.unwrap();
            places[0].insert(batch.i32(0).unwrap().as_ptr().addr());
            places[1].insert(batch.i64(1).unwrap().as_ptr().addr());
            batches += 1;
        }
        assert_eq!(batches, ROWS.div_ceil(BATCH_ROWS));
        for places in places {
            // One is filled, one was taken out of the queue and is not counted there, and one is
            // the caller's.
            assert!(places.len() <= batches_ahead + 3, "{} places", places.len());
        }
    }
}

#[test]
fn held_batches_keep_their_values_while_the_feed_goes_on() {
    for shuffle_rows in [0, 1000] {
        for threads in [1, 3] {
            for drop_last in [false, true] {
                let options = FeedOptions { drop_last, ..options(shuffle_rows) };
                let expected = contents(&options);
                let whole = if drop_last { ROWS / BATCH_ROWS } else { ROWS.div_ceil(BATCH_ROWS) };
                assert_eq!(expected.len(), whole);
                // Every third batch is held to the end. The memory of the others is reused.
                let batches = feed(threads, &options).map(Result::unwrap).enumerate();
                let held: Vec<_> = batches.filter(|(number, _)| number % 3 == 0).collect();
                for (number, batch) in held {
                    assert_eq!(content(&batch), expected[number], "batch {number}");
                }
            }
        }
    }
}

#[test]
fn a_feed_goes_on_when_every_batch_is_kept() {
    let kept: Vec<_> = feed(2, &options(0)).map(Result::unwrap).collect();
    let places: HashSet<_> = kept.iter().map(|batch| batch.i32(0).unwrap().as_ptr()).collect();
    assert_eq!(places.len(), kept.len());
    let found: Vec<_> = kept.iter().map(content).collect();
    assert_eq!(found, contents(&options(0)));
}

#[test]
fn batches_outlive_a_feed_that_ended_or_was_dropped() {
    let expected = contents(&options(0));
    for dropped in [false, true] {
        let mut feed = feed(2, &options(0));
        let held: Vec<_> = feed.by_ref().take(6).map(Result::unwrap).collect();
        if dropped {
            drop(feed);
        } else {
            assert_eq!(feed.by_ref().count(), expected.len() - 6);
        }
        let found: Vec<_> = held.iter().map(content).collect();
        assert_eq!(found, expected[..6]);
        // The rest of the batches is dropped after the feed, and in another thread.
        thread::spawn(move || drop(held)).join().unwrap();
    }
}

#[test]
fn batches_may_be_dropped_on_any_thread() {
    let expected = contents(&options(500));
    thread::scope(|scope| {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let (sender, receiver) = channel::<(usize, Batch)>();
                let expected = &expected;
                scope.spawn(move || {
                    for (number, batch) in receiver {
                        assert_eq!(content(&batch), expected[number], "batch {number}");
                    }
                });
                sender
            })
            .collect();
        for (number, batch) in feed(2, &options(500)).enumerate() {
            takers[number % 3].send((number, batch.unwrap())).unwrap();
        }
    });
}

#[test]
fn vectors_belong_to_the_caller() {
    let mut found = Vec::new();
    for batch in feed(2, &options(0)) {
        let matrices: [Matrix; 2] = batch.unwrap().into_matrices().try_into().unwrap();
        let [Matrix::I32(numbers), Matrix::I64(ids)] = matrices else { panic!("other dtypes") };
        found.push((numbers, ids));
    }
    assert_eq!(found, contents(&options(0)));
}

#[test]
fn one_matrix_may_be_kept_longer_than_the_others() {
    let mut kept = Vec::new();
    for batch in feed(2, &options(0)) {
        let mut buffers = batch.unwrap().into_buffers();
        assert_eq!((buffers[0].dtype(), buffers[1].dtype()), (Dtype::I32, Dtype::I64));
        kept.push(buffers.remove(0));
    }
    for (mut buffer, (numbers, _)) in kept.into_iter().zip(contents(&options(0))) {
        let bytes: Vec<_> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        assert_eq!(buffer.as_bytes(), bytes);
        buffer.as_bytes_mut().fill(0);
        assert!(buffer.as_ref().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_clone_has_values_of_its_own() {
    let mut feed = feed(1, &options(0));
    let batch = feed.next().unwrap().unwrap();
    let (expected, copy) = (content(&batch), batch.clone());
    drop(batch);
    assert_eq!(feed.by_ref().count(), ROWS.div_ceil(BATCH_ROWS) - 1);
    assert_eq!(content(&copy), expected);
}

#[cfg(feature = "arrow")]
#[test]
fn arrow_arrays_hold_the_memory_that_they_show() {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, Int64Type};

    let expected = contents(&options(0));
    let mut held = Vec::new();
    for (number, batch) in feed(2, &options(0)).enumerate() {
        let arrow = batch.unwrap().into_record_batch();
        if number % 3 == 0 {
            // A slice keeps the memory of its array.
            held.push((number, arrow.slice(1, arrow.num_rows() - 1)));
        }
    }
    for (number, arrow) in held {
        let numbers = arrow.column(0).as_fixed_size_list();
        let ids = arrow.column(1).as_fixed_size_list();
        let numbers = numbers.values().as_primitive::<Int32Type>().values();
        let ids = ids.values().as_primitive::<Int64Type>().values();
        assert_eq!((&numbers[..], &ids[..]), (&expected[number].0[1..], &expected[number].1[2..]));
    }
}
