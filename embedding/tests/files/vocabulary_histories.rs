//! Tests vocabularies of a bank that is rolled back, a reader while another process renumbers, and
//! a drop during a verification.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::{
    Bank, BankOptions, ByteBuffer, Error, ExportOptions, ImportOptions, TableConfig, Values,
    VocabularyConfig,
};

fn options() -> BankOptions {
    BankOptions { memory_budget_bytes: 4 << 20, checkpoints_kept: 4, ..Default::default() }
}

fn open(path: &Path) -> Bank {
    Bank::open(path, options()).unwrap()
}

fn refused(result: Result<embank::Imported, Error>) -> String {
    match result {
        Err(Error::FileMismatch { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

/// Shows that an import refuses rows of a numbering that was rolled back. A new renumbering, which
/// keeps other values, then has the same count of renumberings as the lost one.
#[test]
fn a_numbering_after_going_back_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = (dir.path().join("bank"), dir.path().join("t.safetensors"));
    let bank = open(&path);
    let v = bank.vocabulary("v", VocabularyConfig::u64().counts(true)).unwrap();
    v.ids_or_insert(&[1, 2, 3, 4], &mut [0; 4]).unwrap();
    v.add_counts(&[0, 1, 2, 3], &[1, 2, 3, 4]).unwrap();
    let first = bank.checkpoint(b"").unwrap();
    let before = v.keep_frequent(2).unwrap().identity;
    let t = bank.table("t", TableConfig::new(1).vocabulary("v")).unwrap();
    t.put(&[0, 1, 2], &[2.0, 3.0, 4.0]).unwrap();
    bank.checkpoint(b"").unwrap();
    t.export(&file, &ExportOptions::default()).unwrap();
    let made = t.config();
    drop((t, v, bank));
    assert_eq!(open(&path).open_vocabulary("v").unwrap().identity(), before);

    Bank::roll_back(&path, first).unwrap();
    let bank = open(&path);
    let after = bank.open_vocabulary("v").unwrap().keep_frequent(3).unwrap().identity;
    assert_eq!((after.id, after.renumberings()), (before.id, before.renumberings()));
    assert_ne!(after, before);
    match bank.table("old", made) {
        Err(Error::OtherVocabulary { found, .. }) => {
            assert!(found.contains("taken back to a checkpoint"), "{found}");
        }
        other => panic!("{other:?}"),
    }
    let t = bank.table("t", TableConfig::new(1).vocabulary("v")).unwrap();
    let what = refused(t.import(&file, &ImportOptions::default()));
    assert!(what.contains("another numbering"), "{what}");
    assert_eq!(t.contains(&[0]).unwrap(), [false]);
}

/// Shows that an import refuses rows for values that a rollback removed. No renumbering is
/// involved: the file stores a hash of its values.
#[test]
fn rows_for_values_that_are_gone_are_not_imported() {
    for bytes in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank");
        let config = if bytes { VocabularyConfig::bytes() } else { VocabularyConfig::u64() };
        let insert = |bank: &Bank, numbers: std::ops::Range<u64>| {
            let v = bank.vocabulary("v", config.clone()).unwrap();
            let strings: ByteBuffer = numbers.clone().map(|i| format!("word {i}")).collect();
            let numbers: Vec<u64> = numbers.collect();
            let values: Values<'_> = if bytes { (&strings).into() } else { (&numbers).into() };
            v.ids_or_insert(values, &mut vec![0; numbers.len()]).unwrap();
        };
        let file = dir.path().join("t.npy");
        let bank = open(&path);
        insert(&bank, 0..5000);
        let t = bank.table("t", TableConfig::new(1).vocabulary("v")).unwrap();
        let first = bank.checkpoint(b"").unwrap();
        insert(&bank, 5000..6000);
        t.put(&[5500], &[1.0]).unwrap();
        bank.checkpoint(b"").unwrap();
        t.export(&file, &ExportOptions::default()).unwrap();
        let import = |bank: &Bank| {
            let t = bank.open_table("t").unwrap();
            t.import(&file, &ImportOptions::default())
        };
        assert_eq!(import(&bank).unwrap().rows, 1);
        drop((t, bank));

        Bank::roll_back(&path, first).unwrap();
        let bank = open(&path);
        let what = refused(import(&bank));
        assert!(what.contains("6000 values") && what.contains("only 5000 of them"), "{what}");
        insert(&bank, 7000..9000);
        let what = refused(import(&bank));
        assert!(what.contains("has others now"), "{what}");
        let unbound = bank.table("unbound", TableConfig::new(1)).unwrap();
        assert_eq!(unbound.import(&file, &ImportOptions::default()).unwrap().rows, 1);
        drop((unbound, bank));

        // The bank has the file's values again, followed by more values.
        Bank::roll_back(&path, first).unwrap();
        let bank = open(&path);
        insert(&bank, 5000..7000);
        assert_eq!(import(&bank).unwrap().rows, 1);
    }
}

/// Shows that refreshes of a reader and lists of vocabularies in other threads do not disturb each
/// other. In an earlier version a list of one checkpoint was combined with headers of the next, and
/// sound vocabularies were reported as damaged.
#[test]
fn refreshes_from_many_threads_see_whole_vocabularies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bank");
    let bank = open(&path);
    for i in 0..60 {
        bank.vocabulary(&format!("other {i}"), VocabularyConfig::u64()).unwrap();
    }
    let v = bank.vocabulary("v", VocabularyConfig::u64().counts(true)).unwrap();
    let mut ids = vec![0; 100];
    v.ids_or_insert(&(0..100).collect::<Vec<u64>>(), &mut ids).unwrap();
    v.count(&ids).unwrap();
    bank.checkpoint(b"").unwrap();
    let reading = Bank::open_read_only(&path, options(), None).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let refreshing = || {
            while !done.load(Ordering::Relaxed) {
                reading.refresh().unwrap();
            }
        };
        let looking = || {
            let v = reading.open_vocabulary("v").unwrap();
            while !done.load(Ordering::Relaxed) {
                let mut ids = [0; 3];
                assert!(v.ids(&[1, 2, 3], &mut ids).unwrap().is_empty());
                assert_eq!(ids, [1, 2, 3]);
            }
        };
        let threads = [
            scope.spawn(refreshing),
            scope.spawn(refreshing),
            scope.spawn(refreshing),
            scope.spawn(looking),
        ];
        for _ in 0..ROUNDS {
            v.keep_frequent(1).unwrap();
            bank.checkpoint(b"").unwrap();
            if threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    reading.refresh().unwrap();
    let now = reading.open_vocabulary("v").unwrap();
    assert_eq!((now.identity(), now.len()), (v.identity(), 100));
}

const ROUNDS: usize = 150;

/// Shows that dropping a vocabulary waits for its verification, and that no other call waits.
#[test]
fn a_verification_may_use_the_bank_while_its_vocabulary_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let bank = open(&dir.path().join("bank"));
    let v = bank.vocabulary("v", VocabularyConfig::u64()).unwrap();
    bank.vocabulary("other", VocabularyConfig::u64()).unwrap();
    v.ids_or_insert(&(0..9000).collect::<Vec<u64>>(), &mut [0; 9000]).unwrap();
    let bound = bank.table("bound", TableConfig::new(1).vocabulary("v")).unwrap();
    bound.put(&[7], &[7.0]).unwrap();
    bank.checkpoint(b"").unwrap();
    let (begun, seen) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            bank.drop_vocabulary("v").unwrap();
            seen.store(true, Ordering::SeqCst);
        });
        let mut chunks = 0;
        v.verify_with(|_| {
            chunks += 1;
            if chunks == 1 {
                begun.wait();
            }
            // These calls return while the other thread waits to drop the vocabulary.
            for _ in 0..1000 {
                assert_eq!(bank.vocabularies().len(), 2);
                bank.open_vocabulary("other").unwrap();
                std::thread::yield_now();
            }
            bank.table(&format!("t {chunks}"), TableConfig::new(1).vocabulary("v")).unwrap();
            // An export and an import read the number of values, and must not wait for the
            // verification.
            let file = dir.path().join(format!("{chunks}.safetensors"));
            bound.export(&file, &ExportOptions::default()).unwrap();
            bound.import(&file, &ImportOptions::default()).unwrap();
            assert!(!seen.load(Ordering::SeqCst));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(chunks > 1);
    });
    assert_eq!(bank.vocabularies().len(), 1);
    assert!(matches!(bank.drop_vocabulary("v"), Err(Error::NoSuchVocabulary { .. })));
}

