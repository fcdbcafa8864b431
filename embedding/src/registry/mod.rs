//! The leases of a table, their ages, and the expiry of old leases.
//!
//! A Get raises the staleness clock of each of its rows by 1: these are the lease's *counts*. The
//! end of the lease lowers the clocks again. Every lease is an entry of `embank_kv::Leases`. The
//! entry's state ensures that only one thread ends it. Leases expire only when a Get looks for old
//! ones. A Get looks if the oldest lease may have reached the age limit since the last look. A
//! waiting Get also looks at the time when the oldest lease reaches the limit. In a table without
//! Gets, no lease expires, so any old lease can still be used.
//!
//! Ages are measured in [`RunningTime`], so a suspension of the process makes no lease old.
//!
//! `next_look_us` is never later than the time at which the oldest lease may expire. Leases that
//! were being registered during the last look are an exception: their age began before the look
//! could see them. Such a lease may expire late, by the duration of its registration. All leases
//! have the same age limit, and a lease that is registered after the look is younger than those
//! that the look saw. A Get therefore only compares two numbers, and searches the registry about
//! once per `lease_timeout`.
//!
//! A lease knows its *taker*, the thread that took it. If a lease blocks a Get of its own taker,
//! the Get would wait for itself, unless another thread ends the lease. The registry can't know
//! this, because the owner may move a lease to another thread. Therefore the registry assumes that
//! the taker ends the lease, with two exceptions. First, the taker may have called
//! [`Lease::hand_over`](crate::Lease::hand_over). Second, some thread may have ended a lease of the
//! bank that another thread took and did not hand over. The taker of a Get ahead is the thread that
//! asked for it, and then the thread that waited for it (`lease::ahead`).
//!
//! If the disk is full, clocks can't be lowered, and the lease's counts become *owed*. Owed counts
//! are registered as a lease, so a deletion also strikes their rows. The next Get of the table
//! tries to lower these clocks.
//!
//! A deletion strikes rows from a lease. The lease's owner, or a thread that expires the lease,
//! then leaves the clocks of these rows alone (`table::deletion`).

pub(crate) mod part;
pub(crate) mod retry_turn;
pub(crate) mod turnstile;
pub(crate) mod waiting_line;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use embank_kv::locks::Mutex;
use embank_kv::{Hints, Leased, Leases, RowHints, RunningTime};

use crate::keys::UniqueKeys;
use crate::registry::part::KeyPart;
use crate::registry::turnstile::{Entered, Shut, Turnstile};
use crate::stats::lease_info::LeaseInfo;

/// A thread that has taken leases.
#[derive(Debug)]
pub(crate) struct Taker {
    /// Unique in the process: no later thread gets the number of a thread that has ended. The
    /// number selects the shard of [`Leases`] for the thread's leases.
    number: TakerNumber,
    /// The thread's name, if it has one, and its id.
    name: String,
}

/// Number of a thread that has taken leases.
pub(crate) type TakerNumber = usize;

#[derive(Debug)]
struct LeaseTaker {
    taker: Arc<Taker>,
    /// True if the taker has declared, with `hand_over`, that another thread will end the lease.
    handed_over: bool,
}

/// The contents of a lease.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    pub(crate) unique: UniqueKeys,
    /// The keys whose rows the lease holds. `None` if admission gave a row to every distinct key.
    part: Option<KeyPart>,
    /// The addresses in the store of the distinct keys' rows, as of the Get.
    hints: RowHints,
    taker: Mutex<LeaseTaker>,
    /// When the lease was taken, by the system's clock. Users see the time since then.
    taken_at: Instant,
    /// Keys of the lease whose rows were deleted. Changed only while the [`Turnstile`] is shut.
    struck: Mutex<BTreeSet<u64>>,
}

impl LeaseEntry {
    /// The keys whose rows had their clocks raised for the lease.
    fn keys(&self) -> &[u64] {
        self.part.as_ref().map_or_else(|| self.unique.keys(), |part| &part.keys)
    }

