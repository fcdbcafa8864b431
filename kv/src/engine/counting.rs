//! Counts operations on a single key.

use crate::engine::batch::Hit;
use crate::engine::core::Core;
use crate::operation::Access;

impl Core {
    /// Counts an operation on a single key that took the short path. The call adds to one counter
    /// only, and the statistics derive the operation's other counts from that counter.
    #[inline]
    pub(crate) fn count_single(&self, access: Access, changes: bool, hit: Hit) {
        let singles = &self.counters.singles;
        match (access, hit) {
            (Access::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
            (Access::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
            (Access::Get, _) => singles.get.add(1),
            (Access::Update, _) if changes => singles.update.add(1),
            (Access::Update | Access::Touch, _) => singles.touch.add(1),
            (Access::Put, _) => singles.put.add(1),
        }
    }
}
