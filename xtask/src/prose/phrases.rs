//! The phrases that this project's prose avoids, and the search for them.
//!
//! The search also finds a phrase that continues on the next line. It does not look at text in
//! backticks or at the targets of links.

use super::comments::Line;

/// A phrase to find. `right_in` lists longer phrases in which the phrase is allowed.
///
/// A phrase is written as words with one space between. A word can have alternatives, as in
/// `is|are`. `^` stands for the beginning of a sentence, `.` for its end, and `,` for a comma.
struct Banned {
    phrase: &'static str,
    right_in: &'static [&'static str],
}

const fn always(phrase: &'static str) -> Banned {
    Banned { phrase, right_in: &[] }
}

/// Phrases that a reader has to read twice: archaic words, and words that leave the actor, the
/// quantity or the thing unsaid.
const BANNED: &[Banned] = &[
    // Archaic or inverted.
    always("anew"),
    always("as above"),
    always("but for"),
    always("come|comes|came to its|their end"),
    always("give|gives|gave|giving|given way"),
    always("go|goes|going|went|gone round"),
    always("hardly"),
    always("in vain"),
    always("is|are|was|were to be had"),
    always("is|are|was|were told of"),
    always("its due"),
    always("lest"),
    always("likewise"),
    always("meanwhile , it|they"),
    always("needs must"),
    always("no pace"),
    always("none of"),
    always("nor can|did|do|does|had|has|have|is|are|must|was|were|will"),
    always("of late"),
    always("set|sets|setting to work"),
    always("thereby"),
    always("therein"),
    always("thereof"),
    always("whereof"),
    // No quantity.
    Banned { phrase: "so long", right_in: &["so long as"] },
    always("so many"),
    always("so much"),
    always("so often"),
    // No actor.
    always("nobody"),
    always("somebody"),
    always("those who"),
    // A user is a person; a thread, a batch or a file is not.
    Banned {
        phrase: "who",
        right_in: &[
            "anyone|author|developer|developers|engineer|engineers|maintainer|maintainers who",
            "operator|operators|people|person|practitioner|practitioners|readers|researcher who",
            "researchers|user|users who",
            "those who", // found by its own phrase
        ],
    },
    always("whoever"),
    // No thing.
    Banned {
        phrase: "is|are|was|were|be|of|as|but none",
        right_in: &["there is|are|was|were none"],
    },
    always("^ the same ."),
    always("^ the same ,"),
    always(
        "^ the same again|applies|as|at|beside|but|by|for|goes|if|in|of|on|to|when|where|with|without",
    ),
];

/// A phrase that stands in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) line: usize,
    pub(super) phrase: String,
}

/// Returns every banned phrase in a file's prose, in order.
pub(super) fn hits(lines: &[Line]) -> Vec<Hit> {
    let tokens = tokens(lines);
    let mut found = Vec::new();
    for start in 0..tokens.len() {
        for banned in BANNED {
            let Some(end) = end_of(&tokens, start, banned.phrase) else { continue };
            let is_right = banned.right_in.iter().any(|longer| covers(&tokens, longer, start, end));
            if !is_right {
                let words = tokens[start..end].iter().filter_map(|token| token.word());
                let phrase = words.collect::<Vec<_>>().join(" ");
                // The line of the hit is that of its first word. `^` matches the end of the
                // sentence before, which may be on an earlier line.
                let first = tokens[start..end].iter().find(|token| token.word().is_some());
                found.push(Hit { line: first.unwrap_or(&tokens[start]).line, phrase });
            }
        }
    }
    found.sort_by_key(|hit| hit.line);
    found
}

/// True if the longer phrase is in the text and covers the tokens `start..end`.
fn covers(tokens: &[Token], longer: &str, start: usize, end: usize) -> bool {
    let length = longer.split(' ').count();
    (start.saturating_sub(length)..=start)
        .any(|from| end_of(tokens, from, longer).is_some_and(|longer_end| longer_end >= end))
}

/// Returns the index after the phrase that begins at `start`. `None` if the phrase does not begin
/// there.
fn end_of(tokens: &[Token], start: usize, phrase: &str) -> Option<usize> {
    let mut at = start;
    for element in phrase.split(' ') {
        let token = tokens.get(at)?;
        let is_there = match (element, &token.kind) {
            ("^" | ".", Kind::End) | (",", Kind::Comma) => true,
            (words, Kind::Word(word)) => words.split('|').any(|alternative| alternative == word),
            _ => false,
        };
        if !is_there {
            return None;
        }
        at += 1;
    }
    Some(at)
}

#[derive(Debug)]
struct Token {
    kind: Kind,
    line: usize,
}

impl Token {
    fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A word in lower case. `None`, `True` and `False` inside a sentence are Python's values and
    /// keep their capitals.
    Word(String),
    Comma,
    /// The end of a sentence, a paragraph, a heading, a cell or an item.
    End,
    /// Code, a link's target, or another punctuation mark.
    Other,
}

/// Returns the tokens of the lines. Adjacent lines of a comment are one text.
fn tokens(lines: &[Line]) -> Vec<Token> {
    let mut tokens = vec![Token { kind: Kind::End, line: 0 }];
    let mut rest = lines;
    // The loop ends because each turn takes at least one line.
    while let Some((first, others)) = rest.split_first() {
        let mut length = 1;
        for (previous, line) in rest.iter().zip(others) {
            if starts_text(previous, line) {
                break;
            }
            length += 1;
        }
        add_text(&mut tokens, &rest[..length]);
        let last = rest[length - 1].number;
        tokens.push(Token { kind: Kind::End, line: last });
        debug_assert!(last >= first.number, "lines are in order");
        rest = &rest[length..];
    }
    tokens
}

