//! The memory limit of the process's control group, and the default memory budget that follows from
//! it.
//!
//! **Problem.** The memory limit of a container is the limit of a control group. The kernel kills a
//! process of the group if the group exceeds the limit. Many containers have less memory than a
//! default budget of 1 GiB.
//!
//! **Approach.** `/proc/self/cgroup` names the process's group in each hierarchy of groups.
//! `/proc/self/mountinfo` says where each hierarchy is mounted, and which group is the top of that
//! mount. The process's group, and each group above it up to the top of the mount, has a file with
//! the group's limit. The file is `memory.max` in version 2 of control groups, and
//! `memory.limit_in_bytes` under the memory controller of version 1. The smallest of these limits
//! counts.
//!
//! **Containers.** The path in `/proc/self/cgroup` may be a path of the host that does not exist in
//! the container's mounts. The top of the mount is then the container's group, and only the limit
//! of that group is read. A file that can't be read or understood sets no limit.
//!
//! **Tests** may set the environment variable `EMBANK_SYSTEM_ROOT`, which gives another root
//! directory for these paths.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::memory::budget::BUDGET_BYTES_MIN;

/// The default memory budget where no memory limit is set, in bytes.
const DEFAULT_BUDGET_BYTES_MAX: u64 = 1 << 30;
/// With a memory limit, the default memory budget is the limit divided by this number. The program
/// that opens the bank needs the rest. `docs/architecture.md` lists the memory that a bank needs in
/// addition to its budget.
const DEFAULT_BUDGET_PART: u64 = 4;
/// The smallest default memory budget, in bytes. It is twice the minimum of a store, because a bank
/// of the crate `embank` also has its lookahead queue in the budget.
const DEFAULT_BUDGET_BYTES_MIN: u64 = 2 * BUDGET_BYTES_MIN;
/// A limit of at least this number of bytes counts as no limit. Version 1 reports about 2^63 bytes
/// where no limit is set.
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// Returns the memory budget, in bytes, of a bank that is opened without a memory budget option. It
/// is 1 GiB, or a quarter of the memory limit of the process's control group if that is less. It is
/// at least 512 KiB, which is enough to open a bank.
///
/// Each call reads the limit again, so the result follows changes of the limit.
///
/// ```
/// let bytes = embank_kv::default_memory_budget_bytes();
/// assert!((512 << 10..=1 << 30).contains(&bytes));
/// ```
#[must_use]
pub fn default_memory_budget_bytes() -> u64 {
    default_below(memory_limit_bytes())
}

fn default_below(limit_bytes: Option<u64>) -> u64 {
    let part = |limit| limit / DEFAULT_BUDGET_PART;
    let wanted = limit_bytes.map_or(DEFAULT_BUDGET_BYTES_MAX, part);
    wanted.clamp(DEFAULT_BUDGET_BYTES_MIN, DEFAULT_BUDGET_BYTES_MAX)
}

/// Returns a warning if a memory budget is above the memory limit of the process's control group.
/// `None` if the budget is within the limit, or if no limit is set.
///
/// ```
/// assert_eq!(embank_kv::memory_budget_warning(1 << 20), None);
/// ```
#[must_use]
pub fn memory_budget_warning(budget_bytes: u64) -> Option<String> {
    warning_for(budget_bytes, memory_limit_bytes())
}

fn warning_for(budget_bytes: u64, limit_bytes: Option<u64>) -> Option<String> {
    let limit_bytes = limit_bytes.filter(|&limit| budget_bytes > limit)?;
    Some(format!(
        "a memory budget of {budget_bytes} bytes is above the memory limit of the process's control group, \
         {limit_bytes} bytes: the system kills the process before the budget is used up. Lower the budget, or raise the \
         limit of the container"
    ))
}

/// Returns the memory limit of the process's control group in bytes. `None` if no limit is set.
fn memory_limit_bytes() -> Option<u64> {
    match std::env::var_os("EMBANK_SYSTEM_ROOT") {
        Some(root) => memory_limit_below(Path::new(&root)),
        None => memory_limit_below(Path::new("/")),
    }
}

/// Returns the result of [`memory_limit_bytes`], read with `root` as the root directory.
fn memory_limit_below(root: &Path) -> Option<u64> {
    let groups = fs::read(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read(root.join("proc/self/mountinfo")).ok()?;
    let mounts: Vec<Mount> = lines(&mounts).filter_map(Mount::parse).collect();
    // A system may have both versions mounted; the memory controller is in only one of them.
    let limits = lines(&groups).filter_map(Group::parse);
    limits.filter_map(|group| group.memory_limit_bytes(root, &mounts)).min()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the name of the file with a group's limit.
    fn limit_file(self) -> &'static str {
        match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }
}

/// The process's control group in a hierarchy that may have the memory controller.
#[derive(Debug)]
struct Group {
    version: Version,
    path: PathBuf,
}

