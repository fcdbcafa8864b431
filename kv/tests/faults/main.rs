//! Tests of faults. Damaged files, failing devices and full disks must give errors, and never wrong
//! rows.

#[path = "../common/mod.rs"]
mod common;

mod damage;
mod device_errors;
mod device_faults;
mod faulty;
mod full_disk;
mod fuzz_corpus;
mod parts;
mod salvaging;
mod sealed_damage;
#[expect(unreachable_pub, reason = "shared with the fuzz targets")]
#[path = "../../fuzz/src/seals.rs"]
mod seals;
mod spilling;
mod verifying;