/// True if the text of `line` does not continue that of the line before it.
fn starts_text(previous: &Line, line: &Line) -> bool {
    let is_marked = |line: &Line| line.text.trim_start().starts_with(['|', '#']);
    let text = line.text.trim_start();
    let is_item = text.starts_with("- ") || text.starts_with("* ");
    line.number != previous.number + 1
        || line.is_behind_code
        || text.is_empty()
        || is_item
        || is_marked(line)
        || is_marked(previous)
}

fn add_text(tokens: &mut Vec<Token>, lines: &[Line]) {
    let text = lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n");
    let first = lines[0].number;
    let line_at = |at: usize| first + text[..at].matches('\n').count();
    let mut at = 0;
    // The loop ends because each turn moves on by a character.
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, kind) = match next {
            '`' => (code_length(rest), Some(Kind::Other)),
            _ if rest.starts_with("](") => (rest.find(')').map_or(2, |end| end + 1), None),
            _ if rest.starts_with("http://") || rest.starts_with("https://") => {
                (rest.find(char::is_whitespace).unwrap_or(rest.len()), Some(Kind::Other))
            }
            _ if next.is_alphanumeric() || next == '_' => {
                let length = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
                let is_start = tokens.last().is_none_or(|token| token.kind == Kind::End);
                (length, Some(Kind::Word(normal(&rest[..length], is_start))))
            }
            '.' | '!' | '?' | ':' | ';' | '|' => (1, Some(Kind::End)),
            ',' => (1, Some(Kind::Comma)),
            _ if next.is_whitespace() || matches!(next, '*' | '-' | '[' | ']' | '#') => {
                (next.len_utf8(), None)
            }
            _ => (next.len_utf8(), Some(Kind::Other)),
        };
        if let Some(kind) = kind {
            tokens.push(Token { kind, line: line_at(at) });
        }
        at += length;
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '\'' | '_' | '-')
}

/// Returns the word in lower case and without `'s` at its end.
fn normal(word: &str, is_start: bool) -> String {
    if !is_start && matches!(word, "None" | "True" | "False") {
        return word.to_owned();
    }
    let word = word.to_lowercase();
    word.strip_suffix("'s").unwrap_or(&word).to_owned()
}

/// Returns the length of the code in backticks at the start of `text`. The code ends with the
/// number of backticks with which it begins.
fn code_length(text: &str) -> usize {
    let marks = text.len() - text.trim_start_matches('`').len();
    let end = text[marks..].find(&text[..marks]);
    end.map_or(marks, |end| end + 2 * marks)
}

#[cfg(test)]
mod tests {
    use super::super::comments::{Language, lines_of};
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        let lines = lines_of(Language::of(name).unwrap(), text);
        hits(&lines).into_iter().map(|hit| format!("{}: {}", hit.line, hit.phrase)).collect()
    }

    #[test]
    fn a_phrase_is_found_in_comments_and_pages() {
        for (name, text, hit) in [
            ("a.rs", "/// Waits in vain.\nfn f() {}", "1: in vain"),
            ("a.rs", "//! Waits In Vain.\n", "1: in vain"),
            ("a.rs", "let x = 1; // in vain\n", "1: in vain"),
            ("a.rs", "/// Of the rows there are of late\n/// some.\n", "1: of late"),
            ("a.rs", "/// One row in so\n/// many.\n", "1: so many"),
            ("a.py", "def f():\n    pass  # nor does it\n", "2: nor does"),
            ("a.pyi", "\"\"\"It waits\n\nin vain.\n\"\"\"\n", "3: in vain"),
            ("a.toml", "x = 1  # anew\n", "1: anew"),
            ("a.h", "/* It gives\n   way. */\n", "1: gives way"),
            ("a.md", "| a | whoever |\n", "1: whoever"),
            ("a.md", "Nobody's worry.\n", "1: nobody"),
            ("a.md", "The thread who holds it.\n", "1: who"),
            ("a.md", "Meanwhile, it waits.\n", "1: meanwhile it"),
            ("a.md", "Done.\n\nThe same for values.\n", "3: the same for"),
            ("a.md", "A name that is none, is it?\n", "1: is none"),
        ] {
            assert_eq!(found(name, text), [hit], "{name}: {text:?}");
        }
    }

    #[test]
    fn code_strings_and_right_phrases_are_left_alone() {
        for (name, text) in [
            ("a.rs", "let nobody = \"in vain // in vain\";\n"),
            ("a.rs", "/// `nobody` is a name, as ``lest`` is.\n"),
            ("a.rs", "/// ```\n/// let lest = 1;\n/// ```\nfn f() {}"),
            ("a.rs", "/// The lowest latest finest.\n"),
            ("a.rs", "/// Of rows. Late ones.\n"),
            ("a.rs", "let x = 1; // of\nlet y = 2; // late\n"),
            ("a.py", "nobody = 'in vain'\nif x is None: pass  # if x is None\n"),
            ("a.py", "\"\"\"Text.\n\n>>> nobody = 1\n\"\"\"\n"),
            ("a.md", "```\nnobody\n```\n"),
            ("a.md", "[x](nobody.md) https://nobody.org/lest\n"),
            ("a.md", "Users who train hold a lease so long as they need it.\n"),
            ("a.md", "If there is none, it ends.\n"),
            ("a.md", "The same rows come back. It does the same for keys.\n"),
        ] {
            assert!(found(name, text).is_empty(), "{name}: {text:?}: {:?}", found(name, text));
        }
    }
}
