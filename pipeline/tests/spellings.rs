//! Tests numbers and missing values as other programs write them, and the limit of bad rows.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, RunReport, Spec,
};

const MISSING: i64 = 77;

/// A spec with a column for each field, shown as i64: integers as they are, floats as buckets, text
/// as hashes.
fn spec(fields: Vec<Field>) -> Spec {
    let column = |field: &Field| {
        let column = Column::field(&field.name);
        match field.kind {
            FieldKind::Bytes => column
                .then(Operator::FillMissing("none".into()))
                .then(Operator::Hash { seed: 1 })
                .then(Operator::Modulus(1 << 30)),
            FieldKind::Uint64 => {
                column.then(Operator::FillMissing(MISSING.into())).then(Operator::Modulus(1 << 30))
            }
            FieldKind::Float32 => column
                .then(Operator::FillMissing(MISSING.into()))
                .then(Operator::Bucketize(vec![-1.0, 0.0, 1.0, 5.0, 76.0])),
            _ => column.then(Operator::FillMissing(MISSING.into())),
        }
    };
    let columns: Vec<_> = fields.iter().map(column).collect();
    let names: Vec<_> = fields.iter().map(|field| field.name.clone()).collect();
    let outputs = vec![Output::new("x", Dtype::I64, names)];
    Spec { fields, columns, outputs, ..Spec::default() }
}

