//! Stores a table as a set of npy files.
//!
//! **Problem.** No system call renames several files at once. After a crash between two renames,
//! the rows of one export must not be read with the keys or state of another. An npy file has no
//! place to name the set that it belongs to.
//!
//! **Approach.** A set has a list, `x.embank.json`, with the names of its files and the settings of
//! the table. An export first writes all new files under temporary names and makes them durable.
//! Until then, an older set stays whole. Then the export removes the older list and the older keys,
//! and then the other files that the older list named. Last, the new files get their names in this
//! order: state and uses, rows, keys, list. An import reads rows only if keys exist. It reads state
//! and uses only if the list names them, and fails if they exist without a list. So at any time, an
//! import finds the older set, the new set, or an error.
//!
//! A dense matrix without state is a single file and needs no list. An export never removes a file
//! that no list names. If an import would take such a file for a part of the new set, the export
//! fails.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::batch::{LAST_USED, Part, USES, Wanted};
use super::element::Element;
use super::output::{self, OutputFile};
use super::selection::{KEYS, ROWS, SCALES, Selection, refuse_by_position};
use super::tensors::{Arrays, Keys, Place, TensorRows, TensorWriter, UsesArrays};
use super::{io_error, npy, unreadable};
use crate::error::{Error, Result};

/// The entry of a list with the names of the set's files, separated by `/`. No file name contains
/// `/`.
const FILES: &str = "embank.files";
/// Longest list that is read, in bytes. A longer list counts as damage.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Returns a path in the same directory with another suffix. For `.rows.npy`, `x.npy` becomes
/// `x.rows.npy`, and `x.1` becomes `x.1.rows.npy`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().map_or(&[][..], OsStr::as_bytes);
    let stem = match name.split_last_chunk::<4>() {
        Some((stem, suffix)) if suffix.eq_ignore_ascii_case(b".npy") => stem,
        _ => name,
    };
    let mut own = OsString::from_vec(stem.to_vec());
    own.push(suffix);
    path.with_file_name(own)
}

fn path_of(path: &Path, part: &str) -> PathBuf {
    beside(path, &format!(".{part}.npy"))
}

/// Paths of the set's optional files of state and uses. An import reads them only if the set's list
/// names them.
fn paths_beside_rows(path: &Path) -> [PathBuf; 3] {
    ["state", LAST_USED, USES].map(|part| path_of(path, part))
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into())
}

/// The list of a set's files, with the settings of the table.
#[derive(Debug)]
struct List {
    path: PathBuf,
    pairs: HashMap<String, String>,
}

impl List {
    fn path_for(path: &Path) -> PathBuf {
        beside(path, ".embank.json")
    }

    /// Reads the list that belongs to `path`. `None` if there is no list.
    fn read(path: &Path) -> Result<Option<Self>> {
        let path = Self::path_for(path);
        let bytes = match std::fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("look at", &path, error)),
        };
        if bytes > LIST_BYTES_MAX {
            return Err(unreadable(&path, "it is too long to be the list of an export"));
        }
        let text = std::fs::read(&path).map_err(|error| io_error("read", &path, error))?;
        match serde_json::from_slice(&text) {
            Ok(pairs) => Ok(Some(Self { path, pairs })),
            Err(error) => Err(unreadable(
                &path,
                format!("it is damaged, or not the list of an export: {error}"),
            )),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.get(FILES).into_iter().flat_map(|files| files.split('/'))
    }

    fn has(&self, path: &Path) -> bool {
        let name = name_of(path);
        self.names().any(|listed| listed == name)
    }
}

