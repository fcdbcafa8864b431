//! `embank pipeline` and `embank serve` as people and scripts start it.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `embank pipeline` in a directory.
fn pipeline(dir: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.current_dir(dir).arg("pipeline").args(arguments.split_whitespace());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

/// A directory with the Criteo pipeline and rows of which one is bad; row `n` has the label `n % 2`.
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
    // The label of the second row, and its last category.
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
    // Packed rows are an input too, by their name.
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
            "bad.tsv:41: has 2 fields, and the pipeline's rows have 40; --skip-bad",
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
    // As it is not: the header is a bad row, and so is the quoted one.
    let output = pipeline(
        dir.path(),
        "run spec.json t.csv --out out --no-header --no-quotes --skip-bad-rows",
    );
    assert!(text(&output).contains("bad rows      2\n"), "{}", text(&output));
    let output = pipeline(dir.path(), "run spec.json t.csv --out out --format packed");
    assert!(text(&output).contains("32 bits; make it Bits32"), "{}", text(&output));
}

/// A server's process, ended with the test.
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
    let mut server = Server(command.stdout(std::process::Stdio::piped()).spawn().unwrap());
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
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
        command.current_dir(dir.path()).arg("serve").args(arguments.split_whitespace());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
    }
}
