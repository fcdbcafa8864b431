//! The record of a set, the file `sets/<number>` of a shard.
//!
//! Every shard has the same bytes. A record is written once and never changes.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use embank_kv::metadata::DecodeError;

use crate::error::{Error, Result};
use crate::fleet::files::{self, Body};
use crate::fleet::identity::FleetId;
use crate::fleet::routing::BUCKETS;

const FOLDER: &str = "sets";
const MAGIC: [u8; 8] = *b"EMBKFSET";
const VERSION: u32 = 1;
const NAME_DIGITS: usize = 10;

/// A checkpoint of a shard's bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HeldCheckpoint {
    /// The checkpoint's number in its bank.
    pub number: u64,
    /// The checkpoint's random id, which tells checkpoints with equal numbers apart.
    pub id: u64,
}

impl HeldCheckpoint {
    pub(super) fn new(number: u64, id: u64) -> Self {
        HeldCheckpoint { number, id }
    }
}

/// One checkpoint of all shards of a fleet: the record of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetRecord {
    /// The fleet.
    pub fleet: FleetId,
    /// The set's number. Set 0 is taken when the fleet is made, and has no rows.
    pub number: u64,
    /// A random number that identifies the set's content. A fleet that `embank reshard` makes of
    /// another one has the id of the set that it was made of.
    pub id: u64,
    /// The checkpoint of each shard, by shard.
    pub checkpoints: Vec<HeldCheckpoint>,
    /// The bytes that the caller stored with the set.
    pub blob: Vec<u8>,
}

impl SetRecord {
    /// Makes the record of a new set. The id is a hash of the checkpoints' random ids, so every
    /// shard computes the same one.
    pub(super) fn new(
        fleet: FleetId,
        number: u64,
        checkpoints: Vec<HeldCheckpoint>,
        blob: Vec<u8>,
    ) -> Self {
        let mut id = Xxh3::new();
        id.update(&fleet.0);
        id.update(&number.to_le_bytes());
        for held in &checkpoints {
            id.update(&held.number.to_le_bytes());
            id.update(&held.id.to_le_bytes());
        }
        SetRecord { fleet, number, id: id.digest(), checkpoints, blob }
    }

    /// Encodes the record as the bytes of its file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.fleet.0.to_vec();
        body.extend(self.number.to_le_bytes());
        body.extend(self.id.to_le_bytes());
        // At most `BUCKETS`.
        body.extend((self.checkpoints.len() as u32).to_le_bytes());
        body.extend([0; 4]);
        body.extend((self.blob.len() as u64).to_le_bytes());
        for held in &self.checkpoints {
            body.extend(held.number.to_le_bytes());
            body.extend(held.id.to_le_bytes());
        }
        body.extend(&self.blob);
        files::frame(MAGIC, VERSION, &body)
    }

    /// Decodes the bytes of a record's file.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut body = Body(files::unframe(bytes, "set record", MAGIC, VERSION)?);
        let fleet = FleetId(body.take()?);
        let (number, id) = (body.u64()?, body.u64()?);
        let shards = body.u32()?;
        if body.take()? != [0; 4] {
            return Err("bytes that must be zero are not".into());
        }
        if !(1..=BUCKETS).contains(&shards) {
            return Err(format!("it has {shards} shards, and a fleet has 1 to {BUCKETS}").into());
        }
        let blob_bytes = body.u64()?;
        let checkpoints = (0..shards)
            .map(|_| Ok(HeldCheckpoint::new(body.u64()?, body.u64()?)))
            .collect::<std::result::Result<_, String>>()?;
        let blob = body.slice(blob_bytes)?.to_vec();
        body.end()?;
        Ok(SetRecord { fleet, number, id, checkpoints, blob })
    }

    /// Checks that the record, which is in the bank `bank` or goes there, belongs to the fleet
    /// `fleet` of `shards` shards.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`].
    pub(super) fn check_fleet(
        &self,
        bank: &Path,
        fleet: Option<FleetId>,
        shards: u32,
    ) -> Result<()> {
        if Some(self.fleet) == fleet && self.checkpoints.len() == shards as usize {
            return Ok(());
        }
        let of = |fleet: Option<FleetId>, shards: usize| match fleet {
            Some(fleet) => format!("fleet {fleet} with {shards} shards"),
            None => "no fleet".to_owned(),
        };
        Err(Error::ShardMismatch {
            path: path_of(bank, self.number),
            found: of(Some(self.fleet), self.checkpoints.len()),
            expected: of(fleet, shards as usize),
            cure: "the files of two fleets are mixed: restore the shard's directory as a whole"
                .into(),
        })
    }

    /// Writes the record's file in the bank `bank`, durably. Does nothing but a sync if the file is
    /// there already, because a process may have been killed before its sync.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the shard has another record of this number. Also a failed
    /// write.
    pub(super) fn write(&self, bank: &Path) -> Result<()> {
        let path = path_of(bank, self.number);
        let bytes = self.encode();
        files::make_dir(&bank.join(FOLDER))?;
        match files::read(&path)? {
            None => files::create(&path, &bytes),
            Some(there) if there == bytes => files::sync(&bank.join(FOLDER)),
            Some(_) => Err(Error::ShardMismatch {
                path,
                found: format!("another record of set {}", self.number),
                expected: "the bytes that the other shards have".into(),
                cure: "restore the shard's directory".into(),
            }),
        }
    }
}

