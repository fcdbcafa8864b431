//! One shard of an open fleet: opening at a set, and taking sets.

use std::path::{Path, PathBuf};

use embank_kv::{Store, metadata};

use crate::bank::Bank;
use crate::error::{Error, Result, StoreError};
use crate::fleet::identity::{FleetId, ShardIdentity};
use crate::fleet::plan::{CompleteSet, FleetPlan};
use crate::fleet::record::{self, HeldCheckpoint, SetRecord};
use crate::fleet::routing::check_shards;
use crate::fleet::view::{ShardView, no_message, readable_checkpoints};

/// A shard of a fleet, whose bank this process has open for writing.
///
/// The methods take the bank as an argument, because going back to a checkpoint closes it. The
/// caller opens the bank with `checkpoints_kept` 1: a shard keeps the checkpoints of its sets by
/// pins.
///
/// The calls come in this order, in all processes of the fleet:
/// 1. [`open`](Self::open) and [`view`](Self::view). The processes exchange the views.
/// 2. [`FleetPlan::of`] all views, then [`check`](Self::check). The processes tell each other that
///    all checks have succeeded. Then [`settle`](Self::settle) until it returns `None`. The
///    processes tell each other that they have settled. If the plan has no set, they take set 0.
/// 3. For each set: [`take`](Self::take). The processes exchange the results. If all of them have
///    one, [`commit`](Self::commit); otherwise [`abandon`](Self::abandon).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::fleet::{FleetPlan, Shard, shard_path};
/// use embank::{Bank, BankOptions};
///
/// let path = shard_path(dir.path(), 0);
/// let bank = Bank::open(&path, BankOptions { checkpoints_kept: 1, ..Default::default() })?;
/// let mut shard = Shard::open(&bank, 0, 1, 2)?; // a fleet of one shard
/// let plan = FleetPlan::of(&[shard.view()?])?;
/// shard.check(&plan)?;
/// assert_eq!(shard.settle(&bank, &plan, None)?, None);
/// let taken = shard.take(&bank)?;
/// let set = shard.commit(&bank, &[taken], b"step 0")?;
/// assert_eq!(set.number, 0);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    shard: u32,
    shards: u32,
    sets_kept: usize,
    identity: Option<ShardIdentity>,
    recovered: Option<SetRecord>,
    /// Number of the newest set that this shard knows to be complete.
    newest: Option<u64>,
    /// A complete set whose record or pin may not be durable on this shard yet.
    pending: Option<SetRecord>,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not settled at a set yet.
    Opened,
    Ready,
    /// The shard took its checkpoint for a set, and does not know whether the set is complete.
    Taken(Taken),
}

/// The checkpoint that one shard took for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// The fleet.
    pub fleet: FleetId,
    /// The set's number.
    pub set: u64,
    /// The shard's number.
    pub shard: u32,
    /// The checkpoint.
    pub checkpoint: HeldCheckpoint,
}

impl Taken {
    /// Encodes the value, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let HeldCheckpoint { number, id } = self.checkpoint;
        metadata::encode(&(self.fleet.0, self.set, self.shard, number, id))
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (fleet, set, shard, number, id) =
            metadata::decode(bytes).map_err(|error| no_message("checkpoint", &error))?;
        let checkpoint = HeldCheckpoint::new(number, id);
        Ok(Taken { fleet: FleetId(fleet), set, shard, checkpoint })
    }
}

impl Shard {
    /// Looks at the bank as shard `shard` of `shards`. Changes nothing. The shard will keep the
    /// newest `sets_kept` sets.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the file `SHARD` names another shard or number of shards, or if
    /// the bank has tables or a checkpoint, and no file `SHARD`.
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if a number is out of range.
    pub fn open(bank: &Bank, shard: u32, shards: u32, sets_kept: usize) -> Result<Self> {
        check_shards(shards)?;
        if shard >= shards {
            return Err(Error::option("shard", format!("must be below {shards}, not {shard}")));
        }
        if sets_kept == 0 {
            return Err(Error::option("sets_kept", "must be 1 or more, not 0"));
        }
        let path = bank.path().to_owned();
        let identity = ShardIdentity::read(&path)?;
        match &identity {
            Some(identity) => identity.check(&path, shard, shards)?,
            // A shard has its file SHARD before its first checkpoint.
            None => {
                let content = match (bank.tables().is_empty(), bank.recovered()) {
                    (false, _) => "tables",
                    (true, Some(_)) => "a checkpoint",
                    (true, None) => "",
                };
                if !content.is_empty() {
                    return Err(Error::ShardMismatch {
                        path,
                        found: format!("a bank with {content} and no file SHARD"),
                        expected: format!("shard {shard} of {shards}"),
                        cure: "if an interrupted `embank reshard` made it, remove the fleet's directory and repeat \
                               the command; otherwise give a new directory, or bring back the directory of this shard"
                            .into(),
                    });
                }
            }
        }
        Ok(Shard {
            path,
            shard,
            shards,
            sets_kept,
            identity,
            recovered: None,
            newest: None,
            pending: None,
            phase: Phase::Opened,
        })
    }

