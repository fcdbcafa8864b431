//! Tests texts as other systems write them: byte order marks, encodings, line ends, separators.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;

use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Operator, Output,
    Pipeline, RunOptions, Spec, TextSettings,
};

/// A spec with the hash of a word, and a number.
fn spec() -> Spec {
    let word = Column::field("word").then(Operator::FillMissing("".into()));
    let word = word.then(Operator::Hash { seed: 1 }).then(Operator::Modulus(1 << 30));
    Spec {
        fields: vec![Field::new("word", FieldKind::Bytes), Field::new("n", FieldKind::Int32)],
        columns: vec![word, Column::field("n").then(Operator::FillMissing(0.into()))],
        outputs: vec![Output::new("x", Dtype::I32, ["word", "n"])],
        ..Spec::default()
    }
}

fn run(format: Format, inputs: &[Input<'_>]) -> Result<Vec<[i32; 2]>, Error> {
    let mut all = Vec::new();
    for chunk_bytes in [512 << 10, 5, 1] {
        let options = RunOptions { format, threads: 2, chunk_bytes, ..RunOptions::default() };
        let mut rows = Vec::new();
        Pipeline::new(&spec(), &options)?.run(inputs, &mut |batch: &mut Batch| {
            rows.extend(batch.i32(0).unwrap().as_chunks::<2>().0);
            Ok(())
        })?;
        assert!(chunk_bytes == 512 << 10 || rows == all, "chunks do not show");
        all = rows;
    }
    Ok(all)
}

fn text(header: Header, quote: Option<u8>) -> Format {
    Format::Text { separator: b','.into(), header, quote }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Regression test: the reader took a byte order mark for a part of the first field, so one word
/// got two ids, and a quoted header was an error.
#[test]
fn a_mark_of_utf_8_is_no_part_of_the_text() {
    let mark = b"\xEF\xBB\xBF";
    for (header, quote, rows) in [
        (Header::None, None, "red,1\nred,2\n"),
        (Header::None, Some(b'"'), "\"red\",1\nred,2\n"),
        (Header::Names, None, "word,n\nred,1\nred,2\n"),
        (Header::Names, Some(b'"'), "\"n\",\"word\"\n1,red\n2,red\n"),
        (Header::Skip, Some(b'"'), "\"a\nb\",c\r\nred,1\r\nred,2\r\n"),
    ] {
        let marked = [&mark[..], rows.as_bytes()].concat();
        let zipped = gzip(&marked);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        std::fs::write(&path, &marked).unwrap();
        let inputs = [Input::memory("m", &marked), Input::memory("z", &zipped), Input::file(&path)];
        let rows = run(text(header, quote), &inputs).unwrap();
        assert_eq!(rows.len(), 6, "{header:?} {quote:?}");
        assert!(rows.iter().all(|row| row[0] == rows[0][0]), "{header:?} {quote:?}: {rows:?}");
    }
    // A text that has only the mark has no rows.
    assert!(run(text(Header::None, None), &[Input::memory("m", mark)]).unwrap().is_empty());
    assert!(run(text(Header::Names, Some(b'"')), &[Input::memory("m", mark)]).unwrap().is_empty());
}

/// Regression test: text in UTF-16 was numbered as if it were UTF-8.
#[test]
fn other_encodings_are_refused_by_name() {
    let rows = "word,n\nred,1\n";
    let wide = |unit: usize, big: bool, mark: bool| {
        let units = mark.then_some('\u{FEFF}').into_iter().chain(rows.chars());
        let bytes = units.map(|unit| u32::from(unit).to_be_bytes());
        bytes
            .flat_map(|mut bytes| {
                let bytes = &mut bytes[4 - unit..];
                if !big {
                    bytes.reverse();
                }
                bytes.to_vec()
            })
            .collect::<Vec<u8>>()
    };
    for (unit, name) in [(2, "UTF-16"), (4, "UTF-32")] {
        for (big, mark) in [(true, true), (true, false), (false, true), (false, false)] {
            let bytes = wide(unit, big, mark);
            let zipped = gzip(&bytes);
            for quote in [None, Some(b'"')] {
                for header in [Header::Names, Header::Skip, Header::None] {
                    for input in [Input::memory("w.csv", &bytes), Input::memory("w.csv", &zipped)] {
                        let error = run(text(header, quote), &[input]).unwrap_err();
                        let told = error.to_string();
                        assert!(
                            told.starts_with("w.csv:1: it is text in ") && told.contains(name),
                            "{told}"
                        );
                    }
                }
            }
        }
    }
    // Other files that are not text are refused by name too.
    for (bytes, name) in [
        (&b"PAR1\x15\x04"[..], "a Parquet file"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"BZh91AY&SY", "bzip2"),
        (b"PK\x03\x04..", "zip"),
        (b"\xFD7zXZ\0..", "xz"),
    ] {
        let error = run(Format::TSV, &[Input::memory("t", bytes)]).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Regression test: the reader did not take a lone CR for a line end, so a file with such line ends
/// became one value.
#[test]
fn line_ends_of_cr_alone_are_refused_by_name() {
    for (rows, line) in
        [("red,1\rblue,2\r", 1), ("word,n\rred,1\n", 1), ("\"two\nlines\",1\rblue,2\n", 2)]
    {
        for quote in [None, Some(b'"')] {
            if quote.is_none() && line > 1 {
                continue;
            }
            for header in [Header::Names, Header::None] {
                let input = Input::memory("mac.csv", rows.as_bytes());
                let error = run(text(header, quote), &[input]).unwrap_err();
                let told = error.to_string();
                let begin = format!("mac.csv:{line}: it is text whose lines end with CR alone");
                assert!(told.starts_with(&begin), "{told}");
            }
        }
    }
    // CRLF is read, also at the text's end, and so is a CR in quotes.
    for rows in ["red,1\r\nred,2\r\n", "red,1\r\nred,2\r", "\"re\rd\",1\nx,2\n"] {
        let input = Input::memory("t", rows.as_bytes());
        assert_eq!(run(text(Header::None, Some(b'"')), &[input]).unwrap().len(), 2, "{rows:?}");
    }
}

/// Separators of several bytes are read, such as `::` in the MovieLens data set.
#[test]
fn separators_of_several_characters() {
    let settings = |separator: &str| TextSettings {
        separator: Some(separator.parse().unwrap()),
        ..Default::default()
    };
    let same = run(text(Header::None, None), &[Input::memory("t", b"red,1\nbl:ue,2\n,3\n:b\",\n")])
        .unwrap();
    for (separator, rows) in [
        ("::", "red::1\nbl:ue::2\n::3\n:b\"::\n"),
        ("||", "red||1\r\nbl:ue||2\r\n||3\r\n:b\"||\r\n"),
        ("<sep>", "red<sep>1\nbl:ue<sep>2\n<sep>3\n:b\"<sep>"),
    ] {
        let format = Format::TSV.with(settings(separator)).unwrap();
        let found = run(format, &[Input::memory("t", rows.as_bytes())]).unwrap();
        assert_eq!(found, same, "{separator}");
    }
    // With `:::`, the first two characters are the separator.
    let format = Format::TSV.with(settings("::")).unwrap();
    let error = run(format, &[Input::memory("t", b"red:::1\n")]).unwrap_err();
    assert!(error.to_string().contains("\":1\", is not a whole number"), "{error}");
    // A number that contains a part of the separator is not a number.
    let format = Format::CSV.with(settings("::")).unwrap();
    let error = run(format, &[Input::memory("t", b"n::word\n1:2::x\n")]).unwrap_err();
    assert!(error.to_string().contains("\"1:2\", is not a whole number"), "{error}");
    let error = run(format, &[Input::memory("t", b"n::word\n12\n")]).unwrap_err();
    assert!(error.to_string().contains("has 1 field, "), "{error}");
}

/// A folder stands for its files, sorted by name, without the files that Spark writes beside them.
#[test]
fn a_folder_means_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (name, rows) in [
        ("part-1.CSV", "n,word\n2,x\n"),
        ("part-0.csv", "word,n\nx,1\n"),
        ("part-2.csv.gz", ""),
        ("_SUCCESS", ""),
        (".part-0.csv.crc", "\0\0"),
        ("_metadata.parquet", "PAR1"),
    ] {
        std::fs::write(path(name), rows).unwrap();
    }
    std::fs::write(path("part-2.csv.gz"), gzip(b"word,n\nx,3\n")).unwrap();
    let by_name = Format::ByName(TextSettings::default());
    let folder = Input::file(directory.path());
    let rows = run(by_name, std::slice::from_ref(&folder)).unwrap();
    assert_eq!(rows.iter().map(|row| row[1]).collect::<Vec<_>>(), [1, 2, 3]);
    std::fs::write(path("part-3.tsv"), "x\t4\n").unwrap();
    let error = run(by_name, std::slice::from_ref(&folder)).unwrap_err();
    assert!(
        error.to_string().contains("is Csv and") && error.to_string().contains("part-3.tsv is Tsv"),
        "{error}"
    );
    let empty = tempfile::tempdir().unwrap();
    std::fs::write(empty.path().join("_SUCCESS"), "").unwrap();
    let error = run(Format::CSV, &[Input::file(empty.path())]).unwrap_err();
    assert!(error.to_string().contains("a folder without a file"), "{error}");
}
