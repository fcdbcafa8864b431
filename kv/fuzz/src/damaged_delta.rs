//! Edits a delta between two checkpoints and applies it to a copy of the bank. The checksums are
//! left as they were, or are corrected after the edits. Afterwards the copy must be at the delta's
//! checkpoint, or unchanged. After a delta with corrected checksums, the copy may have any content.

use std::fs;
use std::path::Path;

use arbitrary::Arbitrary;
use embank_kv::Store;

use super::damaged_bank::{Bank, EDITS_MAX, Edit, change, open, write};
use super::rows::peek;
use super::seals;

/// The input of the fuzz target. The edits' file numbers are ignored, because the delta is one
/// file.
#[derive(Debug, Arbitrary)]
pub struct DamagedDelta {
    /// True if the checksums are corrected after the edits.
    seal: bool,
    edits: Vec<Edit>,
}

impl Bank {
    /// Edits the delta and applies it to a copy below `folder`.
    pub fn apply(&self, damage: &DamagedDelta, folder: &Path) {
        let dir = tempfile::tempdir_in(folder).expect("a directory");
        let (bank, file) = (dir.path().join("bank"), dir.path().join("delta"));
        write(&self.copy, &bank);
        let mut delta = self.delta.clone();
        for edit in damage.edits.iter().take(EDITS_MAX) {
            change(&mut delta, edit);
        }
        if damage.seal {
            seals::delta(&mut delta);
        }
        fs::write(&file, &delta).expect("a file");
        let applied = Store::apply_delta(&bank, &file, 2, &mut |_| {});
        assert!(applied.is_ok() || delta != self.delta, "{applied:?}");
        let tables = match &applied {
            Err(_) => &self.tables_before,
            Ok(_) => {
                let right = delta == self.delta;
                assert!(right || damage.seal, "an edit that no checksum covers");
                if !right {
                    // The edited delta has correct checksums. The copy may therefore have any
                    // content, or its opening may fail.
                    drop(open(&bank));
                    return;
                }
                &self.tables
            }
        };
        let store = open(&bank).expect("it is at a whole checkpoint");
        for table in store.tables() {
            let (_, rows) = &tables[&table.name];
            let keys: Vec<u64> = (0..70).collect();
            let found = peek(&store, (table.id, table.width), &keys).expect("its rows are whole");
            assert!(keys.iter().zip(&found).all(|(key, row)| row.as_ref() == rows.get(key)));
        }
        assert_eq!(store.tables().len(), tables.len());
    }
}
