//! Tests the effects of dropping a table on its rows, waiting Gets, leases and lookahead.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Barrier;
use std::time::Duration;

use crate::common::{
    initial_of, new_bank, new_bank_with, push_to_disk, rows_of, small_options, table,
};
use embank::{Admission, Bank, Error, Missing, Optimizer, StoreError, TableConfig};

fn sgd(dim: u32) -> TableConfig {
    TableConfig::new(dim).optimizer(Optimizer::sgd(1.0))
}

/// True if a call failed because table "t" was dropped.
fn dropped<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(error @ Error::TableDropped { .. }) => {
            let text = error.to_string();
            assert!(text.contains("\"t\" was dropped") && text.contains("anew"), "{text}");
            true
        }
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

#[test]
fn every_call_on_a_dropped_table_says_so() {
    let test = new_bank();
    let old = table(&test.bank, sgd(2));
    old.put(&[1, 2], &[3.0; 4]).unwrap();
    let other = test.bank.table("other", sgd(2)).unwrap();
    other.put(&[1], &[5.0; 2]).unwrap();
    test.bank.drop_table("t").unwrap();

    assert!(dropped(old.get(&[1], &mut [0.0; 2])));
    assert!(dropped(old.get_rows(old.request(&[1, 1]).unwrap().distinct(), &mut [0.0; 2])));
    assert!(dropped(old.peek(&[1, 2], &mut [0.0; 4], Missing::Initial)));
    assert!(dropped(old.put(&[1], &[0.0; 2])));
    assert!(dropped(old.apply_gradients(&[1], &[0.0; 2])));
    assert!(dropped(old.update(&[1], |_, _, _| panic!("called for a dropped table"))));
    assert!(dropped(old.delete(&[1])));
    assert!(dropped(old.contains(&[1])));
    assert!(dropped(old.outstanding(1)));
    assert!(dropped(old.lookahead(&[1])));
    assert_eq!((old.name(), old.dim()), ("t", 2));

    assert!(test.bank.tables().iter().all(|info| info.name == "other"));
    for error in [test.bank.drop_table("t"), test.bank.open_table("t").map(drop)] {
        assert!(
            matches!(error, Err(Error::Store(StoreError::NoSuchTable(name))) if name == "\"t\" in this bank, which has \"other\"")
        );
    }
    assert_eq!(rows_of(&other, &[1]), [5.0; 2], "another table's row of the same key");
    other.lookahead(&[1]).unwrap();
}

#[test]
fn a_new_table_of_the_name_has_nothing_of_the_old_one() {
    let test = new_bank();
    let old = table(&test.bank, sgd(2));
    old.put(&[1], &[3.0; 2]).unwrap();
    test.bank.drop_table("t").unwrap();
    // The new table may have another dim and another seed.
    let new = table(&test.bank, sgd(5).seed(9));
    assert_ne!(old.number(), new.number());
    assert_eq!(new.contains(&[1]).unwrap(), [false]);
    drop(new.get(&[1], &mut [0.0; 5]).unwrap());
    assert_eq!(rows_of(&new, &[1]), initial_of(&new, &[1]));
    assert!(dropped(old.contains(&[1])), "old handles do not become the new table's");
}

#[test]
fn leases_of_a_dropped_table_end_without_harm() {
    let test = new_bank();
    let old = table(&test.bank, sgd(2).staleness_bound(Some(0)));
    let lease = |key| old.get(&[key], &mut [0.0; 2]).unwrap();
    let (released, let_go, applied, put) = (lease(1), lease(2), lease(3), lease(4));
    test.bank.drop_table("t").unwrap();
    let new = table(&test.bank, sgd(2).staleness_bound(Some(0)));
    let held = new.get(&[1, 2, 3, 4], &mut [0.0; 8]).unwrap();
    released.release().unwrap();
    drop(let_go);
    assert!(dropped(applied.apply(&[1.0; 2])));
    assert!(dropped(put.put(&[1.0; 2])));
    for key in 1..5 {
        assert_eq!(new.outstanding(key).unwrap(), Some(1), "the new table's count stays");
    }
    held.release().unwrap();
    assert_eq!(test.bank.stats().release_failures, 0);
    assert_eq!(rows_of(&new, &[3, 4]), initial_of(&new, &[3, 4]));
}

#[test]
fn a_get_that_waits_for_a_row_of_the_table_is_told_at_once() {
    // The timeout is longer than any test, so only the drop can end the wait.
    let mut options = small_options();
    options.wait_timeout = Duration::from_secs(100_000);
    let test = new_bank_with(options);
    let old = table(&test.bank, sgd(2).staleness_bound(Some(0)));
    let lease = old.get(&[1], &mut [0.0; 2]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dropped(old.get(&[1], &mut [0.0; 2])));
        while test.bank.stats().waits == 0 {
            std::thread::yield_now();
        }
        test.bank.drop_table("t").unwrap();
        assert!(waiter.join().unwrap());
    });
    drop(lease);
    let stats = test.bank.stats();
    assert_eq!((stats.waits, stats.timeouts), (1, 0), "counts outlive the table");
}

