//! Tests each call of the device with a failure, a wrong result or a delay. Reads must never return
//! a wrong row, and no checkpoint may be lost. After a failed write the store refuses further
//! writes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::{GetAll, PutAll, Random, options, peek, value};
use embank_kv::device::{
    Device, DeviceCalls, DeviceOptions, FaultyDevice, MemoryDevice, ReadFault, WriteFault,
};
use embank_kv::{Clock, CompactionOptions, Error, Store, StoreOptions, TableId};

const VALUE_BYTES: usize = 64;
const KEYS_END: u64 = 4000;
const PAGE_BYTES: i64 = 8 << 10;

type Model = HashMap<u64, u64>;

/// A fault of the device. The number names the call that has the fault, from 1 on.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Read(u64, ReadFault),
    Write(u64, WriteFault),
    Sync(u64),
    Truncate(u64),
    Free(u64),
    /// All calls succeed after random delays, which the seed determines.
    Delays(u64),
}

impl Fault {
    fn plan(self, device: &FaultyDevice) {
        const KIND: ErrorKind = ErrorKind::Other;
        match self {
            Fault::Read(n, fault) => device.spoil_read(n, fault),
            Fault::Write(n, fault) => device.spoil_write(n, fault),
            Fault::Sync(n) => device.fail_sync(n, KIND),
            Fault::Truncate(n) => device.fail_truncate(n, KIND),
            Fault::Free(n) => device.fail_free(n, KIND),
            Fault::Delays(seed) => device.delay(seed, 200),
        }
    }

    /// True if the fault can leave wrong bytes on the device while the write reports success.
    fn lies_in_writing(self) -> bool {
        matches!(self, Fault::Write(_, fault) if !matches!(fault, WriteFault::Fails { .. }))
    }

    /// True if the store must refuse further writes after the fault.
    fn stops_writes(self) -> bool {
        matches!(self, Fault::Write(_, WriteFault::Fails { .. }) | Fault::Sync(_))
    }
}

struct Life {
    fault: Option<Fault>,
    dir: tempfile::TempDir,
    device: Arc<FaultyDevice>,
    store: Option<Store>,
    table: Option<TableId>,
    model: Model,
    /// The number and the content of the last complete checkpoint. `begun` has the number and the
    /// content of a later checkpoint that was begun and has not succeeded.
    saved: (u64, Model),
    begun: Option<(u64, Model)>,
    errors: Vec<String>,
}

impl Life {
    /// Runs all steps. Stops early if a failure ends the store's writes.
    fn live(fault: Option<Fault>) -> Self {
        let disk = MemoryDevice::new(&DeviceOptions {
            segment_size_bytes: 64 << 10,
            ..DeviceOptions::default()
        });
        let device = Arc::new(FaultyDevice::new(Arc::new(disk.unwrap())));
        if let Some(fault) = fault {
            fault.plan(&device);
        }
        let mut life = Life {
            fault,
            dir: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            device,
            store: None,
            table: None,
            model: Model::new(),
            saved: (0, Model::new()),
            begun: None,
            errors: Vec::new(),
        };
        life.go_through();
        life
    }

    fn go_through(&mut self) {
        type Step = fn(&mut Life) -> Result<(), Error>;
        let steps: [Step; 17] = [
            Life::open,
            |life| life.put(1, 0, 2500),
            Life::checkpoint,
            |life| life.put(2, 700, 900),
            |life| life.delete(1000, 1100),
            |life| life.get(0, 300),
            Life::checkpoint,
            |life| life.put(3, 500, 3000),
            Life::compact,
            Life::checkpoint,
            Life::check,
            Life::scan,
            |life| life.put(4, 0, 1500),
            Life::open,
            |life| life.put(5, 2000, 3500),
            Life::checkpoint,
            Life::check,
        ];
        for step in steps {
            let Err(error) = step(self) else { continue };
            self.note(&error);
            let again = !self.fault.is_some_and(Fault::lies_in_writing) && !self.is_stopped();
            // The fault occurs once, so the repeated step runs without it.
            if !again {
                break;
            }
            if let Err(error) = step(self) {
                self.note(&error);
                assert!(self.is_stopped(), "{:?}: {error}, again", self.fault);
                break;
            }
        }
        if self.fault.is_some_and(Fault::stops_writes) && !self.errors.is_empty() {
            assert!(self.is_stopped() || self.store.is_none(), "{:?}: no stop", self.fault);
        }
    }

