//! Fences: which block of a part may have a hash.
//!
//! A part's blocks come in groups of 64. For each group, memory has its first hash. For each block
//! it has a *fence* of two bytes: the upper 16 bits of the distance of the block's first hash from
//! the group's, as a fraction of the group's width. Hashes are spread evenly, so a lookup guesses
//! the group and corrects the guess by one or two groups. It then takes the last block whose fence
//! is not above the key's. If that fence equals the key's, the row may also lie in a block before,
//! of which the block's first row tells.
//!
//! SILT (Lim et al., SOSP 2011) needs a trie for the same question, because its keys are sorted as
//! they are.
//!
//! **Fewer fences.** Where memory is short, a fence stands for a *range* of several neighbouring
//! blocks (`Fences::thinned`). A range takes the place of a block in all that is said above. Its
//! first hash is known as exactly as the fence of its first block tells: it may be higher by
//! `Fences::slack`. A lookup then takes a range too far behind now and then, and goes back, as for
//! equal fences.

/// Blocks of a group.
pub(super) const GROUP_BLOCKS: usize = 64;
/// Bytes of memory of a group.
pub(super) const FENCE_GROUP_BYTES: u64 = (size_of::<Group>() + size_of::<GroupFences>()) as u64;
/// Bytes of memory of a long block.
pub(super) const LONG_BLOCK_BYTES: u64 = size_of::<LongBlock>() as u64;

/// A group of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// The hash of the group's first row.
    pub(super) first_hash: u64,
    /// The first word of the group's filter.
    pub(super) filter: u32,
    /// Words of a column of the filter.
    pub(super) words: u32,
}

/// The fences of a group. The fence of a block that does not exist is `u16::MAX`, and no key's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct GroupFences(pub(super) [u16; GROUP_BLOCKS]);

/// A block of more than one block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LongBlock {
    pub(super) block: u32,
    /// Its length in blocks.
    pub(super) units: u32,
    /// How many units the blocks up to this one take beyond one each.
    extra: u64,
}

/// The place of a block among the bytes of a part's blocks, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Units {
    pub(super) first: u64,
    pub(super) count: u32,
}

/// Where a hash may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) block: usize,
    /// Where in the block the hash lies most likely, as a fraction of 2^16.
    pub(super) guess: u16,
}

/// The fences of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fences {
    groups: Vec<Group>,
    fences: Vec<GroupFences>,
    /// By block. Empty for most parts, and if fences stand for ranges.
    long: Vec<LongBlock>,
    /// Number of fences: blocks, or ranges of blocks.
    blocks: usize,
    ranges: Option<Ranges>,
    /// The length of the longest block, in units. 0 before `finish`.
    longest: u32,
    /// The last hash for which the part answers.
    end: u64,
    scale: Scale,
}

/// What is known of ranges of blocks.
#[derive(Debug, PartialEq, Eq)]
struct Ranges {
    /// Ranges have `1 << stride_bits` units each, unless `starts` says otherwise.
    stride_bits: u32,
    /// The first unit of each range, in a part with long blocks. Otherwise empty.
    starts: Vec<u32>,
    /// The length of all blocks, in units.
    units: u64,
    /// The first hash of a range is less than this above the one that the fences tell.
    slack: u64,
}

impl Ranges {
    /// Returns the place of a range.
    fn units_of(&self, range: usize) -> Units {
        let start = |range: usize| match self.starts.is_empty() {
            true => (range as u64) << self.stride_bits,
            false => self.starts.get(range).map_or(self.units, |&start| u64::from(start)),
        };
        let first = start(range);
        Units { first, count: (start(range + 1).min(self.units) - first) as u32 }
    }

    /// Returns the range that begins at a unit. `None` if none does.
    fn at(&self, unit: u64) -> Option<usize> {
        if self.starts.is_empty() {
            let range = unit >> self.stride_bits;
            return (range << self.stride_bits == unit).then_some(range as usize);
        }
        self.starts.binary_search(&u32::try_from(unit).ok()?).ok()
    }
}

