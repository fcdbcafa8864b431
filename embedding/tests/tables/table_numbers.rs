//! Tests handles, leases and lookahead of a dropped table whose number a new table got. They must
//! fail, and change nothing in the new table.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{initial_of, new_bank_with, rows_of, small_options};
use embank::{
    Bank, BankOptions, CompactionOptions, Error, Eviction, ExportOptions, Missing, Optimizer,
    OwnedValues, StoreError, Table, TableConfig, Tracking, VocabularyConfig,
};

/// Options without background compaction, and with one kept checkpoint.
fn options() -> BankOptions {
    BankOptions {
        checkpoints_kept: 1,
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..small_options()
    }
}

fn config() -> TableConfig {
    TableConfig::new(2).optimizer(Optimizer::sgd(1.0)).tracking(Tracking::SetTime)
}

/// Removes the dropped tables' rows from the log, and from all checkpoints except the last.
fn clear(bank: &Bank) {
    bank.checkpoint(b"").unwrap();
    bank.compact().unwrap();
    bank.checkpoint(b"").unwrap();
}

/// Makes a table. If no number is free, first frees the numbers of dropped tables.
fn make(bank: &Bank, name: &str, config: &TableConfig) -> Table {
    // The loop ends: `clear` frees the numbers of dropped tables.
    loop {
        match bank.table(name, config.clone()) {
            Ok(table) => return table,
            Err(Error::Store(StoreError::Exhausted(what))) => {
                assert!(what.contains("numbers of tables are taken"), "{what}");
                clear(bank);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_dropped<T>(what: &str, result: Result<T, Error>) {
    match result {
        Err(Error::TableDropped { table }) => assert_eq!(table, "t", "{what}"),
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} was done"),
    }
}

#[test]
fn what_knows_a_dropped_table_never_reaches_the_one_that_gets_its_number() {
    let test = new_bank_with(options());
    let bank = &test.bank;
    let keys: Vec<u64> = (0..300).collect();
    let old = bank.table("t", config()).unwrap();
    old.set_time(70).unwrap();
    old.put(&keys, &[3.0; 600]).unwrap();
    // Three tables need numbers: "other", the table of times, and "t", which is dropped and made
    // again.
    bank.table("other", config()).unwrap().put(&[1], &[5.0; 2]).unwrap();
    bank.limit_table_numbers(3);
    let lease = |key| old.get(&[key], &mut [0.0; 2]).unwrap();
    let (released, let_go, applied, put) = (lease(1), lease(2), lease(3), lease(4));
    bank.drop_table("t").unwrap();
    clear(bank);
    let new = bank.table("t", config()).unwrap();
    assert_eq!(new.number(), old.number());
    assert_ne!(new.id(), old.id());
    assert!(new.has_its_number() && !old.has_its_number());
    new.put(&keys, &[8.0; 600]).unwrap();
    let held = new.get(&[1, 2, 3, 4], &mut [0.0; 8]).unwrap();
    bank.checkpoint(b"").unwrap();

    released.release().unwrap();
    drop(let_go);
    is_dropped("apply", applied.apply(&[1.0; 2]));
    is_dropped("put of a lease", put.put(&[1.0; 2]));
    is_dropped("get", old.get(&[1], &mut [0.0; 2]));
    is_dropped("peek", old.peek(&[1, 2], &mut [0.0; 4], Missing::Initial));
    is_dropped("put", old.put(&[1], &[0.0; 2]));
    is_dropped("apply_gradients", old.apply_gradients(&[1], &[0.0; 2]));
    is_dropped("delete", old.delete(&keys));
    is_dropped("contains", old.contains(&[1]));
    is_dropped("outstanding", old.outstanding(1));
    is_dropped("lookahead", old.lookahead(&keys));
    is_dropped("set_time", old.set_time(90));
    is_dropped("scan", old.scan());
    is_dropped("evict", old.evict(&Eviction::new().unused_for(0)));
    let file = test.dir.path().join("rows.safetensors");
    is_dropped("export", old.export(&file, &ExportOptions::default()));
    let prefetched = old.prefetch(&[1]).and_then(|rows| rows.wait(&mut [0.0; 2], Missing::Initial));
    is_dropped("prefetch", prefetched.map(drop));

    for key in 1..5 {
        assert_eq!(new.outstanding(key).unwrap(), Some(1), "the new table's count stays");
    }
    held.release().unwrap();
    assert_eq!(rows_of(&new, &keys), [8.0; 600]);
    assert_eq!(bank.stats().release_failures, 0);
    // The new table's time is 0 until `set_time` is called.
    let path = bank.path().to_owned();
    drop((old, new, test.bank));
    let bank = Bank::open(path, options()).unwrap();
    let new = bank.open_table("t").unwrap();
    let refused = new.evict(&Eviction::new().unused_for(5)).unwrap_err();
    assert!(refused.to_string().contains("none was ever given"), "{refused}");
}

/// Shows that lookahead of a dropped table moves no row of a new table with its number. When the
/// new table is made, the lookahead thread reads rows of the dropped table or has them in its
/// queue.
#[test]
fn a_lookahead_of_a_dropped_table_moves_no_row_of_another() {
    const ROUNDS: u64 = 8;
    let test = new_bank_with(options());
    let bank = &test.bank;
    let keys: Vec<u64> = (0..1_500).collect();
    let filler = bank.table("filler", TableConfig::new(64)).unwrap();
    let filler_keys: Vec<u64> = (0..4_000).collect();
    bank.limit_table_numbers(2);
    let mut table = bank.table("t", config().tracking(Tracking::None)).unwrap();
    for round in 0..ROUNDS {
        let value = round as f32;
        table.put(&keys, &vec![value; 3_000]).unwrap();
        // Writes twice as many bytes as memory holds.
        for _ in 0..2 {
            filler.put(&filler_keys, &vec![value; 4_000 * 64]).unwrap();
        }
        let (stop, started) = (AtomicBool::new(false), Barrier::new(3));
        let next = std::thread::scope(|scope| {
            for thread in 0..2 {
                let (table, keys, stop, started) = (&table, &keys, &stop, &started);
                scope.spawn(move || {
                    started.wait();
                    let mut rows = vec![0.0; 200];
                    for place in (thread * 37..).step_by(111) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let batch = &keys[place % 1_400..][..100];
                        let announced = table.lookahead(batch).map(drop);
                        let peeked = table.peek(batch, &mut rows, Missing::Error);
                        for done in [announced, peeked.map(drop)] {
                            match done {
                                Ok(()) | Err(Error::TableDropped { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        if table.contains(&[1]).is_ok() {
                            assert!(rows.iter().all(|&row| row == value || row == 0.0), "{rows:?}");
                        }
                    }
                });
            }
            started.wait();
            std::thread::yield_now();
            bank.drop_table("t").unwrap();
            let next = make(bank, "t", &config().tracking(Tracking::None));
            assert_eq!(next.number(), table.number());
            assert_eq!(next.contains(&keys).unwrap(), vec![false; keys.len()]);
            next.put(&keys, &vec![value + 0.5; 3_000]).unwrap();
            assert!(bank.wait_lookahead(Duration::from_secs(120)));
            assert_eq!(rows_of(&next, &keys), vec![value + 0.5; 3_000]);
            stop.store(true, Ordering::Relaxed);
            next
        });
        assert!((0..50).all(|key| next.outstanding(key).unwrap() == Some(0)));
        table = next;
    }
    assert_eq!(bank.stats().lookahead.failed, 0);
    assert!(filler.lookahead(&keys).is_ok());
}

/// Shows that a vocabulary can be renumbered without limit. In an earlier version each round
/// permanently used up three table numbers.
#[test]
fn a_vocabulary_is_renumbered_without_end() {
    let test = new_bank_with(options());
    let bank = &test.bank;
    let config = || VocabularyConfig::u64().counts(true);
    let words = bank.vocabulary("words", config()).unwrap();
    // Four numbers for the vocabulary's header, ids, values and counts, three for its next
    // numbering, and three that compaction frees later.
    bank.limit_table_numbers(10);
    for round in 0..40_u64 {
        let values: Vec<u64> = (round * 10..round * 10 + 30).collect();
        let mut ids = vec![0; values.len()];
        words.ids_or_insert(&values, &mut ids).unwrap();
        words.count(&ids[..20]).unwrap();
        let kept = words.keep_frequent(1).unwrap();
        assert!(kept.kept >= 20, "{kept:?}");
        let mut found = vec![0; 20];
        words.ids(&values[..20], &mut found).unwrap();
        assert_eq!(
            words.values(&found).unwrap(),
            OwnedValues::U64(values[..20].to_vec()),
            "{round}"
        );
        clear(bank);
    }
    drop(words);
    bank.drop_vocabulary("words").unwrap();
    clear(bank);
    let words = bank.vocabulary("words", config()).unwrap();
    assert_eq!(words.len(), 0);
    let mut ids = [0; 2];
    words.ids_or_insert(&[5, 6], &mut ids).unwrap();
    assert_eq!(words.values(&ids).unwrap(), OwnedValues::U64(vec![5, 6]));
}

/// Shows that a reader's handles belong to the table that they were opened for. The table is
/// dropped and made again before a refresh, with a new number and with the old one.
#[test]
fn a_readers_handles_are_of_the_table_that_they_were_opened_for() {
    let test = new_bank_with(options());
    let bank = &test.bank;
    let plain = TableConfig::new(2);
    let mut table = bank.table("t", plain.clone()).unwrap();
    table.put(&[1], &[0.0; 2]).unwrap();
    bank.checkpoint(b"").unwrap();
    bank.limit_table_numbers(2);
    let reader = Bank::open_read_only(bank.path(), options(), None).unwrap();
    let mut handles = vec![reader.open_table("t").unwrap()];
    for round in 1..7_u8 {
        bank.drop_table("t").unwrap();
        let before = table.number();
        if round % 2 == 0 {
            // The reader must leave the old checkpoint before the number becomes free.
            bank.checkpoint(b"").unwrap();
            reader.refresh().unwrap();
            clear(bank);
            reader.refresh().unwrap();
            clear(bank);
        }
        table = make(bank, "t", &plain);
        table.put(&[1], &[f32::from(round); 2]).unwrap();
        bank.checkpoint(b"").unwrap();
        reader.refresh().unwrap();
        for old in &handles {
            is_dropped("peek", old.peek(&[1], &mut [0.0; 2], Missing::Error));
            is_dropped("scan", old.scan());
        }
        let now = reader.open_table("t").unwrap();
        assert_eq!(rows_of(&now, &[1]), [f32::from(round); 2], "{before} to {}", table.number());
        handles.push(now);
    }
    let numbers: Vec<u16> = handles.iter().map(Table::number).collect();
    assert!(numbers.iter().all(|number| (1..=2).contains(number)), "{numbers:?}");
}

/// Shows that a table that reuses a number has ordinary rows, initial values and settings.
#[test]
fn a_table_with_a_number_that_was_used_is_as_any_other() {
    let test = new_bank_with(options());
    let bank = &test.bank;
    let mut last = None;
    bank.limit_table_numbers(1);
    for round in 0..100_u64 {
        let dim = 1 + (round % 5) as u32;
        let name = format!("t{round}");
        let table = make(bank, &name, &TableConfig::new(dim).seed(round));
        assert_eq!(table.number(), 1);
        assert!(last.replace(table.id()) < Some(table.id()));
        let mut rows = vec![0.0; 10 * dim as usize];
        let keys: Vec<u64> = (0..10).collect();
        drop(table.get(&keys, &mut rows).unwrap());
        assert_eq!(rows, initial_of(&table, &keys));
        bank.drop_table(&name).unwrap();
    }
}