    /// True if the lease holds the row of `key`.
    fn holds(&self, key: u64) -> bool {
        self.keys().contains(&key) && !self.struck.lock().contains(&key)
    }

    /// The addresses in the store of the distinct keys' rows, as of the Get. A key whose row was
    /// not admitted has no hint.
    pub(crate) fn hints(&self) -> &RowHints {
        &self.hints
    }

    /// Time since the lease was taken, with suspensions of the process.
    pub(crate) fn age(&self) -> Duration {
        self.taken_at.elapsed()
    }

    /// Records that another thread will end the lease.
    pub(crate) fn hand_over(&self) {
        self.taker.lock().handed_over = true;
    }

    /// Makes this thread the taker of the lease.
    pub(crate) fn take_over(&self) {
        *self.taker.lock() = LeaseTaker { taker: this_thread(), handed_over: false };
    }

    /// True if this thread is expected to end the lease: it took the lease, or the lease was handed
    /// over.
    pub(crate) fn may_end_here(&self) -> bool {
        let taken = self.taker.lock();
        taken.handed_over || of_me(|me| me.number == taken.taker.number)
    }

    /// True if the thread of this number is the lease's taker, and has not handed it over.
    fn is_of(&self, number: TakerNumber) -> bool {
        let taken = self.taker.lock();
        taken.taker.number == number && !taken.handed_over
    }

    /// Returns the rows that the lease still holds.
    pub(crate) fn held(&self, _: &Entered<'_>) -> LeasedRows<'_> {
        let unique = &self.unique;
        let struck = self.struck.lock();
        if struck.is_empty() {
            let part = self.part.as_ref().map(Cow::Borrowed);
            let hints = part.is_none().then(|| self.hints.all());
            return LeasedRows { unique, part, hints, deleted: None };
        }
        let mut held = KeyPart::default();
        let mut deleted = KeyPart::default();
        for (i, &key) in self.keys().iter().enumerate() {
            let part = if struck.contains(&key) { &mut deleted } else { &mut held };
            part.keys.push(key);
            part.places.push(self.part.as_ref().map_or(i as u32, |part| part.places[i]));
        }
        LeasedRows { unique, part: Some(Cow::Owned(held)), hints: None, deleted: Some(deleted) }
    }
}

/// The rows of a lease: those that it still holds, and those that were deleted since the Get.
#[derive(Debug)]
pub(crate) struct LeasedRows<'a> {
    unique: &'a UniqueKeys,
    part: Option<Cow<'a, KeyPart>>,
    hints: Option<Hints<'a>>,
    /// The rows that were deleted; `None` if no row was.
    pub(crate) deleted: Option<KeyPart>,
}

impl LeasedRows<'_> {
    /// The keys whose rows' clocks still count the lease.
    pub(crate) fn keys(&self) -> &[u64] {
        self.part.as_ref().map_or_else(|| self.unique.keys(), |part| &part.keys)
    }

    /// The rows' addresses in the store, as of the Get. `None` if the lease does not hold the rows
    /// of all distinct keys.
    pub(crate) fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }

    /// The part of the distinct keys that the lease holds; `None` if it holds all.
    pub(crate) fn part(&self) -> Option<&KeyPart> {
        self.part.as_deref()
    }
}

/// The leases of one table.
#[derive(Debug)]
pub(crate) struct LeaseRegistry {
    leases: Leases<LeaseEntry>,
    turnstile: Turnstile,
    since: RunningTime,
    /// Time of the next look for expired leases, in microseconds after `since`.
    next_look_us: AtomicU64,
    /// Leases that have no owner. They stand for clocks that could not be lowered yet.
    owed: Mutex<VecDeque<Arc<Leased<LeaseEntry>>>>,
    /// False only if `owed` is empty.
    owes: AtomicBool,
}

impl LeaseRegistry {
    pub(crate) fn new() -> Self {
        Self {
            leases: Leases::default(),
            turnstile: Turnstile::new(),
            since: RunningTime::now(),
            next_look_us: AtomicU64::new(0),
            owed: Mutex::default(),
            owes: AtomicBool::new(false),
        }
    }

