//! Reference decoder: decodes a text byte by byte.

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, Spec,
};

use arbitrary::Arbitrary;

const FIELDS_MAX: usize = 45;
pub const HASH_SEED: u64 = 9;
pub const MODULUS: u32 = 1 << 31;
/// Largest number of bad rows in a report.
const REPORTED: usize = 10;
/// Length of the longest value that a field of bytes may have, in bytes.
const FIELD_BYTES_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
pub enum Kind {
    Int32,
    Int64,
    Hex32,
    Float32,
    Bytes,
    Skip,
}

impl Kind {
    fn kind(self) -> FieldKind {
        match self {
            Self::Int32 => FieldKind::Int32,
            Self::Int64 => FieldKind::Int64,
            Self::Hex32 => FieldKind::Hex32,
            Self::Float32 => FieldKind::Float32,
            Self::Bytes => FieldKind::Bytes,
            Self::Skip => FieldKind::Skip,
        }
    }

    fn is_wide(self) -> bool {
        matches!(self, Self::Int64 | Self::Bytes)
    }
}

/// A field of a row, repeated `count` times.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct OneField {
    pub kind: Kind,
    required: bool,
    /// True to fill empty fields with zero or empty text.
    zero: bool,
    count: u8,
}

/// Returns the fields of a row, at least one.
pub fn fields(some: &[OneField]) -> Vec<OneField> {
    let all = some.iter().flat_map(|one| vec![*one; usize::from(one.count % 9) + 1]);
    let mut fields: Vec<_> = all.take(FIELDS_MAX).collect();
    if fields.is_empty() {
        fields.push(OneField { kind: Kind::Int32, required: false, zero: false, count: 0 });
    }
    fields
}

