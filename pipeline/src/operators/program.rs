//! A program: the operations on each block, and the number of columns that they need.

use std::collections::HashSet;
use std::fmt;

use super::definition::{Flow, Kind};
use crate::arrays::ArrayPlan;
use crate::decode::{Block, ColumnCounts, Level, Slot};

type Run = Box<dyn Fn(Level, &mut Block) + Send + Sync>;

/// A loop over columns of a block.
pub(crate) struct Kernel {
    /// Name of the operator or source that added the kernel, for debugging.
    of: &'static str,
    run: Run,
}

impl Kernel {
    /// Runs the kernel on all rows of the block.
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

/// The values that a vocabulary can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSpace {
    /// Numbers below this limit.
    Below(u32),
    /// Any numbers.
    Numbers,
    /// Byte strings.
    Strings,
}

/// A vocabulary that columns use.
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
    /// Index in [`Program::vocabularies`].
    pub(crate) vocabulary: usize,
    /// The slot of the values.
    pub(crate) from: Slot,
    /// True if the values are signed 32-bit numbers. They are then widened to 64 bits with their
    /// sign.
    pub(crate) signed: bool,
    /// The slot of the ids. If the range of the values is known, this is the slot of the values:
    /// the ids replace them.
    pub(crate) ids: Slot,
    /// A 32-bit column that also receives the ids. Only used if the ids have 64 bits and an output
    /// shows 32 bits.
    pub(crate) narrow: Option<usize>,
    /// The largest id that fits in every output that shows the ids.
    pub(crate) id_max: u64,
    /// The columns of outputs that show the ids.
    pub(crate) shown: Vec<Shown>,
}

/// A column of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) output: usize,
    pub(crate) column: usize,
}

/// Kernels and look-ups, each in the order in which they run. All look-ups run after the last
/// kernel.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vocabularies: Vec<NamedVocabulary>,
    pub(crate) look_ups: Vec<LookUp>,
    /// Columns of arrays, which are made before the kernels run.
    pub(crate) arrays: Vec<ArrayPlan>,
    /// Number of columns in a block.
    pub(crate) columns: ColumnCounts,
    /// True if a bank can number values of unknown range.
    pub(crate) has_bank: bool,
    /// Byte-string slots that several columns of the pipeline share.
    pub(crate) shared_bytes: HashSet<usize>,
}

impl Program {
    /// Makes a program without kernels. Its blocks start with the columns of the fields.
    pub(crate) fn new(columns: ColumnCounts, has_bank: bool) -> Self {
        Self {
            kernels: Vec::new(),
            vocabularies: Vec::new(),
            look_ups: Vec::new(),
            arrays: Vec::new(),
            columns,
            has_bank,
            shared_bytes: HashSet::new(),
        }
    }

    /// Adds a kernel, which runs after the kernels so far. `of` is the operator or source that
    /// needs it.
    pub(crate) fn push(
        &mut self,
        of: &'static str,
        run: impl Fn(Level, &mut Block) + Send + Sync + 'static,
    ) {
        self.kernels.push(Kernel { of, run: Box::new(run) });
    }

    /// Adds a column of arrays. The planner puts its output in.
    pub(crate) fn push_array(&mut self, array: ArrayPlan) -> Flow {
        self.arrays.push(array);
        Flow::new(Kind::Array, Slot::Array(self.arrays.len() - 1))
    }

    /// Adds a 32-bit column to the blocks.
    pub(crate) fn new_word(&mut self) -> usize {
        self.columns.words += 1;
        self.columns.words - 1
    }

    /// Adds a 64-bit column to the blocks.
    pub(crate) fn new_wide(&mut self) -> usize {
        self.columns.wides += 1;
        self.columns.wides - 1
    }

    /// Adds a 32-bit column and a kernel that copies column `from` into it.
    pub(crate) fn copy_word(&mut self, from: usize) -> usize {
        let to = self.new_word();
        self.push("copy", move |_, block| block.copy_word(from, to));
        to
    }

    /// Adds a 64-bit column and a kernel that copies column `from` into it.
    pub(crate) fn copy_wide(&mut self, from: usize) -> usize {
        let to = self.new_wide();
        self.push("copy", move |_, block| block.copy_wide(from, to));
        to
    }

    /// Adds a column of byte strings and a kernel that copies column `from` into it.
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