/// Begins the npy files of a table with `rows` rows.
pub(crate) fn create(
    path: &Path,
    rows: u64,
    parts: Vec<Part>,
    with_keys: bool,
    mut pairs: HashMap<String, String>,
) -> Result<TensorWriter> {
    let mut files: Vec<OutputFile> = Vec::new();
    let mut begin = |path: &Path, header: Vec<u8>| -> Result<Place> {
        let file = OutputFile::create(path)?;
        file.write_at(&header, 0)?;
        files.push(file);
        Ok(Place { file: files.len() - 1, offset: header.len() as u64 })
    };
    let mut placed = Vec::new();
    for part in parts {
        let is_matrix = !with_keys && part.name == "rows";
        let own = if is_matrix { path.to_owned() } else { path_of(path, part.name) };
        let shape = match part.is_flat() {
            true => format!("({rows},)"),
            false => format!("({rows}, {})", part.columns),
        };
        let header = npy::header(part.element, &shape);
        placed.push((part, begin(&own, header)?));
    }
    let keys = match with_keys {
        true => {
            let header = npy::header(Element::U64, &format!("({rows},)"));
            Some(begin(&path_of(path, "keys"), header)?)
        }
        false => None,
    };
    if files.len() > 1 {
        let names: Vec<String> = files.iter().map(|file| name_of(file.path())).collect();
        pairs.insert(FILES.to_owned(), names.join("/"));
        let list = List::path_for(path);
        let sorted: BTreeMap<&String, &String> = pairs.iter().collect();
        let text = serde_json::to_vec_pretty(&sorted)
            .map_err(|error| unreadable(&list, format!("it can't be made: {error}")))?;
        let file = OutputFile::create(&list)?;
        file.write_at(&text, 0)?;
        files.push(file);
    }
    // Called only for its error: an obstacle to `commit` is reported here, before any row is
    // written.
    to_remove(path, &files)?;
    Ok(TensorWriter { files, keys, parts: placed })
}

/// Returns the files of an older set to remove before the new files get their names, in order of
/// removal.
///
/// # Errors
/// A file that no list names already exists, and an import would mistake it for a part of the new
/// set.
fn to_remove(path: &Path, files: &[OutputFile]) -> Result<Vec<PathBuf>> {
    let is_written = |path: &Path| files.iter().any(|file| file.path() == path);
    let keys = path_of(path, "keys");
    let beside_rows = paths_beside_rows(path);
    let older = List::read(path)?;
    let is_older = |path: &Path| older.as_ref().is_some_and(|older| older.has(path));
    for other in std::iter::once(path).chain(beside_rows.iter().map(PathBuf::as_path)) {
        if !is_written(other) && !is_older(other) && other.exists() {
            let why = "is there, is no part of an older export of that name, and an import would take it for a part of \
                       this one; remove it, or export to another name";
            return Err(Error::unusable_output(other, why));
        }
    }
    let mut gone: Vec<PathBuf> = older.iter().map(|older| older.path.clone()).collect();
    if is_written(&keys) || is_older(&keys) {
        gone.push(keys.clone());
    }
    // Removes a dense matrix before its state and uses. In the opposite order, an import could read
    // the matrix without its state and uses.
    gone.extend(is_older(path).then(|| path.to_owned()));
    let parts = std::iter::once(path_of(path, "rows")).chain(beside_rows);
    gone.extend(parts.filter(|part| is_older(part) && !is_written(part)));
    Ok(gone)
}

/// Makes all files durable and then gives them their names. Returns their paths and their total
/// length.
pub(crate) fn commit(path: &Path, mut files: Vec<OutputFile>) -> Result<(Vec<PathBuf>, u64)> {
    // Gives state and uses their names before the rows. Otherwise an import could read the rows
    // without their state and uses.
    let beside_rows = paths_beside_rows(path);
    files.sort_by_key(|file| !beside_rows.iter().any(|beside| beside == file.path()));
    let mut bytes = 0;
    for file in &files {
        failing::step(file.path())?;
        bytes += file.sync()?;
    }
    for old in to_remove(path, &files)? {
        failing::step(&old)?;
        output::remove(&old)?;
    }
    let mut paths = Vec::new();
    for file in files {
        failing::step(file.path())?;
        paths.push(file.path().to_owned());
        file.publish()?;
    }
    Ok((paths, bytes))
}

