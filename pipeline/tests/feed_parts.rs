//! Tests the parts of a feed: together they return the feed's batches, each in its order, at any
//! speed of the trainers, and also if trainers leave.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use embank_pipeline::{
    Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, FeedPart, Field, FieldKind,
    Operator, Output, PARTS_MAX, Pipeline, RunOptions, Spec, Waited,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// A batch's first row, with the number and the id of each row.
type Content = (u64, Vec<i64>);

fn spec() -> Spec {
    Spec {
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
        outputs: vec![Output::new("both", Dtype::I64, ["n", "c"])],
        ..Spec::default()
    }
}

fn text(rows: usize) -> Arc<[u8]> {
    let line = |row: usize| format!("{row}\t{:x}\n", (row * 7919) % 1013);
    (0..rows).map(line).collect::<String>().into_bytes().into()
}

fn options(batch_rows: usize, shuffle_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows, shuffle_rows, seed: 3, ..Default::default() }
}

fn feed(text: &Arc<[u8]>, options: &FeedOptions) -> Feed {
    let run_options = RunOptions { threads: 2, chunk_bytes: 300, ..Default::default() };
    let pipeline = Pipeline::new(&spec(), &run_options).unwrap();
    pipeline.feed(vec![FeedInput::memory("text", Arc::clone(text))], options).unwrap()
}

fn split(text: &Arc<[u8]>, options: &FeedOptions, parts: usize) -> Vec<FeedPart> {
    feed(text, options).split(parts).unwrap()
}

fn content(batch: &Batch) -> Content {
    (batch.first_row(), batch.i64(0).unwrap().to_vec())
}

fn whole(text: &Arc<[u8]>, options: &FeedOptions) -> Vec<Content> {
    feed(text, options).map(|batch| content(&batch.unwrap())).collect()
}

/// Returns the batches of part `number` among those of the undivided feed.
fn share(whole: &[Content], number: usize, parts: usize) -> Vec<Content> {
    whole.iter().skip(number).step_by(parts).cloned().collect()
}

/// Takes the rest of each part in a thread of its own, and checks it.
fn check_rest(parts: Vec<FeedPart>, whole: &[Content]) {
    let count = parts.len();
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || {
                let number = part.number();
                let found: Vec<_> = part.map(|batch| content(&batch.unwrap())).collect();
                assert_eq!(found, share(whole, number, count), "part {number} of {count}");
            });
        }
    });
}

/// Takes all batches, one of each part in turn.
fn in_turn(parts: &mut [FeedPart]) -> Vec<Content> {
    let mut found = Vec::new();
    // The loop ends after a round without a batch.
    loop {
        let before = found.len();
        let round = parts.iter_mut().filter_map(Iterator::next);
        found.extend(round.map(|batch| content(&batch.unwrap())));
        if found.len() == before {
            return found;
        }
    }
}

#[test]
fn parts_together_return_the_batches_of_the_feed() {
    let text = text(1000);
    for shuffle_rows in [0, 90] {
        for (batch_rows, batches_ahead) in [(1, 1), (64, 1), (64, 3), (5000, 2)] {
            let options = FeedOptions { batches_ahead, ..options(batch_rows, shuffle_rows) };
            let whole = whole(&text, &options);
            for parts in [1, 2, 3, 7, 40] {
                check_rest(split(&text, &options, parts), &whole);
            }
        }
    }
}

#[test]
fn a_part_holds_the_others_back_by_the_batches_ahead() {
    let text = text(1000);
    let options = FeedOptions { batches_ahead: 3, ..options(10, 0) };
    let mut parts = split(&text, &options, 2);
    for round in 0..3 {
        assert_eq!(parts[0].next().unwrap().unwrap().first_row(), round * 20);
    }
    for limit in [Duration::ZERO, Duration::from_millis(20)] {
        assert!(matches!(parts[0].wait(limit).unwrap(), Waited::Late));
    }
    assert_eq!(parts[1].next().unwrap().unwrap().first_row(), 10);
    assert_eq!(parts[0].next().unwrap().unwrap().first_row(), 60);
    assert!(matches!(parts[0].wait(Duration::ZERO).unwrap(), Waited::Late));
}

