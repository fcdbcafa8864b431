//! Tests of this device only. `device::tests` has the tests of all devices.

use super::*;
use crate::device::transfer;

fn device(dir: &Path) -> Option<UringDevice> {
    let options = DeviceOptions { queue_depth: 4, rings_max: 2, ..DeviceOptions::default() };
    match UringDevice::open(dir, &options) {
        Ok(device) => Some(device),
        Err(refused) => {
            eprintln!("left out: {refused}");
            None
        }
    }
}

fn read_blocks(device: &UringDevice, memory: &mut AlignedBuffer) -> Result<()> {
    let blocks = memory.chunks_mut(512).enumerate();
    let mut reads: Vec<_> =
        blocks.map(|(i, buffer)| Read { offset: i as u64 * 512, buffer }).collect();
    device.read_many(&mut reads)
}

#[test]
fn a_ring_that_fails_is_replaced_and_the_device_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = device(dir.path()) else { return };
    let mut memory = AlignedBuffer::zeroed(512 * 16);
    memory.fill(5);
    device.write(0, &memory).unwrap();
    // The first, second or third system call of a burst fails. In the first case no read is in
    // flight.
    for calls_before in 0..3 {
        {
            let mut lent = device.rings.lend(None).unwrap();
            // EINTR makes a call fail without harm, like a signal.
            lent.ring().injected.lock().extend(vec![libc::EINTR; calls_before]);
            lent.ring().injected.lock().push_back(libc::ENXIO);
        }
        let error = read_blocks(&device, &mut memory).unwrap_err();
        assert!(error.to_string().contains("read"), "{error}");
        memory.fill(0);
        read_blocks(&device, &mut memory).unwrap();
        assert!(memory.iter().all(|&byte| byte == 5));
    }
    let state = device.rings.state.lock();
    assert_eq!((state.idle.len(), state.rings), (1, 1));
}

#[test]
fn short_and_disturbed_completions_are_asked_for_again_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = device(dir.path()) else { return };
    device.write(0, &AlignedBuffer::zeroed(8192)).unwrap();
    let mut memory = AlignedBuffer::zeroed(4096);
    let mut reads = [Read { offset: 4096, buffer: &mut memory }];
    let lane = || device.traffic.enter(Priority::Foreground);
    let mut files = LentFiles::default();
    let mut burst = Burst::new(&mut reads, &device.segments, &mut files, lane());
    assert_eq!(burst.begin(), Some(0));
    burst.complete(0, 1024);
    burst.complete(0, -libc::EAGAIN);
    assert_eq!((burst.states[0].arrived, burst.again.len()), (1024, 2));
    assert!(burst.error.is_none());
    for _ in 0..transfer::retries_max(1) {
        burst.complete(0, -libc::EINTR);
    }
    let error = burst.error.take().unwrap();
    drop(burst);
    assert!(error.to_string().contains("at offset 5120"), "{error}");

    let mut burst = Burst::new(&mut reads, &device.segments, &mut files, lane());
    assert_eq!(burst.begin(), Some(0));
    burst.complete(0, 512);
    burst.complete(0, 0);
    let error = burst.error.take().unwrap();
    drop(burst);
    let Error::Truncated { offset, expected, found, .. } = error else { panic!("{error}") };
    assert_eq!((offset, expected, found), (4096, 4096, 512));

    let mut burst = Burst::new(&mut reads, &device.segments, &mut files, lane());
    assert_eq!(burst.begin(), Some(0));
    burst.complete(0, -libc::EIO);
    burst.complete(0, 0);
    assert!(matches!(burst.error, Some(Error::Io { .. })), "the first failure is reported");
    assert!(!burst.has_more());
}

/// A stream of blocks. Block `i` of the file is filled with the number `i`.
struct Numbered(u64);

impl ReadStream for Numbered {
    fn next(&mut self) -> Option<(u64, usize)> {
        self.0 += 1;
        (self.0 <= 64).then(|| ((self.0 - 1) * 512, 512))
    }
    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        assert!(bytes.iter().all(|&byte| u64::from(byte) == number), "block {number}");
        Ok(())
    }
}

/// A stream of the same blocks that counts the blocks into which nothing was read.
struct Watched {
    blocks: Numbered,
    zeros: u32,
}

