//! Tests of whole parts: what was written is found and read, and damage is never a wrong answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cold::block::{Block, BlockBuilder, BlockIdentity, block_bits_for};
use crate::cold::filter::MixedHash;
use crate::cold::head::{COLD_BEGIN, Kind, PAGE_BYTES, PartHead, PartSite, part_address};
use crate::cold::keep::{Keep, Kept};
use crate::cold::loading::PartFound;
use crate::cold::part::{BlockPlace, Found, Part};
use crate::cold::row::{ColdRow, RowFlags, RowOrder};
use crate::cold::writer::PartWriter;
use crate::device::{AlignedBuffer, Device, DeviceOptions, MemoryDevice, Read};
use crate::error::{Error, Result};
use crate::record::address::TableNumber;
use crate::record::hash::{KeyHash, unhash};

const SEGMENT_BYTES: u64 = 16 << 20;

/// The content of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) flags: RowFlags,
    pub(super) unused_bytes: u8,
    pub(super) uses: u8,
    pub(super) value: Vec<u8>,
}

/// Rows in order.
pub(super) type Rows = BTreeMap<RowOrder, Content>;

pub(super) fn device() -> Arc<dyn Device> {
    let options = DeviceOptions { segment_size_bytes: SEGMENT_BYTES, ..DeviceOptions::default() };
    Arc::new(MemoryDevice::new(&options).unwrap())
}

pub(super) fn site(device: &Arc<dyn Device>) -> PartSite<'_> {
    PartSite { device: &**device, segment_size_bytes: SEGMENT_BYTES, key_hash: KeyHash::new(0) }
}

pub(super) fn head(number: u64, block_bits: u8) -> PartHead {
    PartHead {
        bank: 0xB0_0B5E,
        salt: 0x5A17 + number,
        number,
        kind: Kind::Run,
        level: 0,
        block_bits,
        runs: number..=number,
        hashes: 0..=u64::MAX,
        log: 4096..8192,
    }
}

pub(super) fn row<'a>(order: &RowOrder, content: &'a Content) -> ColdRow<'a> {
    ColdRow {
        table: order.1,
        key: order.2,
        hash: order.0,
        flags: content.flags,
        unused_bytes: content.unused_bytes,
        uses: content.uses,
        value: &content.value,
    }
}

fn write(device: &Arc<dyn Device>, head: PartHead, columns: u32, rows: &Rows) -> Arc<Part> {
    let mut writer = PartWriter::new(site(device), head, columns);
    for (order, content) in rows {
        writer.push(&row(order, content)).unwrap();
    }
    let written = writer.bytes_written();
    let part = writer.finish().unwrap();
    assert_eq!(part.data_bytes() + PAGE_BYTES as u64, written);
    Arc::new(part)
}

/// A row of a table with a value of `bytes` bytes that depends on `version`.
pub(super) fn content(version: u64, bytes: usize) -> Content {
    let mut random = fastrand::Rng::with_seed(version ^ bytes as u64);
    let value = (0..bytes.next_multiple_of(8)).map(|_| random.u8(..)).collect();
    let unused_bytes = (bytes.next_multiple_of(8) - bytes) as u8;
    Content { flags: RowFlags::default(), unused_bytes, uses: version as u8, value }
}

fn put(rows: &mut Rows, table: u16, key: u64, content: Content) {
    let table = TableNumber(table);
    rows.insert((KeyHash::new(0).of(table, key), table, key), content);
}

/// `count` rows of one table with values of `bytes` bytes.
fn rows_of(count: u64, bytes: usize) -> Rows {
    let mut rows = Rows::new();
    (0..count).for_each(|key| put(&mut rows, 1, key, content(key, bytes)));
    rows
}

/// Reads a block as an engine does. Returns the answer, and how many blocks were read.
pub(super) fn look_up(
    device: &Arc<dyn Device>,
    part: &Arc<Part>,
    order: RowOrder,
) -> Result<(Option<Content>, usize)> {
    let mut next = part.block_of(order.0);
    let mut blocks = 0;
    // The loop ends at the part's first block.
    while let Some(at) = next {
        blocks += 1;
        let mut bytes = AlignedBuffer::zeroed(at.bytes as usize);
        device.read_many(&mut [Read { offset: at.address, buffer: &mut bytes }])?;
        let locate = || device.locate(at.address);
        match part.find(at, &bytes, order.0, order.1, order.2, locate)? {
            Found::Row(found) => {
                assert_eq!(found.order(), order);
                return Ok((Some(owned(&found)), blocks));
            }
            Found::Missing => return Ok((None, blocks)),
            Found::Before(before) => next = Some(before),
        }
    }
    Ok((None, blocks))
}

