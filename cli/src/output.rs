//! The output of the program: text, JSON, tables, readable numbers and progress bars.
//!
//! **Printing never ends a command.** If a write to standard output fails, the command still does
//! its work, but prints nothing more. A closed pipe (`| head`) does not change the exit status. For
//! any other failure, [`exit_code`] returns an error status. No function here panics if a stream is
//! full or closed.

use std::fmt::{Display, Write as _};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use embank::TransferProgress;
use embank::locks::Mutex;
use embank_kv::OutputFile;
use embank_kv::inspect::{Damage, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Ending;

/// The first failed write to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => put(&format!("{text}\n")),
        Err(error) => failed(error.into()),
    }
}

/// Prints text. Keeps line feeds and escapes all other control characters, because names may
/// contain them.
pub(crate) fn print(text: &str) {
    put(&escaped(text, true));
}

fn put(text: &str) {
    if FAILED.lock().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        failed(error);
    }
}

/// Prints the result of a command as JSON or text. If `is_streamed`, the rows went to standard
/// output, and the result goes to standard error.
pub(crate) fn report<T: Serialize>(
    value: &T,
    as_json: bool,
    is_streamed: bool,
    words: impl FnOnce() -> String,
) {
    match (as_json, is_streamed) {
        (true, false) => json(value),
        (false, false) => print(&words()),
        (true, true) => note(&(serde_json::to_string(value).unwrap_or_default() + "\n")),
        (false, true) => note(&words()),
    }
}

/// Stores the error of the first failed write to standard output for [`exit_code`].
pub(crate) fn failed(error: io::Error) {
    FAILED.lock().get_or_insert(error);
}

/// Prints text to standard error and ignores a failed write.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().lock().write_all(escaped(text, true).as_bytes());
}

/// Returns a name or path as one line, with escaped control characters.
pub(crate) fn shown(name: impl Display) -> String {
    escaped(&name.to_string(), false)
}