    /// The shard's identity. `None` until [`settle`](Self::settle) has made a new fleet.
    #[must_use]
    pub fn identity(&self) -> Option<ShardIdentity> {
        self.identity
    }

    /// The shard's number.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The number of shards of the fleet.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The set at which [`settle`](Self::settle) opened the shard. `None` before, and for a new
    /// fleet.
    #[must_use]
    pub fn recovered(&self) -> Option<&SetRecord> {
        self.recovered.as_ref()
    }

    /// Number of the newest complete set that this shard knows.
    #[must_use]
    pub fn newest_set(&self) -> Option<u64> {
        self.newest
    }

    /// Reads what the shard has, for the other processes.
    ///
    /// # Errors
    /// Those of [`ShardView::read`].
    pub fn view(&self) -> Result<ShardView> {
        ShardView::read(&self.path, self.shard, self.shards)
    }

    /// Returns the bytes of a record of this shard, for shards that lack it.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the shard does not have the record.
    pub fn record(&self, set: u64) -> Result<Vec<u8>> {
        match record::read(&self.path, set)? {
            Some((bytes, _)) => Ok(bytes),
            None => Err(self.without_record(set)),
        }
    }

    /// Returns the records of this shard, oldest first.
    ///
    /// # Errors
    /// [`Damaged`](crate::StoreError::Damaged) if a record does not verify. Also a failed read.
    pub fn sets(&self) -> Result<Vec<SetRecord>> {
        let numbers = record::numbers(&self.path)?;
        let read = |number| Ok(record::read(&self.path, number)?.map(|(_, record)| record));
        numbers.into_iter().filter_map(|number| read(number).transpose()).collect()
    }

    fn without_record(&self, set: u64) -> Error {
        Error::ShardMismatch {
            path: record::path_of(&self.path, set),
            found: "no file".into(),
            expected: format!("the record of set {set}"),
            cure: "pass the record of a shard that has it (FleetPlan::newest, its holder)".into(),
        }
    }

    /// Checks that the shard can come to the set of `plan`, and changes nothing. The bank may be
    /// open.
    ///
    /// The processes tell each other the results before the first of them settles. A shard that
    /// can't go back would otherwise fail after others have removed the checkpoints of later sets.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the plan belongs to another fleet. If the shard is ahead of the
    /// set, also the errors of [`Bank::roll_back`] but `Locked`: the set's checkpoint is damaged,
    /// or a process reads a newer one.
    pub fn check(&self, plan: &FleetPlan) -> Result<()> {
        self.check_fleet(plan, None)?;
        let Some(newest) = &plan.newest else { return Ok(()) };
        let Some(at) = newest.checkpoints.get(self.shard as usize) else {
            return Err(self.without_record(newest.number));
        };
        let there = readable_checkpoints(&self.path)?;
        if there.last().is_some_and(|last| (last.number, last.id) == (at.number, at.id)) {
            return Ok(());
        }
        Ok(Store::check_roll_back(&self.path, at.number)?)
    }

