//! Cuts the inputs into chunks, which threads claim.
//!
//! Only one input at a time is open for claims. A run over 100,000 files therefore has few files
//! open: the one for claims, and those whose chunks are being worked on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::locks::Mutex;

use super::Input;
use super::begin::{Begin, TextBegin, TextBegins};
use super::open::{Open, Serial, too_long};
use super::pass::misplaced;
use super::stream::{Broken, RowEnds, Stream};
use super::unchanged::FileStates;
use crate::error::{Error, Result};
use crate::plan::{Plan, Plans};

/// The inputs of a run.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    pub(super) inputs: Vec<Input<'a>>,
    pub(super) chunk_bytes: u64,
    pub(super) row_ends: RowEnds,
    pub(super) begins: TextBegins,
    /// The fields that the plan reads, for Parquet and Arrow files.
    #[cfg(feature = "parquet")]
    pub(super) fields: Vec<(String, crate::decode::FieldLayout)>,
    /// Set to true to stop the run. A thread that waits for a pipe then fails.
    stop: Arc<AtomicBool>,
    /// The states of the inputs when the run first opened them.
    states: Arc<FileStates>,
    pub(super) at: Mutex<Position<'a>>,
    /// Where the run begins, if not at the first input's beginning.
    pub(super) from: Option<ChunkPlace>,
    /// Where the run ends, if not at the last input's end.
    pub(super) until: Option<ChunkPlace>,
    /// Columns that Parquet and Arrow files lack, for the report.
    missing_columns: Mutex<MissingColumns>,
    /// Columns that at least one input is known to have.
    #[cfg(feature = "parquet")]
    columns_elsewhere: Mutex<std::collections::HashSet<String>>,
    #[cfg(feature = "parquet")]
    meanings: Mutex<super::meanings::Meanings>,
}

/// Columns that fields need and that Parquet or Arrow files lack. Their values are missing.
#[derive(Debug, Default, Clone)]
pub(crate) struct MissingColumns {
    pub(crate) count: u64,
    /// The first ten missing columns, each with the file that lacks it.
    pub(crate) first: Vec<String>,
}

impl MissingColumns {
    #[cfg(feature = "parquet")]
    fn add(&mut self, input: &str, names: &[String]) {
        for name in names {
            self.count += 1;
            if self.first.len() < crate::decode::REPORTED_BAD_ROWS {
                self.first.push(format!("{input}: {name:?}"));
            }
        }
    }
}

/// The place of a chunk: an input, and an offset in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkPlace {
    pub(super) input: usize,
    pub(super) offset: u64,
}

#[derive(Debug, Default)]
pub(super) struct Position<'a> {
    pub(super) input: usize,
    /// The input whose chunks threads are claiming. `None` until it is opened.
    current: Option<Current<'a>>,
    offset: u64,
    sequence: u64,
    /// Bytes of the inputs before the current one. For a pipe, the bytes that were read from it
    /// count.
    pub(super) bytes_before: u64,
    /// Bytes before the place at which the run began, which it does not read.
    pub(super) passed_bytes: u64,
}

/// The input whose chunks threads are claiming.
#[derive(Debug)]
pub(super) struct Current<'a> {
    pub(super) open: Arc<Open<'a>>,
    /// What the first chunk skips at its beginning, and the plan of all chunks of this input.
    pub(super) first: TextBegin,
    pub(super) reader: Reader<'a>,
}

#[derive(Debug)]
pub(super) enum Reader<'a> {
    /// A thread claims a range under the lock, and reads the range after it has released the lock.
    Ranges,
    Text(Stream<'a>),
    #[cfg(feature = "parquet")]
    Columns(crate::columns::ColumnStream<'a>),
}

/// A chunk that one thread works on: a range of an input.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    /// The chunk's number, counted over all inputs.
    pub(crate) sequence: u64,
    pub(crate) input: usize,
    /// The range in the input. For a compressed text, the range in the decompressed text.
    pub(crate) range: Range<u64>,
    /// Bytes of all inputs up to the end of this chunk. For a compressed input, compressed bytes
    /// count.
    pub(crate) input_bytes: u64,
    /// The plan for the chunk's rows.
    pub(crate) plan: Arc<Plan>,
    /// The bytes and lines before the chunk's first row.
    pub(crate) begin: Begin,
    pub(crate) source: ChunkSource<'a>,
}