fn run_with(
    spec: &Spec,
    options: &RunOptions,
    inputs: &[Input<'_>],
) -> Result<(Vec<i64>, RunReport), Error> {
    let mut rows = Vec::new();
    let report = Pipeline::new(spec, options)?.run(inputs, &mut |batch: &mut Batch| {
        rows.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    })?;
    Ok((rows, report))
}

/// Reads the text at every level and in two chunk sizes. All results must be equal.
fn read(spec: &Spec, format: Format, text: &str) -> Result<Vec<i64>, Error> {
    let mut all: Option<Vec<i64>> = None;
    for level in Level::available() {
        for chunk_bytes in [512 << 10, 40] {
            let options =
                RunOptions { level, chunk_bytes, format, threads: 2, ..RunOptions::default() };
            let input = Input::memory("t", text.as_bytes());
            let (rows, _) = run_with(spec, &options, &[input])?;
            assert_eq!(*all.get_or_insert_with(|| rows.clone()), rows, "{level}, {chunk_bytes}");
        }
    }
    Ok(all.unwrap_or_default())
}

fn one(field: Field, values: &[&str]) -> Result<Vec<i64>, Error> {
    // A second field is added, so that a row with an empty value is not an empty line.
    let text: String = values.iter().map(|value| format!("{value}\t0\n")).collect();
    let other = Field::new("other", FieldKind::Skip);
    let mut spec = spec(vec![field]);
    spec.fields.push(other);
    // The text has many rows, so that the kernels read them in groups.
    let rows = read(&spec, Format::TSV, &text.repeat(30))?;
    assert!(rows.chunks(values.len()).all(|part| part == &rows[..values.len()]));
    Ok(rows[..values.len()].to_vec())
}

/// Regression test: rows with spellings of missing values such as `NA` were bad, and no setting
/// could change that.
#[test]
fn spellings_of_missing_values_are_missing() {
    let spellings = ["NA", "NULL", "\\N", "nan", "<null>", "n/a"];
    for kind in [FieldKind::Int32, FieldKind::Int64, FieldKind::Uint64, FieldKind::Hex32] {
        let field = || Field::new("x", kind).missing(spellings);
        let values = ["5", "NA", "NULL", "\\N", "nan", "", "<null>", "n/a", "12"];
        let m = MISSING;
        let twelve = if kind == FieldKind::Hex32 { 0x12 } else { 12 };
        assert_eq!(one(field(), &values).unwrap(), [5, m, m, m, m, m, m, m, twelve], "{kind:?}");
        // Spellings match byte by byte; other spellings are errors.
        for wrong in ["na", "NaN", " NA", "NULL ", "-"] {
            let error = one(field(), &["1", wrong]).unwrap_err();
            assert!(matches!(error, Error::BadRow(_)), "{kind:?} {wrong}: {error}");
        }
        let error = one(field().required(), &["1", "NA"]).unwrap_err();
        assert!(error.to_string().contains("a value is required"), "{error}");
        // Without the setting, the spelling is an error.
        assert!(one(Field::new("x", kind), &["NA"]).is_err());
    }
    let field = Field::new("x", FieldKind::Float32).missing(["nan", "-inf", "NA"]);
    assert_eq!(one(field, &["-0.5", "nan", "-inf", "", "NA", "2.5"]).unwrap(), [1, 5, 5, 5, 5, 3]);
    let text = |missing: &[&str]| Field::new("x", FieldKind::Bytes).missing(missing.to_vec());
    let plain = one(text(&[]), &["NA", "", "a"]).unwrap();
    let spelt = one(text(&["NA"]), &["NA", "", "a"]).unwrap();
    assert_eq!((spelt[0], spelt[1], spelt[2]), (plain[1], plain[1], plain[2]));
    assert_ne!(plain[0], plain[1]);
}

/// A spelling of a missing value may be a number.
#[test]
fn numbers_that_mean_missing() {
    for kind in [FieldKind::Int32, FieldKind::Int64] {
        let field = Field::new("x", kind).missing(["-1", "999"]);
        let found = one(field, &["-1", "1", "999", "-10", "9999", ""]).unwrap();
        assert_eq!(found, [MISSING, 1, MISSING, -10, 9999, MISSING], "{kind:?}");
    }
    let field = Field::new("x", FieldKind::Hex32).missing(["bad"]);
    assert_eq!(one(field, &["bad", "bad0", "7"]).unwrap(), [MISSING, 0xbad0, 7]);
    let field = Field::new("x", FieldKind::Float32).missing(["-9.0"]);
    assert_eq!(one(field, &["-9.0", "-9", "0.5"]).unwrap(), [5, 0, 2]);
    // Neighbouring fields without spellings are not affected.
    let fields = vec![
        Field::new("a", FieldKind::Int32),
        Field::new("b", FieldKind::Int32).missing(["0"]),
        Field::new("c", FieldKind::Int32),
    ];
    let rows = read(&spec(fields), Format::TSV, &"0\t0\t0\n1\t2\t3\n".repeat(20)).unwrap();
    assert_eq!(rows[..6], [0, MISSING, 0, 1, 2, 3]);
}

/// Whole numbers may be written as floats, as pandas does for a column with missing values.
#[test]
fn whole_numbers_written_as_floats() {
    for kind in [FieldKind::Int32, FieldKind::Int64, FieldKind::Uint64] {
        let field = || Field::new("x", kind).whole_floats();
        assert_eq!(
            one(field(), &["5.0", "7", "", "1e3", "0.0"]).unwrap(),
            [5, 7, MISSING, 1000, 0]
        );
        for wrong in ["5.5", "nan", "1.0.0", "1e-1"] {
            let error = one(field(), &[wrong]).unwrap_err().to_string();
            assert!(error.contains("is not a whole number"), "{wrong}: {error}");
        }
        let error = one(field(), &["1e30"]).unwrap_err().to_string();
        assert!(error.contains("does not fit into"), "{error}");
        assert!(one(Field::new("x", kind), &["5.0"]).is_err());
    }
    let field = Field::new("x", FieldKind::Int64).whole_floats().missing(["-1.0"]);
    assert_eq!(one(field, &["-1.0", "-1", "-2.0"]).unwrap(), [MISSING, -1, -2]);
    for kind in [FieldKind::Float32, FieldKind::Bytes, FieldKind::Hex32] {
        let wrong = spec(vec![Field::new("x", kind).whole_floats()]);
        let error = Pipeline::new(&wrong, &RunOptions::default()).unwrap_err();
        assert!(error.to_string().contains("whole_floats"), "{error}");
    }
    let spelt = spec(vec![Field::new("x", FieldKind::Int32).missing(["NA"])]);
    let packed = RunOptions { format: Format::Packed, ..RunOptions::default() };
    assert!(Pipeline::new(&spelt, &packed).unwrap_err().to_string().contains("packed"));
}

#[test]
fn unsigned_numbers_of_64_bits() {
    let found =
        one(Field::new("x", FieldKind::Uint64), &["18446744073709551615", "0", ""]).unwrap();
    assert_eq!(found, [(u64::MAX % (1 << 30)) as i64, 0, MISSING]);
    for (wrong, why) in [
        ("-1", "is not a whole number from 0 on"),
        ("18446744073709551616", "does not fit into 64 bits"),
        ("x", "is not a whole number from 0 on"),
    ] {
        let error = one(Field::new("x", FieldKind::Uint64), &[wrong]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut filled = spec(vec![Field::new("x", FieldKind::Uint64)]);
    for (fill, fits) in
        [("18446744073709551615".into(), true), ((-1).into(), false), (0.5.into(), false)]
    {
        filled.columns[0].operators[0] = Operator::FillMissing(fill);
        assert_eq!(Pipeline::new(&filled, &RunOptions::default()).is_ok(), fits);
    }
    assert_eq!(serde_json::to_string(&FieldKind::Uint64).unwrap(), "\"uint64\"");
}

/// Unsigned 64-bit numbers can be values of a bank's vocabulary.
#[test]
fn unsigned_numbers_are_values_of_a_vocabulary() {
    let directory = tempfile::tempdir().unwrap();
    let bank =
        embank::Bank::open(directory.path().join("b"), embank::BankOptions::default()).unwrap();
    let spec = Spec {
        fields: vec![Field::new("x", FieldKind::Uint64).required()],
        columns: vec![Column::field("x").then(Operator::Vocabulary("x".to_owned()))],
        outputs: vec![Output::new("x", Dtype::I64, ["x"])],
        ..Spec::default()
    };
    let mut pipeline = Pipeline::with_bank(&spec, &RunOptions::default(), &bank).unwrap();
    let mut ids = Vec::new();
    let text = b"18446744073709551615\n7\n18446744073709551615\n";
    let run = pipeline.run(&[Input::memory("t", text)], &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    });
    run.unwrap();
    assert_eq!(ids, [0, 1, 0]);
    let mut found = [0];
    bank.open_vocabulary("x").unwrap().ids(&[u64::MAX][..], &mut found).unwrap();
    assert_eq!(found, [0]);
}

/// A run that leaves out too many rows fails. Without this limit, a file that does not fit the
/// fields would give only its few good rows.
#[test]
fn a_run_that_leaves_out_too_much_ends_with_the_first_bad_rows() {
    let skipping = |bad_rows_max| Spec {
        bad_rows: BadRows::Skip,
        bad_rows_max,
        ..spec(vec![Field::new("x", FieldKind::Int64), Field::new("y", FieldKind::Int64)])
    };
    let rows = |good: usize, bad: usize| {
        let every = if bad == 0 { good + 1 } else { (good + bad).div_ceil(bad) };
        let row = |n: usize| if n % every == every - 1 { "5.0\t1\n" } else { "5\t1\n" };
        (0..good + bad).map(row).collect::<String>()
    };
    let run = |bad_rows_max: f64, text: &str| {
        let mut outcomes = Vec::new();
        for (threads, chunk_bytes) in [(1, 512 << 10), (3, 5000)] {
            let options = RunOptions { threads, chunk_bytes, ..RunOptions::default() };
            let input = [Input::memory("t", text.as_bytes())];
            let ran = run_with(&skipping(bad_rows_max), &options, &input);
            outcomes.push(ran.map(|(_, report)| report.bad_rows));
        }
        outcomes
    };
    // These runs have no more bad rows than allowed, so they succeed. The short run after the loop
    // also succeeds, because it has fewer than 10,000 rows.
    for (limit, text) in [
        (0.01, rows(19_850, 150)),
        (0.6, rows(10_000, 10_000)),
        (1.0, rows(0, 20_000)),
        (0.0, rows(20_000, 0)),
    ] {
        for outcome in run(limit, &text) {
            outcome.unwrap();
        }
    }
    assert!(run(0.01, &rows(4_999, 5_000)).into_iter().all(|outcome| outcome.unwrap() == 4_999));
    for (limit, text) in
        [(0.01, rows(19_000, 1000)), (0.4, rows(10_000, 10_000)), (0.0, rows(20_000, 1))]
    {
        for outcome in run(limit, &text) {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::TooManyBadRows { .. }), "{error}");
            let told = error.to_string();
            let bad = "field \"x\", \"5.0\", is not a whole number";
            assert!(told.contains("the first: t:") && told.contains(bad), "{told}");
        }
    }
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(Pipeline::new(&skipping(wrong), &RunOptions::default()).is_err());
    }
    assert_eq!(Spec::from_json(&skipping(0.25).to_json()).unwrap().bad_rows_max, 0.25);
    assert_eq!(Spec::default().bad_rows_max, 0.01);
}