pub(super) fn owned(row: &ColdRow<'_>) -> Content {
    Content {
        flags: row.flags,
        unused_bytes: row.unused_bytes,
        uses: row.uses,
        value: row.value.to_vec(),
    }
}

pub(super) fn read_all(device: &Arc<dyn Device>, part: &Arc<Part>) -> Result<Rows> {
    let mut rows = Rows::new();
    let mut cursor = part.cursor(&**device);
    while let Some(row) = cursor.next()? {
        assert!(rows.insert(row.order(), owned(&row)).is_none());
    }
    assert!(cursor.row().is_none() && cursor.next()?.is_none());
    Ok(rows)
}

/// Checks every answer of a part that has `rows`. Returns the mean number of blocks that a row
/// takes to find.
fn check(device: &Arc<dyn Device>, part: &Arc<Part>, rows: &Rows) -> f64 {
    assert_eq!(part.rows(), rows.len() as u64);
    let count = |is: fn(RowFlags) -> bool| rows.values().filter(|row| is(row.flags)).count() as u64;
    assert_eq!(part.tombstones(), count(|flags| flags.tombstone));
    assert_eq!(part.uncounted(), count(|flags| flags.uncounted));
    assert_eq!(read_all(device, part).unwrap(), *rows);
    let mut all = 0;
    for (order, content) in rows {
        assert!(part.may_have(order.0), "{order:?}");
        let (found, blocks) = look_up(device, part, *order).unwrap();
        assert_eq!(found.as_ref(), Some(content), "{order:?}");
        all += blocks;
        // A key that is not there, and another table's row with the same hash.
        for (table, key) in [(order.1, !order.2), (TableNumber(order.1.0 ^ 0x100), 0)] {
            let hash = if key == 0 { order.0 } else { KeyHash::new(0).of(table, key) };
            let key = if key == 0 { unhash(table, hash) } else { key };
            if !rows.contains_key(&(hash, table, key)) {
                assert_eq!(look_up(device, part, (hash, table, key)).unwrap().0, None);
            }
        }
    }
    for from in [0, 1 << 63, u64::MAX].into_iter().chain(rows.keys().step_by(97).map(|row| row.0)) {
        let mut cursor = part.cursor_from(&**device, from, 1 << 16);
        let expected = rows.range((from, TableNumber(0), 0)..).map(|(order, _)| *order);
        for order in expected.take(60) {
            assert_eq!(cursor.next().unwrap().map(|row| row.order()), Some(order), "{from:#x}");
        }
    }
    all as f64 / rows.len().max(1) as f64
}

/// Writes a part, checks it, loads it from the device and checks it again.
fn round_trip(rows: &Rows, block_bits: u8, columns: u32) -> f64 {
    let device = device();
    let written = write(&device, head(3, block_bits), columns, rows);
    check(&device, &written, rows);
    let read = PartHead::read(site(&device), 3).unwrap();
    assert_eq!(read, *written.head());
    let crc = written.trailer_crc();
    let loaded = Part::load(site(&device), &read, written.file_bytes(), crc).unwrap();
    let loaded = Arc::new(loaded);
    assert_eq!(loaded.memory_bytes(), written.memory_bytes());
    assert_eq!(format!("{loaded:?}"), format!("{written:?}"));
    for keep in fewer(columns) {
        let part = load(&device, &written, keep);
        check(&device, &part, rows);
        let most = part.needs().memory_bytes(keep);
        assert!(part.memory_bytes() as u64 <= most, "{keep:?}");
        assert!(part.memory_bytes() <= written.memory_bytes(), "{keep:?}");
    }
    check(&device, &loaded, rows)
}

/// Returns some ways to keep less than all of the fences and `columns` columns of filters.
fn fewer(columns: u32) -> Vec<Keep> {
    let columns = [1, 6].into_iter().filter(|&kept| kept < columns);
    let columns = columns.map(|columns| Keep { columns, stride_bits: 0 });
    let strides = [1, 3].map(|stride_bits| Keep { columns: 0, stride_bits });
    columns.chain(strides).collect()
}

/// Loads a part of whose fences and filters only some stay in memory.
fn load(device: &Arc<dyn Device>, written: &Arc<Part>, keep: Keep) -> Arc<Part> {
    let (head, crc) = (written.head(), written.trailer_crc());
    let found = PartFound::read(site(device), head, written.file_bytes(), crc).unwrap();
    Arc::new(found.load(site(device), Kept { keep, charge: None }).unwrap())
}

