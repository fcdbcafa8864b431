//! Texts that can only be read from their beginning to their end: compressed ones, pipes, and text
//! with quotes.
//!
//! **Problem.** To find byte 512 Ki of a compressed text, a thread must have decompressed all bytes
//! before it. To tell if a line end ends a row or stands in a quoted field, it must have seen all
//! quotes before it.
//!
//! **Approach.** The thread that claims the next chunk reads it, under the claim's lock: as many
//! bytes as a chunk has, cut behind the last whole row; the rest begins the next chunk. Everything
//! else is done by several threads, as with ranges. A buffer never holds more than a chunk and the
//! longest line, however far a text expands.
//!
//! **Quotes.** A quote opens where a field begins and nowhere else, and closes at the next one that
//! is not doubled. One at another place is wrong, and opens nothing: so a bad row ends where its
//! line does, and which rows there are does not depend on how the text is cut.
//! [`crate::decode::Unquoted`] goes by the same rule.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Most bytes of a line without its end (LF), for any chunk size.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
/// First bytes that tell how a text is compressed.
pub(crate) const MAGIC_BYTES: usize = 4;
/// What a text in UTF-8 may begin with, as programs on Windows write it. It is no part of the text.
pub(crate) const UTF8_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
/// Interval at which a thread that waits for a pipe looks whether the run is to stop.
const PIPE_LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// A buffer without a line end grows by at least this many bytes.
const GROWTH_BYTES: usize = 4 << 10;

/// How rows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowEnds {
    /// At line ends.
    Lines,
    /// At line ends outside of quotes.
    Quoted { separator: u8, quote: u8 },
    /// All rows have this many bytes.
    Rows(usize),
    /// It is no text: columns of Parquet or Arrow.
    Columns,
}