/// Regression test: commas that were read as TSV made every row bad. With `bad_rows: skip`, a run
/// of fewer than 10,000 rows then ended without rows and without an error.
#[test]
fn a_run_without_a_good_row_fails() {
    let fields = vec![Field::new("x", FieldKind::Int64), Field::new("word", FieldKind::Bytes)];
    let skipping = Spec { bad_rows: BadRows::Skip, ..spec(fields) };
    let commas = "1,a\n2,b\n3,c\n";
    let inputs = [Input::memory("t", commas.as_bytes())];
    let error = run_with(&skipping, &RunOptions::default(), &inputs).unwrap_err();
    assert!(matches!(error, Error::TooManyBadRows { bad_lines: 3, lines: 3, .. }), "{error}");
    let told = error.to_string();
    let cure = "has 1 field, and the pipeline's rows have 2: it is read as text with the separator \"\\t\"";
    assert!(told.contains(cure) && told.contains("`format: csv`"), "{told}");
    // The message has the cure once, not at each of the ten rows.
    assert_eq!(told.matches("`format: csv`").count(), 1, "{told}");

    let failing = Spec { bad_rows: BadRows::Fail, ..skipping.clone() };
    let error = run_with(&failing, &RunOptions::default(), &inputs).unwrap_err();
    assert!(error.to_string().contains("`format: csv`"), "{error}");

    // Text that is read with commas already gets no advice to read commas.
    let options = RunOptions {
        format: Format::Text { separator: b','.into(), header: Header::None, quote: None },
        ..RunOptions::default()
    };
    let semicolons = [Input::memory("t", b"1;a\n2;b\n")];
    let told = run_with(&failing, &options, &semicolons).unwrap_err().to_string();
    assert!(told.contains("`separator`") && !told.contains("`format: csv`"), "{told}");

    // Runs that succeed: with one good row, without any row, and without a limit.
    let mixed = [Input::memory("t", b"1,a\n2\tb\n")];
    run_with(&skipping, &RunOptions::default(), &mixed).unwrap();
    run_with(&skipping, &RunOptions::default(), &[Input::memory("t", b"")]).unwrap();
    let unlimited = Spec { bad_rows_max: 1.0, ..skipping };
    let (_, report) = run_with(&unlimited, &RunOptions::default(), &inputs).unwrap();
    assert_eq!((report.rows, report.bad_rows), (0, 3));
}

