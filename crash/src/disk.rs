//! Builds the possible contents of a recorded directory after a power cut.
//!
//! The power cut comes after the first `position` calls of a journal. Then the disk holds:
//! - every change that a sync before `position` covers. A sync of a file covers its bytes and its
//!   length; a sync of a directory covers the names in it. This is what POSIX promises. Most file
//!   systems promise more, so a bank that survives these power cuts also survives theirs.
//! - **any subset** of the changes that no sync covers: writes reach the disk in any order, and a
//!   write may reach it in part. A write is torn between blocks of 512 bytes, because a drive
//!   writes each block as a whole. Any of the blocks may be missing. The file's new length may be
//!   there without any new block. A rename is never torn.
//!
//! One case is left out: two unsynced calls on one file or directory reach the disk in reverse
//! order, and the older call overwrites the newer one. Each block and each name is then as if the
//! newer call had not reached the disk. The subsets contain such images.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;

use crate::journal::{Journal, Node, Op};

/// A drive writes a block of this size as a whole, so writes are torn only between blocks.
const BLOCK_BYTES: u64 = 512;

/// Selects the unsynced calls that have reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// No unsynced call.
    Nothing,
    /// Every unsynced call, as after a kill of the process.
    Everything,
    /// Every unsynced call except the one at this index of the journal.
    AllBut(usize),
    /// Only the unsynced call at this index of the journal.
    Only(usize),
    /// A random subset of the unsynced calls, drawn with this seed. Some of its writes are torn.
    Random(u64),
}

#[derive(Debug, Clone)]
enum Content {
    File(Arc<Vec<u8>>),
    Dir(BTreeMap<String, Node>),
}

/// The contents of a directory tree.
#[derive(Debug, Clone)]
pub struct Disk {
    nodes: Vec<Content>,
}

/// Says how much of a call reaches the disk.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// A random selection of a write's blocks, with this seed.
    Torn(u64),
    /// Only the new file length of a write.
    Length,
}

impl Disk {
    /// Returns the disk after a power cut that follows the first `position` calls of `journal`.
    /// `sure` must be the result of [`Journal::sure_from`] for this journal.
    #[must_use]
    pub fn after_cut(journal: &Journal, sure: &[usize], position: usize, left: Left) -> Disk {
        let mut disk = Disk::empty(journal);
        let mut random = Rng::with_seed(match left {
            Left::Random(seed) => seed,
            _ => 0,
        });
        // The seed decides how many unsynced calls reach the disk as a whole: about 1, 4 or 7 of 8.
        // Of the writes, about 5 of 16 reach it in part.
        let keep_of_8 = [1, 4, 7][random.u64(..3) as usize];
        for (i, op) in journal.ops[..position].iter().enumerate() {
            let is_sure = sure[i] < position;
            let part = match left {
                _ if is_sure => Some(Part::Whole),
                Left::Nothing => None,
                Left::Everything => Some(Part::Whole),
                Left::AllBut(missing) => (i != missing).then_some(Part::Whole),
                Left::Only(there) => (i == there).then_some(Part::Whole),
                Left::Random(_) => some_part(op, &mut random, keep_of_8),
            };
            if let Some(part) = part {
                disk.apply(op, part);
            }
        }
        disk
    }

    /// Returns the indexes of the calls before `position` that no sync before `position` covers.
    #[must_use]
    pub fn unsure(journal: &Journal, sure: &[usize], position: usize) -> Vec<usize> {
        let unsure = |&i: &usize| sure[i] >= position && journal.ops[i].covered_by().is_some();
        (0..position).filter(unsure).collect()
    }

    /// Returns a disk with every file and directory that the journal ever makes. The files have no
    /// bytes, and the directories have no names in them.
    fn empty(journal: &Journal) -> Disk {
        let mut nodes = vec![Content::Dir(BTreeMap::new()); journal.nodes()];
        for op in &journal.ops {
            if let Op::Make { node, is_dir: false, .. } = op {
                nodes[*node] = Content::File(Arc::default());
            }
        }
        Disk { nodes }
    }

