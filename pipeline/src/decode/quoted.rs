//! Quoted fields (RFC 4180), opened.
//!
//! A text of which fields are quoted is written anew without quotes, and with its index: where each field ends is known
//! then, so fields may hold separators and line ends, and the kernels convert it as any other text. It is a walk from
//! field to field, some ten times slower than the kernels' index; chunks without quotes don't come here.

use super::bad::BadList;
use super::decoder::{BadRow, Fault, Layout, SNIPPET_BYTES};
use super::field::{BadField, FieldKind};

/// A text without its quotes.
#[derive(Debug, Default)]
pub(crate) struct Unquoted {
    pub(crate) text: Vec<u8>,
    /// As in [`Structure`](super::structure::Structure).
    pub(super) ends: Vec<u32>,
    /// Of each row, where it begins in the quoted text and the lines before that.
    places: Vec<(usize, usize)>,
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

/// Finds the field that begins at `begin`, which may be the text's end.
fn find(text: &[u8], begin: usize, separator: u8, quote: u8) -> Found {
    let mut found = Found {
        begin,
        end: begin,
        doubled: false,
        quoted: text.get(begin) == Some(&quote),
        wrong: false,
        next: begin,
        ends_row: true,
    };
    let mut at = begin;
    if found.quoted {
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
    let end = memchr::memchr2(separator, b'\n', &text[at..]).map_or(text.len(), |place| at + place);
    found.next = (end + 1).min(text.len());
    found.ends_row = text.get(end) != Some(&separator);
    if found.quoted {
        let rest = &text[closed..end];
        found.wrong = !(rest.is_empty() || found.ends_row && rest == b"\r");
    } else {
        found.end = end;
        found.wrong = memchr::memchr(quote, &text[at..end]).is_some();
    }
    found
}

/// Behind the end of the text's first row, and whether a quote in it is at a wrong place.
pub(crate) fn row_end(text: &[u8], separator: u8, quote: Option<u8>) -> (usize, bool) {
    let Some(quote) = quote else {
        return (memchr::memchr(b'\n', text).map_or(text.len(), |at| at + 1), false);
    };
    let (mut at, mut wrong) = (0, false);
    // Ends: each round leaves a field behind.
    loop {
        let found = find(text, at, separator, quote);
        at = found.next;
        wrong |= found.wrong;
        if found.ends_row {
            return (at, wrong);
        }
    }
}

impl Unquoted {
    /// Opens the quoted fields of whole rows; returns their lines. Rows whose quotes are wrong go to `bad`, by
    /// their lines, as do numbers with separators or line ends in them.
    pub(crate) fn read(
        &mut self,
        text: &[u8],
        (separator, quote): (u8, u8),
        layout: &Layout,
        bad: &mut BadList,
    ) -> usize {
        self.text.clear();
        self.places.clear();
        self.ends.clear();
        self.ends.push(u32::MAX);
        let (mut at, mut lines) = (0, 0);
        // Ends: each round leaves a row behind.
        while at < text.len() {
            let (begin, kept) = (at, (self.text.len(), self.ends.len()));
            let (mut fault, mut fields) = (None, 0);
            for field in 0.. {
                let found = find(text, at, separator, quote);
                at = found.next;
                let wrong = if found.wrong {
                    Some(BadField::Quote)
                } else {
                    // The kernels look for separators in numbers too.
                    let kind = layout.kind(field).unwrap_or(FieldKind::Skip);
                    let number = !matches!(kind, FieldKind::Bytes | FieldKind::Skip);
                    let value = &text[found.begin..found.end];
                    let holds = |value| memchr::memchr2(separator, b'\n', value).is_some();
                    (found.quoted && number && holds(value)).then_some(BadField::NotA(kind))
                };
                if let (Some(why), None) = (wrong, &fault) {
                    let column = if found.quoted { found.begin - 1 } else { found.begin } - begin;
                    let value = &text[found.begin..found.end];
                    let snippet = value[..value.len().min(SNIPPET_BYTES)].to_vec();
                    fault = Some(Fault::Field { field, column, why, snippet });
                }
                if fault.is_none() {
                    self.push(text, &found, separator, quote);
                }
                fields = field + 1;
                if found.ends_row {
                    break;
                }
            }
            let row = &text[begin..at];
            let row = row.strip_suffix(b"\n").unwrap_or(row);
            if let Some(fault) = fault {
                let expected = layout.fields();
                let known = matches!(fault, Fault::Field { field, .. } if field < expected);
                let fault = if known { fault } else { Fault::Fields { found: fields, expected } };
                self.text.truncate(kept.0);
                self.ends.truncate(kept.1);
                bad.add(BadRow { line: lines, fault });
            } else {
                self.places.push((begin, lines));
            }
            lines += memchr::memchr_iter(b'\n', row).count() + 1;
        }
        lines
    }

    fn push(&mut self, text: &[u8], found: &Found, separator: u8, quote: u8) {
        let mut value = &text[found.begin..found.end];
        if found.doubled {
            // Ends: each round leaves two quotes behind.
            while let Some(place) = memchr::memchr(quote, value) {
                self.text.extend_from_slice(&value[..=place]);
                value = &value[place + 2..];
            }
        }
        self.text.extend_from_slice(value);
        if found.ends_row && found.quoted && value.last() == Some(&b'\r') {
            // One that belongs to the field; the decoder takes one off.
            self.text.push(b'\r');
        }
        self.ends.push(self.text.len() as u32);
        self.text.push(if found.ends_row { b'\n' } else { separator });
    }

    /// Rows that were read.
    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    /// Tells where in the quoted text a bad row is that was found in the other. It goes through the row.
    pub(crate) fn place(&self, text: &[u8], (separator, quote): (u8, u8), bad: &mut BadRow) {
        let (begin, line) = self.places[bad.line];
        bad.line = line;
        let Fault::Field { field, column, .. } = &mut bad.fault else { return };
        let mut at = begin;
        for _ in 0..*field {
            at = find(text, at, separator, quote).next;
        }
        *column = at - begin;
    }
}
