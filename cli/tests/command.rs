//! Tests of the program as users and scripts start it.

#![expect(clippy::unwrap_used, reason = "a test")]

mod forks;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use embank::{Bank, BankOptions, Optimizer, TableConfig, Tracking};
use serde_json::Value;

use crate::forks::{no_forks, spawn};

const ROWS: u64 = 500;

fn embank(dir: &Path, arguments: &str) -> Output {
    let mut words = arguments.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    output_of(command.args(words.next()).arg(dir).args(words))
}

/// Runs `embank` with a file as its last argument. The file's name may contain any bytes.
fn embank_with_file(dir: &Path, arguments: &str, file: &Path) -> Output {
    let mut words = arguments.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    output_of(command.args(words.next()).arg(dir).args(words).arg(file))
}

fn output_of(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(command).wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

/// Returns the JSON output and the exit status of a command.
fn json(dir: &Path, arguments: &str) -> (Value, i32) {
    let output = embank(dir, &format!("{arguments} --json"));
    let found = serde_json::from_slice(&output.stdout);
    (found.unwrap_or_else(|_| panic!("{}", text(&output))), output.status.code().unwrap())
}

/// Makes a bank with two checkpoints and two tables: `user` of dim 3 with Adagrad, and `item`.
fn bank() -> tempfile::TempDir {
    let _no_forks = no_forks();
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
    let bank = Bank::open(dir.path(), options).unwrap();
    let user = TableConfig::new(3).optimizer(Optimizer::adagrad(0.5));
    let user = bank.table("user", user).unwrap();
    let item = bank.table("item", TableConfig::new(2)).unwrap();
    for step in 1..=2 {
        let keys: Vec<u64> = (0..ROWS).collect();
        let row = |key: u64| [key as f32, step as f32, -1.5];
        let rows: Vec<f32> = keys.iter().flat_map(|&key| row(key)).collect();
        user.put(&keys, &rows).unwrap();
        item.put(&[7], &[0.25, step as f32]).unwrap();
        bank.checkpoint(format!("step {step}").as_bytes()).unwrap();
    }
    dir
}

fn segment(dir: &Path) -> PathBuf {
    fs::read_dir(dir.join("log")).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn stat_tells_tables_rows_and_space() {
    let dir = bank();
    let output = embank(dir.path(), "stat");
    assert!(output.status.success(), "{}", text(&output));
    for expected in ["rows          501", "user", "Adagrad", "times the rows"] {
        assert!(text(&output).contains(expected), "{expected}: {}", text(&output));
    }
    let (report, status) = json(dir.path(), "stat");
    assert_eq!((status, &report["rows"]), (0, &Value::from(ROWS + 1)));
    assert_eq!(report["tables"][0]["dim"], 3);
    // A row of dim 3 with Adagrad has a value of 24 bytes and a record of 56 bytes.
    assert_eq!(report["tables"][0]["row_bytes"], 56 * ROWS);
    let live = report["row_bytes"].as_f64().unwrap();
    let times = report["log_disk_bytes"].as_f64().unwrap() / live;
    assert!((report["space_amplification"].as_f64().unwrap() - times).abs() < 1e-9);
}

#[test]
fn checkpoints_are_listed() {
    let dir = bank();
    let output = embank(dir.path(), "checkpoints");
    assert!(output.status.success() && text(&output).lines().count() == 3, "{}", text(&output));
    let (report, status) = json(dir.path(), "checkpoints");
    assert_eq!(status, 0);
    let numbers: Vec<_> = report["checkpoints"].as_array().unwrap().iter().collect();
    assert_eq!((&numbers[0]["number"], &numbers[1]["number"]), (&1.into(), &2.into()));
    assert_eq!(numbers[1]["blob_bytes"], "step 2".len());
}

#[test]
fn verify_says_by_its_status_whether_the_bank_is_whole() {
    let dir = bank();
    let output = embank(dir.path(), "verify");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("no damage"), "{}", text(&output));

    let log = segment(dir.path());
    let mut bytes = fs::read(&log).unwrap();
    bytes[100] ^= 4;
    fs::write(&log, &bytes).unwrap();
    let output = embank(dir.path(), "verify");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("page 0"), "{}", text(&output));
    assert!(text(&output).contains("user"), "{}", text(&output));
    let (report, status) = json(dir.path(), "verify --checkpoint 2");
    assert_eq!((status, &report["clean"]), (1, &Value::from(false)));
    assert_eq!(report["damage"][0]["page"], 0);
    assert_eq!(report["damage"][0]["file"], log.to_str().unwrap());
    assert_eq!(fs::read(&log).unwrap(), bytes, "verify changed the log");

    for cannot in
        [embank(&dir.path().join("log"), "verify"), embank(dir.path(), "verify --checkpoint 9")]
    {
        assert_eq!(cannot.status.code(), Some(2), "{}", text(&cannot));
    }
}

