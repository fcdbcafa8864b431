//! `prose`: finds phrases that this project does not use, and lines of prose that are too long.
//!
//! Comments, doc comments and pages are written for a reader without knowledge of the project. Some
//! phrases make a sentence hard to read the first time: they name no actor, no quantity or no
//! thing. This check finds them in the comments of the sources and in the pages.
//!
//! | file | what is there |
//! |---|---|
//! | `comments.rs` | the text of comments, told from code and strings |
//! | `phrases.rs` | the phrases, and the search for them |

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::{links, workspace};

mod comments;
mod phrases;

use comments::Language;
use phrases::Hit;

/// Options of `prose`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders to check, from the root of the repository; the whole repository by default
    paths: Vec<PathBuf>,
}

/// Comments and prose wrap at this column.
const COLUMNS_MAX: usize = 100;

/// The exceptions, each with its reason.
const EXCEPTIONS: [Exception; 1] = [Exception {
    file: "CHANGELOG.md",
    phrase: None,
    _why: "entries of earlier versions stay as they were written",
}];

/// Folders without prose of this project.
const SKIPPED: [&str; 8] = [
    ".git",
    "target",
    "fixtures",
    "vocabulary_fixtures",
    "corpus",
    "images",
    "results",
    "artifacts",
];

/// A file with places that the check does not count.
struct Exception {
    /// A file, from the root of the repository.
    file: &'static str,
    /// The allowed phrase. `None` leaves out the whole file.
    phrase: Option<&'static str>,
    _why: &'static str,
}

/// A place that the check finds.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    what: String,
}

/// Prints every place below the given paths. Without paths, checks the whole repository.
///
/// # Errors
/// Returns an error if a place is found, if a link of a page leads nowhere, or if a file cannot be
/// read.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    if args.paths.is_empty() {
        check(&root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut found = String::new();
    for path in &args.paths {
        found += &places_below(&root, &root.join(path))?;
    }
    print!("{found}");
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails if a file of the repository has a place, or if a link of a page leads nowhere.
///
/// # Errors
/// Fails as [`run`] does.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut pages = files_below(root)?;
    pages.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    links::check(root, &pages)?;
    let found = places_below(root, root)?;
    ensure!(found.is_empty(), "phrases that this project does not use, or long lines:\n{found}");
    Ok(())
}

/// Returns a line for each place in the files below `path`.
fn places_below(root: &Path, path: &Path) -> Result<String> {
    let mut found = String::new();
    for file in files_below(path)? {
        let name = relative(root, &file);
        for place in places_of(&name, &read(&file)?) {
            writeln!(found, "{name}:{}: {}", place.line, place.what)?;
        }
    }
    Ok(found)
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned()
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

fn files_below(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&&*name) && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if Language::of(&name).is_some() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the places of a file.
fn places_of(name: &str, text: &str) -> Vec<Place> {
    let Some(language) = Language::of(name) else { return Vec::new() };
    let exceptions: Vec<&Exception> = EXCEPTIONS.iter().filter(|of| of.file == name).collect();
    if exceptions.iter().any(|exception| exception.phrase.is_none()) {
        return Vec::new();
    }
    let lines = comments::lines_of(language, text);
    let mut places = Vec::new();
    for Hit { line, phrase } in phrases::hits(&lines) {
        if !exceptions.iter().any(|exception| exception.phrase == Some(&phrase)) {
            places.push(Place { line, what: phrase });
        }
    }
    let whole: Vec<&str> = text.lines().collect();
    let is_page = language == Language::Markdown;
    for line in lines {
        let columns = columns_of(whole.get(line.number - 1).copied().unwrap_or_default());
        let is_table = line.text.trim_start().starts_with('|');
        // Two kinds of lines cannot be wrapped: a heading, and pictures that stand side by side.
        let is_one_line = is_page && line.text.starts_with(['#', '!']);
        // A type checker reads this comment only on the line that it is about, so it cannot be
        // wrapped.
        let is_directive = line.text.trim_start().starts_with("type: ignore");
        if columns > COLUMNS_MAX && !is_table && !is_one_line && !is_directive {
            places.push(Place { line: line.number, what: format!("{columns} columns") });
        }
    }
    places.sort_by_key(|place| place.line);
    places
}

/// Returns the number of columns of a line. Web addresses do not count, because they cannot be
/// wrapped.
fn columns_of(line: &str) -> usize {
    let words = line.split(' ').map(|word| match word.find("](").or_else(|| word.find("://")) {
        Some(address) => word[..address].chars().count(),
        None => word.chars().count(),
    });
    words.map(|columns| columns + 1).sum::<usize>().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(name: &str, text: &str) -> Vec<String> {
        let places = places_of(name, text).into_iter();
        places.map(|place| format!("{}: {}", place.line, place.what)).collect()
    }

    #[test]
    fn places_come_in_order() {
        let long = "word ".repeat(20);
        let text = format!("/// {long}\n/// Waits in vain.\nfn f() {{}}\n/// {long}\n");
        assert_eq!(whats("a.rs", &text), ["1: 104 columns", "2: in vain", "4: 104 columns"]);
    }

    #[test]
    fn long_lines_of_prose_are_found() {
        let long = "word ".repeat(25);
        assert_eq!(whats("a.rs", &format!("/// {long}\n")), ["1: 129 columns"]);
        assert_eq!(
            whats("a.py", &format!("def f():\n    \"\"\"{long}\"\"\"\n")),
            ["2: 135 columns"]
        );
        assert_eq!(whats("a.md", &format!("\n{long}\n")), ["2: 125 columns"]);
        for (name, text) in [
            ("a.rs", format!("let x = \"{long}\";\n")),
            ("a.rs", format!("/// | {long} |\n")),
            ("a.py", format!("x = f('{long}')  # type: ignore[misc]\n")),
            ("a.rs", format!("/// ```text\n/// {long}\n/// ```\n")),
            ("a.md", format!("| {long} |\n")),
            ("a.md", format!("[a link](https://{}.org)\n", "long".repeat(25))),
            ("a.md", format!("```\n{long}\n```\n")),
        ] {
            assert!(whats(name, &text).is_empty(), "{name}");
        }
    }

    #[test]
    fn an_exception_holds_for_its_file_alone() {
        assert!(whats("CHANGELOG.md", "in vain\n").is_empty());
        assert_eq!(whats("docs/README.md", "in vain\n"), ["1: in vain"]);
    }

    #[test]
    fn places_of_all_files_below_a_folder_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("one/two")).unwrap();
        fs::create_dir(dir.path().join("target")).unwrap();
        for name in ["one/a.rs", "one/two/b.rs", "target/c.rs", "one/d.txt"] {
            fs::write(dir.path().join(name), "// in vain\n").unwrap();
        }
        let found = places_below(dir.path(), dir.path()).unwrap();
        assert_eq!(found, "one/a.rs:1: in vain\none/two/b.rs:1: in vain\n");
        let found = places_below(dir.path(), &dir.path().join("one/a.rs")).unwrap();
        assert_eq!(found, "one/a.rs:1: in vain\n");
    }
}
