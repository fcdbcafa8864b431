//! Tests values of any length in each region: a read returns exactly the bytes that were put.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{
    GetEach, PutAll, PutEach, Random, ReadAll, Turn, options, peek_each, push_to_disk, rows,
    turned, value,
};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{
    Access, Clock, DeviceChoice, Error, Operation, Outcome, Store, StoreOptions, TableId, Width,
};

const BUDGET_BYTES: u64 = 256 << 10;
const MAX: usize = 900;

struct Bank {
    store: Store,
    table: TableId,
    dir: tempfile::TempDir,
}

fn bank(device: DeviceChoice) -> Bank {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { device, ..options(BUDGET_BYTES) };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_variable_table("words", MAX as u32, b"").unwrap();
    Bank { store, table, dir }
}

fn put_each(store: &Store, table: TableId, keys: &[u64], values: &[Vec<u8>]) -> Outcome {
    store.execute(table, keys, Clock::Keep, &mut PutEach(values)).unwrap()
}

fn get_each(store: &Store, table: TableId, keys: &[u64]) -> Vec<Option<Vec<u8>>> {
    let mut values = vec![Vec::new(); keys.len()];
    let outcome = store.execute(table, keys, Clock::Keep, &mut GetEach(&mut values)).unwrap();
    rows(values, &outcome)
}

fn some(values: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    values.iter().cloned().map(Some).collect()
}

/// The region in which the rows are before an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Region {
    Mutable,
    ReadOnly,
    Disk,
    Reopened,
}

const REGIONS: [Region; 4] = [Region::Mutable, Region::ReadOnly, Region::Disk, Region::Reopened];

/// Returns all lengths up to 39 bytes, some greater lengths around a change of padding, and the
/// largest length.
fn lengths() -> Vec<usize> {
    (0..40).chain([127, 128, 129, 511, 512, MAX - 1, MAX]).collect()
}

fn bring(bank: &mut Bank, region: Region) {
    match region {
        Region::Mutable => {}
        Region::ReadOnly => {
            bank.store.checkpoint(b"").unwrap();
        }
        Region::Disk => push_away(bank),
        Region::Reopened => {
            bank.store.checkpoint(b"").unwrap();
            let options = options(BUDGET_BYTES);
            // Puts another store into the field, so that the old store releases its lock before the
            // bank is opened again.
            let other = Store::open(&bank.dir.path().join("other"), &options).unwrap();
            drop(std::mem::replace(&mut bank.store, other));
            bank.store = Store::open(bank.dir.path(), &options).unwrap();
        }
    }
}

/// Writes other rows until the table's rows have left memory.
fn push_away(bank: &Bank) {
    // `push_to_disk` peeks at a row of a fixed-width table, so the test makes such a table and puts
    // one row into it.
    let name = "fixed";
    let fixed = bank.store.tables().iter().find(|table| table.name == name).map(|table| table.id);
    let fixed = fixed.unwrap_or_else(|| bank.store.create_table(name, 8, b"").unwrap());
    let value = [vec![1; 8]];
    bank.store.execute(fixed, &[1], Clock::Keep, &mut PutAll(&value)).unwrap();
    push_to_disk(&bank.store, fixed, 1);
}

