//! Tests of `segments`.

use std::fs;
use std::path::Path;

use super::*;
use crate::device::AlignedBuffer;

fn segments(dir: &Path, open_files_max: usize) -> Segments {
    let options =
        DeviceOptions { segment_size_bytes: 4096, open_files_max, ..DeviceOptions::default() };
    Segments::open(&Directory::open(dir).unwrap(), &options).unwrap()
}

#[test]
fn few_handles_stay_open_and_every_write_is_still_synced() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), OPEN_FILES_MIN);
    let mut block = AlignedBuffer::zeroed(512);
    for number in 0..20_u64 {
        block.fill(number as u8);
        segments.write(number * 4096, &block).unwrap();
        assert!(segments.open.count() <= OPEN_FILES_MIN);
    }
    // One file may wait for a sync, so a write to a new file synced all earlier files.
    assert_eq!(segments.open.last_unsynced(0..u64::MAX), Some(19));
    assert!(segments.open.take_unsynced(|number| number < 19).is_empty());
    segments.sync().unwrap();
    assert_eq!(segments.open.last_unsynced(0..u64::MAX), None);
    assert!(!segments.folder_unsynced.load(Ordering::SeqCst));
    for number in 0..20_u64 {
        segments.read(&mut Read { offset: number * 4096, buffer: &mut block }).unwrap();
        assert!(segments.open.count() <= OPEN_FILES_MIN);
        assert!(block.iter().all(|&byte| byte == number as u8));
    }
}

/// Shows that readers leave a place for the writer, however many files they hold. Without that
/// place, readers that wait for the writer's pages and the writer waited for each other.
#[test]
fn readers_leave_a_place_for_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), OPEN_FILES_MIN);
    let block = AlignedBuffer::zeroed(512);
    for number in 0..10 {
        segments.write(number * 4096, &block).unwrap();
    }
    let try_read = |number: u64| segments.try_for_reading(number * 4096, 512, Wait::No).unwrap();
    // The newest segment waits for a sync, and is read too.
    let mut held: Vec<_> = [9, 0, 1, 2].map(|number| try_read(number).unwrap()).into();
    assert!(try_read(3).is_none(), "a further file");
    held.push(try_read(9).expect("a file that is read already"));
    for number in 10..14 {
        segments.write(number * 4096, &block).unwrap();
        assert!(segments.open.count() <= OPEN_FILES_MIN);
    }
    // A removed file that threads hold takes one place, however many threads hold it.
    held.extend([0, 0].map(|number| try_read(number).unwrap()));
    segments.open.remove_below(1);
    segments.open.forget(0);
    segments.write(14 * 4096, &block).unwrap();
    assert!(try_read(3).is_none() && segments.open.count() <= OPEN_FILES_MIN);
    drop(held);
    assert!(try_read(3).is_some());
    segments.sync().unwrap();
}

#[test]
fn a_failed_sync_is_repeated_by_every_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), 8);
    segments.write(0, &AlignedBuffer::zeroed(512)).unwrap();
    // A pipe takes the place of a failing disk: `fdatasync` of a pipe returns EINVAL.
    let (reader, _writer) = io::pipe().unwrap();
    let file = HeldFile::new(std::os::fd::OwnedFd::from(reader).into()).unwrap();
    let place = Directory::open(dir.path()).unwrap().place("broken");
    let broken =
        segments.open.take(7, Wait::Yes, Purpose::Change, |_| Ok(Some((place, file)))).unwrap();
    let Taken::Held(broken) = broken else { panic!("{broken:?}") };
    segments.open.note_written(&broken);
    drop(broken);
    assert!(segments.sync().unwrap_err().to_string().contains("broken"));
    segments.write(0, &AlignedBuffer::zeroed(512)).unwrap();
    assert!(segments.sync().unwrap_err().to_string().contains("an earlier sync failed"));
}

