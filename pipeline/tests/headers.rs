//! Tests texts with a header: a field is the column of its name, in any order.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::Path;

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, RunReport, Spec,
};

/// A spec with two integers, filled with 0, and a word.
fn spec() -> Spec {
    let filled = |name| Column::field(name).then(Operator::FillMissing(0.into()));
    let word = Column::field("word").then(Operator::FillMissing("".into()));
    let word = word.then(Operator::Hash { seed: 1 }).then(Operator::Modulus(1 << 20));
    Spec {
        fields: vec![
            Field::new("user", FieldKind::Int32),
            Field::new("item", FieldKind::Int32),
            Field::new("word", FieldKind::Bytes),
        ],
        columns: vec![filled("user"), filled("item"), word],
        outputs: vec![Output::new("x", Dtype::I32, ["user", "item", "word"])],
        ..Spec::default()
    }
}

fn run_with(
    spec: &Spec,
    options: &RunOptions,
    inputs: &[Input<'_>],
) -> Result<(Vec<[i32; 3]>, RunReport), Error> {
    let mut rows = Vec::new();
    let mut pipeline = Pipeline::new(spec, options).unwrap();
    let report = pipeline.run(inputs, &mut |batch: &mut Batch| {
        rows.extend(batch.i32(0).unwrap().as_chunks::<3>().0);
        Ok(())
    })?;
    Ok((rows, report))
}

fn run(format: Format, inputs: &[Input<'_>]) -> Result<(Vec<[i32; 3]>, RunReport), Error> {
    let options = RunOptions { format, threads: 2, ..RunOptions::default() };
    run_with(&spec(), &options, inputs)
}

fn memory<'a>(texts: &[(&str, &'a str)]) -> Vec<Input<'a>> {
    texts.iter().map(|(name, text)| Input::memory(*name, text.as_bytes())).collect()
}

fn words(rows: &[[i32; 3]]) -> Vec<[i32; 2]> {
    rows.iter().map(|row| [row[0], row[1]]).collect()
}

/// Regression test: the pipeline skipped headers unread, so it swapped the columns of a file whose
/// header has another order than the fields.
#[test]
fn columns_are_found_by_their_names_in_each_file() {
    let files = [
        ("a.csv", "user,item,word\n1,100,x\n"),
        ("b.csv", "item,user,word\n300,3,x\n"),
        ("c.csv", "word,extra,item,user\n\"x\",\"any, thing\",500,5\n"),
        ("d.csv", "\"user\",\"item\",\"word\"\r\n7,700,x\r\n"),
        ("e.csv", ",user,,item,word,\n0,9,ignored,900,x,z\n"),
    ];
    for level in Level::available() {
        for chunk_bytes in [512 << 10, 7, 1] {
            let options =
                RunOptions { level, chunk_bytes, format: Format::CSV, ..RunOptions::default() };
            let (rows, report) = run_with(&spec(), &options, &memory(&files)).unwrap();
            assert_eq!(words(&rows), [[1, 100], [3, 300], [5, 500], [7, 700], [9, 900]]);
            assert!(rows.iter().all(|row| row[2] == rows[0][2]), "{rows:?}");
            assert_eq!((report.rows, report.bad_rows), (5, 0));
        }
    }
}

/// With many rows, the kernels read rows in groups. They read fields that are neighbours in the
/// header together.
#[test]
fn many_rows_of_any_order_are_as_those_of_the_fields_order() {
    let names: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
    let filled = |name: &String| Column::field(name).then(Operator::FillMissing(7.into()));
    let spec = Spec {
        fields: names.iter().map(|name| Field::new(name, FieldKind::Int32)).collect(),
        columns: names.iter().map(filled).collect(),
        outputs: vec![Output::new("x", Dtype::I32, names.iter().cloned())],
        ..Spec::default()
    };
    let value = |row: usize, field: usize| match (row * 31 + field * 17) % 11 {
        0 => String::new(),
        n => format!("-{}", row * n),
    };
    let text = |order: &[usize]| {
        let line = |cells: Vec<String>| cells.join("\t") + "\n";
        let header = line(order.iter().map(|&field| names[field].clone()).collect());
        let rows = (0..3000).map(|row| line(order.iter().map(|&f| value(row, f)).collect()));
        header + &rows.collect::<String>()
    };
    let own: Vec<_> = (0..20).collect();
    let other: Vec<_> = (0..20).map(|i| i * 7 % 20).collect();
    let (own, other) = (text(&own), text(&other));
    let format = Format::Text { separator: b'\t'.into(), header: Header::Names, quote: None };
    for level in Level::available() {
        let options = RunOptions { level, format, chunk_bytes: 5000, ..RunOptions::default() };
        let read = |text: &str| {
            let mut rows = Vec::new();
            let mut pipeline = Pipeline::new(&spec, &options).unwrap();
            let input = [Input::memory("t", text.as_bytes())];
            let took = pipeline.run(&input, &mut |batch: &mut Batch| {
                rows.extend_from_slice(batch.i32(0).unwrap());
                Ok(())
            });
            assert_eq!(took.unwrap().rows, 3000);
            rows
        };
        assert!(read(&own) == read(&other), "{level}");
    }
}

