//! Initializers: the initial values of rows.

use bytemuck::{Pod, Zeroable};
use embank::{Fans, Initializer};

use crate::refusals::{beyond_this_header, check_zeros, no_such_number};
use crate::status::Failure;

/// The kinds of initializers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_initializer_kind {
    /// Zeros.
    Zeros = 0,
    /// Every value is parameters[0].
    Constant = 1,
    /// Uniform between parameters[0] and parameters[1].
    Uniform = 2,
    /// Normal with mean parameters[0] and standard deviation parameters[1].
    Normal = 3,
    /// Normal with mean parameters[0] and standard deviation parameters[1], but only values between
    /// parameters[2] and parameters[3].
    TruncatedNormal = 4,
    /// torch.nn.init.xavier_uniform_, with gain parameters[0].
    XavierUniform = 5,
    /// torch.nn.init.xavier_normal_, with gain parameters[0].
    XavierNormal = 6,
}

/// An initializer: its kind and its numbers. Make one with embank_uniform or another function of
/// its kind. A struct of zeros is EMBANK_INITIALIZER_KIND_ZEROS.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_initializer {
    /// One of embank_initializer_kind.
    pub kind: u32,
    /// The kind's parameters. Elements that the kind does not use must be zeros.
    pub parameters: [f32; 7],
    /// For the Xavier kinds: the fan_in. 0 means the table's dim, which torch also takes as the
    /// fan_in of an Embedding.
    pub fan_in: u64,
    /// For the Xavier kinds: the fan_out. 0 means the table's dim. Torch takes the number of rows
    /// as the fan_out of an Embedding, so set that number to get torch's values.
    pub fan_out: u64,
}

impl embank_initializer {
    pub(crate) fn from_rust(initializer: &Initializer) -> Result<Self, Failure> {
        use embank_initializer_kind as Kind;
        let of = |kind: Kind, numbers: &[f32]| {
            let mut made = Self { kind: kind as u32, ..Self::zeroed() };
            made.parameters[..numbers.len()].copy_from_slice(numbers);
            made
        };
        let with_fans = |made: Self, fans: &Fans| Self {
            fan_in: fans.fan_in.unwrap_or(0),
            fan_out: fans.fan_out.unwrap_or(0),
            ..made
        };
        Ok(match initializer {
            Initializer::Zeros => of(Kind::Zeros, &[]),
            Initializer::Constant(value) => of(Kind::Constant, &[*value]),
            Initializer::Uniform { low, high } => of(Kind::Uniform, &[*low, *high]),
            Initializer::Normal { mean, std } => of(Kind::Normal, &[*mean, *std]),
            Initializer::TruncatedNormal { mean, std, low, high } => {
                of(Kind::TruncatedNormal, &[*mean, *std, *low, *high])
            }
            Initializer::XavierUniform { gain, fans } => {
                with_fans(of(Kind::XavierUniform, &[*gain]), fans)
            }
            Initializer::XavierNormal { gain, fans } => {
                with_fans(of(Kind::XavierNormal, &[*gain]), fans)
            }
            other => return Err(beyond_this_header("initializer", other)),
        })
    }

    pub(crate) fn to_rust(self) -> Result<Initializer, Failure> {
        const ZEROS: u32 = embank_initializer_kind::Zeros as u32;
        const CONSTANT: u32 = embank_initializer_kind::Constant as u32;
        const UNIFORM: u32 = embank_initializer_kind::Uniform as u32;
        const NORMAL: u32 = embank_initializer_kind::Normal as u32;
        const TRUNCATED_NORMAL: u32 = embank_initializer_kind::TruncatedNormal as u32;
        const XAVIER_UNIFORM: u32 = embank_initializer_kind::XavierUniform as u32;
        const XAVIER_NORMAL: u32 = embank_initializer_kind::XavierNormal as u32;
        let [first, second, third, fourth, ..] = self.parameters;
        let some_unless_0 = |fan: u64| (fan != 0).then_some(fan);
        let fans =
            Fans { fan_in: some_unless_0(self.fan_in), fan_out: some_unless_0(self.fan_out) };
        let (made, numbers) = match self.kind {
            ZEROS => (Initializer::Zeros, 0),
            CONSTANT => (Initializer::Constant(first), 1),
            UNIFORM => (Initializer::Uniform { low: first, high: second }, 2),
            NORMAL => (Initializer::Normal { mean: first, std: second }, 2),
            TRUNCATED_NORMAL => {
                let mean = first;
                let std = second;
                let low = third;
                let high = fourth;
                (Initializer::TruncatedNormal { mean, std, low, high }, 4)
            }
            XAVIER_UNIFORM => (Initializer::XavierUniform { gain: first, fans }, 1),
            XAVIER_NORMAL => (Initializer::XavierNormal { gain: first, fans }, 1),
            other => return Err(no_such_number("embank_initializer_kind", other)),
        };
        check_zeros("embank_initializer", &self.parameters.map(f64::from)[numbers..])?;
        let has_fans = matches!(self.kind, XAVIER_UNIFORM | XAVIER_NORMAL);
        if fans != Fans::default() && !has_fans {
            return Err(Failure::invalid("only Xavier's initializers have fans; leave them at 0"));
        }
        Ok(made)
    }

