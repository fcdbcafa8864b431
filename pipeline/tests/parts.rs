//! Tests parts of files: vocabularies that are made part by part and merged, and batches that are
//! made part by part, equal those of one run over the files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use embank::{Bank, BankOptions};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Operator,
    Output, Part, Pipeline, RunOptions, Spec, Split, TextSettings, VocabularySpec,
    VocabularyValues, split_files,
};
use proptest::prelude::*;

const BY_NAME: Format = Format::ByName(TextSettings { separator: None, header: None, quote: None });

/// A spec with a vocabulary of each kind: a known range, numbers of any range, and texts. Two
/// columns share the texts.
fn spec(settings: impl Fn(&str) -> VocabularySpec, bad_rows: BadRows) -> Spec {
    let numbered = |name: &str, field: &str, vocabulary: &str| {
        Column {
            name: name.to_owned(),
            ..Column::field(field).then(Operator::FillMissing(match field {
                "n" | "m" => 0.into(),
                _ => "none".into(),
            }))
        }
        .then(Operator::Vocabulary(vocabulary.to_owned()))
    };
    let small = Column { name: "small".to_owned(), ..Column::field("n") }
        .then(Operator::FillMissing(3.into()))
        .then(Operator::Modulus(50))
        .then(Operator::Vocabulary("small".to_owned()));
    let dense = Column { name: "dense".to_owned(), ..Column::field("m") }
        .then(Operator::FillMissing(0.into()))
        .then(Operator::Neg2Zero)
        .then(Operator::Logarithm);
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32),
            Field::new("m", FieldKind::Int32),
            Field::new("v", FieldKind::Bytes),
            Field::new("w", FieldKind::Bytes),
        ],
        columns: vec![
            small,
            dense,
            numbered("large", "m", "large"),
            numbered("v", "v", "texts"),
            numbered("w", "w", "texts"),
        ],
        outputs: vec![
            Output::new("ids", Dtype::I64, ["small", "large", "v", "w"]),
            Output::new("dense", Dtype::F32, ["dense"]),
        ],
        vocabularies: ["small", "large", "texts"].map(settings).to_vec(),
        bad_rows,
        bad_rows_max: 0.5,
    }
}

fn plain(name: &str) -> VocabularySpec {
    VocabularySpec { first_id: 1, unknown_id: Some(0), ..VocabularySpec::new(name) }
}

fn frequent(name: &str) -> VocabularySpec {
    VocabularySpec { min_count: 2, ..plain(name) }
}

/// The rows of batches, as bits.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rows {
    ids: Vec<i64>,
    dense: Vec<u32>,
}

impl Rows {
    fn add(&mut self, batch: &Batch) {
        self.ids.extend_from_slice(batch.i64(0).unwrap());
        self.dense.extend(batch.f32(1).unwrap().iter().map(|value| value.to_bits()));
    }
}

fn options() -> RunOptions {
    RunOptions { threads: 1, chunk_bytes: 100, ..RunOptions::default() }
}

/// The rows and vocabularies of one run over the files.
fn of_one_run(
    spec: &Spec,
    files: &[PathBuf],
    format: Format,
) -> Result<(Rows, Vec<VocabularyValues>), Error> {
    let folder = tempfile::tempdir().unwrap();
    let budget = BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
    let bank = Bank::open(folder.path().join("bank"), budget).unwrap();
    let options = RunOptions { threads: 3, chunk_bytes: 64, format, ..RunOptions::default() };
    let mut pipeline = Pipeline::with_bank(spec, &options, &bank)?;
    let inputs: Vec<_> = files.iter().map(Input::file).collect();
    let mut rows = Rows::default();
    pipeline.run(&inputs, &mut |batch: &mut Batch| {
        rows.add(batch);
        Ok(())
    })?;
    pipeline.save()?;
    Ok((rows, values_in(&bank, spec)))
}

