//! Reads texts that can only be read from the beginning: compressed texts, pipes, and texts with
//! quotes.
//!
//! **Problem.** To find byte 512 Ki of a compressed text, a thread must decompress all bytes before
//! it. A line end may end a row or belong to a quoted field. To know which, a thread must see all
//! quotes before it.
//!
//! **Approach.** The thread that claims the next chunk reads it while it holds the claim's lock. It
//! reads as many bytes as a chunk has and cuts after the last complete row. The bytes after the cut
//! begin the next chunk. Several threads share all other work, as with ranges. However far a text
//! expands, a buffer holds at most a chunk and the longest line.
//!
//! **Quotes.** A quote opens only at the beginning of a field. It closes at the next quote that is
//! not doubled. A quote at any other place is an error and opens nothing, so the bad row ends with
//! its line. The rows therefore do not depend on where the text is cut. [`crate::decode::Unquoted`]
//! follows the same rule.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Largest number of bytes of a line without its LF, for any chunk size. This limit bounds the
/// buffers.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
/// Number of a text's first bytes that show its compression.
pub(crate) const MAGIC_BYTES: usize = 4;
/// Byte order mark with which Windows programs begin texts in UTF-8. It does not belong to the
/// first field.
pub(crate) const UTF8_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
/// Interval at which a thread that waits for a pipe checks whether the run must stop.
const PIPE_LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Bytes of a text that is passed over that are read at a time.
const PASSED_BYTES: usize = 256 << 10;
/// Least growth of a buffer that has no line end yet.
const GROWTH_BYTES: usize = 4 << 10;

/// How a reader finds the ends of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowEnds {
    /// Each line end ends a row.
    Lines,
    /// Each line end outside quotes ends a row.
    Quoted { separator: u8, quote: u8 },
    /// Each row has this many bytes.
    Rows(usize),
    /// The rows of a Parquet or Arrow file; there is no text.
    Columns,
}

/// Compression of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// The compression that a file's extension shows.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "gz" | "gzip" => Some(Self::Gzip),
            "zst" | "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The compression that a text's first bytes show. No line of numbers or text begins with these
    /// bytes.
    pub(crate) fn of_bytes(first: &[u8]) -> Option<Self> {
        match first {
            [0x1F, 0x8B, 8, ..] => Some(Self::Gzip),
            // A frame, or a frame to skip, with which pzstd and seekable files begin.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Counts the bytes that are read from `inner`.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        // Relaxed: only the thread that holds the claim's lock reads or writes the counter.
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Decompresses the members of a gzip file, as `cat a.gz b.gz` makes them. Zero bytes after a
/// member are padding, as tapes and archives make it; gzip and Python pass over them too.
struct GzipMembers<R> {
    /// `None` at the end.
    member: Option<flate2::bufread::GzDecoder<BufReader<R>>>,
}

impl<R: Read> GzipMembers<R> {
    fn new(from: R) -> Self {
        Self { member: Some(flate2::bufread::GzDecoder::new(BufReader::new(from))) }
    }
}

impl<R: Read> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The loop ends: each round reads bytes, or moves on to the next member.
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let rest = self.member.take().map(flate2::bufread::GzDecoder::into_inner);
            self.member = rest.map(after_zeros).transpose()?.flatten();
        }
        Ok(0)
    }
}

/// Passes over zero bytes, and begins the member after them. `None` if there is none.
fn after_zeros<R: Read>(
    mut from: BufReader<R>,
) -> io::Result<Option<flate2::bufread::GzDecoder<BufReader<R>>>> {
    // The loop ends: each round consumes bytes.
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_padding = zeros == bytes.len();
        from.consume(zeros);
        if !is_padding {
            return Ok(Some(flate2::bufread::GzDecoder::new(from)));
        }
    }
}

/// A pipe. Its writer may write nothing for any length of time, so a read fails once `stop` is
/// true.
pub(crate) struct Pipe {
    /// Opened with `NONBLOCK`, so neither opening nor reading waits for a writer.
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
        // The loop ends: bytes arrive, all writers close the pipe, or the run is stopped.
        loop {
            // Relaxed: nothing else depends on the flag, and a later round may be the first to see
            // it.
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("the run was stopped"));
            }
            // Polls before it reads: while no writer has opened the pipe yet, a read would report
            // the pipe's end.
            let mut waits = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waits, Some(&PIPE_LOOK_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match self.file.read(buffer) {
                // Another reader of the pipe took the bytes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Reads a range of a file, at places that it keeps itself.
struct FileRange {
    file: File,
    /// The bytes that are not read yet.
    range: Range<u64>,
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.range.end - self.range.start;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..wanted], self.range.start)?;
        self.range.start += read as u64;
        Ok(read)
    }
}

/// A text that is read from its beginning to its end.
pub(crate) struct Stream<'a> {
    source: Box<dyn Read + Send + 'a>,
    compression: Option<Compression>,
    /// Bytes read from the input so far. For a compressed input, compressed bytes count.
    input_bytes: Arc<AtomicU64>,
    carry: Vec<u8>,
    ended: bool,
    /// Place in the text after the bytes that were returned so far. A byte order mark counts.
    offset: u64,
}

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stream").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// The reason why there is no next piece.
#[derive(Debug)]
pub(crate) enum Broken {
    Io(io::Error),
    /// A line is too long. The piece has `lines_before` complete lines before it.
    TooLong {
        lines_before: usize,
    },
    /// The input, of this length in bytes, ends within a packed row.
    CutShort(u64),
}

impl<'a> Stream<'a> {
    pub(crate) fn of_file(file: &File, compression: Option<Compression>) -> io::Result<Self> {
        Self::new(file.try_clone()?, compression)
    }