/// A pipeline that outputs the value of each field.
pub fn spec(fields: &[OneField], bad_rows: BadRows) -> Spec {
    let name = |place: usize| format!("f{place}");
    let field = |(place, field): (usize, &OneField)| Field {
        required: field.required && field.kind != Kind::Skip,
        ..Field::new(name(place), field.kind.kind())
    };
    let shown = || fields.iter().enumerate().filter(|(_, field)| field.kind != Kind::Skip);
    let column = |(place, field): (usize, &OneField)| {
        let mut column = Column::field(name(place));
        if !field.required {
            column = column.then(Operator::FillMissing(match field.kind {
                Kind::Float32 if !field.zero => 0.25.into(),
                Kind::Bytes if field.zero => "".into(),
                Kind::Bytes => "none".into(),
                _ => i64::from(!field.zero).wrapping_mul(77).into(),
            }));
        }
        if field.kind == Kind::Bytes {
            column =
                column.then(Operator::Hash { seed: HASH_SEED }).then(Operator::Modulus(MODULUS));
        }
        column
    };
    let output = |label: &str, dtype, wide: bool| {
        let columns = shown().filter(|(_, field)| field.kind.is_wide() == wide);
        Output::new(label, dtype, columns.map(|(place, _)| name(place)))
    };
    let outputs = [output("words", Dtype::Bits32, false), output("wides", Dtype::I64, true)];
    Spec {
        fields: fields.iter().enumerate().map(field).collect(),
        columns: shown().map(column).collect(),
        outputs: outputs.into_iter().filter(|output| !output.columns.is_empty()).collect(),
        bad_rows,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

/// The format of a text.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub separator: u8,
    pub header: bool,
    pub quote: Option<u8>,
}

impl Shape {
    /// Headers are skipped, because their names are random.
    pub fn format(self) -> Format {
        let header = if self.header { Header::Skip } else { Header::None };
        Format::Text { separator: self.separator.into(), header, quote: self.quote }
    }
}

/// The 32-bit and the 64-bit values of the rows, and the input and line of each bad row.
#[derive(Debug, Default, PartialEq)]
pub struct Decoded {
    pub words: Vec<u32>,
    pub wides: Vec<i64>,
    pub rows: u64,
    pub bad: Vec<(String, u64)>,
    pub bad_rows: u64,
}

impl Decoded {
    /// Panics at the first difference from `expected`.
    pub fn expect_equal(&self, expected: &Self, level: Level) {
        let numbers = |of: &Self| (of.rows, of.bad_rows, of.words.len(), of.wides.len());
        assert_eq!(numbers(self), numbers(expected), "{level}");
        assert_eq!(self.bad, expected.bad, "{level}");
        let words = self.words.iter().zip(&expected.words).position(|(one, other)| one != other);
        let wides = self.wides.iter().zip(&expected.wides).position(|(one, other)| one != other);
        assert_eq!(words.map(|at| (at, self.words[at], expected.words[at])), None, "{level}");
        assert_eq!(wides.map(|at| (at, self.wides[at], expected.wides[at])), None, "{level}");
    }
}

struct Row {
    /// The row's first line, from 1.
    line: u64,
    /// The bytes of each field.
    fields: Vec<Vec<u8>>,
    wrong: bool,
}

fn rows(text: &[u8], shape: Shape) -> Vec<Row> {
    let (mut rows, mut at, mut line) = (Vec::new(), 0, 1);
    let ends = |byte: u8| byte == shape.separator || byte == b'\n';
    while at < text.len() {
        let (begin, mut row) = (at, Row { line, fields: Vec::new(), wrong: false });
        loop {
            let mut value = Vec::new();
            let quoted = at < text.len() && Some(text[at]) == shape.quote;
            if quoted {
                at += 1;
                let mut closed = false;
                while at < text.len() && !closed {
                    let is_quote = Some(text[at]) == shape.quote;
                    if is_quote && text.get(at + 1).copied() != shape.quote {
                        closed = true;
                    } else {
                        value.push(text[at]);
                        at += usize::from(is_quote);
                    }
                    at += 1;
                }
                // An open quote at the text's end is wrong.
                row.wrong |= !closed;
            }
            let mut rest = Vec::new();
            while at < text.len() && !ends(text[at]) {
                rest.push(text[at]);
                at += 1;
            }
            let last = at >= text.len() || text[at] == b'\n';
            at += 1;
            if quoted {
                row.wrong |= !(rest.is_empty() || last && rest == b"\r");
            } else {
                row.wrong |= rest.iter().any(|&byte| Some(byte) == shape.quote);
                if last && rest.last() == Some(&b'\r') {
                    rest.pop();
                }
                value = rest;
            }
            row.fields.push(value);
            if last {
                break;
            }
        }
        at = at.min(text.len());
        line += text[begin..at].iter().filter(|&&byte| byte == b'\n').count() as u64;
        rows.push(row);
    }
    rows
}

/// Returns the 32 or 64 bits of a field's value. `None` if the bytes are not a value of the field's
/// kind.
fn value(field: &OneField, bytes: &[u8]) -> Option<u64> {
    let is_empty = bytes.is_empty();
    if is_empty && field.required && field.kind != Kind::Skip {
        return None;
    }
    let fill = u64::from(!field.zero) * 77;
    let hash =
        |bytes: &[u8]| xxhash_rust::xxh3::xxh3_64_with_seed(bytes, HASH_SEED) % u64::from(MODULUS);
    match field.kind {
        Kind::Skip => Some(0),
        Kind::Bytes if bytes.len() > FIELD_BYTES_MAX => None,
        Kind::Bytes if is_empty => Some(hash(if field.zero { b"" } else { b"none" })),
        Kind::Bytes => Some(hash(bytes)),
        Kind::Float32 if is_empty => {
            Some(if field.zero { 0 } else { u64::from(0.25_f32.to_bits()) })
        }
        Kind::Float32 => {
            let number: f32 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
            number.is_finite().then_some(u64::from(number.to_bits()))
        }
        _ if is_empty => Some(fill),
        Kind::Hex32 => {
            let digits = bytes.iter().all(u8::is_ascii_hexdigit) && bytes.len() <= 8;
            let text = std::str::from_utf8(bytes).ok().filter(|_| digits)?;
            u64::from_str_radix(text, 16).ok()
        }
        Kind::Int32 | Kind::Int64 => {
            let signed = bytes.strip_prefix(b"-").or_else(|| bytes.strip_prefix(b"+"));
            let digits = signed.unwrap_or(bytes);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
            if field.kind == Kind::Int64 {
                return Some(number.cast_unsigned());
            }
            i32::try_from(number).ok().map(|number| u64::from(number.cast_unsigned()))
        }
    }
}

/// Decodes all rows of the inputs.
pub fn decode(inputs: &[Vec<u8>], fields: &[OneField], shape: Shape) -> Decoded {
    let mut decoded = Decoded::default();
    for (input, text) in inputs.iter().enumerate() {
        // The byte order mark of UTF-8 does not belong to the first field.
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        for (place, row) in rows(text, shape).into_iter().enumerate() {
            let is_header = shape.header && place == 0;
            // A quoted number may contain the separator. That makes it a bad number, even if the
            // separator is a digit.
            let one = |(field, bytes): (&OneField, &Vec<u8>)| {
                let number = !matches!(field.kind, Kind::Bytes | Kind::Skip);
                let value = value(field, bytes);
                value.filter(|_| !(number && bytes.contains(&shape.separator)))
            };
            let values = || fields.iter().zip(&row.fields).map(one);
            let fits = row.fields.len() == fields.len();
            let is_empty = row.fields.len() == 1 && row.fields[0].is_empty();
            if !fits && !row.wrong && !is_header && is_empty {
                // An empty line is no row.
                continue;
            }
            let values =
                (fits && !row.wrong).then(|| values().collect::<Option<Vec<_>>>()).flatten();
            if is_header && !row.wrong {
                continue;
            }
            let Some(values) = values.filter(|_| !is_header) else {
                decoded.bad_rows += 1;
                if decoded.bad.len() < REPORTED {
                    decoded.bad.push((name(input), row.line));
                }
                continue;
            };
            decoded.rows += 1;
            for (field, value) in fields.iter().zip(values) {
                match field.kind {
                    Kind::Skip => {}
                    kind if kind.is_wide() => decoded.wides.push(value.cast_signed()),
                    _ => decoded.words.push(value as u32),
                }
            }
        }
    }
    decoded
}

/// The name of an input.
pub fn name(input: usize) -> String {
    format!("input {input}")
}

/// A file's name without its folder.
fn plain(input: &str) -> String {
    input.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Runs a pipeline over the inputs and returns its rows.
pub fn run(
    spec: &Spec,
    options: &RunOptions,
    inputs: &[Input<'_>],
) -> embank_pipeline::Result<Decoded> {
    let mut decoded = Decoded::default();
    let mut pipeline = Pipeline::new(spec, options)?;
    let report = pipeline.run(inputs, &mut |batch: &mut Batch| {
        assert_eq!(batch.first_row(), decoded.rows);
        decoded.rows += batch.rows() as u64;
        for output in 0..batch.infos().len() {
            decoded.words.extend_from_slice(batch.bits32(output).unwrap_or_default());
            decoded.wides.extend_from_slice(batch.i64(output).unwrap_or_default());
        }
        Ok(())
    });
    let report = report?;
    assert_eq!(report.rows, decoded.rows);
    decoded.bad_rows = report.bad_rows;
    decoded.bad = report.first_bad_rows.iter().map(|bad| (plain(&bad.input), bad.line)).collect();
    Ok(decoded)
}

/// Panics unless hostile input may cause this error.
pub fn expected_of_input(error: &Error) {
    assert!(!matches!(error, Error::Panicked(_)), "{error}");
    assert!(!error.to_string().is_empty());
}

/// Compares the pipeline at every level with the reference.
pub fn check(
    inputs: &[Input<'_>],
    texts: &[Vec<u8>],
    fields: &[OneField],
    shape: Shape,
    (bad_rows, threads, chunk_bytes): (BadRows, usize, usize),
) {
    let expected = decode(texts, fields, shape);
    let spec = spec(fields, bad_rows);
    let format = shape.format();
    for level in Level::available() {
        let options = RunOptions { threads, level, format, chunk_bytes, ..RunOptions::default() };
        match (run(&spec, &options, inputs), bad_rows) {
            (Err(Error::BadRow(report)), BadRows::Fail) => {
                let place = (plain(&report.input), report.line);
                assert_eq!(Some(&place), expected.bad.first(), "{level}");
            }
            // The pipeline refuses a first row in another encoding.
            (Err(Error::Encoding { .. }), _) => {}
            (Err(Error::Header { input, .. }), _) => {
                let told = expected.bad.contains(&(plain(&input), 1));
                assert!(told || expected.bad.len() == REPORTED, "{level}");
            }
            (found, bad_rows) => {
                let found = found.expect("the text can be read");
                assert!(bad_rows == BadRows::Skip || expected.bad_rows == 0, "{level}");
                found.expect_equal(&expected, level);
            }
        }
    }
}
