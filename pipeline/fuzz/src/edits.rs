//! Edits of a file's bytes.

use arbitrary::Arbitrary;

const EDITS_MAX: usize = 8;

/// An edit. Its places count modulo the file's length. They count from the end if `back` is true.
#[derive(Debug, Clone, Arbitrary)]
pub struct Edit {
    at: u16,
    back: bool,
    what: What,
}

#[derive(Debug, Clone, Arbitrary)]
enum What {
    Flip { by: u8 },
    Cut,
    Copy { from: u16, bytes: u8 },
    Zero { bytes: u8 },
    Byte { value: u8 },
    Half { value: u32 },
    Word { value: u64 },
    Insert { bytes: [u8; 4] },
    Remove { bytes: u8 },
}

pub fn change(bytes: &mut Vec<u8>, edits: &[Edit]) {
    for edit in edits.iter().take(EDITS_MAX) {
        if bytes.is_empty() {
            return;
        }
        one(bytes, edit);
    }
}

fn one(bytes: &mut Vec<u8>, edit: &Edit) {
    let length = bytes.len();
    let place = |at: u16| usize::from(at) % length;
    let at = if edit.back { length - 1 - place(edit.at) } else { place(edit.at) };
    let to = |count: usize| length.min(at + count);
    match edit.what {
        What::Flip { by } => bytes[at] ^= by,
        What::Cut => bytes.truncate(at),
        What::Copy { from, bytes: count } => {
            let from = place(from);
            let count = usize::from(count).min(length - from).min(length - at);
            bytes.copy_within(from..from + count, at);
        }
        What::Zero { bytes: count } => bytes[at..to(usize::from(count))].fill(0),
        What::Byte { value } => bytes[at] = value,
        What::Half { value } => {
            let end = to(4);
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        What::Word { value } => {
            let end = to(8);
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        What::Insert { bytes: new } => _ = bytes.splice(at..at, new),
        What::Remove { bytes: count } => _ = bytes.drain(at..to(usize::from(count))),
    }
}