/// Guesses a group from a hash without a division.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Scale {
    from: u64,
    shift: u32,
    factor: u64,
}

impl Scale {
    /// `from` to `end` are the hashes of `groups` groups.
    fn new(from: u64, end: u64, groups: usize) -> Self {
        let width = end.saturating_sub(from);
        let shift = u32::BITS.saturating_sub(width.leading_zeros());
        let factor = ((groups as u64) << 32) / ((width >> shift) + 1);
        Scale { from, shift, factor }
    }

    /// Returns the group that evenly spread hashes would have at this place; 0 for a hash below the
    /// range, and perhaps too much for one above.
    #[inline]
    fn guess(self, hash: u64) -> usize {
        let distance = hash.saturating_sub(self.from) >> self.shift;
        (distance.wrapping_mul(self.factor) >> 32) as usize
    }
}

/// Returns the bits by which distances in a group of this width are shifted to make fences.
#[inline]
fn shift_of(width: u64) -> u32 {
    (u64::BITS - u16::BITS).saturating_sub(width.leading_zeros())
}

/// Returns the fence of a distance from a group's first hash.
#[inline]
fn fence_of(distance: u64, shift: u32) -> u16 {
    (distance >> shift).min(u64::from(u16::MAX) - 1) as u16
}

impl Fences {
    /// Adds a group, whose blocks have these first hashes. `end` is the first hash of the group
    /// after it; of the last group the last hash of the part.
    pub(super) fn push_group(&mut self, first_hashes: &[u64], end: u64, filter: u32, words: u32) {
        debug_assert!(self.blocks.is_multiple_of(GROUP_BLOCKS), "only the last group is short");
        let Some(&first_hash) = first_hashes.first() else { return };
        let shift = shift_of(end - first_hash);
        let mut fences = [u16::MAX; GROUP_BLOCKS];
        for (fence, hash) in fences.iter_mut().zip(first_hashes) {
            *fence = fence_of(hash - first_hash, shift);
        }
        self.groups.push(Group { first_hash, filter, words });
        self.fences.push(GroupFences(fences));
        self.blocks += first_hashes.len();
    }

    /// Notes that a block takes more than one unit. Blocks come in order.
    pub(super) fn push_long(&mut self, block: u32, units: u32) {
        let extra = self.long.last().map_or(0, |last| last.extra) + u64::from(units) - 1;
        self.long.push(LongBlock { block, units, extra });
    }

