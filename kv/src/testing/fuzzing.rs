//! The decoders of the on-disk formats, for the fuzz targets in `kv/fuzz`. The tests replay the
//! inputs that the fuzzer found.
//!
//! Each function turns arbitrary bytes into a file, page or record with correct checksums
//! (`seals`), and decodes it. The decoder may return an error, or a value within the format's
//! bounds. A panic or an endless loop is a bug.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;
use crate::cold::list::{ListedPart, PartList};
use crate::device::placement::part_span_bytes;

use crate::cold::filter::{FilterBuilder, FilterWindow, MixedHash, PADDING};
use crate::cold::head::{Kind, PartHead, PartSite, part_address};
use crate::cold::part::{Found, Part};
use crate::device::{AlignedBuffer, Device, DeviceOptions, MemoryDevice};
use crate::files::checked_stream::{
    self, CHUNK_BYTES, CheckedReader, CheckedWriter, StreamIdentity,
};
use crate::files::directory::Place;
use crate::files::metadata;
use crate::index::Index;
use crate::index::image::{self, Images};
use crate::inspect::walk_page;
use crate::limits::Limits;
use crate::log::page::{PageIdentity, check_image};
use crate::memory::budget::{BUDGET_BYTES_MIN, Budget};
use crate::record::address::{Address, TableNumber};
use crate::record::hash::KeyHash;
use crate::record::layout::{HEADER_BYTES, RecordImage, Shape};

#[path = "../../fuzz/src/seals.rs"]
pub mod seals;

const BANK: u64 = 0xB0_0B5E;
const PAGE_BYTES: usize = 8 << 10;
const PAGE: PageIdentity = PageIdentity { page: 3, bank: BANK, salt: 0x5A17 };
const START: u64 = PAGE.page * PAGE_BYTES as u64;
const NUMBER: u64 = 7;
const ID: u64 = 0x1D;

/// Decodes a page. `data` has the page's bytes from its start; missing bytes are zero. Asserts that
/// all records lie inside the page.
pub fn page(data: &[u8]) {
    let mut page = data.to_vec();
    page.resize(PAGE_BYTES, 0);
    page[..4].copy_from_slice(b"EPG1");
    page[8..16].copy_from_slice(&PAGE.page.to_le_bytes());
    page[16..24].copy_from_slice(&BANK.to_le_bytes());
    page[32..40].copy_from_slice(&PAGE.salt.to_le_bytes());
    seals::page(&mut page, BANK, START);
    let place = || (PathBuf::new(), 0);
    assert!(check_image(&page, PageIdentity { page: 4, ..PAGE }, place).is_err());
    assert!(check_image(&page, PageIdentity { salt: 0, ..PAGE }, place).is_err());
    if let Ok(used) = check_image(&page, PAGE, place) {
        assert!(used as usize <= PAGE_BYTES);
    }
    for broken in [false, true] {
        page[PAGE_BYTES - 1] ^= u8::from(broken);
        let mut last = 0;
        let known = |shape: Shape| (1..4).contains(&shape.table().0);
        walk_page(PAGE, page.clone(), known, |offset, record| {
            assert!(offset > last && offset + record.bytes().len() <= PAGE_BYTES);
            last = offset;
            assert!(record.value_bytes().unwrap_or(0) <= record.padded_value().len());
        });
    }
}

