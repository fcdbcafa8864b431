//! The file `SHARD`, which says which shard of which fleet a bank is.
//!
//! The file is made once, when the fleet is made, and never changes. It is in the directory of the
//! shard's bank, and moves with that directory. A bank ignores it, and a copy of a bank does not
//! have it: a copied bank is no shard of the fleet.

use std::fmt;
use std::path::{Path, PathBuf};

use embank_kv::metadata::DecodeError;

use crate::error::{Error, Result};
use crate::fleet::files::{self, Body};
use crate::fleet::routing::{BUCKETS, HASH, check_shards};
use crate::vocabulary::hash::random;

const NAME: &str = "SHARD";
const MAGIC: [u8; 8] = *b"EMBKSHRD";
const VERSION: u32 = 1;
/// Length of the file. The bytes after the last field are zero.
const FILE_BYTES: usize = 64;
const _: () = assert!(16 + 16 + 4 * 4 <= FILE_BYTES);
/// Length of the zeros at the file's end.
const PADDING_BYTES: usize = FILE_BYTES - (16 + 16 + 4 * 4);

const DIR_PREFIX: &str = "shard-";
const DIR_DIGITS: usize = 5;

/// A random number of 128 bits that all shards of a fleet have, and no other fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetId(pub [u8; 16]);

impl FleetId {
    /// Draws the id of a new fleet.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
        FleetId(bytes)
    }
}

impl fmt::Display for FleetId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for FleetId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FleetId({self})")
    }
}

/// Says which shard of which fleet a bank is: the content of the file `SHARD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardIdentity {
    /// The fleet.
    pub fleet: FleetId,
    /// The shard's number, from 0.
    pub shard: u32,
    /// The number of shards of the fleet, 1 to [`BUCKETS`].
    pub shards: u32,
}

impl ShardIdentity {
    /// Makes the identity of shard `shard` of `shards`.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if `shards` is not 1 to [`BUCKETS`], or
    /// `shard` is not below `shards`.
    pub fn new(fleet: FleetId, shard: u32, shards: u32) -> Result<Self> {
        check_shards(shards)?;
        if shard >= shards {
            return Err(Error::option("shard", format!("must be below {shards}, not {shard}")));
        }
        Ok(ShardIdentity { fleet, shard, shards })
    }

    /// Reads the file `SHARD` of the bank in `bank`. `None` if the bank has no such file.
    ///
    /// # Errors
    /// [`Damaged`](crate::StoreError::Damaged) if the file does not verify.
    /// [`NewerFormat`](crate::StoreError::NewerFormat) if a newer version of Embank wrote it. Also a
    /// failed read.
    pub fn read(bank: &Path) -> Result<Option<Self>> {
        let path = bank.join(NAME);
        let Some(bytes) = files::read(&path)? else { return Ok(None) };
        Self::decode(&bytes).map(Some).map_err(|error| {
            let cure = "restore the file from a copy of the shard's directory. The file never changes after the fleet \
                        is made";
            files::unreadable(error, path, cure)
        })
    }

