//! Checks parts of the cold tier for copies, deltas and roll backs.

use std::sync::Arc;

use crate::checkpoint::manifest::Manifest;
use crate::cold::head::{PartHead, PartSite, part_address};
use crate::cold::list::ListedPart;
use crate::cold::part::Part;
use crate::device::{self, Device, DeviceChoice, DeviceOptions};
use crate::error::{Error, Result};
use crate::files::directory::Directory;

/// Opens the log and the parts of a bank, to read them in the calling thread.
pub(crate) fn open_to_read(dir: &Arc<Directory>, manifest: &Manifest) -> Result<Arc<dyn Device>> {
    let options = DeviceOptions {
        segment_size_bytes: manifest.segment_bytes,
        threads: 0,
        read_only: true,
        ..DeviceOptions::default()
    };
    device::open_in(dir, DeviceChoice::Threads, &options)
}

/// Loads a part, as an opening does.
pub(crate) fn load_part(listed: &ListedPart, site: PartSite<'_>) -> Result<Part> {
    Part::load(site, &listed.head, listed.file_bytes, listed.trailer_crc)
}

/// Reads and checks a whole part.
pub(crate) fn check_part(listed: &ListedPart, site: PartSite<'_>) -> Result<()> {
    let number = listed.head.number;
    if PartHead::read(site, number)? != listed.head {
        let (path, offset) = site.device.locate(part_address(number, site.segment_size_bytes));
        let what = format!("the header is not that of part {number} in the checkpoint's list");
        return Err(Error::Damaged { path, offset, what });
    }
    let part = Arc::new(load_part(listed, site)?);
    let mut rows = part.cursor(site.device);
    // The loop ends with the last row of the part.
    while rows.next()?.is_some() {}
    Ok(())
}
