//! Examines the beginning of a text: its encoding, the columns of its rows, and the place of the
//! first row.
//!
//! The reader handles any encoding whose line ends and separators are ASCII bytes. This module
//! finds other encodings by the first row, and the error names them. A CR without an LF is an error
//! in the first row. In later rows, such a CR is an ordinary byte: a search for it would cost
//! another pass over the text.

use std::sync::Arc;

use super::open::too_long;
use super::shown;
use super::stream::{LINE_BYTES_MAX, UTF8_MARK};
use crate::decode::{Syntax, header_fields};
use crate::error::{Error, Result};
use crate::format::{Format, Header};
use crate::plan::{Plan, Plans};

/// The bytes and lines that come before the first row of a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) bytes: usize,
    pub(crate) lines: usize,
}

/// The place of a text's first row, and the plan for its rows.
#[derive(Debug, Clone)]
pub(super) struct TextBegin {
    pub(super) begin: Begin,
    pub(super) plan: Arc<Plan>,
}

/// Examines the beginnings of texts.
#[derive(Debug)]
pub(super) struct TextBegins(Arc<Plans>);

impl TextBegins {
    pub(super) fn new(plans: Arc<Plans>) -> Self {
        Self(plans)
    }

    /// The plan for rows whose fields are in the pipeline's own order.
    pub(super) fn own(&self) -> &Arc<Plan> {
        self.0.own()
    }

    /// Returns the bytes before the first row of the input, and the plan for its rows. `text` must
    /// contain the whole first row, or more than `LINE_BYTES_MAX` bytes of it.
    ///
    /// # Errors
    /// [`Error::Encoding`] if the text has an encoding or line ends that a pipeline does not read.
    /// [`Error::LineTooLong`] and [`Error::Header`] if the header is too long or does not fit.
    pub(super) fn of(&self, input: &str, text: &[u8]) -> Result<TextBegin> {
        let own = || Arc::clone(self.own());
        let Format::Text { separator, header, quote } = self.0.format() else {
            return Ok(TextBegin { begin: Begin::default(), plan: own() });
        };
        check_encoding(text, quote).map_err(|(line, what)| Error::Encoding {
            input: input.to_owned(),
            line,
            what,
        })?;
        let mark = if text.starts_with(&UTF8_MARK) { UTF8_MARK.len() } else { 0 };
        if header == Header::None || text.len() == mark {
            return Ok(TextBegin { begin: Begin { bytes: mark, lines: 0 }, plan: own() });
        }
        let text = &text[mark..];
        let row = header_fields(text, Syntax { separator, quote });
        let bytes = row.bytes;
        if bytes > LINE_BYTES_MAX + 1 || (bytes > LINE_BYTES_MAX && text[bytes - 1] != b'\n') {
            return Err(too_long(input.to_owned(), 0));
        }
        let names: Vec<String> = row.names.iter().map(|name| shown(name).into_owned()).collect();
        if row.wrong {
            let why = "a quote in it is at a wrong place, or is never closed".to_owned();
            return Err(self.misfit(input, &names, why));
        }
        let lines = memchr::memchr_iter(b'\n', &text[..bytes - 1]).count() + 1;
        let plan = match header {
            Header::Names => {
                self.0.of_header(&names).map_err(|why| self.misfit(input, &names, why))?
            }
            Header::Skip | Header::None => own(),
        };
        Ok(TextBegin { begin: Begin { bytes: mark + bytes, lines }, plan })
    }

    #[cold]
    fn misfit(&self, input: &str, found: &[String], why: String) -> Error {
        let expected = self.own().needed_fields();
        Error::Header { input: input.to_owned(), why, expected, found: found.to_vec() }
    }
}

/// Number of a text's first bytes by which the check finds UTF-16 and UTF-32.
const SAMPLE_BYTES: usize = 64;

/// Checks the encoding and the line ends of a text that contains its whole first row.
///
/// # Errors
/// Returns the number of the line and a phrase for what the line has.
fn check_encoding(text: &[u8], quote: Option<u8>) -> std::result::Result<(), (u64, &'static str)> {
    if let Some(found) = of_mark(text).or_else(|| of_zeros(text)) {
        return Err((1, found));
    }
    let other = match text {
        [b'P', b'A', b'R', b'1', ..] => Some("a Parquet file, and the format says text"),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Some("an Arrow file, and the format says text"),
        [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', ..] => {
            Some("compressed by bzip2, which is not read")
        }
        [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some("compressed by xz, which is not read"),
        [0x04, 0x22, 0x4D, 0x18, ..] => Some("compressed by lz4, which is not read"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive, which is not read"),
        _ => None,
    };
    if let Some(other) = other {
        return Err((1, other));
    }
    lone_return(text, quote).map_or(Ok(()), |line| {
        Err((line, "text whose lines end with CR alone, or has one within a line: lines end with LF or CRLF"))
    })
}

/// Finds a refused encoding by the byte order mark at the text's beginning.
fn of_mark(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => Some("text in UTF-32"),
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Some("text in UTF-16"),
        _ => None,
    }
}

/// Finds UTF-16 and UTF-32 without a byte order mark by their zero bytes. An ASCII character has
/// zero bytes at fixed places of its unit of 2 or 4 bytes.
fn of_zeros(text: &[u8]) -> Option<&'static str> {
    let sample = &text[..text.len().min(SAMPLE_BYTES)];
    // Most units must have zeros at exactly these places, and no unit may have one elsewhere.
    let zeros = |unit: usize, at: &[usize]| {
        let units = sample.chunks_exact(unit);
        let elsewhere = |unit: &[u8]| {
            unit.iter().enumerate().any(|(place, &byte)| byte == 0 && !at.contains(&place))
        };
        let has = |unit: &&[u8]| at.iter().all(|&place| unit[place] == 0);
        let all = units.len();
        let having = units.clone().filter(has).count();
        all > 1 && having * 2 > all && !units.clone().any(elsewhere)
    };
    if zeros(4, &[1, 2, 3]) || zeros(4, &[0, 1, 2]) {
        return Some("text in UTF-32");
    }
    (zeros(2, &[1]) || zeros(2, &[0])).then_some("text in UTF-16")
}

/// Looks in the first row for a CR that is outside quotes and has no LF after it. Returns the line
/// of the first one.
fn lone_return(text: &[u8], quote: Option<u8>) -> Option<u64> {
    let mut inside = false;
    let mut line = 1;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'\n' if !inside => return None,
            b'\n' => line += 1,
            b'\r' if !inside && text.get(at + 1).is_some_and(|&next| next != b'\n') => {
                return Some(line);
            }
            _ if Some(byte) == quote => inside = !inside,
            _ => {}
        }
    }
    None
}
