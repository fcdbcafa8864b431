//! Fuzz target: edits a delta, then applies it to a copy of a bank.

#![no_main]

use std::sync::LazyLock;

use embank_kv_fuzz::damaged_bank::Bank;
use embank_kv_fuzz::damaged_delta::DamagedDelta;

static BANK: LazyLock<Bank> = LazyLock::new(|| Bank::new(&embank_kv_fuzz::folder()));

libfuzzer_sys::fuzz_target!(|damage: DamagedDelta| BANK.apply(&damage, &embank_kv_fuzz::folder()));
