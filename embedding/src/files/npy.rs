//! The npy format: a magic number, a header that is a Python dictionary, and the array's bytes.
//!
//! The header has only three entries, so this module parses it itself. The published npy crates
//! would bring parsers for all Python literals and for big numbers. `npy_set` handles the files of
//! one table.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::element::Element;
use super::tensors::Tensor;
use super::{io_error, open_to_read, unreadable};
use crate::error::Result;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The data begins at a multiple of this number of bytes, as NumPy writes it.
const ALIGNMENT: usize = 64;
/// Longest header that is accepted, in bytes. A longer header counts as damage, because the
/// description of one plain array is short.
const HEADER_BYTES_MAX: u64 = 1 << 16;

/// Returns the header of a file: all bytes before the bytes of the array.
pub(crate) fn header(element: Element, shape: &str) -> Vec<u8> {
    // NumPy lacks only bf16, and `parts_of` writes bf16 vectors to npy files as f32.
    let kind = element.npy().expect("every part of an npy file has a type of NumPy");
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    let length = (MAGIC.len() + 4 + text.len() + 1).next_multiple_of(ALIGNMENT) - MAGIC.len() - 4;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Opens an npy file, which holds one array.
pub(crate) fn open(path: &Path) -> Result<Tensor> {
    let (file, file_bytes) = open_to_read(path)?;
    let (text, offset) = read_header(path, &file, file_bytes)?;
    let damaged = |what: String| unreadable(path, format!("its npy header: {what}"));
    let Header { kind, fortran_order, shape } = parse(&text).map_err(damaged)?;
    let Some(element) = Element::of_npy(&kind) else {
        return Err(damaged(format!(
            "its type is {kind:?}; floats of 2, 4 or 8 bytes and integers are read, little-endian: save \
             array.astype('<f4') of vectors, array.astype('<i8') of keys"
        )));
    };
    let (rows, columns) = match shape[..] {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => {
            return Err(damaged(format!("its shape is {shape:?}; one or two dimensions are read")));
        }
    };
    let wanted = rows.checked_mul(columns).and_then(|n| n.checked_mul(element.bytes() as u64));
    if wanted != Some(file_bytes - offset) {
        return Err(damaged(format!(
            "its shape is ({rows}, {columns}) of {}, which does not fit the {} bytes that follow",
            element.name(),
            file_bytes - offset
        )));
    }
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let columns = columns as usize;
    Ok(Tensor {
        file: Arc::new(file),
        path: path.to_owned(),
        name,
        element,
        rows,
        columns,
        offset,
        is_column_major: fortran_order,
    })
}

/// Returns the header's text, and the offset at which the array begins.
fn read_header(path: &Path, file: &File, file_bytes: u64) -> Result<(String, u64)> {
    let damaged = |what: &str| unreadable(path, format!("it is no npy file: {what}"));
    let mut start = [0; 12];
    let known = file_bytes.min(12) as usize;
    let read = file.read_exact_at(&mut start[..known], 0);
    read.map_err(|error| io_error("read", path, error))?;
    if known < 10 || start[..6] != *MAGIC {
        return Err(damaged("its first bytes are others"));
    }
    let (begin, length) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => {
            let bytes = [start[8], start[9], start[10], start[11]];
            (12, u64::from(u32::from_le_bytes(bytes)))
        }
        _ => return Err(damaged("its version is none of 1, 2 and 3")),
    };
    if length > HEADER_BYTES_MAX || begin + length > file_bytes {
        return Err(damaged("its header is longer than the file, or than any header of an array"));
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, begin).map_err(|error| io_error("read", path, error))?;
    let text = String::from_utf8(text).map_err(|_| damaged("its header is no text"))?;
    Ok((text, begin + length))
}

#[derive(Debug, PartialEq)]
struct Header {
    kind: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`. The entries may have any
/// order.
fn parse(text: &str) -> std::result::Result<Header, String> {
    let unexpected = |rest: &str| {
        let rest: String = rest.chars().take(40).collect();
        format!("{rest:?} was not expected")
    };
    let mut rest = text.trim().strip_prefix('{').ok_or_else(|| unexpected(text))?.trim_start();
    let mut kind = None;
    let mut fortran_order = None;
    let mut shape = None;
    // The loop ends: each turn removes one entry from `rest` or returns an error.
    while !rest.starts_with('}') {
        let (name, after) = quoted(rest).ok_or_else(|| unexpected(rest))?;
        let value = after.trim_start().strip_prefix(':').ok_or_else(|| unexpected(after))?;
        let value = value.trim_start();
        let after = match name {
            "descr" => {
                let (found, after) = quoted(value)
                    .ok_or_else(|| "it is no plain array but has fields".to_owned())?;
                kind = Some(found.to_owned());
                after
            }
            "fortran_order" => {
                let (found, after) = if let Some(after) = value.strip_prefix("False") {
                    (false, after)
                } else {
                    (true, value.strip_prefix("True").ok_or_else(|| unexpected(value))?)
                };
                fortran_order = Some(found);
                after
            }
            "shape" => {
                let inside = value.strip_prefix('(').and_then(|value| value.split_once(')'));
                let (inside, after) = inside.ok_or_else(|| unexpected(value))?;
                let numbers = inside.split(',').map(str::trim).filter(|number| !number.is_empty());
                let numbers = numbers.map(|number| number.parse().map_err(|_| unexpected(number)));
                shape = Some(numbers.collect::<std::result::Result<_, _>>()?);
                after
            }
            _ => return Err(unexpected(rest)),
        };
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    match (kind, fortran_order, shape) {
        (Some(kind), Some(fortran_order), Some(shape)) => Ok(Header { kind, fortran_order, shape }),
        _ => Err("it does not say descr, fortran_order and shape".to_owned()),
    }
}

/// Splits a quoted text from the text after it. `None` unless `text` begins with a complete
/// quotation.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&quote| quote == '\'' || quote == '"')?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_aligned_and_come_back() {
        for rows in [0_u64, 1, 12_345_678_901_234_567] {
            let bytes = header(Element::F32, &format!("({rows}, 16)"));
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            let text = std::str::from_utf8(&bytes[10..]).unwrap();
            assert!(text.ends_with('\n'));
            let header = parse(text).unwrap();
            assert_eq!((header.kind.as_str(), header.fortran_order), ("<f4", false));
            assert_eq!(header.shape, [rows, 16]);
        }
    }

    #[test]
    fn headers_of_other_writers_are_read() {
        let header =
            parse("{\"shape\": (3,), \"descr\": \"<i8\", \"fortran_order\": True}\n").unwrap();
        assert_eq!(header, Header { kind: "<i8".into(), fortran_order: true, shape: vec![3] });
        for bad in [
            "",
            "{}",
            "{'descr': [('a', '<f4')], }",
            "{'shape': (1, -2)}",
            "{'descr'",
            "{'shape': (1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[{}()':,0-9a-z<\" ]{0,60}") {
            let _ = parse(&text);
            let _ = parse(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {text}"));
        }
    }
}
