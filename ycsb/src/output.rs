//! What the program prints. A measurement and its verdict stand whatever becomes of the streams: nothing here panics
//! where one is full or closed.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Result;

/// The first failure to write to standard output; nothing is printed after it.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;

pub(crate) fn line(text: Arguments<'_>) {
    if FAILED.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        let _ = FAILED.set(error);
    }
}

/// How a command ended, as its exit status. A closed pipe, as of `| head`, is no failure; an output that was lost
/// otherwise is one.
pub(crate) fn exit_code(ended: Result<()>) -> ExitCode {
    let note = |text: String| {
        // Nothing can be told where this fails.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        ExitCode::FAILURE
    };
    match (ended, FAILED.get()) {
        (Err(error), _) => note(format!("error: {}\n", causes(&error))),
        (Ok(()), Some(error)) if error.kind() != ErrorKind::BrokenPipe => {
            note(format!("error: writing to standard output: {error}\n"))
        }
        (Ok(()), _) => ExitCode::SUCCESS,
    }
}

/// An error with its causes, each told once: many errors name theirs themselves.
fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
