//! Random histories of rows through runs and merges, beside a map, and with planted bugs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::cold::keep::KeepSome;
use crate::cold::tests::{Content, Rows, content, device, head, look_up, read_all, row, site};

const DROPPED: TableNumber = TableNumber(3);
const KEYS: u64 = 14;
/// Parts of about 8 rows.
const TARGET: Target<'static> = Target {
    bank: 0xB0_0B5E,
    memory: &KeepSome,
    // A block for each of several sources, or some.
    cursors_bytes: 64 << 10,
    writer_bytes: 8 << 10,
    columns: 9,
    part_bytes: 24 << 10,
    block_bits_max: 14,
};

/// A bug of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    None,
    /// Of two versions the older wins.
    OlderRunWins,
    /// A consolidation drops tombstones as a base merge does.
    TombstoneDropped,
    /// A merge takes rows that the base has merged before.
    MergedTwice,
    /// A delete of an uncounted row counts.
    CountsApart,
}

/// A cold tier and its twin.
struct History {
    device: Arc<dyn Device>,
    random: fastrand::Rng,
    plant: Plant,
    /// Versions that no run has yet.
    hot: Rows,
    /// Newest first.
    runs: Vec<Parts>,
    base: Parts,
    next_run: u64,
    next_part: Arc<AtomicU64>,
    is_dropped: bool,
    /// The present rows.
    twin: BTreeMap<RowOrder, Content>,
    /// What the bank knows of the number of rows, by table.
    counts: BTreeMap<TableNumber, i64>,
}

