//! Tests of the device that fails on request.

use super::*;
use crate::device::{AlignedBuffer, DeviceOptions, MemoryDevice};

fn device() -> FaultyDevice {
    let memory = MemoryDevice::new(&DeviceOptions::default()).unwrap();
    FaultyDevice::new(Arc::new(memory))
}

fn block(device: &FaultyDevice, offset: u64) -> Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    device.read_many(&mut [Read { offset, buffer: &mut buffer }])?;
    Ok(buffer)
}

#[test]
fn the_chosen_call_fails_and_its_neighbours_do_not() {
    let device = device();
    let bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
    device.write(0, &bytes).unwrap();
    device.fail_read(2, io::ErrorKind::Other);
    device.fail_sync(1, io::ErrorKind::Other);
    device.fail_truncate(1, io::ErrorKind::Other);
    assert!(block(&device, 0).is_ok());
    assert!(block(&device, 0).is_err());
    assert!(block(&device, 0).is_ok());
    assert!(device.sync().is_err());
    assert!(device.sync().is_ok());
    assert!(device.truncate(512).is_err());
    assert!(device.truncate(512).is_ok());
    let expected = DeviceCalls { bursts: 3, reads: 3, writes: 1, syncs: 2, truncates: 2, frees: 0 };
    assert_eq!(device.calls(), expected);
}

#[test]
fn a_torn_write_leaves_its_first_blocks() {
    let device = device();
    let mut bytes = AlignedBuffer::zeroed(4 * BLOCK_BYTES);
    bytes.fill(9);
    device.tear_write(1, 2 * BLOCK_BYTES + 5, io::ErrorKind::StorageFull);
    let error = device.write(0, &bytes).unwrap_err();
    assert!(error.to_string().contains("at offset 1024"), "{error}");
    assert_eq!(block(&device, 512).unwrap()[511], 9);
    assert!(matches!(block(&device, 1024), Err(Error::Truncated { .. })));
}

#[test]
fn a_call_that_lies_reports_success() {
    let device = device();
    let mut bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
    for i in 0..4 {
        bytes.fill(i + 1);
        device.write(u64::from(i) * 512, &bytes).unwrap();
    }
    bytes.fill(9);
    device.spoil_write(1, WriteFault::Lost);
    device.write(0, &bytes).unwrap();
    assert_eq!(block(&device, 0).unwrap()[0], 1);
    device.spoil_write(1, WriteFault::Misdirected { by: 512 });
    device.write(512, &bytes).unwrap();
    assert_eq!((block(&device, 512).unwrap()[0], block(&device, 1024).unwrap()[0]), (2, 9));
    device.spoil_write(1, WriteFault::Flipped { byte: 513, bit: 1 });
    device.write(0, &bytes).unwrap();
    assert_eq!(block(&device, 0).unwrap()[..3], [9, 11, 9]);

    device.spoil_read(2, ReadFault::Misdirected { by: 512 });
    assert_eq!(block(&device, 1024).unwrap()[0], 9);
    assert_eq!(block(&device, 1024).unwrap()[0], 4);
    device.spoil_read(1, ReadFault::Misdirected { by: -512 });
    assert_eq!(block(&device, 0).unwrap()[0], 0, "nothing lies there");
    device.spoil_read(1, ReadFault::Flipped { byte: 0, bit: 7 });
    assert_eq!(block(&device, 512).unwrap()[0], 0x82);
    device.spoil_read(1, ReadFault::CutShort);
    assert!(matches!(block(&device, 512), Err(Error::Truncated { .. })));
    assert_eq!(block(&device, 512).unwrap()[0], 2);
}

#[test]
fn broken_writes_stay_broken_until_mended() {
    let device = device();
    let bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
    device.break_writes(io::ErrorKind::StorageFull);
    for _ in 0..3 {
        assert!(device.write(0, &bytes).is_err());
        assert!(device.sync().is_err());
    }
    device.mend();
    assert!(device.write(0, &bytes).is_ok());
    assert!(device.sync().is_ok());
}

#[test]
fn flipped_bits_and_cut_ends_show_in_the_reads_that_reach_them() {
    let device = device();
    device.write(0, &AlignedBuffer::zeroed(3 * BLOCK_BYTES)).unwrap();
    device.flip_bit_on_read(513, 7);
    device.cut_reads_at(1024 + 100);
    assert!(block(&device, 0).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(block(&device, 512).unwrap()[1], 0x80);
    let error = block(&device, 1024).unwrap_err();
    let Error::Truncated { offset, expected, found, .. } = error else { panic!("{error}") };
    assert_eq!((offset, expected, found), (1024, 512, 100));
}
