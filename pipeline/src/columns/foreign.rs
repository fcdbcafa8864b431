//! Names files that are neither Parquet nor Arrow by their first bytes, with the cure.

/// Largest length of the first message of an old Arrow stream, which begins with this length. A
/// text's first four bytes are a larger number. Writers make schemas of a few KiB.
const SCHEMA_BYTES_MAX: u32 = 16 << 20;
/// First bytes of an Arrow stream.
const CONTINUATION: [u8; 4] = [0xFF; 4];

/// Returns what a file with these first bytes is, with the cure. `None` if it may be an Arrow file
/// or stream.
pub(super) fn of_bytes(first: &[u8; 8]) -> Option<String> {
    let known = match first {
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => return None,
        [b'F', b'E', b'A', b'1', ..] => {
            "a file of Feather V1: write it again as Feather V2 (`pyarrow.feather.write_feather`), or as Parquet"
        }
        [b'P', b'A', b'R', b'E', ..] => "an encrypted Parquet file: write it without encryption",
        [b'O', b'R', b'C', ..] => "an ORC file: convert it to Parquet",
        [b'O', b'b', b'j', 1, ..] => "an Avro file: convert it to Parquet",
        [0x1F, 0x8B, 8, ..] | [0x28, 0xB5, 0x2F, 0xFD, ..] => {
            "compressed as a whole, and files of columns are compressed inside: unpack it"
        }
        [b'P', b'K', 3, 4, ..] => "a zip archive: unpack it",
        _ => return unknown(first),
    };
    Some(format!("it is {known}"))
}

fn unknown(first: &[u8; 8]) -> Option<String> {
    let word = u32::from_le_bytes([first[0], first[1], first[2], first[3]]);
    // A stream without a message, or with the length of its first one.
    if first.starts_with(&CONTINUATION) || word <= SCHEMA_BYTES_MAX {
        return None;
    }
    let is_text = first.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace());
    let text = String::from_utf8_lossy(first);
    let what = if is_text {
        format!("text that begins with {text:?}")
    } else {
        format!("its first bytes are {first:02x?}")
    };
    Some(format!(
        "it is no Parquet or Arrow file: {what}; take it out of the inputs, or give the format that all inputs have"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_are_named_with_the_cure() {
        for (first, told) in [
            (b"FEA1\0\0\0\0", "Feather V1"),
            (b"PARE\x15\0\x15\0", "without encryption"),
            (b"ORC\x11\0\0\x0a\x04", "ORC"),
            (b"\x1f\x8b\x08\0\0\0\0\0", "unpack it"),
            (b"# Clicks", "text that begins with \"# Clicks\""),
            (b"\x89HDF\r\n\x1a\n", "first bytes are [89, 48"),
        ] {
            let found = of_bytes(first).unwrap();
            assert!(found.contains(told), "{found}");
        }
        for arrow in
            [b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\x01\0\0", b"\x10\x01\0\0\x10\0\0\0", &[0; 8]]
        {
            assert_eq!(of_bytes(arrow), None, "{arrow:?}");
        }
    }
}