    fn names(&mut self, dir: Node) -> Option<&mut BTreeMap<String, Node>> {
        match &mut self.nodes[dir] {
            Content::Dir(names) => Some(names),
            Content::File(_) => None,
        }
    }

    fn bytes(&mut self, file: Node) -> Option<&mut Vec<u8>> {
        match &mut self.nodes[file] {
            Content::File(bytes) => Some(Arc::make_mut(bytes)),
            Content::Dir(_) => None,
        }
    }

    fn apply(&mut self, op: &Op, part: Part) {
        match op {
            Op::Make { dir, name, node, .. } | Op::Link { dir, name, node } => {
                if let Some(names) = self.names(*dir) {
                    names.insert(name.clone(), *node);
                }
            }
            Op::Unlink { dir, name } => {
                if let Some(names) = self.names(*dir) {
                    names.remove(name);
                }
            }
            Op::Rename { dir, from, to, node } => {
                if let Some(names) = self.names(*dir) {
                    names.remove(from);
                    names.insert(to.clone(), *node);
                }
            }
            Op::Write { node, offset, bytes } => {
                if let Some(file) = self.bytes(*node) {
                    write_part(file, *offset, bytes, part);
                }
            }
            Op::SetLen { node, len } => {
                if let Some(file) = self.bytes(*node) {
                    file.resize(*len as usize, 0);
                }
            }
            Op::Punch { node, offset, len } => {
                if let Some(file) = self.bytes(*node) {
                    let end = (offset + len).min(file.len() as u64) as usize;
                    let start = (*offset as usize).min(end);
                    file[start..end].fill(0);
                }
            }
            Op::Sync { .. } | Op::Mark(_) => {}
        }
    }

