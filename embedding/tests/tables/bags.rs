//! Tests that bags give the same values and gradients as pooling by the caller, and that a refused
//! call holds no lease.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{new_bank, new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{
    Admission, Bags, BankOptions, Dtype, Error, Initializer, Lease, Missing, Optimizer, Pooling,
    Table, TableConfig, TableGradients,
};
use fastrand::Rng;

/// A random batch of keys, divided into bags.
struct Batch {
    keys: Vec<u64>,
    offsets: Vec<u64>,
    pooling: Pooling,
    weights: Option<Vec<f32>>,
}

impl Batch {
    /// Makes a batch of at most `keys_max` keys below `values`.
    fn random(random: &mut Rng, keys_max: usize, values: u64) -> Self {
        let keys: Vec<u64> = (0..random.usize(..=keys_max)).map(|_| random.u64(..values)).collect();
        let mut offsets: Vec<u64> =
            (0..random.usize(..40)).map(|_| random.u64(..=keys.len() as u64)).collect();
        offsets.extend([0, keys.len() as u64]);
        offsets.sort_unstable();
        let (pooling, weighted) = match random.u8(..3) {
            0 => (Pooling::Sum, false),
            1 => (Pooling::Mean, false),
            _ => (Pooling::Sum, true),
        };
        let weights = weighted.then(|| keys.iter().map(|_| random.f32() - 0.5).collect());
        Self { keys, offsets, pooling, weights }
    }

    fn bags(&self) -> Bags<'_> {
        let weights = self.weights.as_deref();
        Bags { offsets: &self.offsets, pooling: self.pooling, weights }
    }

    /// Returns the range of places of each bag.
    fn places(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// Pools `rows`, which has one row per key of the batch.
    fn pooled(&self, rows: &[f32], dim: usize) -> Vec<f32> {
        let mut pooled = Vec::new();
        for places in self.places() {
            let mut sum = vec![0.0; dim];
            for place in places.clone() {
                for (sum, &value) in sum.iter_mut().zip(&rows[place * dim..]) {
                    *sum += self.weights.as_ref().map_or(value, |weights| weights[place] * value);
                }
            }
            if self.pooling == Pooling::Mean {
                sum.iter_mut().for_each(|sum| *sum /= places.len().max(1) as f32);
            }
            pooled.extend(sum);
        }
        pooled
    }

    /// Returns the gradient of each place, computed from the gradients of the bags.
    fn of_places(&self, gradients: &[f32], dim: usize) -> Vec<f32> {
        let mut found = vec![0.0; self.keys.len() * dim];
        for (bag, places) in self.places().enumerate() {
            for place in places.clone() {
                let scale = match (&self.weights, self.pooling) {
                    (Some(weights), _) => weights[place],
                    (None, Pooling::Mean) => 1.0 / places.len() as f32,
                    (None, Pooling::Sum) => 1.0,
                };
                let gradient = &gradients[bag * dim..][..dim];
                for (to, &value) in found[place * dim..].iter_mut().zip(gradient) {
                    *to = scale * value;
                }
            }
        }
        found
    }
}

fn config(dim: u32) -> TableConfig {
    TableConfig::new(dim).optimizer(Optimizer::adagrad(0.1))
}

