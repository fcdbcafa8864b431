//! Tests that all devices behave alike. Each test runs on every device. If the kernel refuses
//! io_uring, the part with io_uring is skipped with a message.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use super::segments::open_files::OPEN_FILES_MIN;
use super::*;

const SEGMENT: u64 = 64 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;

fn options() -> DeviceOptions {
    // The options are small, so that bursts are longer than a ring, threads outnumber rings, and
    // segments outnumber open handles.
    DeviceOptions {
        segment_size_bytes: SEGMENT,
        queue_depth: 8,
        rings_max: 2,
        threads: 4,
        open_files_max: OPEN_FILES_MIN,
        allocates_ahead: true,
        read_only: false,
    }
}

fn on_every_device(test: impl Fn(&dyn Device)) {
    for choice in [DeviceChoice::Memory, DeviceChoice::Threads, DeviceChoice::IoUring] {
        let dir = tempfile::tempdir().unwrap();
        match open(dir.path(), choice, &options()) {
            Ok(device) => test(&*device),
            Err(refused @ Error::DeviceUnavailable { .. }) => eprintln!("left out: {refused}"),
            Err(error) => panic!("{choice:?}: {error}"),
        }
    }
}

/// Fills each block with its offset and `salt`, so that all blocks differ.
fn stamp(offset: u64, salt: u64, bytes: &mut [u8]) {
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let at = offset + 8 * i as u64;
        word.copy_from_slice(&(at.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt).to_le_bytes());
    }
}

fn stamped(offset: u64, salt: u64, len: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(len as usize);
    stamp(offset, salt, &mut bytes);
    bytes
}

fn write_log(device: &dyn Device, segments: u64) {
    for first in (0..segments).map(|segment| segment * SEGMENT) {
        device.write(first, &stamped(first, 0, SEGMENT)).unwrap();
    }
}

fn read(device: &dyn Device, offset: u64, len: u64) -> Result<AlignedBuffer> {
    let mut bytes = AlignedBuffer::zeroed(len as usize);
    device.read_many(&mut [Read { offset, buffer: &mut bytes }])?;
    Ok(bytes)
}

/// Reads `len` bytes at each offset in `offsets`, in one burst.
fn burst(device: &dyn Device, offsets: &[u64], len: usize) -> Result<AlignedBuffer> {
    let mut bytes = AlignedBuffer::zeroed(offsets.len() * len);
    let mut reads: Vec<_> = offsets
        .iter()
        .zip(bytes.chunks_mut(len))
        .map(|(&offset, buffer)| Read { offset, buffer })
        .collect();
    device.read_many(&mut reads)?;
    Ok(bytes)
}

fn assert_burst(device: &dyn Device, offsets: &[u64], len: usize) {
    let bytes = burst(device, offsets, len).unwrap();
    for (&offset, chunk) in offsets.iter().zip(bytes.chunks(len)) {
        assert_eq!(chunk, &*stamped(offset, 0, len as u64), "{} at {offset}", device.name());
    }
}

/// Returns block-aligned offsets in random order, with repetitions.
fn scattered(count: u64, log_bytes: u64, len: u64) -> Vec<u64> {
    (0..count)
        .map(|i| i.wrapping_mul(0xD134_2543_DE82_EF95) >> 20)
        .map(|random| random % (log_bytes / BLOCK) * BLOCK)
        .map(|offset| if offset % SEGMENT + len > SEGMENT { offset - len } else { offset })
        .collect()
}

#[test]
fn what_was_written_is_read_back() {
    on_every_device(|device| {
        write_log(device, 3);
        device.write(SEGMENT + BLOCK, &stamped(SEGMENT + BLOCK, 77, 2 * BLOCK)).unwrap();
        device.sync().unwrap();
        assert_eq!(*read(device, SEGMENT, BLOCK).unwrap(), *stamped(SEGMENT, 0, BLOCK));
        let rewritten = read(device, SEGMENT + BLOCK, 2 * BLOCK).unwrap();
        assert_eq!(*rewritten, *stamped(SEGMENT + BLOCK, 77, 2 * BLOCK));
        let whole = read(device, 2 * SEGMENT, SEGMENT).unwrap();
        assert_eq!(*whole, *stamped(2 * SEGMENT, 0, SEGMENT));
    });
}

#[test]
fn bursts_of_any_size_bring_every_read_its_own_bytes() {
    on_every_device(|device| {
        write_log(device, 5);
        for (count, len) in [(0, 512), (1, 512), (2, 512), (8, 512), (9, 1024), (700, 4096)] {
            assert_burst(device, &scattered(count, 5 * SEGMENT, len as u64), len);
        }
    });
}

