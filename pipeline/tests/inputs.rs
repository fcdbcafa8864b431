//! Tests compressed and quoted text: rows and reports are the same for all chunk sizes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::Write as _;

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, RunReport, Spec, TextSettings,
};
use proptest::prelude::*;

/// A spec with a number, a text and another number.
fn spec() -> Spec {
    let hash = Operator::Hash { seed: 7 };
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("word", FieldKind::Bytes),
            Field::new("site", FieldKind::Hex32),
        ],
        columns: vec![
            Column::field("n"),
            Column::field("word")
                .then(Operator::FillMissing("none".into()))
                .then(hash)
                .then(Operator::Modulus(1 << 31)),
            Column::field("site").then(Operator::FillMissing(0.into())),
        ],
        outputs: vec![Output::new("row", Dtype::Bits32, ["n", "word", "site"])],
        bad_rows: BadRows::Skip,
        // Some texts of this file have bad rows only.
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

fn row(n: u32, word: &[u8], site: u32) -> [u32; 3] {
    let word = if word.is_empty() { b"none" } else { word };
    [n, (xxhash_rust::xxh3::xxh3_64_with_seed(word, 7) % (1 << 31)) as u32, site]
}

fn run(options: &RunOptions, inputs: &[Input<'_>]) -> Result<(Vec<[u32; 3]>, RunReport), Error> {
    let mut rows = Vec::new();
    let (mut read, mut all) = (0, 0);
    let mut pipeline = Pipeline::new(&spec(), options).unwrap();
    let report = pipeline.run(inputs, &mut |batch: &mut Batch| {
        assert!(batch.input_bytes() >= read, "bytes that were read grow");
        read = batch.input_bytes();
        all += batch.rows();
        rows.extend(batch.bits32(0).unwrap().as_chunks::<3>().0);
        Ok(())
    })?;
    assert_eq!(all as u64, report.rows);
    assert!(read <= report.bytes);
    Ok((rows, report))
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    // The program `zstd` writes checksums too. Without them, some damage is not detected.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn plain_text(rows: u32) -> String {
    (0..rows).fold(String::new(), |mut text, n| {
        writeln!(text, "{n}\tword{}\t{:x}", n % 50, n.wrapping_mul(77_777)).unwrap();
        text
    })
}

#[test]
fn compressed_text_gives_what_the_text_gives() {
    let mut text = plain_text(5000);
    text.insert_str(text.find("2500\t").unwrap(), "bad row\n");
    let (first, second) = text.split_at(text.len() / 3);
    let (expected, plain) =
        run(&RunOptions::default(), &[Input::memory("t", text.as_bytes())]).unwrap();
    assert_eq!((expected.len(), plain.bad_rows), (5000, 1));
    let directory = tempfile::tempdir().unwrap();
    // Compressed members may end within a line.
    let members = [
        ("t.gz", [gzip(first.as_bytes()), gzip(second.as_bytes())].concat()),
        ("t.zst", [zstd(first.as_bytes()), zstd(second.as_bytes())].concat()),
        ("by its first bytes", gzip(text.as_bytes())),
        ("zstd by its first bytes", zstd(text.as_bytes())),
    ];
    for (name, bytes) in &members {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        for (threads, chunk_bytes) in [(1, 512 << 10), (3, 5000), (2, 100), (2, 1)] {
            let options = RunOptions { threads, chunk_bytes, ..RunOptions::default() };
            let inputs = [Input::file(&path), Input::memory("memory", bytes)];
            let (rows, report) = run(&options, &inputs).unwrap();
            assert_eq!(rows, [expected.clone(), expected.clone()].concat(), "{name}");
            assert_eq!(report.bytes, bytes.len() as u64 * 2);
            let bad: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.line).collect();
            assert_eq!(bad, [2501, 2501], "{name}, {threads} threads, {chunk_bytes}");
        }
    }
}