/// Test hook: makes a commit fail at a chosen step, as a failing disk or a crash would.
mod failing {
    use std::path::Path;

    use crate::error::Result;

    #[cfg(not(test))]
    pub(super) fn step(_: &Path) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    thread_local! {
        /// Number of further steps that succeed; `None` if all do.
        pub(super) static LEFT: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
    }

    #[cfg(test)]
    pub(super) fn step(path: &Path) -> Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(super::io_error("fail at", path, std::io::ErrorKind::Other.into())),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}

/// Opens the set of files for `path`, and returns its rows and the content of its list. The rows
/// come from `path` itself if it exists (a dense matrix), otherwise from the files derived from its
/// name. `keys` and `rows` in `selection` name other files to read.
pub(crate) fn read(
    path: &Path,
    selection: Selection<'_>,
) -> Result<(TensorRows, HashMap<String, String>)> {
    let Selection { keys, rows, first_key, wanted } = selection;
    let named = keys.map(|keys| npy::open(Path::new(keys))).transpose()?.map(Keys::Array);
    let named = named.or(first_key.map(Keys::From));
    if let Some(rows) = rows {
        let vectors = npy::open(Path::new(rows))?;
        if named.is_none() {
            refuse_keys_beside(path)?;
            refuse_keys_beside(Path::new(rows))?;
        }
        let keys = named.unwrap_or(Keys::From(0));
        let arrays = Arrays { keys, vectors, scales: None, state: None, uses: None };
        return Ok((TensorRows::new(arrays)?, HashMap::new()));
    }
    let is_dense = path.exists();
    let matrix = if is_dense { path.to_owned() } else { path_of(path, "rows") };
    if !matrix.exists() {
        return Err(unreadable(path, format!("neither it nor {} is there", matrix.display())));
    }
    // State and uses belong to the set's own keys. If the caller names other keys, the import
    // ignores state and uses.
    let wanted = if named.is_none() { wanted } else { Wanted::NOTHING };
    let keys = match named {
        Some(named) => named,
        None if !is_dense => Keys::Array(keys_beside(path, &matrix)?),
        None => {
            refuse_keys_beside(path)?;
            Keys::From(0)
        }
    };
    if is_dense {
        refuse_other_rows(path)?;
    }
    let list = if wanted == Wanted::NOTHING { None } else { list_for(path, &matrix, wanted)? };
    let mut state = None;
    let mut uses = None;
    if let Some(list) = &list {
        let own = path_of(path, "state");
        let state_path = Some(own).filter(|own| wanted.state && list.has(own));
        state = state_path.map(|path| npy::open(&path)).transpose()?;
        uses = if wanted.uses { uses_beside(path, list)? } else { None };
    }
    let vectors = npy::open(&matrix)?;
    let rows = TensorRows::new(Arrays { keys, vectors, scales: None, state, uses })?;
    Ok((rows, list.map_or_else(HashMap::new, |list| list.pairs)))
}

/// Called before rows are imported by position. Fails if a file in the same directory may hold
/// their keys.
fn refuse_keys_beside(path: &Path) -> Result<()> {
    // If the path is `x.rows.npy`, the keys may be in `x.keys.npy`.
    let stem = name_of(path);
    let set = stem.strip_suffix(".rows.npy").map(|stem| path.with_file_name(format!("{stem}.npy")));
    for of in std::iter::once(path).chain(set.as_deref()) {
        if let Some(keys) =
            KEYS.map(|name| path_of(of, name)).into_iter().find(|keys| keys.exists())
        {
            return refuse_by_position(path, &format!("a file {} beside it", keys.display()));
        }
    }
    Ok(())
}

