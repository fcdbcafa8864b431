//! What the shards of a fleet do when they are opened: a pure function of all views.
//!
//! Every process computes the plan from the same views, so all processes get the same plan or the
//! same error, and no message about the decision is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fleet::identity::{FleetId, shard_path};
use crate::fleet::record::{self, HeldCheckpoint};
use crate::fleet::view::{RecordView, ShardView};

/// What the shards of a fleet do when they are opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetPlan {
    /// The fleet's id.
    pub fleet: FleetId,
    /// The set that the fleet opens at: the newest complete one, or the one that was asked for.
    /// Opening the fleet removes all newer sets. `None` for a new fleet, which has no rows.
    pub newest: Option<CompleteSet>,
    /// Why newer sets are not complete, the newest first. Empty if a set was asked for.
    pub passed_over: Vec<String>,
}

/// A complete set of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompleteSet {
    /// The set's number.
    pub number: u64,
    /// The set's id ([`SetRecord::id`](crate::fleet::SetRecord::id)).
    pub id: u64,
    /// The checkpoint of each shard, by shard.
    pub checkpoints: Vec<HeldCheckpoint>,
    /// The first shard that has the record.
    pub holder: u32,
    /// The shards that lack the record. [`Shard::settle`](crate::fleet::Shard::settle) needs the
    /// holder's record there.
    pub lacking: Vec<u32>,
}

/// A set in a list of sets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedSet {
    /// The set's number.
    pub number: u64,
    /// The set's id.
    pub id: u64,
    /// The checkpoint of each shard, by shard.
    pub checkpoints: Vec<HeldCheckpoint>,
    /// Why the set is not complete. `None` for a complete set.
    pub incomplete: Option<String>,
}

impl FleetPlan {
    /// Finds the newest complete set from the views of all shards, in any order. A set is complete
    /// if any shard has its record and every shard holds the checkpoint that the record names.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the views are not those of one whole fleet: a shard is missing
    /// or there twice, a shard belongs to another fleet, two records of one set differ, a set names
    /// another checkpoint than the one of that number, or there are rows but no complete set.
    pub fn of(views: &[ShardView]) -> Result<Self> {
        let views = whole_fleet(views)?;
        // Records of two fleets would differ too, so this check comes first.
        let fleet = fleet_of(&views, views.iter().any(|view| !view.records.is_empty()))?;
        let sets = sets_of(&views)?;
        let mut passed_over = Vec::new();
        for found in sets.values().rev() {
            refuse_other_checkpoint(&views, found)?;
            match why_incomplete(&views, found) {
                Some(why) => passed_over.push(why),
                None => {
                    let newest = Some(CompleteSet::of(&views, found));
                    return Ok(FleetPlan { fleet, newest, passed_over });
                }
            }
        }
        let with_rows = views.iter().find(|view| view.has_tables);
        if sets.is_empty() && with_rows.is_none() {
            return Ok(FleetPlan { fleet, newest: None, passed_over });
        }
        Err(Error::ShardMismatch {
            path: with_rows.unwrap_or(&views[0]).path.clone(),
            found: match passed_over.is_empty() {
                true => "tables, and no record of a set on any shard".into(),
                false => format!("no complete set: {}", passed_over.join("; ")),
            },
            expected: "a complete set".into(),
            cure: "if an interrupted `embank reshard` made the fleet, remove its directory and repeat the command; \
                   otherwise restore the shard's directory, or begin again in a new one"
                .into(),
        })
    }