/// Regression test: zero bytes after the last gzip member, as tapes and archives pad files, were an
/// error. A zstd file that begins with a frame to skip, as pzstd and seekable writers make it, was
/// read as text if its name did not end with `.zst`.
#[test]
fn padded_gzip_and_zstd_with_frames_to_skip_are_read() {
    let text = plain_text(300);
    let (first, second) = text.split_at(text.len() / 3);
    let expected = run(&RunOptions::default(), &[Input::memory("t", text.as_bytes())]).unwrap().0;
    let skipped = |magic: u8| [&[magic, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"any"].concat();
    let padding = vec![0; 70_000];
    for (name, bytes) in [
        ("padded", [&gzip(text.as_bytes())[..], &[0; 3]].concat()),
        ("padded far", [&gzip(text.as_bytes())[..], &padding].concat()),
        (
            "padded within",
            [&gzip(first.as_bytes())[..], &[0; 9], &gzip(second.as_bytes()), &[0; 9]].concat(),
        ),
        ("skipped", [skipped(0x50), zstd(text.as_bytes())].concat()),
        (
            "skipped twice",
            [skipped(0x5F), zstd(first.as_bytes()), skipped(0x5A), zstd(second.as_bytes())]
                .concat(),
        ),
    ] {
        for chunk_bytes in [512 << 10, 100] {
            let options = RunOptions { threads: 2, chunk_bytes, ..RunOptions::default() };
            let (rows, report) = run(&options, &[Input::memory(name, &bytes)]).unwrap();
            assert_eq!((rows, report.bad_rows), (expected.clone(), 0), "{name}");
        }
    }
    let garbage = [&gzip(text.as_bytes())[..], &[0; 3], b"x"].concat();
    let error = run(&RunOptions::default(), &[Input::memory("t", &garbage)]).unwrap_err();
    assert!(matches!(error, Error::Compressed { .. }), "{error}");
}

/// Regression test: an empty line at the end of a text was a bad row with one field, and the error
/// advised another separator.
#[test]
fn empty_lines_are_no_rows_if_rows_have_several_fields() {
    let expected = [row(1, b"a", 2), row(3, b"b", 4)];
    for text in [
        "1\ta\t2\n3\tb\t4\n\n",
        "1\ta\t2\r\n3\tb\t4\r\n\r\n",
        "1\ta\t2\n\n\n3\tb\t4\n\n\n",
        "\n1\ta\t2\n3\tb\t4\n\r",
    ] {
        let quoted = text.replace('a', "\"a\"");
        for (text, quote) in [(text, None), (&quoted, Some(b'"'))] {
            let separator = b'\t'.into();
            let format = Format::Text { separator, header: Header::None, quote };
            for level in Level::available() {
                let options = RunOptions { format, level, ..RunOptions::default() };
                let (rows, report) = run(&options, &[Input::memory("t", text.as_bytes())]).unwrap();
                assert_eq!((&rows[..], report.bad_rows), (&expected[..], 0), "{text:?}");
            }
        }
    }
    // The lines of bad rows count the empty lines before them.
    let (_, report) =
        run(&RunOptions::default(), &[Input::memory("t", b"\n1\ta\t2\n\nbad\n \n")]).unwrap();
    let lines: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.line).collect();
    assert_eq!(lines, [4, 5]);
}

#[test]
fn damaged_and_cut_streams_are_errors_with_their_names() {
    let text = plain_text(50_000);
    for (name, whole) in [("t.gz", gzip(text.as_bytes())), ("t.zst", zstd(text.as_bytes()))] {
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        let cut = &whole[..whole.len() - 9];
        for bytes in [cut, &flipped, &whole[..20], text.as_bytes()] {
            std::fs::write(&path, bytes).unwrap();
            let options = RunOptions { threads: 2, ..RunOptions::default() };
            match run(&options, &[Input::file(&path)]) {
                Err(Error::Compressed { input, .. }) => assert!(input.ends_with(name)),
                other => panic!("{name} of {} bytes: {:?}", bytes.len(), other.map(|r| r.1)),
            }
        }
    }
}