    /// Must be called after the last group. `end` is the last hash for which the part answers.
    pub(super) fn finish(&mut self, end: u64) {
        self.end = end;
        self.groups.shrink_to_fit();
        self.fences.shrink_to_fit();
        self.long.shrink_to_fit();
        if self.ranges.is_none() {
            self.longest = self.long.iter().map(|long| long.units).max().unwrap_or(1);
        }
        let from = self.groups.first().map_or(self.end, |group| group.first_hash);
        self.scale = Scale::new(from, self.end, self.groups.len());
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub(super) fn groups_mut(&mut self) -> &mut [Group] {
        &mut self.groups
    }

    pub(super) fn fences(&self) -> &[GroupFences] {
        &self.fences
    }

    pub(super) fn long(&self) -> &[LongBlock] {
        &self.long
    }

    /// Returns the number of fences.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// True if a fence stands for several blocks.
    pub(super) fn has_ranges(&self) -> bool {
        self.ranges.is_some()
    }

    /// Returns the length of all blocks, in units.
    pub(super) fn units(&self) -> u64 {
        match &self.ranges {
            Some(ranges) => ranges.units,
            None => self.blocks as u64 + self.long.last().map_or(0, |last| last.extra),
        }
    }

    /// Returns the length of the longest block, in units.
    pub(super) fn longest(&self) -> u32 {
        self.longest
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let starts = self.ranges.as_ref().map_or(0, |ranges| size_of_val(&*ranges.starts));
        let fences = size_of_val(&*self.groups) + size_of_val(&*self.fences);
        fences + size_of_val(&*self.long) + starts
    }

    /// Returns the fences of ranges of blocks. A range has at most `1 << stride_bits` units, or one
    /// block that is longer.
    pub(super) fn thinned(&self, stride_bits: u32) -> Fences {
        debug_assert!(self.ranges.is_none() && stride_bits > 0);
        let mut ranges = Ranges { stride_bits, starts: Vec::new(), units: self.units(), slack: 0 };
        let mut thin = Fences { longest: self.longest, ..Fences::default() };
        // The first hashes of the present group's ranges, and the first unit of the present range.
        let mut first_hashes = Vec::with_capacity(GROUP_BLOCKS);
        let mut start = 0;
        for block in 0..self.blocks {
            let Units { first, count } = self.units_of(block);
            if block > 0 && first + u64::from(count) - start <= 1 << stride_bits {
                continue;
            }
            let (first_hash, slack) = self.first_hash_of(block);
            ranges.slack = slack.max(ranges.slack);
            if first_hashes.len() == GROUP_BLOCKS {
                // A range's fences have no filter. One word says that the group has rows.
                thin.push_group(&first_hashes, first_hash, 0, 1);
                first_hashes.clear();
            }
            first_hashes.push(first_hash);
            if !self.long.is_empty() {
                ranges.starts.push(first as u32);
            }
            start = first;
        }
        thin.push_group(&first_hashes, self.end, 0, 1);
        ranges.starts.shrink_to_fit();
        thin.ranges = Some(ranges);
        thin.finish(self.end);
        thin
    }

    /// Returns the least hash that a block's first row may have, and by how much the hash may be
    /// higher than that.
    fn first_hash_of(&self, block: usize) -> (u64, u64) {
        let (group, place) = (block / GROUP_BLOCKS, block % GROUP_BLOCKS);
        let first = self.groups[group].first_hash;
        if place == 0 {
            return (first, 0);
        }
        let next = self.groups.get(group + 1).map_or(self.end, |next| next.first_hash);
        let shift = shift_of(next.saturating_sub(first));
        // The largest fence stands for two distances.
        (first + (u64::from(self.fences[group].0[place]) << shift), 2 << shift)
    }

    /// Returns the last group whose first hash is not above `hash`. `None` if there is none.
    #[inline]
    pub(super) fn group_of(&self, hash: u64) -> Option<usize> {
        let mut place = self.scale.guess(hash).min(self.groups.len().checked_sub(1)?);
        // Both loops end at an end of the groups.
        while self.groups[place].first_hash > hash {
            place = place.checked_sub(1)?;
        }
        while self.groups.get(place + 1).is_some_and(|next| next.first_hash <= hash) {
            place += 1;
        }
        Some(place)
    }

    /// Returns the last block that may have `hash`. `None` if no block has it.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> Option<Candidate> {
        let group = self.group_of(hash)?;
        let first = self.groups[group].first_hash;
        let next = self.groups.get(group + 1).map_or(self.end, |next| next.first_hash);
        let shift = shift_of(next.saturating_sub(first));
        let fence = fence_of(hash - first, shift);
        let fences = &self.fences[group].0;
        let not_above = fences.iter().map(|&other| u16::from(other <= fence)).sum::<u16>();
        // The first fence of a group is 0.
        let last = usize::from(not_above) - 1;
        let end = match fences.get(last + 1) {
            Some(&u16::MAX) | None => (next.saturating_sub(first) >> shift) as u32,
            Some(&end) => u32::from(end),
        };
        let from = u32::from(fences[last]);
        let within = (u32::from(fence) - from) << 16;
        let guess = (within / end.saturating_sub(from).max(1)).min(u32::from(u16::MAX)) as u16;
        Some(Candidate { block: group * GROUP_BLOCKS + last, guess })
    }