    /// Finds the complete set `set` from the views of all shards, in any order, to go back to it.
    /// What is wrong with newer sets does not matter, because opening the fleet removes them.
    ///
    /// `id` is the set's id ([`SetRecord::id`](crate::fleet::SetRecord::id)), from a file that names
    /// the set. A set that the fleet took after it went back may have the same number, and so may a
    /// set of another fleet. `None` accepts every id.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if there is no such set, if it is not
    /// complete, or if it has another id. The text names the complete sets, or both ids. Otherwise
    /// the errors of [`of`](Self::of).
    pub fn at(views: &[ShardView], set: u64, id: Option<u64>) -> Result<Self> {
        let whole = whole_fleet(views)?;
        let fleet = fleet_of(&whole, whole.iter().any(|view| !view.records.is_empty()))?;
        let up_to: Vec<ShardView> = whole.iter().map(|view| view.up_to(set)).collect();
        let up_to: Vec<&ShardView> = up_to.iter().collect();
        if let Some(found) = sets_of(&up_to)?.get(&set) {
            if let Some(id) = id.filter(|&id| id != found.id) {
                let what = format!(
                    "is set {set} with id {id:016x}, and set {set} of this fleet has id {:016x}: the file that names \
                     the set belongs to another fleet, or the fleet went back after the set was taken; use a file of \
                     this fleet, or pass a number alone",
                    found.id
                );
                return Err(Error::option("set", what));
            }
            refuse_other_checkpoint(&whole, found)?;
            if why_incomplete(&whole, found).is_none() {
                let newest = Some(CompleteSet::of(&whole, found));
                return Ok(FleetPlan { fleet, newest, passed_over: Vec::new() });
            }
        }
        let listed = list_sets(views)?;
        let is_complete = |of: &&ListedSet| of.incomplete.is_none();
        let complete: Vec<u64> = listed.iter().filter(is_complete).map(|of| of.number).collect();
        let why = listed.into_iter().find(|of| of.number == set).and_then(|of| of.incomplete);
        let why = why.unwrap_or_else(|| "the fleet does not keep it".into());
        let what =
            format!("must be a complete set of the fleet, one of {complete:?}, not {set}: {why}");
        Err(Error::option("set", what))
    }
}

impl CompleteSet {
    fn of(views: &[&ShardView], set: &RecordView) -> Self {
        let has_it =
            |view: &ShardView| view.records.iter().any(|record| record.number == set.number);
        let (with, without): (Vec<&ShardView>, _) = views.iter().partition(|view| has_it(view));
        CompleteSet {
            number: set.number,
            id: set.id,
            checkpoints: set.checkpoints.clone(),
            holder: with.first().map_or(0, |view| view.shard),
            lacking: without.iter().map(|view| view.shard).collect(),
        }
    }
}

/// Lists the sets of a fleet from the views of its shards, oldest first. Shards whose view is not
/// there count as shards that lack their checkpoints.
///
/// # Errors
/// [`Error::ShardMismatch`] if two records of one set differ.
pub fn list_sets(views: &[ShardView]) -> Result<Vec<ListedSet>> {
    let mut views: Vec<&ShardView> = views.iter().collect();
    views.sort_by_key(|view| view.shard);
    let sets = sets_of(&views)?;
    let listed = sets.into_iter().map(|(number, found)| ListedSet {
        number,
        id: found.id,
        checkpoints: found.checkpoints.clone(),
        incomplete: why_incomplete(&views, found),
    });
    Ok(listed.collect())
}

/// Checks that every shard is there once, and returns the views by shard.
fn whole_fleet(views: &[ShardView]) -> Result<Vec<&ShardView>> {
    let mut views: Vec<&ShardView> = views.iter().collect();
    views.sort_by_key(|view| view.shard);
    let Some(first) = views.first().copied() else {
        return Err(Error::option("views", "must have one view for each shard, and is empty"));
    };
    for pair in views.windows(2) {
        if pair[0].shard == pair[1].shard {
            return Err(Error::ShardMismatch {
                path: pair[1].path.clone(),
                found: format!("shard {}, as {} is", pair[1].shard, pair[0].path.display()),
                expected: "a shard that no other process has open".into(),
                cure: "give each process a shard of its own".into(),
            });
        }
    }
    if let Some(other) = views.iter().find(|view| view.shards != first.shards) {
        return Err(Error::ShardMismatch {
            path: other.path.clone(),
            found: format!("a shard of {}", other.shards),
            expected: format!("a shard of {}, as {} is", first.shards, first.path.display()),
            cure: "open every shard with the same number of shards".into(),
        });
    }
    // Numbers are below `shards` and differ, so a shard is missing if there are too few views.
    let missing = (0..first.shards)
        .find(|&shard| views.get(shard as usize).is_none_or(|view| view.shard != shard));
    if let Some(missing) = missing {
        let fleet = first.path.parent().unwrap_or(Path::new(""));
        return Err(Error::ShardMismatch {
            path: shard_path(fleet, missing),
            found: "no process with this shard".into(),
            expected: format!("{} shards", first.shards),
            cure: "bring the directory back, and open it in a process of its own".into(),
        });
    }
    Ok(views)
}

