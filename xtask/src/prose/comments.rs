//! The prose of a file: the text of its comments and docstrings, or of a Markdown page.
//!
//! Code, strings, fenced code and console examples are left out. The lexers know only the parts of
//! each language that tell a comment from a string.

/// The marks of comments in a file's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// `//` and nested `/* */`; raw strings; `'` begins a lifetime or a character.
    Rust,
    /// `//` and `/* */`.
    C,
    /// `#` and docstrings.
    Python,
    /// `#`; strings of one and of three quotes.
    Toml,
    /// `#` at the beginning of a word; strings of more than one line.
    Shell,
    Markdown,
}

impl Language {
    /// Returns the language of a file by the end of its name. `None` if the file has no prose to
    /// check.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "rs" => Some(Self::Rust),
            "c" | "h" | "cpp" | "hpp" => Some(Self::C),
            "py" | "pyi" => Some(Self::Python),
            "toml" => Some(Self::Toml),
            "sh" => Some(Self::Shell),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// The prose of one line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    /// The text without the marks of the comment.
    pub(super) text: String,
    /// True if the line has code before the comment.
    pub(super) is_behind_code: bool,
}

/// Returns the lines of a file that hold prose, in order.
pub(super) fn lines_of(language: Language, text: &str) -> Vec<Line> {
    let lines = match language {
        Language::Markdown => {
            let line = |(i, text): (usize, &str)| Line {
                number: i + 1,
                text: text.to_owned(),
                is_behind_code: false,
            };
            text.lines().enumerate().map(line).collect()
        }
        _ => Lexer::new(language, text).comments(),
    };
    outside_code(lines)
}

/// Leaves out fenced code, the fences themselves, and the examples of a Python console.
fn outside_code(lines: Vec<Line>) -> Vec<Line> {
    let mut kept = Vec::new();
    let mut in_code = false;
    let mut last = 0;
    for line in lines {
        // A fence that is still open ends at the end of its comment.
        in_code &= line.number <= last + 1;
        last = line.number;
        let text = line.text.trim_start();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        let is_console = text.starts_with(">>> ") || text.starts_with("... ");
        in_code ^= is_fence;
        if !in_code && !is_fence && !is_console {
            kept.push(line);
        }
    }
    kept
}

/// Walks over a source file and collects its comments.
struct Lexer<'t> {
    language: Language,
    text: &'t str,
    /// The position in bytes, always at the beginning of a character.
    at: usize,
    number: usize,
    /// The position where the line of `at` begins.
    line_start: usize,
    /// Number of open brackets. A string that begins a line inside brackets is an argument, not a
    /// docstring.
    depth: usize,
    found: Vec<Line>,
}

impl<'t> Lexer<'t> {
    fn new(language: Language, text: &'t str) -> Self {
        Self { language, text, at: 0, number: 1, line_start: 0, depth: 0, found: Vec::new() }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Advances by `bytes` and counts the lines that end there.
    fn step(&mut self, bytes: usize) {
        let end = (self.at + bytes).min(self.text.len());
        for (i, _) in self.text[self.at..end].match_indices('\n') {
            self.number += 1;
            self.line_start = self.at + i + 1;
        }
        self.at = end;
    }

    /// Returns the number of bytes from `at` to the end of the next `mark`, or to the file's end.
    /// The search for `mark` begins `from` bytes after `at`.
    fn through(&self, from: usize, mark: &str) -> usize {
        let rest = self.rest().get(from..).unwrap_or("");
        rest.find(mark).map_or(self.rest().len(), |i| from + i + mark.len())
    }

    /// Returns the text of the line before `at`.
    fn before(&self) -> &'t str {
        &self.text[self.line_start..self.at]
    }