#[test]
fn each_operation_does_right_by_each_length_in_each_region() {
    for region in REGIONS {
        let mut bank = bank(DeviceChoice::Auto);
        let keys: Vec<u64> = (0..lengths().len() as u64).collect();
        let mut values: Vec<Vec<u8>> =
            lengths().iter().zip(&keys).map(|(&bytes, &key)| value(key, 0, bytes)).collect();
        assert!(put_each(&bank.store, bank.table, &keys, &values).missing.is_empty());
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values));

        bring(&mut bank, region);
        // The second read may find rows in the read cache. After these batches, the test also reads
        // each row alone.
        for _ in 0..2 {
            assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values));
        }
        for (key, value) in keys.iter().zip(&values) {
            let row = peek_each(&bank.store, bank.table, &[*key]).unwrap();
            assert_eq!(row, [Some(value.clone())], "{region:?}");
        }
        assert_eq!(get_each(&bank.store, bank.table, &keys), some(&values), "{region:?}");

        bring(&mut bank, region);
        let mut turn = Turn { max: MAX, insert: false };
        bank.store.execute(bank.table, &keys, Clock::Keep, &mut turn).unwrap();
        values.iter_mut().for_each(|value| *value = turned(Some(value), MAX));
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values), "{region:?}");

        bring(&mut bank, region);
        let promoted = bank.store.promote(bank.table, &keys).unwrap();
        assert_eq!(promoted.missing, 0, "{region:?}");
        assert_eq!(promoted.moved + promoted.resident, keys.len() as u64, "{region:?}");
        assert_eq!(get_each(&bank.store, bank.table, &keys), some(&values), "{region:?}");

        bring(&mut bank, region);
        // Each row gets the length of another row. The new length may be longer, shorter, or the
        // same with padding.
        values.rotate_right(1);
        put_each(&bank.store, bank.table, &keys, &values);
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values), "{region:?}");

        bring(&mut bank, region);
        let deleted: Vec<u64> = keys.iter().copied().filter(|key| key % 2 == 0).collect();
        let there = bank.store.delete(bank.table, &deleted).unwrap();
        assert_eq!(there, deleted.len() as u64, "{region:?}");
        let mut expected = some(&values);
        deleted.iter().for_each(|&key| expected[key as usize] = None);
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), expected, "{region:?}");
        assert_eq!(get_each(&bank.store, bank.table, &keys), expected, "{region:?}");
        assert_eq!(bank.store.clock_of(bank.table, 0).unwrap(), None);
        assert_eq!(bank.store.clock_of(bank.table, 1).unwrap(), Some(0));

        bring(&mut bank, region);
        // The update inserts nothing, so it leaves the tombstones. The put then replaces them by
        // values of other lengths.
        let mut turn = Turn { max: MAX, insert: false };
        let outcome = bank.store.execute(bank.table, &deleted, Clock::Keep, &mut turn).unwrap();
        assert_eq!(outcome.missing.len(), deleted.len(), "{region:?}");
        values.rotate_right(1);
        put_each(&bank.store, bank.table, &keys, &values);
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values), "{region:?}");
        let live = |table: &[Vec<u8>]| {
            table.iter().map(|value| 32 + value.len().next_multiple_of(8) as u64).sum::<u64>()
        };
        bank.store.compact().unwrap();
        assert_eq!(peek_each(&bank.store, bank.table, &keys).unwrap(), some(&values), "{region:?}");
        let tables: Vec<_> =
            bank.store.tables().into_iter().filter(|table| table.id != bank.table).collect();
        for table in tables {
            bank.store.drop_table(table.id).unwrap();
        }
        assert_eq!(bank.store.stats().live_bytes, live(&values), "{region:?}");
    }
}

#[test]
fn a_value_changes_where_it_lies_as_long_as_its_padding_stays() {
    let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory);
    put_each(&store, table, &[7], &[value(7, 0, 17)]);
    let tail = store.stats().log_tail;
    for (version, bytes) in [24, 17, 20, 23].into_iter().enumerate() {
        let new = value(7, version as u64, bytes);
        put_each(&store, table, &[7], std::slice::from_ref(&new));
        assert_eq!(peek_each(&store, table, &[7]).unwrap(), [Some(new)]);
    }
    assert_eq!(store.stats().log_tail, tail);
    for (version, bytes) in [25, 16, 0, 1].into_iter().enumerate() {
        let tail = store.stats().log_tail;
        let new = value(7, version as u64, bytes);
        put_each(&store, table, &[7], std::slice::from_ref(&new));
        assert_eq!(store.stats().log_tail, tail + 32 + bytes.next_multiple_of(8) as u64);
        assert_eq!(peek_each(&store, table, &[7]).unwrap(), [Some(new)]);
    }
    // A value with the same padded length reuses the space of the deleted row.
    store.delete(table, &[7]).unwrap();
    let tail = store.stats().log_tail;
    put_each(&store, table, &[7], &[value(7, 9, 8)]);
    assert_eq!(store.stats().log_tail, tail);
    store.delete(table, &[7]).unwrap();
    put_each(&store, table, &[7], &[value(7, 10, 9)]);
    assert!(store.stats().log_tail > tail);
    assert_eq!(peek_each(&store, table, &[7]).unwrap(), [Some(value(7, 10, 9))]);
    assert_eq!(store.stats().live_rows, 1);
}