    /// Brings the shard to the set of `plan`. `record` is the set's record, from the plan's holder,
    /// for a shard that lacks it.
    ///
    /// Makes the shard's identity durable in a new fleet. Otherwise writes the set's record if this
    /// shard lacks it, and pins the set's checkpoint. If the bank is at this checkpoint, removes
    /// the records of newer and of outdated sets, and returns `None`. Otherwise returns the
    /// checkpoint: the caller closes the bank, rolls it back ([`Bank::roll_back`]), opens it, and
    /// calls again.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the shard lacks the record and `record` is `None` or another
    /// set's, or if the plan or the record belongs to another fleet: then nothing has changed.
    /// [`Damaged`](crate::StoreError::Damaged) if a checkpoint of the bank can't be read. Also a
    /// failed read or write. The call can be repeated after an error.
    pub fn settle(
        &mut self,
        bank: &Bank,
        plan: &FleetPlan,
        record: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        let record = match &plan.newest {
            Some(newest) => Some(self.record_of(newest, record)?),
            None => None,
        };
        self.check_fleet(plan, record.as_ref())?;
        // Fails before any change if a checkpoint can't be read.
        let there = readable_checkpoints(&self.path)?;
        if self.identity.is_none() {
            let identity = ShardIdentity::new(plan.fleet, self.shard, self.shards)?;
            identity.create(&self.path)?;
            bank.became_shard(identity);
            self.identity = Some(identity);
        }
        let Some(record) = record else {
            self.phase = Phase::Ready;
            return Ok(None);
        };
        let at = record.checkpoints[self.shard as usize].number;
        // 1. The set becomes findable and stays, on this shard alone.
        self.keep(bank, &record)?;
        let number = record.number;
        self.newest = Some(number);
        self.recovered = Some(record);
        // 2. The caller takes the bank back. Later sets lose their checkpoints before their
        // records. So a roll back that fails before its first removal loses no set, and a pinned
        // checkpoint always has a record.
        let is_there = bank.recovered().is_some_and(|opened| opened.checkpoint == at);
        if !is_there || there.last().is_some_and(|newest| newest.number != at) {
            return Ok(Some(at));
        }
        // 3. The records of later sets go, and the outdated sets. A crash before that repeats all
        // steps.
        let numbers = record::numbers(&self.path)?;
        let above: Vec<u64> = numbers.into_iter().filter(|&set| set > number).collect();
        record::remove(&self.path, &above)?;
        self.retire(bank, number)?;
        self.phase = Phase::Ready;
        Ok(None)
    }

    /// Returns the record of the plan's set: that of this shard, or `given`.
    fn record_of(&self, newest: &CompleteSet, given: Option<&[u8]>) -> Result<SetRecord> {
        let record = match (record::read(&self.path, newest.number)?, given) {
            (Some((_, own)), _) => own,
            (None, Some(bytes)) => {
                SetRecord::decode(bytes).map_err(|error| no_message("record", &error))?
            }
            (None, None) => return Err(self.without_record(newest.number)),
        };
        let is_it = (record.number, record.id) == (newest.number, newest.id)
            && record.checkpoints == newest.checkpoints;
        if is_it { Ok(record) } else { Err(self.without_record(newest.number)) }
    }

    /// Fails if the plan or its record belongs to another fleet than this shard.
    fn check_fleet(&self, plan: &FleetPlan, record: Option<&SetRecord>) -> Result<()> {
        let fleet = self.identity.map_or(plan.fleet, |identity| identity.fleet);
        if fleet != plan.fleet {
            return Err(Error::ShardMismatch {
                path: self.path.clone(),
                found: format!("a plan of fleet {}", plan.fleet),
                expected: format!("a plan of fleet {fleet}"),
                cure: "make the plan of the views of this fleet's shards".into(),
            });
        }
        record.map_or(Ok(()), |record| record.check_fleet(&self.path, Some(fleet), self.shards))
    }

    /// Takes this shard's checkpoint for the next set.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) before [`settle`](Self::settle), or
    /// if the outcome of an earlier `take` is not known: then close the bank and open the fleet
    /// again. Also the errors of [`Bank::checkpoint`]: then every shard calls
    /// [`abandon`](Self::abandon), and the newest set stays.
    pub fn take(&mut self, bank: &Bank) -> Result<Taken> {
        if self.phase != Phase::Ready {
            return Err(misuse("settle, and commit or abandon the set before"));
        }
        let Some(identity) = self.identity else { return Err(misuse("settle first")) };
        // A new checkpoint removes all older ones that are not pinned. So the newest complete set
        // must be pinned and recorded first.
        self.finish_pending(bank)?;
        let set = self.newest.map_or(0, |newest| newest + 1);
        let blob = format!("set {set} of fleet {}", identity.fleet);
        let number = bank.checkpoint_of_shard(blob.as_bytes())?;
        let there = Bank::checkpoints(&self.path)?;
        let Some(found) = there.iter().find(|of| of.number == number) else {
            return Err(StoreError::ChangedMeanwhile(format!(
                "{}: checkpoint {number} is gone; only one process may take the checkpoints of a shard",
                self.path.display()
            ))
            .into());
        };
        let checkpoint = HeldCheckpoint::new(number, found.id);
        let taken = Taken { fleet: identity.fleet, set, shard: self.shard, checkpoint };
        self.phase = Phase::Taken(taken);
        Ok(taken)
    }