    /// Writes the file `SHARD` of the bank in `bank`, durably. The caller has the bank open for
    /// writing, so no other process makes the file.
    ///
    /// # Errors
    /// `Io` if the file exists or can't be written.
    pub fn create(&self, bank: &Path) -> Result<()> {
        files::create(&bank.join(NAME), &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = self.fleet.0.to_vec();
        for number in [self.shard, self.shards, HASH, BUCKETS] {
            body.extend(number.to_le_bytes());
        }
        body.extend([0; PADDING_BYTES]);
        let bytes = files::frame(MAGIC, VERSION, &body);
        assert_eq!(bytes.len(), FILE_BYTES);
        bytes
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut body = Body(files::unframe(bytes, "SHARD", MAGIC, VERSION)?);
        let fleet = FleetId(body.take()?);
        let (shard, shards) = (body.u32()?, body.u32()?);
        let (hash, buckets) = (body.u32()?, body.u32()?);
        if body.take()? != [0; PADDING_BYTES] {
            return Err("bytes that must be zero are not".into());
        }
        body.end()?;
        if hash > HASH {
            let (oldest, newest) = (HASH, HASH);
            return Err(DecodeError::Newer { kind: "routing", found: hash, oldest, newest });
        }
        if (hash, buckets) != (HASH, BUCKETS) {
            return Err(format!(
                "its keys are routed by hash {hash} over {buckets} buckets, and this build knows hash {HASH} over \
                 {BUCKETS}"
            )
            .into());
        }
        Self::new(fleet, shard, shards).map_err(|error| error.to_string().into())
    }

    /// Returns the error for a change of the bank in `bank`, which has this identity, alone.
    pub(crate) fn refusal(&self, bank: &Path) -> Error {
        let ShardIdentity { fleet, shard, shards } = self;
        Error::ShardMismatch {
            path: bank.to_owned(),
            found: format!("shard {shard} of {shards} of fleet {fleet}"),
            expected: "a bank that is no shard".into(),
            cure: "call the ShardedBank's checkpoint(), which takes a set of all shards, or open the whole fleet \
                   (ShardedBank in Python) and change its shards there: the fleet opens at its newest set, so a \
                   change of one shard alone is lost. ShardedBank(set=N) goes back to an earlier set"
                .into(),
        }
    }

    /// Checks that the bank in `bank`, which has this identity, is shard `shard` of `shards`.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`].
    pub fn check(&self, bank: &Path, shard: u32, shards: u32) -> Result<()> {
        let cure = if self.shards != shards {
            format!(
                "open it with {} shards, or make a fleet of {shards} with `embank reshard DIR NEW --shards {shards}`",
                self.shards
            )
        } else if self.shard != shard {
            format!("move the directory to its own name, {}", dir_name(self.shard))
        } else {
            return Ok(());
        };
        Err(Error::ShardMismatch {
            path: bank.to_owned(),
            found: format!("shard {} of {}", self.shard, self.shards),
            expected: format!("shard {shard} of {shards}"),
            cure,
        })
    }
}

/// Checks that the bank in `bank` is no shard of a fleet, and may change by itself.
///
/// A fleet opens at its newest set. Every shard then goes back to its checkpoint of the set, so a
/// checkpoint that one shard has taken alone is lost. [`Bank::checkpoint`](crate::Bank::checkpoint)
/// makes this check. A program that works for long before its checkpoint makes it first.
///
/// # Errors
/// [`Error::ShardMismatch`], which names the fleet and the cure.
/// [`Damaged`](crate::StoreError::Damaged) if the file `SHARD` does not verify.
/// [`NewerFormat`](crate::StoreError::NewerFormat) if a newer version of Embank wrote it. Also a
/// failed read.
pub fn refuse_shard(bank: &Path) -> Result<()> {
    ShardIdentity::read(bank)?.map_or(Ok(()), |identity| Err(identity.refusal(bank)))
}

fn dir_name(shard: u32) -> String {
    format!("{DIR_PREFIX}{shard:0DIR_DIGITS$}")
}

/// Returns the directory of a shard's bank in the fleet's directory.
#[must_use]
pub fn shard_path(fleet: &Path, shard: u32) -> PathBuf {
    fleet.join(dir_name(shard))
}

/// Lists the shards whose directories are in the fleet's directory on this machine, by number. The
/// identity is `None` for a directory without a file `SHARD`: then it is no bank, or a process was
/// killed while it made the fleet. The list is empty if the directory does not exist.
///
/// # Errors
/// [`Damaged`](crate::StoreError::Damaged) if a file `SHARD` does not verify.
/// [`NewerFormat`](crate::StoreError::NewerFormat) if a newer version of Embank wrote one. Also a
/// failed read.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::fleet::{list_shards, shard_path};
/// use embank::{Bank, BankOptions};
///
/// let bank = Bank::open(shard_path(dir.path(), 3), BankOptions::default())?;
/// assert_eq!(list_shards(dir.path())?, [(3, None)]);
/// # Ok::<(), embank::Error>(())
/// ```
pub fn list_shards(fleet: &Path) -> Result<Vec<(u32, Option<ShardIdentity>)>> {
    let found = shard_numbers(fleet)?.into_iter().map(|shard| {
        let identity = ShardIdentity::read(&shard_path(fleet, shard))?;
        Ok((shard, identity))
    });
    found.collect()
}

/// Lists the numbers of the shards whose directories are in the fleet's directory on this machine,
/// ascending. The list is empty if the directory does not exist.
///
/// # Errors
/// A failed read.
pub fn shard_numbers(fleet: &Path) -> Result<Vec<u32>> {
    files::list(fleet, |name| {
        let number = files::number_of(name.strip_prefix(DIR_PREFIX)?, DIR_DIGITS)?;
        u32::try_from(number).ok().filter(|&shard| shard < BUCKETS)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::StoreError;

    fn identity() -> ShardIdentity {
        ShardIdentity::new(FleetId(*b"sixteen bytes id"), 2, 3).unwrap()
    }

    /// These bytes are part of the format (docs/format.md).
    #[test]
    fn the_file_has_the_bytes_of_the_format() {
        let bytes = identity().encode();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..12], *b"EMBKSHRD\x01\0\0\0");
        assert_eq!(bytes[16..32], *b"sixteen bytes id");
        assert_eq!(bytes[32..48], *b"\x02\0\0\0\x03\0\0\0\x01\0\0\0\0\x10\0\0");
        assert_eq!(bytes[48..], [0; 16]);
        assert_eq!(bytes[12..16], 0x969E_954C_u32.to_le_bytes());
    }

    #[test]
    fn every_flip_and_cut_is_noticed() {
        let bytes = identity().encode();
        assert_eq!(ShardIdentity::decode(&bytes).unwrap(), identity());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            ShardIdentity::decode(&flipped).unwrap_err();
            ShardIdentity::decode(&bytes[..at]).unwrap_err();
        }
        ShardIdentity::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
    }

