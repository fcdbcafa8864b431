//! Rewrites a text with quoted fields (RFC 4180), or with a separator of several bytes, so that the
//! kernels can read it.
//!
//! [`Unquoted`] copies a text without its quotes, and makes an index of the copy. The index gives
//! the end of each field, so a field may contain separators and line ends. The kernels convert the
//! copy like any other text. Of a separator of several bytes, the copy has only the first byte.
//! This code walks from field to field, and takes about ten times as long as the index of the
//! kernels. A chunk without quotes and without a separator of several bytes is not copied.

use super::bad::{BadList, BadRow, Fault, SNIPPET_BYTES};
use super::field::{BadField, FieldKind};
use super::layout::Layout;
use crate::format::Separator;

/// The separator and the quote of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Syntax {
    pub(crate) separator: Separator,
    /// `None` if no byte is a quote.
    pub(crate) quote: Option<u8>,
}

/// A copy of a text without its quotes.
#[derive(Debug, Default)]
pub(crate) struct Unquoted {
    pub(crate) text: Vec<u8>,
    /// The place in `text` where each field ends, as the `ends` of
    /// [`Structure`](super::structure::Structure).
    pub(super) ends: Vec<u32>,
    places: Vec<Place>,
}

/// The place of a row in the quoted text.
#[derive(Debug, Clone, Copy)]
struct Place {
    begin: usize,
    /// Number of lines before the row.
    lines_before: usize,
    /// Number of lines that the row spans.
    lines: usize,
}

/// A field of a quoted text.
struct Found {
    /// First byte of the field, after an opening quote.
    begin: usize,
    end: usize,
    /// True if the field has doubled quotes.
    doubled: bool,
    quoted: bool,
    /// True if a quote is at a wrong place or never closed.
    wrong: bool,
    /// The place after the field's separator or line end.
    next: usize,
    ends_row: bool,
}

