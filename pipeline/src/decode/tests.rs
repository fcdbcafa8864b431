//! Compares all kernels with a reference that splits lines and reads field by field.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// The decoded values of each field, row by row, and the bad rows. A value is its bytes, or `None`
/// if the field was empty.
type Decoded = (Vec<Vec<Option<Vec<u8>>>>, BadList);

fn layout(kinds: &[FieldKind], required: &[usize]) -> Arc<Layout> {
    let field = |(i, &kind): (usize, &FieldKind)| FieldLayout {
        kind,
        required: required.contains(&i),
        bytes_max: 12,
        spelling: Default::default(),
        time_unit: Default::default(),
    };
    Arc::new(Layout::new(kinds.iter().enumerate().map(field).collect(), b'\t'))
}

fn criteo() -> Vec<FieldKind> {
    [vec![FieldKind::Int32; 14], vec![FieldKind::Hex32; 26]].concat()
}

fn decode(text: &[u8], kinds: &[FieldKind], required: &[usize], level: Level) -> Decoded {
    let layout = layout(kinds, required);
    let mut block = Block::new(layout.columns(), layout.planes());
    let mut decoder = Decoder::new(Arc::clone(&layout), level);
    let mut columns = vec![Vec::new(); kinds.len()];
    let mut bad = BadList::default();
    let mut block_bad = Vec::new();
    decoder.begin(text, &mut bad);
    while decoder.next(text, &mut block, &mut block_bad) {
        bad.add_block(&mut block_bad, |_| {});
        for (field, column) in columns.iter_mut().enumerate() {
            let Some(target) = layout.target(field) else { continue };
            let MissingBit { plane, bit } = target.missing;
            for row in 0..block.rows {
                let missing = block.missing(plane)[row] >> bit & 1 == 1;
                let value = match target.slot {
                    Slot::Word(word) => block.word(word)[row].to_le_bytes().to_vec(),
                    Slot::Wide(wide) => block.wide(wide)[row].to_le_bytes().to_vec(),
                    Slot::Bytes(bytes) => block.bytes[bytes].get(row).to_vec(),
                    Slot::Array(_) => unreachable!("no field is an array"),
                };
                assert!(
                    !missing || value.iter().all(|&byte| byte == 0),
                    "an empty field reads as zero"
                );
                column.push((!missing).then_some(value));
            }
        }
    }
    (columns, bad)
}

/// Returns the value of a field as bytes. `None` if the field is empty.
fn reference_value(field: &[u8], kind: FieldKind) -> Result<Option<Vec<u8>>, BadField> {
    match kind {
        FieldKind::Int32 => field::int32(field).map(|v| v.map(|v| v.to_le_bytes().to_vec())),
        FieldKind::Int64 => field::int64(field).map(|v| v.map(|v| v.to_le_bytes().to_vec())),
        FieldKind::Hex32 => field::hex32(field).map(|v| v.map(|v| v.to_le_bytes().to_vec())),
        FieldKind::Float32 => field::float32(field).map(|v| v.map(|v| v.to_le_bytes().to_vec())),
        FieldKind::Bytes if field.len() > 12 => Err(BadField::TooLong(12)),
        FieldKind::Bytes => Ok((!field.is_empty()).then(|| field.to_vec())),
        FieldKind::Skip | FieldKind::Uint64 | FieldKind::Blob | FieldKind::File => Ok(None),
    }
}

/// Reference decoder: splits lines and fields.
fn reference(text: &[u8], kinds: &[FieldKind], required: &[usize]) -> Decoded {
    let mut columns = vec![Vec::new(); kinds.len()];
    let mut bad = BadList::default();
    let mut lines: Vec<_> = text.split(|&byte| byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    'lines: for (line, bytes) in lines.into_iter().enumerate() {
        let fields: Vec<_> = bytes.split(|&byte| byte == b'\t').collect();
        if kinds.len() > 1 && matches!(bytes, b"" | b"\r") {
            continue;
        }
        if fields.len() != kinds.len() {
            let fault = Fault::Fields { found: fields.len(), expected: kinds.len() };
            bad.add(BadRow { line, lines: 1, fault });
            continue;
        }
        let mut row = Vec::new();
        let mut column = 0;
        // If a row has several faults, the decoder reports a fault in a field that the kernels
        // read, if such a field has one.
        let narrow = |kind| matches!(kind, FieldKind::Int32 | FieldKind::Hex32);
        let mut fault = None;
        for (i, (&field, &kind)) in fields.iter().zip(kinds).enumerate() {
            let field = match field {
                [rest @ .., b'\r'] if i + 1 == kinds.len() => rest,
                field => field,
            };
            let value = reference_value(field, kind);
            let value = match value {
                Ok(None) if required.contains(&i) && kind != FieldKind::Skip => {
                    Err(BadField::Missing)
                }
                value => value,
            };
            match value {
                Ok(value) => row.push(value),
                Err(why) => {
                    let snippet = field[..field.len().min(40)].to_vec();
                    let found = (
                        narrow(kind),
                        BadRow {
                            line,
                            lines: 1,
                            fault: Fault::Field { field: i, column, why, snippet },
                        },
                    );
                    if fault.as_ref().is_none_or(|(is_narrow, _)| !is_narrow && found.0) {
                        fault = Some(found);
                    }
                }
            }
            column += fields[i].len() + 1;
        }
        if let Some((_, row)) = fault {
            bad.add(row);
            continue 'lines;
        }
        for (i, value) in row.into_iter().enumerate() {
            if kinds[i] != FieldKind::Skip {
                columns[i].push(value);
            }
        }
    }
    (columns, bad)
}