/// Fails if a second file of vectors, or a file of scales, exists beside the matrix `path`.
fn refuse_other_rows(path: &Path) -> Result<()> {
    let beside = ROWS.into_iter().chain([SCALES]).map(|name| path_of(path, name));
    match beside.into_iter().find(|beside| beside.exists()) {
        None => Ok(()),
        Some(other) => Err(unreadable(
            path,
            format!(
                "{} is there too, and which is meant does not show; name the file of the vectors with `rows`, or move one \
                 of them away",
                other.display()
            ),
        )),
    }
}

fn keys_beside(path: &Path, matrix: &Path) -> Result<super::tensors::Tensor> {
    let keys = path_of(path, "keys");
    if keys.exists() {
        return npy::open(&keys);
    }
    Err(unreadable(
        path,
        format!(
            "{} is there, but {}, which is written later, is not: the export did not come to its end; to take the \
             rows for those of the keys from 0 on, import {} itself",
            matrix.display(),
            keys.display(),
            matrix.display()
        ),
    ))
}

/// Returns the list of the set whose rows are in `matrix`. `None` if no list exists, or if it does
/// not name `matrix`.
///
/// # Errors
/// The caller wants state or uses, and their files exist, but no list says which set they belong
/// to.
fn list_for(path: &Path, matrix: &Path, wanted: Wanted) -> Result<Option<List>> {
    if let Some(list) = List::read(path)? {
        return Ok(Some(list).filter(|list| list.has(matrix)));
    }
    let [state, last_used, uses] = paths_beside_rows(path);
    let beside = [(state, wanted.state), (last_used, wanted.uses), (uses, wanted.uses)];
    match beside.into_iter().find(|(beside, is_wanted)| *is_wanted && beside.exists()) {
        None => Ok(None),
        Some((beside, _)) => Err(unreadable(
            path,
            format!(
                "{} is there, but {}, which is written last and tells whose it is, is not: the export did not come to \
                 its end; import without the state",
                beside.display(),
                List::path_for(path).display()
            ),
        )),
    }
}

/// Opens the two files of uses if `list` names them. Fails if it names only one of them.
fn uses_beside(path: &Path, list: &List) -> Result<Option<UsesArrays>> {
    let last_used = path_of(path, LAST_USED);
    let uses = path_of(path, USES);
    match (list.has(&last_used), list.has(&uses)) {
        (false, false) => Ok(None),
        (true, true) => {
            Ok(Some(UsesArrays { last_used: npy::open(&last_used)?, uses: npy::open(&uses)? }))
        }
        (has_last_used, _) => {
            let missing = if has_last_used { &uses } else { &last_used };
            let what = format!("{} is not in its list of files", name_of(missing));
            Err(unreadable(&list.path, what))
        }
    }
}

