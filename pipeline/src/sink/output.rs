//! The target of an output: a stream, or a file that appears complete or not at all.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use embank::OutputFile;

use crate::error::{Error, Result, of_output};
use crate::input::Input;

/// The name of a stream in errors.
const STREAM: &str = "the stream";

pub(super) enum Output {
    File(Box<OutputFile>),
    Stream(Box<dyn Write + Send>),
}

impl fmt::Debug for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Output").field(&self.path()).finish()
    }
}

impl Output {
    pub(super) fn file(path: &Path) -> Result<Self> {
        Ok(Self::File(Box::new(OutputFile::create(path).map_err(of_output)?)))
    }

    pub(super) fn stream(to: impl Write + Send + 'static) -> Self {
        Self::Stream(Box::new(to))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(file) => file.path(),
            Self::Stream(_) => Path::new(STREAM),
        }
    }

    /// Makes the error of a failed write.
    pub(super) fn failed(&self, source: io::Error) -> Error {
        Error::Io { doing: "write", path: self.path().to_owned(), source }
    }

    /// Fails if the file would replace an input of the run.
    pub(super) fn refuse_inputs(&self, inputs: &[Input<'_>]) -> Result<()> {
        let Self::File(file) = self else { return Ok(()) };
        for input in inputs.iter().filter_map(Input::path) {
            // If the input is a directory, the run reads its files, so each of them counts as an
            // input.
            let within = std::fs::read_dir(input).into_iter().flatten().flatten();
            let replaced = within.map(|entry| entry.path()).chain([input.to_owned()]);
            if let Some(replaced) = replaced.into_iter().find(|input| file.replaces(input)) {
                return Err(Error::Spec(format!(
                    "the output {} would take the place of the input {}; write to another directory",
                    file.path().display(),
                    replaced.display()
                )));
            }
        }
        Ok(())
    }

    /// Overwrites the file's first bytes.
    pub(super) fn write_first(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::File(file) => file.write_at(bytes, 0).map_err(of_output),
            Self::Stream(_) => unreachable!("what is completed at its begin is no stream"),
        }
    }

    pub(super) fn sync(&mut self) -> Result<()> {
        match self {
            Self::File(file) => file.sync().map(|_| ()).map_err(of_output),
            Self::Stream(stream) => stream.flush().map_err(|error| self.failed(error)),
        }
    }

    /// Gives the file its name and returns its path. `None` for a stream.
    pub(super) fn publish(self) -> Result<Option<PathBuf>> {
        match self {
            Self::File(file) => {
                let path = file.path().to_owned();
                file.publish().map_err(of_output)?;
                Ok(Some(path))
            }
            Self::Stream(_) => Ok(None),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}