    /// Reads a range of a file without compression. Does not move the place at which other readers
    /// of the file are.
    pub(crate) fn of_range(file: &File, range: Range<u64>) -> io::Result<Self> {
        let offset = range.start;
        let from = FileRange { file: file.try_clone()?, range };
        Ok(Self { offset, ..Self::new(from, None)? })
    }

    /// Reads a pipe. If no compression is given and `tells` is set, the pipe's first bytes decide
    /// whether it is compressed.
    pub(crate) fn of_pipe(
        mut pipe: Pipe,
        compression: Option<Compression>,
        tells: bool,
    ) -> io::Result<Self> {
        if compression.is_some() || !tells {
            return Self::new(pipe, compression);
        }
        // A single read may return fewer bytes, so `read_to_end` reads until all are there.
        let mut first = Vec::new();
        (&mut pipe).take(MAGIC_BYTES as u64).read_to_end(&mut first)?;
        let compression = Compression::of_bytes(&first);
        Self::new(io::Cursor::new(first).chain(pipe), compression)
    }

    pub(crate) fn of_memory(text: &'a [u8], compression: Option<Compression>) -> io::Result<Self> {
        Self::new(text, compression)
    }

    /// Reads a text without compression from `offset` on.
    pub(crate) fn of_memory_from(text: &'a [u8], offset: u64) -> io::Result<Self> {
        Ok(Self { offset, ..Self::new(&text[offset as usize..], None)? })
    }

    fn new(inner: impl Read + Send + 'a, compression: Option<Compression>) -> io::Result<Self> {
        let input_bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted { inner, bytes: Arc::clone(&input_bytes) };
        let source: Box<dyn Read + Send + 'a> = match compression {
            None => Box::new(counted),
            Some(Compression::Gzip) => Box::new(GzipMembers::new(counted)),
            Some(Compression::Zstd) => Box::new(zstd::stream::read::Decoder::new(counted)?),
        };
        Ok(Self { source, compression, input_bytes, carry: Vec::new(), ended: false, offset: 0 })
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compression.is_some()
    }

    /// Bytes read from the input so far.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.input_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` bytes of the input as read.
    pub(crate) fn count(&self, bytes: u64) {
        self.input_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Moves on to `offset` of the text, and returns the byte before it. `piece` is the piece that
    /// `next` returned last. `None` if `offset` does not lie behind the piece's beginning, or if
    /// the text is shorter.
    pub(crate) fn pass_to(&mut self, offset: u64, mut piece: Vec<u8>) -> io::Result<Option<u8>> {
        let begin = self.offset - piece.len() as u64;
        let Some(mut left) = offset.checked_sub(begin) else { return Ok(None) };
        piece.append(&mut self.carry);
        let mut last = None;
        // The loop ends: each round passes over bytes, up to the offset or the text's end.
        while left > 0 && !piece.is_empty() {
            let passed = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            last = Some(piece[passed - 1]);
            left -= passed as u64;
            piece.drain(..passed);
            if left > 0 {
                self.fill(&mut piece, PASSED_BYTES)?;
            }
        }
        self.carry = piece;
        self.offset = offset;
        Ok(last.filter(|_| left == 0))
    }

    /// Offset in the text at which the next piece begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `buffer` with the next complete rows. Returns false if there are no more.
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
        // The byte order mark is removed before the search. Otherwise a quote directly after the
        // mark would not be at the beginning of a field.
        let marks = self.offset == 0 && matches!(row_ends, RowEnds::Lines | RowEnds::Quoted { .. });
        let mut first = if marks { UTF8_MARK.len() } else { 0 };
        let mut mark = 0;
        // The loop ends: each round reads more, up to the text's end or the limit of a line.
        loop {
            self.fill(buffer, wanted.max(first)).map_err(Broken::Io)?;
            if first > 0 && buffer.starts_with(&UTF8_MARK) {
                buffer.drain(..UTF8_MARK.len());
                mark = UTF8_MARK.len();
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
            // The last line may have no line end.
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
        self.offset += (mark + buffer.len()) as u64;
        Ok(!buffer.is_empty())
    }

    fn fill(&mut self, buffer: &mut Vec<u8>, wanted: usize) -> io::Result<()> {
        let more = wanted.saturating_sub(buffer.len());
        if self.ended || more == 0 {
            return Ok(());
        }
        // Exact: a vector that grows by itself doubles its memory. How much memory is taken would
        // then depend on the text.
        buffer.reserve_exact(more);
        let read = (&mut self.source).take(more as u64).read_to_end(buffer)?;
        self.ended = read < more;
        Ok(())
    }
}

/// State of the search for the ends of a text's rows.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    inside: bool,
    /// End of the last complete row.
    last_end: Option<usize>,
    /// Beginning of the row whose end the search has not found yet.
    row_begin: usize,
    /// True if the row that begins at `row_begin` is longer than `LINE_BYTES_MAX`.
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

    /// Searches for line ends up to `end`. The text from `at` to `end` must be outside quotes.
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
        // The loop ends: each round moves beyond a quote.
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
                // The byte after this quote decides whether the quote closes or is doubled. That
                // byte is not read yet.
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

/// Returns the place after the last line end in `from..end`. `None` if there is no line end. The
/// line that `from` lies in began at `begin`. If a line is longer than `LINE_BYTES_MAX`, fails with
/// the beginning of the first such line.
///
/// The search goes backwards from the last place where the line may end. If lines are short, it
/// therefore looks at few bytes.
pub(crate) fn line_ends(
    text: &[u8],
    begin: usize,
    from: usize,
    end: usize,
) -> Result<Option<usize>, usize> {
    let mut begin = begin;
    let mut from = from;
    let mut last = None;
    // The loop ends: each round moves beyond a line end.
    loop {
        // The line's end must lie before `reach`. Otherwise the line is too long.
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