    /// Registers a lease without an owner on `keys`, whose rows' clocks could not be lowered. A
    /// later call can then try again.
    pub(crate) fn owe(&self, keys: &[u64], entered: &Entered<'_>) {
        let hints = RowHints::none_of(keys.len());
        let unique = UniqueKeys::new(keys).expect("the keys of a Get fit a batch");
        let lease = self.register(unique, None, hints, this_thread(), entered);
        // Any thread may lower these clocks, so the lease must not count as this thread's own.
        lease.what().hand_over();
        let mut owed = self.owed.lock();
        owed.push_back(lease);
        // Relaxed: all stores happen under the lock of `owed`.
        self.owes.store(true, Ordering::Relaxed);
    }

    /// True if counts may be owed.
    pub(crate) fn owes(&self) -> bool {
        // Relaxed: if a Get misses a new value, a later Get sees it.
        self.owes.load(Ordering::Relaxed)
    }

    /// Number of leases in `owed`.
    pub(crate) fn owed_count(&self) -> usize {
        self.owed.lock().len()
    }

    /// Takes the oldest owed lease. The caller must lower the clocks of its rows, and then call
    /// [`end`](Self::end).
    pub(crate) fn take_owed(&self) -> Option<Arc<Leased<LeaseEntry>>> {
        let mut owed = self.owed.lock();
        // Skips leases that have expired: another thread lowers the clocks of their rows.
        let taken = std::iter::from_fn(|| owed.pop_front()).find(|lease| lease.begin_answer());
        if owed.is_empty() {
            self.owes.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Enters the turnstile. A thread that moves clocks for a lease stays inside from before the
    /// change until the lease is registered or ended.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.turnstile.enter(of_me(|me| me.number))
    }

    /// Shuts the turnstile. A thread that deletes rows with leases keeps it shut until the rows are
    /// struck from the leases.
    pub(crate) fn shut(&self) -> Shut<'_> {
        self.turnstile.shut()
    }

    /// Strikes these deleted keys from all leases.
    pub(crate) fn strike(&self, keys: &HashSet<u64>, _: &Shut<'_>) {
        for lease in self.leases.held() {
            let lost = lease.what().keys().iter().filter(|&key| keys.contains(key));
            lease.what().struck.lock().extend(lost);
        }
    }

    /// Registers a lease of `taker` on rows whose clocks were raised.
    pub(crate) fn register(
        &self,
        unique: UniqueKeys,
        part: Option<KeyPart>,
        hints: RowHints,
        taker: Arc<Taker>,
        _: &Entered<'_>,
    ) -> Arc<Leased<LeaseEntry>> {
        let number = taker.number;
        let taker = Mutex::new(LeaseTaker { taker, handed_over: false });
        let struck = Mutex::default();
        let taken_at = Instant::now();
        let holding = LeaseEntry { unique, part, hints, taker, taken_at, struck };
        self.leases.register(holding, RunningTime::now(), number)
    }

    /// Returns the leases of thread `number` that hold the row of `key`, oldest first. Leaves out
    /// leases that the thread has handed over, and leases that expire by `deadline`. `timeout` is
    /// the age at which leases expire.
    pub(crate) fn blocking_their_taker(
        &self,
        number: TakerNumber,
        key: u64,
        timeout: Option<Duration>,
        deadline: RunningTime,
    ) -> Vec<Arc<Leased<LeaseEntry>>> {
        let mut own = self.leases.held();
        own.retain(|lease| {
            let holding = lease.what();
            let expires = timeout.is_some_and(|timeout| lease.taken() + timeout <= deadline);
            holding.is_of(number) && !expires && lease.is_held() && holding.holds(key)
        });
        own
    }

    /// True if thread `number` has taken a lease on one of `keys`, and has not handed that lease
    /// over.
    pub(crate) fn is_taken_by(&self, number: TakerNumber, keys: &HashSet<u64>) -> bool {
        self.leases.held().iter().any(|lease| {
            let holding = lease.what();
            holding.is_of(number)
                && lease.is_held()
                && holding.keys().iter().any(|key| keys.contains(key))
        })
    }