#[test]
fn parts_lie_behind_the_log_and_apart() {
    assert_eq!(part_address(0, 1 << 28), COLD_BEGIN);
    assert_eq!(part_address(3, 1 << 28), COLD_BEGIN + (3 << 28));
    assert_eq!(part_address(3, 1 << 20), COLD_BEGIN + (48 << 20));
}

#[test]
fn block_bits_are_the_first_that_lose_little() {
    assert_eq!(block_bits_for(16 + 64), 12);
    assert_eq!(block_bits_for(16 + 512), 12);
    assert_eq!(block_bits_for(16 + 1024), 13);
    assert_eq!(block_bits_for(16 + 3_000), 14);
    assert_eq!(block_bits_for(16 + 10_000), 12);
    assert_eq!(block_bits_for(16 + 100_000), 12);
    assert_eq!(block_bits_for(16), 12);
}

#[test]
fn rows_of_every_width_come_back() {
    let count = if cfg!(miri) { 30 } else { 3_000 };
    for (bytes, block_bits, columns) in
        [(0, 12, 9), (8, 12, 4), (64, 12, 9), (61, 13, 1), (512, 13, 16), (2_000, 14, 0)]
    {
        let blocks = round_trip(&rows_of(count, bytes), block_bits, columns);
        assert!(blocks <= 1.02, "{blocks} blocks for {bytes} bytes");
    }
}

#[test]
fn a_part_may_have_no_row_or_one() {
    round_trip(&Rows::new(), 12, 9);
    round_trip(&rows_of(1, 64), 12, 9);
    round_trip(&rows_of(1, 9_000), 12, 0);
}

/// Tables of three widths, tombstones, marks, and rows that take several blocks.
#[test]
fn rows_of_many_kinds_lie_beside_each_other() {
    let count = if cfg!(miri) { 40 } else { 4_000 };
    let mut rows = Rows::new();
    for key in 0..count {
        let bytes = [64, 24, 136][key as usize % 3];
        let mut content = content(key, bytes);
        content.flags.uncounted = key % 5 == 0;
        if key % 7 == 0 {
            content.flags.tombstone = true;
            content.value.clear();
        }
        put(&mut rows, 1 + (key % 3) as u16, key, content);
    }
    for key in 0..if cfg!(miri) { 2 } else { 150 } {
        put(&mut rows, 9, key, content(key, 4_000 + key as usize * 37));
    }
    put(&mut rows, 10, 1, content(1, 0xFFFF * 8));
    for (block_bits, columns) in [(12, 9), (14, 5)] {
        round_trip(&rows, block_bits, columns);
    }
}

/// Rows of many tables have one hash. They begin in one block and group and end in later ones.
#[test]
fn rows_with_one_hash_are_told_apart_across_blocks_and_groups() {
    let before = if cfg!(miri) { 20 } else { 50 * 63 + 10 };
    let mut rows = Rows::new();
    let hash = 1 << 63;
    for number in 0..before {
        let hash = number << 20;
        rows.insert((hash, TableNumber(1), unhash(TableNumber(1), hash)), content(number, 64));
    }
    for table in (1..if cfg!(miri) { 120 } else { 400 }).map(TableNumber) {
        if table.0 % 3 > 0 {
            rows.insert((hash, table, unhash(table, hash)), content(table.0.into(), 64));
        }
    }
    let device = device();
    let part = write(&device, head(3, 12), 9, &rows);
    check(&device, &part, &rows);
    fewer(9).into_iter().for_each(|keep| _ = check(&device, &load(&device, &part, keep), &rows));
    for table in (3..120).step_by(3).map(TableNumber) {
        let (found, _) = look_up(&device, &part, (hash, table, unhash(table, hash))).unwrap();
        assert_eq!(found, None, "table {}", table.0);
    }
}

/// The part answers for all hashes, and all its rows are near each other: the fences are equal.
#[test]
fn equal_fences_lead_to_the_blocks_before() {
    let mut rows = Rows::new();
    for number in 0..if cfg!(miri) { 120 } else { 1_000 } {
        let hash = (5 << 40) + (number << 20);
        rows.insert((hash, TableNumber(1), unhash(TableNumber(1), hash)), content(number, 64));
    }
    let device = device();
    let part = write(&device, head(3, 12), 9, &rows);
    let blocks = check(&device, &part, &rows);
    assert!(blocks > 1.5, "{blocks} blocks a row");
    fewer(9).into_iter().for_each(|keep| _ = check(&device, &load(&device, &part, keep), &rows));
}