/// The bank's vocabularies, in the order of the spec's columns.
fn values_in(bank: &Bank, spec: &Spec) -> Vec<VocabularyValues> {
    // A pipeline makes the records, which a test can't make: the bank's values go into it.
    let mut copy = Pipeline::for_parts(spec, &options()).unwrap();
    for of in copy.vocabulary_values().unwrap() {
        let mut scan = bank.open_vocabulary(&of.vocabulary).unwrap().scan();
        while let Some(chunk) = scan.next_chunk().unwrap() {
            copy.absorb(&of.vocabulary, chunk.values, chunk.counts).unwrap();
        }
    }
    copy.vocabulary_values().unwrap()
}

/// The vocabularies of a part, made by a pipeline that has seen no other part.
fn absorb_part(
    merged: &mut Pipeline,
    spec: &Spec,
    split: &Split,
    part: &Part,
) -> Result<(), Error> {
    let mut one = Pipeline::for_parts(spec, &options())?;
    let report = one.generate(&[split.input(spec, part)?])?;
    merged.add_report(&report)?;
    for of in one.vocabulary_values()? {
        merged.absorb(
            &of.vocabulary,
            of.values.values(),
            of.counts.as_deref().unwrap_or_default(),
        )?;
    }
    Ok(())
}

fn merged(spec: &Spec, split: &Split, parts: &[Part]) -> Result<Pipeline, Error> {
    let mut merged = Pipeline::for_parts(spec, &options())?;
    for part in parts {
        absorb_part(&mut merged, spec, split, part)?;
    }
    merged.finish_merge()?;
    Ok(merged)
}

fn rows_of(
    pipeline: &mut Pipeline,
    spec: &Spec,
    split: &Split,
    part: &Part,
    rows: &mut Rows,
) -> Result<(), Error> {
    let input = split.input(spec, part)?;
    pipeline.run(&[input], &mut |batch: &mut Batch| {
        rows.add(batch);
        Ok(())
    })?;
    Ok(())
}

/// The rows and vocabularies by parts of the files.
fn of_parts(
    spec: &Spec,
    files: &[PathBuf],
    format: Format,
    part_bytes: u64,
) -> Result<(Rows, Vec<VocabularyValues>, usize), Error> {
    let inputs: Vec<_> = files.iter().map(Input::file).collect();
    let (split, parts) = split_files(spec, &inputs, format, part_bytes)?;
    let split = Split::from_json(&split.to_json())?;
    assert_eq!(split.parts(), parts.len() as u64);
    let merged = merged(spec, &split, &parts)?;
    // The batches come from a copy, as another process makes one of the values.
    let mut copy = Pipeline::for_parts(spec, &options())?;
    for of in merged.vocabulary_values()? {
        copy.absorb(&of.vocabulary, of.values.values(), of.counts.as_deref().unwrap_or_default())?;
    }
    copy.finish_copy()?;
    let mut rows = Rows::default();
    for part in &parts {
        rows_of(&mut copy.replay(), spec, &split, part, &mut rows)?;
    }
    Ok((rows, copy.vocabulary_values()?, parts.len()))
}

fn write(folder: &Path, name: &str, text: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Compares parts of several sizes with one run. Returns the largest number of parts.
fn compare(spec: &Spec, files: &[PathBuf], format: Format) -> usize {
    let (rows, vocabularies) = of_one_run(spec, files, format).unwrap();
    let mut most = 0;
    for part_bytes in [1, 7, 40, 333, 1 << 20] {
        let (found, values, parts) = of_parts(spec, files, format, part_bytes).unwrap();
        assert_eq!(found, rows, "parts of {part_bytes} bytes");
        assert_eq!(values, vocabularies, "parts of {part_bytes} bytes");
        most = most.max(parts);
    }
    most
}

fn tsv(rows: std::ops::Range<u32>, line_end: &str) -> String {
    let row = |n: u32| {
        let m = n.wrapping_mul(2_654_435_761) % 97;
        format!("{}\t{m}\tv{}\tw{}{line_end}", n * 7 % 61, n % 13, m % 29)
    };
    rows.map(row).collect()
}

#[test]
fn parts_of_lines_are_as_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let last = tsv(90..100, "\n");
    let files = [
        write(folder.path(), "a.tsv", tsv(0..60, "\n").as_bytes()),
        write(folder.path(), "empty.tsv", b""),
        write(folder.path(), "crlf.tsv", tsv(60..90, "\r\n").as_bytes()),
        write(folder.path(), "mark.tsv", format!("\u{feff}{}", tsv(3..9, "\n")).as_bytes()),
        write(folder.path(), "no_end.tsv", last.trim_end().as_bytes()),
    ];
    for settings in [plain, frequent] {
        let spec = spec(settings, BadRows::Fail);
        assert_eq!(compare(&spec, &files, BY_NAME), 107);
    }
}

