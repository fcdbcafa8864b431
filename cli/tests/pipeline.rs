//! Tests of `embank pipeline` and `embank serve` as users and scripts start them.
#![expect(clippy::unwrap_used, reason = "a test")]

mod forks;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::forks::{no_forks, spawn};

/// Runs `embank pipeline` in a directory.
fn pipeline(dir: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    output_of(command.current_dir(dir).arg("pipeline").args(arguments.split_whitespace()))
}

fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(command).wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

/// Runs `embank` in a directory with `rows` in a pipe as its standard input.
fn with_rows(dir: &Path, rows: &str, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.current_dir(dir).args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command);
    // Fails if the command has ended because it refuses its arguments.
    let _ = child.stdin.take().unwrap().write_all(rows.as_bytes());
    child.wait_with_output().unwrap()
}

/// Makes a directory with the Criteo pipeline and its rows, one of them bad. Row `n` has the label
/// `n % 2`.
fn criteo() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let printed = pipeline(dir.path(), "criteo --modulus 100");
    assert!(printed.status.success(), "{}", text(&printed));
    fs::write(dir.path().join("spec.json"), &printed.stdout).unwrap();
    let row = |n: u32| format!("{}{}{}\n", n % 2, "\t1".repeat(13), format!("\t{n:x}").repeat(26));
    let good: String = (0..40).map(row).collect();
    fs::write(dir.path().join("good.tsv"), &good).unwrap();
    fs::write(dir.path().join("bad.tsv"), format!("{good}1\t2\n")).unwrap();
    dir
}