#[test]
fn dump_prints_rows_of_any_checkpoint() {
    let dir = bank();
    let output = embank(dir.path(), "dump user --key 7 --key 99999 --key 3 --state");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output), "7 7 2 -1.5 | 0 0 0\n3 3 2 -1.5 | 0 0 0\n");

    let output = embank(dir.path(), "dump user --range 10..13 --format jsonl --checkpoint 1");
    let mut lines: Vec<Value> =
        text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|row| row["key"].as_u64());
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2], serde_json::json!({"key": 12, "vector": [12.0, 1.0, -1.5]}));

    let (all, status) = json(dir.path(), "dump user");
    assert_eq!((status, all.as_array().unwrap().len() as u64), (0, ROWS));
    let (some, _) = json(dir.path(), "dump user --limit 4");
    assert_eq!(some.as_array().unwrap().len(), 4);
    assert_eq!(embank(dir.path(), "dump nothing").status.code(), Some(2));

    let log = segment(dir.path());
    let mut bytes = fs::read(&log).unwrap();
    let last = bytes.len() - 1;
    bytes[last / 2..].fill(0xFF);
    fs::write(&log, bytes).unwrap();
    let output = embank(dir.path(), "dump user");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn a_running_writer_is_no_hindrance() {
    let dir = bank();
    let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
    let _open = Bank::open(dir.path(), options).unwrap();
    let dry_run = "evict item --norm-below 3 --dry-run";
    for command in ["stat", "checkpoints", "verify", "dump user --limit 1", dry_run] {
        let output = embank(dir.path(), command);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", text(&output));
    }
    for command in ["compact", "evict item --norm-below 3"] {
        let output = embank(dir.path(), command);
        assert_eq!(output.status.code(), Some(2), "{command}: {}", text(&output));
        assert!(
            text(&output).contains("is open for writing in process"),
            "{command}: {}",
            text(&output)
        );
    }
}

#[test]
fn compact_gives_space_back_and_keeps_rows_and_blob() {
    let dir = bank();
    let (before, _) = json(dir.path(), "stat");
    let (report, status) = json(dir.path(), "compact --keep 1");
    assert_eq!((status, &report["checkpoint"]), (0, &Value::from(3)));
    let (after, _) = json(dir.path(), "stat");
    assert_eq!(after["checkpoints"], serde_json::json!([3]));
    assert_eq!(after["rows"], before["rows"]);
    let disk = |of: &Value| of["log_disk_bytes"].as_u64().unwrap();
    assert!(disk(&after) <= disk(&before), "{before} {after}");
    {
        let _no_forks = no_forks();
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
        let bank = Bank::open(dir.path(), options).unwrap();
        assert_eq!(bank.recovered().unwrap().blob, b"step 2");
    }
    assert_eq!(embank(dir.path(), "verify").status.code(), Some(0));
}

