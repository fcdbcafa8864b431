//! Requests: gets that differ from the usual one row per key.

use std::ptr;
use std::time::Duration;

use embank::{Request, Table};

use crate::bags::{LentBags, embank_bags};
use crate::lease::embank_lease;
use crate::memory::{HandlePlace, Lent, Place};
use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// What a row of a request stands for.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_row_per {
    /// A key of the batch. The rows of repeated keys repeat too.
    Key = 0,
    /// A distinct key, in order of first appearance. embank_lease_distinct lists the distinct keys.
    Distinct = 1,
    /// A bag: the rows of its keys, pooled into one.
    Bag = 2,
}

/// Says what the rows of a get stand for, and how long it may wait. Call embank_request_init, then
/// change fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_request {
    /// Set by embank_request_init.
    pub size: usize,
    /// The longest wait for rows whose clocks are above the table's staleness bound, in
    /// milliseconds. With 0, if a clock is above the bound, the get fails at once with
    /// EMBANK_STATUS_STALENESS_TIMEOUT. Negative for the bank's wait timeout. Default: -1.
    pub timeout_ms: i64,
    /// The bags, for EMBANK_ROW_PER_BAG. The lease keeps a copy. Default: NULL.
    pub bags: *const embank_bags,
    /// Keys whose rows this training step has got before, for example for another part of the
    /// model. Admission counts both gets of such a key as one. Default: NULL.
    pub earlier: *const u64,
    /// The number of keys in `earlier`. Default: 0.
    pub earlier_count: usize,
    /// One of embank_row_per. Default: EMBANK_ROW_PER_KEY.
    pub per: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. Its fields are numbers and
// pointers that may be null. It has no padding.
unsafe impl Growing for embank_request {
    const NAME: &'static str = "embank_request";
    const FILLED_BY: &'static str = "embank_request_init";
    const SIZE_MIN: usize = 48;

    fn defaults() -> Self {
        Self {
            size: 0,
            timeout_ms: -1,
            bags: ptr::null(),
            earlier: ptr::null(),
            earlier_count: 0,
            per: embank_row_per::Key as u32,
            reserved: 0,
        }
    }
}

/// Sets every field to its default. `size` is sizeof(embank_request).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_request_init(
    request: *mut embank_request,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `request` is null or valid for `size` bytes.
    call(|| unsafe { sized::write(request, size, &embank_request::defaults()) })
}

/// Gets rows for training, as `request` says; NULL stands for the defaults. `rows` needs room for
/// one row of dim values per key, distinct key or bag. For distinct keys it may be longer: room for
/// a row per key is always enough. `row_count` gets the number of rows, and may be NULL. The caller
/// ends the lease with as many gradients or rows (embank_lease_apply, embank_lease_put). In all
/// else, works as embank_table_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_rows(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    request: *const embank_request,
    rows: *mut f32,
    rows_len: usize,
    row_count: *mut usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, `request` is null or a
    // struct that begins with its size, and all other pointers are each null or valid until the
    // call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let count = Place::optional("number of rows", row_count)?;
        let table = table_of(table)?;
        let request = LentRequest::new(keys, key_count, request)?;
        let rows = Lent::new_mut("rows", rows, rows_len)?;
        request.check_apart(&rows)?;
        let asked = request.read(table)?;
        let found = asked.row_count();
        // SAFETY: `check_apart` found that `rows` overlaps no other buffer. By the rules of
        // embank.h, no other code uses the buffers during the call.
        let rows = request.fills().part_of(rows.write(), found, table.dim());
        let got = table.get_rows(asked, rows)?;
        count.set(found);
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// The keys and the `embank_request` of a call. `new` has checked all pointers and numbers.
pub(crate) struct LentRequest {
    keys: Lent<u64>,
    earlier: Lent<u64>,
    bags: Option<LentBags>,
    is_distinct: bool,
    /// `None` for the bank's wait timeout.
    timeout: Option<Duration>,
}

