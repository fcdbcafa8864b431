//! Calls that go wrong: which one, and how.
//!
//! Every call about the recorded directory is counted, those that only look included. One of them,
//! by its number, meets a [`Fault`]: it fails with an error number, or moves fewer bytes, or
//! reports success and does something else.

use std::collections::BTreeMap;
use std::fmt;

use libc::c_int;

/// What a call does, whatever the C library's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the call that it is named for")]
pub enum Call {
    Open,
    Create,
    Read,
    Write,
    SetLen,
    Punch,
    Sync,
    MakeDir,
    Remove,
    RemoveDir,
    Rename,
    Link,
    Lock,
    List,
    ListNext,
    Stat,
}

impl Call {
    /// Whether it takes room on the disk.
    fn takes_room(self) -> bool {
        matches!(self, Call::Create | Call::Write | Call::MakeDir | Call::Link | Call::Rename)
    }

    /// Whether a file or directory is open afterwards.
    fn opens(self) -> bool {
        matches!(self, Call::Open | Call::Create | Call::List)
    }
}

/// A call and the kind of file that it was about: what the store must have an answer for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The call.
    pub call: Call,
    /// The kind of file, by its path.
    pub file: &'static str,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.call, self.file)
    }
}

/// The kind of file that a path from the recorded directory names.
fn kind_of(path: &str) -> &'static str {
    let last = path.rsplit('/').next().unwrap_or_default();
    let kinds: [(bool, &'static str); 15] = [
        (path.is_empty(), "parent directory"),
        // A delta is written under a hidden name.
        (last.contains(".delta") || last.starts_with(".embank-"), "delta"),
        (!path.contains('/'), "bank directory"),
        (last == "LOCK", "LOCK"),
        (last == "BANK", "BANK"),
        (last == "BANK.new", "BANK.new"),
        (last == "log", "log directory"),
        (last.ends_with(".seg"), "segment"),
        (last.ends_with(".new"), "segment's copy"),
        (last.starts_with("probe-"), "probe"),
        (last == "checkpoints", "checkpoints directory"),
        (last.starts_with("index."), "index image"),
        (last == "blob", "blob"),
        (last == "manifest", "manifest"),
        (path.contains("/checkpoints/"), "checkpoint's directory"),
    ];
    kinds.into_iter().find_map(|(is, kind)| is.then_some(kind)).unwrap_or("other file")
}

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// It fails with `EIO` and does nothing.
    Broken,
    /// It fails with `ENOSPC` and does nothing.
    NoRoom,
    /// It fails with `EINTR` and does nothing, as after a signal: the caller is to make it again.
    Interrupted,
    /// It fails with `EMFILE` and does nothing: the process has too many files open.
    NoHandle,
    /// From this call on, everything that opens a file fails with `EMFILE`.
    NoHandles,
    /// It moves half of the bytes and says so.
    Short,
    /// A write that is reported done, and nothing of it is there.
    Lost,
    /// A write or read of another place of the file, reported as if it were the right one.
    Misdirected,
    /// One bit is not what was written, or not what is read.
    Flipped,
    /// From this call on, everything that takes room fails with `ENOSPC`; the first write moves
    /// half of its bytes.
    Full,
    /// From this call on, everything fails with `EIO`.
    Dead,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 11] = [
        Fault::Broken,
        Fault::NoRoom,
        Fault::Interrupted,
        Fault::NoHandle,
        Fault::NoHandles,
        Fault::Short,
        Fault::Lost,
        Fault::Misdirected,
        Fault::Flipped,
        Fault::Full,
        Fault::Dead,
    ];

    /// Whether a call can go wrong like this.
    #[must_use]
    pub fn can_strike(self, call: Call) -> bool {
        let moves = matches!(call, Call::Read | Call::Write);
        match self {
            Fault::Broken | Fault::Dead => true,
            // A delayed allocation that finds no room shows in a sync.
            Fault::NoRoom => call.takes_room() || matches!(call, Call::Sync | Call::Punch),
            Fault::Full => call.takes_room(),
            Fault::Interrupted => moves || matches!(call, Call::Open | Call::Create | Call::SetLen),
            Fault::NoHandle | Fault::NoHandles => call.opens(),
            Fault::Short | Fault::Misdirected | Fault::Flipped => moves,
            Fault::Lost => call == Call::Write,
        }
    }

    /// Whether the caller is told that all went well.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Fault::Lost | Fault::Misdirected | Fault::Flipped)
    }

    /// Whether later calls go wrong too.
    #[must_use]
    pub fn lasts(self) -> bool {
        matches!(self, Fault::Full | Fault::Dead | Fault::NoHandles)
    }

    /// The error number, for those that have one.
    pub(super) fn errno(self) -> Option<c_int> {
        match self {
            Fault::Broken | Fault::Dead => Some(libc::EIO),
            Fault::NoRoom | Fault::Full => Some(libc::ENOSPC),
            Fault::Interrupted => Some(libc::EINTR),
            Fault::NoHandle | Fault::NoHandles => Some(libc::EMFILE),
            Fault::Short | Fault::Lost | Fault::Misdirected | Fault::Flipped => None,
        }
    }
}

/// The call that is to go wrong: the one of this number, from 0, at its site. So numbered, it is
/// the same one in every run, whatever the order between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub site: Site,
    /// Calls of this site before it.
    pub number: u64,
    /// How.
    pub fault: Fault,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} {}", self.fault, self.site, self.number)
    }
}

/// The calls so far, and the one that goes wrong.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plan: Option<Plan>,
    /// How many calls of each site there have been.
    pub(super) calls: BTreeMap<Site, u64>,
    /// Whether the planned call has come.
    pub(super) struck: bool,
}

impl Faults {
    pub(super) fn new(plan: Option<Plan>) -> Self {
        Faults { plan, ..Faults::default() }
    }

    /// Counts a call; how it goes wrong, if it does.
    pub(super) fn meet(&mut self, call: Call, path: &str) -> Option<Fault> {
        let site = Site { call, file: kind_of(path) };
        let calls = self.calls.entry(site).or_default();
        let number = *calls;
        *calls += 1;
        let Plan { site: at, number: chosen, fault } = self.plan?;
        let first = !self.struck && (site, number) == (at, chosen);
        self.struck |= first;
        if !(first || self.struck && fault.lasts()) {
            return None;
        }
        match fault {
            // A disk that fills up takes a part of the write in which it does.
            Fault::Full if first && call == Call::Write => Some(Fault::Short),
            Fault::Full if !call.takes_room() => None,
            Fault::NoHandles if !call.opens() => None,
            fault => Some(fault),
        }
    }
}