fn escaped(text: &str, keeps_lines: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && !(keeps_lines && character == '\n') {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns the text of an error with its causes. Leaves out a cause that the text before it already
/// contains.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// True if the error says that the reader of a pipe has closed it.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let of = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    of.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns the exit status of a command. An error of the command or damage that it found decides
/// the status. If there is neither, a failed write to standard output counts as a failure, except
/// to a closed pipe.
pub(crate) fn exit_code(ended: Result<Ending>) -> ExitCode {
    const DAMAGE: u8 = 1;
    const FAILURE: u8 = 2;
    match (ended, FAILED.lock().take()) {
        (Ok(Ending::Damage), _) => ExitCode::from(DAMAGE),
        (Ok(Ending::Good), Some(error)) if error.kind() != ErrorKind::BrokenPipe => {
            note(&format!("error: writing to standard output: {error}\n"));
            ExitCode::from(FAILURE)
        }
        (Ok(Ending::Good), _) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as `| head` does, and needs no more output.
        (Err(error), _) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        (Err(error), _) => {
            note(&format!("error: {}\n", shown(causes(&error))));
            ExitCode::from(FAILURE)
        }
    }
}

/// True if the path means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes a small file atomically.
///
/// # Errors
/// Returns an error if the file cannot be written or would replace one of `inputs`.
pub(crate) fn write_file(path: &Path, text: &str, inputs: &[&Path]) -> Result<()> {
    let mut file = OutputFile::create(path)?;
    if let Some(input) = inputs.iter().find(|input| file.replaces(input)) {
        bail!(
            "{} would take the place of the input {}; give another path",
            path.display(),
            input.display()
        );
    }
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    file.sync()?;
    Ok(file.publish()?)
}

/// Returns columns of text. The first column is aligned to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            if i == 0 {
                line += &format!("{cell:<width$}", width = widths[0]);
            } else {
                line += &format!("  {cell:>width$}", width = widths[i]);
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Returns a number with commas between thousands, such as 1,234,567.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes in the largest fitting unit, such as 1.50 GiB.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// Parses a number with an optional unit: 4096, 64MiB, 1GB, 10k.
///
/// # Errors
/// Returns an error for a text that is no number, an unknown unit, and a number that is too large.
pub(crate) fn parse_scaled(text: &str) -> Result<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    let scale: u64 = match unit {
        "" | "B" => 1,
        "k" | "kB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "T" | "TB" => 1_000_000_000_000,
        "K" | "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => bail!("{unit:?} is no known unit: k, M, G, T (of 1,000), KiB, MiB, GiB, TiB"),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).context("the number is too large");
    }
    let value: f64 = number.parse().with_context(|| format!("{text:?} is no number"))?;
    Ok((value * scale as f64).round() as u64)
}

/// A progress bar of log bytes on stderr. Nothing is drawn if stderr is not a terminal.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(what: &'static str) -> Self {
        let style = ProgressStyle::with_template(
            "{prefix} {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        );
        let style = style.expect("the template is well formed");
        Bar(ProgressBar::new(0).with_style(style).with_prefix(what))
    }

    pub(crate) fn show(&self, progress: Progress) {
        self.0.set_length(progress.total_bytes);
        self.0.set_position(progress.done_bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A progress bar of rows on stderr. Nothing is drawn if stderr is not a terminal.
pub(crate) struct RowBar(ProgressBar);

impl RowBar {
    pub(crate) fn new(what: &'static str) -> Self {
        let style =
            ProgressStyle::with_template("{prefix} {bar:40} {human_pos}/{human_len} rows {eta}");
        let style = style.expect("the template is well formed");
        RowBar(ProgressBar::new(0).with_style(style).with_prefix(what))
    }

    pub(crate) fn show(&self, progress: TransferProgress) {
        self.0.set_length(progress.rows_total);
        self.0.set_position(progress.rows_done);
    }
}

impl Drop for RowBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Damage as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct DamageJson {
    file: String,
    offset: u64,
    page: Option<u64>,
    pages: u64,
    part: Option<u64>,
    tables: Vec<String>,
    checkpoint: Option<u64>,
    what: String,
}

impl DamageJson {
    pub(crate) fn all(damage: &[Damage]) -> Vec<Self> {
        let of = |damage: &Damage| DamageJson {
            file: damage.path.display().to_string(),
            offset: damage.offset,
            page: damage.page,
            pages: damage.pages,
            part: damage.part,
            tables: damage.tables.clone(),
            checkpoint: damage.checkpoint,
            what: damage.what.clone(),
        };
        damage.iter().map(of).collect()
    }
}

/// Returns damage as lines, with paths relative to the bank's directory.
pub(crate) fn damage_lines(bank: &Path, damage: &[Damage]) -> String {
    let mut text = String::new();
    for found in damage {
        let path = found.path.strip_prefix(bank).unwrap_or(&found.path).display();
        text += &format!("  {} at {}: {}", shown(path), found.offset, shown(&found.what));
        if !found.tables.is_empty() {
            text += &format!(" (table {})", shown(found.tables.join(", ")));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_control_characters_escaped() {
        let cause = io::Error::other("no space");
        let twice = anyhow::Error::new(cause).context("write /x: no space").context("exporting");
        assert_eq!(causes(&twice), "exporting: write /x: no space");
        assert_eq!(shown("a\u{1b}[2J\nb\u{9b}é"), "a\\u{1b}[2J\\nb\\u{9b}é");
        assert_eq!(escaped("a\tb\n", true), "a\\tb\n");
        let cells = table(&[vec!["na\nme".to_owned(), "1".to_owned()]]);
        assert_eq!(cells, "na\\nme  1\n");
    }

    #[test]
    fn numbers_are_read_and_written_as_people_do() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123_456), "123,456");
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".into(), "1.50 KiB".into()));
        assert_eq!(parse_scaled("64MiB").unwrap(), 64 << 20);
        assert_eq!(parse_scaled("1.5 GB").unwrap(), 1_500_000_000);
        assert_eq!(parse_scaled("10k").unwrap(), 10_000);
        assert!(parse_scaled("10 apples").is_err() && parse_scaled("").is_err());
    }
}
