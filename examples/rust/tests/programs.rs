//! Tests that the examples learn small data, and that their results from a bank and in memory
//! agree.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// Runs an example on the data with one thread, so that runs of one seed are equal. Returns its
/// output.
fn run(program: &str, data: &Path, options: &[&str]) -> String {
    let mut command = Command::new(program);
    command.arg("--data").arg(data).args(["--threads", "1"]).args(options);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    let waited = number_after(&text, "waits for rows");
    assert!(waited <= 100.0 && text.trim_end().ends_with('%'), "{text}");
    text
}

/// Returns the number after the last `words` in the output.
fn number_after(text: &str, words: &str) -> f64 {
    let from = text.rfind(words).unwrap_or_else(|| panic!("no {words:?} in {text}")) + words.len();
    let number: String =
        text[from..].trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap_or_else(|_| panic!("no number after {words:?} in {text}"))
}

/// Runs on a bank and in memory. Returns the result of the bank, which must be within 0.01 of the
/// result in memory.
fn reached(program: &str, data: &Path, options: &[&str], words: &str) -> f64 {
    let bank = number_after(&run(program, data, options), words);
    let in_memory = number_after(&run(program, data, &[options, &["--in-memory"]].concat()), words);
    // The Adagrad of the store and of the twin differ in the last digits, so ranks may differ.
    assert!((bank - in_memory).abs() < 0.01, "{bank} from the bank, {in_memory} in memory");
    bank
}

#[test]
fn dlrm_learns_which_category_is_clicked() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("clicks.tsv");
    let mut random = SmallRng::seed_from_u64(1);
    let mut text = String::new();
    for _ in 0..3000 {
        let category = random.random_range(0..40_u32);
        let clicked = random.random_bool(if category % 2 == 0 { 0.9 } else { 0.1 });
        write!(text, "{}", u8::from(clicked)).unwrap();
        (0..13).for_each(|_| write!(text, "\t{}", random.random_range(-2..9)).unwrap());
        write!(text, "\t{category:08x}").unwrap();
        (0..24).for_each(|_| write!(text, "\t{:08x}", random.random_range(0..9)).unwrap());
        text += "\t\n"; // the last category is missing
    }
    fs::write(&data, text).unwrap();
    let auc =
        reached(env!("CARGO_BIN_EXE_dlrm"), &data, &["--epochs", "4", "--lr", "0.01"], "test AUC");
    assert!(auc > 0.85, "{auc}"); // 0.9 is the best possible value
}

#[test]
fn kge_learns_who_comes_next() {
    // A ring of entities: the tail of "next" is the next entity.
    let folder = TempDir::new().unwrap();
    let part = |name: &str, of: fn(&usize) -> bool| {
        let lines = (0..200).flat_map(|e| {
            // Two relations with equal triples: a triple that is left out of one relation is in the
            // other.
            [
                format!("e{e}\tnext\te{}\n", (e + 1) % 200),
                format!("e{e}\tafter\te{}\n", (e + 1) % 200),
            ]
        });
        let chosen: String =
            lines.enumerate().filter(|(n, _)| of(n)).map(|(_, line)| line).collect();
        fs::write(folder.path().join(name), chosen).unwrap();
    };
    part("train.tsv", |line| line % 16 != 0 && line % 16 != 9);
    part("valid.tsv", |line| line % 16 == 0);
    part("test.tsv", |line| line % 16 == 9);
    let options = ["--epochs", "60", "--batch-size", "50", "--negatives", "100", "--dim", "64"];
    let mrr = reached(env!("CARGO_BIN_EXE_kge"), folder.path(), &options, "test MRR");
    assert!(mrr > 0.4, "{mrr}"); // DistMult scores the entity before as high as the entity after
}

#[test]
fn gnn_learns_a_class_from_words_of_neighbours() {
    // Three classes. Each class has a word that most of its nodes have, and most edges stay within
    // a class.
    let folder = TempDir::new().unwrap();
    let mut random = SmallRng::seed_from_u64(1);
    let (mut nodes, mut edges) = (String::new(), String::new());
    for node in 0..300_u64 {
        let (class, split) =
            (node % 3, ["train", "valid", "test", "none"][(node / 3 % 4) as usize]);
        let word = if random.random_bool(0.6) { class } else { random.random_range(0..3) };
        writeln!(nodes, "{node}\t{class}\t{split}\t{word},{}", random.random_range(3..30)).unwrap();
        for _ in 0..3 {
            let other = random.random_range(0..100_u64) * 3;
            let stays = random.random_bool(0.9);
            let other = other + if stays { class } else { random.random_range(0..3) };
            writeln!(edges, "{node}\t{other}").unwrap();
        }
    }
    fs::write(folder.path().join("nodes.tsv"), nodes).unwrap();
    fs::write(folder.path().join("edges.tsv"), edges).unwrap();
    let options = ["--epochs", "20"];
    let accuracy = reached(env!("CARGO_BIN_EXE_gnn"), folder.path(), &options, "test accuracy");
    assert!(accuracy > 0.85, "{accuracy}");
}

#[test]
fn data_that_are_not_there_are_named() {
    for program in
        [env!("CARGO_BIN_EXE_dlrm"), env!("CARGO_BIN_EXE_kge"), env!("CARGO_BIN_EXE_gnn")]
    {
        let output = Command::new(program).args(["--data", "/nowhere"]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains("/nowhere is missing"), "{errors}");
    }
}
