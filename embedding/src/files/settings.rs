//! What a file tells about the table that it came from: pairs of text beside the data.

use std::collections::HashMap;
use std::path::Path;

use super::unreadable;
use crate::config::TableConfig;
use crate::error::Result;

const TABLE: &str = "embank.table";
const SETTINGS: &str = "embank.settings";
const CHECKPOINT: &str = "embank.checkpoint";

/// The pairs for a table as a checkpoint holds it.
pub(crate) fn to_pairs(
    table: &str,
    config: &TableConfig,
    checkpoint: u64,
) -> HashMap<String, String> {
    let settings = config.to_descriptor().iter().map(|byte| format!("{byte:02x}")).collect();
    let pairs = [
        (TABLE, table.to_owned()),
        (SETTINGS, settings),
        (CHECKPOINT, checkpoint.to_string()),
        ("embank.dim", config.dim.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The table's settings; none in a file that others made.
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
        let mut pairs = to_pairs("t", &config, 3);
        assert_eq!(from_pairs(path, &pairs).unwrap(), Some(config));
        assert_eq!(from_pairs(path, &HashMap::new()).unwrap(), None);
        pairs.insert(SETTINGS.to_owned(), "zz".to_owned());
        assert!(from_pairs(path, &pairs).is_err());
        pairs.insert(SETTINGS.to_owned(), "00".to_owned());
        assert!(from_pairs(path, &pairs).is_err());
    }
}