/// Decodes a record. `data` may have any length.
pub fn record(data: &[u8]) {
    if data.len() < HEADER_BYTES {
        return;
    }
    let mut bytes = data.to_vec();
    let address = START + 64;
    let length = seals::record(&mut bytes, BANK, address);
    let image = RecordImage::new(&bytes);
    assert_eq!(length.is_some(), image.shape().record_bytes() <= bytes.len());
    let link = image.link();
    let shape = image.shape();
    assert!(link.unused_bytes() < 8 && link.previous().raw() < 1 << 51);
    assert!(image.is(shape.table(), image.key()));
    assert!(!image.is(TableNumber(shape.table().0 ^ 1), image.key()));
    if let Some(length) = length {
        let (stored, computed) = image.checksums(BANK, Address::new(address));
        assert_eq!(stored, computed);
        assert_eq!(image.bytes().len(), length);
        let padded = image.padded_value().len();
        assert!(image.value_bytes().is_none_or(|bytes| bytes <= padded && padded - bytes < 8));
        let for_disk = image.clock().for_disk();
        assert_eq!(for_disk.outstanding(), image.clock().outstanding());
    }
}

/// Returns a metadata file with the content `body`.
fn frame(body: &[u8]) -> Vec<u8> {
    frame_of(body, metadata::VERSION)
}

fn frame_of(body: &[u8], version: u32) -> Vec<u8> {
    let mut file = metadata::encode(&());
    file[8..12].copy_from_slice(&version.to_le_bytes());
    file.extend_from_slice(body);
    seals::metadata(&mut file);
    file
}

/// Decodes the content of a manifest in each format version. Asserts that an accepted manifest
/// survives `encode` and `decode`, and keeps the bounds that other code needs.
pub fn manifest(body: &[u8]) {
    for version in metadata::VERSION_OLDEST..=metadata::VERSION_WITH_PARTS {
        let file = frame_of(body, version);
        // Every format version begins with `number`.
        let Some(number) = metadata::decode_start::<u64>(&file) else { continue };
        let Ok(manifest) = Manifest::decode(&file, number, Limits::PRODUCT) else { continue };
        let again = Manifest::decode(&manifest.encode(), number, Limits::PRODUCT);
        assert_eq!(again.as_ref(), Ok(&manifest));
        assert!(manifest.rows() <= 1 << 50);
        assert!(manifest.log_end - manifest.log_begin < 1 << 50 && manifest.number < u64::MAX);
        assert!(manifest.tables.iter().all(|table| table.number > 0));
    }
}

/// Decodes the content of a list of parts. Asserts that an accepted list survives `encode` and
/// `decode`, and keeps the bounds and the order that a view needs.
pub fn cold_list(content: &[u8]) {
    const SEGMENT_BYTES: u64 = 1 << 20;
    let Ok(list) = PartList::decode(content, BANK, SEGMENT_BYTES) else { return };
    assert_eq!(list.encode(), content);
    assert!(list.part_bytes() <= list.parts.len() as u64 * part_span_bytes(SEGMENT_BYTES));
    for ListedPart { head, file_bytes, .. } in &list.parts {
        let begin = part_address(head.number, SEGMENT_BYTES);
        assert!(head.number < list.next_part && begin.checked_add(*file_bytes).is_some());
        assert!(*head.runs.end() < list.next_run && head.bank == BANK);
    }
    let base = || list.parts.iter().filter(|part| part.head.kind == Kind::Base);
    for hash in [0, 1, u64::MAX / 3, u64::MAX] {
        let at = base().filter(|part| part.head.hashes.contains(&hash)).count();
        assert_eq!(at, usize::from(base().next().is_some()), "hash {hash}");
    }
}

/// Decodes the content of the file `BANK`.
pub fn bank_file(body: &[u8]) {
    if let Ok(found) = metadata::decode::<BankFile>(&frame(body)) {
        assert_eq!(metadata::decode(&metadata::encode(&found)), Ok(found));
    }
}

/// A temporary file, in memory if `/dev/shm` exists. Dropping the value removes the file.
struct Scratch(Place);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let shm = PathBuf::from("/dev/shm");
        let folder = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("embank-fuzz-{}-{number}", std::process::id()));
        Scratch(Place::of_path(&path).expect("a folder for scratch files"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.0.remove_file();
    }
}