#[test]
fn reads_of_different_lengths_go_in_one_burst() {
    on_every_device(|device| {
        write_log(device, 2);
        let mut small = AlignedBuffer::zeroed(512);
        let mut large = AlignedBuffer::zeroed(32 << 10);
        let mut reads = [
            Read { offset: SEGMENT - BLOCK, buffer: &mut small },
            Read { offset: SEGMENT, buffer: &mut large },
        ];
        device.read_many(&mut reads).unwrap();
        assert_eq!(*small, *stamped(SEGMENT - BLOCK, 0, BLOCK));
        assert_eq!(*large, *stamped(SEGMENT, 0, 32 << 10));
    });
}

#[test]
fn unaligned_empty_and_crossing_transfers_are_refused() {
    on_every_device(|device| {
        write_log(device, 2);
        let mut memory = AlignedBuffer::zeroed(4096);
        let ranges = [(1, 0..512), (0, 0..100), (0, 4..516), (0, 0..0), (SEGMENT - BLOCK, 0..1024)];
        for (offset, range) in ranges {
            let refused = device.write(offset, &memory[range.clone()]).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
            let buffer = &mut memory[range];
            let refused = device.read_many(&mut [Read { offset, buffer }]).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        }
        // An unaligned read in a burst fails before any read of the burst starts.
        let (good, bad) = memory.split_at_mut(2048);
        let mut reads = [Read { offset: 0, buffer: good }, Read { offset: 7, buffer: bad }];
        assert!(matches!(device.read_many(&mut reads), Err(Error::InvalidArgument(_))));
        assert!(memory.iter().all(|&byte| byte == 0));
    });
}

#[test]
fn reads_beyond_the_written_end_name_the_file_and_the_place() {
    on_every_device(|device| {
        let end = SEGMENT + 3 * BLOCK;
        device.write(0, &stamped(0, 0, SEGMENT)).unwrap();
        device.write(SEGMENT, &stamped(SEGMENT, 0, 3 * BLOCK)).unwrap();
        // Offset, bytes wanted and bytes found. The first read is partly in the file, others begin
        // at the end or are in a missing segment.
        let cases = [
            (end - BLOCK, 1024, 512),
            (end, 512, 0),
            (end + 4 * BLOCK, 512, 0),
            (3 * SEGMENT, 512, 0),
        ];
        for (at, wanted, there) in cases {
            let error = read(device, at, wanted).unwrap_err();
            let Error::Truncated { path, offset, expected, found } = error else {
                panic!("{error}")
            };
            assert_eq!((path, offset), device.locate(at));
            assert_eq!((expected, found), (wanted, there));
            assert_eq!(offset, at % SEGMENT);
        }
        // A read in the middle of a burst fails. The burst must end, and the device must still
        // work.
        for _ in 0..20 {
            let mut offsets = scattered(60, SEGMENT, BLOCK);
            offsets.insert(30, end);
            let error = burst(device, &offsets, 512).unwrap_err();
            let Error::Truncated { path, offset, expected, found } = error else {
                panic!("{error}")
            };
            assert_eq!((path, offset), device.locate(end));
            assert_eq!((expected, found), (512, 0));
            assert_burst(device, &scattered(60, SEGMENT, BLOCK), 512);
        }
    });
}

/// A stream of reads at `offsets`, each with another length. Each completed read requests at least
/// one more.
struct Wander {
    offsets: Vec<(u64, usize)>,
    begun: Vec<(u64, usize)>,
    done: Vec<bool>,
    follow: u64,
}

impl Wander {
    fn new(offsets: Vec<(u64, usize)>, follow: u64) -> Self {
        Wander { offsets, begun: Vec::new(), done: Vec::new(), follow }
    }
}

impl ReadStream for Wander {
    fn next(&mut self) -> Option<(u64, usize)> {
        let next = self.offsets.pop()?;
        self.begun.push(next);
        self.done.push(false);
        Some(next)
    }

    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let (offset, len) = self.begun[number as usize];
        assert!(!std::mem::replace(&mut self.done[number as usize], true), "{number} came twice");
        assert_eq!(bytes, &*stamped(offset, 0, len as u64), "{number} at {offset}");
        if self.follow > 0 {
            self.follow -= 1;
            self.offsets.push((offset / 2 / BLOCK * BLOCK, BLOCK_BYTES));
        }
        Ok(())
    }
}

