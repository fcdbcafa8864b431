//! Who holds leases of a table, since when, and when the old ones expire.
//!
//! Every lease is an entry of `embank_kv::Leases`, whose states decide who brings its counts down. Leases expire only
//! when somebody looks: a Get looks when the oldest lease may have come of age since the last look, and a Get
//! that waits looks whenever the oldest comes of age. Nobody looks at a table that nobody gets rows of, so there
//! a lease may be answered however old it is.
//!
//! `next_look_us` is never later than when the oldest lease comes of age: a lease that is registered after a look was
//! taken after it, for all leases have the same time. So a Get compares two numbers, and the registry is gone
//! through about once per `lease_timeout`.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use embank_kv::{Leased, Leases};

use crate::admission::HeldPart;
use crate::unique::UniqueKeys;

/// A lease that is out: what to look for when rows stay blocked.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
/// let table = bank.table("user", embank::TableConfig::new(1))?;
/// let lease = table.get(&[7, 8, 7], &mut [0.0; 3])?;
/// let held = &bank.outstanding_leases()[0];
/// assert_eq!((held.table.as_str(), held.keys), ("user", 2));
/// println!("{held}"); // 2 keys of table "user", for 21µs, by thread main (id 4711)
/// drop(lease);
/// assert!(bank.outstanding_leases().is_empty());
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The table.
    pub table: String,
    /// Distinct keys whose clocks it holds up.
    pub keys: usize,
    /// How long ago it was taken.
    pub age: Duration,
    /// The thread that took it: its name, if it has one, and its id, the system's where that is known.
    pub thread: String,
}

impl std::fmt::Display for LeaseInfo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { table, keys, age, thread } = self;
        write!(formatter, "{keys} keys of table {table:?}, for {age:.1?}, by thread {thread}")
    }
}

/// What is known of a lease.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) unique: UniqueKeys,
    /// The keys whose rows it holds, if some were not admitted.
    pub(crate) part: Option<HeldPart>,
    thread: Arc<str>,
}

impl Holding {
    /// The keys whose clocks it holds up.
    pub(crate) fn held_keys(&self) -> &[u64] {
        self.part.as_ref().map_or_else(|| self.unique.keys(), |part| &part.keys)
    }
}

/// The leases of a table.
#[derive(Debug)]
pub(crate) struct Holders {
    leases: Leases<Holding>,
    since: Instant,
    /// Microseconds after `since`.
    next_look_us: AtomicU64,
}

impl Holders {
    pub(crate) fn new() -> Self {
        Self { leases: Leases::default(), since: Instant::now(), next_look_us: AtomicU64::new(0) }
    }

    /// Registers the lease on rows whose clocks are up.
    pub(crate) fn register(
        &self,
        unique: UniqueKeys,
        part: Option<HeldPart>,
    ) -> Arc<Leased<Holding>> {
        ME.with(|me| {
            let (number, thread) = me.get_or_init(|| {
                // Relaxed: nothing but a number.
                (THREADS.fetch_add(1, Ordering::Relaxed), name_of_this_thread().into())
            });
            let holding = Holding { unique, part, thread: Arc::clone(thread) };
            self.leases.register(holding, Instant::now(), *number)
        })
    }

    /// For the owner, when its lease is answered.
    pub(crate) fn end(&self, lease: &Leased<Holding>) {
        self.leases.end(lease);
    }

    /// Whether a lease may have come of age since the last look.
    pub(crate) fn look_is_due(&self, now: Instant) -> bool {
        // Relaxed: who sees an old value looks once more.
        self.us(now) >= self.next_look_us.load(Ordering::Relaxed)
    }

    /// The leases that expire now, whose counts the caller has to give back, and when to look again.
    pub(crate) fn expire(
        &self,
        timeout: Duration,
        now: Instant,
    ) -> (Vec<Arc<Leased<Holding>>>, Instant) {
        let Some(before) = now.checked_sub(timeout) else { return (Vec::new(), now + timeout) };
        let expired = self.leases.expire(before);
        let oldest = expired.oldest_left.map_or(now, |oldest| oldest.min(now));
        let next_look = oldest.checked_add(timeout).unwrap_or(oldest);
        self.next_look_us.store(self.us(next_look), Ordering::Relaxed);
        (expired.leases, next_look)
    }

    /// All leases that are out, the oldest first; with a key, only those that hold it.
    pub(crate) fn list(&self, table: &str, key: Option<u64>, now: Instant) -> Vec<LeaseInfo> {
        let holds = |lease: &Leased<Holding>, key| lease.what().held_keys().contains(&key);
        let held = self.leases.held().into_iter();
        held.filter(|lease| key.is_none_or(|key| holds(lease, key)))
            .map(|lease| LeaseInfo {
                table: table.to_owned(),
                keys: lease.what().held_keys().len(),
                age: now.saturating_duration_since(lease.taken()),
                thread: lease.what().thread.to_string(),
            })
            .collect()
    }

    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_micros() as u64
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's number, which spreads threads over the registry, and its name.
    static ME: OnceCell<(usize, Arc<str>)> = const { OnceCell::new() };
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
