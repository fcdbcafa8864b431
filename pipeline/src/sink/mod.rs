//! Writes batches to files, one for each output. A file appears complete or not at all.

mod output;

use std::io::Write;
use std::path::{Path, PathBuf};

use output::Output;

use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};
use crate::execute::Consumer;
use crate::input::Input;
use crate::spec::Dtype;

#[cfg(feature = "parquet")]
mod parquet;

/// Bytes of an npy file before its values. A header in which two numbers have 20 digits fits.
const NPY_HEADER_BYTES: usize = 128;

/// File format of a pipeline's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// NAME.bin: rows of 32-bit little-endian numbers without gaps. These are PIPER's packed rows,
    /// which [`Format::Packed`](crate::Format::Packed) reads. Not for outputs of [`Dtype::I64`].
    Packed,
    /// NAME.npy: a NumPy matrix.
    Npy,
    /// NAME.parquet: a column of type f32, i32, i64 or u32 for each of the output's columns. Needs
    /// the crate's feature `parquet`.
    Parquet,
}

impl FileFormat {
    fn extension(self) -> &'static str {
        match self {
            Self::Packed => "bin",
            Self::Npy => "npy",
            Self::Parquet => "parquet",
        }
    }
}

/// A consumer that writes a file for each output, in constant memory.
///
/// Files get their names at [`finish`](Self::finish). If the sink is dropped earlier, its files
/// vanish. An existing file of the same name is replaced, and the new file gets the old file's
/// mode. If that name is a link, the link's target is replaced. The sink refuses to replace a
/// device, a pipe, or an input of the run.
///
/// # Examples
/// ```
/// use embank_pipeline::{FileFormat, FileSink, Input, Pipeline, RunOptions, Spec};
///
/// let mut pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let directory = tempfile::tempdir().unwrap();
/// let mut sink = FileSink::create(directory.path(), FileFormat::Npy, pipeline.outputs())?;
/// pipeline.run(&[Input::memory("a row", row.as_bytes())], &mut sink)?;
/// assert_eq!(sink.finish()?, [directory.path().join("row.npy")]);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    infos: Vec<MatrixInfo>,
    files: Vec<Target>,
    rows: u64,
}

#[derive(Debug)]
enum Target {
    Packed(Output),
    Npy(Output),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::Table>),
}

impl FileSink {
    /// Makes the directory, if it does not exist, and a file in it for each output. Existing files
    /// of the same names stay until [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`Error::Spec`] if an output can't be written in this format. [`Error::Io`] if the directory
    /// or a file can't be made.
    pub fn create(dir: &Path, format: FileFormat, outputs: &[MatrixInfo]) -> Result<Self> {
        outputs.iter().try_for_each(|info| check(format, info))?;
        let io = |source| Error::Io { doing: "make the directory", path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(io)?;
        // The path is resolved once. If the working directory or a link changes later, the files
        // still go where the caller meant.
        let dir = &dir.canonicalize().map_err(io)?;
        let target = |info: &MatrixInfo| {
            let path = dir.join(format!("{}.{}", info.name, format.extension()));
            Target::new(Output::file(&path)?, format, info)
        };
        let files = outputs.iter().map(target).collect::<Result<_>>()?;
        Ok(Self { infos: outputs.to_vec(), files, rows: 0 })
    }

    /// Makes a sink that writes to a stream, such as standard output, while batches come. The
    /// pipeline must have one output. The format npy is refused, because an npy file begins with
    /// the number of rows.
    ///
    /// # Errors
    /// [`Error::Spec`] if there are several outputs, or the output can't be written in this format.
    pub fn stream(
        to: impl Write + Send + 'static,
        format: FileFormat,
        outputs: &[MatrixInfo],
    ) -> Result<Self> {
        let [info] = outputs else {
            let what =
                format!("a stream has one output, and there are {}; write files", outputs.len());
            return Err(Error::Spec(what));
        };
        if format == FileFormat::Npy {
            let what = "npy begins with the number of rows, which a stream tells last; stream packed rows or Parquet";
            return Err(Error::Spec(what.to_owned()));
        }
        check(format, info)?;
        let files = vec![Target::new(Output::stream(to), format, info)?];
        Ok(Self { infos: outputs.to_vec(), files, rows: 0 })
    }

    /// Rows written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Brings the files to stable storage, gives them their names in place of existing files, and
    /// returns the paths. A stream has no path.
    ///
    /// # Errors
    /// [`Error::Io`] if a file can't be written or named. The files that have no name by then
    /// vanish.
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for (info, target) in self.infos.iter().zip(self.files) {
            files.push(match target {
                Target::Packed(file) => file,
                Target::Npy(file) => {
                    file.write_first(&npy_header(info, self.rows))?;
                    file
                }
                #[cfg(feature = "parquet")]
                Target::Parquet(table) => table.finish()?,
            });
        }
        // All files are on stable storage before the first one gets its name.
        files.iter_mut().try_for_each(Output::sync)?;
        let published = files.into_iter().map(Output::publish);
        published.filter_map(Result::transpose).collect()
    }
}