#[test]
fn a_line_that_expands_without_end_is_an_error_in_bounded_memory() {
    // A line of 200 MB compresses to 200 KB.
    let bomb = gzip(&vec![b'x'; 200 << 20]);
    let error = run(&RunOptions::default(), &[Input::memory("bomb", &bomb)]).unwrap_err();
    assert!(matches!(error, Error::LineTooLong { .. }), "{error}");
    assert!(error.to_string().contains("bomb"), "{error}");
}

#[test]
fn compressed_packed_rows_by_their_names() {
    let rows: Vec<u8> = (0..3000_u32).flat_map(u32::to_le_bytes).collect();
    let mut spec = spec();
    spec.fields[1].kind = FieldKind::Hex32;
    spec.columns[1] = Column::field("word").then(Operator::FillMissing(0.into()));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.bin.zst");
    let options =
        RunOptions { threads: 2, format: Format::Packed, chunk_bytes: 999, ..Default::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let mut got = Vec::new();
    let mut collect = |batch: &mut Batch| {
        got.extend_from_slice(batch.bits32(0).unwrap());
        Ok(())
    };
    std::fs::write(&path, zstd(&rows)).unwrap();
    pipeline.run(&[Input::file(&path)], &mut collect).unwrap();
    std::fs::write(&path, zstd(&rows[..rows.len() - 1])).unwrap();
    let error = pipeline.run(&[Input::file(&path)], &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(matches!(error, Error::NoWholeRows { bytes: 11_999, .. }), "{error}");
    assert_eq!(got, (0..3000).collect::<Vec<_>>());
}

fn csv(level: Level, threads: usize, chunk_bytes: usize) -> RunOptions {
    let settings = TextSettings { header: Some(Header::Skip), ..TextSettings::default() };
    let format = Format::CSV.with(settings).unwrap();
    RunOptions { threads, level, chunk_bytes, format, ..RunOptions::default() }
}

#[test]
fn quoted_fields_hold_separators_quotes_and_line_ends() {
    let text = "n,\"the \"\"word\"\",\nin two lines\",site\r\n\
                1,plain,a\n\
                \"2\",\"a,b\",\"b\"\r\n\
                3,\"say \"\"yes\"\"\",c\n\
                4,\"two\r\nlines\",d\r\n\
                5,\"\",\"\"\n\
                6,\"ends in a return\r\",\"e\"\n\
                7,\"\"\"\",f";
    let expected = [
        row(1, b"plain", 10),
        row(2, b"a,b", 11),
        row(3, b"say \"yes\"", 12),
        row(4, b"two\r\nlines", 13),
        row(5, b"", 0),
        row(6, b"ends in a return\r", 14),
        row(7, b"\"", 15),
    ];
    let packed = gzip(text.as_bytes());
    for level in Level::available() {
        for (threads, chunk_bytes) in [(1, 512 << 10), (2, 30), (2, 1)] {
            let inputs = [Input::memory("t", text.as_bytes()), Input::memory("gz", &packed)];
            let (rows, report) = run(&csv(level, threads, chunk_bytes), &inputs).unwrap();
            assert_eq!(rows, [expected, expected].concat(), "{level}, {chunk_bytes}");
            assert_eq!(report.bad_rows, 0);
        }
    }
}

#[test]
fn wrong_quotes_are_bad_rows_with_line_and_column() {
    let text = "n,word,site\n\
                1,a\"b,1\n\
                2,\"a\"b,1\n\
                3,\"two\nlines\",x1\n\
                4,good,1\n\
                \"5,000\",thousands,1\n\
                6,\"a\",\"b\",1\n\
                7,good,2\n\
                8,\"never closed\n\
                9,a,1\n";
    for (threads, chunk_bytes) in [(1, 512 << 10), (2, 20), (2, 1)] {
        let options = csv(Level::detect(), threads, chunk_bytes);
        let (rows, report) = run(&options, &[Input::memory("t", text.as_bytes())]).unwrap();
        assert_eq!(rows, [row(4, b"good", 1), row(7, b"good", 2)]);
        let said: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "t:2:3: field \"word\", \"a\\\"b\", has a quote at a wrong place",
                "t:3:3: field \"word\", \"a\", has a quote at a wrong place",
                "t:4:15: field \"site\", \"x1\", is not a hexadecimal number",
                "t:7:1: field \"n\", \"5,000\", is not a whole number",
                "t:8: has 4 fields, and the pipeline's rows have 3, separated by \",\"",
                "t:10:3: field \"word\", \"never closed\\n9,a,1\\n\", has a quote at a wrong place",
            ]
        );
    }
}

