//! The settings of a table.

use bytemuck::{Pod, Zeroable};
use embank::{TableConfig, Tracking};

use crate::admission;
use crate::dtype::{embank_dtype, embank_rounding};
use crate::initializer::embank_initializer;
use crate::optimizer::embank_optimizer;
use crate::refusals::same_variants;
use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};

/// Tracking: whether each row records its last use and its number of uses, and the unit of time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_tracking {
    /// Rows do not record their uses.
    None = 0,
    /// The time is in minutes, by the system's clock.
    Minutes = 1,
    /// The caller sets the time with embank_table_set_time, in a unit of its choice.
    SetTime = 2,
}

same_variants!(embank_tracking, Tracking { None, Minutes, SetTime });

/// The settings of a table. Call embank_table_settings_init, set the dim, then change fields. These
/// settings never change for a table: dim, dtypes, rounding, initializer, seed, tracking,
/// admission, and the layout of the optimizer's state. Opening a table with other values of them
/// fails. The other settings may differ at each opening; the values of the latest call apply.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_table_settings {
    /// Set by embank_table_settings_init.
    pub size: usize,
    /// Seed of the initial values. Default: 0.
    pub seed: u64,
    /// A get waits while one of its rows has more outstanding gets than this number. A negative
    /// number means that no get waits. Default: -1.
    pub staleness_bound: i64,
    /// Values per row. Must be set to 1 or more. Default: 0.
    pub dim: u32,
    /// One of embank_dtype. Default: EMBANK_DTYPE_F32.
    pub dtype: u32,
    /// One of embank_tracking. Tracking of uses takes 8 bytes a row. Default: EMBANK_TRACKING_NONE.
    pub tracking: u32,
    /// The dtype of the optimizer's state: one of embank_dtype except EMBANK_DTYPE_INT8. Default:
    /// EMBANK_DTYPE_F32.
    pub state_dtype: u32,
    /// The largest L2 norm of a row's gradient; a longer gradient is scaled down to it. 0 means no
    /// limit. Default: 0.
    pub clip_row_norm: f64,
    /// The optimizer. Default: none.
    pub optimizer: embank_optimizer,
    /// The initial values of rows. Default: uniform between -0.05 and 0.05.
    pub initializer: embank_initializer,
    /// How updates are rounded: one of embank_rounding. Default: EMBANK_ROUNDING_BY_DTYPE.
    pub rounding: u32,
    /// The keys for which a get makes a row: one of embank_admission. Default:
    /// EMBANK_ADMISSION_ALWAYS.
    pub admission: u32,
    /// For EMBANK_ADMISSION_AFTER_GETS: the number of gets, 1 or more. Default: 0.
    pub admission_gets: u32,
    /// For EMBANK_ADMISSION_PROBABILITY: the probability, above 0 and at most 1. Default: 0.
    pub admission_probability: f32,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_table_settings {
    const NAME: &'static str = "embank_table_settings";
    const FILLED_BY: &'static str = "embank_table_settings_init";
    const SIZE_MIN: usize = 240;

    fn defaults() -> Self {
        // The conversion can't fail, because the header can express every default setting. The
        // tests check that.
        Self::from_rust(&TableConfig::new(0)).unwrap_or(Self::zeroed())
    }
}

impl embank_table_settings {
    pub(crate) fn from_rust(config: &TableConfig) -> Result<Self, Failure> {
        let (admission, admission_gets, admission_probability) =
            admission::from_rust(config.admission)?;
        Ok(Self {
            size: size_of::<Self>(),
            seed: config.seed,
            staleness_bound: bound_from_rust(config.staleness_bound),
            dim: config.dim,
            dtype: embank_dtype::from_rust("dtype", config.dtype)?,
            tracking: embank_tracking::from_rust("tracking", config.tracking)?,
            state_dtype: embank_dtype::from_rust("state dtype", config.state_dtype)?,
            clip_row_norm: config.clip_row_norm.map_or(0.0, f64::from),
            optimizer: embank_optimizer::from_rust(config.optimizer)?,
            initializer: embank_initializer::from_rust(&config.initializer)?,
            rounding: embank_rounding::from_rust(config.rounding)?,
            admission,
            admission_gets,
            admission_probability,
        })
    }

