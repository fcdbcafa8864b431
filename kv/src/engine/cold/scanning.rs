//! The parts of a checkpoint, for a scan.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Cold, Retired};
use crate::cold::head::PartSite;
use crate::cold::list::PartList;
use crate::cold::part::Part;
use crate::device::Device;
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
    /// [`Part::load`].
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
                None => {
                    let part =
                        Part::load(site, &listed.head, listed.file_bytes, listed.trailer_crc)?;
                    self.budget.charge_cold(part.memory_bytes() as u64)?;
                    Arc::clone(retired.part.insert(Arc::new(part)))
                }
            };
            parts.push(part);
        }
        Ok(ColdView::new(present.number(), parts))
    }

    /// Drops the view that a scan has used, and what no other reader needs.
    pub(crate) fn release_view(&self, view: Arc<ColdView>, device: &dyn Device) {
        drop(view);
        self.remove_unneeded(device);
    }
}