#[test]
fn a_quote_is_no_separator_and_no_line_end() {
    for quote in [b',', b'\n', b'\r'] {
        let format =
            Format::Text { separator: b','.into(), header: Header::None, quote: Some(quote) };
        let options = RunOptions { format, ..RunOptions::default() };
        let error = Pipeline::new(&spec(), &options).unwrap_err();
        assert!(error.to_string().contains("quote"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_words_come_back_however_they_are_quoted(
        words in prop::collection::vec(("[ab,\"\r\n]{0,6}", any::<bool>(), any::<bool>()), 0..80),
        chunk_bytes in 1..200_usize,
        threads in 1..4_usize,
    ) {
        let (mut text, mut expected) = (String::from("n,word,site\n"), Vec::new());
        for (n, (word, quoted, returned)) in words.iter().enumerate() {
            let quoted = *quoted || word.contains(['"', ',', '\r', '\n']);
            let written =
                if quoted { format!("\"{}\"", word.replace('"', "\"\"")) } else { word.clone() };
            text += &format!("{n},{written},{n:x}{}", if *returned { "\r\n" } else { "\n" });
            expected.push(row(n as u32, word.as_bytes(), n as u32));
        }
        for level in Level::available() {
            let input = [Input::memory("t", text.as_bytes())];
            let (rows, report) = run(&csv(level, threads, chunk_bytes), &input).unwrap();
            prop_assert_eq!(&rows, &expected);
            prop_assert_eq!(report.bad_rows, 0);
        }
    }

    /// The chunk size does not change rows or bad rows, whatever the text is.
    #[test]
    fn rows_and_bad_rows_are_the_same_with_any_chunks(
        text in "([0-9],\"a\",1\n|[0-9a,\"\n]{0,12})*",
        chunk_bytes in 1..60_usize,
    ) {
        let text = format!("n,word,site\n{text}");
        let input = [Input::memory("t", text.as_bytes())];
        let (rows, report) = run(&csv(Level::Portable, 1, 512 << 10), &input).unwrap();
        let (got, parts) = run(&csv(Level::detect(), 2, chunk_bytes), &input).unwrap();
        prop_assert_eq!(got, rows);
        prop_assert_eq!(parts.bad_rows, report.bad_rows);
        prop_assert_eq!(parts.first_bad_rows, report.first_bad_rows);
    }
}

/// Calls `run` with a pipe into which another thread writes the bytes.
fn through_a_pipe<T>(bytes: &[u8], run: impl FnOnce(Input<'_>) -> T) -> T {
    use std::os::fd::AsRawFd as _;
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).unwrap());
        run(Input::file(format!("/dev/fd/{}", reader.as_raw_fd())))
    })
}

