//! Finds a Python 3 of a suitable version. If there is no such Python, the error says what to
//! install.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The oldest minor version for `target/venv`. The package itself runs on 3.9, but the tests need
/// Polars and pyarrow, and their pinned versions have wheels only from 3.11 on.
const OLDEST_MINOR: u32 = 11;

/// The oldest minor version that the package runs on.
const WHEEL_OLDEST_MINOR: u32 = 9;

/// The newest minor version for which the pinned PyTorch and NumPy have wheels.
const NEWEST_MINOR: u32 = 14;

/// The names that the search tries, in this order.
const NAMES: [&str; 7] =
    ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10", "python"];

/// A Python program that prints three lines: the version, the interpreter's path, and whether the
/// interpreter has the modules that `python -m venv` needs.
const PROBE: &str = "\
import sys, importlib.util
print(sys.version_info[0], sys.version_info[1], sys.version_info[2])
print(sys.executable)
print(all(importlib.util.find_spec(name) for name in ('venv', 'ensurepip')))
";

/// An interpreter on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// The program.
    pub(crate) program: OsString,
    /// Major, minor and micro version.
    pub(crate) version: (u32, u32, u32),
    /// True if the interpreter can make virtual environments. On Debian this needs a further
    /// package.
    makes_environments: bool,
}

impl Interpreter {
    /// Returns the first interpreter of [`NAMES`] that has a suitable version and can make virtual
    /// environments. If the variable `PYTHON` names an interpreter, only that interpreter is tried.
    ///
    /// # Errors
    /// Returns an error if no interpreter is suitable. The error says what was found and what to
    /// install.
    pub(crate) fn find() -> Result<Self> {
        if let Some(named) = std::env::var_os("PYTHON").filter(|name| !name.is_empty()) {
            let found = probe(&named)
                .with_context(|| format!("PYTHON={} does not run", named.to_string_lossy()))?;
            return choose(vec![found]);
        }
        choose(NAMES.iter().filter_map(|name| probe(&OsString::from(name)).ok()).collect())
    }

    /// Returns every CPython on the PATH that can run the wheel (3.9 and newer) and can make
    /// virtual environments: one for each minor version.
    pub(crate) fn every_for_the_wheel() -> Vec<Self> {
        let names = NAMES.iter().map(|name| (*name).to_owned());
        let others =
            (WHEEL_OLDEST_MINOR..=NEWEST_MINOR + 2).map(|minor| format!("python3.{minor}"));
        let mut found: Vec<Self> =
            names.chain(others).filter_map(|name| probe(&OsString::from(name)).ok()).collect();
        found.retain(|python| {
            python.makes_environments && python.version >= (3, WHEEL_OLDEST_MINOR, 0)
        });
        found.sort_by_key(|python| python.version);
        found.dedup_by_key(|python| (python.version.0, python.version.1));
        found
    }

    /// Returns the version and the path. The stamp of an environment (the record of how it was
    /// made) has this text, so the stamp changes with the interpreter.
    pub(crate) fn description(&self) -> String {
        let (major, minor, micro) = self.version;
        format!("Python {major}.{minor}.{micro} at {}", self.program.to_string_lossy())
    }
}

fn probe(program: &OsString) -> Result<Interpreter> {
    let output = Command::new(program).args(["-c", PROBE]).output()?;
    ensure!(output.status.success(), "it exits with {}", output.status);
    parse(&String::from_utf8_lossy(&output.stdout)).context("it does not answer like Python")
}

fn parse(answer: &str) -> Option<Interpreter> {
    let mut lines = answer.lines();
    let mut numbers = lines.next()?.split(' ').map_while(|number| number.parse().ok());
    let version = (numbers.next()?, numbers.next()?, numbers.next()?);
    let program = lines.next().filter(|path| !path.is_empty())?.into();
    Some(Interpreter { program, version, makes_environments: lines.next()? == "True" })
}

fn choose(found: Vec<Interpreter>) -> Result<Interpreter> {
    let suitable = |python: &&Interpreter| {
        python.version.0 == 3 && (OLDEST_MINOR..=NEWEST_MINOR).contains(&python.version.1)
    };
    let able = found.iter().filter(suitable).find(|python| python.makes_environments);
    if let Some(python) = able {
        return Ok(python.clone());
    }
    if let Some(python) = found.iter().find(suitable) {
        bail!(
            "{} can't make virtual environments: its `venv` or `ensurepip` is missing; on Debian and \
             Ubuntu: apt install python3.{}-venv",
            python.description(),
            python.version.1
        );
    }
    let seen = match found.first() {
        Some(python) if python.version > (3, NEWEST_MINOR, u32::MAX) => {
            format!(
                "{} is too new: the pinned packages have no wheels for it",
                python.description()
            )
        }
        Some(python) => format!("{} is too old", python.description()),
        None => "there is no python3 on the PATH".to_owned(),
    };
    bail!(
        "{seen}; install Python 3.{OLDEST_MINOR} to 3.{NEWEST_MINOR} (the pinned packages need it), or name \
         one with PYTHON=/path/to/python3"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(minor: u32, makes_environments: bool) -> Interpreter {
        Interpreter {
            program: format!("/usr/bin/python3.{minor}").into(),
            version: (3, minor, 1),
            makes_environments,
        }
    }

    #[test]
    fn the_probe_answers_on_this_machine_or_the_error_says_what_to_install() {
        match Interpreter::find() {
            Ok(found) => assert!(found.version >= (3, OLDEST_MINOR, 0)),
            Err(error) => assert!(error.to_string().contains("install"), "{error}"),
        }
    }

    #[test]
    fn an_answer_is_parsed_and_nonsense_is_not() {
        let found = parse("3 11 7\n/usr/bin/python3\nTrue\n").unwrap();
        assert_eq!((found.version, found.makes_environments), ((3, 11, 7), true));
        assert!(parse("hello").is_none());
        assert!(parse("3 11 7\n\nTrue\n").is_none());
    }

    #[test]
    fn the_first_that_is_new_enough_and_able_is_chosen() {
        let chosen = choose(vec![python(8, true), python(12, false), python(11, true)]).unwrap();
        assert_eq!(chosen, python(11, true));
    }

    #[test]
    fn each_refusal_names_its_cure() {
        let error = |found| choose(found).unwrap_err().to_string();
        assert!(error(vec![python(12, false)]).contains("apt install python3.12-venv"));
        let old = error(vec![python(9, true)]);
        assert!(old.contains("too old") && old.contains("Python 3.11 to 3.14"), "{old}");
        let new = error(vec![python(15, true)]);
        assert!(new.contains("too new") && new.contains("Python 3.11 to 3.14"), "{new}");
        assert!(error(vec![]).contains("no python3 on the PATH"));
    }
}