/// Decodes a checked stream. `data` has the bytes after the stream's header.
pub fn stream(data: &[u8]) {
    let of = CheckpointIdentity { bank: BANK, checkpoint: NUMBER, id: ID };
    let identity = of.stream(BLOB_KIND);
    let mut file = StreamIdentity::header(identity).to_vec();
    file.extend_from_slice(data);
    seals::stream(&mut file);
    let scratch = Scratch::new();
    fs::write(scratch.0.path(), &file).expect("a file in memory");
    let Ok(faults) = checked_stream::survey(&scratch.0, identity) else { return };
    let read = || {
        let mut reader = CheckedReader::open(&scratch.0, identity)?;
        let all = reader.read_to_end(data.len())?;
        reader.finish().map(|()| all)
    };
    match read() {
        Ok(all) => assert!(faults.is_empty() && all.len() <= data.len()),
        Err(_) => assert!(!faults.is_empty()),
    }
    let mut reader = CheckedReader::open(&scratch.0, identity).expect("the header is right");
    let mut part = [0; 5];
    // The loop ends: each iteration reads 5 bytes of a finite file.
    while reader.read(&mut part).is_ok() {}
}

/// Decodes an index from one to three files (images). The first file contains the whole index, the
/// others contain changes. For each file, `data` has a length of two bytes and then the content.
pub fn index_image(data: &[u8]) {
    let mut files = Vec::new();
    let mut rest = data;
    for number in 1..=3 {
        let Some((length, after)) = rest.split_first_chunk::<2>() else { break };
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (content, after) = after.split_at(length);
        rest = after;
        let of = CheckpointIdentity { bank: BANK, checkpoint: number, id: ID };
        let scratch = Scratch::new();
        let mut content = content.to_vec();
        if let Some(before) = content.get_mut(24..32) {
            before.copy_from_slice(&(number - 1).to_le_bytes());
        }
        let mut writer =
            CheckedWriter::create(&scratch.0, of.stream(image::KIND)).expect("a new file");
        assert!(content.len() < CHUNK_BYTES);
        writer.write(&content).and_then(|()| writer.finish()).expect("a file in memory");
        files.push((scratch, of));
    }
    if files.is_empty() {
        return;
    }
    let begin = START;
    let end = START + 64 * PAGE_BYTES as u64;
    let paths = files.iter().map(|(scratch, of)| (scratch.0.clone(), *of));
    let images = Images::new(paths, begin, end, Limits::PRODUCT);
    let read = || {
        let mut reader = images.read()?;
        let mut entries = Vec::new();
        let mut buckets = 0_u64;
        let mut count = 0_u64;
        loop {
            entries.clear();
            let Some((bucket, depth)) = reader.next_bucket(&mut entries)? else { break };
            assert!(bucket < 1 << depth);
            assert!(entries.iter().all(|entry| (begin..end).contains(&entry.address().raw())));
            buckets += 1;
            count += entries.len() as u64;
        }
        Ok::<_, crate::Error>((buckets, count))
    };
    let read = read();
    let budget =
        Budget::new(BUDGET_BYTES_MIN * 4, PAGE_BYTES as u64, Limits::PRODUCT).expect("enough");
    if let Ok(index) = Index::load(&images, &budget) {
        let (buckets, count) = read.expect("what loads can be read");
        assert_eq!((index.bucket_count(), index.entry_count()), (buckets, count));
    }
}

/// The bytes of an input, and then zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        let mut bytes = now.to_vec();
        bytes.resize(count, 0);
        bytes
    }

    fn below(&mut self, bound: u8) -> usize {
        usize::from(self.take(1)[0] % bound)
    }
}