#[test]
fn parts_of_quoted_text_with_a_header_are_as_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let row = |n: u32| {
        let quoted = ["plain", "\"two\nlines\"", "\"a \"\"quote\"\"\"", "\"comma, and\n\n\"", ""];
        format!("w{},{},{},{}", n % 5, quoted[n as usize % 5], n % 17, n * 31 % 90)
    };
    let text = |rows: std::ops::Range<u32>, end: &str| rows.map(row).collect::<Vec<_>>().join(end);
    let files = [
        write(folder.path(), "a.csv", format!("w,v,n,m\n{}\n", text(0..50, "\n")).as_bytes()),
        // Other columns, in another order, and a name with a line end.
        write(folder.path(), "b.csv", b"m,\"x\ny\",n,v,w\r\n1,,2,\"q\n\",r\r\n3,\"z\r\n\",4,s,t"),
        write(folder.path(), "c.csv", b"w,v,n,m\n"),
        write(folder.path(), "d.csv", b""),
        write(
            folder.path(),
            "e.csv",
            format!("\u{feff}w,v,n,m\r\n{}", text(9..40, "\r\n")).as_bytes(),
        ),
    ];
    for settings in [plain, frequent] {
        let spec = spec(settings, BadRows::Fail);
        assert!(compare(&spec, &files, BY_NAME) > 20);
        let unquoted = TextSettings { quote: Some(None), ..TextSettings::default() };
        let format = Format::CSV.with(unquoted).unwrap();
        let plain = [write(folder.path(), "f.csv", b"m,n,v,w\n1,2,a,b\n3,4,c,d\n5,6,a,d\n")];
        assert_eq!(compare(&spec, &plain, format), 4);
        let skip = TextSettings { header: Some(Header::Skip), ..unquoted };
        let file = [write(folder.path(), "g.csv", b"?,?,?,?\n1,2,a,b\n3,4,c,d\n")];
        assert_eq!(compare(&spec, &file, Format::CSV.with(skip).unwrap()), 3);
    }
}

#[test]
fn compressed_texts_are_one_part_each() {
    let folder = tempfile::tempdir().unwrap();
    let text = tsv(0..200, "\n");
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(tsv(150..300, "\n").as_bytes()).unwrap();
    let files = [
        write(folder.path(), "a.tsv.zst", &zstd),
        // The first bytes show the compression.
        write(folder.path(), "b.tsv", &gzip.finish().unwrap()),
    ];
    assert_eq!(compare(&spec(frequent, BadRows::Fail), &files, BY_NAME), 2);
}

#[test]
fn parts_of_packed_rows_are_as_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32), Field::new("m", FieldKind::Int32)],
        columns: vec![
            Column::field("n")
                .then(Operator::FillMissing(0.into()))
                .then(Operator::Modulus(30))
                .then(Operator::Vocabulary("n".to_owned())),
            Column::field("m").then(Operator::FillMissing(0.into())).then(Operator::Float),
        ],
        outputs: vec![Output::new("n", Dtype::I64, ["n"]), Output::new("m", Dtype::F32, ["m"])],
        ..Spec::default()
    };
    let words = |range: std::ops::Range<u32>| -> Vec<u8> {
        range.flat_map(|n| (n * 13 % 101).to_le_bytes()).collect()
    };
    let files =
        [write(folder.path(), "a.bin", &words(0..80)), write(folder.path(), "b.bin", &words(7..9))];
    assert_eq!(compare(&spec, &files, BY_NAME), 41);
}

