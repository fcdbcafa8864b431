//! What runs over each block, and the columns that a block needs for it.

use std::collections::HashSet;
use std::fmt;

use crate::decode::{Block, ColumnCounts, Level, Slot};

type Run = Box<dyn Fn(Level, &mut Block) + Send + Sync>;

/// A loop over columns of a block.
pub(crate) struct Kernel {
    /// The operator or the source that asked for it.
    of: &'static str,
    run: Run,
}

impl Kernel {
    /// Runs the kernel over all rows of the block.
    #[inline]
    pub(crate) fn run(&self, level: Level, block: &mut Block) {
        (self.run)(level, block);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Kernel").field("of", &self.of).finish_non_exhaustive()
    }
}

/// What values a vocabulary has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSpace {
    /// Numbers below this one.
    Below(u32),
    /// Any numbers.
    Numbers,
    /// Byte strings.
    Strings,
}

/// A vocabulary that columns name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedVocabulary {
    pub(crate) name: String,
    pub(crate) space: ValueSpace,
}

/// A column whose values a vocabulary numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LookUp {
    /// The column's name.
    pub(crate) column: String,
    /// In [`Program::vocabularies`].
    pub(crate) vocabulary: usize,
    /// The slot of the values.
    pub(crate) from: Slot,
    /// Whether the values are signed words, which are widened with their sign.
    pub(crate) signed: bool,
    /// The slot of the ids: that of the values if their range is known.
    pub(crate) ids: Slot,
    /// A column of words for the ids too, if ids have 64 bits and an output shows 32.
    pub(crate) narrow: Option<usize>,
    /// The largest id that the outputs can show.
    pub(crate) id_max: u64,
    /// Where outputs show the ids.
    pub(crate) shown: Vec<Shown>,
}

/// A column of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) output: usize,
    pub(crate) column: usize,
}

/// Kernels and look-ups in the order in which they run. Look-ups run after all kernels.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vocabularies: Vec<NamedVocabulary>,
    pub(crate) look_ups: Vec<LookUp>,
    /// The columns that a block needs.
    pub(crate) columns: ColumnCounts,
    /// Whether a bank can number values of unknown range.
    pub(crate) has_bank: bool,
    /// Columns of byte strings that are the slot of several columns of the pipeline.
    pub(crate) shared_bytes: HashSet<usize>,
}

impl Program {
    /// Without kernels; blocks have the columns of the fields.
    pub(crate) fn new(columns: ColumnCounts, has_bank: bool) -> Self {
        Self {
            kernels: Vec::new(),
            vocabularies: Vec::new(),
            look_ups: Vec::new(),
            columns,
            has_bank,
            shared_bytes: HashSet::new(),
        }
    }

    /// Adds a kernel behind the others. `of` is the operator or the source that asks for it.
    pub(crate) fn push(
        &mut self,
        of: &'static str,
        run: impl Fn(Level, &mut Block) + Send + Sync + 'static,
    ) {
        self.kernels.push(Kernel { of, run: Box::new(run) });
    }

    /// A new column of 32 bits.
    pub(crate) fn new_word(&mut self) -> usize {
        self.columns.words += 1;
        self.columns.words - 1
    }

    /// A new column of 64 bits.
    pub(crate) fn new_wide(&mut self) -> usize {
        self.columns.wides += 1;
        self.columns.wides - 1
    }

    /// A new column that gets a copy of a column of 32 bits.
    pub(crate) fn copy_word(&mut self, from: usize) -> usize {
        let to = self.new_word();
        self.push("copy", move |_, block| block.copy_word(from, to));
        to
    }

    /// A new column that gets a copy of a column of 64 bits.
    pub(crate) fn copy_wide(&mut self, from: usize) -> usize {
        let to = self.new_wide();
        self.push("copy", move |_, block| block.copy_wide(from, to));
        to
    }

    /// A new column that gets a copy of a column of byte strings.
    pub(crate) fn copy_bytes(&mut self, from: usize) -> usize {
        let to = self.columns.bytes;
        self.columns.bytes += 1;
        self.push("copy", move |_, block| {
            let mut copy = std::mem::take(&mut block.bytes[to]);
            copy.ends.clone_from(&block.bytes[from].ends);
            copy.bytes.clone_from(&block.bytes[from].bytes);
            block.bytes[to] = copy;
        });
        to
    }
}