#[test]
fn a_file_with_another_name_is_never_changed() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), 8);
    let mut block = AlignedBuffer::zeroed(4096);
    block.fill(9);
    for number in 0..3 {
        segments.write(number * 4096, &block).unwrap();
        fs::hard_link(segments.place(number).path(), dir.path().join(number.to_string())).unwrap();
    }
    assert_eq!(segments.free(4096 + 1024).unwrap(), Freed { end: 4096, segments: 1 });
    segments.truncate(2 * 4096 + 512).unwrap();
    block.fill(8);
    segments.write(2 * 4096 + 512, &block[..512]).unwrap();
    for number in 0..3 {
        let bytes = fs::read(dir.path().join(number.to_string())).unwrap();
        assert!(bytes.len() == 4096 && bytes.iter().all(|&byte| byte == 9), "{number}");
    }
    segments.sync().unwrap();
    let own = fs::read(segments.place(2).path()).unwrap();
    assert!(own.len() == 1024 && own[..512].iter().all(|&byte| byte == 9));
    // The second name is gone, so the file may change again.
    fs::remove_file(dir.path().join("1")).unwrap();
    assert_eq!(segments.free(4096 + 1024).unwrap().end, 4096 + 1024);
}

/// A longer file, left in place, once made the next opening refuse the log.
#[test]
fn a_file_under_the_name_of_the_next_segment_is_written_only_if_it_can_be_one() {
    for len in [0, 100, 4096, 4097, 100_000] {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path(), 8);
        let mut block = AlignedBuffer::zeroed(4096);
        block.fill(9);
        segments.write(0, &block).unwrap();
        segments.sync().unwrap();
        let place = segments.place(1).path();
        fs::write(&place, vec![1; len]).unwrap();
        segments.write(4096, &block[..512]).unwrap();
        assert!(fs::metadata(&place).unwrap().len() <= 4096, "{len}");
        assert!(fs::read(&place).unwrap()[..512].iter().all(|&byte| byte == 9), "{len}");
        assert!(segments.folder_unsynced.load(Ordering::SeqCst), "the name is not synced: {len}");
        segments.sync().unwrap();
        assert_eq!(fs::metadata(&place).unwrap().len(), 512, "cut at the log's end: {len}");
        assert_eq!(segments.on_disk().unwrap().len(), 2, "{len}");
    }
}

#[test]
fn segments_of_another_size_are_refused_and_other_files_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    segments(dir.path(), 8).write(3 * 4096, &AlignedBuffer::zeroed(512)).unwrap();
    fs::write(dir.path().join("log/notes.txt"), "kept").unwrap();
    let options = DeviceOptions { segment_size_bytes: 8192, ..DeviceOptions::default() };
    let refused = Segments::open(&Directory::open(dir.path()).unwrap(), &options).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidOption { option: "segment_size_bytes", .. }),
        "{refused}"
    );
    segments(dir.path(), 8).truncate(0).unwrap();
    let left: Vec<_> = fs::read_dir(dir.path().join("log")).unwrap().collect();
    assert_eq!(left.len(), 1);
}

/// On a file system without direct transfers, the files are never longer than the log.
#[test]
fn a_sync_cuts_the_last_file_where_the_log_ends() {
    for allocates_ahead in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let size = 64 << 10;
        let options =
            DeviceOptions { segment_size_bytes: size, allocates_ahead, ..DeviceOptions::default() };
        let segments = Segments::open(&Directory::open(dir.path()).unwrap(), &options).unwrap();
        let len = |number| fs::metadata(segments.place(number).path()).unwrap().len();
        let allocates = allocates_ahead && segments.direct;
        let block = AlignedBuffer::zeroed(4096);
        for end in (4096..=2 * size).step_by(4096) {
            let within = (end - 1) % size + 1;
            segments.write(end - 4096, &block).unwrap();
            assert!(if allocates {
                len((end - 1) / size) >= within
            } else {
                len((end - 1) / size) == within
            });
            if end % 12288 == 0 {
                segments.sync().unwrap();
                assert_eq!(len((end - 1) / size), within);
            }
        }
        segments.write(2 * size, &block).unwrap();
        assert_eq!(len(2) > 4096, allocates);
        assert!(segments.check_written(2 * size, 4096).is_ok());
        assert_eq!(segments.check_written(2 * size + 4096, 512).is_err(), allocates);
        let another = dir.path().join("another");
        fs::hard_link(segments.place(2).path(), &another).unwrap();
        segments.cut().unwrap();
        assert_eq!(len(2) > 4096, allocates, "a file with another name is never cut");
        fs::remove_file(another).unwrap();
        segments.cut().unwrap();
        assert_eq!(len(2), 4096);
        segments.truncate(2 * size + 512).unwrap();
        assert_eq!(len(2), 512);
        segments.write(2 * size + 512, &block).unwrap();
        assert_eq!(len(2) > 512 + 4096, allocates, "the log continues after a truncation");
        segments.sync().unwrap();
        assert_eq!(len(2), 512 + 4096);
    }
}

