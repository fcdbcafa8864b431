//! Decodes the settings of an embedding table from the descriptor that a bank stores with the
//! table.

use embank::TableConfig;
use embank_kv::metadata;

use super::seals;

/// Runs the decoder on `data`: two bytes for the descriptor's kind and version, less one, and the
/// body of the settings' frame.
pub fn table_settings(data: &[u8]) {
    let Some((&[kind, version], body)) = data.split_first_chunk::<2>() else { return };
    let mut settings = metadata::encode(&());
    settings.extend_from_slice(body);
    seals::metadata(&mut settings);
    // Only kind 1 and version 1 exist.
    let descriptor = metadata::encode(&(u16::from(kind) + 1, u16::from(version) + 1, settings));
    if let Ok(config) = TableConfig::from_descriptor("table", &descriptor) {
        assert_eq!((kind, version), (0, 0));
        config.validate("table").expect("what is read is in its range");
    }
    // Runs the decoder with `data` as the body of the descriptor itself.
    let mut descriptor = metadata::encode(&());
    descriptor.extend_from_slice(data);
    seals::metadata(&mut descriptor);
    let _ = TableConfig::from_descriptor("table", &descriptor);
}