/// Returns the place of the next separator or line end, or the text's length.
fn field_end(text: &[u8], from: usize, separator: Separator) -> usize {
    let mut at = from;
    // The loop ends: each round moves beyond a byte.
    while let Some(place) = memchr::memchr2(separator.first(), b'\n', &text[at..]) {
        at += place;
        if text[at] == b'\n' || text[at..].starts_with(separator.as_bytes()) {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// Finds the field that begins at `begin`. `begin` may be the text's length.
fn find(text: &[u8], begin: usize, syntax: Syntax) -> Found {
    let Syntax { separator, quote } = syntax;
    let mut found = Found {
        begin,
        end: begin,
        doubled: false,
        quoted: quote.is_some() && text.get(begin) == quote.as_ref(),
        wrong: false,
        next: begin,
        ends_row: true,
    };
    let mut at = begin;
    if let Some(quote) = quote.filter(|_| found.quoted) {
        found.begin = begin + 1;
        at = begin + 1;
        // The loop ends: each round moves beyond a quote.
        loop {
            let Some(place) = memchr::memchr(quote, &text[at..]) else {
                // The field is never closed.
                return Found { wrong: true, end: text.len(), next: text.len(), ..found };
            };
            at += place + 1;
            if text.get(at) != Some(&quote) {
                break;
            }
            found.doubled = true;
            at += 1;
        }
        found.end = at - 1;
    }
    let closed = at;
    let end = field_end(text, at, separator);
    found.ends_row = text.get(end).is_none_or(|&byte| byte == b'\n');
    let length = if found.ends_row { 1 } else { separator.as_bytes().len() };
    found.next = (end + length).min(text.len());
    if found.quoted {
        let rest = &text[closed..end];
        found.wrong = !(rest.is_empty() || found.ends_row && rest == b"\r");
    } else {
        found.end = end;
        found.wrong = quote.is_some_and(|quote| memchr::memchr(quote, &text[at..end]).is_some());
    }
    found
}

/// The first row of a text.
#[derive(Debug, Default)]
pub(crate) struct HeaderFields {
    pub(crate) names: Vec<Vec<u8>>,
    /// Bytes of the row with its line end.
    pub(crate) bytes: usize,
    /// True if a quote is at a wrong place or never closed.
    pub(crate) wrong: bool,
}

pub(crate) fn header_fields(text: &[u8], syntax: Syntax) -> HeaderFields {
    let mut header = HeaderFields::default();
    // The loop ends: each round moves beyond a field.
    loop {
        let found = find(text, header.bytes, syntax);
        header.bytes = found.next;
        header.wrong |= found.wrong;
        let mut name = Vec::new();
        let doubled = syntax.quote.filter(|_| found.doubled);
        push_value(&mut name, &text[found.begin..found.end], doubled);
        if found.ends_row && !found.quoted && name.last() == Some(&b'\r') {
            name.pop();
        }
        header.names.push(name);
        if found.ends_row {
            return header;
        }
    }
}

/// Appends the bytes of a field. With a `quote`, each pair of quotes becomes one.
fn push_value(into: &mut Vec<u8>, mut value: &[u8], quote: Option<u8>) {
    if let Some(quote) = quote {
        // The loop ends: each round moves beyond two quotes.
        while let Some(place) = memchr::memchr(quote, value) {
            into.extend_from_slice(&value[..=place]);
            value = &value[place + 2..];
        }
    }
    into.extend_from_slice(value);
}

impl Unquoted {
    /// Copies the complete rows of `text` without their quotes. Returns the number of lines. A row
    /// is bad and not copied if a quote is at a wrong place or if a number contains a separator or
    /// a line end. Bad rows go to `bad`, with their lines in `text`.
    pub(crate) fn read(
        &mut self,
        text: &[u8],
        syntax: Syntax,
        layout: &Layout,
        bad: &mut BadList,
    ) -> usize {
        self.text.clear();
        self.places.clear();
        self.ends.clear();
        self.ends.push(u32::MAX);
        let mut at = 0;
        let mut lines = 0;
        // The loop ends: each round moves beyond a row.
        while at < text.len() {
            let begin = at;
            let kept_text = self.text.len();
            let kept_ends = self.ends.len();
            let mut fault = None;
            let mut fields = 0;
            for field in 0.. {
                let found = find(text, at, syntax);
                at = found.next;
                let wrong = if found.wrong {
                    Some(BadField::Quote)
                } else {
                    // A number that contains a separator or a line end is bad. Only this pass can
                    // detect such a number: in the copy without quotes, the kernels would take the
                    // separator or line end for the field's end.
                    let kind = layout.kind(field).unwrap_or(FieldKind::Skip);
                    let number = !matches!(
                        kind,
                        FieldKind::Bytes | FieldKind::Blob | FieldKind::File | FieldKind::Skip
                    );
                    let value = &text[found.begin..found.end];
                    let holds =
                        |value| memchr::memchr2(syntax.separator.first(), b'\n', value).is_some();
                    let may_hold = found.quoted || syntax.separator.has_several_bytes();
                    (may_hold && number && holds(value)).then_some(BadField::NotA(kind))
                };
                if let (Some(why), None) = (wrong, &fault) {
                    let column = if found.quoted { found.begin - 1 } else { found.begin } - begin;
                    let value = &text[found.begin..found.end];
                    let snippet = value[..value.len().min(SNIPPET_BYTES)].to_vec();
                    fault = Some(Fault::Field { field, column, why, snippet });
                }
                if fault.is_none() {
                    self.push(text, &found, syntax);
                }
                fields = field + 1;
                if found.ends_row {
                    break;
                }
            }
            let row = &text[begin..at];
            let row = row.strip_suffix(b"\n").unwrap_or(row);
            let spanned = memchr::memchr_iter(b'\n', row).count() + 1;
            if let Some(fault) = fault {
                let expected = layout.fields();
                let known = matches!(fault, Fault::Field { field, .. } if field < expected);
                let fault = if known { fault } else { Fault::Fields { found: fields, expected } };
                self.text.truncate(kept_text);
                self.ends.truncate(kept_ends);
                bad.add(BadRow { line: lines, lines: spanned, fault });
            } else {
                self.places.push(Place { begin, lines_before: lines, lines: spanned });
            }
            lines += spanned;
        }
        lines
    }

    fn push(&mut self, text: &[u8], found: &Found, syntax: Syntax) {
        let value = &text[found.begin..found.end];
        push_value(&mut self.text, value, syntax.quote.filter(|_| found.doubled));
        if found.ends_row && found.quoted && value.last() == Some(&b'\r') {
            // This carriage return belongs to the field. The decoder removes one carriage return at
            // a row's end, so the copy gets a second one.
            self.text.push(b'\r');
        }
        self.ends.push(self.text.len() as u32);
        self.text.push(if found.ends_row { b'\n' } else { syntax.separator.first() });
    }

    /// Number of lines that row `row` spans.
    pub(crate) fn lines_of(&self, row: usize) -> usize {
        self.places[row].lines
    }

    /// Number of rows that were copied.
    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    /// Converts the place of a bad row from the copy to the quoted text. For this, it walks through
    /// the row in the quoted text again.
    pub(crate) fn place(&self, text: &[u8], syntax: Syntax, bad: &mut BadRow) {
        let Place { begin, lines_before, .. } = self.places[bad.line];
        bad.line = lines_before;
        let Fault::Field { field, column, .. } = &mut bad.fault else { return };
        let mut at = begin;
        for _ in 0..*field {
            at = find(text, at, syntax).next;
        }
        *column = at - begin;
    }
}
