//! A checkpoint that is being written, in a directory with a temporary name.

use crate::checkpoint::Checkpoints;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::ImageEntry;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::removal;
use crate::error::{Error, Result};
use crate::files::checked_stream;
use crate::files::checked_stream::CheckedWriter;
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use crate::index::image;
use std::ffi::OsStr;
use std::io;

pub(crate) const BLOB: &str = "blob";
pub(crate) const MANIFEST: &str = "manifest";

pub(crate) fn image_name(checkpoint: u64) -> String {
    format!("index.{checkpoint:010}")
}

/// Returns the name of the list of parts of checkpoint `number`.
pub(crate) fn list_name(number: u64) -> String {
    format!("cold.{number:010}")
}

/// True for a name that the store gives to a list of parts.
pub(crate) fn is_list(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("cold."));
    number.and_then(removal::number_of).is_some()
}

/// Returns the checkpoint in the name of an index image. `None` for a name that the store never
/// writes.
pub(crate) fn image_of(name: &OsStr) -> Option<u64> {
    removal::number_of(name.to_str()?.strip_prefix("index.")?)
}

/// A checkpoint that is being written. Dropping it unfinished removes its directory.
pub(crate) struct PartialCheckpoint<'a> {
    pub(crate) of: &'a Checkpoints,
    pub(crate) number: u64,
    pub(crate) dir: Place,
    pub(crate) finished: bool,
}

impl PartialCheckpoint<'_> {
    /// Returns the place for the index image that checkpoint `image` wrote.
    pub(crate) fn image_path(&self, image: u64) -> Place {
        self.dir.join(image_name(image))
    }

    /// Returns the place for the blob.
    pub(crate) fn blob_path(&self) -> Place {
        self.dir.join(BLOB)
    }

    /// Returns the place for the list of parts.
    pub(crate) fn list_path(&self) -> Place {
        self.dir.join(list_name(self.number))
    }

    /// Returns the place in this checkpoint with the file name of `other`, a file of another
    /// checkpoint.
    pub(crate) fn path_of(&self, other: &Place) -> Place {
        self.dir.join(other.name().file_name().unwrap_or_default())
    }

    /// Links the images of checkpoint `number` into this checkpoint. Returns false if the file
    /// system can't link. In this case, some of the links may exist.
    pub(crate) fn link_images(&self, number: u64, images: &[ImageEntry]) -> bool {
        images.iter().all(|image| {
            let from = self.of.image_path(number, image.checkpoint);
            let to = self.image_path(image.checkpoint);
            // The content was synced when the image was written. Some file systems also need a sync
            // for the new name.
            from.hard_link(&to).and_then(|()| to.sync()).is_ok()
        })
    }

    /// Links the images of checkpoint `of` into this checkpoint, or copies them if the file system
    /// can't link.
    pub(crate) fn take_images(&self, of: &Manifest, images: &[ImageEntry]) -> Result<()> {
        if self.link_images(of.number, images) {
            return Ok(());
        }
        self.unlink_images(images)?;
        for image in images {
            let identity = image.identity(of.bank).stream(image::KIND);
            let from = self.of.image_path(of.number, image.checkpoint);
            checked_stream::copy(&from, &self.image_path(image.checkpoint), identity)?;
        }
        Ok(())
    }

    /// Removes linked images from this checkpoint.
    pub(crate) fn unlink_images(&self, images: &[ImageEntry]) -> Result<()> {
        for image in images {
            let place = self.image_path(image.checkpoint);
            place.remove_file_if_there().map_err(|e| Error::io("remove", &place, e))?;
        }
        Ok(())
    }

    /// Writes the blob, the caller's bytes, durably.
    pub(crate) fn write_blob(&self, of: CheckpointIdentity, blob: &[u8]) -> Result<()> {
        let path = self.blob_path();
        let mut writer = CheckedWriter::create(&path, of.stream(BLOB_KIND))?;
        writer.write(blob)?;
        let (file, _) = writer.finish()?;
        file.sync_all().map_err(|e| Error::io("sync", &path, e))
    }

    /// Writes the manifest and gives the directory its final name. The checkpoint is then the
    /// newest one. The name is durable after `Checkpoints::sync`.
    pub(crate) fn complete(mut self, manifest: &Manifest) -> Result<()> {
        use std::io::Write;
        let place = self.dir.join(MANIFEST);
        let write = || -> io::Result<()> {
            let file = HeldFile::new(place.create_new()?)?;
            file.file().write_all(&manifest.encode())?;
            file.sync_all()
        };
        write().map_err(|e| Error::io("write", &place, e))?;
        self.dir.sync().map_err(|e| Error::io("sync", &self.dir, e))?;
        self.of.check_in_place()?;
        // An old mark of this number would make the new checkpoint count as removed.
        self.of.unmark(self.number)?;
        let last = self.of.dir_of(self.number);
        self.dir.rename(&last).map_err(|e| Error::io("rename", &self.dir, e))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for PartialCheckpoint<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // If the removal fails, the next open of the bank removes the directory.
            let _ = self.dir.remove_dir_all();
        }
    }
}
