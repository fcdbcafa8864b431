//! Property files in the format of `java.util.Properties`. YCSB's workload files have this format.
//!
//! A line is `name=value`, `name: value` or `name value`. `#` and `!` begin comments. A backslash
//! at the end of a line continues it. `\t`, `\n`, `\r`, `\f` and `\uXXXX` are escapes. If several
//! lines set a name, the last line counts, also across files. `-p` overrides files. This module
//! drops spaces at the end of a value. Java keeps them, and YCSB then refuses the value.
//! [`core_properties`](crate::core_properties) gives the names their meaning.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// Properties of YCSB. Options of the command line win over them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PropertyArgs {
    /// File of YCSB properties, such as a core workload of YCSB; the option can be repeated, and
    /// later files win. Options of this command line win over properties. Once a property is given,
    /// every setting that is not named has YCSB's default: 10 fields of 100 bytes, 95% read and 5%
    /// update, uniform requests, no warm-up, every call timed
    #[arg(short = 'P', long = "property-file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// One YCSB property, which wins over those in files; the option can be repeated
    #[arg(short = 'p', long = "property", value_name = "NAME=VALUE", value_parser = pair)]
    pairs: Vec<(String, String)>,
}

/// A value and the place that set it, for messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Property {
    pub(crate) value: String,
    /// `FILE:LINE`, or `-p`.
    pub(crate) origin: String,
}

/// Properties by name.
pub(crate) type Properties = BTreeMap<String, Property>;

impl PropertyArgs {
    /// Reads the files in order, then applies the properties of `-p`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is no property file.
    pub(crate) fn read(&self) -> Result<Properties> {
        let mut properties = Properties::new();
        for file in &self.files {
            let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            parse(file, &bytes, &mut properties)?;
        }
        for (name, value) in &self.pairs {
            let property = Property { value: value.clone(), origin: "-p".to_owned() };
            properties.insert(name.clone(), property);
        }
        Ok(properties)
    }
}

fn pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => bail!("expected NAME=VALUE"),
    }
}

fn parse(file: &Path, bytes: &[u8], properties: &mut Properties) -> Result<()> {
    ensure!(
        !bytes.contains(&0),
        "{} is no property file: it holds zero bytes, as UTF-16 and binary files do",
        file.display()
    );
    let text = decode(bytes).replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = text.lines().enumerate();
    while let Some((number, first)) = lines.next() {
        let first = first.trim_start();
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let origin = format!("{}:{}", file.display(), number + 1);
        let mut line = first.to_owned();
        while continues(&line) {
            line.pop();
            let Some((_, next)) = lines.next() else { break };
            line.push_str(next.trim_start());
        }
        let (name, value) = split(&line);
        let unescaped = |text| unescape(text).with_context(|| origin.clone());
        let (name, value) = (unescaped(name)?, unescaped(value)?.trim_end().to_owned());
        properties.insert(name, Property { value, origin });
    }
    Ok(())
}

/// Decodes UTF-8 with or without a byte order mark. Decodes bytes that are not UTF-8 as Latin-1, as
/// Java does.
fn decode(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.trim_start_matches('\u{feff}').to_owned(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    }
}

/// True if the line ends in an odd number of backslashes.
fn continues(line: &str) -> bool {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    !backslashes.is_multiple_of(2)
}

/// Splits a line into name and value. Their escapes are not decoded yet.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (c == '=' || c == ':' || c.is_whitespace());
        escaped = !escaped && c == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    (name, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start())
}

fn unescape(text: &str) -> Result<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match rest.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let digits: String = rest.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4);
                let c = code.and_then(char::from_u32);
                plain.push(c.with_context(|| format!("\\u{digits} is no character"))?);
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Vec<(String, String, String)>> {
        let mut properties = Properties::new();
        parse(Path::new("w"), bytes, &mut properties)?;
        Ok(properties.into_iter().map(|(name, p)| (name, p.value, p.origin)).collect())
    }

    fn one(text: &str) -> (String, String) {
        let mut all = parsed(text.as_bytes()).unwrap();
        assert_eq!(all.len(), 1, "{text:?}: {all:?}");
        let (name, value, _) = all.remove(0);
        (name, value)
    }

    #[test]
    fn lines_are_those_of_java() {
        let cases = [
            ("a=1", "a", "1"),
            ("  a = 1  ", "a", "1"),
            ("a: 1", "a", "1"),
            ("a 1", "a", "1"),
            ("a\t=\t1", "a", "1"),
            ("a==1", "a", "=1"),
            ("a", "a", ""),
            ("a=x y", "a", "x y"),
            ("# no\n! no\n\n a=1\r\n", "a", "1"),
            ("a=1\\\n   ,2\\\r\n,3", "a", "1,2,3"),
            ("a=x\\\\", "a", "x\\"),
            ("a\\=b=1", "a=b", "1"),
            ("a=\\u0041\\t.", "a", "A\t."),
            ("a=1\ra=2", "a", "2"),
            ("\u{feff}a=1", "a", "1"),
            ("a=1\\", "a", "1"),
        ];
        for (text, name, value) in cases {
            assert_eq!(one(text), (name.to_owned(), value.to_owned()), "{text:?}");
        }
        assert_eq!(parsed(b"# caf\xe9\na=1").unwrap().len(), 1, "Latin-1");
    }

    #[test]
    fn origins_are_lines() {
        let all = parsed(b"# x\na=1\\\n2\nb=3").unwrap();
        assert_eq!((&*all[0].2, &*all[1].2), ("w:2", "w:4"));
    }

    #[test]
    fn bad_files_and_pairs_are_refused() {
        assert!(parsed(b"a\0=\x001\0").is_err());
        for text in ["a=\\u12", "a=\\ud800", "a=\\uzzzz"] {
            let error = format!("{:#}", parsed(text.as_bytes()).unwrap_err());
            assert!(error.contains("w:1"), "{text}: {error}");
        }
        for text in ["", "a", "=1", " =1"] {
            assert!(pair(text).is_err(), "{text:?}");
        }
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
    }
}
