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
    assert_eq!(segments.open.last_unsynced(), Some(19));
    assert!(segments.open.take_unsynced(19).is_empty());
    segments.sync().unwrap();
    assert_eq!(segments.open.last_unsynced(), None);
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
    let own = fs::read(segments.place(2).path()).unwrap();
    assert!(own.len() == 1024 && own[..512].iter().all(|&byte| byte == 9));
    // The second name is gone, so the file may change again.
    fs::remove_file(dir.path().join("1")).unwrap();
    assert_eq!(segments.free(4096 + 1024).unwrap().end, 4096 + 1024);
}

/// A longer file, left in place, once made the next opening refuse the log.
#[test]
fn a_file_under_the_name_of_the_next_segment_is_written_only_if_it_can_be_one() {
    for (len, left) in [(0, 512), (100, 512), (4096, 4096), (4097, 512), (100_000, 512)] {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path(), 8);
        let mut block = AlignedBuffer::zeroed(4096);
        block.fill(9);
        segments.write(0, &block).unwrap();
        segments.sync().unwrap();
        let place = segments.place(1).path();
        fs::write(&place, vec![1; len]).unwrap();
        segments.write(4096, &block[..512]).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().len(), left, "{len}");
        assert!(fs::read(&place).unwrap()[..512].iter().all(|&byte| byte == 9), "{len}");
        assert!(segments.folder_unsynced.load(Ordering::SeqCst), "the name is not synced: {len}");
        segments.sync().unwrap();
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