pub(super) fn path_of(bank: &Path, number: u64) -> PathBuf {
    bank.join(FOLDER).join(format!("{number:0NAME_DIGITS$}"))
}

/// Returns the numbers of the records in the bank `bank`, ascending.
pub(super) fn numbers(bank: &Path) -> Result<Vec<u64>> {
    files::list(&bank.join(FOLDER), |name| files::number_of(name, NAME_DIGITS))
}

/// Reads the bytes of a record's file, and the record. `None` if the file does not exist.
///
/// # Errors
/// [`Damaged`](crate::StoreError::Damaged) if the file does not verify or has another set's number.
/// [`NewerFormat`](crate::StoreError::NewerFormat) if a newer version of Embank wrote it.
pub(super) fn read(bank: &Path, number: u64) -> Result<Option<(Vec<u8>, SetRecord)>> {
    let path = path_of(bank, number);
    let Some(bytes) = files::read(&path)? else { return Ok(None) };
    let record = SetRecord::decode(&bytes).and_then(|record| match record.number == number {
        true => Ok(record),
        false => Err(format!("it is the record of set {}", record.number).into()),
    });
    match record {
        Ok(record) => Ok(Some((bytes, record))),
        // To remove the file is no cure: this shard would never unpin the set's checkpoint.
        Err(error) => {
            let cure = "all shards have the same bytes in this file: copy it from another shard";
            Err(files::unreadable(error, path, cure))
        }
    }
}

/// Removes the files of records, durably.
pub(super) fn remove(bank: &Path, numbers: &[u64]) -> Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    for &number in numbers {
        files::remove(&path_of(bank, number))?;
    }
    files::sync(&bank.join(FOLDER))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::StoreError;

    fn record() -> SetRecord {
        let checkpoints = vec![HeldCheckpoint::new(7, 70), HeldCheckpoint::new(9, 90)];
        SetRecord::new(FleetId(*b"sixteen bytes id"), 12, checkpoints, b"step 3".to_vec())
    }

    /// These bytes are part of the format (docs/format.md).
    #[test]
    fn the_file_has_the_bytes_of_the_format() {
        let bytes = record().encode();
        assert_eq!(bytes[..12], *b"EMBKFSET\x01\0\0\0");
        assert_eq!(bytes[16..32], *b"sixteen bytes id");
        assert_eq!(bytes[32..40], 12_u64.to_le_bytes());
        assert_eq!(bytes[40..48], record().id.to_le_bytes());
        assert_eq!(bytes[48..64], *b"\x02\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0");
        let parts: Vec<u8> = [7_u64, 70, 9, 90].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(bytes[64..96], parts);
        assert_eq!(bytes[96..], *b"step 3");
    }

    #[test]
    fn every_flip_and_cut_is_noticed() {
        let bytes = record().encode();
        assert_eq!(SetRecord::decode(&bytes).unwrap(), record());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            SetRecord::decode(&flipped).unwrap_err();
            SetRecord::decode(&bytes[..at]).unwrap_err();
        }
    }

    #[test]
    fn lengths_of_a_sealed_record_are_checked() {
        let sealed = |at: usize, word: u32| {
            let mut bytes = record().encode();
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            let sealed = files::frame(MAGIC, VERSION, &bytes[16..]);
            SetRecord::decode(&sealed).unwrap_err().to_string()
        };
        assert!(sealed(48, 0).contains("0 shards"));
        assert!(sealed(48, u32::MAX).contains("shards"));
        assert!(sealed(48, 4096).contains("cut short"));
        assert!(sealed(56, 7).contains("cut short"));
        assert!(sealed(60, u32::MAX).contains("cut short"));
        assert!(sealed(56, 5).contains("1 bytes follow"));
    }

    #[test]
    fn a_newer_version_is_not_damage() {
        let dir = tempfile::tempdir().unwrap();
        record().write(dir.path()).unwrap();
        let file = path_of(dir.path(), record().number);
        fs::write(&file, files::frame(MAGIC, VERSION + 1, b"unknown")).unwrap();
        let error = read(dir.path(), record().number).unwrap_err();
        let newer =
            matches!(&error, Error::Store(StoreError::NewerFormat { path, .. }) if *path == file);
        assert!(newer && !error.to_string().contains("copy it"), "{error}");
    }

    #[test]
    fn a_record_is_written_once_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(numbers(dir.path()).unwrap().is_empty());
        assert_eq!(read(dir.path(), 12).unwrap(), None);
        record().write(dir.path()).unwrap();
        record().write(dir.path()).unwrap();
        let other = SetRecord { blob: Vec::new(), ..record() };
        let error = other.write(dir.path()).unwrap_err().to_string();
        assert!(error.contains("sets/0000000012") && error.contains("restore"), "{error}");
        assert_eq!(numbers(dir.path()).unwrap(), [12]);
        assert_eq!(read(dir.path(), 12).unwrap().unwrap().1, record());
        remove(dir.path(), &[12]).unwrap();
        remove(dir.path(), &[12]).unwrap();
        assert!(numbers(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn damage_names_the_file_and_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        record().write(dir.path()).unwrap();
        fs::rename(path_of(dir.path(), 12), path_of(dir.path(), 13)).unwrap();
        let error = read(dir.path(), 13).unwrap_err().to_string();
        assert!(error.contains("sets/0000000013") && error.contains("of set 12"), "{error}");
        assert!(error.contains("copy it from another shard"), "{error}");
    }
}
