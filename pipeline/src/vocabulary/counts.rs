//! Counts the values of a known range.

use std::io;

use memmap2::{MmapMut, MmapOptions};

/// The counts of one thread: how often it met each value of a range.
#[derive(Debug)]
pub(crate) struct ValueCounts {
    /// A 32-bit count for each value, in an anonymous map. Pages of values that do not occur take
    /// no memory, and if the system refuses the map, that is an error and no abort.
    counts: MmapMut,
    /// The values whose count overflowed: one entry each time a count reached 2^32 and restarted
    /// from 0.
    wrapped: Vec<u32>,
}

impl ValueCounts {
    pub(crate) fn new(range: usize) -> io::Result<Self> {
        let counts = MmapOptions::new().len(range.max(1) * size_of::<u32>()).map_anon()?;
        Ok(Self { counts, wrapped: Vec::new() })
    }

    /// Adds the counts to `sums`, which has one sum for each of `values`.
    pub(super) fn add_to(&self, sums: &mut [u64], values: &[u32]) {
        let all: &[u32] = bytemuck::cast_slice(&self.counts);
        for (sum, &value) in sums.iter_mut().zip(values) {
            *sum += u64::from(all[value as usize]);
        }
        if self.wrapped.is_empty() {
            return;
        }
        let mut wrapped = self.wrapped.clone();
        wrapped.sort_unstable();
        for (sum, value) in sums.iter_mut().zip(values) {
            let from = wrapped.partition_point(|other| other < value);
            let to = wrapped.partition_point(|other| other <= value);
            *sum += ((to - from) as u64) << 32;
        }
    }

    #[inline]
    pub(crate) fn count(&mut self, values: &[u32]) {
        let counts: &mut [u32] = bytemuck::cast_slice_mut(&mut self.counts);
        for &value in values {
            let count = &mut counts[value as usize];
            *count = count.wrapping_add(1);
            if *count == 0 {
                self.wrapped.push(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_32_bits() {
        let mut counted = ValueCounts::new(4).unwrap();
        counted.counts[12..].fill(0xFF);
        counted.count(&[3, 1, 3]);
        let mut sums = [0; 2];
        counted.add_to(&mut sums, &[3, 1]);
        assert_eq!(sums, [(1 << 32) + 1, 1]);
    }
}
