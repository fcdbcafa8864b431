//! Bags: groups of keys whose rows the store pools into one row.

use embank::{Bags, Pooling};

use crate::lease::{embank_lease, end_with_bags};
use crate::memory::{HandlePlace, Lent};
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
    fn check_apart(&self, written: &Lent<f32>) -> Result<(), Failure> {
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

/// Gets rows for training, and pools the rows of each bag into one row of `pooled`. `pooled` has
/// room for one row for each bag, that is, number of bags * dim values. The call does not return
/// the single rows. The caller ends the lease with one gradient for each bag
/// (embank_lease_apply_bags). In all else, works as embank_table_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_bags(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    bags: *const embank_bags,
    pooled: *mut f32,
    pooled_len: usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys`, `bags`,
    // `pooled` and `lease` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let bags = LentBags::new(bags, key_count)?;
        let pooled = Lent::new_mut("pooled", pooled, pooled_len)?;
        pooled.check_apart(&keys)?;
        bags.check_apart(&pooled)?;
        // SAFETY: `check_apart` found that `pooled` overlaps no other buffer. By the rules of
        // embank.h, no other code uses the buffers during the call.
        let got = table.get_bags(keys.read(), bags.read(), pooled.write())?;
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
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

/// Ends the lease: applies one gradient for each bag with the table's optimizer. `gradients` has
/// number of bags * dim values. `bags` must be the bags of the get. A row's gradient is the sum of
/// its bags' gradients, one for each place of its key in the batch: times the weight, or with
/// EMBANK_POOLING_MEAN divided by the bag's number of keys. The next checkpoint makes the update
/// durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_apply_bags(
    lease: *const embank_lease,
    bags: *const embank_bags,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle, and `bags` and
    // `gradients` are each null or valid until the call returns.
    call(|| unsafe { end_with_bags(lease, bags, gradients, gradients_len) })
}