#[test]
fn values_that_fill_a_page_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let page_bytes = 8 << 10;
    let options = StoreOptions { page_size_bytes: Some(page_bytes), ..options(1 << 20) };
    let store = Store::open(dir.path(), &options).unwrap();
    // The largest value fills the page except for the page's header and the record's header.
    let max = page_bytes as usize - 64 - 32;
    let error = store.create_variable_table("too long", max as u32 + 1, b"").unwrap_err();
    assert!(matches!(error, Error::TooLong { bytes_max, .. } if bytes_max == max), "{error:?}");
    let table = store.create_variable_table("long", max as u32, b"").unwrap();
    let keys: Vec<u64> = (0..400).collect();
    let bytes = |key: u64, version: u64| match (key + version) % 3 {
        0 => max - (key as usize % 16),
        1 => key as usize % 30,
        _ => max / 2 + key as usize,
    };
    for version in 0..6 {
        let values: Vec<_> =
            keys.iter().map(|&key| value(key, version, bytes(key, version))).collect();
        put_each(&store, table, &keys, &values);
        assert_eq!(peek_each(&store, table, &keys).unwrap(), some(&values));
        assert_eq!(get_each(&store, table, &keys), some(&values));
        if version % 2 == 1 {
            store.checkpoint(b"").unwrap();
            store.compact().unwrap();
            assert_eq!(peek_each(&store, table, &keys).unwrap(), some(&values));
        }
    }
    let stats = store.stats();
    assert!(stats.hits_disk > 0 && stats.compacted_bytes > 0, "{stats:?}");
}

#[test]
fn most_rows_come_with_one_read_whatever_their_length() {
    for mean in [20_u64, 300, 800] {
        let Bank { store, table, dir: _dir } = bank(DeviceChoice::Auto);
        let keys: Vec<u64> = (0..3000).collect();
        // The lengths are spread evenly from 0 to twice the mean. The table permits much longer
        // values.
        let bytes = |key: u64| (key * 7919 % (mean * 2).min(MAX as u64)) as usize;
        let values: Vec<_> = keys.iter().map(|&key| value(key, 0, bytes(key))).collect();
        put_each(&store, table, &keys, &values);
        store.checkpoint(b"").unwrap();
        let before = store.stats();
        let mut found = 0;
        let spread: Vec<u64> = (0..300).map(|i| i * 7 % 3000).collect();
        for &key in &spread {
            let row = peek_each(&store, table, &[key]).unwrap();
            assert_eq!(row, [Some(values[key as usize].clone())]);
            found += 1;
        }
        let after = store.stats();
        let from_disk = after.hits_disk - before.hits_disk;
        let reads = after.disk_reads - before.disk_reads;
        assert!(found == 300 && from_disk <= reads, "{reads} reads for {from_disk} rows");
        // With this small budget keys may share slots. If reads guessed the lengths badly, most
        // rows would need two reads.
        println!("mean {mean}: {reads} reads for {from_disk} rows");
        assert!(reads < from_disk * 8 / 5, "{reads} reads for {from_disk} rows");
    }
}