#[cfg(feature = "parquet")]
#[test]
fn parts_of_parquet_are_row_groups() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    let folder = tempfile::tempdir().unwrap();
    let batch = |rows: std::ops::Range<i64>, has_v: bool| {
        let numbers = |of: i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.clone().map(|n| n * of % 83)))
        };
        let texts = |of: i64| -> ArrayRef {
            let text = |n: i64| (n % 7 != 0).then(|| format!("t{}", n % of));
            Arc::new(StringArray::from_iter(rows.clone().map(text)))
        };
        let mut all = vec![("n", numbers(7)), ("m", numbers(29)), ("w", texts(11))];
        all.extend(has_v.then(|| ("v", texts(5))));
        RecordBatch::try_from_iter(all).unwrap()
    };
    let parquet = |name: &str, batch: &RecordBatch| {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(40)).build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        write(folder.path(), name, &writer.into_inner().unwrap())
    };
    let mut arrow =
        arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch(0..1, true).schema()).unwrap();
    arrow.write(&batch(5..55, true)).unwrap();
    let files = [
        // Its texts `v` are missing, which is no error because other files have them.
        parquet("a.parquet", &batch(0..100, false)),
        parquet("b.parquet", &batch(30..200, true)),
        parquet("empty.parquet", &batch(0..0, false)),
        write(folder.path(), "c.arrow", &arrow.into_inner().unwrap()),
    ];
    for settings in [plain, frequent] {
        let spec = spec(settings, BadRows::Fail);
        assert_eq!(compare(&spec, &files, BY_NAME), 3 + 5 + 1 + 1);
        let without = of_parts(&spec, &files[..1], BY_NAME, 1).unwrap_err().to_string();
        assert!(without.contains("\"v\", and no other input"), "{without}");
    }
}

/// A split of Parquet files makes the checks that need several files.
#[cfg(feature = "parquet")]
#[test]
fn one_meaning_holds_over_all_parts() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch};

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, column: ArrayRef| {
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        write(folder.path(), name, &writer.into_inner().unwrap())
    };
    let files = [
        file("a.parquet", Arc::new(Int64Array::from(vec![1]))),
        file("b.parquet", Arc::new(Date32Array::from(vec![1]))),
    ];
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32)],
        columns: vec![Column::field("n").then(Operator::FillMissing(0.into()))],
        outputs: vec![Output::new("n", Dtype::I32, ["n"])],
        ..Spec::default()
    };
    let inputs = files.map(Input::file);
    let error = split_files(&spec, &inputs, BY_NAME, 1).unwrap_err().to_string();
    assert!(error.contains("b.parquet") && error.contains("a.parquet"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Compares random texts, with quotes at odd places and bad rows, whose parts are of random
    /// length.
    #[test]
    fn any_text_is_as_one_run(
        texts in prop::collection::vec("(([0-9]{0,2},[0-9],[ab\"\n]{0,3},[ab]{1,2}|\"[a,\n]{0,3}\"|[0-9,\"\r]{0,3})\r?\n){0,12}[0-9,\"]{0,4}", 1..4),
        part_bytes in 1..60_u64,
        quoted in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = (0..).zip(&texts).map(|(n, text)| write(folder.path(), &n.to_string(), text.as_bytes())).collect();
        let spec = Spec { bad_rows_max: 1.0, ..spec(plain, BadRows::Skip) };
        let quote = quoted.then_some(b'"');
        let format = Format::Text { separator: b','.into(), header: Header::None, quote };
        match (of_one_run(&spec, &files, format), of_parts(&spec, &files, format, part_bytes)) {
            (Ok((rows, vocabularies)), Ok((found, values, _))) => {
                prop_assert_eq!(found, rows);
                prop_assert_eq!(values, vocabularies);
            }
            (Err(one), Err(other)) => prop_assert_eq!(
                std::mem::discriminant(&one), std::mem::discriminant(&other), "{} and {}", one, other
            ),
            (one, other) => prop_assert!(false, "{:?} and {:?}", one.err(), other.err()),
        }
    }
}

#[test]
fn a_wrong_format_is_found_where_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "a.csv", b"n,m,v\n1,2,3\n");
    let error = split_files(&spec(plain, BadRows::Fail), &[Input::file(file)], BY_NAME, 5);
    assert!(matches!(error, Err(Error::Header { .. })), "{error:?}");
    let rows = [Input::memory("rows", b"1\t2\n")];
    let error = split_files(&spec(plain, BadRows::Fail), &rows, BY_NAME, 5).unwrap_err();
    assert!(error.to_string().contains("rows: it is no file"), "{error}");
    let error = split_files(&spec(plain, BadRows::Fail), &[], BY_NAME, 0).unwrap_err();
    assert!(error.to_string().contains("part_bytes is 0"), "{error}");
}

