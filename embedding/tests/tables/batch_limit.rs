//! The largest number of keys of a batch.

use bytemuck::Pod;
use embank::{
    Bags, Error, Initializer, Lease, Missing, Optimizer, Pooling, StoreError, TableConfig,
    TableGradients, UniqueKeys, VocabularyConfig,
};
use memmap2::{MmapMut, MmapOptions};

use crate::common::{new_bank, new_bank_with, small_options};

const TOO_MANY: usize = 1 << 32;

/// Maps zeros that no memory stands behind. `None` if this system refuses the map.
fn zeros<T: Pod>(count: usize) -> Option<MmapMut> {
    MmapOptions::new().len(count * size_of::<T>()).no_reserve_swap().map_anon().ok()
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    match result.map(drop) {
        Err(Error::Store(StoreError::InvalidArgument(why))) => {
            assert!(why.contains("holds at most 4,294,967,295"), "{why}");
            assert!(why.contains("4294967296"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// Regression test: a batch of 2^32 keys panicked in every call that finds the distinct keys of a
/// batch, and only the calls that do not were refused with an error.
#[test]
fn a_batch_of_too_many_keys_is_refused_by_every_call() {
    let (Some(keys), Some(mut rows)) = (zeros::<u64>(TOO_MANY), zeros::<f32>(TOO_MANY)) else {
        println!("skipped: this system does not map 48 GiB without memory behind them");
        return;
    };
    let keys: &[u64] = bytemuck::cast_slice(&keys);
    let rows: &mut [f32] = bytemuck::cast_slice_mut(&mut rows);
    for threads in [1, 2] {
        let test = new_bank_with(embank::BankOptions { threads, ..small_options() });
        let bank = &test.bank;
        let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0));
        let table = bank.table("t", config.initializer(Initializer::Constant(1.0))).unwrap();
        refused(UniqueKeys::new(keys));
        refused(table.request(keys));
        refused(table.put(keys, rows));
        refused(table.get(keys, rows));
        refused(table.try_get(keys, rows));
        refused(table.peek(keys, rows, Missing::Skip));
        refused(table.initial(keys, rows));
        refused(table.apply_gradients(keys, rows));
        refused(table.contains(keys));
        refused(table.delete(keys));
        refused(table.lookahead(keys));
        refused(table.prefetch(keys));
        let bags = Bags { offsets: &[0, TOO_MANY as u64], pooling: Pooling::Sum, weights: None };
        refused(table.peek_bags(keys, bags, &mut [0.0]));
        let lease = table.get(&[1], &mut [0.0]).unwrap();
        refused(Lease::apply_together(vec![lease], keys, rows));
        let leases = vec![table.get(&[1], &mut [0.0]).unwrap()];
        let part = TableGradients { leases, keys: Some(keys), gradients: rows };
        refused(Lease::apply_many(vec![part]));
        assert_eq!(table.outstanding(1).unwrap(), Some(0));
        let vocabulary = bank.vocabulary("v", VocabularyConfig::u64()).unwrap();
        let Some(mut ids) = zeros::<u64>(TOO_MANY) else { return };
        let ids: &mut [u64] = bytemuck::cast_slice_mut(&mut ids);
        refused(vocabulary.ids(keys, ids));
        refused(vocabulary.lookup(keys, ids));
        refused(vocabulary.ids_or_insert(keys, ids));
        assert_eq!((table.rows().unwrap(), vocabulary.len()), (1, 0));
    }
}

/// Regression test: the numbers of bags have 32 bits, and a batch of 2^32 bags was accepted.
#[test]
fn a_batch_of_too_many_bags_is_refused() {
    let (Some(offsets), Some(mut pooled)) = (zeros::<u64>(TOO_MANY + 1), zeros::<f32>(TOO_MANY))
    else {
        println!("skipped: this system does not map 48 GiB without memory behind them");
        return;
    };
    let pooled: &mut [f32] = bytemuck::cast_slice_mut(&mut pooled);
    let test = new_bank();
    let table = test.bank.table("t", TableConfig::new(1).optimizer(Optimizer::sgd(1.0))).unwrap();
    let offsets: &[u64] = bytemuck::cast_slice(&offsets);
    for pooling in [Pooling::Sum, Pooling::Mean] {
        let bags = Bags { offsets, pooling, weights: None };
        let refusals = [
            table.get_rows(table.request(&[]).unwrap().bags(bags), pooled).map(drop),
            table.peek_bags(&[], bags, pooled),
        ];
        for refusal in refusals {
            match refusal {
                Err(Error::BadBags { what, .. }) => assert!(what.contains("4,294,967,295 bags")),
                Err(Error::Store(StoreError::InvalidArgument(what))) => {
                    assert!(what.contains("4,294,967,295"))
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