#[test]
fn repair_makes_a_bank_of_what_is_intact() {
    let dir = bank();
    let elsewhere = tempfile::tempdir().unwrap();
    let new = |name: &str| elsewhere.path().join(name);
    let (whole, status) = json(dir.path(), &format!("repair {}", new("whole").display()));
    assert_eq!((status, &whole["complete"]), (0, &Value::from(true)));
    let rows = |dir: &Path| {
        let (all, _) = json(dir, "dump user --state");
        let mut all = all.as_array().unwrap().clone();
        all.sort_by_key(|row| row["key"].as_u64());
        all
    };
    assert_eq!(rows(&new("whole")), rows(dir.path()));

    let index = dir.path().join("checkpoints/0000000002");
    for file in fs::read_dir(index).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("index") {
            fs::write(file, "no index").unwrap();
        }
    }
    let (report, status) = json(dir.path(), &format!("repair {}", new("by-log").display()));
    assert_eq!((status, &report["rows_by"]), (1, &Value::from("log")));
    assert_eq!(report["tables"][0]["lost"], 0);
    assert_eq!(report["blob_bytes"], "step 2".len());
    assert_eq!(rows(&new("by-log")), rows(&new("whole")));
    assert_eq!(embank(&new("by-log"), "verify").status.code(), Some(0));

    let again = embank(dir.path(), &format!("repair {}", new("by-log").display()));
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(text(&again).contains("not empty"), "{}", text(&again));
    let output = embank(dir.path(), &format!("repair {}", new("words").display()));
    assert!(text(&output).contains("rows by the log"), "{}", text(&output));
}

/// Makes the manifest of checkpoint 2 one of a newer format, and corrects its checksum.
fn raise_format(dir: &Path) -> PathBuf {
    let path = dir.join("checkpoints/0000000002/manifest");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&1000_u32.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    path
}

/// A user who took the status of damage for an answer would repair a bank that is whole, and lose
/// what only the newer format has.
#[test]
fn a_bank_of_a_newer_format_is_not_called_damaged() {
    let dir = bank();
    let path = raise_format(dir.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let new = elsewhere.path().join("new");
    let repair = format!("repair {}", new.display());
    for command in ["verify", "stat", "checkpoints", "dump user", &repair] {
        let output = embank(dir.path(), command);
        assert_eq!(output.status.code(), Some(2), "{command}: {}", text(&output));
        let path = path.to_str().unwrap();
        for part in [path, "version 1000", "not damaged", "use a newer Embank"] {
            assert!(text(&output).contains(part), "{command}: {}", text(&output));
        }
        assert!(!text(&output).contains("no damage"), "{command}: {}", text(&output));
    }
    assert!(!new.exists());
}

#[test]
fn a_plan_needs_no_bank() {
    let plan = |arguments: &str| {
        let words = arguments.split_whitespace();
        output_of(Command::new(env!("CARGO_BIN_EXE_embank")).arg("plan").args(words))
    };
    let output = plan("--rows 10M --dim 16 --optimizer adagrad --updates-per-second 10k");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("written a day"), "{}", text(&output));
    let output = plan("--rows 10M --dim 16 --json");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["record_bytes"], 96);
    assert_eq!(plan("--rows 0 --dim 16").status.code(), Some(2));
    let item = "--table item,rows=1M,dim=16,shard=1";
    let output = plan(&format!("--shards 2 --json --table user,rows=10M,dim=16 {item}"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<_> = report["shards"].as_array().unwrap().iter().map(|of| &of["rows"]).collect();
    assert_eq!(rows, [5_000_000, 6_000_000]);
    assert_eq!(report["shards"][1]["whole_tables"], serde_json::json!(["item"]));
    for refused in [item, "--shards 2 --rows 1M", "--shards 1 --table item,rows=1M,dim=16,shard=1"]
    {
        assert_eq!(plan(refused).status.code(), Some(2), "{refused}");
    }
    let most = format!("--shards 2 --checkpoints-kept {} --table item,rows=1M,dim=4", u64::MAX);
    assert!(plan(&most).status.success());
}

#[test]
fn copy_makes_a_bank_of_a_checkpoint() {
    let dir = bank();
    let to = tempfile::tempdir().unwrap();
    let arguments = format!("copy {} --checkpoint 1", to.path().display());
    let (made, status) = json(dir.path(), &arguments);
    assert_eq!((status, &made["checkpoint"]), (0, &1.into()));
    assert!(made["linked_bytes"].as_u64().unwrap() + made["copied_bytes"].as_u64().unwrap() > 0);
    let (listed, _) = json(to.path(), "checkpoints");
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 1);
    assert_eq!(embank(to.path(), "verify").status.code(), Some(0));
    let again = embank(dir.path(), &arguments);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again).contains("give a directory that is empty"), "{}", text(&again));
}

