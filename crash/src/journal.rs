//! A journal: the calls by which a program changed or synced a directory. It also tells which sync
//! makes a call durable.

use std::fmt;
use std::sync::Arc;

/// Number of a file or directory, independent of its name. Number 0 is the recorded directory.
pub type Node = usize;

/// A call that changed or synced a file or directory, or a mark of the program's position.
#[derive(Debug, Clone)]
pub enum Op {
    /// A new file or directory `node`, named `name` in `dir`.
    Make {
        /// The directory.
        dir: Node,
        /// The new name in `dir`.
        name: String,
        /// The node that the name leads to.
        node: Node,
        /// True if that node is a directory.
        is_dir: bool,
    },
    /// A file got a further name (a hard link).
    Link {
        /// The directory.
        dir: Node,
        /// The new name in `dir`.
        name: String,
        /// The node that the name leads to.
        node: Node,
    },
    /// The name of a file or of an empty directory was removed.
    Unlink {
        /// The directory.
        dir: Node,
        /// The removed name in `dir`.
        name: String,
    },
    /// A file or directory got another name in its directory. A file that had this name before is
    /// replaced. After a power cut the disk holds all of a rename or nothing of it.
    Rename {
        /// The directory.
        dir: Node,
        /// The old name.
        from: String,
        /// The new name.
        to: String,
        /// The file or directory that was renamed.
        node: Node,
    },
    /// Bytes were written to a file.
    Write {
        /// The file.
        node: Node,
        /// The offset of the first byte in the file.
        offset: u64,
        /// The written bytes.
        bytes: Arc<[u8]>,
    },
    /// The length of a file was set.
    SetLen {
        /// The file.
        node: Node,
        /// The file's new length in bytes.
        len: u64,
    },
    /// A part of a file was replaced by zeros. The file's length did not change.
    Punch {
        /// The file.
        node: Node,
        /// The offset of the part in the file.
        offset: u64,
        /// The length of the part in bytes.
        len: u64,
    },
    /// A file's content and length, or a directory's names, were synced.
    Sync {
        /// The file or directory that was synced.
        node: Node,
        /// The path of `node` at that moment, relative to the recorded directory.
        path: String,
    },
    /// The program noted its position.
    Mark(Mark),
}

/// A position of the program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The program is about to call `checkpoint`.
    Begun {
        /// The serial number of the state that the checkpoint stores. The checkpoint's blob begins
        /// with it. No other state of the bank's life has this number.
        serial: u64,
    },
    /// `checkpoint` returned.
    Done {
        /// The serial number of the state.
        serial: u64,
    },
    /// `Store::open` returned a store in this state. State 0 is an empty store.
    Opened {
        /// The serial number of the state.
        serial: u64,
    },
    /// The program is about to call `compact`.
    Compacting,
    /// The program is about to roll the bank back to an older checkpoint.
    RollingBack,
    /// `Store::roll_back` returned.
    RolledBack {
        /// The serial number of the state to which the bank was rolled back.
        serial: u64,
    },
    /// The program is about to open the bank.
    Opening,
    /// The program is about to do work that no other mark names.
    Working,
}

impl Op {
    /// Returns the node whose sync makes this call durable: the file if the call changes bytes or a
    /// length, the directory if the call changes a name. `None` for a sync or a mark.
    #[must_use]
    pub fn covered_by(&self) -> Option<Node> {
        match *self {
            Op::Make { dir, .. }
            | Op::Link { dir, .. }
            | Op::Unlink { dir, .. }
            | Op::Rename { dir, .. } => Some(dir),
            Op::Write { node, .. } | Op::SetLen { node, .. } | Op::Punch { node, .. } => Some(node),
            Op::Sync { .. } | Op::Mark(_) => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Make { dir, name, node, is_dir } => {
                let kind = if *is_dir { "directory" } else { "file" };
                write!(f, "make {kind} #{node} as {name} in #{dir}")
            }
            Op::Link { dir, name, node } => write!(f, "link #{node} as {name} in #{dir}"),
            Op::Unlink { dir, name } => write!(f, "unlink {name} in #{dir}"),
            Op::Rename { dir, from, to, node } => {
                write!(f, "rename #{node} from {from} to {to} in #{dir}")
            }
            Op::Write { node, offset, bytes } => {
                write!(f, "write {} bytes at {offset} of #{node}", bytes.len())
            }
            Op::SetLen { node, len } => write!(f, "set length of #{node} to {len}"),
            Op::Punch { node, offset, len } => {
                write!(f, "punch {len} bytes at {offset} of #{node}")
            }
            Op::Sync { node, path } => write!(f, "sync #{node} {path}"),
            Op::Mark(mark) => write!(f, "-- {mark:?}"),
        }
    }
}

/// The calls that changed or synced a directory, in order.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    /// The calls.
    pub ops: Vec<Op>,
}

impl Journal {
    /// Returns, for each call, the index of the first sync that makes the call durable. The index
    /// is `usize::MAX` if no sync makes the call durable. For syncs and marks it has no meaning.
    #[must_use]
    pub fn sure_from(&self) -> Vec<usize> {
        let mut next_sync = vec![usize::MAX; self.nodes()];
        let mut sure = vec![0; self.ops.len()];
        for (i, op) in self.ops.iter().enumerate().rev() {
            if let Op::Sync { node, .. } = op {
                next_sync[*node] = i;
            }
            if let Some(node) = op.covered_by() {
                sure[i] = next_sync[node];
            }
        }
        sure
    }

    /// Returns the number of files and directories that the journal ever makes, plus one for the
    /// recorded directory.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let made = |op: &Op| match op {
            Op::Make { node, .. } => node + 1,
            _ => 1,
        };
        self.ops.iter().map(made).max().unwrap_or(1)
    }

    /// Returns a copy of this journal without the syncs that `gone` selects by their index and
    /// path.
    #[must_use]
    pub fn without_syncs(&self, mut gone: impl FnMut(usize, &str) -> bool) -> Journal {
        let kept = |(i, op): (usize, &Op)| match op {
            Op::Sync { path, .. } if gone(i, path) => None,
            op => Some(op.clone()),
        };
        Journal { ops: self.ops.iter().enumerate().filter_map(kept).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_sure_from_the_next_sync_of_its_own_node() {
        let make = |node: Node, dir, is_dir| Op::Make { dir, name: node.to_string(), node, is_dir };
        let write = |node| Op::Write { node, offset: 0, bytes: [1].into() };
        let sync = |node| Op::Sync { node, path: String::new() };
        let ops = vec![
            make(1, 0, true),  // durable from the sync at index 6
            make(2, 1, false), // durable from the sync at index 4
            write(2),          // durable from the sync at index 3
            sync(2),
            sync(1),
            write(2), // never durable
            sync(0),
        ];
        let journal = Journal { ops };
        let none = usize::MAX;
        assert_eq!(journal.sure_from(), [6, 4, 3, 0, 0, none, 0]);
        assert_eq!(journal.nodes(), 3);
        let without = journal.without_syncs(|i, _| i == 3);
        assert_eq!(without.sure_from(), [5, 3, none, 0, none, 0]);
    }
}
