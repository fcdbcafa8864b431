//! The parts of a checkpoint, for a scan.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::memory_plan::MemoryPlan;
use super::{Cold, Retired};
use crate::cold::head::PartSite;
use crate::cold::keep::Kept;
use crate::cold::list::{ListedPart, PartList};
use crate::cold::loading::PartFound;
use crate::cold::part::Part;
use crate::engine::cold::view::ColdView;
use crate::error::Result;

impl Cold {
    /// Returns the parts of a checkpoint's list. They stay in memory and on disk until the view is
    /// dropped. The caller keeps the checkpoint from being removed during the call.
    ///
    /// A part that the present view lacks is taken from another reader, or else loaded again.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the budget has no memory for the parts that are loaded. The errors of
    /// [`PartFound::load`].
    pub(crate) fn view_of(&self, list: &PartList, site: PartSite<'_>) -> Result<ColdView> {
        // The lock is held until the retired parts have got a reader. Otherwise the compactor could
        // remove one of their files in between.
        let mut state = self.state.lock();
        let present = self.view();
        let there: BTreeMap<u64, &Arc<Part>> =
            present.parts().map(|part| (part.head().number, part)).collect();
        let mut parts = Vec::with_capacity(list.parts.len());
        for listed in &list.parts {
            let number = listed.head.number;
            if let Some(&part) = there.get(&number) {
                parts.push(Arc::clone(part));
                continue;
            }
            let retired = state
                .retired
                .entry(number)
                .or_insert(Retired { part: None, file_bytes: listed.file_bytes });
            let part = match &retired.part {
                Some(part) => Arc::clone(part),
                None => Arc::clone(retired.part.insert(Arc::new(self.load_retired(listed, site)?))),
            };
            parts.push(part);
        }
        Ok(ColdView::new(present.number(), parts))
    }

    /// Loads a part for scans. They need no filters, and few fences.
    fn load_retired(&self, listed: &ListedPart, site: PartSite<'_>) -> Result<Part> {
        let found = PartFound::read(site, &listed.head, listed.file_bytes, listed.trailer_crc)?;
        let plan = MemoryPlan { columns: 0, ..self.memory_plan() };
        let keep = plan.keep(&self.budget, &found.needs());
        let charge = self.budget.charge_cold(found.needs().memory_bytes(keep))?;
        found.load(site, Kept { keep, charge: Some(charge) })
    }
}
