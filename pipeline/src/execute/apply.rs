//! Runs a plan's kernels over a block.

use crate::decode::{Block, ByteColumn, Level, Slot};
use crate::kernels;
use crate::plan::Kernel;

/// Runs one kernel over all rows of the block.
pub(crate) fn apply(kernel: &Kernel, level: Level, block: &mut Block) {
    let rows = block.rows;
    match *kernel {
        Kernel::FillWord { column, missing: (plane, bit), value } => {
            let (values, missing) = block.word_and_missing_mut(column, plane);
            kernels::fill_words(level, values, missing, bit, value);
        }
        Kernel::FillWide { column, missing: (plane, bit), value } => {
            let (values, missing) = block.wide_and_missing_mut(column, plane);
            kernels::fill_wides(level, values, missing, bit, value);
        }
        Kernel::FillBytes { column, missing: (plane, bit), ref value } => {
            fill_bytes(block, column, plane, bit, value);
        }
        Kernel::CopyWord { from, to } => block.copy_word(from, to),
        Kernel::CopyWide { from, to } => block.copy_wide(from, to),
        Kernel::CopyBytes { from, to } => {
            let mut copy = std::mem::take(&mut block.bytes[to]);
            copy.ends.clone_from(&block.bytes[from].ends);
            copy.bytes.clone_from(&block.bytes[from].bytes);
            block.bytes[to] = copy;
        }
        Kernel::ClipI32 { column, low, high } => {
            kernels::clip_i32(level, block.word_mut(column), low, high);
        }
        Kernel::ClipU32 { column, low, high } => {
            kernels::clip_u32(level, block.word_mut(column), low, high);
        }
        Kernel::ClipI64 { column, low, high } => {
            kernels::clip_i64(level, block.wide_mut(column), low, high);
        }
        Kernel::ClipF32 { column, low, high } => {
            kernels::clip_f32(level, block.word_mut(column), low, high);
        }
        Kernel::LogI32 { column } => kernels::log1p_of_i32(level, block.word_mut(column)),
        Kernel::LogU32 { column } => kernels::log1p_of_u32(level, block.word_mut(column)),
        Kernel::LogF32 { column } => kernels::log1p_of_f32(level, block.word_mut(column)),
        Kernel::LogWide { from, to } => {
            let (values, into) = block.wide_and_word_mut(from, to);
            kernels::log1p_of_wide(values, into);
        }
        Kernel::FloatI32 { column } => kernels::float_of_i32(level, block.word_mut(column)),
        Kernel::FloatU32 { column } => kernels::float_of_u32(level, block.word_mut(column)),
        Kernel::FloatI64 { from, to } => {
            narrow(block, from, to, |value| value.cast_signed() as f32)
        }
        Kernel::FloatU64 { from, to } => narrow(block, from, to, |value| value as f32),
        Kernel::ModulusI32 { column, modulus } => modulus.of_i32(level, block.word_mut(column)),
        Kernel::ModulusU32 { column, modulus } => modulus.of_u32(level, block.word_mut(column)),
        Kernel::ModulusI64 { from, to, modulus } => {
            let (values, into) = block.wide_and_word_mut(from, to);
            modulus.of_i64(values, into);
        }
        Kernel::ModulusU64 { from, to, modulus } => {
            let (values, into) = block.wide_and_word_mut(from, to);
            modulus.of_u64(values, into);
        }
        Kernel::BucketI32 { column, ref boundaries } => {
            let number = |value: u32| value.cast_signed() as f32;
            kernels::bucketize(block.word_mut(column), number, boundaries);
        }
        Kernel::BucketU32 { column, ref boundaries } => {
            kernels::bucketize(block.word_mut(column), |value| value as f32, boundaries);
        }
        Kernel::BucketF32 { column, ref boundaries } => {
            kernels::bucketize(block.word_mut(column), f32::from_bits, boundaries);
        }
        // The same number in 32 and in 64 bits has one hash.
        Kernel::HashI32 { from, to, seed } => {
            let hash =
                |value: u32| kernels::mix(i64::from(value.cast_signed()).cast_unsigned(), seed);
            block.widen(from, to, hash);
        }
        Kernel::HashU32 { from, to, seed } => {
            block.widen(from, to, |value| kernels::mix(u64::from(value), seed));
        }
        Kernel::HashWide { column, seed } => {
            for value in block.wide_mut(column) {
                *value = kernels::mix(*value, seed);
            }
        }
        Kernel::HashBytes { from, to, seed } => {
            let (bytes, into) = block.bytes_and_wide_mut(from, to);
            for (row, into) in into.iter_mut().enumerate() {
                *into = xxhash_rust::xxh3::xxh3_64_with_seed(bytes.get(row), seed);
            }
        }
        Kernel::Cross { first, second, to, seed } => {
            for row in 0..rows {
                let (first, second) = (value(block, first, row), value(block, second, row));
                block.wide_mut(to)[row] = kernels::mix_two(first, second, seed);
            }
        }
    }
}

/// Whole values to f32.
fn narrow(block: &mut Block, from: usize, to: usize, convert: impl Fn(u64) -> f32) {
    let (values, into) = block.wide_and_word_mut(from, to);
    for (value, into) in values.iter().zip(into) {
        *into = convert(*value).to_bits();
    }
}

fn value(block: &Block, slot: Slot, row: usize) -> u64 {
    match slot {
        Slot::Word(column) => u64::from(block.word(column)[row]),
        Slot::Wide(column) => block.wide(column)[row],
        Slot::Bytes(_) => unreachable!("the plan refuses to cross text"),
    }
}

fn fill_bytes(block: &mut Block, column: usize, plane: usize, bit: u8, value: &[u8]) {
    let before = std::mem::take(&mut block.bytes[column]);
    let mut filled = ByteColumn::default();
    for row in 0..block.rows {
        let missing = block.missing(plane)[row] >> bit & 1 == 1;
        filled.push(if missing { value } else { before.get(row) });
    }
    block.bytes[column] = filled;
}