#[test]
fn what_a_table_does_not_admit_is_refused_and_changes_nothing() {
    let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory);
    let refused = |result: embank_kv::Result<Outcome>, words: &[&str]| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::WrongKind { .. } | Error::TooLong { .. }), "{error:?}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let info = store.tables().remove(0);
    assert_eq!((info.width, info.value_bytes), (Width::Variable, MAX as u32));
    let fixed = store.create_table("fixed", 8, b"").unwrap();
    assert_eq!(store.tables()[1].width, Width::Fixed);
    // Operations of the wrong width are refused, for one key and for several.
    for keys in [&[1][..], &[1, 2]] {
        let values = vec![vec![0; 8]; keys.len()];
        let mut to = values.clone();
        let run =
            |table, operation: &mut PutAll<'_>| store.execute(table, keys, Clock::Keep, operation);
        refused(run(table, &mut PutAll(&values)), &["words", "variable", "WIDTH"]);
        run(fixed, &mut PutAll(&values)).unwrap();
        let result = store.execute(fixed, keys, Clock::Keep, &mut PutEach(&values));
        refused(result, &["\"fixed\"", "WIDTH"]);
        refused(store.execute(fixed, keys, Clock::Keep, &mut GetEach(&mut to)), &["WIDTH"]);
        refused(store.execute(table, keys, Clock::Keep, &mut ReadAll(&mut to)), &["WIDTH"]);
    }
    let unknown = store.create_variable_table("dropped", 8, b"").unwrap();
    store.drop_table(unknown).unwrap();
    let result = store.execute(unknown, &[1], Clock::Keep, &mut PutEach(&[vec![]]));
    assert!(matches!(result, Err(Error::NoSuchTable(_))));
    // Values that are too long are refused, for a new row and for a row in each region.
    let long = vec![0; MAX + 1];
    put_each(&store, table, &[5], &[value(5, 0, MAX)]);
    for region in 0..3 {
        for key in [5, 6] {
            let mut put = PutEach(std::slice::from_ref(&long));
            let result = store.execute(table, &[key], Clock::Keep, &mut put);
            refused(result, &["words", &key.to_string(), "901", "900"]);
        }
        assert_eq!(peek_each(&store, table, &[5, 6]).unwrap(), [Some(value(5, 0, MAX)), None]);
        match region {
            0 => {
                store.checkpoint(b"").unwrap();
            }
            _ => push_to_disk(&store, fixed, 1),
        }
    }
    let error = store.create_variable_table("words", 9, b"").unwrap_err();
    assert!(error.to_string().contains("up to 900 bytes"), "{error}");
}

#[test]
fn every_flipped_bit_of_a_row_is_an_error() {
    for length in [0, 1, 7, 8, 9, 100, MAX] {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
        let device = Arc::new(FaultyDevice::new(disk));
        let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
        let store = Store::open_on(dir.path(), &options(BUDGET_BYTES), |_| Ok(wrapped)).unwrap();
        let table = store.create_variable_table("words", MAX as u32, b"").unwrap();
        let fixed = store.create_table("fixed", 8, b"").unwrap();
        let begin = store.stats().log_tail;
        put_each(&store, table, &[0], &[value(0, 0, length)]);
        let end = store.stats().log_tail;
        store.execute(fixed, &[1], Clock::Keep, &mut PutAll(&[vec![0; 8]])).unwrap();
        push_to_disk(&store, fixed, 1);
        // A failed read does not fill the read cache, so each peek reads from the device.
        for bit in begin * 8..end * 8 {
            device.flip_bit_on_read(bit / 8, (bit % 8) as u8);
            let error = peek_each(&store, table, &[0]).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "length {length}, bit {bit}: {error}");
            device.mend();
        }
        assert_eq!(peek_each(&store, table, &[0]).unwrap(), [Some(value(0, 0, length))]);
    }
}

/// Asserts that a value repeats one byte, which its length determines. Counts the values.
struct Filled(u64);

