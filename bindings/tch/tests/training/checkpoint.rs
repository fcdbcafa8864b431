//! `save` and `load`: rows and variables in one checkpoint.

use std::path::Path;

use embank::{Bank, BankOptions};
use embank_tch::{Embedding, Error, SparseOptimizer, load, save};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use crate::{DIM, bank, keys, loss, rows, table, values};

/// A layer of constants, so that tests that run side by side draw no random numbers.
fn layer(variables: &nn::VarStore, outputs: i64) -> nn::Linear {
    let init = nn::Init::Const(0.125);
    let config = nn::LinearConfig { ws_init: init, bs_init: Some(init), bias: true };
    nn::linear(variables.root() / "top", DIM as i64, outputs, config)
}

/// Trains until step 10, or until it has saved step `pause`. Resumes from the bank's checkpoint.
/// Returns the rows and the variables.
fn train(path: &Path, pause: Option<i64>) -> (Vec<f32>, Vec<f32>) {
    let bank = Bank::open(path, BankOptions::default()).unwrap();
    let mut variables = nn::VarStore::new(Device::Cpu);
    let top = layer(&variables, 2);
    let first = match load(&bank, &mut variables).unwrap() {
        Some(more) => i64::from_le_bytes(more.try_into().unwrap()),
        None => 0,
    };
    let mut sgd = nn::Sgd::default().build(&variables, 0.01).unwrap();
    let tables = SparseOptimizer::new();
    let table = table(&bank, "word");
    let module = Embedding::new(table.clone(), &tables);
    for step in first..10 {
        if pause == Some(step) {
            save(&bank, &variables, &step.to_le_bytes()).unwrap();
            break;
        }
        let loss = loss(&top.forward(&module.forward(&keys(step, 6)).unwrap()));
        sgd.backward_step(&loss);
        tables.step().unwrap();
    }
    let dense = Tensor::cat(&[top.ws.view(-1), top.bs.unwrap().view(-1)], 0);
    (rows(&table), values(&dense))
}

#[test]
fn a_resumed_run_ends_as_one_without_a_pause_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, paused) = (folder.path().join("whole"), folder.path().join("paused"));
    let halfway = train(&paused, Some(5));
    let end = train(&paused, None);
    assert_ne!(end, halfway);
    assert_eq!(end, train(&whole, None));
}

#[test]
fn a_bank_without_a_checkpoint_has_nothing_to_load() {
    let (bank, _folder) = bank();
    let mut variables = nn::VarStore::new(Device::Cpu);
    assert!(load(&bank, &mut variables).unwrap().is_none());
}

#[test]
fn a_reader_gets_the_variables_of_the_checkpoint_that_it_reads() {
    let (bank, _folder) = bank();
    let mut variables = nn::VarStore::new(Device::Cpu);
    let top = layer(&variables, 2);
    save(&bank, &variables, b"one").unwrap();
    let reader = Bank::open_read_only(bank.path(), BankOptions::default(), None).unwrap();
    let _ = tch::no_grad(|| top.ws.shallow_clone().zero_());
    save(&bank, &variables, b"two").unwrap();
    assert_eq!(load(&reader, &mut variables).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(values(&top.ws), [0.125; 2 * DIM]);
    reader.refresh().unwrap();
    assert_eq!(load(&reader, &mut variables).unwrap().as_deref(), Some(&b"two"[..]));
    assert_eq!(values(&top.ws), [0.0; 2 * DIM]);
}

#[test]
fn variables_of_another_model_are_named_and_unchanged() {
    let (bank, _folder) = bank();
    let saved = nn::VarStore::new(Device::Cpu);
    layer(&saved, 1);
    save(&bank, &saved, b"").unwrap();
    let reader = Bank::open_read_only(bank.path(), BankOptions::default(), None).unwrap();
    let refused = |mut variables: nn::VarStore| {
        let error = load(&reader, &mut variables).unwrap_err();
        assert!(matches!(error, Error::VariablesDiffer { .. }), "{error}");
        error.to_string()
    };
    // PyTorch would copy a tensor (1, 3) into (2, 3) without an error.
    let wider = nn::VarStore::new(Device::Cpu);
    let top = layer(&wider, 2);
    let text = refused(wider);
    let shapes = r#""top.weight" is Float [1, 3] in the checkpoint, Float [2, 3] in the VarStore"#;
    assert!(text.contains(shapes), "{text}");
    assert_eq!(values(&top.ws), [0.125; 2 * DIM]);
    let text = refused(nn::VarStore::new(Device::Cpu));
    assert!(text.contains(r#""top.bias" is only in the checkpoint"#), "{text}");
    let more = nn::VarStore::new(Device::Cpu);
    layer(&more, 1);
    for name in ["a", "b", "c", "d"] {
        let _ = (more.root() / name).zeros("more", &[1]);
    }
    let text = refused(more);
    assert!(text.contains(r#""a.more" is only in the VarStore"#), "{text}");
    assert!(text.contains("; and 1 more; build"), "{text}");
    let mut double = nn::VarStore::new(Device::Cpu);
    layer(&double, 1);
    double.set_kind(Kind::Double);
    assert!(refused(double).contains("Double [1] in the VarStore"));
}

#[test]
fn a_blob_of_the_program_is_refused() {
    for blob in [&b""[..], b"a blob of the program's own"] {
        let (bank, _folder) = bank();
        bank.checkpoint(blob).unwrap();
        let reader = Bank::open_read_only(bank.path(), BankOptions::default(), None).unwrap();
        let error = load(&reader, &mut nn::VarStore::new(Device::Cpu)).unwrap_err();
        assert!(matches!(error, Error::NotSavedHere { .. }), "{error}");
    }
}

#[test]
fn no_variables_and_untrained_variables_are_kept() {
    let (bank, _folder) = bank();
    let mut none = nn::VarStore::new(Device::Cpu);
    save(&bank, &none, b"no variables").unwrap();
    let reader = Bank::open_read_only(bank.path(), BankOptions::default(), None).unwrap();
    assert_eq!(load(&reader, &mut none).unwrap().as_deref(), Some(&b"no variables"[..]));
    let mut some = nn::VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(some.root() / "norm", 2, Default::default());
    let _ = tch::no_grad(|| norm.running_mean.shallow_clone().fill_(7.0));
    save(&bank, &some, b"").unwrap();
    let _ = tch::no_grad(|| norm.running_mean.shallow_clone().zero_());
    reader.refresh().unwrap();
    load(&reader, &mut some).unwrap();
    assert_eq!(values(&norm.running_mean), [7.0, 7.0]);
}

#[test]
fn a_name_that_the_format_would_change_is_refused() {
    let (bank, _folder) = bank();
    let variables = nn::VarStore::new(Device::Cpu);
    let _ = variables.root().zeros("a|b", &[1]);
    let error = save(&bank, &variables, b"").unwrap_err();
    assert!(matches!(error, Error::BadVariableName { .. }), "{error}");
}