#[test]
fn deltas_take_a_copy_to_a_later_checkpoint() {
    let (dir, away) = (bank(), tempfile::tempdir().unwrap());
    let (copy, file) = (away.path().join("copy"), away.path().join("delta"));
    embank(dir.path(), &format!("copy {} --checkpoint 1", copy.display()));
    let (made, status) = json(dir.path(), &format!("export-delta {} --from 1", file.display()));
    assert_eq!((status, &made["from"], &made["to"]), (0, &1.into(), &2.into()));
    assert_eq!(made["file_bytes"], fs::metadata(&file).unwrap().len());
    let apply = format!("apply-delta {} --keep 1", file.display());
    let done = embank(&copy, &apply);
    assert!(text(&done).contains("is at checkpoint 2: from 1 to 2"), "{}", text(&done));
    let (listed, _) = json(&copy, "checkpoints");
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 1);
    assert_eq!(embank(&copy, "verify").status.code(), Some(0));
    let again = embank(&copy, &apply);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again).contains("can't be applied here"), "{}", text(&again));
}

#[test]
fn rollback_asks_first_and_goes_back_to_the_checkpoint() {
    let dir = bank();
    let asked = embank(dir.path(), "rollback 1");
    assert_eq!(asked.status.code(), Some(2));
    assert!(text(&asked).contains("removes checkpoints [2]"), "{}", text(&asked));
    assert!(text(&asked).contains("--yes"), "{}", text(&asked));
    let (done, status) = json(dir.path(), "rollback 1 --yes");
    assert_eq!((status, &done["checkpoint"], &done["removed"][0]), (0, &1.into(), &2.into()));
    let (listed, _) = json(dir.path(), "checkpoints");
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 1);
    let gone = embank(dir.path(), "rollback 2 --yes");
    assert!(text(&gone).contains("has no checkpoint 2"), "{}", text(&gone));
}

#[test]
fn a_table_goes_out_and_comes_into_a_new_bank() {
    let dir = bank();
    let files = tempfile::tempdir().unwrap();
    for suffix in ["safetensors", "npy", "parquet"] {
        let file = files.path().join("user").with_extension(suffix);
        let (report, status) = json(dir.path(), &format!("export user {} --state", file.display()));
        assert_eq!((status, &report["rows"]), (0, &Value::from(ROWS)));
        let copy = files.path().join(suffix);
        let (report, status) = json(&copy, &format!("import user {} --create", file.display()));
        assert_eq!((status, &report["rows"]), (0, &Value::from(ROWS)));
        assert_eq!(report["with_state"], true);
        let dump = |dir: &Path| text(&embank(dir, "dump user --key 0 --key 499 --format text"));
        assert_eq!(dump(&copy), dump(dir.path()));
    }
    let file = files.path().join("user.safetensors");
    let output = embank(dir.path(), &format!("import nothing {}", file.display()));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("--create"), "{}", text(&output));
    let output = embank(dir.path(), &format!("export item {} --dense", file.display()));
    assert!(text(&output).contains("--fill-missing") || text(&output).contains("fill missing"));
}

