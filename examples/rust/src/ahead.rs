//! Batches that announce the keys of the batches after them.

use std::collections::VecDeque;

use anyhow::Result;

/// Yields `batches` in order. Before it yields a batch, it calls `announce` on each of the next
/// `depth` batches, so that their rows come from disk while the model computes. Holds `depth`
/// batches.
pub fn announced<B>(
    mut batches: impl Iterator<Item = B>,
    depth: usize,
    announce: impl Fn(&B) -> Result<()>,
) -> impl Iterator<Item = Result<B>> {
    let mut coming = VecDeque::with_capacity(depth + 1);
    std::iter::from_fn(move || {
        while coming.len() <= depth {
            let Some(batch) = batches.next() else { break };
            if let Err(error) = announce(&batch) {
                return Some(Err(error));
            }
            coming.push_back(batch);
        }
        coming.pop_front().map(Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn each_batch_is_announced_once_and_early() {
        let told = RefCell::new(Vec::new());
        let announce = |batch: &i32| {
            told.borrow_mut().push(*batch);
            Ok(())
        };
        let mut seen = Vec::new();
        for batch in announced(0..5, 2, announce) {
            let batch = batch.expect("announcing does not fail");
            assert_eq!(told.borrow().len(), (batch as usize + 3).min(5));
            seen.push(batch);
        }
        assert_eq!((seen, told.into_inner()), ((0..5).collect(), (0..5).collect()));
    }
}