/// Shows that a table can't have the name of a vocabulary's internal table, because the two would
/// collide.
#[test]
fn tables_have_no_names_of_a_vocabularys_own() {
    let dir = tempfile::tempdir().unwrap();
    let bank = open(&dir.path().join("bank"));
    for name in ["word (vocabulary)", "word (vocabulary, ids 0)", "word (vocabulary, counts 7)"] {
        let error = bank.table(name, TableConfig::new(2)).unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
    }
    bank.table("word (vocabulary) of 2020", TableConfig::new(2)).unwrap();
    bank.vocabulary("word", VocabularyConfig::u64().counts(true)).unwrap();
    bank.vocabulary("word (vocabulary)", VocabularyConfig::bytes().counts(true)).unwrap();
}

/// Shows that the number of values in a scan's chunk depends on `value_bytes_max`. 4,096 strings of
/// 64 KiB would take 256 MiB.
#[test]
fn long_values_come_a_few_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 64 << 20, ..Default::default() };
    let bank = Bank::open(dir.path().join("bank"), options).unwrap();
    let config = VocabularyConfig::bytes().value_bytes_max(64 << 10).counts(true);
    let v = bank.vocabulary("v", config).unwrap();
    let strings: ByteBuffer = (0..1000).map(|i| format!("word {i}")).collect();
    let mut ids = vec![0; 1000];
    v.ids_or_insert(&strings, &mut ids).unwrap();
    v.count(&ids[1..]).unwrap();
    let (mut scan, mut sizes) = (v.scan(), Vec::new());
    while let Some(chunk) = scan.next_chunk().unwrap() {
        sizes.push(chunk.values.len());
    }
    assert_eq!(sizes, [256, 256, 256, 232]);
    assert_eq!(v.verify().unwrap().values, 1000);
    assert_eq!(v.keep_frequent(1).unwrap().kept, 999);
    assert_eq!(v.verify().unwrap().values, 999);
}