/// The place of a chunk's rows.
#[derive(Debug)]
pub(crate) enum ChunkSource<'a> {
    /// The rows are in the input. The thread that has claimed the chunk reads them from the input.
    There(Arc<Open<'a>>),
    /// In the buffer that the thread passed to `claim`.
    Buffer,
    #[cfg(feature = "parquet")]
    /// The rows, until the thread has taken them.
    Columns(Option<crate::columns::ColumnRows>),
    /// Reading failed. This is the run's last chunk.
    Failed(Option<Error>),
}

/// The rows of a chunk.
#[derive(Debug)]
pub(crate) enum ChunkRows<'a> {
    /// Text, or packed rows.
    Bytes(&'a [u8]),
    #[cfg(feature = "parquet")]
    Columns(crate::columns::ColumnRows),
}

/// The next range of the input whose chunks threads are claiming.
struct Piece<'a> {
    range: Range<u64>,
    /// Bytes of the input up to the end of the range.
    read: u64,
    source: ChunkSource<'a>,
}

impl<'a> Chunks<'a> {
    /// Makes the chunks of a run; no input is opened yet. A thread that waits for a pipe fails with
    /// [`Error::Stopped`] once `stop` is true.
    ///
    /// # Errors
    /// [`Error::Inputs`] if there are no inputs, or standard input more than once. [`Error::Io`] if
    /// a file does not exist.
    pub(crate) fn new(
        inputs: &[Input<'a>],
        chunk_bytes: usize,
        plans: &Arc<Plans>,
        stop: Arc<AtomicBool>,
        states: Arc<FileStates>,
    ) -> Result<Self> {
        if inputs.is_empty() {
            let why = "there are no inputs: give one at least (a pattern of names may have matched no file)";
            return Err(Error::Inputs(why.to_owned()));
        }
        Input::check_once(inputs)?;
        inputs.iter().try_for_each(Input::check)?;
        let row_ends = plans.row_ends();
        let chunk_bytes = match row_ends {
            RowEnds::Rows(row_bytes) => (chunk_bytes / row_bytes).max(1) * row_bytes,
            RowEnds::Lines | RowEnds::Quoted { .. } | RowEnds::Columns => chunk_bytes.max(1),
        };
        Ok(Self {
            inputs: inputs.to_vec(),
            chunk_bytes: chunk_bytes as u64,
            row_ends,
            begins: TextBegins::new(Arc::clone(plans)),
            #[cfg(feature = "parquet")]
            fields: plans.own().read_fields(),
            stop,
            states,
            at: Mutex::default(),
            from: None,
            until: None,
            missing_columns: Mutex::default(),
            #[cfg(feature = "parquet")]
            columns_elsewhere: Mutex::default(),
            #[cfg(feature = "parquet")]
            meanings: Mutex::default(),
        })
    }

    pub(crate) fn name(&self, input: usize) -> &str {
        self.inputs[input].name()
    }

    /// Bytes of all inputs that were read to the end. For a pipe, the bytes that were read from it
    /// count.
    pub(crate) fn bytes(&self) -> u64 {
        self.at.lock().bytes_before
    }

    /// True if the caller has stopped the run.
    pub(crate) fn is_stopped(&self) -> bool {
        // Relaxed: it does not matter which check is the first to see the flag.
        self.stop.load(Ordering::Relaxed)
    }

    /// Columns that Parquet and Arrow files lack.
    pub(crate) fn missing_columns(&self) -> MissingColumns {
        self.missing_columns.lock().clone()
    }

    /// Claims the next chunk. `None` after the last one. A chunk of a stream is read at once, into
    /// `buffer`.
    pub(crate) fn claim(&self, buffer: &mut Vec<u8>) -> Option<Claim<'a>> {
        let mut at = self.at.lock();
        let at = &mut *at;
        // The loop ends: each round moves on to the next input.
        loop {
            self.inputs.get(at.input)?;
            if self.until.is_some_and(|until| at.input > until.input) {
                return None;
            }
            let piece = match self.piece(at, buffer) {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    at.leave_input();
                    continue;
                }
                Err(error) => {
                    let source = ChunkSource::Failed(Some(error));
                    Piece { range: at.offset..at.offset, read: 0, source }
                }
            };
            let (begin, plan) = match &mut at.current {
                Some(current) => (std::mem::take(&mut current.first.begin), &current.first.plan),
                None => (Begin::default(), self.begins.own()),
            };
            let claim = Claim {
                sequence: at.sequence,
                input: at.input,
                input_bytes: at.bytes_before + piece.read,
                plan: Arc::clone(plan),
                begin,
                range: piece.range,
                source: piece.source,
            };
            at.sequence += 1;
            at.offset = claim.range.end;
            if matches!(claim.source, ChunkSource::Failed(_)) {
                at.input = self.inputs.len();
                at.current = None;
            }
            return Some(claim);
        }
    }

    /// Returns the next piece of the current input. Opens the input if it is not open yet. `None`
    /// at the input's end.
    fn piece(&self, at: &mut Position<'a>, buffer: &mut Vec<u8>) -> Result<Option<Piece<'a>>> {
        let current = match &mut at.current {
            Some(current) => current,
            none => {
                let opened = none.insert(self.open(at.input)?);
                at.offset = opened.first_offset();
                // An input is opened for claims once.
                if let Some(from) = self.from.filter(|from| from.input == at.input) {
                    at.passed_bytes += self.pass_over(opened, at.offset..from.offset)?;
                    at.offset = from.offset;
                }
                opened
            }
        };
        let begin = at.offset;
        let input = &current.open;
        let until = self.until.filter(|until| until.input == at.input).map(|until| until.offset);
        if until.is_some_and(|until| begin >= until) {
            return Ok(None);
        }
        match &mut current.reader {
            Reader::Ranges if begin >= input.range().end => Ok(None),
            Reader::Ranges => {
                let ends_row = |until: &u64| match self.row_ends {
                    RowEnds::Rows(row_bytes) => (until - begin).is_multiple_of(row_bytes as u64),
                    _ => true,
                };
                if let Some(until) = until.filter(|until| !ends_row(until)) {
                    return Err(misplaced(input, until));
                }
                let end = (begin + self.chunk_bytes).min(input.range().end);
                let end = end.min(until.unwrap_or(end));
                let source = ChunkSource::There(Arc::clone(input));
                Ok(Some(Piece { range: begin..end, read: end, source }))
            }
            Reader::Text(stream) => {
                let more = stream.next(self.row_ends, self.chunk_bytes as usize, buffer);
                // First: a change explains an error.
                input.check_unchanged()?;
                let compressed = stream.is_compressed();
                if !more.map_err(|broken| self.broken(input, compressed, broken))? {
                    return Ok(None);
                }
                if begin == 0 {
                    current.first = self.begins.of(&input.name, buffer)?;
                }
                let mut end = stream.offset();
                if let Some(until) = until.filter(|&until| until < end) {
                    let kept = buffer.len().saturating_sub((end - until) as usize);
                    buffer.truncate(kept);
                    if kept < current.first.begin.bytes || buffer.last() != Some(&b'\n') {
                        return Err(misplaced(input, until));
                    }
                    end = until;
                }
                let read = stream.input_bytes();
                let read = if input.is_pipe { read } else { read.min(input.bytes) };
                Ok(Some(Piece { range: begin..end, read, source: ChunkSource::Buffer }))
            }
            #[cfg(feature = "parquet")]
            Reader::Columns(stream) => {
                let told = |what| Error::Columns { input: input.name.clone(), what };
                let rows = stream.next();
                input.check_unchanged()?;
                let Some(rows) = rows.map_err(told)? else { return Ok(None) };
                if begin == 0 {
                    self.check_columns(input, stream)?;
                }
                let end = begin + rows.rows() as u64;
                let read = stream.input_bytes(input.bytes);
                Ok(Some(Piece {
                    range: begin..end,
                    read,
                    source: ChunkSource::Columns(Some(rows)),
                }))
            }
        }
    }

    pub(super) fn open(&self, place: usize) -> Result<Current<'a>> {
        let open = Open::new(&self.inputs[place], self.row_ends)?;
        self.states.check(place, open.state.as_ref(), &open.name)?;
        let plan = Arc::clone(self.begins.own());
        let mut first = TextBegin { begin: Begin::default(), plan };
        let reader = match open.serial {
            None if matches!(self.row_ends, RowEnds::Rows(_)) => Reader::Ranges,
            None => {
                if open.bytes > 0 {
                    let line = open.first_line();
                    open.check_unchanged()?;
                    first = self.begins.of(&open.name, &line?)?;
                    if !open.has_beginning() {
                        first.begin = Begin::default();
                    }
                }
                Reader::Ranges
            }
            Some(Serial::Text(compression)) => {
                let stream = open.stream(compression, &self.stop);
                let compressed = compression.is_some();
                let told = |error| self.broken(&open, compressed, Broken::Io(error));
                let stream = stream.map_err(told)?;
                if !open.has_beginning() {
                    first.plan = self.plan_of_beginning(&open)?;
                }
                Reader::Text(stream)
            }
            #[cfg(feature = "parquet")]
            Some(Serial::Columns) => {
                let stream = open.columns(&self.fields, self.chunk_bytes as usize, 0);
                open.check_unchanged()?;
                let told = |what| Error::Columns { input: open.name.clone(), what };
                Reader::Columns(stream.map_err(told)?)
            }
        };
        Ok(Current { open: Arc::new(open), first, reader })
    }

    /// Returns the plan for the rows of a later part of a text with quotes. The first row of the
    /// file decides.
    pub(super) fn plan_of_beginning(&self, open: &Open<'a>) -> Result<Arc<Plan>> {
        let told = |broken| self.broken(open, false, broken);
        let mut stream = open.stream_of_beginning().map_err(|error| told(Broken::Io(error)))?;
        let mut text = Vec::new();
        // Reads one row at least.
        stream.next(self.row_ends, 1, &mut text).map_err(told)?;
        open.check_unchanged()?;
        Ok(self.begins.of(&open.name, &text)?.plan)
    }

    /// Checks the columns of a file against those of the run's other files, and counts missing
    /// ones. Called at the first row: a file without rows has no values that could be missing or
    /// mean another thing.
    #[cfg(feature = "parquet")]
    pub(super) fn check_columns(
        &self,
        input: &Open<'a>,
        stream: &crate::columns::ColumnStream<'a>,
    ) -> Result<()> {
        if !input.is_part() {
            // The split of a part has looked at all files.
            self.check_absent(input, stream.absent())?;
        }
        if input.has_beginning() {
            self.missing_columns.lock().add(&input.name, stream.absent());
        }
        self.meanings.lock().add(&input.name, stream.meanings())
    }

    /// True if a newly opened file of columns has a row. Reads the first rows of an Arrow file,
    /// which does not say its number of rows.
    #[cfg(feature = "parquet")]
    pub(super) fn has_rows(
        &self,
        input: &Open<'a>,
        stream: &mut crate::columns::ColumnStream<'a>,
    ) -> Result<bool> {
        let told = |what| Error::Columns { input: input.name.clone(), what };
        match stream.rows_total() {
            Some(rows) => Ok(rows > 0),
            None => Ok(stream.next().map_err(told)?.is_some()),
        }
    }

    /// Fails if a field of `absent` has a column in no input of the run. Its name is then probably
    /// misspelt. Without this check, the field would be missing in every row.
    #[cfg(feature = "parquet")]
    fn check_absent(&self, open: &Open<'a>, absent: &[String]) -> Result<()> {
        let rows_bytes = self.chunk_bytes as usize;
        let mut elsewhere = self.columns_elsewhere.lock();
        for name in absent {
            let field = self.fields.iter().find(|(field, _)| field == name);
            let field = std::slice::from_ref(field.expect("a field of the pipeline is absent"));
            // An input that can't be read counts as one without the column. Its error is returned
            // when threads claim the input.
            let has = |input: &Input<'a>| {
                let open = Open::new(input, self.row_ends);
                open.is_ok_and(|open| open.has_values(field, rows_bytes))
            };
            if elsewhere.contains(name) || self.inputs.iter().any(has) {
                elsewhere.insert(name.clone());
                continue;
            }
            let what = format!("it has no column {name:?}, and no other input of the run has one");
            return Err(Error::Columns { input: open.name.clone(), what });
        }
        Ok(())
    }

    #[cold]
    pub(super) fn broken(&self, input: &Open<'a>, compressed: bool, broken: Broken) -> Error {
        let name = input.name.clone();
        match (broken, self.row_ends) {
            // Relaxed: if the read failed because `stop` is true, this thread has already seen that
            // value.
            (Broken::Io(_), _) if self.stop.load(Ordering::Relaxed) => Error::Stopped,
            (Broken::TooLong { lines_before }, _) => too_long(name, lines_before),
            (Broken::CutShort(bytes), RowEnds::Rows(row_bytes)) => {
                Error::NoWholeRows { input: name, bytes, row_bytes }
            }
            (Broken::CutShort(_), _) => unreachable!("the last line may lack its end"),
            (Broken::Io(source), _) if compressed => Error::Compressed { input: name, source },
            (Broken::Io(source), _) => Error::Io { doing: "read", path: name.into(), source },
        }
    }

    /// Reads all inputs and drops the rows. Uses `threads` threads, or fewer if the system refuses
    /// some.
    pub(crate) fn read_all(&self, threads: usize) -> Result<()> {
        self.each(threads, |_, _| Ok(()))
    }

    /// Reads all chunks, and calls `each` for each of them, in no order.
    pub(super) fn each(
        &self,
        threads: usize,
        each: impl Fn(&Claim<'a>, ChunkRows<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let read = || {
                let mut buffer = Vec::new();
                while let Some(mut claim) = self.claim(&mut buffer) {
                    let rows = claim.rows(&mut buffer)?;
                    each(&claim, rows)?;
                }
                Ok(())
            };
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, read).ok();
            let threads: Vec<_> = (1..threads).map_while(start).collect();
            let own = read();
            let others = threads.into_iter().map(|thread| thread.join());
            others.fold(own, |all, thread| {
                all.and(thread.unwrap_or_else(|_| Err(Error::Panicked("that reads".to_owned()))))
            })
        })
    }
}

