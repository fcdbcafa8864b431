//! The decoders of the on-disk formats, for the fuzz targets in `kv/fuzz`. The tests replay the
//! inputs that the fuzzer found.
//!
//! Each function turns arbitrary bytes into a file, page or record with correct checksums
//! (`seals`), and decodes it. The decoder may return an error, or a value within the format's
//! bounds. A panic or an endless loop is a bug.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;

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
    for version in metadata::VERSION_OLDEST..=metadata::VERSION {
        let file = frame_of(body, version);
        // Every format version begins with `number`.
        let Some(number) = metadata::decode_start::<u64>(&file) else { continue };
        let Ok(manifest) = Manifest::decode(&file, number, Limits::PRODUCT) else { continue };
        let again = Manifest::decode(&metadata::encode(&manifest), number, Limits::PRODUCT);
        assert_eq!(again.as_ref(), Ok(&manifest));
        assert!(manifest.rows() < 1 << 50);
        assert!(manifest.log_end - manifest.log_begin < 1 << 50 && manifest.number < u64::MAX);
        assert!(manifest.tables.iter().all(|table| table.number > 0));
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
    fn bank_files_of_the_corpus() {
        replay("bank_file", bank_file);
    }

    #[test]
    fn streams_of_the_corpus() {
        replay("stream", stream);
    }

    #[test]
    fn images_of_the_corpus() {
        replay("index_image", index_image);
    }
}
