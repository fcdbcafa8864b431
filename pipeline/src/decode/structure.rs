//! Where the fields of a text end.
//!
//! **Problem.** A loop that walks a row byte by byte waits, at every field, for the end of the
//! field before.
//!
//! **Approach.** As simdjson does for JSON (Langdale and Lemire 2019): a first pass classifies 64
//! bytes at a time and writes down where separators and line ends are; it depends on no result but
//! their number. After it the place of every field of every row is known, and converting one waits
//! for no other.
//!
//! **Layout.** [`Structure::ends`] has a sentinel at its front, one before the text's first byte
//! (in wrapping arithmetic), so that field `i` is always the bytes between `ends[i] + 1` and
//! `ends[i + 1]`.

/// The texts that one [`Structure`] can index are shorter than this.
pub(crate) const TEXT_BYTES_MAX: usize = u32::MAX as usize - 64;
/// Room that the vector kernels may write beyond the last end.
const SLACK: usize = 64;

/// The ends of all fields of a text.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    ends: Vec<u32>,
    newlines: usize,
}

/// Rows in a row, each with as many fields as the schema has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where in `ends` the end of the field before the first one stands.
    pub(crate) first: usize,
    /// How many rows.
    pub(crate) rows: usize,
    /// Lines before the first row, in this text.
    pub(crate) lines_before: usize,
}

impl Structure {
    /// Indexes `text`, whose last line may lack its newline. `text` is at most [`TEXT_BYTES_MAX`]
    /// long.
    pub(crate) fn index(&mut self, text: &[u8], separator: u8, level: super::Level) {
        assert!(text.len() <= TEXT_BYTES_MAX, "a text is longer than its index can say");
        self.ends.clear();
        self.ends.push(u32::MAX);
        self.newlines = match level {
            #[cfg(target_arch = "x86_64")]
            super::Level::Avx512 => {
                // SAFETY: a pipeline is made only with a level that the processor has
                // (`Pipeline::with`).
                unsafe { super::avx512::index(text, separator, &mut self.ends) }
            }
            #[cfg(target_arch = "x86_64")]
            super::Level::Avx2 => {
                // SAFETY: the processor has the instructions of this level.
                unsafe { super::avx2::index(text, separator, &mut self.ends) }
            }
            super::Level::Portable => index_portable(text, separator, &mut self.ends),
        };
        if text.last().is_some_and(|&last| last != b'\n') {
            self.ends.push(text.len() as u32);
            self.newlines += 1;
        }
    }

    /// Takes over the index of a text whose rows all end with newlines: `ends` as
    /// [`ends`](Self::ends) returns them.
    pub(crate) fn replace(&mut self, ends: &mut Vec<u32>, newlines: usize) {
        std::mem::swap(&mut self.ends, ends);
        self.newlines = newlines;
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Cuts the text into runs of rows with `fields` fields each, and lines that are no such rows:
    /// `misfit` gets their numbers in the text, from 0, and how many fields they have.
    pub(crate) fn runs(
        &self,
        text: &[u8],
        fields: usize,
        runs: &mut Vec<Run>,
        misfit: impl FnMut(usize, usize),
    ) {
        runs.clear();
        let ends = &self.ends[1..];
        let is_line_end = |end: u32| text.get(end as usize).is_none_or(|&byte| byte == b'\n');
        let regular = ends.len() == self.newlines * fields
            && ends.chunks_exact(fields).all(|row| is_line_end(row[fields - 1]));
        if regular {
            if self.newlines > 0 {
                runs.push(Run { first: 0, rows: self.newlines, lines_before: 0 });
            }
            return;
        }
        self.irregular(fields, is_line_end, runs, misfit);
    }

    #[cold]
    fn irregular(
        &self,
        fields: usize,
        is_line_end: impl Fn(u32) -> bool,
        runs: &mut Vec<Run>,
        mut misfit: impl FnMut(usize, usize),
    ) {
        let mut run = Run { first: 0, rows: 0, lines_before: 0 };
        let mut first = 0;
        let mut line = 0;
        for (i, &end) in self.ends.iter().enumerate().skip(1) {
            if !is_line_end(end) {
                continue;
            }
            if i - first == fields {
                run.rows += 1;
            } else {
                misfit(line, i - first);
                let next = Run { first: i, rows: 0, lines_before: line + 1 };
                let whole = std::mem::replace(&mut run, next);
                runs.extend((whole.rows > 0).then_some(whole));
            }
            first = i;
            line += 1;
        }
        runs.extend((run.rows > 0).then_some(run));
    }
}

/// Makes room for the ends of `bytes` more bytes, all of which may be separators, and what kernels
/// write beyond.
#[cfg(target_arch = "x86_64")]
pub(super) fn reserve_ends(ends: &mut Vec<u32>, bytes: usize) {
    ends.reserve(bytes + SLACK);
}

/// The reference.
pub(super) fn index_portable(text: &[u8], separator: u8, ends: &mut Vec<u32>) -> usize {
    let mut newlines = 0;
    for at in memchr::memchr2_iter(separator, b'\n', text) {
        ends.push(at as u32);
        newlines += usize::from(text[at] == b'\n');
    }
    newlines
}