fn of_many_lengths(count: u64) -> Vec<(u64, usize)> {
    let lens = [512, 1024, 4096, 1536, 16 << 10];
    let offsets = scattered(count, 4 * SEGMENT, 16 << 10);
    offsets.into_iter().zip(lens.into_iter().cycle()).collect()
}

#[test]
fn a_stream_gets_every_read_once_however_little_memory_there_is() {
    on_every_device(|device| {
        write_log(device, 4);
        for memory_bytes in [16 << 10, 17 << 10, 64 << 10, 1 << 20] {
            let mut memory = AlignedBuffer::zeroed(memory_bytes);
            for (count, follow) in [(0, 0), (1, 5), (40, 0), (300, 200)] {
                let mut stream = Wander::new(of_many_lengths(count), follow);
                let deepest = device.read_stream(&mut memory, &mut stream).unwrap();
                assert_eq!(stream.begun.len() as u64, count + follow);
                assert!(stream.done.iter().all(|&done| done), "{}", device.name());
                assert!(deepest <= count.max(1) + follow);
            }
        }
    });
}

#[test]
fn a_stream_ends_with_the_first_failure_and_the_device_goes_on() {
    struct Fails(Wander, u64);
    impl ReadStream for Fails {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.0.next()
        }
        fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
            self.0.done(number, bytes)?;
            self.1 -= 1;
            let enough = || Error::InvalidArgument("enough".into());
            if self.1 == 0 { Err(enough()) } else { Ok(()) }
        }
    }
    on_every_device(|device| {
        write_log(device, 4);
        let mut memory = AlignedBuffer::zeroed(64 << 10);
        for after in [1, 7, 100] {
            let mut stream = Fails(Wander::new(of_many_lengths(200), 0), after);
            let error = device.read_stream(&mut memory, &mut stream).unwrap_err();
            assert!(error.to_string().contains("enough"), "{error}");
            assert_eq!(stream.1, 0, "nothing is handed over after a failure");
        }
        let cases = [(4 * SEGMENT, 512), (SEGMENT, 128 << 10), (7, 512), (SEGMENT - BLOCK, 1024)];
        for bad in cases {
            let mut offsets = of_many_lengths(60);
            offsets.insert(30, bad);
            let error = device.read_stream(&mut memory, &mut Wander::new(offsets, 0)).unwrap_err();
            match bad.0 {
                offset if offset == 4 * SEGMENT => {
                    assert!(matches!(error, Error::Truncated { .. }), "{error}");
                }
                _ => assert!(matches!(error, Error::InvalidArgument(_)), "{error}"),
            }
            let mut stream = Wander::new(of_many_lengths(60), 0);
            device.read_stream(&mut memory, &mut stream).unwrap();
        }
    });
}

#[test]
fn a_stream_that_panics_leaves_no_read_behind() {
    struct Panics(Wander);
    impl ReadStream for Panics {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.0.next()
        }
        fn done(&mut self, number: u64, _: &[u8]) -> Result<()> {
            assert!(number < 20, "as it was told to");
            Ok(())
        }
    }
    on_every_device(|device| {
        write_log(device, 4);
        let mut memory = AlignedBuffer::zeroed(64 << 10);
        let mut stream = Panics(Wander::new(of_many_lengths(200), 0));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = device.read_stream(&mut memory, &mut stream);
        }));
        assert!(caught.is_err());
        memory.fill(0xEE);
        assert_burst(device, &scattered(60, 4 * SEGMENT, BLOCK), 512);
        assert!(memory.iter().all(|&byte| byte == 0xEE), "a read came late");
    });
}

#[test]
fn holes_within_a_segment_read_as_zeros() {
    on_every_device(|device| {
        device.write(8 * BLOCK, &stamped(0, 1, BLOCK)).unwrap();
        assert!(read(device, 0, 8 * BLOCK).unwrap().iter().all(|&byte| byte == 0));
    });
}