    #[test]
    fn a_newer_version_or_routing_is_not_damage() {
        let body = &identity().encode()[16..];
        let mut routed = body.to_vec();
        routed[24] = 2;
        let newer = [
            (files::frame(MAGIC, VERSION + 1, b"unknown"), ("SHARD", VERSION + 1)),
            (files::frame(MAGIC, VERSION, &routed), ("routing", HASH + 1)),
        ];
        for (bytes, expected) in newer {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(NAME);
            fs::write(&file, bytes).unwrap();
            let error = ShardIdentity::read(dir.path()).unwrap_err();
            let Error::Store(StoreError::NewerFormat { path, kind, found, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!((path, (*kind, *found)), (&file, expected));
            assert!(!error.to_string().contains("restore"), "{error}");
        }
    }

    #[test]
    fn a_shard_of_another_number_or_fleet_size_names_both_and_the_cure() {
        let text = |shard, shards| {
            let error = identity().check(Path::new("d/shard-00002"), shard, shards).unwrap_err();
            error.to_string()
        };
        identity().check(Path::new("d"), 2, 3).unwrap();
        let another_count = text(2, 4);
        assert!(another_count.contains("shard 2 of 3"), "{another_count}");
        assert!(another_count.contains("shard 2 of 4"), "{another_count}");
        assert!(another_count.contains("embank reshard DIR NEW --shards 4"), "{another_count}");
        let another_number = text(1, 3);
        assert!(another_number.contains("shard-00002"), "{another_number}");
    }

    #[test]
    fn the_file_is_made_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ShardIdentity::read(dir.path()).unwrap(), None);
        identity().create(dir.path()).unwrap();
        assert_eq!(ShardIdentity::read(dir.path()).unwrap(), Some(identity()));
        let other = ShardIdentity::new(FleetId::random(), 0, 1).unwrap();
        other.create(dir.path()).unwrap_err();
        assert_eq!(ShardIdentity::read(dir.path()).unwrap(), Some(identity()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no other file stays");
    }

    #[test]
    fn damage_names_the_file_and_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("SHARD"), "EMBKSHRD and other text").unwrap();
        let error = ShardIdentity::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/SHARD") && error.contains("restore the file"), "{error}");
    }

    #[test]
    fn only_directories_with_a_shards_name_count() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(list_shards(&dir.path().join("none")).unwrap(), []);
        for name in ["shard-00002", "shard-00000", "shard-1", "shard-00001.bak", "shard-04096"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        identity().create(&shard_path(dir.path(), 2)).unwrap();
        assert_eq!(list_shards(dir.path()).unwrap(), [(0, None), (2, Some(identity()))]);
    }
}
