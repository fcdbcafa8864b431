//! An open input, and the rows of its ranges.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::stream::{Compression, LINE_BYTES_MAX, MAGIC_BYTES, Pipe, RowEnds, Stream, line_ends};
use super::unchanged::FileState;
use super::{FilePart, Input, Origin};
use crate::error::{Error, Result};

/// After a chunk's range, this number of bytes is read at first, to find the end of the chunk's
/// last line.
pub(super) const TAIL_BYTES: usize = 4 << 10;

/// An open input.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    pub(super) name: String,
    pub(super) text: OpenText<'a>,
    /// The input's length. 0 for a pipe. For a part of a file, the file's length.
    pub(super) bytes: u64,
    /// The range to read of a part of a file. `None` if the whole input is read.
    part: Option<Range<u64>>,
    /// True for a pipe and for standard input, which are read once, from their beginning to their
    /// end.
    pub(super) is_pipe: bool,
    /// How to read the input if it can only be read from its beginning. `None` if a range can be
    /// read without what comes before it.
    pub(super) serial: Option<Serial>,
    row_ends: RowEnds,
    /// The file's state when it was opened. `None` for a pipe, standard input and memory.
    pub(super) state: Option<FileState>,
}

/// How to read an input that can only be read from its beginning.
#[derive(Debug, Clone, Copy)]
pub(super) enum Serial {
    Text(Option<Compression>),
    #[cfg(feature = "parquet")]
    Columns,
}

#[derive(Debug)]
pub(super) enum OpenText<'a> {
    Memory(&'a [u8]),
    File(File, PathBuf),
}

impl<'a> Open<'a> {
    pub(super) fn new(input: &Input<'a>, row_ends: RowEnds) -> Result<Self> {
        let name = input.name.clone();
        // Packed rows may begin with the magic bytes of a compressed text.
        let of_bytes = |first: &[u8]| match row_ends {
            RowEnds::Rows(_) | RowEnds::Columns => None,
            RowEnds::Lines | RowEnds::Quoted { .. } => Compression::of_bytes(first),
        };
        let mut state = None;
        let (text, bytes, compression, pipe) = match &input.from {
            Origin::Memory(text) => {
                (OpenText::Memory(text), text.len() as u64, of_bytes(text), false)
            }
            Origin::StandardInput => {
                let io = |source| Error::Io { doing: "open", path: PathBuf::from(&name), source };
                // A duplicate: opening `/dev/stdin` would fail for a socket, and would read a file
                // from its beginning. `Pipe` also works without `NONBLOCK`: the writer has opened
                // standard input already, and nothing else takes the bytes between poll and read.
                let owned = std::io::stdin().as_fd().try_clone_to_owned().map_err(io)?;
                (OpenText::File(File::from(owned), PathBuf::from(&name)), 0, None, true)
            }
            Origin::File(path) | Origin::Part(FilePart { path, .. }) => {
                let io = |source| Error::Io { doing: "open", path: PathBuf::from(&name), source };
                // Without `NONBLOCK`, a thread would wait in `open` or `read` for the pipe's
                // writer; see `Pipe`.
                let waits = if input.is_pipe() { rustix::fs::OFlags::NONBLOCK.bits() } else { 0 };
                let mut how = File::options();
                how.read(true).custom_flags(waits as i32);
                let file = how.open(path).map_err(io)?;
                let metadata = file.metadata().map_err(io)?;
                if metadata.is_dir() {
                    return Err(io(std::io::ErrorKind::IsADirectory.into()));
                }
                let bytes = metadata.len();
                let pipe = !metadata.is_file();
                state = (!pipe).then(|| FileState::of(&metadata));
                // Several threads read the file in turns, each at another place. The system may
                // take such reads for random reads, and read less ahead. This hint prevents that.
                // The system may refuse the hint, as for a pipe, which does no harm.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
                let mut first = [0; MAGIC_BYTES];
                let known = bytes.min(MAGIC_BYTES as u64) as usize;
                if !pipe {
                    read_exact_at(&file, &mut first[..known], 0).map_err(io)?;
                }
                let compression = Compression::of_path(path).or_else(|| of_bytes(&first[..known]));
                (OpenText::File(file, PathBuf::from(&name)), bytes, compression, pipe)
            }
        };
        let part = match &input.from {
            Origin::Part(part) => Some(checked_range(part, &name, bytes, state.as_ref())?),
            _ => None,
        };
        let quoted = matches!(row_ends, RowEnds::Quoted { .. });
        #[cfg(feature = "parquet")]
        if row_ends == RowEnds::Columns {
            if pipe {
                let what = "it is read once, from its beginning to its end, and Parquet and Arrow files are read from \
                            several places: write it to a file first, and give the file's name";
                return Err(Error::Columns { input: name, what: what.to_owned() });
            }
            let serial = Some(Serial::Columns);
            return Ok(Self { name, text, bytes, part, is_pipe: pipe, serial, row_ends, state });
        }
        let serial = compression.is_some() || quoted || pipe;
        let serial = serial.then_some(Serial::Text(compression));
        if let (RowEnds::Rows(row_bytes), None) = (row_ends, serial)
            && !bytes.is_multiple_of(row_bytes as u64)
        {
            return Err(Error::NoWholeRows { input: name, bytes, row_bytes });
        }
        // The system's length of a pipe has no meaning.
        let bytes = if pipe { 0 } else { bytes };
        Ok(Self { name, text, bytes, part, is_pipe: pipe, serial, row_ends, state })
    }

