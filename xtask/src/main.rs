//! `cargo xtask`: the project's own commands. They need Rust, Python 3 and a C compiler.
//!
//! The commands install everything else that they need (PyTorch, maturin, pytest) into
//! `target/venv`, once.
//!
//! # Where to look
//!
//! | file | what is there |
//! |---|---|
//! | `checks.rs` | `test`: the stages, their order and the summary |
//! | `test_programs.rs`, `side_by_side.rs` | building the test programs once, and running two at a time |
//! | `prose/`, `links.rs` | checks of comments and pages |
//! | `bench.rs`, `bench_all.rs`, `report.rs` | starting measurements; `docs/benchmarks.md` from their results |
//! | `environment.rs`, `interpreter.rs` | `target/venv`, and the Python that it is made from |
//! | `examples.rs`, `models.rs`, `book.rs` | the models in Rust, the model checker, the book |
//! | `wheel.rs`, `install_c.rs` | what users install |

mod bench;
mod bench_all;
mod book;
mod checks;
mod command;
mod environment;
mod examples;
mod install_c;
mod interpreter;
mod links;
mod models;
mod prose;
mod report;
mod side_by_side;
mod test_programs;
mod wheel;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Embank's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a recommendation model out of core, beside the same model in memory
    ///
    /// Every argument is the demo's own: `cargo xtask demo --help` lists them.
    #[command(disable_help_flag = true)]
    Demo(PassedOn),
    /// Train a model in Rust: a click model, a knowledge graph or a graph neural network
    Example(examples::Args),
    /// Run everything that CI checks: format, lints, Rust and Python tests
    Test(checks::Args),
    /// Find phrases that this project does not use, and lines of prose over 100 columns
    Prose(prose::Args),
    /// Build the pages of docs/ as a book of HTML, in target/book
    Book,
    /// Run the model checks of the store's concurrency; see docs/testing.md
    Models(models::Args),
    /// Build the wheel for every CPython from 3.9 on, check it against the stable ABI, and try it
    /// without torch
    Wheel(wheel::Args),
    /// Install the C library, its header, and the files of pkg-config and CMake below a prefix
    InstallC(install_c::Args),
    /// Run a measurement; each prints a table and takes --json FILE and --quick
    #[command(subcommand)]
    Bench(bench::Measurement),
}

/// Arguments that are passed to another program unchanged.
#[derive(Debug, clap::Args)]
struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(PassedOn { args }) => demo(&args),
        Command::Example(args) => examples::run(&workspace::root()?, &args),
        Command::Test(args) => checks::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Prose(args) => prose::run(&args),
        Command::Book => book::build(&workspace::root()?),
        Command::Wheel(args) => wheel::run(&args),
        Command::InstallC(args) => install_c::run(&args),
        Command::Bench(measurement) => bench::run(measurement),
    }
}

/// Sets the environment up, and replaces this process by the demo.
fn demo(args: &[OsString]) -> Result<ExitCode> {
    let root = workspace::root()?;
    let python = environment::prepared(&root, "running examples/dlrm/demo.py")?;
    command::become_program(
        python.command(&root).arg(root.join("examples/dlrm/demo.py")).args(args),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_demo_gets_its_arguments_untouched() {
        let line = ["cargo xtask", "demo", "--help", "--quick", "--criteo", "a b", "--", "-x"];
        let Command::Demo(PassedOn { args }) = Cli::parse_from(line).command else {
            panic!("not a demo");
        };
        assert_eq!(args, ["--help", "--quick", "--criteo", "a b", "--", "-x"]);
    }

    #[test]
    fn a_measurement_gets_its_arguments_untouched() {
        let line = ["cargo xtask", "bench", "in-memory", "--json", "x.json", "--help"];
        let Command::Bench(bench::Measurement::InMemory(PassedOn { args })) =
            Cli::parse_from(line).command
        else {
            panic!("not a measurement");
        };
        assert_eq!(args, ["--json", "x.json", "--help"]);
    }
}
