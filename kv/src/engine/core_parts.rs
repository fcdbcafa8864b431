//! Makes the core of a store in the state of a checkpoint.

use crate::cache::ReadCache;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::lineage::Lineage;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::manifest::TableEntry;
use crate::device::contract::Device;
use crate::engine::compaction::options::CompactionOptions;
use crate::engine::compaction::space::Pins;
use crate::engine::compaction::space::Space;
use crate::engine::core::Core;
use crate::engine::lengths::Lengths;
use crate::engine::retention::state::Retention;
use crate::engine::signal::Signal;
use crate::engine::table_list::TableList;
use crate::engine::tables::Named;
use crate::engine::tables::Numbers;
use crate::engine::tables::TableState;
use crate::engine::waiters::Waiters;
use crate::epoch::Gate;
use crate::error::{Error, Result};
use crate::hints::StoreNumber;
use crate::index::Index;
use crate::log::Extent;
use crate::log::Log;
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;
use crate::process::home::Home;
use crate::record::hash::KeyHash;
use crate::record::layout::record_bytes;
use crate::stats::Counters;
use crate::sync::RwLock;
use std::sync::Arc;

/// Largest length in bytes of a table's name. With this limit, the names and descriptors of 65,535
/// tables stay within the size that `metadata` decodes.
const TABLE_NAME_BYTES_MAX: usize = 1 << 10;
/// The parts of a core that do not come from a checkpoint's manifest.
pub(crate) struct CoreParts {
    pub(crate) index: Index,
    pub(crate) budget: Arc<Budget>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) compaction: CompactionOptions,
    pub(crate) disk_quota_bytes: Option<u64>,
    pub(crate) pins: Pins,
    /// For each table number, the checkpoints that have the table.
    pub(crate) named: Named,
    /// The incarnation of each table's number, in the order of the manifest's tables. The list may
    /// be shorter: the remaining numbers have incarnation 0.
    pub(crate) incarnations: Vec<u32>,
    pub(crate) checkpoints: Option<Checkpoints>,
}

impl Core {
    /// Makes a core in the state of a checkpoint. The whole log of the checkpoint is on the device.
    pub(crate) fn new(parts: CoreParts, manifest: &Manifest, lineage: Lineage) -> Result<Core> {
        let CoreParts { index, budget, device, counters, waiters, signal, .. } = parts;
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
            Arc::clone(&signal),
        )?;
        let read_bytes = Budget::read_buffer_bytes_for(budget.total_bytes());
        let buffers = Buffers::new(read_bytes as usize, 1 << manifest.page_bits);
        let table = |(place, entry): (usize, &TableEntry)| {
            let incarnation = parts.incarnations.get(place).copied().unwrap_or(0);
            TableState::recovered(entry.clone(), incarnation, manifest.log_end, &parts.named)
        };
        let tables = manifest.tables.iter().enumerate().map(table);
        let core = Core {
            log,
            index,
            key_hash: KeyHash::new(manifest.hash_seed),
            buffers,
            gate: Gate::default(),
            cache: ReadCache::new(Arc::clone(&budget)),
            session_start: manifest.log_end,
            space: Space::new(
                parts.compaction,
                parts.disk_quota_bytes,
                signal,
                parts.pins,
                parts.checkpoints,
            ),
            retention: Retention::new(budget.frames_max() * budget.page_bytes()),
            budget,
            counters,
            waiters,
            tables: RwLock::new(TableList::new(tables.collect())),
            lengths: Lengths::default(),
            numbers: Numbers::default(),
            store: StoreNumber::new(),
            reading: None,
            home: Home::here(),
        };
        for table in core.tables.read().iter() {
            check_value_bytes(&core, &table.entry.name, table.entry.value_bytes)?;
            if !table.entry.dropped {
                core.lengths.set(table.id(), table.entry.width(), table.entry.value_bytes);
                // Tables without rows are noted too, because a deleted row leaves a record in the
                // log.
                core.note_written(table.id());
            }
        }
        Ok(core)
    }
}

pub(crate) fn check_value_bytes(core: &Core, name: &str, value_bytes: u32) -> Result<()> {
    if name.len() > TABLE_NAME_BYTES_MAX {
        return Err(Error::TooLong {
            what: "a table's name".to_owned(),
            bytes: name.len(),
            bytes_max: TABLE_NAME_BYTES_MAX,
            limit: "a name may have; take a shorter one",
        });
    }
    let room = core.record_bytes_max();
    if record_bytes(value_bytes as usize) <= room {
        return Ok(());
    }
    Err(Error::TooLong {
        what: format!("table {name:?}: a value"),
        bytes: value_bytes as usize,
        bytes_max: room.saturating_sub(record_bytes(0)),
        limit: "a page of the bank has room for; give the bank a larger memory budget or page size, or make the rows \
                smaller",
    })
}
