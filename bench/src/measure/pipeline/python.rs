//! Checks the rows of a pipeline against a reference in plain Python, which shares no code with the
//! pipeline.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use embank_pipeline::Format;

use super::generate;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/pipeline/reference.py");

/// Compares `made`, the first `rows` rows of a pipeline, with the rows that Python makes of the
/// input. `format` and `seed` give the input.
///
/// # Errors
/// Fails if a row differs or if there is no Python. It runs `python3`, or the interpreter that the
/// environment variable `PYTHON` names.
pub(super) fn check(
    format: Format,
    modulus: u32,
    seed: u64,
    rows: u64,
    made: &[u32],
) -> Result<()> {
    let (name, input) = match format {
        Format::Packed => ("packed", generate::rows(seed, rows, generate::write_packed)),
        _ => ("text", generate::rows(seed, rows, generate::write_text)),
    };
    let folder = tempfile::tempdir()?;
    let (source, output) = (folder.path().join("input"), folder.path().join("output"));
    write(&source, &input)?;
    let made: Vec<u8> = made.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    write(&output, &made)?;
    let python = std::env::var_os("PYTHON").filter(|named| !named.is_empty());
    let done = Command::new(python.unwrap_or_else(|| "python3".into()))
        .args([SCRIPT, name, &modulus.to_string()])
        .args([&source, &output])
        .output()
        .context("starting python3 for the reference; --python-rows 0 leaves it out")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the reference in Python, modulus {modulus}: {}", said.trim());
    let checked = String::from_utf8_lossy(&done.stdout);
    ensure!(checked.trim() == rows.to_string(), "Python checked {} of {rows} rows", checked.trim());
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::measure::pipeline::generate::Generator;

    /// Makes the expected rows without a pipeline.
    fn made(rows: u64, modulus: u32) -> Vec<u32> {
        let generator = Generator::new(5);
        let mut ids = vec![HashMap::new(); 26];
        let mut made = Vec::new();
        for number in 0..rows {
            let fields = generator.row(number).map(Option::unwrap_or_default);
            made.push(fields[0]);
            let logarithm = |&bits: &u32| (bits.cast_signed().max(0) as f32).ln_1p().to_bits();
            made.extend(fields[1..14].iter().map(logarithm));
            for (ids, value) in ids.iter_mut().zip(&fields[14..]) {
                let fresh = ids.len() as u32;
                made.push(*ids.entry(value % modulus).or_insert(fresh));
            }
        }
        made
    }

    #[test]
    fn right_rows_pass_and_a_wrong_one_is_named() {
        let mut rows = made(300, 1000);
        for format in [Format::TSV, Format::Packed] {
            check(format, 1000, 5, 300, &rows).unwrap();
        }
        rows[40 * 200 + 20] += 1;
        let error = check(Format::TSV, 1000, 5, 300, &rows).unwrap_err().to_string();
        assert!(error.contains("row 200: field 20 is"), "{error}");
        rows[40 * 200 + 20] -= 1;
        rows[40 * 100 + 3] ^= 1 << 6;
        let error = check(Format::Packed, 1000, 5, 300, &rows).unwrap_err().to_string();
        assert!(error.contains("row 100: field 3 is"), "{error}");
        assert!(check(Format::TSV, 1000, 5, 300, &rows[..40 * 299]).is_err());
        assert!(check(Format::TSV, 1000, 5, 299, &made(300, 1000)).is_err());
    }
}