    fn note(&mut self, error: &Error) {
        let text = error.to_string();
        assert!(self.fault.is_some(), "{text}");
        // An error names the injected fault, the segment or the page. The disk in memory has no
        // path to name.
        let named = text.contains("injected") || text.contains(".seg") || text.contains("page");
        assert!(named && !text.contains("panicked"), "{:?}: {text}", self.fault);
        self.errors.push(text);
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn table(&self) -> TableId {
        self.table.unwrap()
    }

    fn is_stopped(&self) -> bool {
        // No row has this key, so the deletion changes nothing. It only tests whether writes are
        // refused.
        let Some(store) = &self.store else { return false };
        matches!(store.delete(self.table(), &[KEYS_END + 1]), Err(Error::Poisoned { .. }))
    }

    fn open(&mut self) -> Result<(), Error> {
        self.store = None;
        let options = StoreOptions {
            page_size_bytes: Some(PAGE_BYTES as u32),
            segment_size_bytes: Some(64 << 10),
            checkpoints_kept: 1,
            compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
            ..options(256 << 10)
        };
        let device: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&self.device);
        let store = Store::open_on(self.dir.path(), &options, |_| Ok(device))?;
        let blob = store.recovered().map_or(0, |found| found.blob[0].into());
        if let Some(begun) = self.begun.take().filter(|(serial, _)| *serial == blob) {
            self.saved = begun;
        }
        assert_eq!(blob, self.saved.0, "{:?}: the checkpoint", self.fault);
        let table = match store.tables().first() {
            Some(table) => table.id,
            None => store.create_table("rows", VALUE_BYTES as u32, b"")?,
        };
        self.table = Some(table);
        self.model = self.saved.1.clone();
        self.store = Some(store);
        Ok(())
    }

    fn put(&mut self, version: u64, first: u64, end: u64) -> Result<(), Error> {
        let keys: Vec<u64> = (first..end).collect();
        let values: Vec<_> = keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
        self.store().execute(self.table(), &keys, Clock::Keep, &mut PutAll(&values))?;
        self.model.extend(keys.iter().map(|&key| (key, version)));
        Ok(())
    }

    fn delete(&mut self, first: u64, end: u64) -> Result<(), Error> {
        let keys: Vec<u64> = (first..end).collect();
        self.store().delete(self.table(), &keys)?;
        self.model.retain(|key, _| !keys.contains(key));
        Ok(())
    }