/// Runs a command whose files may not exceed `kib` KiB. A write beyond that fails, as on a full
/// disk.
fn embank_without_space(kib: u32, dir: &Path, arguments: &str, file: &Path) -> Output {
    let mut words = arguments.split_whitespace();
    let mut command = Command::new("bash");
    let line = format!("ulimit -f {kib}; trap '' XFSZ; exec \"$0\" \"$@\"");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_embank")]);
    output_of(command.args(words.next()).arg(dir).args(words).arg(file))
}

#[test]
fn an_export_that_finds_no_space_leaves_nothing() {
    let dir = bank();
    for suffix in ["safetensors", "npy", "parquet"] {
        let files = tempfile::tempdir().unwrap();
        let file = files.path().join("user").with_extension(suffix);
        let output = embank_without_space(4, dir.path(), "export --state user", &file);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("File too large"), "{}", text(&output));
        assert!(text(&output).contains("user."), "{}", text(&output));
        assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0, "{suffix}");
    }
}

/// Makes a bank with one checkpoint and ten rows. The rows of keys 5 to 9 were last used at time 3,
/// the others at time 9.
fn bank_with_old_rows() -> tempfile::TempDir {
    let _no_forks = no_forks();
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
    let bank = Bank::open(dir.path(), options).unwrap();
    let user = bank.table("user", TableConfig::new(1).tracking(Tracking::SetTime)).unwrap();
    let keys: Vec<u64> = (0..10).collect();
    user.set_time(3).unwrap();
    user.put(&keys, &[1.0; 10]).unwrap();
    user.set_time(9).unwrap();
    user.put(&keys[..5], &[2.0; 5]).unwrap();
    let item = bank.table("item", TableConfig::new(1).tracking(Tracking::Minutes)).unwrap();
    item.put(&[7], &[0.5]).unwrap();
    bank.checkpoint(b"step 9").unwrap();
    dir
}

#[test]
fn an_eviction_is_durable_and_keeps_the_blob() {
    let (dir, files) = (bank_with_old_rows(), tempfile::tempdir().unwrap());
    let keys_of = |name: &str| {
        let list = fs::read_to_string(files.path().join(name)).unwrap();
        let mut keys: Vec<u64> = list.lines().map(|line| line.parse().unwrap()).collect();
        keys.sort_unstable();
        keys
    };
    let arguments = |name: &str| {
        let list = files.path().join(name);
        format!("evict user --unused-for 6 --set-time 9 --keys {}", list.display())
    };
    let rows = |checkpoint: &str| {
        let (all, _) = json(dir.path(), &format!("dump user {checkpoint}"));
        all.as_array().unwrap().len()
    };

    let (dry, status) = json(dir.path(), &format!("{} --dry-run", arguments("dry")));
    assert_eq!((status, &dry["rows"], &dry["examined"]), (0, &5.into(), &10.into()));
    assert_eq!((&dry["dry_run"], &dry["checkpoint"]), (&true.into(), &Value::Null));
    assert_eq!((keys_of("dry"), rows("")), (vec![5, 6, 7, 8, 9], 10));

    let (done, status) = json(dir.path(), &arguments("gone"));
    assert_eq!((status, &done["rows"], &done["checkpoint"]), (0, &5.into(), &2.into()));
    assert_eq!((&done["dry_run"], &done["examined_checkpoint"]), (&false.into(), &1.into()));
    assert_eq!(keys_of("gone"), [5, 6, 7, 8, 9]);
    assert_eq!((rows(""), rows("--checkpoint 1")), (5, 10));
    assert_eq!(embank(dir.path(), "verify").status.code(), Some(0));
    {
        let _no_forks = no_forks();
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
        let bank = Bank::open(dir.path(), options).unwrap();
        assert_eq!(bank.recovered().unwrap().blob, b"step 9");
    }

    // No row is left to delete, so the command takes no checkpoint.
    let (again, status) = json(dir.path(), &arguments("none"));
    assert_eq!((status, &again["rows"], &again["checkpoint"]), (0, &0.into(), &Value::Null));
    assert_eq!(keys_of("none").len(), 0);
    // With an age and a frequency, both conditions must hold.
    let rarely = embank(dir.path(), "evict user --unused-for 0 --used-fewer-than 2 --set-time 9");
    assert!(text(&rarely).contains("evicted       0\n"), "{}", text(&rarely));
    let often = embank(dir.path(), "evict user --used-fewer-than 3 --norm-below 3");
    assert!(often.status.success(), "{}", text(&often));
    assert!(text(&often).contains("evicted       5\ncheckpoint    3;"), "{}", text(&often));
}

