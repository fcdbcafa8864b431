//! Fleets of another number of shards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use embank::fleet::{FleetPlan, Routing, SetRecord, Shard, Taken, read_views, reshard, shard_path};
use embank::inspect::{CheckpointReader, TableSummary};
use embank::{
    Admission, Bank, ByteBuffer, Dtype, Error, Optimizer, Result, TableConfig, Tracking,
    TransferProgress, VocabularyConfig,
};

use crate::fleet::{
    Fleet, KEYS, SHARDS, look, options, plan, refusal, settle, take_away, two_sets,
};

/// The rows of a fleet's newest set: the bytes of each row by table and key.
type Rows = BTreeMap<(String, u64), Vec<u8>>;

/// Reads the rows of a fleet's newest set. Of a vocabulary, which every shard has, takes the rows
/// of shard 0. Of the numbers of Gets before admission by chance, takes the largest.
fn rows_of_set(dir: &Path, shards: u32) -> (SetRecord, Rows) {
    let views = read_views(dir).unwrap().into_iter().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(views.len(), shards as usize);
    let newest = FleetPlan::of(&views).unwrap().newest.unwrap();
    let mut rows = Rows::new();
    for (shard, held) in (0..).zip(&newest.checkpoints) {
        for ((name, key), value) in rows_of_checkpoint(&shard_path(dir, shard), held.number) {
            if name.starts_with('(') || name.contains("(vocabulary") && shard > 0 {
                continue;
            }
            let largest = name.starts_with("chance (");
            let there = rows.entry((name, key)).or_insert_with(|| value.clone());
            let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
            if largest && number(&value) > number(there) {
                *there = value;
            } else {
                assert!(largest || *there == value, "a row is on two shards");
            }
        }
    }
    let bank = Bank::open(shard_path(dir, 0), options()).unwrap();
    let record = Shard::open(&bank, 0, shards, 2).unwrap().sets().unwrap().pop().unwrap();
    (record, rows)
}

fn rows_of_checkpoint(bank: &Path, checkpoint: u64) -> Rows {
    let mut rows = Rows::new();
    let mut reader = CheckpointReader::open(bank, checkpoint).unwrap();
    let names: HashMap<u16, String> =
        reader.tables().iter().map(|table| (table.number, table.name.clone())).collect();
    let damage = reader.for_each_row(&mut |table, key, value| {
        let before = rows.insert((names[&table].clone(), key), value.to_vec());
        assert_eq!(before, None, "{} key {key}", names[&table]);
        true
    });
    assert_eq!(damage.unwrap(), []);
    rows
}

/// Returns the times of the tables in a checkpoint, by name.
fn times_of(bank: &Path, checkpoint: u64) -> BTreeMap<String, u8> {
    let reader = CheckpointReader::open(bank, checkpoint).unwrap();
    let rows = rows_of_checkpoint(bank, checkpoint);
    let named = |number: u64| {
        let is_it = |table: &&TableSummary| u64::from(table.number) == number;
        reader.tables().iter().find(is_it).unwrap().name.clone()
    };
    let times = rows.iter().filter(|((name, _), _)| name == "(times of tables)");
    times.map(|((_, number), time)| (named(*number), time[0])).collect()
}

/// The settings of the tables of a fleet with all kinds of rows.
fn all_tables() -> Vec<(&'static str, TableConfig)> {
    vec![
        ("plain", TableConfig::new(3)),
        (
            "trained",
            TableConfig::new(4)
                .dtype(Dtype::Int8)
                .optimizer(Optimizer::adam(0.1))
                .tracking(Tracking::SetTime),
        ),
        (
            "admitted",
            TableConfig::new(2)
                .optimizer(Optimizer::adagrad(0.1))
                .admission(Admission::AfterGets(3))
                .tracking(Tracking::SetTime),
        ),
        ("chance", TableConfig::new(2).admission(Admission::Probability(0.5))),
        ("placed", TableConfig::new(2).optimizer(Optimizer::sgd(0.5)).shard(Some(3))),
        ("of words", TableConfig::new(2).vocabulary("words")),
    ]
}

