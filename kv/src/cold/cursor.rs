//! Reads the rows of a part in order.

use crate::cold::part::Part;
use crate::cold::row::ColdRow;
use crate::error::Result;

/// Reads the rows of a part in order: ahead, in transfers of 1 MiB, in the background. Checks each
/// block before it returns a row of it.
pub(crate) struct PartCursor<'a> {
    _part: &'a Part,
}

impl PartCursor<'_> {
    /// Goes to the next row. `None` after the last one.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if a block is damaged; the cursor then stays there.
    pub(crate) fn next(&mut self) -> Result<Option<ColdRow<'_>>> {
        todo!("follows")
    }

    /// Returns the row of the last call of `next` that returned one.
    pub(crate) fn row(&self) -> Option<ColdRow<'_>> {
        todo!("follows")
    }
}