#[test]
fn a_float_in_a_field_of_whole_numbers_names_the_setting() {
    for (kind, value, advises) in [
        (FieldKind::Int32, "1.0", true),
        (FieldKind::Uint64, "1e3", true),
        (FieldKind::Int64, "1.5", false),
        (FieldKind::Int64, "x", false),
        (FieldKind::Hex32, "1.0", false),
    ] {
        let spec = spec(vec![Field::new("x", kind)]);
        let input = [Input::memory("t", value.as_bytes())];
        let error = run_with(&spec, &RunOptions::default(), &input).unwrap_err().to_string();
        assert_eq!(error.contains("`whole_floats: true` reads"), advises, "{error}");
    }
}

/// Regression test: an open quote made one bad row of 999 lines, and this row counted as one line.
#[test]
fn a_bad_row_tells_the_lines_that_it_spans() {
    let spec = Spec {
        bad_rows: BadRows::Skip,
        ..spec(vec![Field::new("x", FieldKind::Int64), Field::new("word", FieldKind::Bytes)])
    };
    let taken = "7,taken\n".repeat(997);
    let text = format!(
        "x,word\n1,a\n2,\"open\n{taken}8,b\"c\n\"x\",\"two\nlines\"\n9,d\n1,2,\"three\n\n\"\n"
    );
    for (threads, chunk_bytes) in [(1, 512 << 10), (2, 100)] {
        let options =
            RunOptions { threads, chunk_bytes, format: Format::CSV, ..RunOptions::default() };
        let input = [Input::memory("t", text.as_bytes())];
        let (_, report) = run_with(&spec, &options, &input).unwrap();
        assert_eq!((report.rows, report.bad_rows, report.bad_lines), (2, 3, 999 + 2 + 3));
        let lines: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.lines).collect();
        assert_eq!(lines, [999, 2, 3]);
        let told = format!("{:#}", report.first_bad_rows[0]);
        assert!(told.ends_with("(it spans 999 lines)"), "{told}");
        let single = BadRows::Fail;
        let error =
            run_with(&Spec { bad_rows: single, ..spec.clone() }, &options, &input).unwrap_err();
        assert!(error.to_string().contains("(it spans 999 lines); `bad_rows: skip`"), "{error}");
    }
    // The share of bad rows counts lines: a bad row of 502 lines counts as 502.
    let text =
        format!("x,word\n{}2,\"open\n{}3,x\"y\n", "1,a\n".repeat(10_000), "7,b\n".repeat(500));
    let options = RunOptions { format: Format::CSV, ..RunOptions::default() };
    let error = run_with(&spec, &options, &[Input::memory("t", text.as_bytes())]).unwrap_err();
    assert!(matches!(error, Error::TooManyBadRows { bad_lines: 502, .. }), "{error}");
}