    /// Removes a lease from the registry. Its owner calls this after the clocks were lowered.
    pub(crate) fn end(&self, lease: &Leased<LeaseEntry>) {
        self.leases.end(lease);
    }

    /// True if a lease may have reached the age limit since the last look.
    pub(crate) fn look_is_due(&self, now: RunningTime) -> bool {
        // Relaxed: a thread that reads an old value only looks once more.
        self.us(now) >= self.next_look_us.load(Ordering::Relaxed)
    }

    /// Returns the next time at which a lease may reach the age limit.
    pub(crate) fn next_look(&self) -> RunningTime {
        // Relaxed: see `look_is_due`.
        self.since + Duration::from_micros(self.next_look_us.load(Ordering::Relaxed))
    }

    /// Returns the leases that expire now. The caller must lower the clocks of their rows.
    pub(crate) fn expire(
        &self,
        timeout: Duration,
        now: RunningTime,
        _: &Entered<'_>,
    ) -> Vec<Arc<Leased<LeaseEntry>>> {
        let (leases, oldest) = match now.checked_sub(timeout) {
            Some(before) => {
                let expired = self.leases.expire(before);
                (expired.leases, expired.oldest_left.map_or(now, |oldest| oldest.min(now)))
            }
            // The process has run for less than `timeout`, so no lease is that old.
            None => (Vec::new(), self.since),
        };
        self.next_look_us.store(self.us(oldest + timeout), Ordering::Relaxed);
        leases
    }

    /// Lists all leases that have not ended, oldest first. If `key` is given, lists only leases
    /// that hold the row of this key.
    pub(crate) fn list(&self, table: &str, key: Option<u64>) -> Vec<LeaseInfo> {
        let held = self.leases.held().into_iter();
        held.filter(|lease| key.is_none_or(|key| lease.what().holds(key)))
            .map(|lease| info_of(table, &lease))
            .collect()
    }

    fn us(&self, at: RunningTime) -> u64 {
        at.since(self.since).as_micros() as u64
    }
}

/// Describes a lease of table `table`.
pub(crate) fn info_of(table: &str, lease: &Leased<LeaseEntry>) -> LeaseInfo {
    let holding = lease.what();
    LeaseInfo {
        table: table.to_owned(),
        keys: holding.keys().len() - holding.struck.lock().len(),
        age: holding.age(),
        thread: holding.taker.lock().taker.name.clone(),
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The current thread as a taker of leases.
    static ME: OnceCell<Arc<Taker>> = const { OnceCell::new() };
}

/// Calls `read` with this thread's entry. A thread that is ending may have lost its entry, because
/// another thread local can drop a lease late. Such a thread gets a new entry for each call, and no
/// lease counts as its own.
fn of_me<T>(read: impl Fn(&Arc<Taker>) -> T) -> T {
    let new = || {
        // Relaxed: only the number itself matters.
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Taker { number, name: name_of_this_thread() })
    };
    ME.try_with(|me| read(me.get_or_init(new))).unwrap_or_else(|_| read(&new()))
}

/// Returns this thread as a taker of leases.
pub(crate) fn this_thread() -> Arc<Taker> {
    of_me(Arc::clone)
}

/// Returns the number of this thread as a taker of leases.
pub(crate) fn this_number() -> TakerNumber {
    of_me(|me| me.number)
}

fn name_of_this_thread() -> String {
    let thread = std::thread::current();
    // The link is "<process>/task/<thread>". The last part is the id that debuggers and Python's
    // `threading.get_native_id` show.
    let link = std::fs::read_link("/proc/thread-self").ok();
    let id = link
        .as_ref()
        .and_then(|path| path.file_name()?.to_str())
        .map_or_else(|| format!("{:?}", thread.id()), |id| format!("id {id}"));
    thread.name().map_or_else(|| format!("with {id}"), |name| format!("{name} ({id})"))
}