impl Filled {
    fn check(value: &[u8]) {
        let Some(&first) = value.first() else { return };
        assert!(value.iter().all(|&byte| byte == first), "torn: {value:?}");
        // The byte is the length modulo 251, so a part of a longer value is detected.
        assert_eq!(value.len() % 251, usize::from(first), "cut: {value:?}");
    }
}

impl Operation for Filled {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = Width::Variable;
    fn read(&mut self, _i: usize, value: &[u8]) {
        Filled::check(value);
        self.0 += 1;
    }
}

/// Fills each row again with a new random length.
struct Refill<const PUT: bool>(Random);

impl<const PUT: bool> Operation for Refill<PUT> {
    const ACCESS: Access = if PUT { Access::Put } else { Access::Update };
    const WIDTH: Width = Width::Variable;
    fn value_bytes(&mut self, _i: usize, old: Option<&[u8]>) -> usize {
        if let Some(old) = old {
            Filled::check(old);
        }
        // Most lengths are close together, so that many rows change in place.
        let most = if self.0.below(4) == 0 { 260 } else { 40 };
        self.0.below(most) as usize
    }
    fn update(&mut self, _i: usize, value: &mut [u8]) {
        let byte = (value.len() % 251) as u8;
        value.fill(byte);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

#[test]
fn a_value_whose_length_changes_is_never_torn() {
    const KEYS: u64 = 4000;
    let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory);
    let random = Random::new();
    let all: Vec<u64> = (0..KEYS).collect();
    store.execute(table, &all, Clock::Keep, &mut Refill::<true>(random.stream(9))).unwrap();
    let writers = AtomicU64::new(2);
    std::thread::scope(|s| {
        for thread in 0..2 {
            let mut random = random.stream(thread);
            let (store, writers) = (&store, &writers);
            s.spawn(move || {
                let mut put = Refill::<true>(random.stream(3));
                let mut update = Refill::<false>(random.stream(4));
                for round in 0..1200 {
                    // Some keys are hot rows in memory, and some are random rows.
                    let mut keys: Vec<u64> = (0..40).map(|_| random.below(8)).collect();
                    keys.extend((0..8).map(|_| random.below(KEYS)));
                    store.execute(table, &keys, Clock::Keep, &mut put).unwrap();
                    store.execute(table, &keys, Clock::Keep, &mut update).unwrap();
                    if round % 64 == thread {
                        store.promote(table, &keys).unwrap();
                        // Only this thread uses this row.
                        store.execute(table, &[KEYS + thread], Clock::Keep, &mut put).unwrap();
                        assert_eq!(store.delete(table, &[KEYS + thread]).unwrap(), 1);
                    }
                    if round % 400 == 399 {
                        store.checkpoint(b"").unwrap();
                    }
                }
                writers.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for thread in 2..4 {
            let mut random = random.stream(thread);
            let (store, writers) = (&store, &writers);
            s.spawn(move || {
                while writers.load(Ordering::Relaxed) > 0 {
                    let mut keys: Vec<u64> = (0..8).cycle().take(64).collect();
                    keys.extend((0..4).map(|_| random.below(KEYS)));
                    let mut filled = Filled(0);
                    let outcome = store.execute(table, &keys, Clock::Keep, &mut filled).unwrap();
                    assert!(outcome.missing.is_empty());
                    assert_eq!(filled.0, keys.len() as u64);
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.log_head > 0 && stats.hits_disk > 0, "pages were evicted: {stats:?}");
    assert_eq!(stats.live_rows, KEYS);
    // The byte count, which all threads changed, must equal the bytes of the rows.
    let rows = peek_each(&store, table, &all).unwrap();
    let bytes = |row: Option<Vec<u8>>| 32 + row.unwrap().len().next_multiple_of(8) as u64;
    assert_eq!(stats.live_bytes, rows.into_iter().map(bytes).sum::<u64>());
}
