//! The system's figures for this process, the machine and the source tree.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The bytes that the process has read from and written to storage, and the memory that it holds. A
/// field is `None` if the system does not report it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Bytes read from storage (`/proc/self/io`), without reads that the page cache served.
    pub(crate) storage_read_bytes: Option<u64>,
    /// Bytes written to storage.
    pub(crate) storage_write_bytes: Option<u64>,
    /// Resident private memory.
    pub(crate) memory_own_bytes: Option<u64>,
    /// Resident mapped files, which are pages of the page cache.
    pub(crate) memory_files_bytes: Option<u64>,
}

impl Usage {
    /// Returns the bytes read and written since `before`, and the memory that the process holds
    /// now.
    pub(crate) fn since(self, before: &Usage) -> Usage {
        let minus = |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?));
        Usage {
            storage_read_bytes: minus(self.storage_read_bytes, before.storage_read_bytes),
            storage_write_bytes: minus(self.storage_write_bytes, before.storage_write_bytes),
            ..self
        }
    }
}

/// Returns the bytes that the process has read and written so far, and the memory that it holds.
pub(crate) fn usage() -> Usage {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name| Some(number(&status, name)? << 10);
    Usage {
        storage_read_bytes: number(&io, "read_bytes"),
        storage_write_bytes: number(&io, "write_bytes"),
        memory_own_bytes: kib("RssAnon"),
        memory_files_bytes: kib("RssFile"),
    }
}

fn number(listing: &str, name: &str) -> Option<u64> {
    field(listing, name)?.split_whitespace().next()?.parse().ok()
}

/// Returns the value of `name : value` in a listing of the kernel.
fn field<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    listing.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Returns a line that names the processor, its cores and cache, the memory and the kernel.
pub(crate) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let cache = cache.map_or("unknown".to_owned(), |text| text.trim().to_owned());
    let memory = number(&meminfo, "MemTotal").map_or(0, |kib| kib.div_ceil(1 << 20));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, L3 {cache}, {memory} GiB, kernel {}", kernel.trim())
}

/// Returns the bytes of memory that a program can take without paging.
pub(crate) fn memory_available_bytes() -> Option<u64> {
    Some(number(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")? << 10)
}

/// Returns the commit of the source tree, with a mark if the tree has changes.
pub(crate) fn commit() -> String {
    let git = |args: &[&str]| -> Option<String> {
        let mut command = Command::new("git");
        let output = command.args(["-C", env!("CARGO_MANIFEST_DIR")]).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown (no git repository)".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with uncommitted changes"),
    }
}
