//! Writes a part.

use crate::cold::head::{PartHead, PartSite};
use crate::cold::part::Part;
use crate::cold::row::ColdRow;
use crate::error::Result;

/// Writes the rows of a part to the device, in transfers of at most 1 MiB. A part whose writer is
/// dropped before `finish` is unfinished: the caller removes it.
pub(crate) struct PartWriter<'d> {
    _site: PartSite<'d>,
}

impl<'d> PartWriter<'d> {
    /// Begins a part. Its filters have `columns` columns, 0 to 16; 0 stands for no filters.
    pub(crate) fn new(_site: PartSite<'d>, _head: PartHead, _columns: u32) -> Self {
        todo!("follows")
    }

    /// Appends a row, whose order must be above that of the row before.
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn push(&mut self, _row: &ColdRow<'_>) -> Result<()> {
        todo!("follows")
    }

    /// Returns the length of the part so far, in bytes, without its sections and trailer.
    pub(crate) fn bytes_written(&self) -> u64 {
        todo!("follows")
    }

    /// Writes what is left. The part is durable after the device's next sync.
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn finish(self) -> Result<Part> {
        todo!("follows")
    }
}
