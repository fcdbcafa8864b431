//! Reads a checkpoint's index: lists the damage of its files, and visits its buckets.
//!
//! The rest of `inspect` reads an index only through `damage` and `for_each_bucket`. An index
//! consists of one or more files, called images. The manifest lists them. If the checkpoint's
//! manifest can't be read, both functions use the images that they find in the checkpoint's
//! directory.

use super::Damage;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::partial::image_of;
use crate::error::{Error, Result};
use crate::files::checked_stream::survey;
use crate::files::directory::Place;
use crate::index::image::{self, Images};
use crate::index::{ADDRESS_LIMIT, Entry};

/// An image (index file) and its identity. The number is the length of the image in bytes according
/// to the manifest; `None` if the manifest can't be read.
type ImageFile = (Place, CheckpointIdentity, Option<u64>);

/// Returns the files of a checkpoint's index, oldest first.
fn files(
    checkpoints: &Checkpoints,
    of: CheckpointIdentity,
    manifest: Option<&Manifest>,
) -> Result<Vec<ImageFile>> {
    let dir = checkpoints.dir_of(of.checkpoint);
    if let Some(manifest) = manifest {
        let files = manifest.images.iter().map(|entry| {
            let path = checkpoints.image_path(of.checkpoint, entry.checkpoint);
            (path, entry.identity(of.bank), Some(entry.file_bytes))
        });
        return Ok(files.collect());
    }
    let listed = |e| Error::io("list", &dir, e);
    let mut numbers = Vec::new();
    for name in dir.names().map_err(listed)? {
        numbers.extend(image_of(&name));
    }
    numbers.sort_unstable();
    if numbers.last() != Some(&of.checkpoint) {
        let what = "its own image of the index is not there".into();
        return Err(Error::Damaged { path: dir.path(), offset: 0, what });
    }
    let file = |number| {
        let path = checkpoints.image_path(of.checkpoint, number);
        let identity = CheckpointIdentity::found(&path, image::KIND, of.bank, number)?;
        Ok((path, identity, None))
    };
    numbers.into_iter().map(file).collect()
}

/// Lists all damage in the files of a checkpoint's index.
///
/// # Errors
/// `Damaged` or `Io` if the function can't find out which files the index has.
pub(super) fn damage(
    checkpoints: &Checkpoints,
    of: CheckpointIdentity,
    manifest: Option<&Manifest>,
) -> Result<Vec<Damage>> {
    let mut found = Vec::new();
    for (path, image, file_bytes) in files(checkpoints, of, manifest)? {
        let mut note = |offset, what| {
            found.push(Damage::in_file(&path, offset, of.checkpoint, what));
        };
        match survey(&path, image.stream(image::KIND)) {
            Ok(faults) => faults.into_iter().for_each(|(offset, what)| note(offset, what)),
            Err(error) => {
                found.extend(Damage::of_error(&path, of.checkpoint, error)?);
                continue;
            }
        }
        let length = path.len().unwrap_or(0);
        if let Some(expected) = file_bytes.filter(|expected| *expected != length) {
            note(0, format!("it has {length} bytes, the manifest says {expected}"));
        }
    }
    if found.is_empty() {
        // No file is damaged. Reading all files together checks that they belong to one index.
        let fit = for_each_bucket(checkpoints, of, manifest, (0, ADDRESS_LIMIT), |_, _, _| Ok(()));
        match fit {
            Err(Error::Damaged { path, offset, what }) => {
                found.push(Damage::in_file(&path, offset, of.checkpoint, what));
            }
            fit => fit?,
        }
    }
    Ok(found)
}

/// Calls `visit` for each bucket of a checkpoint's index. `visit` gets three arguments: the
/// bucket's number, its depth, and its entries with an address from `log_begin` to below `log_end`.
/// The depth is the number of hash bits that select the bucket.
///
/// # Errors
/// `Damaged`, `Truncated` or `Io` if the index can't be read completely. The errors of `visit`.
pub(super) fn for_each_bucket(
    checkpoints: &Checkpoints,
    of: CheckpointIdentity,
    manifest: Option<&Manifest>,
    (log_begin, log_end): (u64, u64),
    mut visit: impl FnMut(u64, u32, &[Entry]) -> Result<()>,
) -> Result<()> {
    let files = files(checkpoints, of, manifest)?.into_iter().map(|(path, of, _)| (path, of));
    let images = Images::new(files, log_begin, log_end, checkpoints.limits);
    let mut buckets = images.read()?;
    let mut entries = Vec::new();
    while let Some((bucket, depth)) = buckets.next_bucket(&mut entries)? {
        visit(bucket, depth, &entries)?;
        entries.clear();
    }
    Ok(())
}
