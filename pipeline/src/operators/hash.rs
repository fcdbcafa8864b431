//! `Hash`: a 64-bit hash of a value. This file also has the hash of two columns, for a crossed
//! column.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{Block, Slot};
use crate::error::Result;

pub(super) struct Hash {
    pub(super) seed: u64,
}

impl Definition for Hash {
    fn name(&self) -> &'static str {
        "Hash"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let seed = self.seed;
        let to = match (place.flow.kind, place.flow.slot) {
            // The value is extended with its sign. A number then has one hash, whether it has 32 or
            // 64 bits.
            (Kind::I32, Slot::Word(from)) => {
                let to = program.new_wide();
                program.push("Hash", move |_, block| {
                    let widened = |value: u32| i64::from(value.cast_signed()).cast_unsigned();
                    block.widen(from, to, |value| mix(widened(value), seed));
                });
                to
            }
            (Kind::U32, Slot::Word(from)) => {
                let to = program.new_wide();
                program.push("Hash", move |_, block| {
                    block.widen(from, to, |value| mix(u64::from(value), seed));
                });
                to
            }
            (Kind::I64 | Kind::U64, Slot::Wide(column)) => {
                program.push("Hash", move |_, block| {
                    for value in block.wide_mut(column) {
                        *value = mix(*value, seed);
                    }
                });
                column
            }
            (Kind::Bytes, Slot::Bytes(from)) => {
                let to = program.new_wide();
                program.push("Hash", move |_, block| hash_bytes(block, from, to, seed));
                to
            }
            _ => return place.wrong_kind("Hash", "whole numbers and text"),
        };
        Ok(Flow::new(Kind::U64, Slot::Wide(to)))
    }
}

fn hash_bytes(block: &mut Block, from: usize, to: usize, seed: u64) {
    let (bytes, into) = block.bytes_and_wide_mut(from, to);
    for (row, into) in into.iter_mut().enumerate() {
        *into = xxhash_rust::xxh3::xxh3_64_with_seed(bytes.get(row), seed);
    }
}

/// Makes a new column with a hash of the values of two columns. Neither column may have text.
pub(crate) fn cross(program: &mut Program, first: Slot, second: Slot, seed: u64) -> Flow {
    let to = program.new_wide();
    program.push("Cross", move |_, block| {
        for row in 0..block.rows {
            let hash = mix_two(number(block, first, row), number(block, second, row), seed);
            block.wide_mut(to)[row] = hash;
        }
    });
    Flow::new(Kind::U64, Slot::Wide(to))
}

fn number(block: &Block, slot: Slot, row: usize) -> u64 {
    match slot {
        Slot::Word(column) => u64::from(block.word(column)[row]),
        Slot::Wide(column) => block.wide(column)[row],
        Slot::Bytes(_) | Slot::Array(_) => unreachable!("the plan refuses to cross text"),
    }
}

/// Mixes 64 bits by a bijection ("moremur", Pelle Evensen's stronger Murmur3 finaliser).
#[inline]
fn mix(value: u64, seed: u64) -> u64 {
    let mut x = value ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 27)).wrapping_mul(0x3C79_AC49_2BA7_B653);
    x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

/// Hashes two values together; their order matters.
#[inline]
fn mix_two(first: u64, second: u64, seed: u64) -> u64 {
    mix(mix(first, seed).rotate_left(32) ^ second, seed ^ 0x5851_F42D_4C95_7F2D)
}