#[test]
fn truncation_drops_what_lies_beyond_and_keeps_the_rest() {
    on_every_device(|device| {
        write_log(device, 4);
        let end = SEGMENT + 5 * BLOCK;
        device.truncate(end - 100).unwrap(); // Rounded up to the block.
        assert_eq!(*read(device, end - BLOCK, BLOCK).unwrap(), *stamped(end - BLOCK, 0, BLOCK));
        for beyond in [end, 2 * SEGMENT, 3 * SEGMENT] {
            assert!(matches!(read(device, beyond, BLOCK), Err(Error::Truncated { .. })));
        }
        // A segment that is written again has only the new bytes.
        device.write(3 * SEGMENT, &stamped(0, 9, BLOCK)).unwrap();
        device.sync().unwrap();
        assert_eq!(*read(device, 3 * SEGMENT, BLOCK).unwrap(), *stamped(0, 9, BLOCK));
        assert!(matches!(read(device, 3 * SEGMENT + BLOCK, BLOCK), Err(Error::Truncated { .. })));
        device.truncate(u64::MAX).unwrap();
        device.truncate(2 * SEGMENT).unwrap();
        assert!(read(device, end - BLOCK, BLOCK).is_ok());
        device.truncate(SEGMENT).unwrap();
        assert!(matches!(read(device, SEGMENT, BLOCK), Err(Error::Truncated { .. })));
        device.truncate(0).unwrap();
        assert!(matches!(read(device, 0, BLOCK), Err(Error::Truncated { .. })));
    });
}

/// Address of part `number`.
fn part(number: u64) -> u64 {
    (1 << 49) + number * (16 << 20)
}

#[test]
fn parts_lie_beside_the_log_and_go_by_themselves() {
    on_every_device(|device| {
        assert_eq!(device.part_files().unwrap(), []);
        write_log(device, 4);
        // A part may be longer than a segment, and a transfer of it crosses no file.
        for number in [0, 3, 7] {
            let begin = part(number);
            device.write(begin, &stamped(begin, 1, SEGMENT - BLOCK)).unwrap();
            device.write(begin + SEGMENT - BLOCK, &stamped(begin, 2, SEGMENT)).unwrap();
        }
        device.sync().unwrap();
        let files = |numbers: &[u64]| {
            let file = |&number| PartFile { begin: part(number), bytes: 2 * SEGMENT - BLOCK };
            numbers.iter().map(file).collect::<Vec<_>>()
        };
        assert_eq!(device.part_files().unwrap(), files(&[0, 3, 7]));
        let whole = part(3) + SEGMENT - BLOCK;
        assert_eq!(*read(device, whole, SEGMENT).unwrap(), *stamped(part(3), 2, SEGMENT));
        let beyond = read(device, part(3) + 2 * SEGMENT - BLOCK, BLOCK);
        assert!(matches!(beyond, Err(Error::Truncated { .. })), "{beyond:?}");
        assert!(matches!(read(device, part(1), BLOCK), Err(Error::Truncated { found: 0, .. })));
        assert_eq!(device.free(2 * SEGMENT).unwrap(), Freed { end: 2 * SEGMENT, segments: 2 });
        device.truncate(u64::MAX).unwrap();
        device.truncate(0).unwrap();
        assert_eq!(device.part_files().unwrap(), files(&[0, 3, 7]));
        device.remove_part(part(3)).unwrap();
        device.remove_part(part(3)).unwrap();
        assert_eq!(device.part_files().unwrap(), files(&[0, 7]));
        assert!(matches!(read(device, part(3), BLOCK), Err(Error::Truncated { .. })));
        device.write(part(3), &stamped(0, 9, BLOCK)).unwrap();
        assert_eq!(*read(device, part(3), BLOCK).unwrap(), *stamped(0, 9, BLOCK));
        assert_eq!(*read(device, part(7), BLOCK).unwrap(), *stamped(part(7), 1, BLOCK));
    });
}

/// Shows that reads of more parts than a device may have open files complete.
#[test]
fn a_stream_reads_more_parts_than_files_may_be_open() {
    on_every_device(|device| {
        let parts = 4 * OPEN_FILES_MIN as u64;
        for number in 0..parts {
            device.write(part(number), &stamped(part(number), 0, 8 * BLOCK)).unwrap();
        }
        let at = |i: u64| part(i * 7 % parts) + i % 8 * BLOCK;
        let offsets: Vec<u64> = (0..400).map(at).collect();
        assert_burst(device, &offsets, BLOCK as usize);
        let mut stream = Wander::new(offsets.iter().map(|&at| (at, BLOCK as usize)).collect(), 0);
        device.read_stream(&mut AlignedBuffer::zeroed(16 << 10), &mut stream).unwrap();
        device.sync().unwrap();
    });
}