/// A part that waits for room in the queue of another goes on when the other leaves.
#[test]
fn a_part_that_leaves_frees_one_that_waits() {
    let text = text(1000);
    for by_drop in [false, true] {
        let mut parts = split(&text, &options(10, 0), 2);
        let mut slow = parts.pop().unwrap();
        let fast = parts.pop().unwrap();
        let trainer =
            std::thread::spawn(move || fast.map(|batch| batch.unwrap().rows()).sum::<usize>());
        if by_drop {
            drop(slow);
        } else {
            slow.close();
            assert!(slow.next().is_none() && matches!(slow.wait(LONG).unwrap(), Waited::End));
        }
        assert_eq!(trainer.join().unwrap(), 500);
    }
}

#[test]
fn rows_that_no_trainer_got_are_counted() {
    let text = text(1000);
    for parts in [2, 3] {
        for taken in [0, 1, 5] {
            let mut all = split(&text, &options(10, 0), parts);
            for _ in 0..taken {
                let rows = |part: &mut FeedPart| part.next().unwrap().unwrap().rows();
                assert_eq!(all.iter_mut().map(rows).sum::<usize>(), 10 * parts);
            }
            let mut stays = all.remove(0);
            assert_eq!(stays.discarded_rows(), 0);
            drop(all);
            let rows: usize = stays.by_ref().map(|batch| batch.unwrap().rows()).sum();
            assert_eq!(stays.discarded_rows(), (1000 - rows - 10 * taken * parts) as u64);
            assert_eq!(stays.report().unwrap().rows, 1000);
        }
    }
}

#[test]
fn a_run_ends_when_all_parts_are_dropped() {
    let text = text(20_000);
    for taken in [0, 3] {
        let mut parts = split(&text, &options(16, 0), 3);
        for _ in 0..taken {
            parts.iter_mut().for_each(|part| assert!(part.next().unwrap().is_ok()));
        }
        drop(parts); // joins the feed's threads
    }
    assert_eq!(Arc::strong_count(&text), 1, "nothing holds the input any more");
}

#[test]
fn each_part_returns_the_error_once_after_its_batches() {
    let mut bytes = text(1000).to_vec();
    bytes.extend_from_slice(b"no number\t1\n");
    let text: Arc<[u8]> = bytes.into();
    let complete = feed(&text, &options(10, 0)).take_while(Result::is_ok).count();
    for parts in [1, 2, 3] {
        let mut all = split(&text, &options(10, 0), parts);
        let mut found = vec![0; parts];
        let mut open: Vec<usize> = (0..parts).collect();
        while !open.is_empty() {
            open.retain(|&number| match all[number].next().unwrap() {
                Ok(batch) => {
                    assert_eq!(batch.first_row() as usize, (found[number] * parts + number) * 10);
                    found[number] += 1;
                    true
                }
                Err(error) => {
                    assert!(matches!(*error, Error::BadRow(_)), "{error}");
                    false
                }
            });
        }
        assert_eq!(found.iter().sum::<usize>(), complete, "{parts} parts");
        for mut part in all {
            assert!(part.next().is_none() && part.report().is_none());
            assert!(matches!(part.wait(Duration::ZERO).unwrap(), Waited::End));
        }
    }
}

#[test]
fn parts_of_a_resumed_feed_continue_those_of_the_first() {
    let text = text(1000);
    for (shuffle_rows, drop_last) in [(0, false), (90, false), (0, true)] {
        let options = FeedOptions { drop_last, ..options(64, shuffle_rows) };
        let whole = whole(&text, &options);
        for parts in [1, 2, 3, 5] {
            let rounds = whole.len().div_ceil(parts);
            for taken in [0, 1, 3, rounds] {
                let mut all = split(&text, &options, parts);
                for _ in 0..taken {
                    all.iter_mut().for_each(|part| assert!(part.next().is_none_or(|b| b.is_ok())));
                }
                let positions: Vec<_> = all.iter().map(FeedPart::resume_position).collect();
                assert!(positions.iter().all(|one| *one == positions[0]), "{positions:?}");
                drop(all);
                let position = &positions[0];
                let expected: usize =
                    whole.iter().take(taken * parts).map(|(_, values)| values.len() / 2).sum();
                assert_eq!(position.rows, expected as u64);
                let resumed = split(&text, &options.resume(position).unwrap(), parts);
                check_rest(resumed, &whole[(taken * parts).min(whole.len())..]);
                // Another number of parts deals the same batches from there.
                let resumed = split(&text, &options.resume(position).unwrap(), parts + 1);
                check_rest(resumed, &whole[(taken * parts).min(whole.len())..]);
            }
        }
    }
}