fn files(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.unwrap().file_name().to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

#[test]
fn rows_become_files_of_each_format() {
    let dir = criteo();
    let run = |arguments: &str| {
        let output = pipeline(dir.path(), &format!("run spec.json {arguments} --json"));
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = run("good.tsv good.tsv --out out --format packed --threads 2");
    assert_eq!((&report["rows"], &report["bad_rows"]), (&80.into(), &0.into()));
    assert_eq!(report["vocabularies"].as_array().unwrap().len(), 26);
    assert_eq!(report["vocabularies"][25]["values"], 40);
    let packed = fs::read(dir.path().join("out/row.bin")).unwrap();
    assert_eq!(packed.len(), 80 * 160);
    // Reads the label of the second row and its last category.
    let number = |at: usize| u32::from_le_bytes(packed[at * 4..at * 4 + 4].try_into().unwrap());
    assert_eq!((number(40), number(79)), (1, 1));

    run("good.tsv good.tsv --out out --format npy");
    let npy = fs::read(dir.path().join("out/row.npy")).unwrap();
    let header = String::from_utf8_lossy(&npy[10..128]).into_owned();
    assert!(header.contains("'<u4'") && header.contains("'shape': (80, 40)"), "{header}");
    assert_eq!(npy[128..], packed);

    if cfg!(feature = "parquet") {
        run("good.tsv good.tsv --out out --format parquet");
        assert!(fs::read(dir.path().join("out/row.parquet")).unwrap().starts_with(b"PAR1"));
    }
    // The name `row.bin` says that this input has packed rows.
    let spec = fs::read_to_string(dir.path().join("spec.json")).unwrap();
    fs::write(dir.path().join("spec.json"), spec.replace("\"logarithm\"", "\"float\"")).unwrap();
    assert_eq!(run("out/row.bin --out again")["rows"], 80);
}

#[test]
fn the_summary_tells_bad_rows_and_vocabularies() {
    let dir = criteo();
    let output = pipeline(dir.path(), "run spec.json bad.tsv --out out --skip-bad-rows");
    assert!(output.status.success(), "{}", text(&output));
    for told in
        ["rows          40, ", "bad rows      1\n  bad.tsv:41: has 2 fields", "C26", "row.npy"]
    {
        assert!(text(&output).contains(told), "{told}: {}", text(&output));
    }
}

#[test]
fn failures_name_the_thing_and_the_cure_and_leave_no_files() {
    let dir = criteo();
    fs::write(dir.path().join("broken.json"), "{\"fields\": 3}").unwrap();
    fs::write(dir.path().join("cut.tsv.gz"), [0x1F, 0x8B, 8, 0, 0]).unwrap();
    for (arguments, told) in [
        (
            "spec.json bad.tsv",
            "bad.tsv:41: has 2 fields, and the pipeline's rows have 40, separated by \"\\t\"; --skip-bad",
        ),
        ("broken.json good.tsv", "broken.json; `embank pipeline criteo` prints one"),
        ("none.json good.tsv", "none.json; `embank pipeline criteo` prints one"),
        ("spec.json none.tsv", "none.tsv"),
        ("spec.json good.tsv --threads 0", "1 to 4096 threads, not 0"),
        ("spec.json cut.tsv.gz", "cut.tsv.gz: it can't be decompressed"),
        ("spec.json good.tsv --input-format packed", "good.tsv"),
        ("spec.json", "INPUTS"),
    ] {
        let output = pipeline(dir.path(), &format!("run {arguments} --out out"));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
        assert!(files(&dir.path().join("out")).is_empty(), "{arguments}");
    }
    assert_eq!(pipeline(dir.path(), "criteo --modulus 0").status.code(), Some(2));
}

#[test]
fn csv_by_its_name_with_header_and_quotes() {
    let dir = tempfile::tempdir().unwrap();
    let spec = r#"{
        "fields": [{"name": "n", "kind": "int32"}, {"name": "word", "kind": "bytes"}],
        "columns": [{"name": "n", "from": {"field": "n"}, "operators": [{"fill_missing": 0}]}],
        "outputs": [{"name": "out", "columns": ["n"], "dtype": "i64"}]
    }"#;
    fs::write(dir.path().join("spec.json"), spec).unwrap();
    fs::write(dir.path().join("t.csv"), "n,word\n5,\"a,b\"\n6,c\n").unwrap();
    let output = pipeline(dir.path(), "run spec.json t.csv --out out");
    assert!(output.status.success(), "{}", text(&output));
    let npy = fs::read(dir.path().join("out/out.npy")).unwrap();
    assert_eq!(npy[128..], [5_u64.to_le_bytes(), 6_u64.to_le_bytes()].concat());
    // With the wrong settings, the header and the quoted row are bad rows.
    let output = pipeline(
        dir.path(),
        "run spec.json t.csv --out out --no-header --no-quotes --skip-bad-rows",
    );
    assert!(text(&output).contains("bad rows      2\n"), "{}", text(&output));
    let output = pipeline(dir.path(), "run spec.json t.csv --out out --format packed");
    assert!(text(&output).contains("32 bits; make it Bits32"), "{}", text(&output));
}

/// The names of the inputs decide their format, in upper or lower case.
#[test]
fn formats_by_name_separators_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let spec = r#"{
        "fields": [{"name": "n", "kind": "int32", "missing": ["NA"]}],
        "columns": [{"name": "n", "from": {"field": "n"}, "operators": [{"fill_missing": 7}]}],
        "outputs": [{"name": "out", "columns": ["n"], "dtype": "i64"}]
    }"#;
    let path = |name: &str| dir.path().join(name);
    fs::write(path("spec.json"), spec).unwrap();
    fs::write(path("a.CSV"), "word,n\n\"x,y\",5\n").unwrap();
    fs::write(path("b.tsv"), "6\n").unwrap();
    fs::write(path("movies.dat"), "1::n\n2::8\n").unwrap();
    fs::create_dir(path("parts")).unwrap();
    fs::write(path("parts/2.csv"), "n\nNA\n").unwrap();
    fs::write(path("parts/1.csv"), "word,n\nx,3\n").unwrap();
    fs::write(path("parts/_SUCCESS"), "").unwrap();
    let two =
        spec.replace("\"fields\": [", "\"fields\": [{\"name\": \"word\", \"kind\": \"bytes\"},");
    fs::write(path("two.json"), two).unwrap();
    let run = |arguments: &str, rows: &[u64]| {
        let output = pipeline(dir.path(), &format!("run spec.json {arguments} --out out"));
        assert!(output.status.success(), "{arguments}: {}", text(&output));
        let npy = fs::read(path("out/out.npy")).unwrap();
        let rows: Vec<u8> = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        assert_eq!(npy[128..], rows, "{arguments}");
    };
    run("a.CSV", &[5]);
    run("b.tsv", &[6]);
    run("parts", &[3, 7]);
    run("movies.dat --separator :: --header names", &[8]);
    for (arguments, told) in [
        ("a.CSV b.tsv", "a.CSV is Csv and b.tsv is Tsv by their names"),
        ("b.tsv --header names", "b.tsv:1: the header does not fit: it has no column \"n\""),
    ] {
        let output = pipeline(dir.path(), &format!("run spec.json {arguments} --out out"));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
    }
    // Regression test: a run took this text with commas for TSV, left out every row, and succeeded
    // without rows. Now the error names the options that help.
    fs::write(path("commas.txt"), "n,word\n5,a\n6,b\n").unwrap();
    for (skips, cures) in [
        ("", ["`--input-format csv`", "--skip-bad-rows leaves out single"]),
        (" --skip-bad-rows", ["`--input-format csv`", "`--bad-rows-max 1`"]),
    ] {
        let output = pipeline(dir.path(), &format!("run two.json commas.txt --out out{skips}"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(cures.iter().all(|cure| text(&output).contains(cure)), "{}", text(&output));
    }
    // A run ends if the share of bad rows exceeds the limit.
    fs::write(path("bad.tsv"), "5.0\n6\n".repeat(6000)).unwrap();
    let output = pipeline(dir.path(), "run spec.json bad.tsv --out out --skip-bad-rows");
    assert!(text(&output).contains("bad.tsv:1:1: field \"n\", \"5.0\""), "{}", text(&output));
    let output =
        pipeline(dir.path(), "run spec.json bad.tsv --out out --skip-bad-rows --bad-rows-max 1");
    assert!(text(&output).contains("bad rows      6,000"), "{}", text(&output));
}

/// The process of a server. Dropping a `Server` ends the process.
#[cfg(feature = "flight")]
struct Server(std::process::Child);

#[cfg(feature = "flight")]
impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[cfg(feature = "flight")]
fn a_server_prints_its_address_and_listens_there() {
    use std::io::{BufRead, BufReader};
    let dir = criteo();
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.current_dir(dir.path()).args(["serve", "spec.json", "good.tsv", "--batch-rows", "7"]);
    let mut server = Server(spawn(command.stdout(Stdio::piped())));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("serving at grpc://").unwrap().trim_end();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    drop(std::net::TcpStream::connect(address).unwrap());

    for (arguments, told) in [
        (format!("spec.json good.tsv --listen {address}"), "listen on 127.0.0.1"),
        ("spec.json good.tsv --batch-rows 0".to_owned(), "batch_rows is 0"),
        ("spec.json none.tsv".to_owned(), "none.tsv"),
        ("none.json good.tsv".to_owned(), "none.json"),
        ("spec.json good.tsv --message-bytes 3x".to_owned(), "no known unit"),
        ("spec.json good.tsv --bank none".to_owned(), "none"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
        command.current_dir(dir.path()).arg("serve").args(arguments.split_whitespace());
        let output = output_of(&mut command);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
    }
}

/// Makes a directory with a pipeline that gives ids to words and numbers, and two input files. The
/// second file has a new word.
fn words() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let spec = r#"{
        "fields": [{"name": "word", "kind": "bytes"}, {"name": "n", "kind": "int32"}],
        "columns": [
            {"name": "word", "from": {"field": "word"}, "operators": [{"vocabulary": "word"}]},
            {"name": "n", "from": {"field": "n"}, "operators": [{"modulus": 50}, {"vocabulary": "small"}]}
        ],
        "outputs": [{"name": "ids", "columns": ["word", "n"], "dtype": "i64"}]
    }"#;
    let spec = spec.replace("\"kind\": ", "\"required\": true, \"kind\": ");
    fs::write(dir.path().join("spec.json"), spec).unwrap();
    fs::write(dir.path().join("one.tsv"), "red\t7\ngreen\t8\nred\t7\n").unwrap();
    fs::write(dir.path().join("two.tsv"), "green\t9\nblue\t7\n").unwrap();
    dir
}