impl ReadStream for Watched {
    fn next(&mut self) -> Option<(u64, usize)> {
        self.blocks.next()
    }
    fn done(&mut self, _: u64, bytes: &[u8]) -> Result<()> {
        self.zeros += u32::from(bytes.iter().all(|&byte| byte == 0));
        Ok(())
    }
}

fn numbered(dir: &Path) -> Option<UringDevice> {
    let device = device(dir)?;
    let mut blocks = AlignedBuffer::zeroed(64 * 512);
    for (i, block) in blocks.chunks_mut(512).enumerate() {
        block.fill(i as u8);
    }
    device.write(0, &blocks).unwrap();
    Some(device)
}

#[test]
fn each_buffer_is_registered_once_and_finds_its_ring_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = numbered(dir.path()) else { return };
    let mut buffers = [AlignedBuffer::for_streams(8192), AlignedBuffer::for_streams(8192)];
    let [first, second] = buffers.each_ref().map(|buffer| buffer.number().unwrap());
    device.read_stream(&mut buffers[0], &mut Numbered(0)).unwrap();
    if device.rings.state.lock().refused {
        return eprintln!("left out: the kernel registers no buffer");
    }
    // The first buffer's ring is lent, so the second buffer is registered with a new ring.
    let lent = device.rings.lend(Some(first)).unwrap();
    device.read_stream(&mut buffers[1], &mut Numbered(0)).unwrap();
    // The second buffer's ring is lent, so its stream makes plain reads.
    drop(lent);
    let lent = device.rings.lend(Some(second)).unwrap();
    assert_eq!(lent.ring.as_ref().unwrap().registered(), Some(second));
    device.read_stream(&mut buffers[1], &mut Numbered(0)).unwrap();
    drop(lent);
    for _ in 0..3 {
        for (buffer, number) in buffers.iter_mut().zip([first, second]) {
            let lent = device.rings.lend(Some(number)).unwrap();
            assert_eq!(lent.ring.as_ref().unwrap().registered(), Some(number));
            drop(lent);
            buffer.fill(0xEE);
            device.read_stream(buffer, &mut Numbered(0)).unwrap();
        }
    }
    device.read_stream(&mut AlignedBuffer::zeroed(8192), &mut Numbered(0)).unwrap();
    assert_eq!(device.rings.state.lock().registered, [first, second]);
}

/// Shows that a new buffer at the address of a freed registered buffer gets its own bytes. The test
/// simulates the new buffer: it returns the pages of the old buffer to the system and gives the
/// buffer a new number.
#[test]
fn a_new_buffer_where_a_registered_one_was_gets_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = numbered(dir.path()) else { return };
    let mut buffer = AlignedBuffer::for_streams(64 * 512);
    device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
    if device.rings.state.lock().refused {
        return eprintln!("left out: the kernel registers no buffer");
    }
    buffer.replace_pages();
    // With the old number, the kernel reads into the old pages, and the buffer stays zero.
    let mut stale = Watched { blocks: Numbered(0), zeros: 0 };
    device.read_stream(&mut buffer, &mut stale).unwrap();
    assert_eq!(stale.zeros, 64, "the registered pages are not those that were replaced");
    buffer.renumber();
    device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
}

#[test]
fn where_registering_is_refused_reads_are_plain() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = numbered(dir.path()) else { return };
    {
        let mut lent = device.rings.lend(None).unwrap();
        lent.ring().injected.lock().push_back(libc::ENOMEM);
    }
    let mut buffer = AlignedBuffer::for_streams(8192);
    for _ in 0..2 {
        device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
        let state = device.rings.state.lock();
        assert!(state.refused && state.registered.is_empty());
    }
}

#[test]
fn a_ring_that_fails_lets_its_buffer_be_registered_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = numbered(dir.path()) else { return };
    let mut buffer = AlignedBuffer::for_streams(8192);
    for _ in 0..3 {
        device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
        if device.rings.state.lock().refused {
            return eprintln!("left out: the kernel registers no buffer");
        }
        assert_eq!(device.rings.state.lock().registered.len(), 1);
        let mut lent = device.rings.lend(buffer.number()).unwrap();
        lent.ring().injected.lock().push_back(libc::ENXIO);
        drop(lent);
        device.read_stream(&mut buffer, &mut Numbered(0)).unwrap_err();
        assert!(device.rings.state.lock().registered.is_empty());
    }
}
