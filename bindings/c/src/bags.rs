//! Bags: groups of keys whose rows the store pools into one row.

use embank::{Bags, Pooling};

use crate::memory::Lent;
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// How the rows of a bag become one row.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_pooling {
    /// The sum of the rows; zeros for an empty bag.
    Sum = 0,
    /// The sum of the rows divided by their number; zeros for an empty bag.
    Mean = 1,
}

/// The bags of a batch: which of its keys belong to each bag, and how the rows of a bag are pooled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_bags {
    /// Bag i has the keys at the places offsets[i] to offsets[i + 1] - 1 of the batch. The first
    /// offset is 0, the last offset is the number of keys, and offsets never decrease.
    pub offsets: *const u64,
    /// The number of offsets: the number of bags plus 1.
    pub offset_count: usize,
    /// One weight for each key of the batch; the key's row is multiplied by it. Only with
    /// EMBANK_POOLING_SUM. NULL means that every weight is 1.
    pub weights: *const f32,
    /// One of embank_pooling.
    pub pooling: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The buffers of an `embank_bags`. `new` has checked their pointers and the pooling.
pub(crate) struct LentBags {
    offsets: Lent<u64>,
    weights: Option<Lent<f32>>,
    pooling: Pooling,
}

impl LentBags {
    /// # Safety
    /// `bags` must be null or point to an initialised `embank_bags`.
    pub(crate) unsafe fn new(bags: *const embank_bags, key_count: usize) -> Result<Self, Failure> {
        if bags.is_null() || !bags.is_aligned() {
            return Err(Failure::invalid("bags is NULL or misaligned"));
        }
        // SAFETY: the pointer is not null and is aligned. By this function's `# Safety`, it points
        // to an initialised struct.
        let bags = unsafe { *bags };
        if bags.reserved != 0 {
            return Err(Failure::invalid("embank_bags.reserved must be 0"));
        }
        const SUM: u32 = embank_pooling::Sum as u32;
        const MEAN: u32 = embank_pooling::Mean as u32;
        let pooling = match bags.pooling {
            SUM => Pooling::Sum,
            MEAN => Pooling::Mean,
            other => return Err(Failure::invalid(format!("there is no embank_pooling {other}"))),
        };
        let offsets = Lent::new("offsets", bags.offsets, bags.offset_count)?;
        let weights = match bags.weights.is_null() {
            true => None,
            false => Some(Lent::new("weights", bags.weights, key_count)?),
        };
        Ok(Self { offsets, weights, pooling })
    }

    /// Fails if `written` overlaps the offsets or the weights.
    pub(crate) fn check_apart(&self, written: &Lent<f32>) -> Result<(), Failure> {
        written.check_apart(&self.offsets)?;
        self.weights.as_ref().map_or(Ok(()), |weights| written.check_apart(weights))
    }

    /// # Safety
    /// The buffers must stay valid during the call, and no other code may write to them.
    pub(crate) unsafe fn read<'a>(&self) -> Bags<'a> {
        // SAFETY: by this function's `# Safety`, the buffers stay valid, and no other code writes
        // to them.
        unsafe {
            Bags {
                offsets: self.offsets.read(),
                pooling: self.pooling,
                weights: self.weights.as_ref().map(|weights| weights.read()),
            }
        }
    }
}

/// Reads rows for evaluation, and pools the rows of each bag into one row of `pooled`. `pooled` has
/// room for number of bags * dim values. For a key without a row, the pooling takes the row's
/// initial values. Changes no staleness clock, waits for no clock, and writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_peek_bags(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    bags: *const embank_bags,
    pooled: *mut f32,
    pooled_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys`, `bags` and
    // `pooled` are each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let bags = LentBags::new(bags, key_count)?;
        let pooled = Lent::new_mut("pooled", pooled, pooled_len)?;
        pooled.check_apart(&keys)?;
        bags.check_apart(&pooled)?;
        // SAFETY: `check_apart` found that `pooled` overlaps no other buffer. By the rules of
        // embank.h, no other code uses the buffers during the call.
        Ok(table.peek_bags(keys.read(), bags.read(), pooled.write())?)
    })
}