fn ids(dir: &Path) -> Vec<i64> {
    let npy = fs::read(dir.join("out/ids.npy")).unwrap();
    npy[128..].chunks(8).map(|id| i64::from_le_bytes(id.try_into().unwrap())).collect()
}

#[test]
fn a_bank_keeps_the_vocabularies_from_run_to_run() {
    let dir = words();
    let run = |arguments: &str| {
        let output =
            pipeline(dir.path(), &format!("run spec.json {arguments} --out out --bank bank"));
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    run("one.tsv");
    assert_eq!(ids(dir.path()), [0, 0, 1, 1, 0, 0]);
    let told = run("two.tsv");
    assert_eq!(ids(dir.path()), [1, 2, 2, 0]);
    assert!(told.contains("checkpoint    2\n") && told.contains("word             3\n"), "{told}");

    // A failed run leaves the bank and the trainer's blob unchanged.
    {
        let _no_forks = no_forks();
        let bank = embank::Bank::open(dir.path().join("bank"), Default::default()).unwrap();
        bank.checkpoint(b"the trainer's").unwrap();
    }
    fs::write(dir.path().join("bad.tsv"), "new\t1\nrow\n").unwrap();
    let failed = pipeline(dir.path(), "run spec.json bad.tsv --out out --bank bank");
    assert_eq!(failed.status.code(), Some(2));
    assert!(text(&failed).contains("bad.tsv:2"), "{}", text(&failed));
    let told = run("one.tsv --json");
    let report: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&report["checkpoint"], &report["vocabularies"][1]["values"]),
        (&4.into(), &3.into())
    );
    let bank = embank::Bank::open(dir.path().join("bank"), Default::default()).unwrap();
    assert_eq!(bank.recovered().unwrap().blob, b"the trainer's");
}