#[test]
fn the_rows_of_a_base_part_cover_its_hashes_alone() {
    let all = rows_of(if cfg!(miri) { 60 } else { 6_000 }, 64);
    let (low, high) = (1_u64 << 62, (1_u64 << 63) + 12_345);
    let rows: Rows = all.into_iter().filter(|(order, _)| (low..=high).contains(&order.0)).collect();
    let device = device();
    let head = PartHead { kind: Kind::Base, hashes: low..=high, ..head(5, 12) };
    let part = write(&device, head, 4, &rows);
    let blocks = check(&device, &part, &rows);
    assert!(blocks < 1.02, "{blocks} blocks a row");
    assert!(part.block_of(low.saturating_sub(1)).is_none());
}

#[test]
#[should_panic(expected = "rows come in order")]
fn a_row_out_of_order_is_a_bug() {
    let device = device();
    let mut writer = PartWriter::new(site(&device), head(3, 12), 9);
    let rows = rows_of(2, 64);
    for (order, content) in rows.iter().rev() {
        let _ = writer.push(&row(order, content));
    }
}

/// The bytes of a part on the device.
fn image(device: &Arc<dyn Device>, part: &Arc<Part>) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(part.file_bytes() as usize);
    for (at, chunk) in (part.address()..).step_by(1 << 20).zip(bytes.chunks_mut(1 << 20)) {
        device.read_many(&mut [Read { offset: at, buffer: chunk }]).unwrap();
    }
    bytes
}

/// A small part of some kinds of rows, and its bytes.
fn sample() -> (Arc<dyn Device>, Arc<Part>, Rows) {
    let mut rows = Rows::new();
    for key in 0..if cfg!(miri) { 12 } else { 70 } {
        put(&mut rows, 1, key, content(key, 64));
    }
    put(&mut rows, 2, 7, content(7, 5_000));
    put(&mut rows, 2, 8, content(8, 29));
    let device = device();
    let part = write(&device, head(3, 12), 9, &rows);
    (device, part, rows)
}

