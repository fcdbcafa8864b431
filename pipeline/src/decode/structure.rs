//! Finds the ends of a text's fields.
//!
//! **Problem.** A loop over the bytes of a row must find the end of a field before it can start
//! with the next field.
//!
//! **Approach.** The approach is that of simdjson for JSON (Langdale and Lemire 2019). A first pass
//! classifies 64 bytes at a time and records the places of separators and line ends. For each block
//! of 64 bytes, the pass needs only the number of places that it found before. After this pass, the
//! place of every field is known, so no conversion of a field waits for another.
//!
//! **Layout.** [`Structure::ends`] starts with a sentinel: the place before the text's first byte,
//! in wrapping arithmetic. Field `i` is therefore always the bytes from `ends[i] + 1` to before
//! `ends[i + 1]`.

/// Longest text that a [`Structure`] can index. Places are u32, and kernels work on 64 bytes at a
/// time, so the limit is 64 bytes below the largest u32.
pub(crate) const TEXT_BYTES_MAX: usize = u32::MAX as usize - 64;
/// Ends that the vector kernels may write beyond the last valid one.
const SLACK: usize = 64;

/// The ends of all fields of a text.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    ends: Vec<u32>,
    newlines: usize,
}

/// Consecutive rows with the right number of fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index in `Structure::ends` of the field end before the run's first row.
    pub(crate) first: usize,
    /// Number of rows in the run.
    pub(crate) rows: usize,
    /// Number of lines of the text before the run.
    pub(crate) lines_before: usize,
}

impl Structure {
    /// Indexes `text`, which must have at most [`TEXT_BYTES_MAX`] bytes. Its last line may have no
    /// newline.
    pub(crate) fn index(&mut self, text: &[u8], separator: u8, level: super::Level) {
        assert!(text.len() <= TEXT_BYTES_MAX, "a text is longer than its index can say");
        self.ends.clear();
        self.ends.push(u32::MAX);
        self.newlines = match level {
            #[cfg(target_arch = "x86_64")]
            super::Level::Avx512 => {
                // SAFETY: `index` needs the instructions of this level. `RunOptions::check` refuses
                // a level that the processor lacks.
                unsafe { super::avx512::index(text, separator, &mut self.ends) }
            }
            #[cfg(target_arch = "x86_64")]
            super::Level::Avx2 => {
                // SAFETY: `RunOptions::check` refuses a level that the processor lacks.
                unsafe { super::avx2::index(text, separator, &mut self.ends) }
            }
            super::Level::Portable => index_portable(text, separator, &mut self.ends),
        };
        if text.last().is_some_and(|&last| last != b'\n') {
            self.ends.push(text.len() as u32);
            self.newlines += 1;
        }
    }

    /// Takes over an existing index of a text. All rows must end with newlines, and `ends` must
    /// have the form of [`ends`](Self::ends).
    pub(crate) fn replace(&mut self, ends: &mut Vec<u32>, newlines: usize) {
        std::mem::swap(&mut self.ends, ends);
        self.newlines = newlines;
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Divides the text into runs of rows with `fields` fields. Calls `misfit` for each other line,
    /// with its number in the text, from 0, and its number of fields. An empty line has 0 fields if
    /// rows have several.
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
        self.irregular(text, fields, is_line_end, runs, misfit);
    }

    #[cold]
    fn irregular(
        &self,
        text: &[u8],
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
                let begin = self.ends[first].wrapping_add(1) as usize;
                let is_empty = i - first == 1 && matches!(&text[begin..end as usize], b"" | b"\r");
                misfit(line, if is_empty { 0 } else { i - first });
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

/// Reserves space for the ends of `bytes` more bytes, which may all be separators, and for the ends
/// that kernels write beyond the last valid one.
#[cfg(target_arch = "x86_64")]
pub(super) fn reserve_ends(ends: &mut Vec<u32>, bytes: usize) {
    ends.reserve(bytes + SLACK);
}

/// Indexes `text` without vector instructions. Reference for the kernels. Returns the number of
/// newlines.
pub(super) fn index_portable(text: &[u8], separator: u8, ends: &mut Vec<u32>) -> usize {
    let mut newlines = 0;
    for at in memchr::memchr2_iter(separator, b'\n', text) {
        ends.push(at as u32);
        newlines += usize::from(text[at] == b'\n');
    }
    newlines
}
