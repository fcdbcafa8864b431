//! The settings of the exported table, stored in a file as pairs of text beside the data.

use std::collections::HashMap;
use std::path::Path;

use super::unreadable;
use crate::error::Result;
use crate::row::config::TableConfig;

const TABLE: &str = "embank.table";
const SETTINGS: &str = "embank.settings";
const CHECKPOINT: &str = "embank.checkpoint";
const VALUES: &str = "embank.vocabulary";

/// Identifies the values of the vocabulary whose ids are the keys in a file: the number of values,
/// and a hash of all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldValues {
    pub(crate) len: u64,
    pub(crate) fingerprint: u64,
}

/// Encodes a table's settings and the number of the exported checkpoint as pairs of text.
pub(crate) fn to_pairs(
    table: &str,
    config: &TableConfig,
    checkpoint: u64,
    values: Option<HeldValues>,
) -> HashMap<String, String> {
    // The shard is a place in one fleet, and no property of the rows.
    let settings = config.clone().shard(None);
    let settings = settings.to_descriptor().iter().map(|byte| format!("{byte:02x}")).collect();
    let pairs = [
        (TABLE, table.to_owned()),
        (SETTINGS, settings),
        (CHECKPOINT, checkpoint.to_string()),
        ("embank.dim", config.dim.to_string()),
    ];
    let values = values.map(|HeldValues { len, fingerprint }| {
        (VALUES, format!("{len} values, fingerprint {fingerprint:016x}"))
    });
    pairs.into_iter().chain(values).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the length and hash of the vocabulary whose ids are the file's keys. `None` if another
/// program wrote the file, or if the keys are not ids.
pub(crate) fn values_of(
    path: &Path,
    pairs: &HashMap<String, String>,
) -> Result<Option<HeldValues>> {
    let Some(text) = pairs.get(VALUES) else { return Ok(None) };
    let parse = || {
        let (len, fingerprint) = text.split_once(" values, fingerprint ")?;
        let fingerprint = u64::from_str_radix(fingerprint, 16).ok()?;
        Some(HeldValues { len: len.parse().ok()?, fingerprint })
    };
    parse().map(Some).ok_or_else(|| unreadable(path, format!("its {VALUES} is damaged")))
}

/// Returns the exported table's settings. `None` if another program wrote the file.
pub(crate) fn from_pairs(
    path: &Path,
    pairs: &HashMap<String, String>,
) -> Result<Option<TableConfig>> {
    let Some(digits) = pairs.get(SETTINGS) else { return Ok(None) };
    let table = pairs.get(TABLE).map_or("", String::as_str);
    let bytes: Option<Vec<u8>> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let bytes = bytes.ok_or_else(|| unreadable(path, format!("its {SETTINGS} are damaged")))?;
    let config = TableConfig::from_descriptor(table, &bytes);
    Ok(Some(config.map_err(|error| unreadable(path, format!("its {SETTINGS}: {error}")))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_and_damage_is_told() {
        let path = Path::new("t.safetensors");
        let config = TableConfig::new(5).seed(9);
        let placed = config.clone().shard(Some(3));
        let values = Some(HeldValues { len: 5, fingerprint: u64::MAX - 1 });
        let mut pairs = to_pairs("t", &placed, 3, values);
        assert_eq!(values_of(path, &pairs).unwrap(), values);
        assert_eq!(values_of(path, &to_pairs("t", &config, 3, None)).unwrap(), None);
        pairs.insert(VALUES.to_owned(), "5 values".to_owned());
        assert!(values_of(path, &pairs).is_err());
        assert_eq!(from_pairs(path, &pairs).unwrap(), Some(config));
        assert_eq!(from_pairs(path, &HashMap::new()).unwrap(), None);
        pairs.insert(SETTINGS.to_owned(), "zz".to_owned());
        assert!(from_pairs(path, &pairs).is_err());
        pairs.insert(SETTINGS.to_owned(), "00".to_owned());
        assert!(from_pairs(path, &pairs).is_err());
    }
}