/// Checks that a part whose bytes were damaged at `at` gives right answers or errors. Returns true
/// if there was an error.
fn is_noticed(device: &Arc<dyn Device>, written: &Arc<Part>, rows: &Rows, at: &str) -> bool {
    let (head, crc) = (written.head(), written.trailer_crc());
    let load_part = |keep| -> Result<Arc<Part>> {
        let found = PartFound::read(site(device), head, written.file_bytes(), crc)?;
        Ok(Arc::new(found.load(site(device), Kept { keep, charge: None })?))
    };
    let is_damage =
        |error: &Error| matches!(error, Error::Damaged { .. } | Error::Truncated { .. });
    let part = match load_part(Keep { columns: 9, stride_bits: 0 }) {
        Ok(part) => part,
        Err(error) if is_damage(&error) => return true,
        Err(error) => panic!("{at}: {error}"),
    };
    let mut noticed = false;
    match read_all(device, &part) {
        Ok(found) => assert_eq!(found, *rows, "{at}"),
        Err(error) => {
            assert!(is_damage(&error), "{at}: {error}");
            noticed = true;
        }
    }
    let absent = (0..20).map(|key| (TableNumber(1), key + 1_000));
    let absent = absent.map(|(table, key)| (KeyHash::new(0).of(table, key), table, key));
    // The same answers come from ranges of blocks. Three of them have all blocks.
    let ranges = load_part(Keep { columns: 0, stride_bits: 2 }).ok();
    for order in rows.keys().copied().chain(absent) {
        for part in [Some(&part), ranges.as_ref()].into_iter().flatten() {
            match look_up(device, part, order) {
                Ok((found, _)) => assert_eq!(found.as_ref(), rows.get(&order), "{at}: {order:?}"),
                Err(error) => {
                    assert!(is_damage(&error), "{at}: {error}");
                    noticed = true;
                }
            }
        }
    }
    noticed
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_no_answer() {
    let (device, part, rows) = sample();
    assert!(!is_noticed(&device, &part, &rows, "no damage"));
    let image = image(&device, &part);
    let step = if cfg!(miri) { 611 } else { 1 };
    for at in (0..image.len()).step_by(step) {
        let (page, within) = (at / 512 * 512, at % 512);
        let mut sector = AlignedBuffer::zeroed(512);
        sector.copy_from_slice(&image[page..page + 512]);
        sector[within] ^= 1 << (at % 8);
        device.write(part.address() + page as u64, &sector).unwrap();
        let noticed = is_noticed(&device, &part, &rows, &format!("byte {at}"));
        // Only the header is not read.
        let is_header = at < PAGE_BYTES;
        assert_eq!(noticed, !is_header, "byte {at}");
        if is_header {
            let read = PartHead::read(site(&device), 3);
            assert!(matches!(read, Err(Error::Damaged { .. })), "byte {at}");
        }
        sector.copy_from_slice(&image[page..page + 512]);
        device.write(part.address() + page as u64, &sector).unwrap();
    }
}

/// A whole block that lies elsewhere, or is another part's or another opening's, has a right
/// checksum of its own.
#[test]
fn a_block_of_another_place_part_or_salt_is_damage() {
    let (device, part, rows) = sample();
    let image = image(&device, &part);
    let start = part.address() + PAGE_BYTES as u64;
    let block = |number: usize| &image[PAGE_BYTES * (1 + number)..PAGE_BYTES * (2 + number)];
    let put = |number: u64, bytes: &[u8]| {
        let mut aligned = AlignedBuffer::zeroed(PAGE_BYTES);
        aligned.copy_from_slice(bytes);
        device.write(start + number * PAGE_BYTES as u64, &aligned).unwrap();
    };
    put(0, block(1));
    put(1, block(0));
    assert!(is_noticed(&device, &part, &rows, "blocks swapped"));
    put(0, block(0));
    put(1, block(1));
    assert!(!is_noticed(&device, &part, &rows, "swapped back"));

    // The same rows by another opening.
    let other = crate::cold::tests::device();
    let salted = PartHead { salt: 1, ..head(3, 12) };
    let salted = write(&other, salted, 9, &rows);
    let others = self::image(&other, &salted);
    put(0, &others[PAGE_BYTES..2 * PAGE_BYTES]);
    assert!(is_noticed(&device, &part, &rows, "a block of another salt"));
    put(0, block(0));

    // All of the other opening's file.
    device.write(part.address(), &others).unwrap();
    let load = |head: &PartHead, bytes, crc| Part::load(site(&device), head, bytes, crc);
    let error = load(part.head(), part.file_bytes(), part.trailer_crc()).unwrap_err();
    assert!(error.to_string().contains("with salt 0000000000000001"), "{error}");
    let error = load(salted.head(), salted.file_bytes(), part.trailer_crc()).unwrap_err();
    assert!(error.to_string().contains("names another trailer"), "{error}");
    let head = PartHead { level: 1, ..salted.head().clone() };
    let error = load(&head, salted.file_bytes(), salted.trailer_crc()).unwrap_err();
    assert!(error.to_string().contains("disagree on its header"), "{error}");
    load(salted.head(), salted.file_bytes(), salted.trailer_crc()).unwrap();
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let (device, part, rows) = sample();
    let image = image(&device, &part);
    for cut in (0..image.len()).step_by(512) {
        device.remove_part(part.address()).unwrap();
        if cut > 0 {
            device.write(part.address(), &image[..cut]).unwrap();
        }
        assert!(is_noticed(&device, &part, &rows, &format!("{cut} bytes are left")));
    }
    let wrong = Part::load(site(&device), part.head(), 4097, 0).unwrap_err();
    assert!(wrong.to_string().contains("listed as 4097 bytes"), "{wrong}");
}

#[test]
fn an_error_names_part_block_file_and_bytes() {
    let (device, part, rows) = sample();
    let order = *rows.keys().next().unwrap();
    let at: BlockPlace = part.block_of(order.0).unwrap();
    let mut bytes = AlignedBuffer::zeroed(at.bytes as usize);
    device.read_many(&mut [Read { offset: at.address, buffer: &mut bytes }]).unwrap();
    for byte in 300..500 {
        bytes[byte] ^= 1;
    }
    let locate = || device.locate(at.address);
    let error = rows
        .keys()
        .find_map(|order| part.find(at, &bytes, order.0, order.1, order.2, locate).err())
        .unwrap();
    assert_eq!(
        error.to_string(),
        "<memory>/log/0002000003000000.seg is damaged at offset 4096: the block of rows at address \
         0x2000003001000 of part 3: its bytes 32 to 351 or its header fail their checksum"
    );
}

/// The bounds leave five standard deviations of the counts.
#[test]
#[cfg_attr(miri, ignore = "statistics of safe code, which take Miri too long")]
fn other_keys_pass_a_filter_as_rarely_as_its_columns_promise() {
    let rows = rows_of(20_000, 8);
    for (columns, bounds) in [(1, 0.98..1.03), (4, 0.95..1.08), (9, 0.75..1.3), (13, 0.4..1.9)] {
        let device = device();
        let part = write(&device, head(3, 12), columns, &rows);
        let mut random = fastrand::Rng::with_seed(7);
        let probes = 400_000;
        let passed = (0..probes).filter(|_| part.may_have(random.u64(..))).count();
        let rate = passed as f64 / probes as f64 * f64::from(1 << columns);
        assert!(bounds.contains(&rate), "{columns} columns: {rate} of 2^-{columns}");
    }
}

/// The bounds leave five standard deviations of the counts.
#[test]
#[cfg_attr(miri, ignore = "statistics of safe code, which take Miri too long")]
fn other_keys_pass_a_filter_as_often_as_its_kept_columns_promise() {
    let rows = rows_of(20_000, 8);
    let device = device();
    let written = write(&device, head(3, 12), 9, &rows);
    for (columns, bounds) in [(1, 0.98..1.03), (4, 0.95..1.08), (6, 0.9..1.15), (8, 0.8..1.25)] {
        let part = load(&device, &written, Keep { columns, stride_bits: 0 });
        let mut random = fastrand::Rng::with_seed(7);
        let probes = 200_000;
        let passed = (0..probes).filter(|_| part.may_have(random.u64(..))).count();
        let rate = passed as f64 / probes as f64 * f64::from(1 << columns);
        assert!(bounds.contains(&rate), "{columns} columns: {rate} of 2^-{columns}");
    }
}

#[test]
fn a_batch_asks_a_filter_as_one_key_does() {
    let rows = rows_of(if cfg!(miri) { 40 } else { 2_000 }, 8);
    let device = device();
    let part = write(&device, head(3, 12), 6, &rows);
    for hash in rows.keys().map(|row| row.0).chain((0..500).map(|key| key << 54)) {
        let mixed = MixedHash::of(hash);
        let window = part.prefetch(hash, mixed);
        assert_eq!(part.may_have_at(window, mixed), part.may_have(hash));
    }
}

#[test]
#[cfg_attr(miri, ignore = "millions of bytes")]
fn memory_is_two_bytes_a_block_and_ten_bits_a_row() {
    let rows = rows_of(32_000, 64);
    let device = device();
    let part = write(&device, head(3, 12), 0, &rows);
    assert_eq!(part.data_bytes(), 640 * 4096);
    assert_eq!(part.memory_bytes(), 640 * 2 + 10 * 16);
    // Ranges of 16 blocks have 40 fences, in one group.
    let ranges = load(&device, &part, Keep { columns: 0, stride_bits: 4 });
    assert_eq!(ranges.memory_bytes(), 64 * 2 + 16);
    let part = write(&device, head(4, 12), 9, &rows);
    let filters = part.memory_bytes() - 640 * 2 - 10 * 16 - 8 * 8;
    assert_eq!(filters, 10 * 9 * 56 * 8, "10.08 bits a row");
}

/// Regression test: a survey of a block whose header claims more rows than fit panicked.
#[test]
fn a_survey_of_a_block_with_a_damaged_header_shows_only_sound_rows() {
    let identity = BlockIdentity { address: COLD_BEGIN + 4096, salt: 7 };
    for lengths in [[64, 64], [64, 80]] {
        let mut bytes = vec![0; 4096];
        let mut builder = BlockBuilder::new();
        let mut rows: Rows = BTreeMap::new();
        let hash = KeyHash::new(0);
        for key in 0..40 {
            let of_row = content(key, lengths[key as usize % 2]);
            rows.insert((hash.of(TableNumber(1), key), TableNumber(1), key), of_row);
        }
        for (order, content) in &rows {
            builder.push(&row(order, content), &mut bytes);
        }
        builder.seal(identity, &mut bytes);
        let sound = |bytes: &[u8]| -> Vec<RowOrder> {
            let block = Block::new(bytes, identity);
            block.sound_rows().iter().map(|place| place.order(hash)).collect()
        };
        assert_eq!(sound(&bytes).len(), 40);
        for bit in 0..32 * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(sound(&flipped).iter().all(|order| rows.contains_key(order)), "bit {bit}");
        }
    }
}