/// A part's position names the inputs of all batches of its rounds, also if the part itself has no
/// row of an input.
#[test]
fn a_position_names_the_inputs_of_whole_rounds() {
    let run_options = RunOptions { threads: 2, chunk_bytes: 300, ..Default::default() };
    let pipeline = Pipeline::new(&spec(), &run_options).unwrap();
    let names = ["a", "b", "c"];
    let inputs = names.map(|name| FeedInput::memory(name, text(10)));
    let mut parts = pipeline.feed(inputs.to_vec(), &options(10, 0)).unwrap().split(2).unwrap();
    for expected in [2, 3, 3] {
        for part in &mut parts {
            let _ = part.next().transpose().unwrap();
        }
        for part in &parts {
            let position = part.resume_position();
            let found: Vec<_> = position.inputs.iter().map(|input| input.name.as_str()).collect();
            assert_eq!(found, names[..expected]);
        }
    }
    assert_eq!(parts[1].next_row(), 30);
}

/// The place of a part's position is at the rounds that the part has finished, although the feed
/// has read further.
#[test]
fn a_part_that_resumes_does_not_read_the_rows_before_its_place() {
    let text = text(1000);
    let run_options = RunOptions { threads: 2, chunk_bytes: 200, ..Default::default() };
    let inputs = || vec![FeedInput::memory("text", Arc::clone(&text))];
    let options = options(64, 0);
    let whole = whole(&text, &options);
    for taken in 1..5 {
        let pipeline = Pipeline::new(&spec(), &run_options).unwrap();
        let mut parts = pipeline.feed(inputs(), &options).unwrap().split(3).unwrap();
        for _ in 0..taken {
            parts.iter_mut().for_each(|part| drop(part.next().unwrap().unwrap()));
        }
        let positions: Vec<_> = parts.iter().map(FeedPart::resume_position).collect();
        assert!(positions.iter().all(|one| *one == positions[0] && one.place.is_some()));
        // At a row of an earlier round, the place is an earlier one.
        let earlier = parts[0].resume_position_at(192).unwrap();
        // Within a round, the parts would get other batches.
        let refused = parts[0].resume_position_at(64).unwrap_err().to_string();
        assert!(refused.contains("row 64 is not the end of a round"), "{refused}");
        assert!(earlier.rows == 192 && earlier.place.is_some());
        let mut pipeline = None;
        for part in parts {
            pipeline = pipeline.or(part.into_pipeline().unwrap());
        }
        let mut pipeline = pipeline.unwrap();
        for (position, skipped) in [(&positions[0], taken * 3), (&earlier, 3)] {
            let rest = &whole[skipped.min(whole.len())..];
            let feed = pipeline.feed(inputs(), &options.resume(position).unwrap()).unwrap();
            let mut resumed = feed.split(2).unwrap();
            assert_eq!(in_turn(&mut resumed), rest);
            let passed = resumed[0].report().unwrap().passed_rows;
            assert!(position.rows - passed < 64, "{passed} of {} rows", position.rows);
            let first = resumed.remove(0);
            drop(resumed);
            pipeline = first.into_pipeline().unwrap().unwrap();
        }
    }
}

#[test]
fn the_last_open_part_returns_the_pipeline() {
    let text = text(500);
    for closes in [false, true] {
        let mut parts = split(&text, &options(64, 0), 3);
        assert_eq!(in_turn(&mut parts).len(), 8);
        if closes {
            // After all parts are closed, the first call gets the pipeline.
            parts.iter_mut().for_each(FeedPart::close);
            assert!(parts.remove(1).into_pipeline().unwrap().is_some());
            assert!(parts.remove(1).into_pipeline().unwrap().is_none());
            continue;
        }
        drop(parts.remove(2));
        assert!(parts.remove(1).into_pipeline().unwrap().is_none());
        assert_eq!(parts[0].report().unwrap().rows, 500);
        let pipeline = parts.remove(0).into_pipeline().unwrap().unwrap();
        let distinct: HashSet<_> = (0..500).map(|row| (row * 7919) % 1013 % 97).collect();
        assert_eq!(pipeline.vocabularies().next().unwrap().1.len(), distinct.len());
        let again = pipeline.feed(vec![FeedInput::memory("text", text.clone())], &options(64, 0));
        assert_eq!(again.unwrap().split(2).unwrap().len(), 2);
    }
}

