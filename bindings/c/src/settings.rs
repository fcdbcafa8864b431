//! The settings of a table.

use bytemuck::{Pod, Zeroable};
use embank::{Dtype, TableConfig, Tracking};

use crate::initializer::embank_initializer;
use crate::optimizer::embank_optimizer;
use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};

/// How a table's values are stored. Rows go in and out as float, whatever they are stored as.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_dtype {
    /// IEEE 754 single precision.
    F32 = 0,
}

/// Whether rows tell when they were used last, and how often.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_tracking {
    /// They don't.
    None = 0,
    /// By the system's clock, in minutes.
    Minutes = 1,
    /// By what embank_table_set_time was last given.
    SetTime = 2,
}

/// The settings of a table. Call embank_table_settings_init, set the dim, then change what you like. dim, dtype,
/// initializer, seed, tracking and what lies beside a row for the optimizer are the table's for good; a table that
/// exists is only given out if they are the same. The others hold from the latest call on.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_table_settings {
    /// Set by embank_table_settings_init.
    pub size: usize,
    /// Seed of the initial values. 0.
    pub seed: u64,
    /// A get waits while more than this many gets of its row are outstanding: 0 is bulk-synchronous, k
    /// stale-synchronous, negative: asynchronous, which never waits. -1.
    pub staleness_bound: i64,
    /// Values per row. 0, which has to be changed.
    pub dim: u32,
    /// One of embank_dtype. EMBANK_DTYPE_F32.
    pub dtype: u32,
    /// One of embank_tracking; 8 bytes a row. EMBANK_TRACKING_NONE.
    pub tracking: u32,
    /// Zero.
    pub reserved: u32,
    /// The longest gradient of a row: one whose L2 norm is above it is scaled down to it. 0: as they come. 0.
    pub clip_row_norm: f64,
    /// What applies gradients. None.
    pub optimizer: embank_optimizer,
    /// How new rows are filled. Uniformly between -0.05 and 0.05.
    pub initializer: embank_initializer,
}

impl Growing for embank_table_settings {
    const NAME: &'static str = "embank_table_settings";
    const FILLED_BY: &'static str = "embank_table_settings_init";
    const SIZE_MIN: usize = 240;

    fn defaults() -> Self {
        // All of them are in this header, which the tests hold it to.
        Self::from_rust(&TableConfig::new(0)).unwrap_or(Self::zeroed())
    }
}

impl embank_table_settings {
    pub(crate) fn from_rust(config: &TableConfig) -> Result<Self, Failure> {
        Ok(Self {
            size: size_of::<Self>(),
            seed: config.seed,
            staleness_bound: bound_from_rust(config.staleness_bound),
            dim: config.dim,
            dtype: match config.dtype {
                Dtype::F32 => embank_dtype::F32 as u32,
                other => return Err(beyond_this_header("dtype", &other)),
            },
            tracking: match config.tracking {
                Tracking::None => embank_tracking::None as u32,
                Tracking::Minutes => embank_tracking::Minutes as u32,
                Tracking::SetTime => embank_tracking::SetTime as u32,
                other => return Err(beyond_this_header("tracking", &other)),
            },
            reserved: 0,
            clip_row_norm: config.clip_row_norm.map_or(0.0, f64::from),
            optimizer: embank_optimizer::from_rust(config.optimizer)?,
            initializer: embank_initializer::from_rust(&config.initializer)?,
        })
    }

    pub(crate) fn to_rust(self) -> Result<TableConfig, Failure> {
        const F32: u32 = embank_dtype::F32 as u32;
        const NONE: u32 = embank_tracking::None as u32;
        const MINUTES: u32 = embank_tracking::Minutes as u32;
        const SET_TIME: u32 = embank_tracking::SetTime as u32;
        let mut config = TableConfig::new(self.dim)
            .optimizer(self.optimizer.to_rust()?)
            .initializer(self.initializer.to_rust()?)
            .seed(self.seed)
            .staleness_bound(bound_to_rust(self.staleness_bound)?);
        config.dtype = match self.dtype {
            F32 => Dtype::F32,
            other => return Err(no_such_number("embank_dtype", other)),
        };
        config.tracking = match self.tracking {
            NONE => Tracking::None,
            MINUTES => Tracking::Minutes,
            SET_TIME => Tracking::SetTime,
            other => return Err(no_such_number("embank_tracking", other)),
        };
        check_zeros("embank_table_settings", &[self.reserved.into()])?;
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

pub(crate) fn no_such_number(name: &str, number: u32) -> Failure {
    Failure::invalid(format!("there is no {name} {number} in Embank {}", env!("CARGO_PKG_VERSION")))
}

pub(crate) fn check_zeros(name: &str, reserved: &[f64]) -> Result<(), Failure> {
    if reserved.iter().all(|&value| value == 0.0) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "an {name} has numbers where zeros must be; make it with one of the functions of the header"
    )))
}

/// A table that some other program made with what C has no name for yet.
pub(crate) fn beyond_this_header(what: &str, value: &dyn std::fmt::Debug) -> Failure {
    Failure {
        status: embank_status::Other,
        message: format!("the table has {what} {value:?}, which the C ABI can't tell of"),
    }
}

/// Sets every setting to its default, the dim to 0. `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_settings_init(
    settings: *mut embank_table_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe { sized::write(settings, size, &embank_table_settings::defaults()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use embank::{Initializer, Optimizer};

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let mut settings = embank_table_settings::defaults();
        assert_eq!(settings.size, size_of::<embank_table_settings>());
        settings.dim = 3;
        assert_eq!(settings.to_rust().unwrap(), TableConfig::new(3));
    }

    #[test]
    fn settings_come_back_as_they_went() {
        let tracked = [Tracking::None, Tracking::Minutes, Tracking::SetTime];
        for (bound, tracking) in [None, Some(0), Some(u32::MAX)].into_iter().zip(tracked) {
            let mut config = TableConfig::new(7)
                .optimizer(Optimizer::adam(0.1))
                .initializer(Initializer::Constant(2.0))
                .seed(u64::MAX)
                .tracking(tracking)
                .staleness_bound(bound);
            config.clip_row_norm = Some(0.5);
            let settings = embank_table_settings::from_rust(&config).unwrap();
            assert_eq!(settings.to_rust().unwrap(), config);
        }
    }

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        let mut bad = [embank_table_settings::defaults(); 4];
        bad[0].dtype = 99;
        bad[1].staleness_bound = 1 << 32;
        bad[2].tracking = 99;
        bad[3].reserved = 1;
        for settings in bad {
            assert_eq!(settings.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