/// Decodes a part of a cold tier: loads it, looks rows up and reads it in order. `data` has the
/// numbers of blocks, units of 4 KiB, columns, long blocks and words of filters, then the sections,
/// then the blocks. The padding of fences is corrected.
pub fn part(data: &[u8]) {
    const PAGE: usize = 4096;
    const SPAN: u64 = 16 << 20;
    let mut input = Bytes(data);
    let (blocks, units, columns) = (input.below(5), input.below(5), input.below(17));
    let (long, words) = (input.below(3), input.below(40));
    let groups = usize::from(blocks > 0);
    let mut sections = input.take(groups * 144 + (long + words) * 8);
    for fence in sections.iter_mut().take(144).skip(16 + 2 * blocks) {
        *fence = u8::MAX;
    }
    let head = PartHead {
        bank: BANK,
        salt: ID,
        number: NUMBER,
        kind: Kind::Run,
        level: 0,
        block_bits: 12,
        runs: 1..=1,
        hashes: 0..=u64::MAX,
        log: 0..0,
    };
    let address = part_address(NUMBER, SPAN);
    let mut file = input.take(units * PAGE);
    // A long block has one checksum of each few rows too; the first sizes decide.
    let first = if long > 0 { units.min(2) * PAGE } else { PAGE };
    let (front, rest) = file.split_at_mut(first.min(units * PAGE));
    let mut at = address + PAGE as u64;
    for block in std::iter::once(front).chain(rest.chunks_mut(PAGE)) {
        if !block.is_empty() {
            seal_block(block, at, ID);
        }
        at += block.len() as u64;
    }
    file.splice(0..0, head.encode());
    let crc = crc32c::crc32c(&sections);
    file.extend_from_slice(&sections);
    file.resize(file.len().next_multiple_of(PAGE), 0);
    let mut trailer = vec![0; PAGE];
    trailer[..8].copy_from_slice(b"EMBKPEND");
    let rows = u64::from(u16::MAX);
    let words_at = [
        (8, 1),
        (16, BANK),
        (24, ID),
        (32, NUMBER),
        (40, rows),
        (64, blocks as u64),
        (72, long as u64),
        (80, words as u64),
        (88, columns as u64 | u64::from(head.crc()) << 32),
        (96, ((1 + units) * PAGE) as u64),
        (104, sections.len() as u64),
        (112, u64::from(crc)),
    ];
    for (at, word) in words_at {
        trailer[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    seal_part_page(&mut trailer);
    let trailer_crc = u32::from_le_bytes([trailer[12], trailer[13], trailer[14], trailer[15]]);
    file.extend_from_slice(&trailer);
    let options = DeviceOptions { segment_size_bytes: SPAN, ..DeviceOptions::default() };
    let device = MemoryDevice::new(&options).expect("a device in memory");
    let mut aligned = AlignedBuffer::zeroed(file.len());
    aligned.copy_from_slice(&file);
    device.write(address, &aligned).expect("a write to memory");
    let site = PartSite { device: &device, segment_size_bytes: SPAN, key_hash: KeyHash::new(0) };
    let Ok(part) = Part::load(site, &head, file.len() as u64, trailer_crc) else { return };
    let part = Arc::new(part);
    let mut keys = vec![(TableNumber(1), 0), (TableNumber(9), u64::MAX)];
    let mut cursor = part.cursor(&device);
    while let Ok(Some(row)) = cursor.next() {
        assert!(
            row.value.len().is_multiple_of(8) && row.hash == site.key_hash.of(row.table, row.key)
        );
        keys.push((row.table, row.key));
    }
    for (table, key) in keys {
        let hash = site.key_hash.of(table, key);
        let _ = part.may_have(hash);
        let mut next = part.block_of(hash);
        let mut steps = 0;
        while let Some(at) = next {
            let start = (at.address - address) as usize;
            let block = &file[start..start + at.bytes as usize];
            next = match part.find(at, block, hash, table, key, || (PathBuf::new(), 0)) {
                Ok(Found::Before(before)) => Some(before),
                Ok(Found::Row(row)) => {
                    assert_eq!(row.order(), (hash, table, key));
                    None
                }
                _ => None,
            };
            steps += 1;
            assert!(steps <= blocks, "an endless search");
        }
        let _ = part.cursor_from(&device, hash, 1 << 16).next();
    }
}

/// Makes `block` a block of a part: sets its mark, address and salt. Then corrects its bytes in
/// use, the bytes behind its rows and its checksums. Stops at the first row that does not fit.
fn seal_block(block: &mut [u8], address: u64, salt: u64) {
    block[..4].copy_from_slice(b"EBK1");
    block[6..8].fill(0);
    block[8..16].copy_from_slice(&address.to_le_bytes());
    block[16..24].copy_from_slice(&salt.to_le_bytes());
    let each = usize::from(u16::from_le_bytes([block[4], block[5]]));
    let rows = usize::from(u16::from_le_bytes([block[28], block[29]]));
    if each == 0 || rows.div_ceil(each) * 4 + 32 > block.len() {
        return;
    }
    let sums = block.len() - rows.div_ceil(each) * 4;
    let mut ends = vec![32];
    for row in 0..rows {
        let at = ends[row];
        let Some(length) = block[..sums].get(at + 10..at + 12) else { return };
        let end = at + 16 + usize::from(u16::from_le_bytes([length[0], length[1]])) * 8;
        if end > sums {
            return;
        }
        ends.push(end);
    }
    block[24..28].copy_from_slice(&(ends[rows] as u32).to_le_bytes());
    block[ends[rows]..sums].fill(0);
    let seed = crc32c::crc32c(&block[..32]);
    for sum in 0..rows.div_ceil(each) {
        let bytes = ends[sum * each]..ends[rows.min((sum + 1) * each)];
        let crc = crc32c::crc32c(&block[bytes]) ^ seed;
        let at = block.len() - 4 * (sum + 1);
        block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Corrects the checksum of a part's header or trailer.
fn seal_part_page(page: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[..12]), &page[16..4096]);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Builds a filter of the hashes in `data`, after a byte with the number of columns. Asserts that
/// the filter has them all.
pub fn filter(data: &[u8]) {
    let mut input = Bytes(data);
    let columns = input.below(17) as u32;
    let hashes: Vec<u64> =
        input.0.as_chunks().0.iter().map(|&hash| u64::from_le_bytes(hash)).collect();
    let mut words = Vec::new();
    let count = FilterBuilder::default().build(&hashes, columns, &mut words);
    assert_eq!(words.len(), count as usize * columns as usize);
    words.resize(words.len() + PADDING, u64::MAX);
    for hash in hashes {
        let mixed = MixedHash::of(hash);
        let window = FilterWindow::of(mixed, 0, count);
        assert!(window.may_have(mixed, columns as usize, &words), "{hash:#x}");
        let other = MixedHash::of(!hash);
        let _ = FilterWindow::of(other, 0, count).may_have(other, columns as usize, &words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a decoder on each file of its corpus. The corpus contains the inputs that the fuzzer
    /// kept.
    fn replay(target: &str, decoder: fn(&[u8])) {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        for file in files {
            println!("{}", file.display());
            decoder(&fs::read(&file).unwrap());
        }
    }

    #[test]
    fn pages_of_the_corpus() {
        replay("page", page);
    }

    #[test]
    fn records_of_the_corpus() {
        replay("record", record);
    }

    #[test]
    fn manifests_of_the_corpus() {
        replay("manifest", manifest);
    }

    #[test]
    fn lists_of_parts_of_the_corpus() {
        replay("cold_list", cold_list);
    }

    #[test]
    fn bank_files_of_the_corpus() {
        replay("bank_file", bank_file);
    }

    #[test]
    fn streams_of_the_corpus() {
        replay("stream", stream);
    }

    #[test]
    fn parts_of_the_corpus() {
        replay("part", part);
    }

    #[test]
    fn filters_of_the_corpus() {
        replay("filter", filter);
    }

    #[test]
    fn images_of_the_corpus() {
        replay("index_image", index_image);
    }
}