#[cfg(feature = "parquet")]
mod columns {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, Float16Array, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray,
        UInt64Array,
    };
    use parquet::arrow::ArrowWriter;

    use super::*;

    fn file(column: ArrayRef) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    fn column(field: Field, column: ArrayRef) -> Result<Vec<i64>, Error> {
        let options = RunOptions { format: Format::Columns, ..RunOptions::default() };
        let bytes = file(column);
        run_with(&spec(vec![field]), &options, &[Input::memory("t", &bytes)]).map(|(rows, _)| rows)
    }

    #[test]
    fn doubles_are_whole_numbers_and_nan_is_missing() {
        let doubles =
            || Arc::new(Float64Array::from(vec![Some(5.0), Some(f64::NAN), None, Some(0.0)]));
        for kind in [FieldKind::Int32, FieldKind::Int64, FieldKind::Uint64, FieldKind::Hex32] {
            assert_eq!(column(Field::new("x", kind), doubles()).unwrap(), [5, MISSING, MISSING, 0]);
            let error = column(Field::new("x", kind).required(), doubles()).unwrap_err();
            assert!(error.to_string().contains("a value is required"), "{error}");
            for (wrong, why) in [(0.5, "is not a"), (1e20, ""), (f64::INFINITY, "")] {
                let error =
                    column(Field::new("x", kind), Arc::new(Float64Array::from(vec![wrong])));
                let error = error.unwrap_err();
                assert!(
                    matches!(&error, Error::BadRow(_)) && error.to_string().contains(why),
                    "{error}"
                );
            }
        }
        let singles = Arc::new(Float32Array::from(vec![f32::NAN, 2.0]));
        assert_eq!(column(Field::new("x", FieldKind::Float32), singles).unwrap(), [5, 3]);
        let large = Arc::new(Float64Array::from(vec![9_007_199_254_740_991.0, -1e15]));
        let found = column(Field::new("x", FieldKind::Int64), large).unwrap();
        assert_eq!(found, [9_007_199_254_740_991, -1_000_000_000_000_000]);
    }

    /// Regression test: floats of 2^53 and more were taken for whole numbers. pandas writes a
    /// column of ids with a missing id as floats, and so 100 ids became one.
    #[test]
    fn floats_that_may_have_been_rounded_are_bad() {
        let doubles = |value: f64| Arc::new(Float64Array::from(vec![1.0, value])) as ArrayRef;
        let singles = |value: f32| Arc::new(Float32Array::from(vec![1.0, value])) as ArrayRef;
        let halves = |value: f32| {
            let values = [half::f16::ONE, half::f16::from_f32(value)];
            Arc::new(Float16Array::from_iter_values(values)) as ArrayRef
        };
        for (values, why) in [
            (doubles(4_873_214_862_074_861_312.0), "2^53"),
            (doubles(9_007_199_254_740_992.0), "2^53"),
            (doubles(-9_007_199_254_740_992.0), "2^53"),
            (singles(16_777_216.0), "2^24"),
            (halves(2048.0), "2^11"),
        ] {
            let error = column(Field::new("x", FieldKind::Int64), values).unwrap_err().to_string();
            for part in ["t:2: ", "field \"x\"", why, "write it as a whole number"] {
                assert!(error.contains(part), "{part} in {error}");
            }
        }
        for (values, number) in [(singles(16_777_215.0), 16_777_215), (halves(2047.0), 2047)] {
            let found = column(Field::new("x", FieldKind::Hex32), values).unwrap();
            assert_eq!(found, [1, number]);
        }
        // Text that programs write for such floats.
        let field = || Field::new("x", FieldKind::Int64).whole_floats();
        for text in ["4.87e18", "4873214862074861568.0", "-9007199254740992.0"] {
            let words = Arc::new(StringArray::from(vec!["9007199254740991.0", text]));
            let error = column(field(), words).unwrap_err().to_string();
            assert!(error.contains("t:2: ") && error.contains("2^53"), "{error}");
        }
        // Digits alone are exact.
        let words = Arc::new(StringArray::from(vec!["4873214862074861312"]));
        assert_eq!(column(field(), words).unwrap(), [4_873_214_862_074_861_312]);
    }

    #[test]
    fn spellings_and_unsigned_numbers_of_columns() {
        let large = Arc::new(UInt64Array::from(vec![u64::MAX, 3]));
        let found = column(Field::new("x", FieldKind::Uint64), large).unwrap();
        assert_eq!(found, [(u64::MAX % (1 << 30)) as i64, 3]);
        let words = || Arc::new(StringArray::from(vec!["5.0", "NA", "7"]));
        let field = Field::new("x", FieldKind::Int32).missing(["NA"]).whole_floats();
        assert_eq!(column(field, words()).unwrap(), [5, MISSING, 7]);
        let field = || Field::new("x", FieldKind::Int64).missing(["-1"]);
        let numbers = Arc::new(Int64Array::from(vec![-1, 1, -11]));
        assert_eq!(column(field(), numbers).unwrap(), [MISSING, 1, -11]);
        let doubles = Arc::new(Float64Array::from(vec![-1.0, 4.0]));
        assert_eq!(column(field(), doubles).unwrap(), [MISSING, 4]);
        let field = Field::new("x", FieldKind::Bytes).missing(["NA"]);
        let found =
            column(field, Arc::new(StringArray::from(vec![Some("NA"), None, Some("b")]))).unwrap();
        assert_eq!(found[0], found[1]);
        let negative =
            column(Field::new("x", FieldKind::Uint64), Arc::new(Int64Array::from(vec![-1])));
        assert!(negative.unwrap_err().to_string().contains("does not fit into 64 bits"));
    }
}

