//! Fuzz target: edits the files of a small bank, then opens, reads or salvages it.

#![no_main]

use std::sync::LazyLock;

use embank_kv_fuzz::damaged_bank::{Bank, Damage};

static BANK: LazyLock<Bank> = LazyLock::new(|| Bank::new(&embank_kv_fuzz::folder()));

libfuzzer_sys::fuzz_target!(|damage: Damage| BANK.run(&damage, &embank_kv_fuzz::folder()));