/// Returns the id of the fleet. A shard may lack it only if the fleet has no set yet: then a
/// process was killed while it made the fleet.
fn fleet_of(views: &[&ShardView], has_sets: bool) -> Result<FleetId> {
    let Some((known, fleet)) = views.iter().find_map(|view| Some((view, view.fleet?))) else {
        return Ok(views[0].proposed);
    };
    for view in views {
        let found = match view.fleet {
            Some(other) if other != fleet => format!("a shard of fleet {other}"),
            None if has_sets => "no file SHARD".into(),
            _ => continue,
        };
        return Err(Error::ShardMismatch {
            path: view.path.clone(),
            found,
            expected: format!(
                "shard {} of fleet {fleet}, as in {}",
                view.shard,
                known.path.display()
            ),
            cure: "bring back the directory of this fleet's shard".into(),
        });
    }
    Ok(fleet)
}

/// Collects the records of all shards by set.
fn sets_of<'v>(views: &[&'v ShardView]) -> Result<BTreeMap<u64, &'v RecordView>> {
    let mut sets: BTreeMap<u64, (&PathBuf, &RecordView)> = BTreeMap::new();
    for view in views {
        for found in &view.records {
            let (path, first) = sets.entry(found.number).or_insert((&view.path, found));
            if first.digest != found.digest {
                return Err(Error::ShardMismatch {
                    path: record::path_of(&view.path, found.number),
                    found: format!("set {} with digest {:016x}", found.number, found.digest),
                    expected: format!(
                        "digest {:016x}, as {} has",
                        first.digest,
                        record::path_of(path, found.number).display()
                    ),
                    cure: "the shards are of different times: restore the directory of the older one as a whole"
                        .into(),
                });
            }
        }
    }
    Ok(sets.into_iter().map(|(number, (_, record))| (number, record)).collect())
}

/// Fails if a shard holds another checkpoint of the number that the set names. The shard was then
/// replaced by a copy, or taken back and trained alone.
fn refuse_other_checkpoint(views: &[&ShardView], set: &RecordView) -> Result<()> {
    for (view, named) in views.iter().zip(&set.checkpoints) {
        let same_number = |held: &&HeldCheckpoint| held.number == named.number;
        if let Some(held) = view.checkpoints.iter().find(same_number)
            && held.id != named.id
        {
            return Err(Error::ShardMismatch {
                path: view.path.clone(),
                found: format!("checkpoint {} with id {:016x}", held.number, held.id),
                expected: format!("id {:016x}, as set {} names", named.id, set.number),
                cure: format!(
                    "restore the shard's directory, or go back to a set before set {} for good (FleetPlan::at; \
                     ShardedBank(set=...) in Python)",
                    set.number
                ),
            });
        }
    }
    Ok(())
}