/// Regression test: no command took the name under which `stat` shows the counts before admission
/// (counts of keys that have no row yet). `evict` takes it.
#[test]
fn counts_are_forgotten_by_the_name_that_stat_shows() {
    let dir = tempfile::tempdir().unwrap();
    {
        let _no_forks = no_forks();
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
        let bank = Bank::open(dir.path(), options).unwrap();
        let admission = embank::Admission::AfterGets(2);
        let table = bank.table("item", TableConfig::new(1).admission(admission)).unwrap();
        table.get(&[1, 2, 3], &mut [0.0; 3]).unwrap().release().unwrap();
        table.put(&[4], &[1.0]).unwrap();
        bank.checkpoint(b"step 1").unwrap();
    }
    let name = "item (counts before admission)";
    assert!(text(&embank(dir.path(), "stat")).contains(name));
    let evict = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
        output_of(command.arg("evict").arg(dir.path()).arg(name).args(arguments))
    };
    assert_eq!(evict(&["--used-fewer-than", "3"]).status.code(), Some(2));
    let dry = evict(&["--unused-for", "0", "--dry-run"]);
    assert!(text(&dry).contains("counts        3 before admission would go\n"), "{}", text(&dry));
    let done = evict(&["--unused-for", "0"]);
    assert!(text(&done).contains("counts        3 before admission evicted\n"), "{}", text(&done));
    let (stat, _) = json(dir.path(), "stat");
    let rows = stat["tables"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|table| (table["name"].as_str(), table["rows"].as_u64())).collect();
    assert!(
        rows.contains(&(Some(name), Some(0))) && rows.contains(&(Some("item"), Some(1))),
        "{rows:?}"
    );
}

#[test]
fn an_eviction_that_makes_no_sense_changes_nothing() {
    let (dir, files) = (bank_with_old_rows(), tempfile::tempdir().unwrap());
    let list = files.path().join("keys");
    fs::write(&list, "mine").unwrap();
    let taken = format!("user --norm-below 9 --keys {}", list.display());
    for (arguments, told) in [
        ("user", "--norm-below"),
        ("user --norm-below 9 --set-time 9", "--unused-for"),
        ("item --unused-for 6 --set-time 9", "leave --set-time out"),
        ("user --norm-below nan", "norm_below"),
        ("nothing --norm-below 9", "nothing"),
        (taken.as_str(), "is there already"),
    ] {
        let output = embank(dir.path(), &format!("evict {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
    }
    assert_eq!(fs::read_to_string(&list).unwrap(), "mine");
    let dir = bank();
    let output = embank(dir.path(), "evict user --used-fewer-than 2");
    assert!(text(&output).contains("does not track"), "{}", text(&output));
    assert_eq!(embank(files.path(), "evict user --norm-below 9").status.code(), Some(2));
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1, "a bank was made");
}

/// Makes a bank with one checkpoint. The 1,000 keys of its table `user` have 19 digits, so the list
/// of keys exceeds its buffer.
fn bank_with_long_keys(blob: &[u8]) -> tempfile::TempDir {
    let _no_forks = no_forks();
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
    let bank = Bank::open(dir.path(), options).unwrap();
    let user = bank.table("user", TableConfig::new(1)).unwrap();
    let keys: Vec<u64> = (0..1000).map(|row| 1_000_000_000_000_000_000 + row).collect();
    user.put(&keys, &[1.0; 1000]).unwrap();
    bank.checkpoint(blob).unwrap();
    dir
}

/// Checks that an eviction of all rows of `user` fails if files may not exceed `kib` KiB. It must
/// report the reason and change nothing. Without the limit the same command succeeds.
fn assert_fails_without_space(dir: &Path, kib: u32, told: &str) {
    let (before, _) = json(dir, "stat");
    let files = tempfile::tempdir().unwrap();
    let list = files.path().join("keys");
    let arguments = "evict user --norm-below 100000 --keys";
    let output = embank_without_space(kib, dir, arguments, &list);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains(told), "{}", text(&output));
    assert!(text(&output).contains("File too large"), "{}", text(&output));
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0, "a list, or a part of it");
    let (after, _) = json(dir, "stat");
    for same in ["checkpoints", "rows"] {
        assert_eq!(after[same], before[same]);
    }
    let output = embank_with_file(dir, arguments, &list);
    assert!(output.status.success(), "{}", text(&output));
    let rows = before["tables"][0]["rows"].as_u64().unwrap();
    assert_eq!(fs::read_to_string(&list).unwrap().lines().count() as u64, rows);
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1);
}

