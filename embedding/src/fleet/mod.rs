//! Fleets: tables whose rows are divided over many banks, the *shards*.
//!
//! One process writes a bank. A program that outgrows one machine runs many processes, and each of
//! them opens the bank of one shard. A shard has a number of its own, because the ranks of a
//! process group change between restarts. The bank of shard 7 stands in `DIR/shard-00007`, and its
//! file `SHARD` names the fleet, the shard's number and the number of shards.
//!
//! This module has what must be durable: which shard a bank is, which shard a key belongs to, and
//! which checkpoints of the shards belong together. It sends nothing: the caller exchanges keys,
//! rows, views and decisions between the processes.
//!
//! # Sets
//!
//! **Problem.** A checkpoint is atomic in one bank. The shards take their checkpoints one by one,
//! each on a disk of its own, and any process may be killed at any moment. A fleet must always open
//! with all shards at one step of the training.
//!
//! **Approach.** A *set* is one checkpoint of each shard. Its *record* names the number and the
//! random id of each of these checkpoints. The record has the same bytes on every shard. A set is
//! complete if any shard has its record and every shard holds the checkpoint that the record names.
//! A fleet opens at its newest complete set.
//!
//! 1. Every shard takes a checkpoint (`Shard::take`). It is durable on return.
//! 2. The processes exchange the results. If a shard failed, all shards abandon the set.
//! 3. Every shard writes the record, pins its checkpoint, and only then unpins the checkpoints of
//!    outdated sets (`Shard::commit`).
//!
//! **Invariants.**
//! 1. A record exists only if every shard has made the checkpoint that it names durable, because a
//!    shard writes a record after it has seen the results of all shards.
//! 2. A bank with `checkpoints_kept` 1 removes a checkpoint only when it completes a newer one, and
//!    never a pinned one. A shard that knows of a complete set writes its record and pins its
//!    checkpoint before it takes another one. `finish_pending` repeats both after an error.
//! 3. A shard that took a checkpoint, and does not learn whether the set is complete, takes no
//!    other one: `take` refuses, the process closes the bank, and the fleet is opened again.
//! 4. A shard unpins the checkpoint of a set only after the record of a newer set, and that set's
//!    pin on this shard, are durable.
//!
//! **Why a crash at any point leaves a complete set findable.** Let set `n` be the newest set whose
//! record is on any shard. By 1, every shard held its checkpoint when the record was written. By 2
//! and 3, no shard has taken a later checkpoint without a pin on that of set `n`, unless it
//! abandoned the set, and then no shard wrote the record. So every shard holds its checkpoint of
//! set `n`, and `n` is complete. If no shard wrote the record of a set that was being taken, the
//! set before is the newest with a record, and by 4 no shard has unpinned it.
//!
//! **Records that reached only some shards.** The set is complete all the same. When the fleet is
//! opened, every shard that lacks the record writes it (`Shard::settle`), before it takes a new
//! checkpoint and before it unpins an older one. Settling is repeated after a crash: it writes the
//! record and the pin first, then rolls back, then removes records of sets that are not complete. A
//! shard that is ahead takes no set.
//!
//! **New fleets.** A set always exists before there are rows: the processes take set 0 as soon as
//! they have made the fleet. A process that is killed before leaves a fleet without rows, which the
//! next opening makes to its end.
//!
//! **What is passed over, and what is an error.** A record whose checkpoint is missing means that a
//! person rolled a shard back or restored a directory, or that a process ended while the fleet went
//! back. Opening passes over such a set and says so. A checkpoint with the set's number and another
//! id means that a shard was replaced, or trained alone: an error. A checkpoint that can't be read
//! is an error too. If it counted as missing, the opening would remove the newest set.
//! `Bank::checkpoint`, `Bank::pin`, `Bank::unpin` and the commands refuse to change a shard alone
//! (`refuse_shard`).
//!
//! # Going back
//!
//! A fleet opens at an earlier complete set `n` on demand (`FleetPlan::at`). First every shard
//! checks that it can go back, and no shard changes before all checks have succeeded
//! (`Shard::check`). One shard that can't go back, while others have removed their later
//! checkpoints, would leave no complete set. Then every shard settles at set `n` as it does at the
//! newest set: it makes the record and the pin of set `n` durable, then rolls back, and then
//! removes the records of later sets. No shard takes a checkpoint before all shards have settled.
//!
//! After a crash in between, set `n` is complete, because every shard holds its checkpoint and some
//! shard has its record. A later set is complete if no shard has removed its checkpoint, because a
//! shard keeps the records until then. So the fleet then opens at the newest set whose checkpoint
//! every shard still holds, with all shards at one step. To go back to set `n` for sure, the caller
//! asks for it again. A record comes before its checkpoint's pin and goes after its checkpoint, so
//! no pinned checkpoint lacks a record.
//!
//! A failure after the checks is like a crash: a reader that has begun meanwhile, or a full disk.
//! The checks read the files of the set's checkpoint and the last page of its log, not all rows.
//!
//! - `routing`: which shard holds the row of a key.
//! - `identity`: the file `SHARD`.
//! - `record`: the record of a set.
//! - `view` and `plan`: what each shard has on disk, and the decision that follows from all of it.
//! - `shard`: opening a shard, and taking sets.
//! - `reshard`: makes a fleet of another number of shards.
//! - `files`: how the files of a fleet are made and read.

mod files;
mod identity;
mod plan;
mod record;
mod reshard;
mod routing;
mod shard;
mod view;

pub use identity::{FleetId, ShardIdentity, list_shards, refuse_shard, shard_numbers, shard_path};
pub use plan::{CompleteSet, FleetPlan, ListedSet, list_sets};
pub use record::{HeldCheckpoint, SetRecord};
pub use reshard::{Resharded, reshard};
pub use routing::{BUCKETS, Routed, Routing};
pub use shard::{Shard, Taken};
pub use view::{ShardView, read_views};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The files of the fixture were made by a program of its own, from docs/format.md. A fixture
    /// never changes.
    #[test]
    fn the_files_of_the_fixture_are_read() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet_fixtures/version-1");
        let fleet = FleetId(std::array::from_fn(|at| at as u8));
        let identity = ShardIdentity::read(&dir).unwrap().unwrap();
        assert_eq!(identity, ShardIdentity::new(fleet, 1, 2).unwrap());
        assert_eq!(record::numbers(&dir).unwrap(), [12]);
        let (bytes, found) = record::read(&dir, 12).unwrap().unwrap();
        let expected = SetRecord {
            fleet,
            number: 12,
            id: 0x0123_4567_89AB_CDEF,
            checkpoints: vec![HeldCheckpoint::new(7, 70), HeldCheckpoint::new(9, 90)],
            blob: b"step 3".to_vec(),
        };
        assert_eq!(found, expected);
        assert_eq!(expected.encode(), bytes, "this build writes the same bytes");
    }
}