/// `-` is standard input, at its place in the order of the inputs.
#[test]
fn rows_come_from_standard_input() {
    use std::io::{Seek as _, SeekFrom};
    let dir = words();
    let run = |rows: &str, inputs: &str| {
        let arguments = format!("pipeline run spec.json {inputs} --out out --bank bank --json");
        let output = with_rows(dir.path(), rows, &arguments);
        assert!(output.status.success(), "{inputs}: {}", text(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["input_bytes"].as_u64().unwrap()
    };
    assert_eq!(run("red\t7\ngreen\t8", "-"), 13);
    assert_eq!(ids(dir.path()), [0, 0, 1, 1]);
    run("white\t8\n", "two.tsv - one.tsv");
    assert_eq!(ids(dir.path()), [1, 2, 2, 0, 3, 1, 0, 0, 1, 1, 0, 0]);
    run("x,n,word\n1,7,blue\n", "- --input-format csv");
    assert_eq!(ids(dir.path()), [2, 0]);

    // A file is read from its present place on. A socket, which cannot be opened by a name, is read
    // too.
    fs::write(dir.path().join("rest.tsv"), "read before\nblue\t9\n").unwrap();
    let mut file = fs::File::open(dir.path().join("rest.tsv")).unwrap();
    file.seek(SeekFrom::Start(12)).unwrap();
    let (socket, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
    writer.write_all(b"blue\t9\n").unwrap();
    drop(writer);
    for stdin in [Stdio::from(file), Stdio::from(std::os::fd::OwnedFd::from(socket))] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
        command.current_dir(dir.path()).args(["pipeline", "run", "spec.json", "-", "--out=out"]);
        command.arg("--bank=bank").stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = spawn(&mut command).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(ids(dir.path()), [2, 2]);
    }
}

/// What standard input cannot be is refused by its name, with the cure.
#[test]
fn what_standard_input_cannot_be_is_refused() {
    let dir = words();
    let spec = fs::read_to_string(dir.path().join("spec.json")).unwrap();
    let counts =
        r#""vocabularies": [{"name": "small", "min_count": 2, "first_id": 1, "unknown_id": 0}]}"#;
    let spec = format!("{}, {counts}", spec.trim_end().strip_suffix('}').unwrap());
    fs::write(dir.path().join("counts.json"), spec).unwrap();
    let run = "pipeline run spec.json --out out --bank bank";
    let mut refused = vec![
        (
            format!("{run} - one.tsv -"),
            "standard input is given 2 times, and can be read only once",
        ),
        (
            "pipeline run counts.json - --out out --bank bank".to_owned(),
            "\"standard input\" can be read only once: make the vocabulary of files first",
        ),
        ("pipeline explain spec.json -".to_owned(), "standard input is no file, and `explain`"),
    ];
    if cfg!(feature = "parquet") {
        let cure = "standard input: it is read once, from its beginning to its end, and Parquet and Arrow files are \
                    read from several places: write it to a file first";
        refused.push((format!("{run} - --input-format columns"), cure));
    }
    if cfg!(feature = "flight") {
        let printed = pipeline(dir.path(), "criteo");
        fs::write(dir.path().join("criteo.json"), &printed.stdout).unwrap();
        refused.push((
            "serve criteo.json -".to_owned(),
            "\"standard input\" can be read only once: write the pipe to a file first",
        ));
    }
    for (arguments, told) in refused {
        let output = with_rows(dir.path(), "red\t7\n", &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
        assert!(files(&dir.path().join("out")).is_empty(), "{arguments}");
    }
    let output = with_rows(dir.path(), "red\t7\nred\n", &format!("{run} -"));
    assert!(text(&output).contains("standard input:2: has 1 field"), "{}", text(&output));
}

/// A run with `--no-learn` inserts no words, and works while a trainer has the bank open.
#[test]
fn a_run_that_is_not_to_learn_leaves_the_bank_as_it_is() {
    let dir = words();
    let without = fs::read_to_string(dir.path().join("spec.json")).unwrap();
    let setting = |name| format!(r#"{{"name": "{name}", "unknown_id": 0, "first_id": 1}}"#);
    let spec = without.trim_end().strip_suffix('}').unwrap().to_owned();
    let spec = format!("{spec}, \"vocabularies\": [{}, {}]}}", setting("word"), setting("small"));
    fs::write(dir.path().join("spec.json"), spec).unwrap();
    let run =
        |arguments: &str| pipeline(dir.path(), &format!("run spec.json {arguments} --out out"));
    assert!(run("one.tsv --bank bank").status.success());
    // The run also works while a trainer has the bank open.
    let bank = embank::Bank::open(dir.path().join("bank"), Default::default()).unwrap();
    let output = run("two.tsv --bank bank --no-learn --json");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(ids(dir.path()), [2, 0, 0, 1]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["vocabularies"][1]["values"], 2);
    assert!(report.get("checkpoint").is_none(), "{report}");
    assert_eq!(bank.open_vocabulary("word").unwrap().len(), 2);
    drop(bank);
    for (arguments, told) in
        [("two.tsv --no-learn", "--bank"), ("two.tsv --bank none --no-learn", "none")]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(told), "{}", text(&output));
    }
    // Without an `unknown_id`, the first unknown value ends the run.
    fs::write(dir.path().join("spec.json"), without).unwrap();
    assert!(run("one.tsv --bank other").status.success());
    let output = run("two.tsv --bank other --no-learn");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let told = text(&output);
    assert!(
        told.contains("column \"n\" has value 9") || told.contains("has value \"blue\""),
        "{told}"
    );
    assert!(told.contains("unknown_id"), "{told}");
}

#[test]
fn a_bank_with_a_threshold() {
    let dir = words();
    let spec = fs::read_to_string(dir.path().join("spec.json")).unwrap();
    let settings = r#"{"name": "word", "min_count": 2, "unknown_id": 0, "first_id": 1}"#;
    let spec = spec.trim_end().strip_suffix('}').unwrap().to_owned();
    let spec = format!("{spec}, \"vocabularies\": [{settings}]}}");
    fs::write(dir.path().join("spec.json"), spec).unwrap();
    for _ in 0..2 {
        let output = pipeline(dir.path(), "run spec.json one.tsv two.tsv --out out --bank bank");
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(ids(dir.path()), [1, 0, 2, 1, 1, 0, 2, 2, 0, 0]);
    }
}

#[test]
fn without_a_bank_values_of_any_range_are_refused() {
    let dir = words();
    for command in ["run spec.json one.tsv --out out", "explain spec.json one.tsv"] {
        let output = pipeline(dir.path(), command);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("bank"), "{}", text(&output));
    }
}

#[test]
fn explain_predicts_and_tries_and_writes_nothing_but_the_plot() {
    let dir = criteo();
    let rows = fs::read_to_string(dir.path().join("good.tsv")).unwrap().repeat(200);
    fs::write(dir.path().join("good.tsv"), rows).unwrap();
    let before = files(dir.path()).len();
    let output = pipeline(dir.path(), "explain spec.json good.tsv --threads 2 --plot p.svg");
    assert!(output.status.success(), "{}", text(&output));
    for told in [
        "stage ",
        "decode ",
        "<- slowest",
        "bound by ",
        "8,000 rows",
        "read alone at ",
        "\ntraced ",
        "\npredicted ",
        "\nmeasured ",
        "% of what was predicted",
    ] {
        assert!(text(&output).contains(told), "{told}: {}", text(&output));
    }
    let picture = fs::read_to_string(dir.path().join("p.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    for drawn in ["spec.json", "decode", "concatenate", "&lt;- slowest", "predicted", "measured"] {
        assert!(picture.contains(drawn), "{drawn}: {picture}");
    }
    assert_eq!(files(dir.path()).len(), before + 1);

    for more in ["", " --from-disk", " --cores 64 --skip-bad-rows"] {
        let output = pipeline(dir.path(), &format!("explain spec.json good.tsv --json{more}"));
        assert!(output.status.success(), "{}", text(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["rows"], report["stages"].as_array().unwrap().len()),
            (&8000.into(), 8)
        );
        assert_eq!(report["predicted"]["threads"], report["measured"]["threads"]);
        assert!(report["measured"]["rows_per_second"].as_f64().unwrap() > 0.0);
        assert!(report["read_bytes_per_second"].as_f64().unwrap() > 0.0);
    }
    let output = pipeline(dir.path(), "explain spec.json bad.tsv");
    assert!(text(&output).contains("--skip-bad-rows"), "{}", text(&output));
    let output = pipeline(dir.path(), "explain spec.json .");
    assert!(text(&output).contains("is no file"), "{}", text(&output));
}

#[test]
fn explain_takes_thresholds_and_rows_that_are_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let spec = r#"{
        "fields": [{"name": "n", "kind": "int32"}],
        "columns": [{"name": "n", "from": {"field": "n"}, "operators": [
            {"fill_missing": 0}, {"modulus": 50}, {"vocabulary": "n"}]}],
        "outputs": [{"name": "out", "columns": ["n"], "dtype": "i32"}],
        "vocabularies": [{"name": "n", "min_count": 2, "unknown_id": 0, "first_id": 1}]
    }"#;
    fs::write(dir.path().join("spec.json"), spec).unwrap();
    let rows: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(dir.path().join("rows.bin"), rows).unwrap();
    let output = pipeline(dir.path(), "explain spec.json rows.bin --json");
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"], 20_000);
}