/// Makes a fleet of four shards with rows of all kinds, and takes a set.
fn fleet_of_all_kinds(dir: &Path) {
    const FOUR: u32 = 4;
    let mut shards = look(dir, FOUR).unwrap();
    let plan = plan(&shards).unwrap();
    shards = shards.into_iter().map(|shard| settle(shard, &plan, None).unwrap()).collect();
    for (number, (bank, _)) in (0..).zip(&shards) {
        let words = bank.vocabulary("words", VocabularyConfig::bytes().counts(true)).unwrap();
        let values = ByteBuffer::from_iter((0..50_u8).map(|i| vec![i; 3 + usize::from(i)]));
        words.ids_or_insert(&values, &mut [0; 50]).unwrap();
        bank.vocabulary("numbers", VocabularyConfig::u64()).unwrap();
        for (name, config) in all_tables() {
            let placed = config.shard;
            let table = bank.table(name, config.clone()).unwrap();
            let routing = Routing::new(name, FOUR).unwrap();
            let is_own = |&key: &u64| placed.unwrap_or_else(|| routing.shard_of(key)) == number;
            let own: Vec<u64> = (0..50).filter(is_own).collect();
            if config.tracking == Tracking::SetTime {
                table.set_time(100 + number).unwrap();
            }
            let mut rows = vec![0.0; own.len() * table.dim()];
            // Two gets: keys that need three of them have counts and no row.
            for _ in 0..2 {
                drop(table.get(&own, &mut rows).unwrap());
            }
            let trained: Vec<u64> = own.iter().copied().filter(|key| key % 2 == 0).collect();
            let mut rows = vec![0.0; trained.len() * table.dim()];
            let lease = table.get(&trained, &mut rows).unwrap();
            match config.optimizer {
                Optimizer::None => lease.put(&rows).unwrap(),
                _ => lease.apply(&rows.iter().map(|x| x + 0.5).collect::<Vec<_>>()).unwrap(),
            }
        }
    }
    let taken: Vec<Taken> =
        shards.iter_mut().map(|(bank, shard)| shard.take(bank).unwrap()).collect();
    for (bank, shard) in &mut shards {
        shard.commit(bank, &taken, b"step 7").unwrap();
    }
}

fn reshard_to(dir: &Path, new: &Path, shards: u32) -> Vec<u64> {
    let made = reshard(dir, new, shards, Some(u64::from(shards) << 21), &mut |progress| {
        assert!(progress.rows_done <= progress.rows_total);
        ControlFlow::Continue(())
    });
    let made = made.unwrap();
    assert_eq!(made.rows.len(), shards as usize);
    made.rows
}

#[test]
fn four_shards_become_three_and_four_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fleet_of_all_kinds(&path("four"));
    reshard_to(&path("four"), &path("three"), 3);
    let rows = reshard_to(&path("three"), &path("again"), 4);
    assert!(rows.iter().all(|&rows| rows > 0), "{rows:?}");
    let (old, before) = rows_of_set(&path("four"), 4);
    let (new, between) = rows_of_set(&path("three"), 3);
    let (again, after) = rows_of_set(&path("again"), 4);
    assert_eq!((old.number, old.id, &old.blob), (again.number, again.id, &again.blob));
    assert_ne!(old.fleet, again.fleet);
    assert_ne!(new.fleet, old.fleet);
    assert!(before.keys().any(|(name, _)| name == "admitted (counts before admission)"));
    let kinds: BTreeSet<&str> = before.keys().map(|(name, _)| name.as_str()).collect();
    assert!(kinds.len() >= 10, "{kinds:?}");
    assert_eq!(before, between);
    assert_eq!(before, after);
    for shard in 0..3 {
        let bank = Bank::open(shard_path(&path("three"), shard), options()).unwrap();
        for (name, config) in all_tables() {
            let config = config.clone().shard(config.shard.map(|shard| shard % 3));
            let table = bank.table(name, config).unwrap();
            let placed = table.config().shard;
            assert!(placed.is_none_or(|at| at == shard || table.rows().unwrap() == 0), "{name}");
        }
        assert_eq!(bank.open_vocabulary("words").unwrap().len(), 50);
        let at = new.checkpoints[shard as usize].number;
        let times = times_of(&shard_path(&path("three"), shard), at);
        // The largest of the times 100 to 103 that the four shards had.
        assert_eq!(times, [("admitted".to_owned(), 103), ("trained".to_owned(), 103)].into());
    }
}