/// A file that another has replaced has other rows than those of the split.
#[test]
fn a_file_that_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "a.tsv", tsv(0..60, "\n").as_bytes());
    let spec = spec(plain, BadRows::Fail);
    let (split, parts) = split_files(&spec, &[Input::file(&file)], BY_NAME, 200).unwrap();
    let merged = merged(&spec, &split, &parts).unwrap();
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    let write_at = |text: &str, time| {
        write(folder.path(), "a.tsv", text.as_bytes());
        fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    };
    // As long as before, and all values are known.
    let text = tsv(0..60, "\n");
    write_at(&text, modified + Duration::from_millis(1));
    let error = rows_of(&mut merged.replay(), &spec, &split, &parts[0], &mut Rows::default());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::InputChanged { .. }), "{error}");
    assert!(error.to_string().contains("its time of change is another"), "{error}");
    // As long as before, with a value that no vocabulary has.
    write_at(&text.replacen("\tv0\t", "\tx0\t", 1), modified);
    let error = rows_of(&mut merged.replay(), &spec, &split, &parts[0], &mut Rows::default());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::InputChanged { .. }), "{error}");
    assert!(error.to_string().contains("\"x0\""), "{error}");
    // To an evaluation it is a value that has no id.
    let mut rows = Rows::default();
    rows_of(&mut merged.evaluation(), &spec, &split, &parts[0], &mut rows).unwrap();
    assert_eq!(rows.ids[2], 0);
    write(folder.path(), "a.tsv", tsv(0..61, "\n").as_bytes());
    let error =
        absorb_part(&mut Pipeline::for_parts(&spec, &options()).unwrap(), &spec, &split, &parts[1]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("a.tsv from byte") && error.contains("when it was split"), "{error}");
}

#[test]
fn another_spec_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = [Input::file(write(folder.path(), "a.tsv", tsv(0..9, "\n").as_bytes()))];
    let (split, parts) = split_files(&spec(plain, BadRows::Fail), &file, BY_NAME, 20).unwrap();
    let other = spec(frequent, BadRows::Fail);
    let error = split.input(&other, &parts[0]).unwrap_err().to_string();
    assert!(error.contains("split for another spec"), "{error}");
    let wrong = Part { end: 10_000, ..parts[0].clone() };
    let error = split.input(&spec(plain, BadRows::Fail), &wrong).unwrap_err();
    assert!(matches!(error, Error::Inputs(_)), "{error}");
}

/// A text that is too long for its vocabulary makes its row bad, in the pass that makes the
/// vocabulary and in the pass that makes the batches.
#[test]
fn long_texts_are_bad_rows_in_both_passes() {
    let folder = tempfile::tempdir().unwrap();
    let short = |name: &str| VocabularySpec { value_bytes_max: Some(3), ..plain(name) };
    let settings = |name: &str| if name == "texts" { short(name) } else { plain(name) };
    let text = tsv(0..20, "\n").replacen("\tv4\t", "\ttoo long\t", 1);
    let files = [write(folder.path(), "a.tsv", text.as_bytes())];
    compare(&spec(settings, BadRows::Skip), &files, BY_NAME);
    let frequent = |name: &str| VocabularySpec {
        value_bytes_max: (name == "texts").then_some(3),
        ..frequent(name)
    };
    compare(&spec(frequent, BadRows::Skip), &files, BY_NAME);
    let mixed = |name: &str| if name == "texts" { frequent(name) } else { plain(name) };
    let error = Pipeline::for_parts(&spec(mixed, BadRows::Skip), &options()).unwrap_err();
    assert!(error.to_string().contains("\"texts\" and \"small\" can't be merged"), "{error}");
    Pipeline::for_parts(&spec(mixed, BadRows::Fail), &options()).unwrap();
}

