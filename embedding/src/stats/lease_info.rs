//! The description of a lease, in lists and in the errors of Gets that the lease blocks.

use std::fmt;
use std::time::Duration;

/// Describes a lease that has not ended. If rows stay blocked,
/// [`Bank::outstanding_leases`](crate::Bank::outstanding_leases) shows which leases hold them.
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
    /// The name of the lease's table.
    pub table: String,
    /// The number of distinct keys whose clocks the lease raises.
    pub keys: usize,
    /// Time since the lease was taken.
    pub age: Duration,
    /// The thread that took the lease: the thread's name, if it has one, and an id. The id is the
    /// system's thread id if that is known.
    pub thread: String,
}

impl fmt::Display for LeaseInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, keys, age, thread } = self;
        write!(formatter, "{keys} keys of table {table:?}, for {age:.1?}, by thread {thread}")
    }
}
