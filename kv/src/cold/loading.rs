//! Loads the fences and filters of a part.

use crate::cold::fence::{Fences, GROUP_BLOCKS, Group, GroupFences};
use crate::cold::filter::PADDING;
use crate::cold::head::{PAGE_BYTES, PartHead, PartSite, part_address, u32_at, u64_at};
use crate::cold::keep::{KeepAll, Kept, PartMemory, PartNeeds};
use crate::cold::part::Part;
use crate::cold::trailer::Trailer;
use crate::cold::writer::GROUP_BYTES;
use crate::device::{AlignedBuffer, Device, Read};
use crate::error::{Error, Result};

/// Bytes that a load reads with one transfer.
const READ_BYTES: usize = 1 << 20;

/// A part whose trailer was read and checked.
#[derive(Debug)]
pub(crate) struct PartFound {
    head: PartHead,
    trailer: Trailer,
}

impl PartFound {
    /// Reads and checks the trailer of a part. `file_bytes` and `trailer_crc` are those of the
    /// checkpoint's list.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if the part is not the one that `head` names.
    pub(crate) fn read(
        site: PartSite<'_>,
        head: &PartHead,
        file_bytes: u64,
        trailer_crc: u32,
    ) -> Result<Self> {
        let address = part_address(head.number, site.segment_size_bytes);
        let damaged = |within, what| damaged(site, head, within, what);
        let page = PAGE_BYTES as u64;
        if file_bytes < 2 * page || !file_bytes.is_multiple_of(page) {
            return Err(damaged(0, format!("its length is listed as {file_bytes} bytes")));
        }
        head.check(head.number).map_err(|what| damaged(0, what))?;
        let end = file_bytes - page;
        let mut bytes = AlignedBuffer::zeroed(PAGE_BYTES);
        read(site.device, address + end, &mut bytes)?;
        let of_trailer = |what| damaged(end, format!("the trailer: {what}"));
        let trailer = Trailer::decode(&bytes).map_err(of_trailer)?;
        trailer.check(head, file_bytes).map_err(of_trailer)?;
        if trailer.crc() != trailer_crc {
            let what =
                "the checkpoint's list names another trailer, so the file is of another part";
            return Err(of_trailer(what.into()));
        }
        Ok(PartFound { head: head.clone(), trailer })
    }

    /// Returns the sizes of the part's fences and filters.
    pub(crate) fn needs(&self) -> PartNeeds {
        self.trailer.needs(&self.head)
    }

    /// Number of rows, tombstones included.
    pub(crate) fn rows(&self) -> u64 {
        self.trailer.counts.rows
    }

    /// Length of all fences and filters in bytes, as the file has them.
    pub(crate) fn sections_bytes(&self) -> u64 {
        self.trailer.sections_bytes
    }

    /// Reads and checks the fences and filters, of which `kept` stays in memory.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if they fail their checks.
    pub(crate) fn load(&self, site: PartSite<'_>, kept: Kept) -> Result<Part> {
        let PartFound { head, trailer } = self;
        let address = part_address(head.number, site.segment_size_bytes);
        let end = trailer.file_bytes() - PAGE_BYTES as u64;
        let mut bytes = AlignedBuffer::zeroed((end - trailer.sections) as usize);
        read(site.device, address + trailer.sections, &mut bytes)?;
        let of_sections =
            |what| damaged(site, head, trailer.sections, format!("its fences and filters: {what}"));
        let decoded = sections(&bytes, trailer, head).map_err(of_sections)?;
        drop(bytes);
        Ok(Part::new(site, head.clone(), *trailer, decoded, kept))
    }
}

impl Part {
    /// Loads all fences and filters of a part, and checks them. `file_bytes` and `trailer_crc` are
    /// those of the checkpoint's list.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if the part is not the one that `head` names.
    pub(crate) fn load(
        site: PartSite<'_>,
        head: &PartHead,
        file_bytes: u64,
        trailer_crc: u32,
    ) -> Result<Part> {
        let found = PartFound::read(site, head, file_bytes, trailer_crc)?;
        let kept = KeepAll.keep(&found.needs())?;
        found.load(site, kept)
    }
}