    /// Writes this tree to `dir`, which must be an empty directory.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn write_to(&self, dir: &Path) -> io::Result<()> {
        self.write_names(0, dir)
    }

    fn write_names(&self, node: Node, dir: &Path) -> io::Result<()> {
        let Content::Dir(names) = &self.nodes[node] else { return Ok(()) };
        for (name, &node) in names {
            let path = dir.join(name);
            match &self.nodes[node] {
                // If a file has several names (hard links), each name becomes a file of its own
                // with the content. A reader of the image sees no difference.
                Content::File(bytes) => fs::write(path, &**bytes)?,
                Content::Dir(_) => {
                    fs::create_dir(&path)?;
                    self.write_names(node, &path)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the first difference between `dir` and this tree. `None` if they are equal.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn difference(&self, dir: &Path) -> io::Result<Option<String>> {
        self.difference_below(0, dir)
    }

    fn difference_below(&self, node: Node, dir: &Path) -> io::Result<Option<String>> {
        let Content::Dir(names) = &self.nodes[node] else { return Ok(None) };
        let mut found: Vec<String> = Vec::new();
        for entry in fs::read_dir(dir)? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        found.sort_unstable();
        if !found.iter().eq(names.keys()) {
            let recorded: Vec<_> = names.keys().collect();
            return Ok(Some(format!("{} holds {found:?}, not {recorded:?}", dir.display())));
        }
        for (name, &node) in names {
            let path = dir.join(name);
            let difference = match &self.nodes[node] {
                Content::File(bytes) => {
                    (fs::read(&path)? != **bytes).then(|| format!("{} differs", path.display()))
                }
                Content::Dir(_) => self.difference_below(node, &path)?,
            };
            if difference.is_some() {
                return Ok(difference);
            }
        }
        Ok(None)
    }
}

/// Draws what reaches the disk of an unsynced call. `None` if nothing does.
fn some_part(op: &Op, random: &mut Rng, keep_of_8: u64) -> Option<Part> {
    let whole = (random.u64(..8) < keep_of_8).then_some(Part::Whole);
    let seed = random.u64(..);
    // Only a write can reach the disk in part.
    match seed % 16 {
        0..4 if matches!(op, Op::Write { .. }) => Some(Part::Torn(seed)),
        4 if matches!(op, Op::Write { .. }) => Some(Part::Length),
        _ => whole,
    }
}

fn write_part(file: &mut Vec<u8>, offset: u64, bytes: &[u8], part: Part) {
    let end = offset + bytes.len() as u64;
    let mut put = |from: u64, to: u64| {
        if (file.len() as u64) < to {
            file.resize(to as usize, 0);
        }
        let source = &bytes[(from - offset) as usize..(to - offset) as usize];
        file[from as usize..to as usize].copy_from_slice(source);
    };
    match part {
        Part::Whole => put(offset, end),
        Part::Length => file.resize(file.len().max(end as usize), 0),
        Part::Torn(seed) => {
            let mut random = Rng::with_seed(seed);
            let mut at = offset;
            while at < end {
                let to = (at / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES).min(end);
                if random.u64(..2) == 0 {
                    put(at, to);
                }
                at = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let bytes = |byte: u8| Arc::<[u8]>::from(vec![byte; 1024]);
        let sync = |node| Op::Sync { node, path: String::new() };
        Journal {
            ops: vec![
                Op::Make { dir: 0, name: "a".into(), node: 1, is_dir: false },
                Op::Write { node: 1, offset: 0, bytes: bytes(1) },
                sync(1),
                sync(0),
                Op::Write { node: 1, offset: 1024, bytes: bytes(2) },
                Op::Rename { dir: 0, from: "a".into(), to: "b".into(), node: 1 },
                Op::Punch { node: 1, offset: 0, len: 512 },
            ],
        }
    }

    fn files(position: usize, left: Left) -> Vec<(String, Vec<u8>)> {
        let journal = journal();
        let disk = Disk::after_cut(&journal, &journal.sure_from(), position, left);
        let dir = tempfile::tempdir().unwrap();
        disk.write_to(dir.path()).unwrap();
        assert_eq!(disk.difference(dir.path()).unwrap(), None);
        let mut files: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn a_name_is_sure_with_its_directory_and_a_content_with_its_file() {
        assert_eq!(files(3, Left::Nothing), []);
        assert_eq!(files(3, Left::Everything), [("a".into(), vec![1; 1024])]);
        assert_eq!(files(4, Left::Nothing), [("a".into(), vec![1; 1024])]);
        assert_eq!(files(7, Left::Nothing), [("a".into(), vec![1; 1024])]);
        let grown = [vec![1; 1024], vec![2; 1024]].concat();
        assert_eq!(files(6, Left::Everything), [("b".into(), grown.clone())]);
        assert_eq!(files(6, Left::Only(4)), [("a".into(), grown)]);
        assert_eq!(files(6, Left::AllBut(4)), [("b".into(), vec![1; 1024])]);
        let punched = [vec![0; 512], vec![1; 512]].concat();
        assert_eq!(files(7, Left::Only(6)), [("a".into(), punched)]);
    }

    /// Shows that an unsynced rename is kept as often as the seeds ask for: 1, 4 or 7 times of 8.
    #[test]
    fn a_rename_is_not_kept_as_a_torn_call() {
        let renamed = |seed| files(6, Left::Random(seed)).iter().any(|(name, _)| name == "b");
        let kept = (0..1000).filter(|&seed| renamed(seed)).count();
        assert!((450..550).contains(&kept), "{kept} of 1000");
    }

    #[test]
    fn random_subsets_tear_writes_and_leave_what_is_sure_alone() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..300 {
            let files = files(6, Left::Random(seed));
            let [(name, bytes)] = &files[..] else { panic!("{} files", files.len()) };
            assert_eq!(bytes[..1024], [1; 1024]);
            let blocks: Vec<u8> = bytes[1024..].chunks(512).map(|block| block[0]).collect();
            seen.insert((name.clone(), blocks));
        }
        // The unsynced write has two blocks. An image has no change by it, zeros in the new length,
        // the first block, the second block (with zeros before it), or both blocks. Each of these
        // five appears under the file's old name and under its new name.
        assert_eq!(seen.len(), 10, "{seen:?}");
    }
}
