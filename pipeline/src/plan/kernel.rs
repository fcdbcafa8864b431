//! The loops that a plan runs over a block's columns.

use crate::decode::Slot;
use crate::kernels::Modulus;

/// One loop over a block's columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kernel {
    FillWord { column: usize, missing: (usize, u8), value: u32 },
    FillWide { column: usize, missing: (usize, u8), value: u64 },
    FillBytes { column: usize, missing: (usize, u8), value: Vec<u8> },
    CopyWord { from: usize, to: usize },
    CopyWide { from: usize, to: usize },
    CopyBytes { from: usize, to: usize },
    ClipI32 { column: usize, low: i32, high: i32 },
    ClipU32 { column: usize, low: u32, high: u32 },
    ClipI64 { column: usize, low: i64, high: i64 },
    ClipF32 { column: usize, low: f32, high: f32 },
    LogI32 { column: usize },
    LogU32 { column: usize },
    LogF32 { column: usize },
    LogWide { from: usize, to: usize },
    FloatI32 { column: usize },
    FloatU32 { column: usize },
    FloatI64 { from: usize, to: usize },
    FloatU64 { from: usize, to: usize },
    ModulusI32 { column: usize, modulus: Modulus },
    ModulusU32 { column: usize, modulus: Modulus },
    ModulusI64 { from: usize, to: usize, modulus: Modulus },
    ModulusU64 { from: usize, to: usize, modulus: Modulus },
    BucketI32 { column: usize, boundaries: Vec<f32> },
    BucketU32 { column: usize, boundaries: Vec<f32> },
    BucketF32 { column: usize, boundaries: Vec<f32> },
    HashI32 { from: usize, to: usize, seed: u64 },
    HashU32 { from: usize, to: usize, seed: u64 },
    HashWide { column: usize, seed: u64 },
    HashBytes { from: usize, to: usize, seed: u64 },
    Cross { first: Slot, second: Slot, to: usize, seed: u64 },
}