/// Regression test: the pipeline skipped the first line of each file unread, so a file without a
/// header lost its first row.
#[test]
fn a_header_that_does_not_fit_names_the_file_what_was_expected_and_what_was_found() {
    for (text, why) in [
        ("5,500,x\n6,600,y\n", "it has no column \"user\""),
        ("user,item\n1,2\n", "it has no column \"word\""),
        ("user,Item,word\n1,2,x\n", "it has no column \"item\", but \"Item\""),
        ("user, item,word\n1,2,x\n", "it has no column \"item\", but \" item\""),
        ("user,item,word,user\n1,2,x,3\n", "two columns have the name \"user\""),
        ("user\titem\tword\n1\t2\tx\n", "it has no column \"user\""),
        ("\"user,item,word\n1,2,x\n", "a quote in it is at a wrong place, or is never closed"),
        ("\n1,2,x\n", "it has no column \"user\""),
    ] {
        let files = [("a.csv", "user,item,word\n1,100,x\n"), ("bad.csv", text)];
        let error = run(Format::CSV, &memory(&files)).unwrap_err();
        assert!(matches!(error, Error::Header { .. }), "{error}");
        let told = error.to_string();
        assert!(told.starts_with(&format!("bad.csv:1: the header does not fit: {why}")), "{told}");
        let expected = "expected \"user\", \"item\", \"word\", found";
        assert!(told.contains(expected) && told.contains("`none`"), "{told}");
    }
}

#[test]
fn a_header_is_passed_over_or_a_row_where_that_is_said() {
    let format = |header| Format::Text { separator: b','.into(), header, quote: None };
    let text = [("t.csv", "1,2,a\n3,4,b\n")];
    let (rows, _) = run(format(Header::Skip), &memory(&text)).unwrap();
    assert_eq!(words(&rows), [[3, 4]]);
    let (rows, _) = run(format(Header::None), &memory(&text)).unwrap();
    assert_eq!(words(&rows), [[1, 2], [3, 4]]);
    // A skipped header may have other names: the columns are found by position.
    let renamed = [("t.csv", "u,i,w\n3,4,b\n")];
    assert_eq!(words(&run(format(Header::Skip), &memory(&renamed)).unwrap().0), [[3, 4]]);
    // Neither an empty input nor a header without rows has rows.
    for text in ["", "user,item,word\n", "user,item,word"] {
        for header in [Header::Names, Header::Skip] {
            assert_eq!(run(format(header), &memory(&[("e", text)])).unwrap().1.rows, 0);
        }
    }
}

/// Rows must have as many fields as the header, and reports name the header's columns.
#[test]
fn bad_rows_are_told_by_the_columns_of_their_file() {
    let spec = Spec { bad_rows: BadRows::Skip, ..spec() };
    let options = RunOptions { format: Format::CSV, ..RunOptions::default() };
    let text = "extra,word,user,item\n1,a,2,3\n1,a,x,3\n1,a,2\n1,a\"b,2,3\nq\"q,a,2,3\n";
    let (rows, report) = run_with(&spec, &options, &memory(&[("t", text)])).unwrap();
    assert_eq!(words(&rows), [[2, 3]]);
    let said: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "t:3:5: field \"user\", \"x\", is not a whole number",
            "t:4: has 3 fields, and the pipeline's rows have 4, separated by \",\"",
            "t:5:3: field \"word\", \"a\\\"b\", has a quote at a wrong place",
            "t:6:1: field \"extra\", \"q\\\"q\", has a quote at a wrong place",
        ]
    );
}

/// A field that no column uses needs no column in the file, unless it is required.
#[test]
fn fields_that_are_not_read_need_no_column() {
    let mut spec = spec();
    spec.fields.push(Field::new("unused", FieldKind::Int64));
    spec.fields.push(Field::new("skipped", FieldKind::Skip));
    let options = RunOptions { format: Format::CSV, ..RunOptions::default() };
    let text = [("t", "item,user,word\n1,2,x\n")];
    let (rows, _) = run_with(&spec, &options, &memory(&text)).unwrap();
    assert_eq!(words(&rows), [[2, 1]]);
    spec.fields[3].required = true;
    let error = run_with(&spec, &options, &memory(&text)).unwrap_err();
    assert!(error.to_string().contains("no column \"unused\""), "{error}");
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Every way to read an input finds its header.
#[test]
fn headers_of_files_pipes_and_compressed_text() {
    use std::os::fd::AsRawFd as _;
    let text = "item,word,user\n".to_owned() + &"1,x,2\n".repeat(2000);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("plain"), &text).unwrap();
    std::fs::write(path("t.gz"), gzip(&text)).unwrap();
    for quote in [None, Some(b'"')] {
        let format = Format::Text { separator: b','.into(), header: Header::Names, quote };
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pipe = format!("/dev/fd/{}", reader.as_raw_fd());
        let inputs = [&path("plain"), &path("t.gz"), Path::new(&pipe)].map(Input::file);
        let options = RunOptions { format, chunk_bytes: 100, ..RunOptions::default() };
        let (rows, _) = std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(text.as_bytes()).unwrap();
                drop(writer);
            });
            run_with(&spec(), &options, &inputs).unwrap()
        });
        assert_eq!(rows.len(), 6000);
        assert!(words(&rows).iter().all(|&row| row == [2, 1]));
    }
}

/// A header that is longer than a line may be gives the error of a line that is too long.
#[test]
fn a_header_without_end_is_a_line_that_is_too_long() {
    let text = "u".repeat((16 << 20) + 1) + "\n1,2,x\n";
    for quote in [None, Some(b'"')] {
        let format = Format::Text { separator: b','.into(), header: Header::Names, quote };
        let error = run(format, &memory(&[("t", &text)])).unwrap_err();
        assert!(matches!(error, Error::LineTooLong { line: 1, .. }), "{error}");
    }
}
