//! Makes a drive slow for this process, so that reading is the slowest stage on any machine.
//!
//! A virtual drive whose host holds the file in memory reads as fast as two cores can copy. On such
//! a drive the processor limits every pipeline, so a pipeline that the disk limits can't be
//! measured. The kernel therefore throttles the drive for this process: by the controller `blkio`
//! of control groups, or by `io` in version 2 of control groups. Both need root.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const GROUP: &str = "embank-bench";

/// A control group with a slow drive, which this process has entered. Dropping the value puts the
/// process back into its previous group.
pub(super) struct SlowDrive {
    group: PathBuf,
    /// The control group that the process was in before.
    home: PathBuf,
}

impl SlowDrive {
    /// Limits this process to `bytes_per_s` bytes a second from the drive with `path`.
    pub(super) fn new(path: &Path, bytes_per_s: u64) -> Result<Self> {
        let drive = drive_of(path)?;
        let mine = fs::read_to_string("/proc/self/cgroup").context("reading one's own groups")?;
        for line in mine.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(at)) = (parts.next(), parts.next()) else { continue };
            let (root, file, limit) = match controllers {
                "blkio" => (
                    PathBuf::from("/sys/fs/cgroup/blkio"),
                    "blkio.throttle.read_bps_device",
                    format!("{drive} {bytes_per_s}"),
                ),
                "" => (
                    PathBuf::from("/sys/fs/cgroup"),
                    "io.max",
                    format!("{drive} rbps={bytes_per_s}"),
                ),
                _ => continue,
            };
            let group = root.join(GROUP);
            let home = root.join(at.trim_start_matches('/'));
            if fs::create_dir_all(&group).is_err() || !group.join(file).exists() {
                let _ = fs::remove_dir(&group);
                continue;
            }
            let slow = Self { group, home };
            fs::write(slow.group.join(file), limit)
                .and_then(|()| fs::write(slow.group.join("cgroup.procs"), own_id()))
                .with_context(|| format!("slowing drive {drive} by {}", slow.group.display()))?;
            return Ok(slow);
        }
        bail!("no control group with a limit for reading (`blkio`, or `io` of version 2; as root)")
    }
}

impl Drop for SlowDrive {
    fn drop(&mut self) {
        let back = fs::write(self.home.join("cgroup.procs"), own_id())
            .and_then(|()| fs::remove_dir(&self.group));
        if let Err(error) = back {
            eprintln!(
                "this process stays in {}, with its slow drive: {error}",
                self.group.display()
            );
        }
    }
}

fn own_id() -> String {
    std::process::id().to_string()
}

/// `major:minor` of the whole drive, because a partition has no limits of its own.
fn drive_of(path: &Path) -> Result<String> {
    let device = fs::metadata(path).with_context(|| format!("{}", path.display()))?.st_dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let whole =
        if block.join("partition").exists() { block.join("../dev") } else { block.join("dev") };
    let name = fs::read_to_string(&whole)
        .with_context(|| format!("{} lies on no drive of its own", path.display()))?;
    Ok(name.trim().to_owned())
}
