//! Options that several measurements have in common. Each measurement includes them in its own.

use std::path::PathBuf;

use crate::ground::report::Output;

/// Options of a measurement that draws keys and keeps files while it runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Folder of the stores and files of this run; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
    /// A rough answer, with fewer rows and rounds: the last line of this help says how many
    #[arg(long)]
    pub(crate) quick: bool,
}

/// The skew of a Zipf distribution.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Skew {
    /// Exponent of the Zipf distribution, below 1
    #[arg(long, default_value_t = 0.99)]
    pub(crate) zipf: f64,
}

/// The threads of a measurement in memory.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Threads {
    /// Numbers of threads, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub(crate) threads: Vec<usize>,
}

#[cfg(test)]
impl Common {
    /// Makes the options for a measurement in a test. The measurement keeps its files in
    /// `directory`, and writes its numbers to `rows.json` there.
    pub(crate) fn of_test(seed: u64, directory: &std::path::Path) -> Self {
        let output = Output { json: Some(directory.join("rows.json")), ..Output::default() };
        Self { seed, directory: directory.to_owned(), output, quick: false }
    }
}
