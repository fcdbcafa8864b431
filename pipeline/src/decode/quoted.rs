//! Quoted fields (RFC 4180), opened; and fields with separators of several bytes between them.
//!
//! A text with quoted fields is written again without quotes, together with its index. The end of
//! each field is then known, so fields may hold separators and line ends, and the kernels convert
//! the text as any other. A text whose separators have several bytes is written again too, with the
//! first byte in their place. This is a walk from field to field, some ten times slower than the
//! kernels' index; chunks of other texts don't take this way.

use super::bad::{BadList, BadRow, Fault, SNIPPET_BYTES};
use super::field::{BadField, FieldKind};
use super::layout::Layout;
use crate::format::Separator;

/// What separates and encloses the fields of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Syntax {
    pub(crate) separator: Separator,
    /// `None` if quotes mean nothing.
    pub(crate) quote: Option<u8>,
}

/// A text without its quotes.
#[derive(Debug, Default)]
pub(crate) struct Unquoted {
    pub(crate) text: Vec<u8>,
    /// As in [`Structure`](super::structure::Structure).
    pub(super) ends: Vec<u32>,
    places: Vec<Place>,
}

/// Where a row stands in the quoted text.
#[derive(Debug, Clone, Copy)]
struct Place {
    begin: usize,
    /// Before it.
    lines_before: usize,
    /// That it spans.
    lines: usize,
}

/// A field of a quoted text.
struct Found {
    /// What is between its quotes, or all of it.
    begin: usize,
    end: usize,
    /// Whether there are doubled quotes in it.
    doubled: bool,
    quoted: bool,
    /// A quote is at a wrong place.
    wrong: bool,
    /// Behind its separator or line end.
    next: usize,
    ends_row: bool,
}

/// Where the next separator or line end stands, or the text ends.
fn field_end(text: &[u8], from: usize, separator: Separator) -> usize {
    let mut at = from;
    // Ends: each round leaves a byte behind.
    while let Some(place) = memchr::memchr2(separator.first(), b'\n', &text[at..]) {
        at += place;
        if text[at] == b'\n' || text[at..].starts_with(separator.as_bytes()) {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// Finds the field that begins at `begin`, which may be the text's end.
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
        // Ends: each round leaves a quote behind.
        loop {
            let Some(place) = memchr::memchr(quote, &text[at..]) else {
                // It is never closed.
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

/// A text's first row.
#[derive(Debug, Default)]
pub(crate) struct HeaderFields {
    pub(crate) names: Vec<Vec<u8>>,
    /// Bytes of the row, its line end too.
    pub(crate) bytes: usize,
    /// Whether a quote in it is at a wrong place, or is never closed.
    pub(crate) wrong: bool,
}

/// Reads the fields of a text's first row.
pub(crate) fn header_fields(text: &[u8], syntax: Syntax) -> HeaderFields {
    let mut header = HeaderFields::default();
    // Ends: each round leaves a field behind.
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

/// Appends what stands between quotes; with a `quote`, each pair of those is one.
fn push_value(into: &mut Vec<u8>, mut value: &[u8], quote: Option<u8>) {
    if let Some(quote) = quote {
        // Ends: each round leaves two quotes behind.
        while let Some(place) = memchr::memchr(quote, value) {
            into.extend_from_slice(&value[..=place]);
            value = &value[place + 2..];
        }
    }
    into.extend_from_slice(value);
}

impl Unquoted {
    /// Opens the quoted fields of whole rows; returns their lines. Rows whose quotes are wrong go
    /// to `bad`, by their lines, as do numbers with separators or line ends in them.
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
        // Ends: each round leaves a row behind.
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
                    // The kernels look for separators in numbers too.
                    let kind = layout.kind(field).unwrap_or(FieldKind::Skip);
                    let number = !matches!(kind, FieldKind::Bytes | FieldKind::Skip);
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
            // One that belongs to the field; the decoder takes one off.
            self.text.push(b'\r');
        }
        self.ends.push(self.text.len() as u32);
        self.text.push(if found.ends_row { b'\n' } else { syntax.separator.first() });
    }

    /// Lines that a row spans.
    pub(crate) fn lines_of(&self, row: usize) -> usize {
        self.places[row].lines
    }

    /// Rows that were read.
    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    /// Tells where in the quoted text a bad row is that was found in the other. It goes through the
    /// row.
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
