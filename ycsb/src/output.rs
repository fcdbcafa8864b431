//! The texts of the program on standard output and standard error.
//!
//! The macros of the standard library panic if a write fails. Here a failed write never ends a
//! measurement; the text after it is dropped. If the reader closed the pipe (`| head`), the exit
//! status does not change. [`Output::finish`] reports any other failure, such as a full disk, after
//! the run has written its JSON.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Standard output, or another sink.
pub(crate) struct Output<W: Write = io::Stdout> {
    sink: W,
    state: State,
}

/// Says if text is still written.
enum State {
    Open,
    /// The reader closed the pipe.
    Closed,
    Failed(io::Error),
}

impl Output {
    /// Returns an output that writes to standard output.
    pub(crate) fn stdout() -> Self {
        Output::new(io::stdout())
    }
}

impl<W: Write> Output<W> {
    fn new(sink: W) -> Self {
        Output { sink, state: State::Open }
    }

    /// Writes text for `writeln!`. Text after a failed write is dropped.
    pub(crate) fn write_fmt(&mut self, text: fmt::Arguments<'_>) {
        if matches!(self.state, State::Open) {
            let written = self.sink.write_fmt(text).and_then(|()| self.sink.flush());
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.state = State::Closed,
            Err(error) => self.state = State::Failed(error),
        }
    }

    /// Ends the output. Reports a failed write.
    ///
    /// # Errors
    /// Returns an error if text could not be written, unless its reader closed the pipe.
    pub(crate) fn finish(self) -> Result<()> {
        match self.state {
            State::Open | State::Closed => Ok(()),
            State::Failed(error) => Err(error).context("writing to standard output"),
        }
    }
}

/// Writes a warning to standard error. The warning is dropped if standard error is full or closed.
pub(crate) fn warn(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "warning: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, then fails.
    struct Sink {
        room: usize,
        kind: ErrorKind,
        taken: Vec<u8>,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room < bytes.len() {
                return Err(self.kind.into());
            }
            self.room -= bytes.len();
            self.taken.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn output(room: usize, kind: ErrorKind) -> Output<Sink> {
        let mut output = Output::new(Sink { room, kind, taken: Vec::new() });
        for line in ["first", "second, too long", "third"] {
            writeln!(output, "{line}");
        }
        assert_eq!(output.sink.taken, b"first\n", "nothing follows a failed write");
        output
    }

    #[test]
    fn a_closed_pipe_ends_the_text_quietly() {
        output(12, ErrorKind::BrokenPipe).finish().unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error_at_the_end() {
        let error = output(12, ErrorKind::StorageFull).finish().unwrap_err();
        assert!(format!("{error:#}").contains("standard output"), "{error:#}");
    }
}