#[test]
fn a_resharded_fleet_trains_on() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let set = fleet.checkpoint(b"blob").unwrap();
    // Another process trains the old fleet meanwhile.
    reshard_to(dir.path(), &new.path().join("two"), 2);
    drop(fleet);
    reshard_to(&new.path().join("two"), &new.path().join("three"), SHARDS);
    let mut fleet = Fleet::open(&new.path().join("three")).unwrap();
    assert_eq!((fleet.value(), fleet.recovered().number), (Some(1.0), set.number));
    assert_eq!((fleet.recovered().id, &fleet.recovered().blob), (set.id, &set.blob));
    fleet.put(2.0);
    assert_eq!(fleet.checkpoint(b"").unwrap().number, set.number + 1);
    drop(fleet);
    assert_eq!(Fleet::open(&new.path().join("three")).unwrap().value(), Some(2.0));
}

#[test]
fn an_interrupted_reshard_is_no_fleet() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(Fleet::open(dir.path()).unwrap());
    let go_on = &mut |_: TransferProgress| ControlFlow::Continue(());
    // Ends at the report with `rows` rows. The first report comes before the first row, and the
    // last one after all rows and before the files of the fleet.
    let interrupt =
        |new: &Path, rows: u64| {
            let result =
                reshard(dir.path(), new, SHARDS, Some(6 << 20), &mut |progress| match progress
                    .rows_done
                    == rows
                {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                });
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
            refusal(new)
        };
    let text = interrupt(&new.path().join("without tables"), 0);
    assert!(text.contains("a bank with a checkpoint and no file SHARD"), "{text}");
    drop(two_sets(dir.path()));
    for rows in [0, KEYS] {
        let new = new.path().join(rows.to_string());
        let text = interrupt(&new, rows);
        assert!(text.contains("a bank with tables and no file SHARD"), "{text}");
        assert!(text.contains("interrupted `embank reshard`"), "{text}");
        let text = reshard(dir.path(), &new, 2, None, go_on).unwrap_err().to_string();
        assert!(text.contains("interrupted `embank reshard`"), "{text}");
        fs::remove_dir_all(&new).unwrap();
        reshard(dir.path(), &new, SHARDS, Some(6 << 20), go_on).unwrap();
        // The last file is the SHARD of the last bank.
        let last = shard_path(&new, SHARDS - 1).join("SHARD");
        fs::rename(&last, dir.path().join("SHARD")).unwrap();
        let text = refusal(&new);
        assert!(text.contains("a bank with tables and no file SHARD"), "{text}");
        fs::rename(dir.path().join("SHARD"), &last).unwrap();
        assert_eq!(Fleet::open(&new).unwrap().value(), Some(2.0));
    }
    let other = new.path().join("other");
    let text = reshard(dir.path(), &other, 2, Some(1000), go_on).unwrap_err().to_string();
    assert!(text.starts_with("memory must be") && text.contains("each of 2 new banks"), "{text}");
}

/// With another first id, the rows of the tables by id belong to other values.
#[test]
fn vocabularies_with_other_settings_are_not_resharded() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut fleet = two_sets(dir.path());
    for (number, (bank, _)) in (0..).zip(&fleet.shards) {
        let config = VocabularyConfig::u64().first_id(number / 2);
        bank.vocabulary("ids", config).unwrap().ids_or_insert(&[7][..], &mut [0]).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let result = reshard(dir.path(), new.path(), 2, None, &mut |_| ControlFlow::Continue(()));
    let text = result.unwrap_err().to_string();
    assert!(text.contains("shard-00002") && text.contains("first_id: 1"), "{text}");
}

#[test]
fn a_fleet_that_is_not_whole_is_not_resharded() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = |dir: &Path| {
        let result = reshard(dir, new.path(), 2, None, &mut |_| ControlFlow::Continue(()));
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0, "nothing was made");
        result.unwrap_err().to_string()
    };
    assert!(refused(dir.path()).contains("expected a fleet"));
    let mut fleet = two_sets(dir.path());
    let (bank, _) = &fleet.shards[2];
    bank.table("alone", TableConfig::new(1)).unwrap();
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("shard-00002") && text.contains("shard 0 does not have"), "{text}");
    for (bank, _) in &fleet.shards[..2] {
        bank.table("alone", TableConfig::new(2)).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("shard-00002") && text.contains("dim 1"), "{text}");
    for (number, (bank, _)) in (0..).zip(&fleet.shards) {
        bank.drop_table("alone").unwrap();
        let numbers = bank.vocabulary("numbers", VocabularyConfig::u64()).unwrap();
        numbers.ids_or_insert(&[number / 2][..], &mut [0]).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("numbers (vocabulary)") && text.contains("shard-00002"), "{text}");
    drop(fleet);
    take_away(dir.path(), 1);
    assert!(refused(dir.path()).contains("shard-00001: found no directory"));
}