    fn get(&mut self, first: u64, end: u64) -> Result<(), Error> {
        let keys: Vec<u64> = (first..end).collect();
        let mut values = vec![Vec::new(); keys.len()];
        self.store().execute(self.table(), &keys, Clock::Keep, &mut GetAll(&mut values))?;
        self.store().promote(self.table(), &keys)?;
        for (key, found) in keys.into_iter().zip(values) {
            assert_eq!(Some(found), self.row(key), "{:?}: key {key}", self.fault);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        let serial = self.begun.as_ref().map_or(self.saved.0, |(serial, _)| *serial) + 1;
        let state = (serial, self.model.clone());
        self.begun = Some(state.clone());
        self.store().checkpoint(&[serial as u8])?;
        (self.saved, self.begun) = (state, None);
        Ok(())
    }

    fn compact(&mut self) -> Result<(), Error> {
        self.store().compact().map(|_| ())
    }

    fn row(&self, key: u64) -> Option<Vec<u8>> {
        self.model.get(&key).map(|&version| value(key, version, VALUE_BYTES))
    }

    fn check(&mut self) -> Result<(), Error> {
        let keys: Vec<u64> = (0..KEYS_END).collect();
        for (key, row) in keys.iter().zip(peek(self.store(), self.table(), &keys)?) {
            assert_eq!(row, self.row(*key), "{:?}: key {key}", self.fault);
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Error> {
        let (mut scan, mut rows) = (self.store().scan(self.table())?, 0);
        while let Some(row) = scan.next_row()? {
            let expected = self.saved.1.get(&row.key);
            let expected = expected.map(|&version| value(row.key, version, VALUE_BYTES));
            assert_eq!(expected.as_deref(), Some(row.value), "{:?}: key {}", self.fault, row.key);
            rows += 1;
        }
        assert_eq!(rows, self.saved.1.len(), "{:?}: rows of a scan", self.fault);
        Ok(())
    }

    /// Ends the device's fault and opens the bank. Asserts that each row is that of the last
    /// checkpoint. There is one exception: if the fault was a write that reported success but wrote
    /// wrong bytes, the open or the read of a row may fail. Returns the number of rows that could
    /// not be read.
    fn look_at_what_is_left(mut self) -> u64 {
        self.device.mend();
        let lied = self.fault.is_some_and(Fault::lies_in_writing);
        if let Err(error) = self.open() {
            assert!(lied, "{:?}: opening: {error}", self.fault);
            self.note(&error);
            return KEYS_END;
        }
        let mut lost = 0;
        for key in 0..KEYS_END {
            match peek(self.store(), self.table(), &[key]) {
                Ok(row) => assert_eq!(row[0], self.row(key), "{:?}: key {key}", self.fault),
                Err(error) => {
                    assert!(lied, "{:?}: key {key}: {error}", self.fault);
                    self.note(&error);
                    lost += 1;
                }
            }
        }
        if lost == 0 {
            self.put(6, 100, 200).unwrap();
            self.checkpoint().unwrap();
            self.open().unwrap();
            self.check().unwrap();
        }
        lost
    }
}

/// Returns at most `count` numbers from 1 to `calls`, including 1 and `calls`.
fn chosen(calls: u64, count: u64, random: &mut Random) -> Vec<u64> {
    let mut chosen: Vec<u64> = match calls <= count {
        true => (1..=calls).collect(),
        false => (0..count - 2).map(|_| 1 + random.below(calls)).chain([1, calls]).collect(),
    };
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

#[test]
fn every_call_goes_wrong_in_every_way() {
    let mut random = Random::new();
    let life = Life::live(None);
    let DeviceCalls { reads, writes, syncs, truncates, frees, .. } = life.device.calls();
    println!("{reads} reads, {writes} writes, {syncs} syncs, {truncates} truncates, {frees} frees");
    assert!(reads > 100 && writes > 60 && syncs >= 4 && truncates >= 2 && frees >= 2);
    assert_eq!(life.look_at_what_is_left(), 0);
    let (byte, bit) = (random.next() as usize % (1 << 20), random.below(8) as u8);
    let mut faults: Vec<Fault> = Vec::new();
    for n in chosen(reads, 40, &mut random) {
        let elsewhere = [PAGE_BYTES, -PAGE_BYTES, 512].map(|by| ReadFault::Misdirected { by });
        let others = [
            ReadFault::Fails(ErrorKind::Other),
            ReadFault::CutShort,
            ReadFault::Flipped { byte, bit },
        ];
        faults.extend(elsewhere.into_iter().chain(others).map(|fault| Fault::Read(n, fault)));
    }
    for n in chosen(writes, 40, &mut random) {
        let kind = ErrorKind::StorageFull;
        let fails = [0, 512, 4096].map(|kept_bytes| WriteFault::Fails { kind, kept_bytes });
        let elsewhere =
            [PAGE_BYTES, -PAGE_BYTES, -4096, 3 * 65536].map(|by| WriteFault::Misdirected { by });
        let others = [WriteFault::Lost, WriteFault::Flipped { byte, bit }];
        let all = fails.into_iter().chain(elsewhere).chain(others);
        faults.extend(all.map(|fault| Fault::Write(n, fault)));
    }
    faults.extend((1..=syncs).map(Fault::Sync));
    faults.extend((1..=truncates).map(Fault::Truncate));
    faults.extend((1..=frees).map(Fault::Free));
    faults.extend((0..5).map(|_| Fault::Delays(random.next())));
    let (mut told, mut damaged) = (0, 0);
    for &fault in &faults {
        let life = Life::live(Some(fault));
        told += u64::from(!life.errors.is_empty());
        damaged += u64::from(life.look_at_what_is_left() > 0);
    }
    println!(
        "{} faults: {told} were reported at once, {damaged} cost rows, which were all reported",
        faults.len()
    );
    assert!(told > 100 && damaged > 50, "the faults strike");
}
