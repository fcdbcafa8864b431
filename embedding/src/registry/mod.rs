//! The leases of a table, their ages, and when old ones expire.
//!
//! Every lease is an entry of `embank_kv::Leases`, whose states decide which thread brings its
//! counts down. Leases expire only when a Get looks: it looks if the oldest lease may have come of
//! age since the last look, and a waiting Get looks whenever the oldest lease comes of age. In a
//! table without Gets no lease expires, so a lease may be answered however old it is.
//!
//! `next_look_us` is not later than the time at which the oldest lease may expire. Leases that were
//! being registered during the look are an exception: their time was taken before they could be
//! seen, so they may expire late by as much. Leases that are registered later were also taken
//! later, and all leases have the same time to live. So a Get compares two numbers, and the
//! registry is searched about once in a `lease_timeout`.
//!
//! A lease knows its *taker*, the thread that took it. A Get of that thread that would wait for the
//! lease would wait for itself, unless another thread ends the lease meanwhile. Whether one will
//! cannot be seen: a lease may be moved to another thread, and is at the same address in both. So a
//! lease counts as one that its taker ends itself, unless the taker has said otherwise
//! ([`Lease::hand_over`](crate::Lease::hand_over)), or some lease of the bank has been ended by
//! another thread than its taker before.
//!
//! A release that finds the disk full leaves its counts *owed*: they are a lease of their own, so
//! that a deletion strikes them too, and the next Get of the table tries to give them back.
//!
//! A lease can lose rows to a deletion. Its owner and a thread that expires it then leave the
//! clocks of these rows alone (`deletion`).

pub(crate) mod deadline;
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
use embank_kv::{Hints, Leased, Leases, RowHints};

use crate::keys::UniqueKeys;
use crate::registry::part::KeyPart;
use crate::registry::turnstile::{Entered, Shut, Turnstile};
use crate::stats::lease_info::LeaseInfo;

/// A thread that takes leases.
#[derive(Debug)]
pub(crate) struct Taker {
    /// No other thread of the process ever has this number. It spreads threads over the registry.
    number: usize,
    /// The thread's name, if it has one, with its id.
    name: String,
}

/// The facts about a lease.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    pub(crate) unique: UniqueKeys,
    /// The keys whose rows it holds, if some were not admitted.
    part: Option<KeyPart>,
    /// Where the rows of the distinct keys lay after the Get.
    hints: RowHints,
    taker: Arc<Taker>,
    /// True if the taker has said that another thread ends the lease.
    handed_over: AtomicBool,
    /// The rows of the lease that were deleted. Changes only while the turnstile is shut.
    struck: Mutex<BTreeSet<u64>>,
}

impl LeaseEntry {
    /// The keys whose clocks the lease took up.
    fn keys(&self) -> &[u64] {
        self.part.as_ref().map_or_else(|| self.unique.keys(), |part| &part.keys)
    }

    /// True if the lease holds the row of `key`.
    fn holds(&self, key: u64) -> bool {
        self.keys().contains(&key) && !self.struck.lock().contains(&key)
    }

    /// Notes that another thread ends the lease.
    pub(crate) fn hand_over(&self) {
        // Relaxed: no other data depends on it, and the taker sees its own store.
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether this thread took it.
    pub(crate) fn is_taken_here(&self) -> bool {
        of_me(|me| me.number == self.taker.number)
    }

    /// The rows that the lease still holds.
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

/// The rows of a lease. Some may be deleted.
#[derive(Debug)]
pub(crate) struct LeasedRows<'a> {
    unique: &'a UniqueKeys,
    part: Option<Cow<'a, KeyPart>>,
    hints: Option<Hints<'a>>,
    /// Those that were deleted.
    pub(crate) deleted: Option<KeyPart>,
}

impl LeasedRows<'_> {
    /// The keys whose clocks the lease holds up.
    pub(crate) fn keys(&self) -> &[u64] {
        self.part.as_ref().map_or_else(|| self.unique.keys(), |part| &part.keys)
    }

    /// Where the rows lay after the Get; `None` if these are only a part of the distinct keys.
    pub(crate) fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }

    /// The part of the distinct keys that these are; `None` if they are all.
    pub(crate) fn part(&self) -> Option<&KeyPart> {
        self.part.as_deref()
    }
}

