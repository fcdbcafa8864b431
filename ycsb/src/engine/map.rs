//! The upper bound for the speed of every store: an in-memory hash map in shards, with a lock for
//! each shard. It uses no disk, keeps to no memory budget, and makes nothing durable. It handles
//! the keys of a batch one by one.

use anyhow::{Context, Result, bail};
use hashbrown::HashMap;
use parking_lot::RwLock;

use super::{Engine, Named, Session, Settings};
use crate::content;
use crate::random::mix;

const SHARDS: usize = 256;

/// A value in the map. Values of common sizes are stored inline.
trait Slot: Send + Sync + Sized + 'static {
    const INLINE: bool;
    fn new(value: &[u8]) -> Self;
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<const N: usize> Slot for [u8; N] {
    const INLINE: bool = true;

    fn new(value: &[u8]) -> Self {
        value.try_into().expect("`open` chose the type by the size")
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Slot for Box<[u8]> {
    const INLINE: bool = false;

    fn new(value: &[u8]) -> Self {
        value.into()
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Each shard has its own cache lines, because threads lock different shards.
#[repr(align(64))]
struct Shard<V>(RwLock<HashMap<u64, V>>);

struct Map<V> {
    shards: Vec<Shard<V>>,
    value_bytes: usize,
}

impl<V> Map<V> {
    #[inline]
    fn shard(&self, key: u64) -> &RwLock<HashMap<u64, V>> {
        // Keys may be plain row numbers, so the key is hashed here.
        &self.shards[mix(key) as usize % SHARDS].0
    }
}

/// Opens an empty map.
///
/// # Errors
/// Returns an error if `settings` ask for an existing store, because a map ends with its process.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    if settings.reopen {
        bail!("the in-memory map has nothing to reopen; run it without --loaded");
    }
    fn sized<V: Slot>(settings: &Settings) -> Box<dyn Engine> {
        // Keys are not spread evenly over the shards, so a shard gets room for a sixteenth more
        // than its share. Without this room, some shards would double during the load, in a long
        // stall.
        let share = settings.rows as usize / SHARDS;
        let room = share + share / 16;
        let shard = || Shard(RwLock::new(HashMap::<u64, V>::with_capacity(room)));
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Box::new(Map { shards, value_bytes: settings.value_bytes })
    }
    Ok(match settings.value_bytes {
        8 => sized::<[u8; 8]>(settings),
        16 => sized::<[u8; 16]>(settings),
        32 => sized::<[u8; 32]>(settings),
        64 => sized::<[u8; 64]>(settings),
        128 => sized::<[u8; 128]>(settings),
        256 => sized::<[u8; 256]>(settings),
        512 => sized::<[u8; 512]>(settings),
        _ => sized::<Box<[u8]>>(settings),
    })
}

impl<V: Slot> Engine for Map<V> {
    fn describe(&self) -> Named<String> {
        let values = if V::INLINE { "inline" } else { "boxed" };
        vec![
            ("store".into(), "hashbrown::HashMap behind parking_lot::RwLock".into()),
            ("shards".into(), SHARDS.to_string()),
            ("values".into(), values.into()),
            ("memory".into(), "every row, whatever the budget".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(MapSession(self)))
    }

    fn atomic_rmw(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<()> {
        bail!("the in-memory map can't be kept for a later process")
    }
}

struct MapSession<'a, V>(&'a Map<V>);

impl<V: Slot> Session for MapSession<'_, V> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        for (&key, value) in keys.iter().zip(values.chunks_exact_mut(self.0.value_bytes)) {
            let shard = self.0.shard(key).read();
            value.copy_from_slice(shard.get(&key).with_context(|| missing(key))?.bytes());
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        for (&key, value) in keys.iter().zip(values.chunks_exact(self.0.value_bytes)) {
            let mut shard = self.0.shard(key).write();
            let slot = shard.get_mut(&key).with_context(|| missing(key))?;
            slot.bytes_mut().copy_from_slice(value);
        }
        Ok(())
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        for (&key, value) in keys.iter().zip(values.chunks_exact(self.0.value_bytes)) {
            self.0.shard(key).write().insert(key, V::new(value));
        }
        Ok(())
    }

    fn read_modify_write(&mut self, keys: &[u64], _values: &mut [u8]) -> Result<()> {
        for &key in keys {
            let mut shard = self.0.shard(key).write();
            let slot = shard.get_mut(&key).with_context(|| missing(key))?;
            content::advance(key, slot.bytes_mut())?;
        }
        Ok(())
    }
}

/// Returns the error text for a row that should exist.
pub(super) fn missing(key: u64) -> String {
    format!("wrong answer: the row of key {key:#018x} is missing")
}