    /// Converts an initializer of the library. The header must be able to express it; otherwise the
    /// result is a struct of zeros.
    fn of(initializer: &Initializer) -> Self {
        Self::from_rust(initializer).unwrap_or(Self::zeroed())
    }
}

/// Every value of a new row is `value`.
#[unsafe(no_mangle)]
pub extern "C" fn embank_constant(value: f32) -> embank_initializer {
    embank_initializer::of(&Initializer::Constant(value))
}

/// The values of new rows are uniform between `low` and `high`.
#[unsafe(no_mangle)]
pub extern "C" fn embank_uniform(low: f32, high: f32) -> embank_initializer {
    embank_initializer::of(&Initializer::Uniform { low, high })
}

/// The values of new rows are normal (Gaussian), with this mean and standard deviation.
#[unsafe(no_mangle)]
pub extern "C" fn embank_normal(mean: f32, std: f32) -> embank_initializer {
    embank_initializer::of(&Initializer::Normal { mean, std })
}

/// The values of new rows are normal, but only values between `low` and `high`, as with
/// torch.nn.init.trunc_normal_.
#[unsafe(no_mangle)]
pub extern "C" fn embank_truncated_normal(
    mean: f32,
    std: f32,
    low: f32,
    high: f32,
) -> embank_initializer {
    embank_initializer::of(&Initializer::TruncatedNormal { mean, std, low, high })
}

/// Initializes as torch.nn.init.xavier_uniform_ does. Both fans are the table's dim; to change
/// that, set fan_in and fan_out of the result.
#[unsafe(no_mangle)]
pub extern "C" fn embank_xavier_uniform(gain: f32) -> embank_initializer {
    embank_initializer::of(&Initializer::XavierUniform { gain, fans: Fans::default() })
}

/// Initializes as torch.nn.init.xavier_normal_ does. Both fans are the table's dim; to change that,
/// set fan_in and fan_out of the result.
#[unsafe(no_mangle)]
pub extern "C" fn embank_xavier_normal(gain: f32) -> embank_initializer {
    embank_initializer::of(&Initializer::XavierNormal { gain, fans: Fans::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::embank_status;

    #[test]
    fn initializers_come_back_as_they_went() {
        let fans = Fans { fan_in: Some(3), fan_out: None };
        let all = [
            Initializer::Zeros,
            Initializer::Constant(1.5),
            Initializer::Uniform { low: -1.0, high: 2.0 },
            Initializer::Normal { mean: 1.0, std: 2.0 },
            Initializer::TruncatedNormal { mean: 1.0, std: 2.0, low: 0.5, high: 3.0 },
            Initializer::XavierUniform { gain: 2.0, fans },
            Initializer::XavierNormal { gain: 2.0, fans },
        ];
        for (kind, initializer) in (0..).zip(all) {
            let for_c = embank_initializer::from_rust(&initializer).unwrap();
            assert_eq!(for_c.kind, kind);
            assert_eq!(for_c.to_rust().unwrap(), initializer);
        }
    }

    #[test]
    fn a_number_that_would_be_ignored_is_refused() {
        let mut bad = [embank_uniform(0.0, 1.0); 4];
        bad[0].kind = 99;
        bad[1].parameters[2] = 1.0;
        bad[2].parameters[6] = f32::NAN;
        bad[3].fan_out = 1;
        for initializer in bad {
            assert_eq!(initializer.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