/// Returns the table's settings in the list for `path`. Empty if no list exists.
pub(crate) fn read_pairs(path: &Path) -> Result<HashMap<String, String>> {
    let matrix = if path.exists() { path.to_owned() } else { path_of(path, "rows") };
    let list = List::read(path)?.filter(|list| list.has(&matrix));
    Ok(list.map_or_else(HashMap::new, |list| list.pairs))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use embank_kv::{Access, Clock, Operation};

    use super::*;
    use crate::{
        Bank, BankOptions, DenseRows, ExportOptions, ImportOptions, Initializer, Optimizer, Table,
        TableConfig, Tracking,
    };

    const KEYS: [u64; 4] = [3, 1, 0, 2];

    fn config() -> TableConfig {
        TableConfig::new(1).optimizer(Optimizer::adagrad(0.1)).initializer(Initializer::Zeros)
    }

    /// Imports `path` into a new table. Returns the table's values before and after one training
    /// step. The values after the step depend on the optimizer's state.
    fn taken(bank: &Bank, path: &Path, state: bool) -> Result<[Vec<f32>; 2]> {
        let table = bank.table("taken", config())?;
        let options = ImportOptions { state, ..Default::default() };
        let outcome = table.import(path, &options).map(|_| both(&table));
        bank.drop_table("taken")?;
        outcome
    }

    fn both(table: &Table) -> [Vec<f32>; 2] {
        let peeked = || {
            let mut rows = vec![0.0; KEYS.len()];
            table.peek(&KEYS, &mut rows, crate::Missing::Initial).unwrap();
            rows
        };
        let before = peeked();
        table.apply_gradients(&KEYS, &[1.0; 4]).unwrap();
        [before, peeked()]
    }

    /// Reads the use counts of rows.
    #[derive(Debug)]
    struct ReadUses<'a>(&'a Table, Vec<u32>);

    impl Operation for ReadUses<'_> {
        const ACCESS: Access = Access::Peek;

        fn read(&mut self, _: usize, value: &[u8]) {
            self.1.extend(self.0.shared.layout().uses(value).map(|uses| uses.count));
        }
    }

    /// Imports `path` into a new table and returns the values and the use counts of its rows.
    fn imported(bank: &Bank, path: &Path, config: &TableConfig) -> Result<(Vec<f32>, Vec<u32>)> {
        let table = bank.table("uses taken", config.clone())?;
        let outcome = table.import(path, &ImportOptions::default()).map(|_| {
            let mut uses = ReadUses(&table, Vec::new());
            table.execute(&KEYS, Clock::Keep, &mut uses).unwrap();
            let mut rows = vec![0.0; KEYS.len()];
            table.peek(&KEYS, &mut rows, crate::Missing::Error).unwrap();
            (rows, uses.1)
        });
        bank.drop_table("uses taken")?;
        outcome
    }

    /// Exports one table over the files of another, and makes this export fail after each number of
    /// steps. Shows that an import never gives rows the use counts of the other table, or no
    /// counts. With `Optimizer::None`, the files have use counts but no optimizer state.
    #[test]
    fn a_set_that_was_cut_off_keeps_its_uses() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path().join("bank"), BankOptions::default()).unwrap();
        for (optimizer, dense) in [Optimizer::None, Optimizer::adagrad(0.1)]
            .into_iter()
            .flat_map(|optimizer| [false, true].map(|dense| (optimizer, dense)))
        {
            let config = config().optimizer(optimizer).tracking(Tracking::SetTime);
            let names = ["three", "five"].map(|name| format!("{name} {optimizer:?} {dense}"));
            let [three, five] = names.map(|name| bank.table(&name, config.clone()).unwrap());
            for (table, uses) in [(&three, 3), (&five, 5)] {
                (0..uses).for_each(|_| table.put(&KEYS, &[uses as f32; 4]).unwrap());
            }
            bank.checkpoint(b"").unwrap();
            let dense = dense.then(DenseRows::default);
            let options = ExportOptions { state: true, dense, ..Default::default() };
            // The loop ends once the replacement has enough steps to complete.
            for steps in 0.. {
                let folder = tempfile::tempdir_in(dir.path()).unwrap();
                let path = folder.path().join("t.npy");
                three.export(&path, &options).unwrap();
                failing::LEFT.set(Some(steps));
                let outcome = five.export(&path, &options);
                failing::LEFT.set(None);
                let what = format!("{optimizer:?} {dense:?} {steps}");
                match imported(&bank, &path, &config) {
                    Ok((rows, uses)) => {
                        let of = if outcome.is_ok() { 5 } else { 3 };
                        assert_eq!((rows, uses), (vec![of as f32; 4], vec![of; 4]), "{what}");
                    }
                    Err(crate::Error::UnreadableFile { .. }) => assert!(outcome.is_err(), "{what}"),
                    Err(other) => panic!("{what}: {other}"),
                }
                if outcome.is_ok() {
                    assert!(steps > 5, "{what}");
                    break;
                }
            }
        }
    }

    /// Cuts off the replacement of one set by another at each step. Shows that an import reads the
    /// older set, reads the newer set, or fails.
    #[test]
    fn a_set_that_was_cut_off_is_the_older_one_the_newer_one_or_refused() {
        let sets = |state: bool, dense: bool| ExportOptions {
            state,
            dense: dense.then(DenseRows::default),
            ..Default::default()
        };
        let all = [sets(true, false), sets(true, true), sets(false, false), sets(false, true)];
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path().join("bank"), BankOptions::default()).unwrap();
        let (old, new) =
            (bank.table("old", config()).unwrap(), bank.table("new", config()).unwrap());
        old.apply_gradients(&KEYS, &[1.0, 2.0, 3.0, 4.0]).unwrap();
        new.apply_gradients(&KEYS, &[-5.0, -6.0, -7.0, -8.0]).unwrap();
        bank.checkpoint(b"").unwrap();
        for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
            // A single dense matrix has no list, so a new export with keys would refuse to remove
            // it.
            if from == &all[3] && to.dense.is_none() {
                continue;
            }
            let mut whole = 0;
            for steps in 0.. {
                let folder = tempfile::tempdir_in(dir.path()).unwrap();
                let path = folder.path().join("t.npy");
                let export = |table: &Table, options| table.export(&path, options);
                export(&old, from).unwrap();
                let older = [true, false].map(|state| taken(&bank, &path, state).unwrap());
                let files = || {
                    let names = fs::read_dir(folder.path()).unwrap();
                    let mut files: Vec<_> = names
                        .map(|entry| entry.unwrap().path())
                        .map(|path| (path.clone(), fs::read(path).unwrap()))
                        .collect();
                    files.sort();
                    files
                };
                let before = files();
                failing::LEFT.set(Some(steps));
                let outcome = export(&new, to);
                failing::LEFT.set(None);
                // Every file is made durable before the first file gets its name. A failure until
                // then leaves the older set unchanged.
                let synced = 1 + usize::from(to.dense.is_none()) + usize::from(to.state);
                let synced = synced + usize::from(synced > 1);
                if steps <= synced {
                    assert!(outcome.is_err() && before == files(), "{from:?} {to:?} {steps}");
                }
                let found = [true, false].map(|state| taken(&bank, &path, state));
                let ended = outcome.is_ok();
                if ended {
                    whole = steps;
                    export(&new, to).unwrap();
                }
                // The newer set's values are above 0 and the older set's values are below 0.
                for (found, older) in found.iter().zip(&older) {
                    match found {
                        Ok(found) if found[0] == older[0] => assert_eq!(found, older, "{steps}"),
                        Ok(found) => {
                            assert!(
                                found[0].iter().all(|&value| value > 0.0),
                                "{steps}: {found:?}"
                            );
                        }
                        Err(crate::Error::UnreadableFile { .. }) => assert!(!ended),
                        Err(other) => panic!("{from:?} {to:?} {steps}: {other}"),
                    }
                }
                // If state is imported, the set is the older or the newer one as a whole, and its
                // next training step uses its own state.
                if let Ok(found) = &found[0]
                    && to.state
                    && found[0] != older[0][0]
                {
                    assert_eq!(found, &taken(&bank, &path, true).unwrap());
                    assert_ne!(found[1], taken(&bank, &path, false).unwrap()[1], "{steps}");
                }
                if ended {
                    break;
                }
            }
            assert!(whole > 1, "{from:?} {to:?}");
        }
    }

    #[test]
    fn only_the_suffix_npy_is_left_out_of_the_files_names() {
        for (path, expected) in [
            ("a/x.npy", "a/x.rows.npy"),
            ("a/model.1", "a/model.1.rows.npy"),
            ("a/model.2", "a/model.2.rows.npy"),
            ("x.npy.npy", "x.npy.rows.npy"),
        ] {
            assert_eq!(path_of(Path::new(path), "rows"), Path::new(expected));
        }
    }
}