impl Group {
    /// Parses a line of `/proc/self/cgroup`: `hierarchy:controllers:path`. The hierarchy of version
    /// 2 is 0.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let hierarchy = parts.next()?;
        let controllers = parts.next()?;
        let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
        let has_memory = controllers.split(|&byte| byte == b',').any(|name| name == b"memory");
        match hierarchy {
            b"0" if controllers.is_empty() => Some(Group { version: Version::Two, path }),
            _ if has_memory => Some(Group { version: Version::One, path }),
            _ => None,
        }
    }

    fn memory_limit_bytes(&self, root: &Path, mounts: &[Mount]) -> Option<u64> {
        let mut mounts = mounts.iter().filter(|mount| mount.version == self.version);
        let other = mounts.clone().next()?;
        let (mount, within) = mounts
            .find_map(|mount| Some((mount, self.path.strip_prefix(&mount.top).ok()?)))
            .filter(|(_, within)| {
                within.components().all(|part| matches!(part, Component::Normal(_)))
            })
            .unwrap_or((other, Path::new("")));
        let place = mount.place.strip_prefix("/").unwrap_or(&mount.place);
        let top = root.join(place);
        // The last of the ancestors is the empty path, which stands for the top of the mount.
        let folders = within.ancestors().map(|group| top.join(group));
        folders.filter_map(|folder| limit_of(&folder.join(self.version.limit_file()))).min()
    }
}

