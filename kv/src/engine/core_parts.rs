//! Makes the core of a store in the state of a checkpoint.

use crate::cache::ReadCache;
use crate::checkpoint::lineage::Lineage;
use crate::checkpoint::manifest::Manifest;
use crate::device::contract::Device;
use crate::engine::core::Core;
use crate::engine::retention::Retention;
use crate::engine::space::Space;
use crate::engine::tables::{Named, Tables};
use crate::engine::waiters::Waiters;
use crate::epoch::Gate;
use crate::error::Result;
use crate::hints::StoreNumber;
use crate::index::Index;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::log::{Extent, Log};
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;
use crate::process::home::Home;
use crate::record::hash::KeyHash;
use crate::record::layout::{VALUE_BYTES_MAX, record_bytes};
use crate::stats::Counters;
use std::sync::Arc;

/// The parts of a core that do not come from a checkpoint's manifest.
pub(crate) struct CoreParts {
    pub(crate) index: Index,
    pub(crate) budget: Arc<Budget>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) space: Space,
    /// For each table number, the checkpoints that have the table.
    pub(crate) named: Named,
    /// The incarnation of each table's number, in the order of the manifest's tables. The list may
    /// be shorter: the remaining numbers have incarnation 0.
    pub(crate) incarnations: Vec<u32>,
}

impl Core {
    /// Makes a core in the state of a checkpoint. The whole log of the checkpoint is on the device.
    pub(crate) fn new(parts: CoreParts, manifest: &Manifest, lineage: Lineage) -> Result<Core> {
        let CoreParts { index, budget, device, counters, waiters, space, .. } = parts;
        let extent = Extent {
            page_bits: manifest.page_bits,
            begin: manifest.log_begin,
            tail_page: manifest.log_end >> manifest.page_bits,
        };
        let log = Log::new(
            Arc::clone(&budget),
            device,
            Arc::clone(&counters),
            lineage,
            extent,
            Arc::clone(space.signal()),
        )?;
        let read_bytes = Budget::read_buffer_bytes_for(budget.total_bytes());
        let buffers = Buffers::new(read_bytes as usize, 1 << manifest.page_bits);
        let record_bytes_max = record_bytes_max(&log, &buffers);
        let tables = Tables::new(manifest, &parts.incarnations, &parts.named, record_bytes_max)?;
        Ok(Core {
            log,
            index,
            key_hash: KeyHash::new(manifest.hash_seed),
            buffers,
            gate: Gate::default(),
            cache: ReadCache::new(Arc::clone(&budget)),
            session_start: manifest.log_end,
            space,
            retention: Retention::new(budget.frames_max() * budget.page_bytes()),
            budget,
            counters,
            waiters,
            tables,
            store: StoreNumber::new(),
            reading: None,
            home: Home::here(),
        })
    }
}

/// Returns the largest length in bytes of a record. A record must fit a page and a read buffer.
fn record_bytes_max(log: &Log, buffers: &Buffers) -> usize {
    let in_page = (log.page_bytes() - PAGE_HEADER_BYTES) as usize;
    let in_buffer = match buffers.bytes_each() {
        // A read ends with the page, so a buffer of a page's length holds each record.
        bytes if bytes as u64 >= log.page_bytes() => in_page,
        bytes => bytes - 2 * log.device.block_bytes(),
    };
    in_page.min(in_buffer).min(record_bytes(VALUE_BYTES_MAX))
}