impl Current<'_> {
    /// The place of the input's first chunk. Columns count rows, from 0 in each part.
    fn first_offset(&self) -> u64 {
        match self.reader {
            Reader::Ranges => self.open.range().start,
            Reader::Text(ref stream) => stream.offset(),
            #[cfg(feature = "parquet")]
            Reader::Columns(_) => 0,
        }
    }
}

impl Position<'_> {
    fn leave_input(&mut self) {
        self.bytes_before += self.current.take().map_or(0, |current| match &current.reader {
            Reader::Text(stream) if current.open.is_pipe => stream.input_bytes(),
            _ => current.open.input_bytes(),
        });
        self.input += 1;
        self.offset = 0;
    }
}

impl<'a> Claim<'a> {
    /// Returns the chunk's rows, without the bytes before them that `begin` counts. Rows of a file
    /// go into `buffer`, which must be the buffer that was passed to `claim`. Must be called once.
    pub(crate) fn rows<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<ChunkRows<'b>>
    where
        'a: 'b,
    {
        match &mut self.source {
            ChunkSource::There(open) => open.rows(self.range.clone(), buffer).map(ChunkRows::Bytes),
            ChunkSource::Buffer => Ok(ChunkRows::Bytes(buffer)),
            // The claim does not keep the rows: it waits for the chunks before it, and the rows
            // would keep the memory of their record batch.
            #[cfg(feature = "parquet")]
            ChunkSource::Columns(rows) => {
                Ok(ChunkRows::Columns(rows.take().expect("a thread takes the rows once")))
            }
            ChunkSource::Failed(error) => error.take().map_or(Ok(ChunkRows::Bytes(&[])), Err),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::open::TAIL_BYTES;
    use super::super::stream::LINE_BYTES_MAX;
    use super::*;
    use crate::format::Format;
    use crate::spec::Spec;

    fn chunks<'a>(inputs: &[Input<'a>], chunk_bytes: usize) -> Result<Chunks<'a>> {
        let plans = Plans::new(&Spec::criteo(5), Format::TSV, false).unwrap();
        Chunks::new(inputs, chunk_bytes, &Arc::new(plans), Arc::default(), Arc::default())
    }

    /// Regression test: a claim kept its rows until all chunks before it were done, and so the
    /// memory of their record batch.
    #[cfg(feature = "parquet")]
    #[test]
    fn a_claim_does_not_keep_rows_that_a_thread_has_taken() {
        use arrow_array::{ArrayRef, Int64Array, RecordBatch};
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let batch = RecordBatch::try_from_iter([("x", numbers)]).unwrap();
        let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        file.write(&batch).unwrap();
        let file = file.into_inner().unwrap();
        let spec = Spec {
            fields: vec![crate::Field::new("x", crate::FieldKind::Int64)],
            columns: vec![crate::Column::field("x").then(crate::Operator::FillMissing(0.into()))],
            outputs: vec![crate::Output::new("x", crate::Dtype::I64, ["x"])],
            ..Spec::default()
        };
        let plans = Arc::new(Plans::new(&spec, Format::Columns, false).unwrap());
        let input = [Input::memory("numbers", &file)];
        let chunks = Chunks::new(&input, 1 << 20, &plans, Arc::default(), Arc::default()).unwrap();
        let mut buffer = Vec::new();
        let mut claim = chunks.claim(&mut buffer).unwrap();
        let rows = claim.rows(&mut buffer).unwrap();
        assert!(matches!(rows, ChunkRows::Columns(rows) if rows.rows() == 10));
        assert!(matches!(claim.source, ChunkSource::Columns(None)));
    }

    fn all_chunks(input: Input<'_>, chunk_bytes: usize) -> Vec<u8> {
        let chunks = chunks(&[input], chunk_bytes).unwrap();
        let mut all = Vec::new();
        let mut buffer = Vec::new();
        let mut sequence = 0;
        while let Some(mut claim) = chunks.claim(&mut buffer) {
            assert_eq!(claim.sequence, sequence);
            sequence += 1;
            #[cfg_attr(
                not(feature = "parquet"),
                expect(irrefutable_let_patterns, reason = "columns need it")
            )]
            let ChunkRows::Bytes(lines) = claim.rows(&mut buffer).unwrap() else { unreachable!() };
            assert!(
                all.is_empty() || lines.is_empty() || all.ends_with(b"\n"),
                "chunks begin with a line"
            );
            all.extend_from_slice(lines);
        }
        all
    }

    proptest! {
        #[test]
        fn every_line_is_in_one_chunk(text in "[a\n]{0,60}", chunk_bytes in 1..70_usize) {
            prop_assert_eq!(all_chunks(Input::memory("text", text.as_bytes()), chunk_bytes), text.as_bytes());
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            prop_assert_eq!(all_chunks(Input::file(file.path()), chunk_bytes), text.as_bytes());
        }
    }

    #[test]
    fn a_line_beyond_what_is_read_at_first() {
        let text = [&b"a\n"[..], &vec![b'b'; TAIL_BYTES * 5], b"\nc"].concat();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&text).unwrap();
        assert_eq!(all_chunks(Input::file(file.path()), 10), text);
    }

    #[test]
    fn a_line_that_never_ends_is_an_error() {
        let text = vec![b'x'; LINE_BYTES_MAX + 100];
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&text).unwrap();
        for input in [Input::memory("text", &text), Input::file(file.path())] {
            let chunks = chunks(&[input], 10).unwrap();
            let mut buffer = Vec::new();
            let mut claim = chunks.claim(&mut buffer).unwrap();
            let rows = claim.rows(&mut buffer);
            assert!(matches!(rows, Err(Error::LineTooLong { .. })));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = chunks(&[Input::file("/not/there.tsv")], 10).unwrap_err();
        assert!(error.to_string().contains("/not/there.tsv"), "{error}");
    }
}