/// A cut must not remove a write that ends while the cut begins.
#[test]
fn syncs_beside_writes_remove_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let options = DeviceOptions { segment_size_bytes: 1 << 20, ..DeviceOptions::default() };
    let segments = Segments::open(&Directory::open(dir.path()).unwrap(), &options).unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut block = AlignedBuffer::zeroed(4096);
            for number in 0..512 {
                block.fill(number as u8 | 1);
                segments.write(number * 4096, &block).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        });
        while !ended.load(Ordering::SeqCst) {
            segments.sync().unwrap();
        }
    });
    segments.sync().unwrap();
    for (number, bytes) in [(0, 1 << 20), (1, 1 << 20)] {
        let found = fs::read(segments.place(number).path()).unwrap();
        assert_eq!(found.len(), bytes);
        for (at, block) in found.chunks(4096).enumerate() {
            let written = (number * 256) as usize + at;
            assert!(block.iter().all(|&byte| byte == written as u8 | 1), "block {written}");
        }
    }
}

/// The first write after an opening once hid the bytes before it from reads, until it ended.
#[test]
fn bytes_from_before_the_opening_are_readable_during_the_first_write() {
    let growth = Growth::default();
    let change = growth.change();
    assert_eq!(change.wanted(8192, 4096, 1 << 20, 1 << 30), Some(8 * 4096));
    change.note_allocated(8192, 8192 + 8 * 4096);
    assert_eq!(growth.written_of(4096, 4096), None);
    assert_eq!(growth.written_of(4096, 8192), Some(4096));
    assert_eq!(growth.written_of(8192, 4096), Some(0));
    change.note_written(8192 + 4096);
    assert_eq!(growth.written_of(8192, 4096), None);
    assert_eq!(growth.written_of(9 * 8192, 4096), None, "beyond the allocation, the file decides");
    assert_eq!(change.wanted(8192 + 4096, 4096, 1 << 20, 1 << 30), None);
}

/// Shows that the segment and the part that are being written are not synced at each write, and
/// that the files before them are.
#[test]
fn a_log_and_a_part_that_grow_together_stay_unsynced() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), OPEN_FILES_MIN);
    let block = AlignedBuffer::zeroed(512);
    for number in 0..8 {
        for at in (0..4096).step_by(512) {
            segments.write(number * 4096 + at, &block).unwrap();
            segments.write(COLD_BEGIN + (number << 24) + at, &block).unwrap();
        }
        let log = segments.open.last_unsynced(0..1 << 63);
        let part = segments.open.last_unsynced(1 << 63..u64::MAX);
        assert_eq!((log, part), (Some(number), Some(1 << 63 | number)));
        assert!(segments.open.count() <= OPEN_FILES_MIN);
    }
    let waiting = segments.open.take_unsynced(|_| true);
    assert_eq!(waiting.iter().map(|file| file.number).collect::<Vec<_>>(), [7, 1 << 63 | 7]);
    drop(waiting);
    segments.sync().unwrap();
}

/// Shows that a part never has bytes of an older file with its name.
#[test]
fn a_part_replaces_a_file_that_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let segments = segments(dir.path(), 8);
    let place = segments.place(segments.number(COLD_BEGIN)).path();
    fs::write(&place, vec![1; 8192]).unwrap();
    let other = dir.path().join("other");
    fs::hard_link(&place, &other).unwrap();
    segments.write(COLD_BEGIN, &AlignedBuffer::zeroed(512)).unwrap();
    segments.write(COLD_BEGIN + 512, &AlignedBuffer::zeroed(512)).unwrap();
    assert_eq!(fs::read(&place).unwrap(), vec![0; 1024]);
    assert_eq!(fs::read(&other).unwrap(), vec![1; 8192]);
}

#[test]
fn names_that_are_no_parts_are_refused() {
    for (name, bytes) in [("0002000000001000.seg", 0), ("0002000000000000.seg", (16 << 20) + 1)] {
        let dir = tempfile::tempdir().unwrap();
        drop(segments(dir.path(), 8));
        let file = fs::File::create(dir.path().join("log").join(name)).unwrap();
        file.set_len(bytes).unwrap();
        let options = DeviceOptions { segment_size_bytes: 4096, ..DeviceOptions::default() };
        let bank = Directory::open(dir.path()).unwrap();
        let refused = Segments::open(&bank, &options).unwrap_err().to_string();
        assert!(refused.contains("part") && refused.contains(name), "{refused}");
    }
}