/// The leases of a table.
#[derive(Debug)]
pub(crate) struct LeaseRegistry {
    leases: Leases<LeaseEntry>,
    turnstile: Turnstile,
    since: Instant,
    /// Microseconds after `since`.
    next_look_us: AtomicU64,
    /// Leases whose owners are gone and whose counts could not be given back yet.
    owed: Mutex<VecDeque<Arc<Leased<LeaseEntry>>>>,
    /// False only if `owed` is empty.
    owes: AtomicBool,
}

impl LeaseRegistry {
    pub(crate) fn new() -> Self {
        Self {
            leases: Leases::default(),
            turnstile: Turnstile::new(),
            since: Instant::now(),
            next_look_us: AtomicU64::new(0),
            owed: Mutex::default(),
            owes: AtomicBool::new(false),
        }
    }

    /// Keeps the counts of `keys`, which could not be given back, for a later attempt.
    pub(crate) fn owe(&self, keys: &[u64], entered: &Entered<'_>) {
        let hints = RowHints::none_of(keys.len());
        let lease = self.register(UniqueKeys::new(keys), None, hints, entered);
        // Not this thread's to end.
        lease.what().hand_over();
        let mut owed = self.owed.lock();
        owed.push_back(lease);
        // Stored under the lock, as in `take_owed`, so Relaxed is enough.
        self.owes.store(true, Ordering::Relaxed);
    }

    /// True if counts may wait to be given back.
    pub(crate) fn owes(&self) -> bool {
        // Relaxed: a Get may miss a new one, and a later Get sees it.
        self.owes.load(Ordering::Relaxed)
    }

    /// The leases that are owed.
    pub(crate) fn owed_count(&self) -> usize {
        self.owed.lock().len()
    }

    /// The oldest owed lease. The caller gives its counts back, and then [ends](Self::end) it.
    pub(crate) fn take_owed(&self) -> Option<Arc<Leased<LeaseEntry>>> {
        let mut owed = self.owed.lock();
        // If it has expired since, the thread that found it gives its counts back.
        let taken = std::iter::from_fn(|| owed.pop_front()).find(|lease| lease.begin_answer());
        if owed.is_empty() {
            self.owes.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Held by a thread that moves clocks for a lease, from before the change until the lease is
    /// registered or answered.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.turnstile.enter(of_me(|me| me.number))
    }

    /// Held by a thread that deletes rows with leases on them, until the rows are struck from the
    /// leases.
    pub(crate) fn shut(&self) -> Shut<'_> {
        self.turnstile.shut()
    }

    /// Removes these deleted rows from all leases.
    pub(crate) fn strike(&self, keys: &HashSet<u64>, _: &Shut<'_>) {
        for lease in self.leases.held() {
            let lost = lease.what().keys().iter().filter(|&key| keys.contains(key));
            lease.what().struck.lock().extend(lost);
        }
    }

    /// Registers the lease on rows whose clocks are up.
    pub(crate) fn register(
        &self,
        unique: UniqueKeys,
        part: Option<KeyPart>,
        hints: RowHints,
        _: &Entered<'_>,
    ) -> Arc<Leased<LeaseEntry>> {
        let taker = of_me(Arc::clone);
        let number = taker.number;
        let handed_over = AtomicBool::new(false);
        let struck = Mutex::default();
        let holding = LeaseEntry { unique, part, hints, taker, handed_over, struck };
        self.leases.register(holding, Instant::now(), number)
    }

    /// The leases of this thread that hold the row of `key` and that nothing is known to end before
    /// the deadline while this thread waits. The oldest comes first. `timeout` is the age at which
    /// leases expire. It can be added to any time of the session without overflow.
    pub(crate) fn blocking_their_taker(
        &self,
        key: u64,
        timeout: Option<Duration>,
        deadline: Instant,
    ) -> Vec<Arc<Leased<LeaseEntry>>> {
        let number = of_me(|me| me.number);
        let mut own = self.leases.of_thread(number);
        own.retain(|lease| {
            let holding = lease.what();
            let expires = timeout.is_some_and(|timeout| lease.taken() + timeout <= deadline);
            // Relaxed: as in `hand_over`.
            let is_own =
                holding.taker.number == number && !holding.handed_over.load(Ordering::Relaxed);
            is_own && !expires && lease.is_held() && holding.holds(key)
        });
        own.sort_by_key(|lease| lease.taken());
        own
    }

