//! `prose`: the words that this project does not use, and lines of prose that are too long.
//!
//! Comments, doc comments and pages are written for a reader who does not know the project. Some
//! words make a sentence hard to read at the first time: they name no actor, no quantity and no
//! thing. This check finds them in the comments of the sources and in the pages.
//!
//! A folder that still has such places stands in `prose_left.txt` with their number. The check
//! fails if a folder has more places than that, and if it has fewer, so the numbers only fall.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::{links, workspace};

/// Options of `prose`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders to look at, from the root of the repository; all of it without any
    paths: Vec<PathBuf>,
    /// Write the numbers of today's places to `xtask/src/prose_left.txt`
    #[arg(long, conflicts_with = "paths")]
    accept: bool,
}

/// Comments and prose wrap at this column.
const COLUMNS_MAX: usize = 100;

/// Words and phrases that a reader has to read twice.
const BANNED: [&str; 46] = [
    "anew",
    "are none",
    "are told of",
    "as above",
    "comes to its end",
    "give way",
    "gives way",
    "goes round",
    "hardly",
    "in vain",
    "is none",
    "is so many",
    "is to be had",
    "is told of",
    "its due",
    "lest",
    "likewise",
    "needs must",
    "no pace",
    "nobody",
    "nobody's",
    "none are",
    "none is",
    "none of",
    "nor are",
    "nor do",
    "nor does",
    "nor is",
    "of late",
    "of so many",
    "set to work",
    "sets to work",
    "so long",
    "so many",
    "so much",
    "so often",
    "somebody",
    "somebody's",
    "the same applies",
    "the same goes",
    "thereby",
    "therein",
    "thereof",
    "those who",
    "whereof",
    "whoever",
];

/// Places where a banned word is the right one: the end of a path, the word, and why.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    ("xtask/src/prose.rs", "", "the list itself"),
    ("CHANGELOG.md", "", "what earlier versions said"),
];

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

/// A place that the check finds.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    what: String,
}

/// Prints every place below the given paths, or compares their numbers with `prose_left.txt`.
///
/// # Errors
/// A folder has more places than the list says, or fewer; a file can't be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    if args.paths.is_empty() {
        if args.accept {
            let text = list_of(&counts(&root)?);
            fs::write(root.join(LEFT), text).with_context(|| format!("writing {LEFT}"))?;
            return Ok(ExitCode::SUCCESS);
        }
        check(&root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut found = 0;
    for path in &args.paths {
        for file in files_below(&root.join(path))? {
            let name = relative(&root, &file);
            for place in places_of(&name, &read(&file)?) {
                println!("{name}:{}: {}", place.line, place.what);
                found += 1;
            }
        }
    }
    println!("{found} places");
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const LEFT: &str = "xtask/src/prose_left.txt";

/// Fails unless each folder has as many places as the list says, and all links of pages lead
/// somewhere.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut pages = files_below(root)?;
    pages.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    links::check(root, &pages)?;
    let found = counts(root)?;
    let text = fs::read_to_string(root.join(LEFT)).with_context(|| format!("reading {LEFT}"))?;
    let left = read_list(&text)?;
    let mut wrong = String::new();
    for folder in found.keys().chain(left.keys().filter(|folder| !found.contains_key(*folder))) {
        let now = found.get(folder).copied().unwrap_or(0);
        let listed = left.get(folder).copied().unwrap_or(0);
        if now > listed {
            writeln!(
                wrong,
                "{folder}: {now} places, {listed} allowed: `cargo xtask prose {folder}`"
            )?;
        } else if now < listed {
            writeln!(
                wrong,
                "{folder}: {now} places, {listed} listed: `cargo xtask prose --accept`"
            )?;
        }
    }
    ensure!(wrong.is_empty(), "words that this project does not use, or long lines:\n{wrong}");
    let total: usize = found.values().sum();
    println!("{total} places left in {} folders", found.len());
    Ok(())
}