impl History {
    fn new(seed: u64, plant: Plant) -> Self {
        History {
            device: device(),
            random: fastrand::Rng::with_seed(seed),
            plant,
            hot: Rows::new(),
            runs: Vec::new(),
            base: Vec::new(),
            next_run: 1,
            next_part: Arc::default(),
            is_dropped: false,
            twin: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    fn order(&mut self) -> RowOrder {
        let table = TableNumber(self.random.u16(1..=if self.is_dropped { 2 } else { 3 }));
        let key = self.random.u64(..KEYS);
        (site(&self.device).key_hash.of(table, key), table, key)
    }

    /// Writes a version, as the engine does. `is_blind`: without reading older versions on disk.
    fn put(&mut self, is_blind: bool) {
        let order = self.order();
        let mut content = content(self.random.u64(..), self.random.usize(0..=2_000));
        content.flags.uncounted = match self.hot.get(&order) {
            Some(older) => older.flags.uncounted,
            None if is_blind => true,
            None => self.newest(order).is_some_and(|older| older.flags.uncounted),
        };
        if !content.flags.uncounted && !self.twin.contains_key(&order) {
            *self.counts.entry(order.1).or_default() += 1;
        }
        self.twin.insert(order, content.clone());
        self.hot.insert(order, content);
    }

    fn delete(&mut self) {
        let order = self.order();
        if self.twin.remove(&order).is_some() {
            let uncounted = self.newest(order).is_some_and(|older| older.flags.uncounted);
            if !uncounted || self.plant == Plant::CountsApart {
                *self.counts.entry(order.1).or_default() -= 1;
            }
            let flags = RowFlags { tombstone: true, uncounted };
            let tombstone = Content { flags, unused_bytes: 0, uses: 0, value: Vec::new() };
            self.hot.insert(order, tombstone);
        }
    }

    fn drop_table(&mut self) {
        self.is_dropped = true;
        self.twin.retain(|order, _| order.1 != DROPPED);
        self.hot.retain(|order, _| order.1 != DROPPED);
        self.counts.remove(&DROPPED);
    }

    fn spill(&mut self) {
        if self.hot.is_empty() {
            return;
        }
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        let run = self.next_run;
        self.next_run += 1;
        let head = PartHead { runs: run..=run, ..head(number, 12) };
        let mut writer = PartWriter::new(site(&self.device), head, 9);
        for (order, content) in &self.hot {
            writer.push(&row(order, content)).unwrap();
        }
        self.runs.insert(0, vec![Arc::new(writer.finish_within(&KeepSome).unwrap())]);
        // Some records stay, as copies of records that a spill takes for current do.
        let stays = |_: &RowOrder, _: &mut Content| self.random.u8(..4) == 0;
        self.hot.retain(stays);
    }

    /// Ends a merge, in units of random lengths. `None` if it was abandoned.
    fn end(&mut self, mut merge: Merge<'_>, is_base: bool) -> Option<Merged> {
        match self.plant {
            Plant::TombstoneDropped if !is_base => merge.is_base = true,
            Plant::MergedTwice => merge.merged.clear(),
            _ => {}
        }
        while merge.advance(self.random.u64(1..20_000)).unwrap() {
            if self.random.u8(..16) == 0 {
                for &number in merge.begun() {
                    let address = crate::cold::head::part_address(number, 16 << 20);
                    self.device.remove_part(address).unwrap();
                }
                return None;
            }
        }
        let merged = merge.finish().unwrap();
        assert!(merged.rows_written <= merged.rows_read);
        for (&table, &more) in &merged.counted {
            *self.counts.entry(table).or_default() += more;
        }
        Some(merged)
    }

    fn sources(&self, mut runs: Vec<Parts>) -> Vec<Parts> {
        if self.plant == Plant::OlderRunWins {
            runs.reverse();
        }
        runs
    }

    fn consolidate(&mut self) {
        if self.runs.len() < 2 {
            return;
        }
        let first = self.random.usize(..self.runs.len() - 1);
        let last = self.random.usize(first + 1..self.runs.len());
        let device = Arc::clone(&self.device);
        let (is_dropped, next) = (self.is_dropped, Arc::clone(&self.next_part));
        let merge = Merge::consolidate(
            site(&device),
            self.sources(self.runs[first..=last].to_vec()),
            &self.base,
            TARGET,
            move |table| is_dropped && table == DROPPED,
            move || new_part(&next),
        );
        let Some(merged) = self.end(merge.unwrap(), false) else { return };
        let expected =
            *self.runs[last][0].head().runs.start()..=*self.runs[first][0].head().runs.end();
        for part in &merged.parts {
            assert_eq!((part.head().kind, &part.head().runs), (Kind::Run, &expected));
        }
        assert_gapless(&merged.parts, 0..=u64::MAX);
        let merged = (!merged.parts.is_empty()).then_some(merged.parts);
        self.runs.splice(first..=last, merged);
    }

    fn merge_base(&mut self) {
        let (first, last) = match self.base.len() {
            0 => (0, 0),
            parts => {
                let first = self.random.usize(..parts);
                (first, self.random.usize(first..parts) + 1)
            }
        };
        if self.runs.is_empty() {
            return;
        }
        let device = Arc::clone(&self.device);
        let (is_dropped, next) = (self.is_dropped, Arc::clone(&self.next_part));
        let merge = Merge::merge_base(
            site(&device),
            self.sources(self.runs.clone()),
            &self.base[first..last],
            TARGET,
            move |table| is_dropped && table == DROPPED,
            move || new_part(&next),
        );
        let Some(merged) = self.end(merge.unwrap(), true) else { return };
        let hashes = match &self.base[first..last] {
            [] => 0..=u64::MAX,
            parts => *parts[0].head().hashes.start()..=*parts[parts.len() - 1].head().hashes.end(),
        };
        assert_gapless(&merged.parts, hashes);
        for part in &merged.parts {
            assert_eq!((part.tombstones(), part.uncounted()), (0, 0));
            assert!(*part.head().runs.end() >= *self.runs[0][0].head().runs.end());
        }
        self.base.splice(first..last, merged.parts);
        // A run is dead once all base parts have merged it.
        let through = self.base.iter().map(|part| *part.head().runs.end()).min();
        self.runs.retain(|run| Some(*run[0].head().runs.end()) > through);
    }

    /// Returns a row, as a search finds it.
    fn search(&self, order: RowOrder) -> Option<Content> {
        self.newest(order).filter(|found| !found.flags.tombstone)
    }

    /// Returns the newest version of a row, which may be a tombstone.
    fn newest(&self, order: RowOrder) -> Option<Content> {
        if let Some(hot) = self.hot.get(&order) {
            return Some(hot.clone());
        }
        let of = |parts: &Parts| -> Option<Arc<Part>> {
            parts.iter().find(|part| part.head().hashes.contains(&order.0)).cloned()
        };
        let base = of(&self.base);
        let through = base.as_ref().map_or(0, |base| *base.head().runs.end());
        let runs = self.runs.iter().filter_map(of);
        let newer = runs.filter(|part| *part.head().runs.end() > through);
        for part in newer.chain(base) {
            if !part.may_have(order.0) {
                continue;
            }
            if let Some(found) = look_up(&self.device, &part, order).unwrap().0 {
                return Some(found);
            }
        }
        None
    }

    /// Compares all rows with the twin.
    fn check(&self) -> std::result::Result<(), String> {
        for table in [1, 2, 3].map(TableNumber) {
            if self.is_dropped && table == DROPPED {
                continue;
            }
            for key in 0..KEYS {
                let order = (site(&self.device).key_hash.of(table, key), table, key);
                let (found, expected) = (self.search(order), self.twin.get(&order));
                if found.as_ref().map(|row| &row.value) != expected.map(|row| &row.value) {
                    return Err(format!("row {order:?} has another value"));
                }
            }
        }
        Ok(())
    }

    /// Merges all, and compares the counts with the twin.
    fn check_counts(mut self) -> std::result::Result<(), String> {
        // The loop ends: it is random whether a merge is abandoned, which parts it joins, and
        // whether a version stays.
        while !self.hot.is_empty() || !self.runs.is_empty() {
            self.spill();
            self.merge_base();
        }
        self.check()?;
        let mut rows: BTreeSet<RowOrder> = BTreeSet::new();
        for part in &self.base {
            let found = read_all(&self.device, part).unwrap();
            rows.extend(found.keys().filter(|row| !self.is_dropped || row.1 != DROPPED));
        }
        if !rows.iter().eq(self.twin.keys()) {
            return Err("the base has other rows".into());
        }
        for table in [1, 2, 3].map(TableNumber) {
            let expected = rows.iter().filter(|row| row.1 == table).count() as i64;
            let known = self.counts.get(&table).copied().unwrap_or(0);
            if known != expected && !(self.is_dropped && table == DROPPED) {
                return Err(format!("table {} has {expected} rows, not {known}", table.0));
            }
        }
        Ok(())
    }

    fn check_not_below_zero(&self) -> std::result::Result<(), String> {
        match self.counts.iter().find(|&(_, &rows)| rows < 0) {
            Some((table, rows)) => Err(format!("table {} has {rows} rows", table.0)),
            None => Ok(()),
        }
    }
}

fn new_part(next: &AtomicU64) -> NewPart {
    let number = next.fetch_add(1, Ordering::Relaxed);
    NewPart { number, salt: number ^ 0x5A17 }
}

/// Asserts that the parts answer for each hash of the range once.
fn assert_gapless(parts: &[Arc<Part>], hashes: RangeInclusive<u64>) {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return };
    assert_eq!(
        (first.head().hashes.start(), last.head().hashes.end()),
        (hashes.start(), hashes.end())
    );
    for pair in parts.windows(2) {
        assert_eq!(pair[0].head().hashes.end() + 1, *pair[1].head().hashes.start());
    }
}

/// Runs one history. An error says what was wrong.
fn history(seed: u64, plant: Plant) -> std::result::Result<(), String> {
    let mut history = History::new(seed, plant);
    for _ in 0..history.random.usize(1..120) {
        match history.random.u8(..100) {
            0..25 => history.put(false),
            25..55 => history.put(true),
            55..70 => history.delete(),
            70..84 => history.spill(),
            84..92 => history.consolidate(),
            92..99 => history.merge_base(),
            _ => history.drop_table(),
        }
        // A table is dropped at most once; later puts of it would need a new number.
        if history.random.u8(..8) == 0 {
            history.check()?;
        }
        history.check_not_below_zero()?;
    }
    history.check_counts()
}

fn run(seeds: Range<u64>) {
    for seed in seeds {
        if let Err(what) = history(seed, Plant::None) {
            panic!("history {seed}: {what}");
        }
    }
}

#[test]
fn histories_agree_with_a_map() {
    run(0..if cfg!(miri) { 2 } else { 2_000 });
}

/// The command is in docs/testing.md.
#[test]
#[ignore = "takes minutes"]
fn many_histories_agree_with_a_map() {
    run(2_000..402_000);
}

/// Each bug is noticed. The histories are the first ones of `histories_agree_with_a_map`.
#[test]
#[cfg_attr(miri, ignore = "many histories")]
fn histories_notice_planted_bugs() {
    for plant in
        [Plant::OlderRunWins, Plant::TombstoneDropped, Plant::MergedTwice, Plant::CountsApart]
    {
        let noticed = (0..100).filter(|&seed| history(seed, plant).is_err()).count();
        println!("{plant:?}: {noticed} of 100");
        assert!(noticed > 0, "{plant:?}");
    }
}

#[test]
fn a_damaged_block_ends_a_merge() {
    let mut history = History::new(1, Plant::None);
    for _ in 0..20 {
        history.put(false);
    }
    history.spill();
    let mut bytes = crate::device::AlignedBuffer::zeroed(4096);
    bytes.fill(3);
    let address = history.runs[0][0].address() + 4096;
    history.device.write(address, &bytes).unwrap();
    let begun = Merge::merge_base(
        site(&history.device),
        history.runs.clone(),
        &[],
        TARGET,
        |_| false,
        || NewPart { number: 99, salt: 1 },
    );
    let Err(error) = begun else { panic!("the damage went unnoticed") };
    assert!(error.to_string().contains("of part 0: it does not begin with"), "{error}");
}

/// Regression test: a merge asked if a row's table is dropped when the row became its source's next
/// row, and gave the part its number later. A table that was dropped in between got its rows into a
/// part that looked newer than the drop.
#[test]
fn a_row_whose_table_is_dropped_before_its_part_has_a_number_is_left_out() {
    let mut history = History::new(3, Plant::None);
    for _ in 0..10 {
        (0..20).for_each(|_| history.put(false));
        history.spill();
    }
    let dropped = std::sync::atomic::AtomicBool::new(false);
    let new_part = || {
        dropped.store(true, Ordering::Relaxed);
        NewPart { number: 99, salt: 1 }
    };
    let mut merge = Merge::merge_base(
        site(&history.device),
        history.runs.clone(),
        &[],
        Target { part_bytes: 8 << 20, ..TARGET },
        |table| table == DROPPED && dropped.load(Ordering::Relaxed),
        new_part,
    )
    .unwrap();
    let waiting = merge.sources.iter().filter_map(|source| source.head);
    assert!(
        waiting.filter(|head| head.1 == DROPPED).count() > 0,
        "no source waits with such a row"
    );
    while merge.advance(1 << 20).unwrap() {}
    let merged = merge.finish().unwrap();
    let [part] = &merged.parts[..] else { panic!("{} parts", merged.parts.len()) };
    let mut rows = part.cursor(&*history.device);
    let mut tables = std::collections::BTreeSet::new();
    while let Some(row) = rows.next().unwrap() {
        tables.insert(row.table);
    }
    assert!(tables.len() == 2 && !tables.contains(&DROPPED), "{tables:?}");
}

#[test]
fn a_base_merge_without_rows_has_one_empty_part() {
    let device = device();
    let numbers = || NewPart { number: 5, salt: 6 };
    let mut merge =
        Merge::merge_base(site(&device), Vec::new(), &[], TARGET, |_| false, numbers).unwrap();
    assert!(!merge.advance(1 << 20).unwrap());
    let merged = merge.finish().unwrap();
    assert_eq!((merged.parts.len(), merged.parts[0].rows()), (1, 0));
    let all = merged.parts;
    assert_gapless(&all, 0..=u64::MAX);
    let mut joined =
        Merge::consolidate(site(&device), Vec::new(), &all, TARGET, |_| false, numbers).unwrap();
    assert!(joined.finish().unwrap().parts.is_empty());
}

#[test]
fn cursors_share_their_memory_by_the_bytes_that_they_read() {
    const BLOCK: usize = 4 << 10;
    let sources = [(70, BLOCK), (20, BLOCK), (10, 2 * BLOCK), (0, BLOCK)];
    let blocks = |units: Vec<usize>| units.into_iter().map(|unit| unit / BLOCK).collect::<Vec<_>>();
    // Five blocks go to all, and the rest by size.
    assert_eq!(blocks(unit_bytes(105 * BLOCK, &sources)), [71, 21, 12, 1]);
    assert_eq!(blocks(unit_bytes(3 * BLOCK, &sources)), [1, 1, 2, 1], "too little for all");
    assert_eq!(unit_bytes(64 << 20, &[(1, BLOCK), (1, BLOCK)]), [CURSOR_BYTES_MAX; 2]);
    let most = CURSOR_BYTES_MAX / BLOCK;
    let sources = [(2, BLOCK), (96, BLOCK), (2, BLOCK)];
    assert_eq!(blocks(unit_bytes((most + 102) * BLOCK, &sources)), [51, most, 51], "what is left");
    assert_eq!(unit_bytes(0, &[]), []);
}