/// How a text is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// By a file's name.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "gz" | "gzip" => Some(Self::Gzip),
            "zst" | "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// By the first bytes, which no line of numbers and text begins with.
    pub(crate) fn of_bytes(first: &[u8]) -> Option<Self> {
        match first {
            [0x1F, 0x8B, 8, ..] => Some(Self::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Counts what is read of it.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        // Only the thread that holds the claim's lock reads and looks.
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A pipe, whose writer may be silent for as long as it likes: reading ends with a failure once
/// `stop` is true.
pub(crate) struct Pipe {
    /// Opened so that reading does not wait. Not even opening it does, for a writer.
    file: File,
    stop: Arc<AtomicBool>,
}

impl Pipe {
    pub(crate) fn new(file: &File, stop: &Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self { file: file.try_clone()?, stop: Arc::clone(stop) })
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Ends: something comes, or the writers go, or the run is stopped.
        loop {
            // Relaxed: it is only to be seen some time.
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("the run was stopped"));
            }
            // Before the first writer has come nothing is ready, but reading would say that this is
            // the end.
            let mut waits = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waits, Some(&PIPE_LOOK_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match self.file.read(buffer) {
                // Another thread has read it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// A text on its way.
pub(crate) struct Stream<'a> {
    source: Box<dyn Read + Send + 'a>,
    compression: Option<Compression>,
    /// Read of the input so far, compressed if it is.
    input_bytes: Arc<AtomicU64>,
    carry: Vec<u8>,
    ended: bool,
    /// Bytes of text that were handed out.
    offset: u64,
}

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stream").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// Why there is no next piece.
#[derive(Debug)]
pub(crate) enum Broken {
    Io(io::Error),
    /// A line is too long; the piece has this many lines before it.
    TooLong {
        lines_before: usize,
    },
    /// It ends within a row; its length.
    CutShort(u64),
}

impl<'a> Stream<'a> {
    pub(crate) fn of_file(file: &File, compression: Option<Compression>) -> io::Result<Self> {
        Self::new(file.try_clone()?, compression)
    }

    /// Of a pipe, which tells by its first bytes how it is compressed if it `tells` and nothing
    /// else has.
    pub(crate) fn of_pipe(
        mut pipe: Pipe,
        compression: Option<Compression>,
        tells: bool,
    ) -> io::Result<Self> {
        if compression.is_some() || !tells {
            return Self::new(pipe, compression);
        }
        // What comes first may be less than is asked for.
        let mut first = Vec::new();
        (&mut pipe).take(MAGIC_BYTES as u64).read_to_end(&mut first)?;
        let compression = Compression::of_bytes(&first);
        Self::new(io::Cursor::new(first).chain(pipe), compression)
    }

    pub(crate) fn of_memory(text: &'a [u8], compression: Option<Compression>) -> io::Result<Self> {
        Self::new(text, compression)
    }

    fn new(inner: impl Read + Send + 'a, compression: Option<Compression>) -> io::Result<Self> {
        let input_bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted { inner, bytes: Arc::clone(&input_bytes) };
        let source: Box<dyn Read + Send + 'a> = match compression {
            None => Box::new(counted),
            // Of several members, as `cat a.gz b.gz` makes them.
            Some(Compression::Gzip) => Box::new(flate2::read::MultiGzDecoder::new(counted)),
            Some(Compression::Zstd) => Box::new(zstd::stream::read::Decoder::new(counted)?),
        };
        Ok(Self { source, compression, input_bytes, carry: Vec::new(), ended: false, offset: 0 })
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compression.is_some()
    }

    /// Read of the input so far.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.input_bytes.load(Ordering::Relaxed)
    }

    /// Where in the text the next piece begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `buffer` with the next whole rows; false if there are no more.
    pub(crate) fn next(
        &mut self,
        row_ends: RowEnds,
        chunk_bytes: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, Broken> {
        buffer.clear();
        buffer.append(&mut self.carry);
        let mut scan = Scan::default();
        let mut wanted = chunk_bytes;
        // A quote behind the mark opens a field, so the mark goes before the text is searched.
        let marks = self.offset == 0 && matches!(row_ends, RowEnds::Lines | RowEnds::Quoted { .. });
        let mut first = if marks { UTF8_MARK.len() } else { 0 };
        // Ends: each round reads more, up to the text's end or the limit.
        loop {
            self.fill(buffer, wanted.max(first)).map_err(Broken::Io)?;
            if first > 0 && buffer.starts_with(&UTF8_MARK) {
                buffer.drain(..UTF8_MARK.len());
            }
            first = 0;
            scan.go_on(row_ends, buffer);
            if scan.too_long {
                let before = &buffer[..scan.row_begin];
                let lines_before = memchr::memchr_iter(b'\n', before).count();
                return Err(Broken::TooLong { lines_before });
            }
            if self.ended && scan.last_end.is_some_and(|end| end == buffer.len()) {
                break;
            }
            if let (RowEnds::Rows(_), true) = (row_ends, self.ended && !buffer.is_empty()) {
                return Err(Broken::CutShort(self.offset + buffer.len() as u64));
            }
            // The last line may lack its end.
            if self.ended {
                break;
            }
            if let Some(end) = scan.last_end {
                self.carry.extend_from_slice(&buffer[end..]);
                buffer.truncate(end);
                break;
            }
            wanted = buffer.len() + chunk_bytes.max(GROWTH_BYTES);
        }
        self.offset += buffer.len() as u64;
        Ok(!buffer.is_empty())
    }

    fn fill(&mut self, buffer: &mut Vec<u8>, wanted: usize) -> io::Result<()> {
        let more = wanted.saturating_sub(buffer.len());
        if self.ended || more == 0 {
            return Ok(());
        }
        // Not twice what is there, as a vector would grow: the text's length is not ours to trust.
        buffer.reserve_exact(more);
        let read = (&mut self.source).take(more as u64).read_to_end(buffer)?;
        self.ended = read < more;
        Ok(())
    }
}

/// How far a text was searched for the ends of its rows.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    inside: bool,
    /// Behind the last whole row.
    last_end: Option<usize>,
    /// Where the row begins of which the end was not found yet.
    row_begin: usize,
    /// That row is longer than one may be.
    too_long: bool,
}

impl Scan {
    fn go_on(&mut self, row_ends: RowEnds, text: &[u8]) {
        match row_ends {
            RowEnds::Lines => self.lines_to(text, text.len()),
            RowEnds::Rows(bytes) => {
                self.last_end = Some(text.len() / bytes * bytes).filter(|&end| end > 0);
            }
            RowEnds::Quoted { separator, quote } => self.quoted(text, separator, quote),
            RowEnds::Columns => unreachable!("columns are no text"),
        }
    }

    /// All up to `end` is outside of quotes.
    fn lines_to(&mut self, text: &[u8], end: usize) {
        match line_ends(text, self.row_begin, self.at, end) {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.row_begin = found;
                self.last_end = Some(found);
            }
            Err(row_begin) => {
                self.row_begin = row_begin;
                self.too_long = true;
            }
        }
        self.at = end;
    }

    fn quoted(&mut self, text: &[u8], separator: u8, quote: u8) {
        // Ends: each round leaves a quote behind.
        while let Some(found) = memchr::memchr(quote, &text[self.at..]) {
            let place = self.at + found;
            if !self.inside {
                self.lines_to(text, place);
                if self.too_long {
                    return;
                }
                let begins =
                    place == 0 || matches!(text[place - 1], b'\n') || text[place - 1] == separator;
                self.inside = begins;
                self.at = place + 1;
                continue;
            }
            match text.get(place + 1) {
                // It closes or is doubled: what comes next will tell.
                None => {
                    self.at = place;
                    return;
                }
                Some(&next) if next == quote => self.at = place + 2,
                Some(_) => {
                    self.inside = false;
                    self.at = place + 1;
                }
            }
        }
        if self.inside {
            self.at = text.len();
            self.too_long |= text.len() - self.row_begin > LINE_BYTES_MAX;
        } else {
            self.lines_to(text, text.len());
        }
    }
}

/// Behind the last line end in `from..end`, if there is one; the line that is open at `from` began
/// at `begin`. An error with the begin of the first line that is too long, if there is one.
///
/// It looks from one line end to the last that a line from there on may have: so it reads few bytes
/// of a text of short lines.
pub(crate) fn line_ends(
    text: &[u8],
    begin: usize,
    from: usize,
    end: usize,
) -> Result<Option<usize>, usize> {
    let mut begin = begin;
    let mut from = from;
    let mut last = None;
    // Ends: each round leaves a line end behind.
    loop {
        // The last place where the line's end may stand is in it.
        let reach = end.min(begin.saturating_add(LINE_BYTES_MAX + 1));
        let found = if from < reach { memchr::memrchr(b'\n', &text[from..reach]) } else { None };
        match found {
            Some(found) => {
                begin = from + found + 1;
                from = begin;
                last = Some(begin);
            }
            None if end - begin > LINE_BYTES_MAX => return Err(begin),
            None => return Ok(last),
        }
    }
}