/// Returns why a set is not complete. `None` if it is complete.
fn why_incomplete(views: &[&ShardView], set: &RecordView) -> Option<String> {
    let mut lacking = Vec::new();
    for (shard, &named) in set.checkpoints.iter().enumerate() {
        match views.iter().find(|view| view.shard as usize == shard) {
            None => lacking.push(format!("shard {shard} is not here")),
            Some(view) if !view.holds(named) => {
                lacking.push(format!("shard {shard} lacks checkpoint {}", named.number));
            }
            Some(_) => {}
        }
    }
    (!lacking.is_empty()).then(|| format!("set {}: {}", set.number, lacking.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: FleetId = FleetId([7; 16]);

    fn held(number: u64) -> HeldCheckpoint {
        HeldCheckpoint::new(number, 1000 + number)
    }

    fn set(number: u64, checkpoints: [u64; 2]) -> RecordView {
        let checkpoints = checkpoints.map(held).to_vec();
        RecordView { number, id: number, digest: number, checkpoints }
    }

    fn view(shard: u32, checkpoints: &[u64], records: &[RecordView]) -> ShardView {
        ShardView {
            path: format!("d/shard-{shard:05}").into(),
            shard,
            shards: 2,
            fleet: Some(FLEET),
            proposed: FleetId([shard as u8; 16]),
            has_tables: true,
            checkpoints: checkpoints.iter().copied().map(held).collect(),
            records: records.to_vec(),
        }
    }

    fn newest(views: &[ShardView]) -> CompleteSet {
        FleetPlan::of(views).unwrap().newest.unwrap()
    }

    fn refusal(views: &[ShardView]) -> String {
        FleetPlan::of(views).unwrap_err().to_string()
    }

    #[test]
    fn a_set_is_complete_if_any_shard_has_the_record_and_all_hold_the_checkpoints() {
        let (old, new) = (set(3, [4, 5]), set(4, [6, 7]));
        let a = view(0, &[4, 6], &[old.clone(), new.clone()]);
        let b = view(1, &[5, 7], std::slice::from_ref(&old));
        let found = newest(&[b.clone(), a.clone()]);
        assert_eq!((found.number, found.holder, found.lacking), (4, 0, vec![1]));
        assert_eq!(found.checkpoints, [held(6), held(7)]);
        // No shard has the newer record.
        let a = ShardView { records: vec![old], ..a };
        let found = newest(&[a, b]);
        assert_eq!((found.number, found.holder, found.lacking), (3, 0, vec![]));
    }

    #[test]
    fn a_set_whose_checkpoint_is_gone_is_passed_over_and_named() {
        let (old, new) = (set(3, [4, 5]), set(4, [6, 7]));
        let a = view(0, &[4, 6], &[old, new]);
        let b = view(1, &[5], &[]);
        let plan = FleetPlan::of(&[a.clone(), b.clone()]).unwrap();
        assert_eq!(plan.passed_over, ["set 4: shard 1 lacks checkpoint 7"]);
        assert_eq!(plan.newest.unwrap().number, 3);
        let listed = list_sets(&[a.clone(), b]).unwrap();
        assert_eq!(listed.iter().map(|set| set.number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(listed[0].incomplete, None);
        assert!(listed[1].incomplete.is_some());
        let alone = list_sets(&[a]).unwrap();
        assert_eq!(alone[0].incomplete.as_deref(), Some("set 3: shard 1 is not here"));
    }

    #[test]
    fn a_fleet_goes_back_to_a_complete_set_that_it_keeps() {
        let (old, new) = (set(3, [4, 5]), set(4, [6, 7]));
        let a = view(0, &[4, 6], &[old.clone(), new.clone()]);
        let b = view(1, &[5, 7], std::slice::from_ref(&new));
        let plan = FleetPlan::at(&[b.clone(), a.clone()], 3, Some(3)).unwrap();
        let found = plan.newest.unwrap();
        assert_eq!((found.number, found.holder, found.lacking), (3, 0, vec![1]));
        assert_eq!((found.checkpoints, plan.passed_over), (vec![held(4), held(5)], vec![]));
        assert_eq!(
            FleetPlan::at(&[a.clone(), b.clone()], 4, None).unwrap(),
            FleetPlan::of(&[a.clone(), b.clone()]).unwrap()
        );
        for unknown in [2, 5] {
            let text =
                FleetPlan::at(&[a.clone(), b.clone()], unknown, None).unwrap_err().to_string();
            assert!(text.contains(&format!("one of [3, 4], not {unknown}")), "{text}");
        }
        // The set of that number is another one.
        let text = FleetPlan::at(&[a.clone(), b], 3, Some(0xAB)).unwrap_err().to_string();
        assert!(text.contains("set 3 with id 00000000000000ab, and set 3 of this fleet"), "{text}");
        // A newer set that is not complete, or whose records differ, does not matter.
        let other = RecordView { digest: 99, ..new };
        let lacks = view(1, &[5], &[other]);
        assert!(FleetPlan::of(&[a.clone(), lacks.clone()]).is_err());
        assert_eq!(FleetPlan::at(&[a.clone(), lacks], 3, None).unwrap().newest.unwrap().number, 3);
        let lacks = view(1, &[5], std::slice::from_ref(&old));
        let text = FleetPlan::at(&[a.clone(), lacks], 4, None).unwrap_err().to_string();
        assert!(text.contains("one of [3], not 4: set 4: shard 1 lacks checkpoint 7"), "{text}");
        // The checkpoint of the set itself must be the one that it names.
        let mut replaced = view(1, &[5], &[old]);
        replaced.checkpoints[0].id = 5;
        let text = FleetPlan::at(&[a, replaced], 3, None).unwrap_err().to_string();
        assert!(text.contains("checkpoint 5 with id"), "{text}");
    }

    #[test]
    fn no_complete_set_is_an_error_if_there_are_rows() {
        let text = refusal(&[view(0, &[4], &[set(3, [4, 5])]), view(1, &[], &[])]);
        assert!(text.contains("set 3: shard 1 lacks checkpoint 5"), "{text}");
        let text = refusal(&[view(0, &[4], &[]), view(1, &[], &[])]);
        assert!(text.contains("no record of a set"), "{text}");
    }

    #[test]
    fn an_unfinished_new_fleet_is_made_to_the_end() {
        let new = |shard, fleet| ShardView { has_tables: false, fleet, ..view(shard, &[], &[]) };
        let plan = FleetPlan::of(&[new(1, None), new(0, None)]).unwrap();
        assert_eq!((plan.fleet, plan.newest), (FleetId([0; 16]), None));
        let plan = FleetPlan::of(&[new(0, None), new(1, Some(FLEET))]).unwrap();
        assert_eq!((plan.fleet, plan.newest), (FLEET, None));
    }

    #[test]
    fn a_missing_or_doubled_shard_is_named() {
        let one = view(0, &[4], &[set(3, [4, 5])]);
        let text = refusal(std::slice::from_ref(&one));
        assert!(text.starts_with("d/shard-00001: found no process"), "{text}");
        let other = ShardView { path: "e/shard-00000".into(), ..one.clone() };
        let text = refusal(&[one.clone(), other]);
        assert!(text.contains("e/shard-00000: found shard 0, as d/shard-00000 is"), "{text}");
        let of_three = ShardView { shards: 3, ..view(1, &[], &[]) };
        let text = refusal(&[one, of_three]);
        assert!(text.contains("a shard of 3"), "{text}");
        assert!(FleetPlan::of(&[]).is_err());
    }

    #[test]
    fn two_fleets_and_an_empty_shard_are_refused() {
        let one = view(0, &[4], &[set(3, [4, 5])]);
        let other = ShardView { fleet: Some(FleetId([9; 16])), ..view(1, &[5], &[]) };
        let text = refusal(&[one.clone(), other]);
        assert!(text.contains("d/shard-00001: found a shard of fleet 0909"), "{text}");
        let empty = ShardView { fleet: None, has_tables: false, ..view(1, &[], &[]) };
        let text = refusal(&[one, empty]);
        assert!(text.contains("d/shard-00001: found no file SHARD"), "{text}");
    }

    #[test]
    fn records_that_differ_and_other_checkpoints_are_refused() {
        let good = set(3, [4, 5]);
        let other = RecordView { digest: 99, ..good.clone() };
        let text = refusal(&[view(0, &[4], std::slice::from_ref(&good)), view(1, &[5], &[other])]);
        assert!(text.contains("d/shard-00001/sets/0000000003"), "{text}");
        let mut replaced = view(1, &[5], &[]);
        replaced.checkpoints[0].id = 5;
        let text = refusal(&[view(0, &[4], &[good]), replaced]);
        assert!(text.contains("checkpoint 5 with id 0000000000000005"), "{text}");
        assert!(text.contains("a set before set 3"), "{text}");
    }

    #[test]
    fn a_view_survives_the_way_to_another_process() {
        let view = view(1, &[5, 7], &[set(3, [4, 5])]);
        assert_eq!(ShardView::from_bytes(&view.to_bytes()).unwrap(), view);
        assert!(ShardView::from_bytes(b"error: it is locked").is_err());
    }
}