fn read_list(text: &str) -> Result<BTreeMap<String, usize>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (count, folder) =
                line.split_once(' ').with_context(|| format!("{LEFT}: {line:?}"))?;
            Ok((folder.to_owned(), count.parse()?))
        })
        .collect()
}

fn list_of(counts: &BTreeMap<String, usize>) -> String {
    let mut text =
        "# Places in each folder that `cargo xtask prose` finds. The numbers only fall.\n"
            .to_owned();
    for (folder, count) in counts {
        text += &format!("{count} {folder}\n");
    }
    text
}

/// The number of places of each folder that has some: the first two names of a path.
fn counts(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for file in files_below(root)? {
        let name = relative(root, &file);
        let found = places_of(&name, &read(&file)?).len();
        if found > 0 {
            let mut parts: Vec<&str> = name.split('/').collect();
            parts.pop();
            parts.truncate(3);
            let folder = if parts.is_empty() { ".".to_owned() } else { parts.join("/") };
            *counts.entry(folder).or_insert(0) += found;
        }
    }
    Ok(counts)
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

/// How a file marks its prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    /// `//` and `/* */`.
    Slashes,
    /// `#`, and text between triple quotes.
    Python,
    /// `#`.
    Hashes,
    Markdown,
}

impl Language {
    fn of(file: &str) -> Option<Self> {
        match file.rsplit_once('.')?.1 {
            "rs" | "c" | "h" | "cpp" => Some(Self::Slashes),
            "py" | "pyi" => Some(Self::Python),
            "toml" | "sh" => Some(Self::Hashes),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// The places of a file.
fn places_of(name: &str, text: &str) -> Vec<Place> {
    let Some(language) = Language::of(name) else { return Vec::new() };
    let is_excepted = |word: &str| {
        let matches = |(end, of, _): &(&str, &str, &str)| {
            name.ends_with(end) && (of.is_empty() || *of == word)
        };
        EXCEPTIONS.iter().any(matches)
    };
    let mut places = Vec::new();
    for (line, prose) in prose_of(language, text) {
        if prose.columns > COLUMNS_MAX && !is_excepted("") {
            places.push(Place { line, what: format!("{} columns", prose.columns) });
        }
        let words = words_of(prose.text);
        for banned in BANNED.iter().filter(|banned| !is_excepted(banned)) {
            let count = words.matches(&format!(" {banned} ")).count();
            for _ in 0..count {
                places.push(Place { line, what: (*banned).to_owned() });
            }
        }
    }
    places
}

/// A line's words in small letters with one space around each; what stands in backticks is left
/// out.
fn words_of(text: &str) -> String {
    let mut words = " ".to_owned();
    for (i, part) in text.split('`').enumerate() {
        if !i.is_multiple_of(2) {
            words.push_str("` ");
            continue;
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '\'' || c == '_';
        for word in part.split(|c| !is_word(c)).filter(|word| !word.is_empty()) {
            words.push_str(&word.to_lowercase());
            words.push(' ');
        }
    }
    words
}

/// The prose of one line.
struct Prose<'t> {
    text: &'t str,
    /// Columns of the line, or 0 where it may be of any length: tables, links, and code with a
    /// comment behind it.
    columns: usize,
}

/// The prose of each line that has some, with the line's number.
fn prose_of(language: Language, text: &str) -> Vec<(usize, Prose<'_>)> {
    let mut found = Vec::new();
    let mut in_code = false;
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let prose = match language {
            Language::Markdown => Some(trimmed),
            Language::Slashes if in_block => {
                in_block = !trimmed.contains("*/");
                Some(trimmed)
            }
            Language::Slashes if trimmed.starts_with("/*") => {
                in_block = !trimmed.contains("*/");
                Some(trimmed)
            }
            Language::Slashes => match trimmed.strip_prefix("//") {
                Some(comment) => Some(comment.trim_start_matches(['/', '!'])),
                None => {
                    in_code = false;
                    behind(line, "// ")
                }
            },
            Language::Python => {
                let quotes = trimmed.matches("\"\"\"").count();
                let was_in_block = in_block;
                in_block ^= !quotes.is_multiple_of(2);
                if was_in_block || quotes > 0 {
                    Some(trimmed)
                } else {
                    trimmed.strip_prefix('#').or_else(|| behind(line, "# "))
                }
            }
            Language::Hashes => trimmed.strip_prefix('#').or_else(|| behind(line, "# ")),
        };
        let Some(prose) = prose else { continue };
        if prose.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        let is_example =
            prose.trim_start().starts_with(">>>") || prose.trim_start().starts_with("... ");
        if in_code || is_example {
            continue;
        }
        let is_whole_line = prose.len() + 4 >= trimmed.len();
        let is_free =
            prose.trim_start().starts_with('|') || prose.contains("](") || prose.contains("://");
        let columns = if is_whole_line && !is_free { line.chars().count() } else { 0 };
        found.push((number, Prose { text: prose, columns }));
    }
    found
}

/// The comment behind the code of a line, unless its mark stands in a string.
fn behind<'t>(line: &'t str, mark: &str) -> Option<&'t str> {
    let at = line.rfind(&format!(" {mark}"))?;
    let is_code = line[..at].matches('"').count().is_multiple_of(2);
    is_code.then(|| &line[at + 1 + mark.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(name: &str, text: &str) -> Vec<String> {
        places_of(name, text)
            .into_iter()
            .map(|place| format!("{}: {}", place.line, place.what))
            .collect()
    }

    #[test]
    fn a_banned_word_is_found_in_comments_and_pages() {
        for (name, text) in [
            ("a.rs", "/// Waits in vain.\nfn f() {}"),
            ("a.rs", "//! Waits In Vain.\n"),
            ("a.rs", "let x = 1; // in vain\n"),
            ("a.py", "def f():\n    pass  # in vain\n"),
            ("a.pyi", "\"\"\"It waits\n\nin vain.\n\"\"\"\n"),
            ("a.toml", "x = 1  # in vain\n"),
            ("a.h", "/* It waits\n   in vain. */\n"),
            ("a.md", "It waits in vain.\n"),
        ] {
            let found = whats(name, text);
            assert_eq!(found.len(), 1, "{name}: {text:?}");
            assert!(found[0].ends_with(": in vain"), "{found:?}");
        }
    }

    #[test]
    fn code_strings_and_other_words_are_no_prose() {
        for (name, text) in [
            ("a.rs", "let nobody = \"in vain // in vain\";\n"),
            ("a.rs", "/// `nobody` is a name.\n"),
            ("a.rs", "/// ```\n/// let lest = 1;\n/// ```\nfn f() {}"),
            ("a.rs", "/// The lowest latest finest.\n"),
            ("a.py", "nobody = 'in vain'\n"),
            ("a.py", "\"\"\"Text.\n\n>>> nobody = 1\n\"\"\"\n"),
            ("a.md", "```\nnobody\n```\n"),
            ("a.json", "nobody"),
        ] {
            assert!(whats(name, text).is_empty(), "{name}: {text:?}");
        }
    }

    #[test]
    fn long_lines_of_prose_are_found() {
        let long = "word ".repeat(25);
        assert_eq!(whats("a.rs", &format!("/// {long}\n")), ["1: 129 columns"]);
        assert_eq!(whats("a.md", &format!("\n{long}\n")), ["2: 125 columns"]);
        for (name, text) in [
            ("a.rs", format!("let x = \"{long}\";\n")),
            ("a.md", format!("| {long} |\n")),
            ("a.md", format!("[{long}](page.md)\n")),
            ("a.md", format!("```\n{long}\n```\n")),
        ] {
            assert!(whats(name, &text).is_empty(), "{name}");
        }
    }

    #[test]
    fn the_list_reads_what_it_writes() {
        let counts = BTreeMap::from([("kv/src".to_owned(), 3), (".".to_owned(), 1)]);
        assert_eq!(read_list(&list_of(&counts)).unwrap(), counts);
    }

    #[test]
    fn the_banned_words_are_sorted_and_each_once() {
        assert!(BANNED.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
