//! Runs other programs: with their output shown, with it hidden, or in place of this process.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// The error of [`quiet`] shows at most this number of lines, the last ones of the command's
/// output.
const TAIL_LINES: usize = 40;

/// Runs a program and shows its output.
///
/// # Errors
/// Returns an error if the program cannot be started or fails.
pub(crate) fn shown(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs a program and hides its output. If it fails, the error has its last [`TAIL_LINES`] lines.
///
/// # Errors
/// Returns an error if the program cannot be started or fails.
pub(crate) fn quiet(command: &mut Command) -> Result<()> {
    let line = line(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        bail!("`{line}` failed ({}):\n{}", output.status, tail(&text));
    }
    Ok(())
}

/// Replaces this process by the program. The program then gets this process's signals, and its exit
/// code becomes this process's.
///
/// # Errors
/// Fails if the program can't be started.
pub(crate) fn become_program(command: &mut Command) -> Result<ExitCode> {
    let line = line(command);
    let error = command.exec();
    Err(error).with_context(|| format!("starting `{line}`"))
}

/// Returns the command as a shell line without quotes.
fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_failure_carries_the_end_of_the_output() {
        let error = quiet(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("out\nerr") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = format!("{:#}", quiet(&mut Command::new("no-such-program")).unwrap_err());
        assert!(error.contains("no-such-program"), "{error}");
    }

    #[test]
    fn the_tail_of_a_long_text_is_its_last_lines() {
        let text: String = (0..100).map(|i| format!("{i}\n")).collect();
        let tail = tail(&text);
        assert!(tail.starts_with("60\n") && tail.ends_with("\n99"), "{tail}");
    }
}