/// The command deletes rows for good only after the list of their keys is durable.
#[test]
fn an_eviction_that_can_not_list_its_keys_is_none() {
    // The list has 20,000 bytes, and a write of it fails while rows are deleted.
    assert_fails_without_space(bank_with_long_keys(b"").path(), 1, "so no row went: File too");
    // The list has 1,890 bytes. All are still in the buffer when the last row is deleted, so the
    // write at the end fails.
    assert_fails_without_space(bank().path(), 1, "so no row went: File too");
}

/// The command removes the list of keys if no row was deleted. The list would be wrong, and would
/// block the next try.
#[test]
fn an_eviction_whose_checkpoint_fails_leaves_no_list() {
    let dir = bank_with_long_keys(&[7; 1 << 20]);
    // The limit suffices for the list, the log and the index, but not for the blob.
    assert_fails_without_space(dir.path(), 512, "taking a checkpoint, so no row went: ");
}

/// A file name that is not UTF-8 does not break the JSON output.
#[test]
fn files_with_any_name_are_told_of_in_json() {
    let (dir, files) = (bank(), tempfile::tempdir().unwrap());
    let list = files.path().join(OsStr::from_bytes(b"gone-\xff"));
    let output = embank_with_file(dir.path(), "evict item --norm-below 9 --json --keys", &list);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["keys"].as_str().unwrap().ends_with("gone-\u{fffd}"), "{report}");
    assert_eq!((&report["rows"], fs::read(&list).unwrap()), (&1.into(), b"7\n".to_vec()));

    let file = files.path().join(OsStr::from_bytes(b"user-\xff.safetensors"));
    let output = embank_with_file(dir.path(), "export user --json", &file);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        report["files"][0].as_str().unwrap().ends_with("user-\u{fffd}.safetensors"),
        "{report}"
    );
    assert!(file.exists());
}

/// Without `--memory-budget`, the budget follows the limit of the control group. A larger budget
/// gives a warning. Regression test: a command took 256 MiB even if the limit was lower.
#[test]
fn a_limit_of_memory_is_kept_and_a_budget_above_it_warned_of() {
    let dir = bank();
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", "35 24 0:30 / /groups rw - cgroup2 cgroup2 rw\n"),
        // This limit is below the 256 MiB that a command takes without a limit.
        ("groups/memory.max", "67108864\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let limited = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
        command.env("EMBANK_SYSTEM_ROOT", root.path()).arg("compact").arg(dir.path());
        let output = output_of(command.args(arguments));
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(limited(&[]), "");
    let warning = limited(&["--memory-budget", "65MiB"]);
    for part in ["warning: ", "68157440 bytes", "67108864 bytes"] {
        assert!(warning.contains(part), "{warning}");
    }
}