#[test]
fn what_was_announced_is_cancelled_and_fails_nobody() {
    let test = new_bank();
    let config = || TableConfig::new(2);
    let old = table(&test.bank, config());
    let other = test.bank.table("other", config()).unwrap();
    let keys: Vec<u64> = (0..500).collect();
    for table in [&old, &other] {
        table.put(&keys, &[1.5; 1000]).unwrap();
    }
    push_to_disk(&test.bank);
    for chunk in keys.chunks(50) {
        old.lookahead(chunk).unwrap();
        other.lookahead(chunk).unwrap();
    }
    test.bank.drop_table("t").unwrap();
    assert!(test.bank.wait_lookahead(Duration::from_secs(120)));
    // If the lookahead thread had failed, the next announcement of any table would return the
    // error.
    other.lookahead(&keys).unwrap();
    assert!(test.bank.wait_lookahead(Duration::from_secs(120)));
    let stats = test.bank.stats().lookahead;
    assert_eq!((stats.failed, stats.pending), (0, 0), "{stats:?}");
    assert_eq!(
        stats.queued,
        stats.moved + stats.late + stats.missing + stats.cancelled,
        "{stats:?}"
    );
    assert!(stats.moved + stats.late >= 500, "the other table's rows came: {stats:?}");
    assert_eq!(rows_of(&other, &keys), [1.5; 1000]);
}

/// Shows that dropping a table under load harms no other table. Threads announce, get and update
/// rows meanwhile. Each call succeeds, or fails with `TableDropped`.
#[test]
fn a_table_dropped_under_load_harms_no_other() {
    let test = new_bank();
    let keys: Vec<u64> = (0..2000).collect();
    for round in 0..6 {
        let old = table(&test.bank, sgd(2).staleness_bound(Some(1)));
        old.put(&keys, &[1.0; 4000]).unwrap();
        if round % 2 == 0 {
            push_to_disk(&test.bank);
        }
        let started = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (old, keys, started) = (&old, &keys, &started);
                scope.spawn(move || {
                    started.wait();
                    for place in (thread * 37..).step_by(111) {
                        let batch = &keys[place % 1900..][..100];
                        let mut rows = vec![0.0; 200];
                        if dropped(old.lookahead(batch)) {
                            break;
                        }
                        if dropped(old.get(batch, &mut rows).and_then(|lease| lease.apply(&rows))) {
                            break;
                        }
                    }
                });
            }
            started.wait();
            std::thread::yield_now();
            test.bank.drop_table("t").unwrap();
        });
        let filler = test.bank.table("filler", TableConfig::new(64)).unwrap();
        assert!(filler.lookahead(&keys).is_ok(), "nothing is left of the dropped table's failures");
    }
    assert!(test.bank.wait_lookahead(Duration::from_secs(120)));
    assert_eq!(test.bank.stats().lookahead.failed, 0);
    assert_eq!(test.bank.stats().release_failures, 0);
}

#[test]
fn a_drop_is_durable_with_the_next_checkpoint_and_gives_its_space_back() {
    let test = new_bank();
    let keys: Vec<u64> = (0..20_000).collect();
    let old = table(&test.bank, TableConfig::new(16));
    old.put(&keys, &vec![2.5; keys.len() * 16]).unwrap();
    let other = test.bank.table("other", sgd(2)).unwrap();
    other.put(&[7], &[1.0; 2]).unwrap();
    test.bank.checkpoint(b"whole").unwrap();
    let full = test.bank.stats().store.log_disk_bytes;
    test.bank.drop_table("t").unwrap();
    let path = test.bank.path().to_owned();
    drop((old, other, test.bank));

    let bank = Bank::open(&path, small_options()).unwrap();
    let back = bank.open_table("t").unwrap();
    assert_eq!(rows_of(&back, &[0, 19_999]), [2.5; 32], "not in a checkpoint, so not dropped");
    bank.drop_table("t").unwrap();
    for _ in 0..3 {
        bank.checkpoint(b"dropped").unwrap();
        bank.compact().unwrap();
    }
    bank.checkpoint(b"dropped").unwrap();
    let left = bank.stats().store.log_disk_bytes;
    assert!(left < full / 5, "{left} of {full} bytes are left");
    drop((back, bank));

    let bank = Bank::open(&path, small_options()).unwrap();
    assert_eq!(bank.tables().len(), 1);
    assert_eq!(rows_of(&bank.open_table("other").unwrap(), &[7]), [1.0; 2]);
}

