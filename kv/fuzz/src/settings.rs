//! Decodes the settings of an embedding table. A bank stores them in the table's descriptor.

use embank::TableConfig;
use embank_kv::metadata;

use super::seals;

/// Decodes a descriptor. The first two bytes of `data` give its kind and its version, each less 1.
/// The other bytes are the content of the settings' frame.
pub fn table_settings(data: &[u8]) {
    let Some((&[kind, version], body)) = data.split_first_chunk::<2>() else { return };
    let mut settings = metadata::encode(&());
    settings.extend_from_slice(body);
    seals::metadata(&mut settings);
    // The decoder must accept only kind 1 and version 1.
    let descriptor = metadata::encode(&(u16::from(kind) + 1, u16::from(version) + 1, settings));
    if let Ok(config) = TableConfig::from_descriptor("table", &descriptor) {
        assert_eq!((kind, version), (0, 0));
        config.validate("table").expect("what is read is in its range");
    }
    // Decodes `data` as the content of the descriptor itself.
    let mut descriptor = metadata::encode(&());
    descriptor.extend_from_slice(data);
    seals::metadata(&mut descriptor);
    let _ = TableConfig::from_descriptor("table", &descriptor);
}
