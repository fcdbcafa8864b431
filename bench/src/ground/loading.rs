//! Calls a function once for every row, to load or to check the rows.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// Rows of one call.
const BATCH_ROWS: u64 = 4096;

/// Calls `each` with all keys in ascending order, in batches, and with room for their rows.
///
/// # Errors
/// Returns the error of `each`.
pub(crate) fn for_all_rows(
    what: &'static str,
    count: u64,
    dim: usize,
    mut each: impl FnMut(&[u64], &mut [f32]) -> Result<()>,
) -> Result<()> {
    let progress = bar(what, count);
    let mut rows = vec![0.0; BATCH_ROWS as usize * dim];
    let mut first = 0;
    while first < count {
        let keys: Vec<u64> = (first..count.min(first + BATCH_ROWS)).collect();
        each(&keys, &mut rows[..keys.len() * dim]).with_context(|| what)?;
        first += keys.len() as u64;
        progress.set_position(first);
    }
    progress.finish_and_clear();
    Ok(())
}

/// A progress bar on stderr. Nothing is drawn if stderr is not a terminal.
pub(crate) fn bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:24} {bar:40} {human_pos}/{human_len} {msg}")
        .expect("the template is well formed");
    ProgressBar::new(length).with_style(style).with_prefix(what)
}
