//! Chooses the call that goes wrong, and how it goes wrong.
//!
//! The recorder counts every call on the recorded directory by its [`Site`], including read-only
//! calls. The call with the planned site and number meets a [`Fault`]: it fails with an error
//! number, moves fewer bytes, or reports success and does something else.

use std::collections::BTreeMap;
use std::fmt;

use libc::c_int;

use crate::parts::is_part;

/// The effect of a call, whichever C function makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the call that it is named for")]
pub enum Call {
    Open,
    Create,
    Read,
    Write,
    SetLen,
    Punch,
    Allocate,
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
    /// Returns true if the call takes room on the disk.
    fn takes_room(self) -> bool {
        matches!(
            self,
            Call::Create | Call::Write | Call::Allocate | Call::MakeDir | Call::Link | Call::Rename
        )
    }

    /// Returns true if the call opens a file or directory.
    fn opens(self) -> bool {
        matches!(self, Call::Open | Call::Create | Call::List)
    }
}

/// A kind of call and the kind of file it concerns. The store must handle every fault at every
/// site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The call.
    pub call: Call,
    /// The kind of file, derived from its path.
    pub file: &'static str,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.call, self.file)
    }
}

/// Returns the kind of file at a path from the recorded directory.
fn kind_of(path: &str) -> &'static str {
    let last = path.rsplit('/').next().unwrap_or_default();
    let kinds: [(bool, &'static str); 17] = [
        (path.is_empty(), "parent directory"),
        // The store writes a delta under a hidden name. It gives the file its own name at the end.
        (last.contains(".delta") || last.starts_with(".embank-"), "delta"),
        (!path.contains('/'), "bank directory"),
        (last == "LOCK", "LOCK"),
        (last == "BANK", "BANK"),
        (last == "BANK.new", "BANK.new"),
        (last == "log", "log directory"),
        (is_part(last), "part"),
        (last.ends_with(".seg"), "segment"),
        (last.ends_with(".new"), "segment's copy"),
        (last.starts_with("probe-"), "probe"),
        (last == "checkpoints", "checkpoints directory"),
        (last.starts_with("index."), "index image"),
        (last.starts_with("cold."), "list of parts"),
        (last == "blob", "blob"),
        (last == "manifest", "manifest"),
        (path.contains("/checkpoints/"), "checkpoint's directory"),
    ];
    kinds.into_iter().find_map(|(is, kind)| is.then_some(kind)).unwrap_or("other file")
}

/// The way in which a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The call fails with `EIO` and does nothing.
    Broken,
    /// The call fails with `ENOSPC` and does nothing.
    NoRoom,
    /// The call fails with `EINTR` and does nothing, as after a signal. The caller must repeat it.
    Interrupted,
    /// The call fails with `EMFILE` and does nothing: the process has too many open files.
    NoHandle,
    /// This call and all later calls that open a file fail with `EMFILE`.
    NoHandles,
    /// The call moves half of the bytes and reports that number.
    Short,
    /// A write reports success and stores no byte.
    Lost,
    /// A read or write uses another place of the file and reports success.
    Misdirected,
    /// A read or write flips one bit and reports success.
    Flipped,
    /// This call and all later calls that take room fail with `ENOSPC`. If the first one is a
    /// write, it stores half of its bytes.
    Full,
    /// This call and all later calls fail with `EIO`.
    Dead,
}

impl Fault {
    /// All faults.
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

    /// Returns true if this fault is possible for a call.
    #[must_use]
    pub fn can_strike(self, call: Call) -> bool {
        let moves = matches!(call, Call::Read | Call::Write);
        match self {
            Fault::Broken | Fault::Dead => true,
            // With delayed allocation, a sync may be the first call to find no room.
            Fault::NoRoom => call.takes_room() || matches!(call, Call::Sync | Call::Punch),
            Fault::Full => call.takes_room(),
            Fault::Interrupted => moves || matches!(call, Call::Open | Call::Create | Call::SetLen),
            Fault::NoHandle | Fault::NoHandles => call.opens(),
            Fault::Short | Fault::Misdirected | Fault::Flipped => moves,
            Fault::Lost => call == Call::Write,
        }
    }

    /// Returns true if the call reports success in spite of the fault.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Fault::Lost | Fault::Misdirected | Fault::Flipped)
    }

    /// Returns true if later calls go wrong too.
    #[must_use]
    pub fn lasts(self) -> bool {
        matches!(self, Fault::Full | Fault::Dead | Fault::NoHandles)
    }

    /// Returns the error number of the fault. `None` if the call reports success.
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

/// The call that is to go wrong: call `number` of its site, counted from 0. The threads of a store
/// mix the calls of different sites in another order in each run. A count within one site does not
/// depend on that order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The site of the call.
    pub site: Site,
    /// The number of earlier calls of this site.
    pub number: u64,
    /// The fault that strikes the call.
    pub fault: Fault,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} {}", self.fault, self.site, self.number)
    }
}

/// The counts of all calls, and the planned fault.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plan: Option<Plan>,
    /// The number of calls of each site.
    pub(super) calls: BTreeMap<Site, u64>,
    /// True if the planned call has come.
    pub(super) struck: bool,
}

impl Faults {
    pub(super) fn new(plan: Option<Plan>) -> Self {
        Faults { plan, ..Faults::default() }
    }

    /// Counts a call. Returns the fault that strikes it, if any.
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
            // The first write to a full disk still stores a part of its bytes.
            Fault::Full if first && call == Call::Write => Some(Fault::Short),
            Fault::Full if !call.takes_room() => None,
            Fault::NoHandles if !call.opens() => None,
            fault => Some(fault),
        }
    }
}