    /// Returns the first block that may have rows with at least this hash; the number of blocks if
    /// none has.
    pub(super) fn first_from(&self, hash: u64) -> usize {
        let slack = self.ranges.as_ref().map_or(0, |ranges| ranges.slack);
        let hash = hash.saturating_sub(slack);
        let Some(found) = self.find(hash) else { return 0 };
        let mut block = found.block;
        // The loop ends at the first block. Equal hashes may begin in the group before.
        while block > 0 && self.may_begin_at_or_above(block, hash) {
            block -= 1;
        }
        block
    }

    /// True if the block's first hash may be `hash` or higher.
    fn may_begin_at_or_above(&self, block: usize, hash: u64) -> bool {
        let (group, place) = (block / GROUP_BLOCKS, block % GROUP_BLOCKS);
        let first = self.groups[group].first_hash;
        if place == 0 {
            return first >= hash;
        }
        let next = self.groups.get(group + 1).map_or(self.end, |next| next.first_hash);
        let fence = fence_of(hash.saturating_sub(first), shift_of(next.saturating_sub(first)));
        self.fences[group].0[place] >= fence
    }

    /// Returns the place of a block.
    #[inline]
    pub(super) fn units_of(&self, block: usize) -> Units {
        if let Some(ranges) = &self.ranges {
            return ranges.units_of(block);
        }
        if self.long.is_empty() {
            return Units { first: block as u64, count: 1 };
        }
        let before = self.long.partition_point(|long| (long.block as usize) < block);
        let extra = before.checked_sub(1).map_or(0, |last| self.long[last].extra);
        let count = match self.long.get(before) {
            Some(long) if long.block as usize == block => long.units,
            _ => 1,
        };
        Units { first: block as u64 + extra, count }
    }

    /// Returns the block that begins at a unit. `None` if none does.
    pub(super) fn block_at(&self, unit: u64) -> Option<usize> {
        if let Some(ranges) = &self.ranges {
            return ranges.at(unit).filter(|&range| range < self.blocks);
        }
        // The units of long blocks ascend too.
        let before = self.long.partition_point(|long| {
            u64::from(long.block) + long.extra + 1 - u64::from(long.units) < unit
        });
        let extra = before.checked_sub(1).map_or(0, |last| self.long[last].extra);
        let block = unit.checked_sub(extra)? as usize;
        (block < self.blocks && self.units_of(block).first == unit).then_some(block)
    }

    /// Checks what was read from disk.
    ///
    /// # Errors
    /// A description of what is wrong. Its subject is the part.
    pub(super) fn check(&self, first: u64) -> Result<(), String> {
        let firsts = self.groups.iter().map(|group| group.first_hash);
        if !firsts.is_sorted() || self.groups.first().is_some_and(|group| group.first_hash < first)
        {
            return Err("its groups of blocks are out of order".into());
        }
        if self.groups.last().is_some_and(|group| group.first_hash > self.end) {
            return Err("its last group lies behind its last hash".into());
        }
        for (group, fences) in self.fences.iter().enumerate() {
            let blocks = (self.blocks - group * GROUP_BLOCKS).min(GROUP_BLOCKS);
            let (there, none) = fences.0.split_at(blocks);
            let is_right = there[0] == 0
                && there.is_sorted()
                && there[blocks - 1] < u16::MAX
                && none.iter().all(|&fence| fence == u16::MAX);
            if !is_right {
                return Err(format!("the fences of its group {group} are out of order"));
            }
        }
        let is_right = self.long.is_sorted_by(|a, b| a.block < b.block)
            && self.long.last().is_none_or(|last| (last.block as usize) < self.blocks)
            && self.long.iter().all(|long| long.units > 1);
        if is_right { Ok(()) } else { Err("its long blocks are out of order".into()) }
    }

    /// Sets the fences of groups that were read from disk. Call `check` after `finish`.
    pub(super) fn push_read(&mut self, group: Group, fences: GroupFences, blocks: usize) {
        self.groups.push(group);
        self.fences.push(fences);
        self.blocks += blocks;
    }
}
