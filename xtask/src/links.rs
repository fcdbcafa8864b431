//! Checks the links of Markdown pages: each must lead to a file that exists, and to a heading of
//! that file.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Fails if a link in `files` leads nowhere. Links to other hosts are not checked.
///
/// # Errors
/// Returns an error with the links that lead nowhere, or if a file cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<()> {
    let mut pages = HashMap::new();
    for file in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        pages.insert(file.clone(), text);
    }
    let headings: HashMap<&PathBuf, HashSet<String>> =
        pages.iter().map(|(file, text)| (file, headings_of(text))).collect();
    let mut wrong = String::new();
    for (file, text) in &pages {
        let folder = file.parent().unwrap_or(root);
        for link in links_of(text) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { file.clone() } else { resolved(&folder.join(path)) };
            let has_heading = || match headings.get(&target) {
                Some(of_page) => heading.is_empty() || of_page.contains(heading),
                None => true,
            };
            if !target.exists() || !has_heading() {
                let name = file.strip_prefix(root).unwrap_or(file).display();
                writeln!(wrong, "{name}: {link}")?;
            }
        }
    }
    ensure!(wrong.is_empty(), "links that lead nowhere:\n{wrong}");
    Ok(())
}

/// The path without `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                found.pop();
            }
            std::path::Component::CurDir => {}
            other => found.push(other),
        }
    }
    found
}

/// Returns the targets of a page's links to files and headings, without links in code.
fn links_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in outside_code(text) {
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let link = &rest[..end];
            if !link.contains("://") && !link.starts_with("mailto:") {
                found.push(link.to_owned());
            }
        }
    }
    found
}

/// Returns the headings of a page in the form of link targets.
fn headings_of(text: &str) -> HashSet<String> {
    let of_line = |line: &str| {
        let title = line.trim_start_matches('#');
        let is_heading = line.starts_with('#') && title.starts_with(' ');
        is_heading.then(|| anchor(title.trim()))
    };
    outside_code(text).filter_map(of_line).collect()
}

/// Returns a heading in the form of a link target: small letters, `-` for each space, no
/// punctuation.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|&c| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn outside_code(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let [page, other] = ["a.md", "b.md"].map(|name| dir.path().join(name));
        fs::write(&other, "# One `two` (three)\n").unwrap();
        let good = "[x](b.md#one-two-three) [y](#here) [z](https://nowhere)\n\n## Here\n\n```\n[c](no.md)\n```\n";
        fs::write(&page, good).unwrap();
        let files = [page.clone(), other];
        check(dir.path(), &files).unwrap();
        for bad in ["[x](c.md)", "[x](b.md#four)", "[x](#there)"] {
            fs::write(&page, bad).unwrap();
            let error = check(dir.path(), &files).unwrap_err().to_string();
            assert!(error.contains("a.md: "), "{bad}: {error}");
        }
    }
}