#[test]
fn a_feed_has_at_least_one_part_and_at_most_the_limit() {
    for parts in [0, PARTS_MAX + 1, usize::MAX] {
        let error = feed(&text(1), &options(1, 0)).split(parts).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{error}");
        assert!(error.to_string().contains(&format!("1 to {PARTS_MAX}")), "{error}");
    }
    assert_eq!(split(&text(1), &options(1, 0), PARTS_MAX).len(), PARTS_MAX);
    // A feed that has ended has parts without batches.
    let mut ended = feed(&text(1), &options(1, 0));
    ended.close();
    for mut part in ended.split(2).unwrap() {
        assert!(part.next().is_none());
    }
    // A feed that was begun is dealt from its next batch on.
    let mut begun = feed(&text(5), &options(1, 0));
    assert!(begun.next().unwrap().is_ok());
    let mut parts = begun.split(2).unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        found.extend(parts.iter_mut().map(|part| part.next().unwrap().unwrap().first_row()));
    }
    assert_eq!(found, [1, 2, 3, 4]);
}

#[test]
fn parts_of_a_silent_pipe_are_late_and_end_when_they_are_dropped() {
    use std::os::fd::AsRawFd as _;
    let (reader, _writer) = std::io::pipe().unwrap();
    let inputs = vec![FeedInput::file(format!("/dev/fd/{}", reader.as_raw_fd()))];
    let pipeline = Pipeline::new(&spec(), &RunOptions::default()).unwrap();
    let mut parts = pipeline.feed(inputs, &options(1, 0)).unwrap().split(2).unwrap();
    for part in &mut parts {
        for limit in [Duration::ZERO, Duration::from_millis(5)] {
            assert!(matches!(part.wait(limit).unwrap(), Waited::Late));
        }
    }
    // One part waits for the pipe, and the other for the first part, until each is late.
    std::thread::scope(|scope| {
        for part in &mut parts {
            scope.spawn(|| {
                assert!(matches!(part.wait(Duration::from_millis(50)), Ok(Waited::Late)))
            });
        }
    });
    let pipeline = parts.pop().unwrap();
    drop(parts);
    assert!(pipeline.into_pipeline().unwrap().is_some());
}

/// Compares parts with a model, over random orders of takes and closes.
#[test]
fn any_order_of_takes_and_closes_follows_the_model() {
    let text = text(300);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (parts, ahead) = (random.usize(1..5), random.usize(1..4));
        let options = FeedOptions { batches_ahead: ahead, ..options(random.usize(5..40), 0) };
        let whole = whole(&text, &options);
        let rounds = whole.len().div_ceil(parts);
        let mut all: Vec<Option<FeedPart>> =
            split(&text, &options, parts).into_iter().map(Some).collect();
        // The number of batches, or of the end, that each part has taken.
        let mut taken = vec![0; parts];
        let mut rows_taken = 0;
        for _ in 0..rounds * parts * 3 {
            let number = random.usize(..parts);
            if random.usize(..rounds * parts) == 0 {
                all[number] = None;
            }
            let open = |other: &usize| all[*other].is_some();
            // A round is dealt if each open part has taken the batch `ahead` rounds before it.
            let slowest = (0..parts).filter(open).map(|other| taken[other]).min();
            let Some(part) = &mut all[number] else { continue };
            let (round, place) = (taken[number], taken[number] * parts + number);
            if slowest.is_some_and(|slowest| round >= slowest + ahead) {
                let found = part.wait(Duration::ZERO).unwrap();
                // The end becomes known together with an incomplete round.
                let ends = place >= whole.len() && matches!(found, Waited::End);
                assert!(ends || matches!(found, Waited::Late), "seed {seed}: {found:?}");
                continue;
            }
            match (part.wait(LONG).unwrap(), whole.get(place)) {
                (Waited::Batch(batch), Some(expected)) => {
                    assert_eq!(content(&batch), *expected, "seed {seed}");
                    rows_taken += batch.rows() as u64;
                    taken[number] += 1;
                }
                (Waited::End, None) => {}
                (found, expected) => panic!("seed {seed}: {found:?}, expected {expected:?}"),
            }
        }
        let Some(mut last) = all.iter_mut().find_map(Option::take) else { continue };
        drop(all);
        rows_taken += last.by_ref().map(|batch| batch.unwrap().rows() as u64).sum::<u64>();
        assert_eq!(rows_taken + last.discarded_rows(), 300, "seed {seed}");
    }
}
