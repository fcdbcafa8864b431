//! Errors for numbers that C passes, or that the library would pass to C.

use crate::status::{Failure, embank_status};

/// Returns the error for a number that is no value of the enum `name`, or that only a newer library
/// knows.
pub(crate) fn no_such_number(name: &str, number: u32) -> Failure {
    Failure::invalid(format!("there is no {name} {number} in Embank {}", env!("CARGO_PKG_VERSION")))
}

/// Fails unless all numbers in `reserved` are 0.
pub(crate) fn check_zeros(name: &str, reserved: &[f64]) -> Result<(), Failure> {
    if reserved.iter().all(|&value| value == 0.0) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "an {name} has numbers where zeros must be; make it with one of the functions of the header"
    )))
}

/// Returns the error for a setting that this version of the header can't express. A newer program
/// made the table with that setting.
pub(crate) fn beyond_this_header(what: &str, value: &dyn std::fmt::Debug) -> Failure {
    Failure {
        status: embank_status::Other,
        message: format!("the table has {what} {value:?}, which the C ABI can't tell of"),
    }
}

/// Defines the conversions between an enum of C and an enum of the library with the same variants.
/// The structs of C store the enum as a number.
macro_rules! same_variants {
    ($c:ident, $rust:ident { $($variant:ident),* }) => {
        impl $c {
            pub(crate) fn from_rust(what: &str, value: $rust) -> Result<u32, Failure> {
                match value {
                    $($rust::$variant => Ok(Self::$variant as u32),)*
                    other => Err($crate::refusals::beyond_this_header(what, &other)),
                }
            }

            pub(crate) fn to_rust(number: u32) -> Result<$rust, Failure> {
                $(
                    if number == Self::$variant as u32 {
                        return Ok($rust::$variant);
                    }
                )*
                Err($crate::refusals::no_such_number(stringify!($c), number))
            }
        }
    };
}

pub(crate) use same_variants;