#[test]
fn random_batches_are_pooled_and_stepped_as_a_caller_would() {
    let seed = Rng::new().u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for (dim, dtype) in [(1, Dtype::F32), (5, Dtype::F32), (64, Dtype::F32), (8, Dtype::Bf16)] {
        let of_bags = new_bank();
        let of_rows = new_bank();
        let a = table(&of_bags.bank, config(dim).dtype(dtype));
        let b = table(&of_rows.bank, config(dim).dtype(dtype));
        let dim = dim as usize;
        for step in 0..120 {
            let batch = Batch::random(&mut random, 400, 150);
            let bags = batch.bags();
            let mut pooled = vec![f32::NAN; bags.len() * dim];
            let mut rows = vec![f32::NAN; batch.keys.len() * dim];
            if step % 3 == 0 {
                a.peek_bags(&batch.keys, bags, &mut pooled).unwrap();
                b.peek(&batch.keys, &mut rows, Missing::Initial).unwrap();
                assert_eq!(pooled, batch.pooled(&rows, dim), "step {step}");
            }
            let lease = get_bags(&a, &batch.keys, bags, &mut pooled).unwrap();
            let twin = b.get(&batch.keys, &mut rows).unwrap();
            assert_eq!(pooled, batch.pooled(&rows, dim), "step {step}");
            let gradients: Vec<f32> = pooled.iter().map(|_| random.f32() - 0.5).collect();
            let of_places = batch.of_places(&gradients, dim);
            let summed = lease.sum_gradients(&gradients).unwrap();
            assert_eq!(summed, twin.sum_gradients(&of_places).unwrap());
            if step % 2 == 0 {
                lease.apply(&gradients).unwrap();
                twin.apply(&of_places).unwrap();
            } else {
                apply(lease, &gradients);
                apply(twin, &of_places);
            }
            if step == 60 {
                push_to_disk(&of_bags.bank);
            }
        }
        let keys: Vec<u64> = (0..150).filter(|&key| a.contains(&[key]).unwrap()[0]).collect();
        assert_eq!(rows_of(&a, &keys), rows_of(&b, &keys));
        assert!(keys.iter().all(|&key| a.outstanding(key).unwrap() == Some(0)));
    }
}

fn get_bags(
    table: &Table,
    keys: &[u64],
    bags: Bags<'_>,
    pooled: &mut [f32],
) -> embank::Result<Lease> {
    table.get_rows(table.request(keys)?.bags(bags), pooled)
}

fn apply(lease: Lease, gradients: &[f32]) {
    let part = TableGradients { leases: vec![lease], keys: None, gradients };
    Lease::apply_many(vec![part]).unwrap();
}

/// Shows that the values of bags do not depend on which rows are in memory.
#[test]
fn bags_of_rows_on_disk_are_those_of_rows_in_memory() {
    let small = new_bank();
    let large = new_bank_with(BankOptions { memory_budget_bytes: 64 << 20, ..small_options() });
    let tables = [&small, &large].map(|bank| table(&bank.bank, config(64)));
    let keys: Vec<u64> = (0..20_000).collect();
    for table in &tables {
        for some in keys.chunks(1000) {
            table.get(some, &mut vec![0.0; some.len() * 64]).unwrap().release().unwrap();
        }
    }
    let mut random = Rng::with_seed(5);
    let offsets: Vec<u64> = (0..=300).map(|bag| bag * 10).collect();
    let bags = Bags { offsets: &offsets, pooling: Pooling::Sum, weights: None };
    for _ in 0..10 {
        let keys: Vec<u64> = (0..3000).map(|_| random.u64(..20_000)).collect();
        let [of_small, of_large] = tables.each_ref().map(|table| {
            let mut pooled = vec![0.0; 300 * 64];
            let lease = get_bags(table, &keys, bags, &mut pooled).unwrap();
            lease.apply(&pooled).unwrap();
            pooled
        });
        assert_eq!(of_small, of_large);
    }
    assert!(tables[0].stats().disk_reads > 0);
    assert_eq!(rows_of(&tables[0], &keys[..5000]), rows_of(&tables[1], &keys[..5000]));
}

#[test]
fn keys_that_are_not_admitted_count_with_their_initial_values() {
    let bank = new_bank();
    let config =
        config(2).admission(Admission::AfterGets(2)).initializer(Initializer::Constant(3.0));
    let table = table(&bank.bank, config);
    let bags = Bags { offsets: &[0, 2], pooling: Pooling::Sum, weights: None };
    let mut pooled = [0.0; 2];
    for admitted in [false, true] {
        let lease = get_bags(&table, &[7, 7], bags, &mut pooled).unwrap();
        assert_eq!(pooled, [6.0, 6.0]);
        lease.apply(&[1.0, 1.0]).unwrap();
        assert_eq!(table.contains(&[7]).unwrap(), [admitted]);
    }
    assert!(rows_of(&table, &[7])[0] < 3.0);
}

