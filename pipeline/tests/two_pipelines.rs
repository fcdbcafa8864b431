//! Tests that two pipelines of one bank never give one id to two values.
//!
//! Regression test: a vocabulary of a known range numbers in memory, and the bank gets its values
//! at a save. Two pipelines that had not saved gave the same ids to different values.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use embank::{Bank, BankOptions};
use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Input, Operator, Output, Pipeline, RunOptions,
    Spec,
};

fn pipeline(bank: &Bank) -> Pipeline {
    let ids = Column::field("a").then(Operator::FillMissing(0.into())).then(Operator::Modulus(100));
    let spec = Spec {
        fields: vec![Field::new("a", FieldKind::Int64)],
        columns: vec![ids.then(Operator::Vocabulary("v".to_owned()))],
        outputs: vec![Output::new("a", Dtype::I64, ["a"])],
        ..Spec::default()
    };
    Pipeline::with_bank(&spec, &RunOptions::default(), bank).unwrap()
}

fn ids(pipeline: &mut Pipeline, text: &str) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    pipeline.run(&[Input::memory("t", text.as_bytes())], &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    })?;
    Ok(ids)
}

fn bank() -> (tempfile::TempDir, Bank) {
    let folder = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
    let bank = Bank::open(folder.path().join("bank"), options).unwrap();
    (folder, bank)
}

#[test]
fn ids_that_another_pipeline_has_not_saved_are_not_given_again() {
    for saves in [false, true] {
        let (_folder, bank) = bank();
        let mut first = pipeline(&bank);
        let mut second = pipeline(&bank);
        second.save_each_batch(saves);
        assert_eq!(ids(&mut first, "10\n11\n").unwrap(), [0, 1]);
        for _ in 0..2 {
            let error = ids(&mut second, "20\n21\n").unwrap_err();
            assert!(matches!(error, Error::IdsGivenElsewhere { last: 1, .. }), "{error}");
            for part in ["\"v\"", "ids up to 1", "save that pipeline first"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
        // The second pipeline has given nothing, so it can go on after the first has saved.
        first.save().unwrap();
        assert_eq!(ids(&mut second, "20\n11\n").unwrap(), [2, 1]);
        second.save().unwrap();
        assert_eq!(ids(&mut first, "20\n30\n").unwrap(), [2, 3]);
    }
}

#[test]
fn ids_of_a_pipeline_that_is_gone_are_not_given_again() {
    let (_folder, bank) = bank();
    let mut first = pipeline(&bank);
    assert_eq!(ids(&mut first, "10\n").unwrap(), [0]);
    drop(first);
    let error = ids(&mut pipeline(&bank), "20\n").unwrap_err();
    assert!(error.to_string().contains("roll the bank back"), "{error}");
}