/// A mounted hierarchy of control groups that may have the memory controller.
#[derive(Debug)]
struct Mount {
    version: Version,
    /// Path of the group that is the top of the mount.
    top: PathBuf,
    place: PathBuf,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo`: `id parent device top place options fields... -
    /// type source options`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ');
        let top = words.nth(3)?;
        let place = words.next()?;
        words.find(|&word| word == b"-")?;
        let kind = words.next()?;
        let options = words.nth(1)?;
        let version = match kind {
            b"cgroup2" => Version::Two,
            b"cgroup" if options.split(|&byte| byte == b',').any(|name| name == b"memory") => {
                Version::One
            }
            _ => return None,
        };
        Some(Mount { version, top: unescaped(top).into(), place: unescaped(place).into() })
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// Decodes a word of `mountinfo`, in which a backslash and three octal digits encode a byte.
fn unescaped(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let digits =
            after.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) if *first == b'\\' => {
                let value =
                    digits.iter().fold(0, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Returns the limit in a group's file. `None` if the file does not exist or sets no limit.
fn limit_of(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().filter(|&limit| limit < LIMIT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;
    const TWO: &str =
        "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ONE: &str = "24 1 0:29 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                       33 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                       35 24 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    /// Makes a temporary directory with these files, given as path and text.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let own = [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
        memory_limit_below(tree(&[&own, files].concat()).path())
    }

    #[test]
    fn the_smallest_limit_up_to_the_top_counts_in_version_2() {
        let at = |top: &str, middle: &str, own: &str| {
            let files = [
                ("sys/fs/cgroup/memory.max", top),
                ("sys/fs/cgroup/a/memory.max", middle),
                ("sys/fs/cgroup/a/b/memory.max", own),
                ("sys/fs/cgroup/a/b/other/memory.max", "1"),
                ("sys/fs/cgroup/a/other/memory.max", "1"),
            ];
            limit("0::/a/b\n", TWO, &files)
        };
        assert_eq!(at("max\n", "max\n", "max\n"), None);
        assert_eq!(at("max\n", "max\n", "512\n"), Some(512));
        assert_eq!(at("max\n", "256\n", "512\n"), Some(256));
        assert_eq!(at("128\n", "256\n", "max\n"), Some(128));
        assert_eq!(at("max\n", "256\n", "many\n"), Some(256));
        assert_eq!(at("max\n", "", "-1\n"), None);
    }

    #[test]
    fn the_memory_controller_counts_in_version_1() {
        let groups = "9:name=systemd:/s\n4:cpu,memory:/docker/f00\n1:cpu:/c\n0::/\n";
        let at = |top: &str, own: &str| {
            let files = [
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", top),
                ("sys/fs/cgroup/memory/docker/f00/memory.limit_in_bytes", own),
                ("sys/fs/cgroup/memory/s/memory.limit_in_bytes", "1"),
                ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1"),
                ("sys/fs/cgroup/memory.limit_in_bytes", "1"),
                ("sys/fs/cgroup/memory/memory.max", "1"),
            ];
            limit(groups, ONE, &files)
        };
        let none = "9223372036854771712\n";
        assert_eq!(at(none, none), None);
        assert_eq!(at("18446744073709551615\n", none), None);
        assert_eq!(at("99999999999999999999999\n", none), None);
        assert_eq!(at(none, "512\n"), Some(512));
        assert_eq!(at("256\n", "512\n"), Some(256));
    }

    #[test]
    fn both_versions_may_be_mounted() {
        let mounts = format!("{ONE}41 24 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let groups = "4:memory:/one\n0::/two\n";
        let one = ("sys/fs/cgroup/memory/one/memory.limit_in_bytes", "512");
        let two = ("sys/fs/cgroup/unified/two/memory.max", "256");
        assert_eq!(limit(groups, &mounts, &[one]), Some(512));
        assert_eq!(limit(groups, &mounts, &[two]), Some(256));
        assert_eq!(limit(groups, &mounts, &[one, two]), Some(256));
    }

    /// Shows that the limit at the top of the mount counts if the process's path lies outside the
    /// mount. The path may be a path of the host, or lead out of the container's namespace. The top
    /// of the mount is then the container's group.
    #[test]
    fn the_top_of_the_mount_counts_where_the_path_is_another_namespaces() {
        let files = [
            ("sys/fs/cgroup/memory.max", "512"),
            ("sys/fs/cgroup/other/memory.max", "1"),
            ("sys/memory.max", "1"),
            ("memory.max", "1"),
        ];
        for path in ["/", "/docker/f00", "/../..", "/../other", "", "relative"] {
            assert_eq!(limit(&format!("0::{path}\n"), TWO, &files), Some(512), "{path:?}");
        }
        let bound = TWO.replacen(" / ", " /docker/f00 ", 1);
        for path in ["/docker/f00", "/docker/f00/inner", "/docker", "/docker/f0", "/"] {
            assert_eq!(limit(&format!("0::{path}\n"), &bound, &files), Some(512), "{path:?}");
        }
        let inner = [("sys/fs/cgroup/inner/memory.max", "256"), files[0]];
        assert_eq!(limit("0::/docker/f00/inner\n", &bound, &inner), Some(256));
    }

    /// Shows that the limit is read from the mount that contains the group, if a second mount shows
    /// another part of the hierarchy.
    #[test]
    fn the_mount_that_has_the_group_is_asked() {
        let mounts = format!("34 24 0:30 /elsewhere /mnt rw - cgroup2 cgroup2 rw\n{TWO}");
        let files = [("mnt/memory.max", "1"), ("sys/fs/cgroup/a/memory.max", "512")];
        assert_eq!(limit("0::/a\n", &mounts, &files), Some(512));
    }

    #[test]
    fn names_may_have_spaces_and_colons() {
        let mounts = "35 24 0:30 / /sys/my\\040groups\\134x rw - cgroup2 cgroup2 rw\n";
        let files = [("sys/my groups\\x/a:b c/memory.max", "512")];
        assert_eq!(limit("0::/a:b c\n", mounts, &files), Some(512));
    }

    #[test]
    fn what_is_missing_or_garbage_sets_no_limit() {
        let file = ("sys/fs/cgroup/memory.max", "512");
        assert_eq!(limit("0::/\n", TWO, &[file]), Some(512));
        for groups in ["", "\n", "0", "0:", "0::", "x:y\n", "7:memory:/\n", "\u{fffd}::/\n"] {
            let expected = (groups == "0::").then_some(512);
            assert_eq!(limit(groups, TWO, &[file]), expected, "{groups:?}");
        }
        for mounts in
            ["", "\n", "35 24 0:30 / /sys", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2", "- - - -"]
        {
            assert_eq!(limit("0::/\n", mounts, &[file]), None, "{mounts:?}");
        }
        assert_eq!(limit("0::/\n", TWO, &[]), None);
        assert_eq!(memory_limit_below(tree(&[]).path()), None);
        assert_eq!(memory_limit_below(tree(&[("proc/self/cgroup", "0::/\n"), file]).path()), None);
        assert_eq!(memory_limit_below(tree(&[("proc/self/mountinfo", TWO), file]).path()), None);
        // Not even root can read a folder as a file.
        assert_eq!(limit("0::/\n", TWO, &[("sys/fs/cgroup/memory.max/folder", "")]), None);
        let root = tree(&[("proc/self/mountinfo", TWO), file]);
        fs::create_dir(root.path().join("proc/self/cgroup")).unwrap();
        assert_eq!(memory_limit_below(root.path()), None);
    }

    #[test]
    fn the_default_is_a_quarter_of_a_small_limit() {
        assert_eq!(default_below(None), 1 << 30);
        assert_eq!(default_below(Some(1 << 40)), 1 << 30);
        assert_eq!(default_below(Some(4096 * MIB)), 1 << 30);
        assert_eq!(default_below(Some(4096 * MIB - 4)), (1 << 30) - 1);
        assert_eq!(default_below(Some(512 * MIB)), 128 * MIB);
        assert_eq!(default_below(Some(0)), DEFAULT_BUDGET_BYTES_MIN);
    }

    #[test]
    fn a_budget_above_the_limit_is_warned_of_with_both_numbers() {
        assert_eq!(warning_for(513, None), None);
        assert_eq!(warning_for(512, Some(512)), None);
        let warning = warning_for(513, Some(512)).unwrap();
        for part in ["budget of 513 bytes", "group, 512 bytes"] {
            assert!(warning.contains(part), "{warning}");
        }
    }
}
