//! Verifies the parts of the cold tier: the list of each checkpoint, and the blocks of each part.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Damage;
use super::bank::BankFiles;
use crate::checkpoint::manifest::Manifest;
use crate::cold::head::part_address;
use crate::cold::list;
use crate::error::Result;
use crate::files::checked_stream::survey;
use crate::files::directory::Directory;
use crate::history::parts::{check_part, open_to_read};

/// Returns the damage of the lists and the parts of the checkpoints that `wanted` accepts. A part
/// that several checkpoints name is read once. A damaged part is listed with its first damage.
///
/// # Errors
/// `NewerFormat`.
pub(super) fn damage(
    dir: &Arc<Directory>,
    files: &BankFiles,
    wanted: impl Fn(u64) -> bool,
) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    let mut seen = BTreeSet::new();
    for manifest in files.manifests.iter().filter(|manifest| wanted(manifest.number)) {
        if manifest.cold.is_some() {
            of_checkpoint(dir, files, manifest, &mut seen, &mut damage)?;
        }
    }
    Ok(damage)
}

fn of_checkpoint(
    dir: &Arc<Directory>,
    files: &BankFiles,
    manifest: &Manifest,
    seen: &mut BTreeSet<(u64, u64)>,
    damage: &mut Vec<Damage>,
) -> Result<()> {
    let number = manifest.number;
    let path = files.checkpoints.list_path(number);
    let list = match files.checkpoints.parts(manifest) {
        Ok(list) => list,
        Err(error) => {
            // The survey finds the damaged chunks. Without any, the list has wrong values.
            let found = survey(&path, manifest.identity().stream(list::KIND)).unwrap_or_default();
            let in_list = |(at, what)| Damage::in_file(&path, at, number, what);
            match found.is_empty() {
                true => damage.push(Damage::of_part(path.path(), number, error)?),
                false => damage.extend(found.into_iter().map(in_list)),
            }
            return Ok(());
        }
    };
    let device = match open_to_read(dir, manifest) {
        Ok(device) => device,
        Err(error) => {
            damage.push(Damage::of_part(path.path(), number, error)?);
            return Ok(());
        }
    };
    for part in &list.parts {
        if !seen.insert((part.head.number, part.head.salt)) {
            continue;
        }
        if let Err(error) = check_part(part, manifest.part_site(&*device)) {
            let begin = part_address(part.head.number, manifest.segment_bytes);
            damage.push(Damage::of_part(device.locate(begin).0, number, error)?);
        }
    }
    Ok(())
}
