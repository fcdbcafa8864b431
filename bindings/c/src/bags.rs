//! Bags: rows that the store pools.

use embank::{Bags, Pooling};

use crate::lease::{embank_lease, end_with_bags};
use crate::memory::{HandlePlace, Lent};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// How the rows of a bag become one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_pooling {
    /// Their sum; zeros for an empty bag.
    Sum = 0,
    /// Their sum by their number; zeros for an empty bag.
    Mean = 1,
}

/// Which keys of a batch make up each bag, and how their rows are pooled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_bags {
    /// The keys of bag i are those at the places offsets[i] to offsets[i + 1] - 1 of the batch: the
    /// first offset is 0, the last one is the number of keys, and none is less than the one before.
    pub offsets: *const u64,
    /// One more than there are bags.
    pub offset_count: usize,
    /// What each key's row is multiplied by, one for each key; with EMBANK_POOLING_SUM alone. NULL:
    /// 1.
    pub weights: *const f32,
    /// One of embank_pooling.
    pub pooling: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The buffers of an `embank_bags`, whose pointers and pooling are checked.
pub(crate) struct LentBags {
    offsets: Lent<u64>,
    weights: Option<Lent<f32>>,
    pooling: Pooling,
}

impl LentBags {
    /// # Safety
    /// `bags` must be null or point to an initialised struct.
    pub(crate) unsafe fn new(bags: *const embank_bags, key_count: usize) -> Result<Self, Failure> {
        if bags.is_null() || !bags.is_aligned() {
            return Err(Failure::invalid("bags is NULL or misaligned"));
        }
        // SAFETY: the pointer is not null and is aligned. `# Safety` obliges the caller to pass a
        // struct.
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
        // SAFETY: by this function's `# Safety`, the buffers stay valid and unchanged.
        unsafe {
            Bags {
                offsets: self.offsets.read(),
                pooling: self.pooling,
                weights: self.weights.as_ref().map(|weights| weights.read()),
            }
        }
    }
}

/// Gets rows for training, and pools those of each bag to one row of `pooled`, bags * dim values.
/// Rows are not copied out. The lease takes one gradient for each bag (embank_lease_apply_bags).
/// Otherwise as embank_table_get.
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
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `bags`, `pooled` and `lease` are each null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let bags = LentBags::new(bags, key_count)?;
        let pooled = Lent::new_mut("pooled", pooled, pooled_len)?;
        pooled.check_apart(&keys)?;
        bags.check_apart(&pooled)?;
        // SAFETY: the checks above found that `pooled` overlaps no other buffer.
        let got = table.get_bags(keys.read(), bags.read(), pooled.write())?;
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// Reads rows for evaluation, and pools those of each bag to one row of `pooled`, bags * dim
/// values. A key without a row counts with its initial values. Touches no clock, waits for none,
/// and writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_peek_bags(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    bags: *const embank_bags,
    pooled: *mut f32,
    pooled_len: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `bags` and `pooled` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let bags = LentBags::new(bags, key_count)?;
        let pooled = Lent::new_mut("pooled", pooled, pooled_len)?;
        pooled.check_apart(&keys)?;
        bags.check_apart(&pooled)?;
        // SAFETY: the checks above found that `pooled` overlaps no other buffer.
        Ok(table.peek_bags(keys.read(), bags.read(), pooled.write())?)
    })
}

/// Applies one gradient for each bag with the table's optimizer: `gradients` holds bags * dim
/// values, and `bags` are those of the get. The gradient of a row is the sum over its places in the
/// batch. The next checkpoint makes it durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_apply_bags(
    lease: *const embank_lease,
    bags: *const embank_bags,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `bags` and `gradients` are each null or valid for the call.
    call(|| unsafe { end_with_bags(lease, bags, gradients, gradients_len) })
}
