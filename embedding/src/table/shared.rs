//! The state that all handles of a table share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use embank_kv::TableId;
use embank_kv::locks::RwLock;

use crate::error::Result;
use crate::registry::LeaseRegistry;
use crate::registry::retry_turn::RetryTurn;
use crate::registry::waiting_line::WaitingLine;
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::layout::RowLayout;
use crate::row::live::LiveSettings;
use crate::row::numbering::TableVocabulary;
use crate::row::tracking::Tracker;
use crate::stats::TableCounters;
use crate::table::count_tables::Generations;
use crate::table::gate::Gate;
use crate::vocabulary::VocabularyShared;

/// The state that all handles of a table share.
#[derive(Debug)]
pub(crate) struct TableShared {
    pub(crate) id: TableId,
    pub(crate) name: String,
    pub(crate) counters: TableCounters,
    pub(crate) leases: LeaseRegistry,
    /// A Get that was blocked once holds this turn while it tries again; see the module
    /// `lease::waiting`.
    pub(crate) retry_turn: RetryTurn,
    /// Gets that have waited for a long time, and have therefore reserved their rows.
    pub(crate) line: WaitingLine,
    /// The table's settings when it was first opened. Learning rate, clipping and staleness bound
    /// may have changed since; `live` and `bound` hold the present values.
    pub(crate) config: TableConfig,
    pub(crate) layout: RowLayout,
    pub(crate) live: LiveSettings,
    /// The vocabulary whose ids are the table's keys. Set at open, if the vocabulary has the
    /// numbering that the table was made for.
    ids: OnceLock<Arc<VocabularyShared>>,
    /// True if the table was opened without a check of its vocabulary's numbering.
    takes_every_key: AtomicBool,
    /// True if the vocabulary was renumbered or dropped after the table was opened. The rows then
    /// belong to other values.
    other_numbering: AtomicBool,
    /// Decides which keys get rows; `None` if all keys do.
    pub(crate) gate: Option<Gate>,
    /// The staleness bound; `UNBOUNDED` if there is none.
    bound: AtomicU64,
}

const UNBOUNDED: u64 = u64::MAX;

impl TableShared {
    /// Makes the shared state of a table. `counts` names its tables of counts, if its admission
    /// uses any.
    pub(crate) fn new(
        id: TableId,
        name: &str,
        config: TableConfig,
        counts: Option<Generations>,
    ) -> Self {
        let gate = match (config.admission, counts) {
            (Admission::AfterGets(needed), Some(counts)) => {
                Some(Gate::Counts { needed, counts: RwLock::new(counts) })
            }
            (Admission::Probability(probability), counts) => {
                let gets = counts.map(|counts| OnceLock::from(counts.newer)).unwrap_or_default();
                Some(Gate::Chance { probability, seed: config.seed, gets })
            }
            (Admission::Always | Admission::AfterGets(_), _) => None,
        };
        let shared = Self {
            ids: OnceLock::new(),
            takes_every_key: AtomicBool::new(false),
            other_numbering: AtomicBool::new(false),
            gate,
            id,
            name: name.to_owned(),
            counters: TableCounters::default(),
            leases: LeaseRegistry::new(),
            retry_turn: RetryTurn::default(),
            line: WaitingLine::default(),
            layout: RowLayout::new(name, &config),
            live: LiveSettings::of(&config),
            bound: AtomicU64::new(UNBOUNDED),
            config,
        };
        shared.set_bound(shared.config.staleness_bound);
        shared
    }

    /// The tables of the store that hold this table: its own, and those of its counts.
    pub(crate) fn store_tables(&self) -> Vec<TableId> {
        let mut tables = vec![self.id];
        tables.extend(self.gate.iter().flat_map(Gate::side_tables));
        tables
    }

    /// Copies the generations of counts from `other`, which is the same table in a newer
    /// checkpoint.
    pub(crate) fn take_counts_of(&self, other: &Self) {
        if let (Some(Gate::Counts { counts, .. }), Some(Gate::Counts { counts: newer, .. })) =
            (&self.gate, &other.gate)
        {
            *counts.write() = *newer.read();
        }
    }

    /// Returns the tracker of a table with `Tracking::SetTime`; `None` for other tables.
    pub(crate) fn set_tracker(&self) -> Option<&Tracker> {
        self.layout.tracker().filter(|tracker| !tracker.is_by_clock())
    }

    /// The vocabulary whose ids are the table's keys, as named in its settings.
    pub(crate) fn vocabulary(&self) -> Option<&TableVocabulary> {
        self.config.vocabulary.as_ref()
    }

    /// Makes later calls check that keys are ids of `vocabulary`.
    pub(crate) fn check_ids_of(&self, vocabulary: &Arc<VocabularyShared>) {
        self.ids.get_or_init(|| Arc::clone(vocabulary));
    }

    /// Makes later calls accept every key. Used if the caller opens the table although its
    /// vocabulary's numbering has changed.
    pub(crate) fn take_every_key(&self) {
        // Relaxed: no other data depends on the flag, and this thread's later calls see it.
        self.takes_every_key.store(true, Ordering::Relaxed);
    }

    /// Records whether the vocabulary's numbering now differs from the one that the table was made
    /// for.
    pub(crate) fn note_numbering(&self, is_other: bool) {
        // Relaxed: no other data depends on the flag. A call that runs at the same time may still
        // read rows.
        self.other_numbering.store(is_other, Ordering::Relaxed);
    }

    /// True if the rows now belong to other values, because the vocabulary was renumbered or
    /// dropped. False if a caller has opened the table with `open_table_unchecked`.
    #[inline]
    pub(crate) fn has_other_numbering(&self) -> bool {
        self.other_numbering.load(Ordering::Relaxed)
            && !self.takes_every_key.load(Ordering::Relaxed)
    }

    /// The vocabulary whose ids the keys must be; `None` if every key is allowed.
    #[inline]
    pub(crate) fn ids(&self) -> Option<&VocabularyShared> {
        let ids = self.ids.get()?;
        // Relaxed: no other data depends on the flag; see `take_every_key`.
        (!self.takes_every_key.load(Ordering::Relaxed)).then_some(&**ids)
    }

    /// Checks that `asked` describes this table. Adopts those settings of `asked` that may differ
    /// at each open.
    pub(crate) fn reopen(&self, asked: &TableConfig) -> Result<()> {
        self.config.check_same_table(&self.name, asked)?;
        self.live.set(asked);
        self.set_bound(asked.staleness_bound);
        Ok(())
    }

    pub(crate) fn layout(&self) -> &RowLayout {
        &self.layout
    }

    pub(crate) fn set_bound(&self, bound: Option<u32>) {
        self.bound.store(bound.map_or(UNBOUNDED, u64::from), Ordering::Relaxed);
    }

    pub(crate) fn bound(&self) -> Option<u32> {
        u32::try_from(self.bound.load(Ordering::Relaxed)).ok()
    }

    /// Returns the present settings.
    pub(crate) fn config(&self) -> TableConfig {
        let live = self.live.now();
        let config = self.config.clone().staleness_bound(self.bound());
        config.optimizer(live.optimizer).clip_row_norm(live.clip_row_norm)
    }
}