    fn comments(mut self) -> Vec<Line> {
        // The loop ends because each turn moves on by at least one character.
        while let Some(next) = self.rest().chars().next() {
            let is_taken = match self.language {
                Language::Rust | Language::C => self.take_slashes(next),
                _ => self.take_hash(next),
            };
            if !is_taken {
                match next {
                    '(' | '[' | '{' => self.depth += 1,
                    ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                self.step(next.len_utf8());
            }
        }
        self.found
    }

    /// Consumes the comment or the string of Rust or C that begins here. Returns false if neither
    /// begins here.
    fn take_slashes(&mut self, next: char) -> bool {
        let rest = self.rest();
        if rest.starts_with("//") {
            self.take_comment(rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.take_comment(self.block_length());
        } else if next == '"' {
            self.step(string_length(rest, "\"", true));
        } else if next == '\'' {
            self.step(self.quote_length());
        } else if let Some(length) = self.raw_string_length() {
            self.step(length);
        } else {
            return false;
        }
        true
    }

    /// Consumes the comment or the string of Python, TOML or the shell that begins here. Returns
    /// false if neither begins here.
    fn take_hash(&mut self, next: char) -> bool {
        let rest = self.rest();
        let is_word_start = self.before().chars().next_back().is_none_or(char::is_whitespace);
        let is_comment = next == '#' && (self.language != Language::Shell || is_word_start);
        if is_comment {
            self.take_comment(rest.find('\n').unwrap_or(rest.len()));
            return true;
        }
        if next == '\\' && self.language != Language::Toml {
            self.step(1 + rest[1..].chars().next().map_or(0, char::len_utf8));
            return true;
        }
        if next != '"' && next != '\'' {
            return false;
        }
        let has_escapes = next == '"' || self.language == Language::Python;
        let triple = &next.to_string().repeat(3);
        if self.language != Language::Shell && rest.starts_with(triple.as_str()) {
            let length = string_length(rest, triple, has_escapes);
            let is_first = matches!(self.before().trim_start(), "" | "r" | "R");
            if self.language == Language::Python && is_first && self.depth == 0 {
                self.take_comment(length);
            } else {
                self.step(length);
            }
        } else {
            self.step(string_length(rest, &next.to_string(), has_escapes));
        }
        true
    }

    /// Consumes the comment that begins here and has `length` bytes.
    fn take_comment(&mut self, length: usize) {
        let is_behind_code = !self.before().trim_start_matches(['r', 'R']).trim().is_empty();
        let comment = &self.rest()[..length];
        for (i, line) in comment.lines().enumerate() {
            let text = line.trim_start();
            let text = match self.language {
                Language::Rust | Language::C => text.trim_start_matches(['/', '*', '!']),
                _ => text.trim_start_matches(['#', '"', '\'']),
            };
            let text = text.trim_end().trim_end_matches("*/").trim_end_matches("\"\"\"");
            let is_behind_code = is_behind_code && i == 0;
            self.found.push(Line {
                number: self.number + i,
                text: text.to_owned(),
                is_behind_code,
            });
        }
        self.step(length);
    }

    /// Returns the length of the block comment that begins here. In Rust, a block comment may
    /// contain another.
    fn block_length(&self) -> usize {
        let rest = self.rest();
        let mut open = 1;
        let mut at = 2;
        // The loop ends because each turn passes a mark.
        while open > 0 {
            let end = self.through(at, "*/");
            let start = self.through(at, "/*");
            if self.language == Language::Rust && start < end {
                open += 1;
                at = start;
            } else {
                open -= 1;
                at = end;
            }
            if at >= rest.len() {
                break;
            }
        }
        at
    }

    /// Returns the length of the character literal that begins with `'`, or 1 for the mark of a
    /// lifetime.
    fn quote_length(&self) -> usize {
        let rest = self.rest();
        let mut inner = rest[1..].chars();
        let first = inner.next();
        let is_character =
            self.language == Language::C || first == Some('\\') || inner.next() == Some('\'');
        if is_character { string_length(rest, "'", true) } else { 1 }
    }

    /// Returns the length of the raw string that begins here: `r"..."`, `br#"..."#` and so on.
    /// `None` if no raw string begins here.
    fn raw_string_length(&self) -> Option<usize> {
        if self.language != Language::Rust {
            return None;
        }
        let is_in_name =
            self.before().chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let rest = self.rest();
        let tail = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        if is_in_name || !tail[hashes..].starts_with('"') {
            return None;
        }
        let start = rest.len() - tail.len() + hashes + 1;
        Some(self.through(start, &format!("\"{}", "#".repeat(hashes))))
    }
}

/// Returns the length of the string at the beginning of `rest`. It ends with the next `quote`
/// without a `\` before it.
fn string_length(rest: &str, quote: &str, has_escapes: bool) -> usize {
    let mut at = quote.len();
    // The loop ends because each turn moves on by a character.
    while let Some(next) = rest[at..].chars().next() {
        if rest[at..].starts_with(quote) {
            return at + quote.len();
        }
        at += next.len_utf8();
        if next == '\\' && has_escapes {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str, text: &str) -> Vec<String> {
        let lines = lines_of(Language::of(name).unwrap(), text);
        lines.into_iter().map(|line| format!("{}:{}", line.number, line.text.trim())).collect()
    }

    #[test]
    fn comments_of_each_language_are_found() {
        for (name, text, found) in [
            ("a.rs", "//! one\n/// two\nlet x = 1; // three\n", vec!["1:one", "2:two", "3:three"]),
            (
                "a.rs",
                "/* one\n /* two */\n three */ fn f() {}\n// four",
                vec!["1:one", "2:two", "3:three", "4:four"],
            ),
            ("a.c", "/* one\n * two */\nint x; // three\n", vec!["1:one", "2:two", "3:three"]),
            (
                "a.py",
                "def f():\n    \"\"\"One\n\n    two.\"\"\"\n    pass  # three\n",
                vec!["2:One", "3:", "4:two.", "5:three"],
            ),
            ("a.toml", "# one\nx = 1   # two\n", vec!["1:one", "2:two"]),
            ("a.sh", "#!/bin/sh\necho a#b $# # one\n", vec!["1:!/bin/sh", "2:one"]),
            ("a.md", "one\n\ntwo\n", vec!["1:one", "2:", "3:two"]),
        ] {
            assert_eq!(texts(name, text), found, "{name}: {text:?}");
        }
    }

    #[test]
    fn strings_are_no_comments() {
        for (name, text) in [
            ("a.rs", r#"let x = "// no \" // no"; let y = '"'; let z: &'a str = "/*";"#),
            ("a.rs", "let x = r#\"// no\n\"// no\"#; let y = b\"// no\";"),
            ("a.rs", r"let x = '\''; let y = '/';"),
            ("a.c", r#"char *x = "// no", y = '"'; char z = '/';"#),
            ("a.py", "x = '# no'\ny = \"\"\"# no\n\"\"\"\nf(\n    \"\"\"no\"\"\")\nz = '''no'''\n"),
            ("a.toml", "x = '# no\\'\ny = \"# no\"\nz = \"\"\"\n# no\n\"\"\"\n"),
            ("a.sh", "echo '# no\n# no' \"# no\" \\# no\n"),
        ] {
            assert!(texts(name, text).is_empty(), "{name}: {text:?} {:?}", texts(name, text));
        }
    }

    #[test]
    fn examples_are_left_out() {
        assert_eq!(
            texts("a.rs", "/// one\n/// ```\n/// let x = 1;\n/// ```\n/// two\n"),
            ["1:one", "5:two"]
        );
        assert_eq!(texts("a.md", "one\n~~~\ncode\n~~~\n"), ["1:one"]);
        assert_eq!(texts("a.py", "\"\"\"One\n\n>>> f()\n... g()\n\"\"\"\n"), ["1:One", "2:", "5:"]);
    }

    #[test]
    fn an_open_fence_ends_with_its_comment() {
        assert_eq!(texts("a.rs", "/// ```\n/// code\nfn f() {}\n/// one\n"), ["4:one"]);
    }

    #[test]
    fn a_comment_behind_code_is_told_from_one_that_fills_its_line() {
        let lines = lines_of(Language::Rust, "let x = 1; // one\n    // two\n");
        assert_eq!(lines.iter().map(|line| line.is_behind_code).collect::<Vec<_>>(), [true, false]);
    }
}
