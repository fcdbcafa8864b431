//! Tests that descriptors are read back unchanged, and that damaged and newer ones are refused.

use super::*;
use crate::optimizer::{Adam, AdamW, Ftrl, RowWiseAdagrad, Sgd};

fn optimizers() -> Vec<Optimizer> {
    vec![
        Optimizer::None,
        Optimizer::sgd(0.5),
        Optimizer::Sgd(Sgd {
            lr: 0.1,
            momentum: 0.9,
            dampening: 0.0,
            nesterov: true,
            weight_decay: 0.2,
        }),
        Optimizer::Adagrad(Adagrad {
            lr: 0.1,
            lr_decay: 0.2,
            weight_decay: 0.3,
            initial_accumulator: 0.4,
            eps: 0.5,
        }),
        Optimizer::RowWiseAdagrad(RowWiseAdagrad {
            lr: 0.1,
            weight_decay: 0.3,
            initial_accumulator: 0.4,
            eps: 0.5,
        }),
        Optimizer::Adam(Adam { lr: 0.1, betas: (0.2, 0.3), eps: 0.4, weight_decay: 0.5 }),
        Optimizer::AdamW(AdamW { lr: 0.1, betas: (0.2, 0.3), eps: 0.4, weight_decay: 0.5 }),
        Optimizer::Ftrl(Ftrl { lr: 0.1, beta: 0.2, l1: 0.3, l2: 0.4, initial_accumulator: 0.5 }),
    ]
}

fn initializers() -> Vec<Initializer> {
    let fans = Fans { fan_in: None, fan_out: Some(u64::MAX) };
    vec![
        Initializer::Zeros,
        Initializer::Constant(1.5),
        Initializer::default(),
        Initializer::Normal { mean: 1.0, std: 2.0 },
        Initializer::TruncatedNormal { mean: 1.0, std: 2.0, low: 0.5, high: 9.0 },
        Initializer::XavierUniform { gain: 2.0, fans },
        Initializer::XavierNormal { gain: 0.5, fans: Fans { fan_in: Some(3), fan_out: None } },
    ]
}

#[test]
fn a_descriptor_comes_back_as_it_was_written() {
    for optimizer in optimizers().into_iter().chain(Optimizer::each_kind(0.25)) {
        for initializer in initializers() {
            let config = TableConfig::new(24)
                .optimizer(optimizer)
                .initializer(initializer)
                .seed(u64::MAX)
                .clip_row_norm(Some(2.5))
                .tracking(Tracking::SetTime)
                .admission(Admission::AfterGets(u32::MAX))
                .shard(Some(4095))
                .staleness_bound(Some(3));
            let descriptor = config.to_descriptor();
            assert!(descriptor.len() < 1024, "the store takes 2,048 bytes");
            assert_eq!(TableConfig::from_descriptor("t", &descriptor).unwrap(), config);
        }
    }
    for &dtype in Dtype::ALL.iter().filter(|&&dtype| dtype != Dtype::F32) {
        for state_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for rounding in [None, Some(Rounding::Nearest), Some(Rounding::Stochastic)] {
                let config =
                    TableConfig::new(24).dtype(dtype).state_dtype(state_dtype).rounding(rounding);
                let read = TableConfig::from_descriptor("t", &config.to_descriptor()).unwrap();
                assert_eq!(read, config);
            }
        }
    }
    let mut bound = TableConfig::new(1).vocabulary("words");
    let identity = TableConfig::from_descriptor("t", &bound.to_descriptor()).unwrap();
    bound.vocabulary = identity.vocabulary.clone();
    assert_eq!(identity, bound);
    assert!(bound.vocabulary.is_some_and(|of| of.name == "words" && of.identity.is_some()));
    let plain = TableConfig::new(1);
    assert_eq!(TableConfig::from_descriptor("t", &plain.to_descriptor()).unwrap(), plain);
}