/// Regression test: labels such as `true` and `yes`, and numbers with a plus, made their rows bad,
/// and no setting could change that.
#[test]
fn words_and_a_plus_are_read_as_numbers() {
    for kind in [FieldKind::Int32, FieldKind::Int64] {
        let field = || Field::new("x", kind).words([("true", 1), ("false", 0), ("no-click", -1)]);
        let values = ["true", "7", "false", "no-click", "-2"];
        assert_eq!(one(field(), &values).unwrap(), [1, 7, 0, -1, -2], "{kind:?}");
        let wrong = one(field(), &["True"]).unwrap_err().to_string();
        assert!(wrong.contains("\"True\""), "{wrong}");
        let advised = one(Field::new("x", kind), &["true"]).unwrap_err().to_string();
        assert!(advised.contains("`words`"), "{advised}");
        // A word can't mean a number and a missing value.
        assert!(one(field().missing(["true"]), &["1"]).is_err());
    }
    let float = || Field::new("x", FieldKind::Float32);
    let plain = one(float(), &["2", "0", "-1.5"]).unwrap();
    let worded = float().words([("two", 2), ("zero", 0)]);
    assert_eq!(one(worded, &["two", "zero", "-1.5"]).unwrap(), plain);
    let unsigned = Field::new("x", FieldKind::Uint64).words([("yes", 1)]);
    assert_eq!(one(unsigned, &["yes", "+3"]).unwrap(), [1, 3]);
    for kind in [FieldKind::Int32, FieldKind::Int64, FieldKind::Uint64] {
        let field = || Field::new("x", kind);
        assert_eq!(one(field(), &["+1", "2", "+0003"]).unwrap(), [1, 2, 3], "{kind:?}");
        assert_eq!(one(field().whole_floats(), &["+5.0", "+1e2"]).unwrap(), [5, 100]);
        for wrong in ["+", "++1", "+-1", "1+", "+ 1", "+5.0", "+99999999999999999999"] {
            let error = one(field(), &[wrong]).unwrap_err();
            assert!(matches!(error, Error::BadRow(_)), "{kind:?} {wrong}: {error}");
        }
    }
    for (field, told) in [
        (Field::new("x", FieldKind::Bytes).words([("a", 1)]), "is Bytes"),
        (Field::new("x", FieldKind::Hex32).words([("x", 1)]), "is Hex32"),
        (Field::new("x", FieldKind::Int32).words([("12", 1)]), "a number or as missing already"),
        (Field::new("x", FieldKind::Int32).words([("big", 1 << 40)]), "does not fit"),
        (Field::new("x", FieldKind::Uint64).words([("minus", -1)]), "does not fit"),
    ] {
        let error = one(field, &["1"]).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{error}");
        assert!(error.to_string().contains(told), "{told}: {error}");
    }
    let json = r#"{"name": "x", "kind": "int32", "words": {"yes": 1}}"#;
    let field: Field = serde_json::from_str(json).unwrap();
    assert_eq!(field, Field::new("x", FieldKind::Int32).words([("yes", 1)]));
}