    /// Gives up a set, because a shard could not take its checkpoint. The next `take` removes the
    /// checkpoint of this shard. Does nothing if the shard has not taken one.
    pub fn abandon(&mut self) {
        if matches!(self.phase, Phase::Taken(_)) {
            self.phase = Phase::Ready;
        }
    }

    /// Completes a set whose checkpoints all shards have taken. `taken` are the results of all
    /// shards, in any order, and `blob` are the caller's bytes, the same on all shards.
    ///
    /// Writes the set's record, pins this shard's checkpoint, and lets go of outdated sets. With
    /// this call the set is complete, also if the call fails on some shards.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) without a [`take`](Self::take), or
    /// if `taken` is not one result of each shard: then nothing has changed. A failed write: then
    /// the set may be complete, and the next [`take`](Self::take) writes the record first.
    pub fn commit(&mut self, bank: &Bank, taken: &[Taken], blob: &[u8]) -> Result<SetRecord> {
        let Phase::Taken(own) = self.phase else {
            return Err(misuse("take the shard's checkpoint first"));
        };
        let mut all = taken.to_vec();
        all.sort_by_key(|taken| taken.shard);
        let fits = all.len() == self.shards as usize
            && all[self.shard as usize] == own
            && (0..).zip(&all).all(|(shard, taken)| {
                (taken.fleet, taken.set, taken.shard) == (own.fleet, own.set, shard)
            });
        if !fits {
            return Err(misuse(&format!(
                "the results of all {} shards for set {} are needed, each once, and these were given: {}",
                self.shards,
                own.set,
                all.iter()
                    .map(|taken| format!("shard {} for set {}", taken.shard, taken.set))
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        }
        let checkpoints = all.iter().map(|taken| taken.checkpoint).collect();
        let record = SetRecord::new(own.fleet, own.set, checkpoints, blob.to_vec());
        self.phase = Phase::Ready;
        self.newest = Some(record.number);
        self.pending = Some(record.clone());
        self.finish_pending(bank)?;
        Ok(record)
    }

    /// Makes the record and the pin of a complete set durable on this shard, and then lets go of
    /// outdated sets.
    fn finish_pending(&mut self, bank: &Bank) -> Result<()> {
        let Some(record) = &self.pending else { return Ok(()) };
        self.keep(bank, record)?;
        let newest = record.number;
        self.pending = None;
        self.retire(bank, newest)
    }

    /// Makes the record and the pin of a complete set durable on this shard. The record comes
    /// first: after a crash in between, `retire` finds the checkpoint by its record, and pins or
    /// unpins it. A pin without a record would stay for ever.
    fn keep(&self, bank: &Bank, record: &SetRecord) -> Result<()> {
        record.write(&self.path)?;
        bank.pin_of_shard(record.checkpoints[self.shard as usize].number)
    }

    /// Unpins the checkpoints of outdated sets, and removes their records. A set is outdated if
    /// `sets_kept` newer ones are there, or if its checkpoint is gone.
    fn retire(&self, bank: &Bank, newest: u64) -> Result<()> {
        let there = readable_checkpoints(&self.path)?;
        let fleet = self.identity.map(|identity| identity.fleet);
        let mut kept = 0;
        let mut outdated = Vec::new();
        for number in record::numbers(&self.path)?.into_iter().rev().filter(|&set| set <= newest) {
            let Some((_, record)) = record::read(&self.path, number)? else { continue };
            record.check_fleet(&self.path, fleet, self.shards)?;
            let named = record.checkpoints[self.shard as usize];
            let held = there.iter().find(|of| (of.number, of.id) == (named.number, named.id));
            if let Some(held) = held
                && kept < self.sets_kept
            {
                // A crash in `keep`, or after the unpinning below with a larger `sets_kept` since
                // then, leaves a kept set without its pin.
                if !held.pinned {
                    bank.pin_of_shard(held.number)?;
                }
                kept += 1;
                continue;
            }
            // The pin goes before the record. After a crash in between, the record still leads the
            // next call to the checkpoint.
            if held.is_some() {
                bank.unpin_of_shard(named.number)?;
            }
            outdated.push(number);
        }
        record::remove(&self.path, &outdated)
    }

    /// The directory of the shard's bank.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn misuse(what: &str) -> Error {
    StoreError::InvalidArgument(format!("a shard's calls are out of order: {what}")).into()
}