fn refusal(descriptor: &[u8]) -> String {
    match TableConfig::from_descriptor("t", descriptor) {
        Err(Error::UnreadableTable { table, reason }) if table == "t" => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_or_foreign_descriptor_is_refused() {
    let mut damaged = TableConfig::new(24).to_descriptor();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    refusal(&damaged);
    refusal(&[]);
    let foreign = metadata::encode(&(99_u16, 1_u16, Vec::<u8>::new()));
    assert!(refusal(&foreign).contains("kind 99"), "{}", refusal(&foreign));
    let newer = metadata::encode(&(EMBEDDING_TABLE, 3_u16, Vec::<u8>::new()));
    assert!(refusal(&newer).contains("version 3"), "{}", refusal(&newer));
}

/// Returns the descriptor of a plain table after `change` was applied to its settings.
fn with(change: impl FnOnce(&mut Vec<(u16, Vec<u8>)>)) -> Vec<u8> {
    let descriptor = TableConfig::new(24).to_descriptor();
    let (.., settings): (u16, u16, Vec<u8>) = metadata::decode(&descriptor).unwrap();
    let mut settings: Vec<(u16, Vec<u8>)> = metadata::decode(&settings).unwrap();
    change(&mut settings);
    metadata::encode(&(EMBEDDING_TABLE, VERSION, metadata::encode(&settings)))
}

#[test]
fn unknown_settings_are_refused_unless_they_can_be_passed_over() {
    let unknown = refusal(&with(|settings| settings.push((99, vec![1]))));
    assert!(unknown.contains("number 99") && unknown.contains("newer"), "{unknown}");
    let optional = with(|settings| settings.push((tag::MAY_BE_SKIPPED | 99, vec![1])));
    assert_eq!(TableConfig::from_descriptor("t", &optional).unwrap(), TableConfig::new(24));
}

#[test]
fn settings_that_are_missing_short_long_or_out_of_range_are_refused() {
    for i in 0..5 {
        refusal(&with(|settings| drop(settings.remove(i))));
        refusal(&with(|settings| {
            settings[i].1.pop();
        }));
        refusal(&with(|settings| settings[i].1.push(0)));
    }
    for (tag, bytes) in [(tag::DTYPE, 200), (tag::OPTIMIZER, 200), (tag::INITIALIZER, 200)] {
        let unknown = refusal(&with(|settings| {
            settings.iter_mut().find(|setting| setting.0 == tag).unwrap().1[0] = bytes;
        }));
        assert!(unknown.contains("number 200"), "{unknown}");
    }
    let no_columns = with(|settings| settings[0].1.fill(0));
    let error = TableConfig::from_descriptor("t", &no_columns).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
}

#[test]
fn version_1_is_read_with_the_numbers_that_were_meant() {
    let settings: SettingsOfVersion1 =
        (24, 0, (2, [0.1, 1e-10, 0.25]), (3, [0.0, 0.01]), 7, Some(4));
    let descriptor = metadata::encode(&(EMBEDDING_TABLE, 1_u16, metadata::encode(&settings)));
    let adagrad = Adagrad { initial_accumulator: 0.25, ..Adagrad::new(0.1) };
    let expected = TableConfig::new(24)
        .optimizer(Optimizer::Adagrad(adagrad))
        .initializer(Initializer::Normal { mean: 0.0, std: 0.01 })
        .seed(7)
        .staleness_bound(Some(4));
    assert_eq!(TableConfig::from_descriptor("t", &descriptor).unwrap(), expected);
}

/// Pins the byte order of each optimizer's numbers. A round trip would not detect a changed order,
/// because one list serves both writing and reading.
#[test]
fn an_optimizer_lies_as_the_format_says() {
    let accumulator = |value: f32| value.to_le_bytes().to_vec();
    let expected: [(u8, &[f64], Vec<u8>); 8] = [
        (0, &[], Vec::new()),
        (1, &[0.5, 0.0, 0.0, 0.0], vec![0]),
        (1, &[0.1, 0.9, 0.0, 0.2], vec![1]),
        (2, &[0.1, 0.2, 0.3, 0.5], accumulator(0.4)),
        (3, &[0.1, 0.3, 0.5], accumulator(0.4)),
        (4, &[0.1, 0.2, 0.3, 0.4, 0.5], Vec::new()),
        (5, &[0.1, 0.2, 0.3, 0.4, 0.5], Vec::new()),
        (6, &[0.1, 0.2, 0.3, 0.4], accumulator(0.5)),
    ];
    for (optimizer, (kind, numbers, rest)) in optimizers().into_iter().zip(expected) {
        let mut bytes = vec![kind];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(rest);
        assert_eq!(optimizer_bytes(optimizer), bytes, "{optimizer:?}");
    }
}