#[test]
fn bags_that_do_not_fit_are_refused_and_nothing_is_held() {
    let bank = new_bank();
    let table = table(&bank.bank, config(1));
    let keys = [4, 5, 4];
    let sum = |offsets| Bags { offsets, pooling: Pooling::Sum, weights: None };
    let with_weights = |weights| Bags { weights: Some(weights), ..sum(&[0, 3]) };
    let bad: [(&str, Bags<'_>); 10] = [
        ("found no offset", sum(&[])),
        ("found 1 offsets from 0 to 0", sum(&[0])),
        ("begin with 0", sum(&[1, 3])),
        ("end with the number of keys, 3", sum(&[0, 2])),
        ("end with the number of keys, 3", sum(&[0, 4])),
        ("never fall", sum(&[0, 2, 1, 3])),
        ("never fall", sum(&[0, u64::MAX, 3])),
        ("found 2 offsets from 0 to 18446744073709551615", sum(&[0, u64::MAX])),
        ("3 keys need 3 weights, found 2", with_weights(&[1.0, 2.0])),
        (
            "weights go with Pooling::Sum",
            Bags { pooling: Pooling::Mean, ..with_weights(&[1.0, 2.0, 3.0]) },
        ),
    ];
    for (wanted, bags) in bad {
        let mut pooled = vec![0.0; bags.len()];
        for failed in [
            get_bags(&table, &keys, bags, &mut pooled).map(drop),
            table.peek_bags(&keys, bags, &mut pooled),
        ] {
            match failed {
                Err(error @ Error::BadBags { .. }) => {
                    assert!(error.to_string().contains(wanted), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        all_returned(&table);
    }
    let bags = sum(&[0, 3]);
    let short = get_bags(&table, &keys, bags, &mut []);
    assert!(matches!(short, Err(Error::ShapeMismatch { what: "rows", expected: 1, found: 0, .. })));
    let lease = get_bags(&table, &keys, bags, &mut [0.0]).unwrap();
    assert!(matches!(
        lease.apply(&[1.0, 2.0]),
        Err(Error::ShapeMismatch { what: "gradients", expected: 1, found: 2, .. })
    ));
    let lease = get_bags(&table, &keys, bags, &mut [0.0]).unwrap();
    match lease.put(&[1.0]) {
        Err(Error::BadBags { what, .. }) => assert!(what.contains("can't be put"), "{what}"),
        other => panic!("{other:?}"),
    }
    let lease = get_bags(&table, &keys, bags, &mut [0.0]).unwrap();
    assert!(matches!(
        lease.apply(&[f32::NAN]),
        Err(Error::NonFiniteGradient { key: 4, column: 0, .. })
    ));
    all_returned(&table);
}

fn all_returned(table: &Table) {
    for key in [4, 5] {
        assert_eq!(table.outstanding(key).unwrap().unwrap_or(0), 0, "key {key}");
    }
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn an_empty_batch_has_empty_bags() {
    let bank = new_bank();
    let table = table(&bank.bank, config(2));
    let bags = Bags { offsets: &[0, 0, 0], pooling: Pooling::Mean, weights: None };
    let mut pooled = [7.0; 4];
    get_bags(&table, &[], bags, &mut pooled).unwrap().apply(&[1.0; 4]).unwrap();
    assert_eq!(pooled, [0.0; 4]);
    let none = Bags { offsets: &[0], ..bags };
    assert!(none.is_empty());
    get_bags(&table, &[], none, &mut []).unwrap().release().unwrap();
}