    /// True if this thread has a lease on one of `keys` that no other thread is known to end.
    pub(crate) fn is_taken_here(&self, keys: &HashSet<u64>) -> bool {
        let number = of_me(|me| me.number);
        self.leases.of_thread(number).iter().any(|lease| {
            let holding = lease.what();
            // Relaxed: as in `hand_over`.
            holding.taker.number == number
                && !holding.handed_over.load(Ordering::Relaxed)
                && lease.is_held()
                && holding.keys().iter().any(|key| keys.contains(key))
        })
    }

    /// Called by the owner when its lease is answered.
    pub(crate) fn end(&self, lease: &Leased<LeaseEntry>) {
        self.leases.end(lease);
    }

    /// True if a lease may have reached the age limit since the last look.
    pub(crate) fn look_is_due(&self, now: Instant) -> bool {
        // Relaxed: a thread that sees an old value looks once more.
        self.us(now) >= self.next_look_us.load(Ordering::Relaxed)
    }

    /// The next time at which a lease may reach the age limit.
    pub(crate) fn next_look(&self) -> Instant {
        // Relaxed: as in `look_is_due`. The sum can be represented, because it was computed from a
        // time.
        self.since + Duration::from_micros(self.next_look_us.load(Ordering::Relaxed))
    }

    /// The leases that expire now. The caller must give their counts back. `timeout` can be added
    /// to any time of the session without overflow.
    pub(crate) fn expire(
        &self,
        timeout: Duration,
        now: Instant,
        _: &Entered<'_>,
    ) -> Vec<Arc<Leased<LeaseEntry>>> {
        let (leases, oldest) = match now.checked_sub(timeout) {
            Some(before) => {
                let expired = self.leases.expire(before);
                (expired.leases, expired.oldest_left.map_or(now, |oldest| oldest.min(now)))
            }
            // The session is younger than the timeout.
            None => (Vec::new(), self.since),
        };
        self.next_look_us.store(self.us(oldest + timeout), Ordering::Relaxed);
        leases
    }

    /// All leases that have not ended, the oldest first. With a key, only those that hold its row.
    pub(crate) fn list(&self, table: &str, key: Option<u64>, now: Instant) -> Vec<LeaseInfo> {
        let held = self.leases.held().into_iter();
        held.filter(|lease| key.is_none_or(|key| lease.what().holds(key)))
            .map(|lease| info_of(table, &lease, now))
            .collect()
    }

    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_micros() as u64
    }
}

/// The description of a lease of table `table` at `now`.
pub(crate) fn info_of(table: &str, lease: &Leased<LeaseEntry>, now: Instant) -> LeaseInfo {
    let holding = lease.what();
    LeaseInfo {
        table: table.to_owned(),
        keys: holding.keys().len() - holding.struck.lock().len(),
        age: now.saturating_duration_since(lease.taken()),
        thread: holding.taker.name.clone(),
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread.
    static ME: OnceCell<Arc<Taker>> = const { OnceCell::new() };
}

/// Reads this thread's entry. A thread that is ending may have no place for one any more, because a
/// lease in another thread local can be dropped late: it then has a new entry for each call, and no
/// lease counts as its own.
fn of_me<T>(read: impl Fn(&Arc<Taker>) -> T) -> T {
    let new = || {
        // Relaxed: nothing but a number.
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Taker { number, name: name_of_this_thread() })
    };
    ME.try_with(|me| read(me.get_or_init(new))).unwrap_or_else(|_| read(&new()))
}

fn name_of_this_thread() -> String {
    let thread = std::thread::current();
    // "<process>/task/<thread>", the id that debuggers and Python's `threading.get_native_id` give.
    let link = std::fs::read_link("/proc/thread-self").ok();
    let id = link
        .as_ref()
        .and_then(|path| path.file_name()?.to_str())
        .map_or_else(|| format!("{:?}", thread.id()), |id| format!("id {id}"));
    thread.name().map_or_else(|| format!("with {id}"), |name| format!("{name} ({id})"))
}
