//! The hybrid-log store under Embank: bytes in, bytes out.
#![expect(missing_docs, unused, reason = "interface stub")]
pub mod device;
mod error;
pub use device::DeviceChoice;
pub use error::{Error, Result};
use std::{path::{Path, PathBuf}, time::{Duration, Instant}};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u16);

#[derive(Debug, Clone)]
pub struct StoreOptions {
    pub memory_budget_bytes: u64,
    pub device: DeviceChoice,
    pub checkpoints_kept: usize,
    /// None: follows from the budget
    pub page_size_bytes: Option<u32>,
}
impl Default for StoreOptions {
    fn default() -> Self { Self { memory_budget_bytes: 1 << 30, device: DeviceChoice::Auto, checkpoints_kept: 2, page_size_bytes: None } }
}
#[derive(Debug, Clone)]
pub struct TableInfo { pub id: TableId, pub name: String, pub value_bytes: u32, pub descriptor: Vec<u8> }

/// What an operation does to a row that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads; moves nothing, writes nothing, touches no clock.
    Peek,
    /// Reads; brings the row into mutable memory.
    Get,
    /// Reads and changes the value under the record's lock.
    Update,
    /// Replaces the whole value; `update` gets a buffer of unspecified content and fills all of it.
    Put,
}
/// What the operation does to the row's staleness clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Keep,
    /// Up by one, unless more than `bound` are outstanding (then the row is reported blocked).
    Acquire { bound: Option<u32> },
    /// Down by one (not below zero).
    Release,
}
/// One batch operation; `i` is the key's place in the batch. Slices are 8-byte aligned, `value_bytes` long.
pub trait Operation {
    const ACCESS: Access;
    /// Called for `Peek` and `Get` with the row's value. Called at most once per successful key.
    fn read(&mut self, i: usize, value: &[u8]) { let _ = (i, value); }
    /// Called for `Update` and `Put`.
    fn update(&mut self, i: usize, value: &mut [u8]) { let _ = (i, value); }
    /// The row is missing: fill a new one and return true, or return false to leave it missing.
    /// Never called for `Peek` (a missing row there is only reported). `read`/`update` are not called after an insert.
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool { let _ = (i, value); false }
}
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    /// Places in the batch whose row is missing (and was not inserted). Ascending? no: any order.
    pub missing: Vec<u32>,
    /// Places in the batch that the staleness bound kept from being acquired. They were not touched.
    pub blocked: Vec<u32>,
    /// Rows that had to be read from disk
    pub disk_reads: u64,
}
#[derive(Debug, Default, Clone)]
pub struct Promoted { pub moved: u64, pub resident: u64, pub missing: u64, /// a Get was faster
    pub overtaken: u64 }
#[derive(Debug, Clone)]
pub struct Recovered { pub checkpoint: u64, pub blob: Vec<u8> }

/// Counters since open; all monotonic unless said.
#[derive(Debug, Default, Clone)]
pub struct StoreStats {
    pub device: &'static str,
    // rows found, by region
    pub hits_mutable: u64, pub hits_read_only: u64, pub hits_disk: u64, pub missing: u64, pub inserted: u64,
    pub records_appended: u64, pub copied_to_tail: u64,
    pub disk_reads: u64, pub disk_read_bytes: u64, pub disk_write_bytes: u64,
    pub promoted: u64, pub promoted_used: u64, pub promoted_wasted: u64, pub overtaken: u64,
    pub page_waits: u64,
    // gauges
    pub memory_budget_bytes: u64, pub memory_frames_bytes: u64, pub memory_index_bytes: u64, pub memory_buffers_bytes: u64,
    pub index_entries: u64, pub log_begin: u64, pub log_head: u64, pub log_read_only: u64, pub log_tail: u64, pub page_size_bytes: u64,
    pub checkpoints: u64, pub last_checkpoint_us: u64,
}
/// The state of a stripe of clocks before an attempt; see `Store::wait_released`.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseTicket(u64);

#[derive(Debug)]
pub struct Store;
impl Store {
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Store> { todo!() }
    pub fn recovered(&self) -> Option<&Recovered> { todo!() }
    /// New table; the descriptor is the caller's own. Durable with the next checkpoint.
    pub fn create_table(&self, name: &str, value_bytes: u32, descriptor: &[u8]) -> Result<TableId> { todo!() }
    pub fn tables(&self) -> Vec<TableInfo> { todo!() }
    /// Keys must be distinct within the batch when `clock` is Acquire or Release
    pub fn execute<O: Operation>(&self, table: TableId, keys: &[u64], clock: Clock, op: &mut O) -> Result<Outcome> { todo!() }
    /// number of rows that were there
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> { todo!() }
    /// Appends the keys whose newest record is not in memory. Never reads the disk.
    pub fn on_disk(&self, table: TableId, keys: &[u64], out: &mut Vec<u64>) -> Result<()> { todo!() }
    /// Brings rows from disk into mutable memory, clocks kept.
    pub fn promote(&self, table: TableId, keys: &[u64]) -> Result<Promoted> { todo!() }
    /// Take a ticket before an Acquire; if it came back blocked, wait until some release in the key's stripe.
    pub fn release_ticket(&self, table: TableId, key: u64) -> ReleaseTicket { todo!() }
    /// false: deadline passed
    pub fn wait_released(&self, table: TableId, key: u64, ticket: ReleaseTicket, deadline: Instant) -> bool { todo!() }
    /// The outstanding Gets of a row; None if missing. Reads disk if it must.
    pub fn clock_of(&self, table: TableId, key: u64) -> Result<Option<u32>> { todo!() }
    pub fn checkpoint(&self, blob: &[u8]) -> Result<u64> { todo!() }
    pub fn stats(&self) -> StoreStats { todo!() }
    /// framed and checksummed metadata: `metadata::encode/decode` (bincode) lives in kv
    pub fn path(&self) -> &Path { todo!() }
}
/// Framed, versioned, checksummed bincode; the only place that knows bincode.
pub mod metadata {
    pub use bincode::{Decode, Encode};
    pub fn encode<T: Encode>(value: &T) -> Vec<u8> { todo!() }
    pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, String> { todo!() }
}