#[test]
fn pipes_count_their_bytes_and_tell_by_the_first_ones_how_they_are_compressed() {
    let text = plain_text(3000);
    let options = RunOptions { trace: true, chunk_bytes: 5000, ..RunOptions::default() };
    let (expected, _) = run(&options, &[Input::memory("text", text.as_bytes())]).unwrap();
    for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes()), zstd(text.as_bytes())] {
        let file = Input::memory("more", text.as_bytes());
        let ran = through_a_pipe(&bytes, |pipe| run(&options, &[pipe, file]));
        let (rows, report) = ran.unwrap();
        assert_eq!(rows, [expected.clone(), expected.clone()].concat());
        assert_eq!(report.bytes, (bytes.len() + text.len()) as u64);
        assert_eq!(report.trace.unwrap().bytes, report.bytes);
    }
    // This input is shorter than the first bytes that identify a compression.
    let ran = through_a_pipe(b"1\t", |pipe| run(&options, &[pipe]));
    assert_eq!(ran.unwrap().1.bad_rows, 1);
    // Packed rows may begin with the first bytes of gzip.
    let mut packed = spec();
    packed.fields[1].kind = FieldKind::Hex32;
    packed.columns[1].operators.clear();
    packed.columns[1].operators.push(Operator::FillMissing(0.into()));
    let options = RunOptions { format: Format::Packed, ..RunOptions::default() };
    let rows = [&[0x1F, 0x8B, 8][..], &[0; 33]].concat();
    let mut pipeline = Pipeline::new(&packed, &options).unwrap();
    let ran = through_a_pipe(&rows, |pipe| pipeline.run(&[pipe], &mut |_: &mut Batch| Ok(())));
    assert_eq!(ran.unwrap().rows, 3);
}

#[test]
fn a_line_has_one_limit_and_an_error_that_names_it_whatever_the_chunks() {
    const LIMIT: usize = 16 << 20;
    let before = "1\tword\tff\n".repeat(1000);
    let after = "\n2\tword\tff\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    for beyond in [0, 1] {
        let text = [before.as_bytes(), &vec![b'x'; LIMIT + beyond], after.as_bytes()].concat();
        std::fs::write(&path, &text).unwrap();
        let zipped = gzip(&text);
        for chunk_bytes in [5000, 512 << 10, 100 << 20] {
            let lines = RunOptions { threads: 2, chunk_bytes, ..RunOptions::default() };
            let tsv =
                Format::Text { separator: b'\t'.into(), header: Header::None, quote: Some(b'"') };
            let quoted = RunOptions { format: tsv, ..lines.clone() };
            let memory = Input::memory("lines", &text);
            for (name, ran) in [
                ("memory", run(&lines, std::slice::from_ref(&memory))),
                ("file", run(&lines, &[Input::file(&path)])),
                ("gzip", run(&lines, &[Input::memory("lines", &zipped)])),
                ("quoted", run(&quoted, &[memory])),
            ] {
                let name = format!("{name}, chunks of {chunk_bytes}");
                match ran {
                    Ok((rows, report)) => {
                        assert_eq!((beyond, rows.len(), report.bad_rows), (0, 1001, 1), "{name}");
                    }
                    Err(Error::LineTooLong { input, line, limit }) => {
                        assert!(input.ends_with("lines"), "{name}");
                        assert_eq!((beyond, line, limit), (1, 1001, LIMIT), "{name}");
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
        }
    }
}

#[test]
fn the_rate_of_reading_is_that_of_the_pipelines_own_format() {
    // Zeros contain no line end, and there are more of them than a line may have.
    let rows = vec![0; 12 * (2 << 20)];
    let mut packed = spec();
    packed.fields[1].kind = FieldKind::Hex32;
    packed.columns[1].operators = vec![Operator::FillMissing(0.into())];
    let options = RunOptions { format: Format::Packed, ..RunOptions::default() };
    let pipeline = Pipeline::new(&packed, &options).unwrap();
    assert!(pipeline.read_rate(&[Input::memory("rows", &rows)]).unwrap() > 0.0);
    let error = pipeline.read_rate(&[Input::memory("rows", &rows[1..])]).unwrap_err();
    assert!(matches!(error, Error::NoWholeRows { .. }), "{error}");
    // `read_rate` refuses a pipe, because measuring would consume its bytes.
    let error = through_a_pipe(b"", |pipe| pipeline.read_rate(&[pipe]).unwrap_err());
    assert!(matches!(error, Error::Spec(_)), "{error}");
}
