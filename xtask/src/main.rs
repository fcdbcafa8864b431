//! `cargo xtask`: the project's own commands, on a machine with Rust, Python 3 and a C compiler.
//!
//! Whatever else they need (PyTorch, maturin, pytest, ...) they install into `target/venv`, once.

mod bench;
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
    /// Everything that CI checks: format, lints, Rust and Python tests
    Test(checks::Args),
    /// Words that this project does not use, and lines of prose that are too long
    Prose(prose::Args),
    /// The pages of docs/ as a book of HTML, in target/book
    Book,
    /// Model checking of the store's concurrency; see docs/testing.md
    Models(models::Args),
    /// The wheel for every CPython from 3.9 on: built, checked against the stable ABI, tried out
    /// without torch
    Wheel(wheel::Args),
    /// The C library, its header, and what pkg-config and CMake find them by, below a prefix
    InstallC(install_c::Args),
    /// Measurements; each prints a table and takes --json FILE and --quick
    #[command(subcommand)]
    Bench(bench::Measurement),
}

/// Arguments that belong to another program and reach it as they are.
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

/// Sets the environment up and becomes the demo.
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