fn check(text: &[u8], kinds: &[FieldKind], required: &[usize]) {
    let expected = reference(text, kinds, required);
    for level in Level::available() {
        let (columns, bad) = decode(text, kinds, required, level);
        let shown = String::from_utf8_lossy(text);
        assert_eq!(bad, expected.1, "{level}: bad rows of {shown:?}");
        assert_eq!(columns, expected.0, "{level}: columns of {shown:?}");
    }
}

#[test]
fn rows_of_every_kind_of_trouble() {
    let kinds = [FieldKind::Int32, FieldKind::Int32, FieldKind::Hex32];
    let good = b"1\t-2\tff\n\t\t\n99999999\t-9999999\tFFFFFFFF\n".repeat(5);
    for trouble in [
        &b""[..],
        b"1\t2\n",
        b"1\t2\t3\t4\n",
        b"\n",
        b"\n\n\n",
        b"1\t2\tff\r\n",
        b"\t\t\r\n",
        b"1\tx\tff\n",
        b"1\t-\tff\n",
        b"1\t1-\tff\n",
        b"1-\t1\tff\n",
        b"1\t--1\tff\n",
        b"1\t2\t0x1\n",
        b"1\t2\tf\0f\n",
        b"1\t2\t\xb1\n",
        b"\xb1\t2\t1\n",
        b"2147483647\t-2147483648\t012345678\n",
        b"2147483647\t-2147483648\t12345678\n",
        b"2147483648\t1\t1\n",
        b"1\t2\t3",
        b"1\t2\t3\r",
        b"1\t2",
        b"\t\t",
    ] {
        for text in [
            trouble.to_vec(),
            [&good[..], trouble].concat(),
            [trouble, &good[..]].concat(),
            [&good[..], trouble, &good[..]].concat(),
        ] {
            check(&text, &kinds, &[]);
            check(&text, &kinds, &[0]);
        }
    }
}

#[test]
fn more_rows_than_a_block_has() {
    let row = |i: usize| format!("{i}\t{}\t{:x}\n", -(i as i64), i * 77);
    let mut text: String = (0..BLOCK_ROWS * 2 + 5).map(row).collect();
    let kinds = [FieldKind::Int32, FieldKind::Int32, FieldKind::Hex32];
    check(text.as_bytes(), &kinds, &[]);
    text.insert_str(text.len() / 2, "wrong\n");
    check(text.as_bytes(), &kinds, &[]);
}

/// Makes a field, usually a good one. The lengths vary widely.
fn any_field() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[0-9a-f]{8}",
        4 => "-?[0-9]{1,4}",
        2 => Just(String::new()),
        1 => "[0-9]{7,11}",
        1 => "[0-9A-Fa-f]{1,9}",
        1 => "-?[0-9]{1,3}(\\.[0-9]{1,3})?(e-?[0-9])?",
        1 => "[ -~]{0,14}",
    ]
}

fn any_text(fields: usize) -> impl Strategy<Value = Vec<u8>> {
    let row = prop::collection::vec(any_field(), fields);
    let broken = prop::collection::vec(any_field(), 0..fields + 3);
    let row = prop_oneof![20 => row, 1 => broken].prop_map(|row| row.join("\t"));
    let line = (row, prop_oneof![9 => Just("\n"), 1 => Just("\r\n")]);
    (prop::collection::vec(line, 0..40), any::<bool>()).prop_map(|(lines, whole)| {
        let mut text: String = lines.into_iter().map(|(row, end)| row + end).collect();
        if !whole {
            text.pop();
        }
        text.into_bytes()
    })
}

fn any_kind() -> impl Strategy<Value = FieldKind> {
    prop_oneof![
        4 => Just(FieldKind::Hex32),
        4 => Just(FieldKind::Int32),
        1 => Just(FieldKind::Int64),
        1 => Just(FieldKind::Float32),
        1 => Just(FieldKind::Bytes),
        1 => Just(FieldKind::Skip),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    #[test]
    fn any_text_of_any_schema(
        (kinds, text) in prop::collection::vec(any_kind(), 1..30)
            .prop_flat_map(|kinds| { let n = kinds.len(); (Just(kinds), any_text(n)) })
    ) {
        check(&text, &kinds, &[0]);
        check(&text, &kinds, &[]);
    }

    #[test]
    fn good_rows_of_the_criteo_schema(
        rows in prop::collection::vec(
            (prop::collection::vec("|-?[0-9]{1,7}", 14), prop::collection::vec("|[0-9a-f]{8}", 26)), 1..60)
    ) {
        let row = |(ints, hexes): &(Vec<String>, Vec<String>)| [ints.join("\t"), hexes.join("\t")].join("\t") + "\n";
        let text: String = rows.iter().map(row).collect();
        check(text.as_bytes(), &criteo(), &[]);
    }
}