    pub(crate) fn to_rust(self) -> Result<TableConfig, Failure> {
        let mut config = TableConfig::new(self.dim)
            .optimizer(self.optimizer.to_rust()?)
            .initializer(self.initializer.to_rust()?)
            .seed(self.seed)
            .dtype(embank_dtype::to_rust(self.dtype)?)
            .state_dtype(embank_dtype::to_rust(self.state_dtype)?)
            .rounding(embank_rounding::to_rust(self.rounding)?)
            .staleness_bound(bound_to_rust(self.staleness_bound)?);
        config.admission =
            admission::to_rust(self.admission, self.admission_gets, self.admission_probability)?;
        config.tracking = embank_tracking::to_rust(self.tracking)?;
        config.clip_row_norm = (self.clip_row_norm != 0.0).then_some(self.clip_row_norm as f32);
        Ok(config)
    }
}

pub(crate) fn bound_from_rust(bound: Option<u32>) -> i64 {
    bound.map_or(-1, i64::from)
}

pub(crate) fn bound_to_rust(bound: i64) -> Result<Option<u32>, Failure> {
    if bound < 0 {
        return Ok(None);
    }
    match u32::try_from(bound) {
        Ok(bound) => Ok(Some(bound)),
        Err(_) => Err(Failure::invalid(format!(
            "a staleness bound is at most {}, found {bound}; negative is none",
            u32::MAX
        ))),
    }
}

/// Sets every setting to its default, and the dim to 0. `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_settings_init(
    settings: *mut embank_table_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `settings` is null or valid until the call returns.
    call(|| unsafe { sized::write(settings, size, &embank_table_settings::defaults()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use embank::{Admission, Dtype, Initializer, Optimizer, Rounding};

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let mut settings = embank_table_settings::defaults();
        assert_eq!(settings.size, size_of::<embank_table_settings>());
        settings.dim = 3;
        assert_eq!(settings.to_rust().unwrap(), TableConfig::new(3));
    }

    fn assert_comes_back(config: &TableConfig) {
        let settings = embank_table_settings::from_rust(config).unwrap();
        assert_eq!(&settings.to_rust().unwrap(), config);
    }

    #[test]
    fn settings_come_back_as_they_went() {
        let tracked = [Tracking::None, Tracking::Minutes, Tracking::SetTime];
        for (bound, tracking) in [None, Some(0), Some(u32::MAX)].into_iter().zip(tracked) {
            let config = TableConfig::new(7)
                .optimizer(Optimizer::adam(0.1))
                .initializer(Initializer::Constant(2.0))
                .seed(u64::MAX)
                .tracking(tracking)
                .clip_row_norm(Some(0.5))
                .staleness_bound(bound);
            assert_comes_back(&config);
        }
        for &dtype in Dtype::ALL {
            for state_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                for rounding in [None, Some(Rounding::Nearest), Some(Rounding::Stochastic)] {
                    let config = TableConfig::new(7).dtype(dtype).state_dtype(state_dtype);
                    assert_comes_back(&config.rounding(rounding));
                }
            }
        }
        for admission in [Admission::AfterGets(u32::MAX), Admission::Probability(0.25)] {
            assert_comes_back(&TableConfig::new(7).admission(admission));
        }
    }

    #[test]
    fn a_program_with_the_first_header_has_what_came_later_at_its_default() {
        let first = size_of::<embank_table_settings>() - 16;
        assert_eq!(first, embank_table_settings::SIZE_MIN);
        let mut memory = [u64::MAX; size_of::<embank_table_settings>() / 8];
        let settings = memory.as_mut_ptr().cast::<embank_table_settings>();
        // SAFETY: `settings` has `first` bytes or more, and its words have the alignment of the
        // struct.
        unsafe { sized::write(settings, first, &embank_table_settings::defaults()) }.unwrap();
        // SAFETY: `write` has set the first field to the size of the memory that may be read.
        let read = unsafe { sized::read(settings) }.unwrap();
        let expected = TableConfig::new(3);
        assert_eq!(embank_table_settings { dim: 3, ..read }.to_rust().unwrap(), expected);
        assert_eq!(memory[first / 8..], [u64::MAX; 2]);
    }

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        let mut bad = [embank_table_settings::defaults(); 8];
        bad[0].dtype = 99;
        bad[1].staleness_bound = 1 << 32;
        bad[2].tracking = 99;
        bad[3].state_dtype = 99;
        bad[4].rounding = 99;
        bad[5].admission = 99;
        bad[6].admission_gets = 1;
        bad[7].admission_probability = f32::NAN;
        for settings in bad {
            assert_eq!(settings.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