#[test]
fn an_unknown_name_is_answered_with_the_names_that_exist() {
    let test = new_bank();
    let message = |bank: &Bank| bank.open_table("user").unwrap_err().to_string();
    let none = "there is no table \"user\" in this bank, which has no table";
    assert_eq!(message(&test.bank), none);
    for number in 0..21 {
        test.bank.table(&format!("t{number:02}"), sgd(2)).unwrap();
    }
    let shown: Vec<_> = (0..20).map(|number| format!("\"t{number:02}\"")).collect();
    let all = format!(
        "there is no table \"user\" in this bank, which has {}, and 1 more",
        shown.join(", ")
    );
    assert_eq!(message(&test.bank), all);

    // The error of a read-only bank names its checkpoint, because a newer checkpoint may have the
    // table.
    test.bank.drop_table("t20").unwrap();
    test.bank.checkpoint(b"").unwrap();
    test.bank.table("user", sgd(2)).unwrap();
    let reader = Bank::open_read_only(test.bank.path(), small_options(), None).unwrap();
    let read =
        all.replace(", and 1 more", "").replace("in this bank", "in checkpoint 1 of this bank");
    assert_eq!(message(&reader), read);
}

/// True if each table of counts in the newest checkpoint has its main table, and each main table
/// has its counts.
fn counts_have_tables(dir: &std::path::Path) -> bool {
    let newest = embank::inspect::summary(dir).unwrap().checkpoints.into_iter().next_back();
    let names: Vec<String> = newest.unwrap().tables.into_iter().map(|table| table.name).collect();
    let (counts, tables): (Vec<&str>, Vec<&str>) = {
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.retain(|name| !name.starts_with('('));
        names.into_iter().partition(|name| embank::table_of_counts(name).is_some())
    };
    let counted: Vec<&str> = counts.into_iter().filter_map(embank::table_of_counts).collect();
    counted == tables
}

/// Regression test: a table and the table of its counts were made, and dropped, one after the
/// other. A checkpoint in between kept counts without a table for ever.
#[test]
fn no_checkpoint_has_counts_without_their_table() {
    let test = new_bank();
    let path = test.dir.path().join("bank");
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for admission in [Admission::AfterGets(2), Admission::Probability(0.5)].repeat(150) {
                test.bank.table("t", sgd(1).admission(admission)).unwrap();
                test.bank.drop_table("t").unwrap();
            }
        });
        while !changing.is_finished() {
            test.bank.checkpoint(b"").unwrap();
            assert!(counts_have_tables(&path));
        }
    });
}

/// Makes a bank with tables "t" and "other" of this admission, and drops "t" without its counts, as
/// earlier versions of Embank could.
fn with_an_orphan(path: &std::path::Path, admission: Admission) {
    let bank = Bank::open(path, small_options()).unwrap();
    for name in ["t", "other"] {
        let table = bank.table(name, sgd(1).admission(admission)).unwrap();
        table.get(&[1], &mut [0.0]).unwrap().release().unwrap();
    }
    bank.checkpoint(b"").unwrap();
    drop(bank);
    let store = embank_kv::Store::open(path, &embank_kv::StoreOptions::default()).unwrap();
    let table = store.tables().into_iter().find(|table| table.name == "t").unwrap();
    store.drop_table(table.id).unwrap();
    store.checkpoint(b"").unwrap();
    drop(store);
    assert!(!counts_have_tables(path));
}

/// Regression test: counts whose table was dropped stayed in the bank until a table of the same
/// name was made.
#[test]
fn an_open_drops_counts_without_their_table() {
    for admission in [Admission::AfterGets(3), Admission::Probability(1e-9)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank");
        with_an_orphan(&path, admission);
        let reader = Bank::open_read_only(&path, small_options(), None).unwrap();
        assert_eq!(reader.tables().len(), 1);
        drop(reader);
        let bank = Bank::open(&path, small_options()).unwrap();
        bank.checkpoint(b"").unwrap();
        assert!(counts_have_tables(&path));
        // The counts of the other table are still there.
        let other = bank.open_table("other").unwrap();
        other.get(&[1], &mut [0.0]).unwrap().release().unwrap();
        other.get(&[1], &mut [0.0]).unwrap().release().unwrap();
        let has_row = matches!(admission, Admission::AfterGets(_));
        assert_eq!(other.contains(&[1]).unwrap(), [has_row]);
        let again = bank.table("t", sgd(1).admission(admission)).unwrap();
        again.get(&[1], &mut [0.0]).unwrap().release().unwrap();
        assert_eq!(again.contains(&[1]).unwrap(), [false]);
    }
}