impl LentRequest {
    /// # Safety
    /// `request` must be null or point to a struct that begins with its size. Its `bags` must be
    /// null or point to an initialised struct.
    pub(crate) unsafe fn new(
        keys: *const u64,
        key_count: usize,
        request: *const embank_request,
    ) -> Result<Self, Failure> {
        // SAFETY: by this function's `# Safety`, `request` is null or a struct that begins with its
        // size.
        let asked = unsafe { sized::read_or_defaults(request) }?;
        // SAFETY: by this function's `# Safety`, the struct's `bags` is null or an initialised
        // struct.
        let bags = unsafe { asked.bags(key_count) }?;
        Ok(Self {
            keys: Lent::new("keys", keys, key_count)?,
            earlier: Lent::new("earlier", asked.earlier, asked.earlier_count)?,
            bags,
            is_distinct: asked.per == embank_row_per::Distinct as u32,
            timeout: u64::try_from(asked.timeout_ms).ok().map(Duration::from_millis),
        })
    }

    /// Fails if `written` overlaps a buffer of the request.
    pub(crate) fn check_apart(&self, written: &Lent<f32>) -> Result<(), Failure> {
        written.check_apart(&self.keys)?;
        written.check_apart(&self.earlier)?;
        self.bags.as_ref().map_or(Ok(()), |bags| bags.check_apart(written))
    }

    /// # Safety
    /// The buffers must stay valid during the call, and no other code may write to them.
    pub(crate) unsafe fn read<'a>(&self, table: &Table) -> Result<Request<'a>, Failure> {
        // SAFETY: by this function's `# Safety`, the buffers stay valid, and no other code writes
        // to them.
        let (keys, earlier, bags) = unsafe {
            (self.keys.read(), self.earlier.read(), self.bags.as_ref().map(|bags| bags.read()))
        };
        let mut request = table.request(keys)?.earlier(earlier);
        if self.is_distinct {
            request = request.distinct();
        }
        if let Some(bags) = bags {
            request = request.bags(bags);
        }
        if let Some(timeout) = self.timeout {
            request = request.within(timeout);
        }
        Ok(request)
    }

    pub(crate) fn fills(&self) -> Fills {
        match self.is_distinct {
            true => Fills::Part,
            false => Fills::All,
        }
    }
}

/// How much of the caller's buffer the rows of a request fill.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fills {
    /// The buffer has exactly the length of the rows.
    All,
    /// For distinct keys, whose number the caller may not know: the buffer may be longer.
    Part,
}

impl Fills {
    /// Returns the part of the caller's buffer that `row_count` rows fill. If the buffer does not
    /// fit, the result has a wrong length too, and the get returns an error.
    pub(crate) fn part_of(self, buffer: &mut [f32], row_count: usize, dim: usize) -> &mut [f32] {
        let len = buffer.len();
        match self {
            Self::All => buffer,
            Self::Part => &mut buffer[..len.min(row_count.saturating_mul(dim))],
        }
    }
}

impl embank_request {
    /// Returns the bags. `None` for a request without bags. Fails if `per` is unknown, or if bags
    /// do not go with it.
    ///
    /// # Safety
    /// `bags` must be null or point to an initialised struct.
    unsafe fn bags(&self, key_count: usize) -> Result<Option<LentBags>, Failure> {
        const KEY: u32 = embank_row_per::Key as u32;
        const DISTINCT: u32 = embank_row_per::Distinct as u32;
        const BAG: u32 = embank_row_per::Bag as u32;
        if self.reserved != 0 {
            return Err(Failure::invalid("embank_request.reserved must be 0"));
        }
        match self.per {
            // SAFETY: by this function's `# Safety`, `bags` is null or an initialised struct.
            BAG => unsafe { LentBags::new(self.bags, key_count) }.map(Some),
            KEY | DISTINCT if self.bags.is_null() => Ok(None),
            KEY | DISTINCT => {
                Err(Failure::invalid("embank_request.bags goes with EMBANK_ROW_PER_BAG only"))
            }
            other => Err(Failure::invalid(format!("there is no embank_row_per {other}"))),
        }
    }
}
