//! Reads the rows of a chunk into blocks, for every form of input.
//!
//! A chunk is plain text, text with quotes or with a separator of several bytes, packed rows, or
//! columns of a file. [`RowReader`] examines a chunk once. The resulting [`ChunkReader`] fills one
//! block after the other. The later steps do not depend on the form.

use std::sync::Arc;

use crate::decode::{
    BadList, BadRow, Block, Decoder, Layout, Level, Syntax, Unquoted, row_bytes, unpack,
};
use crate::format::Format;
use crate::input::ChunkRows;
use crate::plan::Plan;

/// Reads chunks one after the other, in one thread.
pub(super) struct RowReader {
    format: Format,
    level: Level,
    /// The plan of the current chunk's rows.
    plan: Arc<Plan>,
    decoder: Decoder,
    /// The current chunk with its quotes removed, if it has quotes.
    unquoted: Unquoted,
}

/// The rows of a chunk that are not in a block yet.
pub(super) struct ChunkReader<'a> {
    /// Largest possible number of good rows. Decoding may find that some of these rows are bad.
    pub(super) rows: usize,
    /// Number of lines of the chunk, including the lines of bad rows. 0 for packed rows.
    pub(super) lines: usize,
    form: Form<'a>,
}

enum Form<'a> {
    Text {
        decoder: &'a mut Decoder,
        text: &'a [u8],
    },
    Unquoted {
        decoder: &'a mut Decoder,
        unquoted: &'a Unquoted,
        /// The input's text, with its quotes.
        original: &'a [u8],
        syntax: Syntax,
    },
    Packed {
        rows: &'a [u8],
        layout: &'a Layout,
        level: Level,
    },
    #[cfg(feature = "parquet")]
    Columns {
        from: crate::columns::ColumnRows,
        /// The first row that is not in a block yet.
        next: usize,
        layout: &'a Layout,
    },
}

impl RowReader {
    pub(super) fn new(plan: &Arc<Plan>, format: Format, level: Level) -> Self {
        Self {
            format,
            level,
            plan: Arc::clone(plan),
            decoder: Decoder::new(Arc::clone(&plan.layout), level),
            unquoted: Unquoted::default(),
        }
    }

    /// Switches to another plan, for an input with another header.
    pub(super) fn change_plan(&mut self, plan: &Arc<Plan>) {
        self.decoder = Decoder::new(Arc::clone(&plan.layout), self.level);
        self.plan = Arc::clone(plan);
    }

    /// Begins a chunk after its first `skip` bytes. Bad rows that are found before decoding go to
    /// `bad`.
    pub(super) fn begin<'a>(
        &'a mut self,
        rows: ChunkRows<'a>,
        skip: usize,
        bad: &mut BadList,
    ) -> ChunkReader<'a> {
        match rows {
            ChunkRows::Bytes(bytes) => match self.format {
                Format::Text { separator, quote, .. } => {
                    self.begin_text(&bytes[skip..], Syntax { separator, quote }, bad)
                }
                Format::Packed | Format::Columns | Format::ByName(_) => {
                    let layout = &self.plan.layout;
                    let rows = bytes.len() / row_bytes(layout.fields());
                    let form = Form::Packed { rows: bytes, layout, level: self.level };
                    ChunkReader { rows, lines: 0, form }
                }
            },
            #[cfg(feature = "parquet")]
            ChunkRows::Columns(from) => ChunkReader {
                rows: from.rows(),
                lines: from.rows(),
                form: Form::Columns { from, next: 0, layout: &self.plan.layout },
            },
        }
    }

    fn begin_text<'a>(
        &'a mut self,
        text: &'a [u8],
        syntax: Syntax,
        bad: &mut BadList,
    ) -> ChunkReader<'a> {
        // A chunk without quotes takes the faster path for plain text.
        let quote = syntax.quote.filter(|&quote| memchr::memchr(quote, text).is_some());
        let syntax = Syntax { quote, ..syntax };
        if quote.is_none() && !syntax.separator.has_several_bytes() {
            let lines = self.decoder.begin(text, bad);
            let rows = self.decoder.rows();
            return ChunkReader {
                rows,
                lines,
                form: Form::Text { decoder: &mut self.decoder, text },
            };
        }
        let lines = self.unquoted.read(text, syntax, &self.plan.layout, bad);
        let mut misfits = BadList::default();
        self.decoder.begin_unquoted(&mut self.unquoted, &mut misfits);
        let unquoted = &self.unquoted;
        bad.add_all(&mut misfits, |bad| unquoted.place(text, syntax, bad));
        let decoder = &mut self.decoder;
        let form = Form::Unquoted { decoder, unquoted, original: text, syntax };
        ChunkReader { rows: unquoted.rows(), lines, form }
    }
}

impl ChunkReader<'_> {
    /// Fills `block` with the next rows. Returns false if there are no more. Bad rows go to `bad`,
    /// which must be empty. Their places are numbers of rows, which [`place`](Self::place) converts
    /// to lines.
    pub(super) fn next(&mut self, block: &mut Block, bad: &mut Vec<BadRow>) -> bool {
        match &mut self.form {
            Form::Text { decoder, text } => decoder.next(text, block, bad),
            Form::Unquoted { decoder, unquoted, .. } => {
                let more = decoder.next(&unquoted.text, block, bad);
                bad.iter_mut().for_each(|bad| bad.lines = unquoted.lines_of(bad.line));
                more
            }
            Form::Packed { rows, .. } if rows.is_empty() => false,
            Form::Packed { rows, layout, level } => {
                let count = unpack(rows, layout, *level, block);
                *rows = &rows[count * row_bytes(layout.fields())..];
                true
            }
            #[cfg(feature = "parquet")]
            Form::Columns { from, next, .. } if *next == from.rows() => false,
            #[cfg(feature = "parquet")]
            Form::Columns { from, next, layout } => {
                let begin = *next;
                *next = (begin + layout.block_rows()).min(from.rows());
                crate::columns::read_columns(from, begin..*next, layout, block, bad);
                true
            }
        }
    }

    /// Returns the number of lines of the row at a line, or of the row of this number of a text
    /// with quotes.
    pub(super) fn lines_of(&self, line: usize) -> usize {
        match &self.form {
            Form::Unquoted { unquoted, .. } => unquoted.lines_of(line),
            _ => 1,
        }
    }

    /// Converts a bad row's place from rows to lines of the chunk. Adds the row's name, if it has
    /// one.
    pub(super) fn place(&self, bad: &mut BadRow) {
        match &self.form {
            Form::Unquoted { unquoted, original, syntax, .. } => {
                unquoted.place(original, *syntax, bad);
            }
            #[cfg(feature = "parquet")]
            Form::Columns { from, .. } => {
                if let Some(name) = from.name(bad.line) {
                    bad.fault.of_row(name);
                }
            }
            _ => {}
        }
    }
}