/// The share of bad rows counts over all parts, and not in each.
#[test]
fn bad_rows_are_counted_over_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (tsv(0..9_000, "\n"), "bad\n".repeat(2_000));
    let allowed = |share: f64| Spec { bad_rows_max: share, ..spec(plain, BadRows::Skip) };
    let files = [write(folder.path(), "a.tsv", format!("{good}{bad}{good}").as_bytes())];
    let of_share = |share: f64| {
        let spec = allowed(share);
        let inputs = files.each_ref().map(Input::file);
        let (split, parts) = split_files(&spec, &inputs, BY_NAME, 4_000).unwrap();
        let merged = merged(&spec, &split, &parts)?;
        let report = merged.merged_report().clone();
        let mut rows = Rows::default();
        for part in &parts {
            rows_of(&mut merged.replay(), &spec, &split, part, &mut rows)?;
        }
        assert_eq!(rows.dense.len() as u64, report.rows);
        Ok::<_, Error>(report)
    };
    let report = of_share(0.2).unwrap();
    assert_eq!(
        (report.rows, report.bad_rows, report.bytes),
        (18_000, 2_000, files[0].metadata().unwrap().len())
    );
    assert_eq!(report.first_bad_rows.len(), 10);
    let error = of_share(0.1).unwrap_err();
    assert!(matches!(error, Error::TooManyBadRows { .. }), "{error}");
    // Other files are checked part by part, as by an evaluation.
    let spec = allowed(0.2);
    let inputs = files.each_ref().map(Input::file);
    let (split, parts) = split_files(&spec, &inputs, BY_NAME, 1 << 30).unwrap();
    let merged = merged(&spec, &split, &parts).unwrap();
    let only_bad = [Input::file(write(folder.path(), "b.tsv", b"bad\n"))];
    let (split, parts) = split_files(&spec, &only_bad, BY_NAME, 1 << 30).unwrap();
    let error = rows_of(&mut merged.evaluation(), &spec, &split, &parts[0], &mut Rows::default());
    assert!(matches!(error, Err(Error::TooManyBadRows { .. })), "{error:?}");
}

#[test]
fn a_bank_gets_the_vocabularies() {
    let folder = tempfile::tempdir().unwrap();
    let files = [write(folder.path(), "a.tsv", tsv(0..300, "\n").as_bytes())];
    for (number, settings) in [plain, frequent].into_iter().enumerate() {
        let spec = spec(settings, BadRows::Fail);
        let (split, parts) =
            split_files(&spec, &files.each_ref().map(Input::file), BY_NAME, 500).unwrap();
        let merged = merged(&spec, &split, &parts).unwrap();
        let budget = || BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
        let path = folder.path().join(number.to_string());
        {
            let bank = Bank::open(&path, budget()).unwrap();
            merged.write_vocabularies(&bank).unwrap();
            merged.write_vocabularies(&bank).unwrap();
            bank.checkpoint(b"vocabularies").unwrap();
        }
        let bank = Bank::open(&path, budget()).unwrap();
        let mut pipeline = Pipeline::with_bank(&spec, &options(), &bank).unwrap();
        assert_eq!(values_in(&bank, &spec), merged.vocabulary_values().unwrap());
        let mut rows = Rows::default();
        pipeline
            .run(&[Input::file(&files[0])], &mut |batch: &mut Batch| {
                rows.add(batch);
                Ok(())
            })
            .unwrap();
        assert_eq!(rows, of_one_run(&spec, &files, BY_NAME).unwrap().0);
        // Other values in the bank are refused.
        let bank = Bank::open(folder.path().join(format!("other {number}")), budget()).unwrap();
        Pipeline::with_bank(&spec, &options(), &bank).unwrap();
        bank.open_vocabulary("large").unwrap().ids_or_insert(&[999], &mut [0]).unwrap();
        let error = merged.write_vocabularies(&bank).unwrap_err().to_string();
        assert!(error.contains("\"large\" of the bank has 1 values already"), "{error}");
    }
}