/// Returns the error of a part that is damaged at the offset `within`.
fn damaged(site: PartSite<'_>, head: &PartHead, within: u64, what: String) -> Error {
    let address = part_address(head.number, site.segment_size_bytes);
    let (path, offset) = site.device.locate(address + within);
    Error::Damaged { path, offset, what: format!("part {}: {what}", head.number) }
}

/// Reads `buffer.len()` bytes in transfers of at most 1 MiB.
fn read(device: &dyn Device, address: u64, buffer: &mut [u8]) -> Result<()> {
    let offsets = (address..).step_by(READ_BYTES);
    let reads = offsets.zip(buffer.chunks_mut(READ_BYTES));
    let mut reads: Vec<_> = reads.map(|(offset, buffer)| Read { offset, buffer }).collect();
    if reads.is_empty() { Ok(()) } else { device.read_many(&mut reads) }
}

/// Decodes and checks the sections of a part. `bytes` has them and the zeros behind them.
///
/// # Errors
/// A description of what is wrong.
fn sections(
    bytes: &[u8],
    trailer: &Trailer,
    head: &PartHead,
) -> std::result::Result<(Fences, Vec<u64>), String> {
    let (sections, zeros) = bytes.split_at(trailer.sections_bytes as usize);
    let crc = crc32c::crc32c(sections);
    if crc != trailer.sections_crc {
        return Err(format!("their checksum is {crc:#010x}, not {:#010x}", trailer.sections_crc));
    }
    if zeros.iter().any(|&byte| byte != 0) {
        return Err("bytes behind them are not zero".into());
    }
    let groups = (trailer.blocks as usize).div_ceil(GROUP_BLOCKS);
    let (groups, rest) = sections.split_at(groups * GROUP_BYTES);
    let (long, filters) = rest.split_at(trailer.long_blocks as usize * 8);
    let mut fences = Fences::default();
    let mut left = trailer.blocks as usize;
    let mut filter = 0_u64;
    for bytes in groups.chunks_exact(GROUP_BYTES) {
        let words = u32_at(bytes, 8);
        if words == 0
            || filter + u64::from(words) * u64::from(trailer.columns) > trailer.filter_words
        {
            return Err(format!("a filter of {words} words a column does not fit"));
        }
        let group = Group { first_hash: u64_at(bytes, 0), filter: filter as u32, words };
        let mut its = [0; GROUP_BLOCKS];
        for (fence, bytes) in its.iter_mut().zip(bytes[16..].chunks_exact(2)) {
            *fence = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        let blocks = left.min(GROUP_BLOCKS);
        fences.push_read(group, GroupFences(its), blocks);
        left -= blocks;
        filter += u64::from(words) * u64::from(trailer.columns);
    }
    if filter != trailer.filter_words || u32::try_from(filter).is_err() {
        return Err(format!("the filters have {} words, not {filter}", trailer.filter_words));
    }
    for bytes in long.chunks_exact(8) {
        let units = u32_at(bytes, 4);
        if units < 2 || u64::from(units) << head.block_bits > READ_BYTES as u64 {
            return Err(format!("a long block can't have the length of {units} blocks"));
        }
        fences.push_long(u32_at(bytes, 0), units);
    }
    fences.finish(*head.hashes.end());
    fences.check(*head.hashes.start())?;
    let data_bytes = trailer.sections - PAGE_BYTES as u64;
    if fences.units().checked_mul(1 << head.block_bits) != Some(data_bytes) {
        return Err(format!("{} blocks do not take {data_bytes} bytes", trailer.blocks));
    }
    // Room for the padding, so that the filters need not move.
    let mut words = Vec::with_capacity(filters.len() / 8 + PADDING);
    words.extend(filters.chunks_exact(8).map(|bytes| u64_at(bytes, 0)));
    Ok((fences, words))
}
