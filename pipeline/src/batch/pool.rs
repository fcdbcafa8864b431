//! Memory of a feed's batches, which the feed reuses.
//!
//! **Problem.** An allocator returns a large vector to the system when the vector is dropped. glibc
//! does so above 32 MiB, and recycles smaller vectors itself. The system zeroes every page of the
//! next batch at the first write to the page. This can take as long as the rest of the work on a
//! row.
//!
//! **Approach.** A feed has a [`Pool`], which lends the memory of its batches. A [`Lent`] matrix
//! returns its memory to the pool when it is dropped, on the thread that drops it. The matrices of
//! a batch return one by one, because a caller may keep some and drop the others.
//!
//! **Invariant.** Values do not change while a caller has them. The memory is a vector that is
//! moved and never shared. It is either a spare of the pool or the content of one `Lent`. Only the
//! drop of the `Lent` makes it a spare, and a `Lent` is dropped by its only owner. A NumPy array or
//! an Arrow array counts its references to the `Lent` that it owns, and drops it with the last one.
//! A spare has no values (`len` is 0), so a batch in reused memory does not show earlier rows.
//!
//! **Bounds.** The pool never waits: without a spare it lends a new vector. It keeps a limited
//! number of spares, and frees what returns beyond that. A feed therefore has no more memory than
//! the most that its batches have had at one time.
//!
//! **End.** The pool belongs to the run of the feed, and a `Lent` refers to it weakly. When the run
//! ends, the pool frees its spares. Memory that returns later is freed.
//!
//! **Forks.** A thread of the parent may have had the pool's lock at the fork. In a forked child, a
//! `Lent` therefore frees its memory and leaves the lock alone.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use embank::Home;
use embank::locks::Mutex;

use super::{MatrixInfo, Values};

/// Lends the memory of batches that have the same outputs.
#[derive(Debug)]
pub(crate) struct Pool {
    home: Home,
    /// Largest number of spares of an output.
    spares_max: AtomicUsize,
    /// For each output, memory that no batch uses. The memory that returned last is lent first,
    /// because it may still be in a cache of the processor.
    spares: Mutex<Vec<Vec<Values>>>,
}

/// An output's values, in memory that returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    values: Values,
    /// Where the memory returns to. Empty if the memory is from no pool.
    pool: Weak<Pool>,
    /// Number of the output in the pool.
    output: usize,
}

impl Pool {
    /// Makes a pool without spares, for batches with these outputs.
    pub(crate) fn new(infos: &[MatrixInfo], spares_max: usize) -> Arc<Self> {
        let spares = Mutex::new(infos.iter().map(|_| Vec::new()).collect());
        Arc::new(Self { home: Home::here(), spares_max: spares_max.into(), spares })
    }

    /// Sets the largest number of spares of an output.
    pub(crate) fn keep(&self, spares_max: usize) {
        // Relaxed: nothing else depends on the number.
        self.spares_max.store(spares_max, Ordering::Relaxed);
    }

    /// Lends memory for each of the outputs, which are those of [`new`](Self::new). Must not be
    /// called in a forked child.
    pub(crate) fn lend(self: &Arc<Self>, infos: &[MatrixInfo]) -> Vec<Lent> {
        let mut spares = self.spares.lock();
        let lent = infos.iter().enumerate().map(|(output, info)| {
            let values = spares[output].pop().unwrap_or_else(|| Values::new(info.dtype));
            Lent { values, pool: Arc::downgrade(self), output }
        });
        lent.collect()
    }

    fn take_back(&self, output: usize, mut values: Values) {
        if !self.home.is_here() {
            return;
        }
        values.clear();
        let mut spares = self.spares.lock();
        // Relaxed: see `keep`.
        if spares[output].len() < self.spares_max.load(Ordering::Relaxed) {
            spares[output].push(values);
        }
        // Memory that is not kept is freed after the unlock: `values` was declared before `spares`.
    }
}

impl Lent {
    /// Returns the values. Their memory then returns to no pool.
    pub(crate) fn into_values(mut self) -> Values {
        self.pool = Weak::new();
        self.values.take()
    }
}

/// Values in memory of their own.
impl From<Values> for Lent {
    fn from(values: Values) -> Self {
        Self { values, pool: Weak::new(), output: 0 }
    }
}

/// The copy has memory of its own.
impl Clone for Lent {
    fn clone(&self) -> Self {
        self.values.clone().into()
    }
}

impl Deref for Lent {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Values {
        &mut self.values
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.take_back(self.output, self.values.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dtype;

    /// One output for each kind of [`Values`].
    fn infos() -> [MatrixInfo; 3] {
        [("bytes", Dtype::U8), ("words", Dtype::F32), ("wides", Dtype::I64)].map(|(name, dtype)| {
            MatrixInfo {
                name: name.to_owned(),
                columns: vec!["c".to_owned()],
                dtype,
                shape: vec![1],
            }
        })
    }

    fn spares(pool: &Pool) -> Vec<usize> {
        pool.spares.lock().iter().map(Vec::len).collect()
    }

    fn filled(lent: &mut Lent) -> *const u8 {
        match &mut **lent {
            Values::Bytes(values) => values.extend(0..100),
            Values::Words(values) => values.extend(0..100),
            Values::Wides(values) => values.extend(0..100),
        }
        lent.bytes().as_ptr()
    }

    #[test]
    fn memory_that_returns_is_lent_again_without_its_values() {
        let pool = Pool::new(&infos(), 4);
        let mut first = pool.lend(&infos());
        let at: Vec<_> = first.iter_mut().map(filled).collect();
        // The matrices return one by one.
        drop(first.pop());
        assert_eq!(spares(&pool), [0, 0, 1]);
        drop(first);
        assert_eq!(spares(&pool), [1, 1, 1]);
        let mut again = pool.lend(&infos());
        assert_eq!(spares(&pool), [0, 0, 0]);
        for (lent, at) in again.iter_mut().zip(at) {
            assert!(lent.bytes().is_empty());
            assert_eq!(filled(lent), at);
        }
    }

    #[test]
    fn a_pool_keeps_a_limited_number_of_spares() {
        let pool = Pool::new(&infos(), 2);
        let lent: Vec<_> = (0..5).map(|_| pool.lend(&infos())).collect();
        drop(lent);
        assert_eq!(spares(&pool), [2, 2, 2]);
    }

    #[test]
    fn only_the_lent_memory_itself_returns() {
        let pool = Pool::new(&infos(), 4);
        let mut lent = pool.lend(&infos());
        filled(&mut lent[0]);
        let copy = lent.clone();
        drop(lent.pop().map(Lent::into_values));
        assert_eq!(spares(&pool), [0, 0, 0]);
        drop(lent);
        drop(copy);
        assert_eq!(spares(&pool), [1, 1, 0]);
    }

    #[test]
    fn lent_memory_outlives_its_pool() {
        let pool = Pool::new(&infos(), 4);
        let mut lent = pool.lend(&infos());
        filled(&mut lent[1]);
        drop(pool);
        assert_eq!(lent[1].bytes()[4..8], 1_u32.to_ne_bytes());
    }
}