    /// The bytes to read: those of the part, or all. Must not be called for files of columns.
    pub(super) fn range(&self) -> Range<u64> {
        self.part.clone().unwrap_or(0..self.bytes)
    }

    /// The file's time of change, in nanoseconds since 1970. 0 if the input is no file.
    pub(super) fn modified_ns(&self) -> i64 {
        self.state.as_ref().map_or(0, FileState::modified_ns)
    }

    /// True for a part of a file.
    pub(super) fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// True if the input has the beginning of its file.
    pub(super) fn has_beginning(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.start == 0)
    }

    /// Bytes that are read of the input. All bytes of a file of columns count in its first part.
    pub(super) fn input_bytes(&self) -> u64 {
        match &self.part {
            Some(part) if self.row_ends != RowEnds::Columns => part.end - part.start,
            Some(part) if part.start > 0 => 0,
            _ => self.bytes,
        }
    }

    /// Fails if the input is a file that has changed since it was opened. Called after each piece
    /// that is read from the file.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        match (&self.text, &self.state) {
            (OpenText::File(file, _), Some(state)) => state.check(file, &self.name),
            _ => Ok(()),
        }
    }

    pub(super) fn stream(
        &self,
        compression: Option<Compression>,
        stop: &Arc<AtomicBool>,
    ) -> std::io::Result<Stream<'a>> {
        match &self.text {
            OpenText::Memory(text) => Stream::of_memory(text, compression),
            // Packed rows may begin with the magic bytes of a compressed text.
            OpenText::File(file, _) if self.is_pipe => {
                let tells = !matches!(self.row_ends, RowEnds::Rows(_));
                Stream::of_pipe(Pipe::new(file, stop)?, compression, tells)
            }
            OpenText::File(file, _) if self.is_part() && compression.is_none() => {
                Stream::of_range(file, self.range())
            }
            OpenText::File(file, _) => Stream::of_file(file, compression),
        }
    }

    /// Reads a text without compression from its beginning on, also if the input is a later part
    /// of it.
    pub(super) fn stream_of_beginning(&self) -> std::io::Result<Stream<'a>> {
        match &self.text {
            OpenText::Memory(text) => Stream::of_memory(text, None),
            OpenText::File(file, _) => Stream::of_range(file, 0..self.bytes),
        }
    }

    /// Reads a text without compression from `offset` on. `None` if no row can begin there, because
    /// no line ends there.
    pub(super) fn stream_from(&self, offset: u64) -> std::io::Result<Option<Stream<'a>>> {
        let range = self.range();
        if offset <= range.start || offset > range.end {
            return Ok(None);
        }
        let stream = match &self.text {
            OpenText::Memory(text) if text[offset as usize - 1] == b'\n' => {
                Stream::of_memory_from(text, offset)?
            }
            OpenText::File(file, _) => {
                let mut last = [0];
                read_exact_at(file, &mut last, offset - 1)?;
                if last != [b'\n'] {
                    return Ok(None);
                }
                Stream::of_range(file, offset..range.end)?
            }
            OpenText::Memory(_) => return Ok(None),
        };
        stream.count(offset - range.start);
        Ok(Some(stream))
    }

    /// Reads the input's columns from row `first_row` on.
    #[cfg(feature = "parquet")]
    pub(super) fn columns(
        &self,
        fields: &crate::columns::Fields,
        chunk_bytes: usize,
        first_row: u64,
    ) -> std::result::Result<crate::columns::ColumnStream<'a>, String> {
        use crate::columns::{ColumnStream, FileRows};
        match &self.text {
            OpenText::Memory(bytes) => {
                ColumnStream::of_memory(bytes, fields, chunk_bytes, first_row)
            }
            OpenText::File(file, _) => {
                let rows = FileRows { part: self.part.clone(), first_row };
                ColumnStream::of_file(file, fields, &self.partitions(), chunk_bytes, rows)
            }
        }
    }

    /// The values that the folders of a file's path name.
    #[cfg(feature = "parquet")]
    fn partitions(&self) -> crate::columns::Partitions {
        crate::columns::Partitions::of_path(&self.name)
    }

    /// True if the input has a column of the field, or its path names the field's value.
    #[cfg(feature = "parquet")]
    pub(super) fn has_values(&self, field: &crate::columns::Fields, chunk_bytes: usize) -> bool {
        let named = |(name, _): &(String, _)| self.partitions().has(name);
        let is_file = matches!(self.text, OpenText::File(..));
        let columns = self.columns(field, chunk_bytes, 0);
        is_file && field.iter().any(named) || columns.is_ok_and(|stream| stream.has_columns())
    }

    /// Returns the first line of a text, with its line end. If the line is too long, returns its
    /// first `LINE_BYTES_MAX` + 1 bytes. Must be called only if the input can be read at any
    /// position, so not for a pipe or a compressed file.
    pub(super) fn first_line(&self) -> Result<Cow<'a, [u8]>> {
        let most = (LINE_BYTES_MAX + 1).min(usize::try_from(self.bytes).unwrap_or(usize::MAX));
        let line = |text: &[u8]| memchr::memchr(b'\n', text).map(|end| end + 1);
        match &self.text {
            OpenText::Memory(text) => {
                let text = &text[..most];
                Ok(Cow::Borrowed(&text[..line(text).unwrap_or(most)]))
            }
            OpenText::File(file, path) => {
                let io = |source| Error::Io { doing: "read", path: path.clone(), source };
                let mut text = Vec::new();
                // The loop ends: each round doubles the bytes read, up to `most`.
                loop {
                    let read = text.len();
                    text.resize((read * 2).max(TAIL_BYTES).min(most), 0);
                    read_exact_at(file, &mut text[read..], read as u64).map_err(io)?;
                    let end = line(&text[read..]).map(|end| read + end);
                    if end.is_some() || text.len() == most {
                        text.truncate(end.unwrap_or(most));
                        return Ok(Cow::Owned(text));
                    }
                }
            }
        }
    }

    /// Returns the rows of a range. Rows of a file are read into `buffer`.
    pub(super) fn rows<'b>(&self, range: Range<u64>, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]>
    where
        'a: 'b,
    {
        match &self.text {
            OpenText::Memory(text) => {
                let range = range.start as usize..range.end as usize;
                if matches!(self.row_ends, RowEnds::Rows(_)) {
                    return Ok(&text[range]);
                }
                self.cut(text, 0, range).map(|lines| &text[lines])
            }
            OpenText::File(file, path) => {
                let rows = self.read(range, file, path, buffer);
                // First: a change explains an error.
                self.check_unchanged()?;
                rows
            }
        }
    }

    /// Returns the place in `text` of the lines that begin in `range`. `text` begins `before` bytes
    /// after the beginning of the input. It must contain the whole last line of the range, or more
    /// than `LINE_BYTES_MAX` bytes of it.
    fn cut(&self, text: &[u8], before: u64, range: Range<usize>) -> Result<Range<usize>> {
        let first = if before == 0 && range.start == 0 {
            0
        } else {
            // A line begins after each line end. The first line may begin at the start of the
            // range, so the search includes the byte before it.
            match memchr::memchr(b'\n', &text[range.start - 1..range.end]) {
                Some(at) => range.start + at,
                None => return Ok(range.end..range.end),
            }
        };
        if first >= range.end {
            return Ok(first..first);
        }
        let too_long = |begin: usize| {
            let lines_before = memchr::memchr_iter(b'\n', &text[first..begin]).count();
            too_long(self.name.clone(), lines_before)
        };
        let last = line_ends(text, first, first, range.end).map_err(too_long)?.unwrap_or(first);
        if last == range.end {
            return Ok(first..last);
        }
        let reach = text.len().min(last + LINE_BYTES_MAX + 1);
        match memchr::memchr(b'\n', &text[range.end..reach]) {
            Some(at) => Ok(first..range.end + at + 1),
            None if text.len() - last > LINE_BYTES_MAX => Err(too_long(last)),
            None => Ok(first..text.len()),
        }
    }

    fn read<'b>(
        &self,
        range: Range<u64>,
        file: &File,
        path: &Path,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        let io = |source| Error::Io { doing: "read", path: path.to_owned(), source };
        let bytes = self.bytes;
        if matches!(self.row_ends, RowEnds::Rows(_)) {
            buffer.resize((range.end - range.start) as usize, 0);
            read_exact_at(file, buffer, range.start).map_err(io)?;
            return Ok(buffer);
        }
        // The byte before the range shows whether a line begins at the range's start.
        let from = range.start.saturating_sub(1);
        let mut to = (range.end + TAIL_BYTES as u64).min(bytes);
        buffer.resize((to - from) as usize, 0);
        read_exact_at(file, buffer, from).map_err(io)?;
        // Index in the buffer of the range's last byte.
        let last = (range.end - 1 - from) as usize;
        if range.start > 0 && memchr::memchr(b'\n', &buffer[..last]).is_none() {
            // No line begins in this range, so the chunk has no rows. An earlier chunk has the line
            // that goes through this range.
            return Ok(&[]);
        }
        let mut searched = last;
        // The loop ends: each round doubles the bytes read, up to the file's end or beyond the
        // limit of a line.
        while to < bytes && memchr::memchr(b'\n', &buffer[searched..]).is_none() {
            searched = buffer.len();
            if searched - last > LINE_BYTES_MAX {
                // Any line that begins in the range and reaches this place is too long.
                break;
            }
            let more = ((searched - last) as u64).min(bytes - to);
            buffer.resize(searched + more as usize, 0);
            read_exact_at(file, &mut buffer[searched..], to).map_err(io)?;
            to += more;
        }
        let begin = (range.start - from) as usize;
        let lines = self.cut(buffer, from, begin..last + 1)?;
        Ok(&buffer[lines])
    }
}