#[test]
fn many_threads_read_while_one_writes() {
    on_every_device(|device| {
        write_log(device, 4);
        let start = Barrier::new(7);
        thread::scope(|scope| {
            for reader in 0..6_usize {
                let start = &start;
                scope.spawn(move || {
                    let offsets = scattered(100 + reader as u64, 4 * SEGMENT, 1024);
                    start.wait();
                    for _ in 0..20 {
                        assert_burst(device, &offsets, 1024);
                    }
                });
            }
            start.wait();
            for segment in 4..12 {
                let first = segment * SEGMENT;
                device.write(first, &stamped(first, 0, SEGMENT)).unwrap();
                device.sync().unwrap();
            }
        });
        assert_burst(device, &scattered(300, 12 * SEGMENT, 1024), 1024);
    });
}

#[test]
fn a_reopened_device_finds_what_was_written() {
    for choice in [DeviceChoice::Threads, DeviceChoice::Auto] {
        let dir = tempfile::tempdir().unwrap();
        let device = open(dir.path(), choice, &options()).unwrap();
        write_log(&*device, 3);
        device.sync().unwrap();
        drop(device);
        let device = open(dir.path(), choice, &options()).unwrap();
        assert_burst(&*device, &scattered(50, 3 * SEGMENT, BLOCK), 512);
        let (path, offset) = device.locate(2 * SEGMENT + 5);
        assert_eq!(path, dir.path().join("log/0000000000020000.seg"));
        assert_eq!(offset, 5);
        assert_eq!(fs::metadata(path).unwrap().len(), SEGMENT);
    }
}

#[test]
fn a_file_cut_short_from_outside_is_truncated_even_within_a_block() {
    on_every_device(|device| {
        write_log(device, 1);
        let (path, _) = device.locate(0);
        if device.name() == "memory" {
            return;
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(1024 + 100).unwrap();
        for offsets in [&[512][..], &[0, 512]] {
            let error = burst(device, offsets, 1024).unwrap_err();
            let Error::Truncated { offset, expected, found, .. } = error else { panic!("{error}") };
            assert_eq!(expected, 1024);
            assert_eq!((offset, found), (512, 612));
        }
    });
}

#[test]
fn devices_are_dropped_used_or_not() {
    for choice in [DeviceChoice::Memory, DeviceChoice::Threads, DeviceChoice::Auto] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), choice, &options()).unwrap());
        let device = open(dir.path(), choice, &DeviceOptions::default()).unwrap();
        device.write(0, &AlignedBuffer::zeroed(4096)).unwrap();
        let shared = Arc::clone(&device);
        thread::spawn(move || read(&*shared, 0, 512).map(drop)).join().unwrap().unwrap();
    }
}

#[test]
fn where_io_uring_is_refused_threads_read_and_the_reason_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Error::DeviceUnavailable { device: "io_uring", reason: "EPERM".to_owned() };
    let device =
        or_threads(Err(refused), &directory(dir.path(), &options()).unwrap(), &options()).unwrap();
    assert_eq!(device.name(), "threads");
    assert_eq!(device.report().io_uring_refused.as_deref(), Some("EPERM"));
    write_log(&*device, 1);
    assert_burst(&*device, &scattered(20, SEGMENT, BLOCK), 512);
    // Any other error is returned and does not select the thread pool.
    let other = Err(Error::InvalidArgument(String::new()));
    let tried = or_threads(other, &directory(dir.path(), &options()).unwrap(), &options());
    assert!(matches!(tried, Err(Error::InvalidArgument(_))));
}

#[test]
fn options_out_of_range_are_refused() {
    let dir = Path::new("/nonexistent");
    let bad = [
        DeviceOptions { segment_size_bytes: 3 << 20, ..options() },
        DeviceOptions { segment_size_bytes: 256, ..options() },
        DeviceOptions { queue_depth: 0, ..options() },
        DeviceOptions { queue_depth: 1 << 20, ..options() },
        DeviceOptions { rings_max: 0, ..options() },
        DeviceOptions { open_files_max: 0, ..options() },
    ];
    for options in bad {
        for choice in [DeviceChoice::Memory, DeviceChoice::Threads, DeviceChoice::Auto] {
            let refused = open(dir, choice, &options).unwrap_err();
            assert!(matches!(refused, Error::InvalidOption { .. }), "{refused}");
        }
    }
}

#[test]
fn a_folder_without_direct_transfers_is_read_through_the_page_cache_and_says_so() {
    // `/dev/shm` is in memory. New kernels allow O_DIRECT on it, old ones refuse it.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("left out: no /dev/shm");
        return;
    };
    let device = open(dir.path(), DeviceChoice::Auto, &options()).unwrap();
    eprintln!("{}: {:?}", device.name(), device.report());
    write_log(&*device, 2);
    device.sync().unwrap();
    assert_burst(&*device, &scattered(100, 2 * SEGMENT, BLOCK), 512);
}