impl Target {
    fn new(mut output: Output, format: FileFormat, info: &MatrixInfo) -> Result<Self> {
        Ok(match format {
            FileFormat::Packed => Self::Packed(output),
            FileFormat::Npy => {
                // `finish` overwrites this header with the number of rows.
                let placed = output.write_all(&npy_header(info, 0));
                placed.map_err(|error| output.failed(error))?;
                Self::Npy(output)
            }
            #[cfg(feature = "parquet")]
            FileFormat::Parquet => Self::Parquet(Box::new(parquet::Table::new(output, info)?)),
            #[cfg(not(feature = "parquet"))]
            FileFormat::Parquet => unreachable!("refused by `check`"),
        })
    }

    fn output(&self) -> &Output {
        match self {
            Self::Packed(output) | Self::Npy(output) => output,
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => table.output(),
        }
    }
}

impl Consumer for FileSink {
    fn begin(&mut self, inputs: &[Input<'_>]) -> Result<()> {
        let outputs = self.files.iter().map(Target::output);
        outputs.into_iter().try_for_each(|output| output.refuse_inputs(inputs))
    }

    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for (output, target) in self.files.iter_mut().enumerate() {
            match target {
                Target::Packed(file) | Target::Npy(file) => {
                    let written = file.write_all(&batch.little_endian(output));
                    written.map_err(|error| file.failed(error))?;
                }
                #[cfg(feature = "parquet")]
                Target::Parquet(table) => table.write(batch, output)?,
            }
        }
        self.rows += batch.rows() as u64;
        Ok(())
    }
}

fn check(format: FileFormat, info: &MatrixInfo) -> Result<()> {
    let name = &info.name;
    let refuse = |why: String| Err(Error::Spec(format!("output {name:?}: {why}")));
    if name.contains(['/', '\\', '\0']) || name.starts_with('.') {
        return refuse(
            "its name is to be a file's, so it can't have slashes or begin with a dot".into(),
        );
    }
    if format == FileFormat::Packed && info.dtype == Dtype::I64 {
        return refuse("packed rows have numbers of 32 bits; make it Bits32, or write npy".into());
    }
    if (info.dtype == Dtype::U8 || info.is_of_arrays()) && format != FileFormat::Npy {
        return refuse("it has arrays, which only npy files take".into());
    }
    if format == FileFormat::Parquet {
        if cfg!(not(feature = "parquet")) {
            return refuse(
                "this program was built without Parquet; write npy or packed rows".into(),
            );
        }
        let mut seen = std::collections::HashSet::new();
        if let Some(twice) = info.columns.iter().find(|column| !seen.insert(column.as_str())) {
            return refuse(format!(
                "columns of Parquet have names of their own; {twice:?} is twice there"
            ));
        }
    }
    Ok(())
}

/// The header of an npy file. It has the same length for any number of rows.
fn npy_header(info: &MatrixInfo, rows: u64) -> Vec<u8> {
    let kind = match info.dtype {
        Dtype::F32 => "<f4",
        Dtype::I32 => "<i4",
        Dtype::Bits32 => "<u4",
        Dtype::I64 => "<i8",
        Dtype::U8 => "|u1",
    };
    let shape: Vec<_> = info.shape.iter().map(usize::to_string).collect();
    let shape = shape.join(", ");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((NPY_HEADER_BYTES as u16 - 10).to_le_bytes());
    bytes.extend(
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({rows}, {shape}), }}")
            .as_bytes(),
    );
    assert!(bytes.len() < NPY_HEADER_BYTES, "two numbers of 20 digits fit");
    bytes.resize(NPY_HEADER_BYTES - 1, b' ');
    bytes.push(b'\n');
    bytes
}