impl Open<'_> {
    /// Returns the first place from `at` on at which a line begins. `at` must be above 0. If a line
    /// has more bytes than a line may have, returns a place within it.
    pub(super) fn line_begin(&self, at: u64) -> Result<u64> {
        let OpenText::File(file, path) = &self.text else { unreachable!("files are split") };
        let io = |source| Error::Io { doing: "read", path: path.clone(), source };
        let limit = self.bytes.min(at + LINE_BYTES_MAX as u64);
        let mut text = Vec::new();
        // The byte before `at` shows whether a line begins there.
        let mut from = at - 1;
        // The loop ends: each round moves on by the bytes read, up to the limit.
        while from < limit {
            text.resize((limit - from).min(TAIL_BYTES as u64) as usize, 0);
            read_exact_at(file, &mut text, from).map_err(io)?;
            if let Some(end) = memchr::memchr(b'\n', &text) {
                return Ok(from + end as u64 + 1);
            }
            from += text.len() as u64;
        }
        Ok(limit)
    }

    /// The compressed bytes of each row group of a Parquet file. `None` for an Arrow file.
    #[cfg(feature = "parquet")]
    pub(super) fn row_group_bytes(&self) -> std::result::Result<Option<Vec<u64>>, String> {
        let OpenText::File(file, _) = &self.text else { unreachable!("files are split") };
        crate::columns::row_group_bytes(file)
    }
}

/// Returns the range of a part after checking that its file is the one that was split, as
/// `unchanged` does for the passes of a run.
fn checked_range(
    part: &FilePart,
    name: &str,
    bytes: u64,
    state: Option<&FileState>,
) -> Result<Range<u64>> {
    let what = if part.file_bytes != bytes {
        format!("it had {} bytes when it was split and has {bytes}", part.file_bytes)
    } else if state.is_some_and(|state| state.modified_ns() == part.modified_ns) {
        return Ok(part.range.clone());
    } else {
        "its time of change is another than when it was split; split it again, or keep the times of copies (cp -p, \
         rsync -t)"
            .to_owned()
    };
    Err(Error::InputChanged { input: name.to_owned(), what })
}

/// Makes the error of a line that is too long and has `lines_before` lines of its chunk before it.
/// The committer adds the lines of earlier chunks.
#[cold]
pub(super) fn too_long(input: String, lines_before: usize) -> Error {
    Error::LineTooLong { input, line: lines_before as u64 + 1, limit: LINE_BYTES_MAX }
}

fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}
