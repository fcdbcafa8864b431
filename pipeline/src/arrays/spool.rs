//! Arrays on disk, for later processes.
//!
//! **Layout.** An array file is a record file with the outputs `key` and `array`. Beside it, a key
//! file has the same keys alone, so that opening a spool does not read arrays. Both have a name
//! that begins with the column's seed in hexadecimal. A key file gets its name after its array
//! file, when that is on stable storage. So a process that is killed leaves at most an array file
//! without keys, which is not read.
//!
//! **Damage.** A group of an array file is handed out only if its checksum is right and the row has
//! the key that was asked for. Otherwise the arrays of the group are made again. A key file that
//! can't be read is passed over, with its arrays.
//!
//! **Writing.** One thread writes. The threads of a run hand arrays to it through a channel that
//! holds [`QUEUE_BYTES`], so a slow drive slows the run and memory stays bounded. After a failure,
//! such as a full disk, the run goes on without the spool and its report says so once. A process
//! that counts the folder's bytes when it begins does not see what others add meanwhile.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use embank::Home;
use embank::locks::{Mutex, RwLock};

use super::ArrayPlan;
use super::cache::ArrayCounts;
use super::segment::KeptArray;
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};
use crate::options::SpoolOptions;
use crate::records::{RecordFile, RecordOptions, RecordWriter};
use crate::spec::Dtype;

/// Bytes of arrays that wait for the thread that writes.
const QUEUE_BYTES: usize = 32 << 20;
/// Largest number of arrays that wait. The channel allocates a place for each when it is made.
const QUEUE_ARRAYS_MAX: usize = 4096;
/// A file is completed at this number of bytes. A process that is killed loses less than this.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes of a group of arrays. A group is the unit of reading.
const GROUP_BYTES: usize = 1 << 20;
const ARRAYS: &str = "arrays";
const KEYS: &str = "keys";

/// The spool of a pipeline's columns of arrays.
#[derive(Debug)]
pub(super) struct Spool {
    shared: Arc<Shared>,
    writer: Mutex<Option<Writer>>,
    home: Home,
}

#[derive(Debug)]
struct Writer {
    to: SyncSender<Message>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    /// For each column of arrays.
    columns: Vec<SpooledColumn>,
    index: RwLock<Index>,
    /// Why arrays can't be written. Taken by the first report.
    failure: Mutex<Option<String>>,
    /// True after a failure, and once an array did not fit. No array is written any more.
    is_full: AtomicBool,
}

#[derive(Debug)]
struct SpooledColumn {
    seed: u64,
    outputs: [MatrixInfo; 2],
    rows_per_group: usize,
    array_bytes: usize,
}

/// Where arrays are.
#[derive(Debug, Default)]
struct Index {
    /// The paths of array files. Readers open them, so a spool of any size takes few descriptors.
    files: Vec<PathBuf>,
    places: HashMap<u128, Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    file: u32,
    row: u32,
}

enum Message {
    Array {
        column: usize,
        key: u128,
        array: KeptArray,
    },
    /// Complete all files, and drop the sender of an answer.
    EndRun(SyncSender<()>),
}

/// The file that a thread has opened last, and the group that it has read last.
#[derive(Debug, Default)]
pub(crate) struct SpoolReader {
    file: Option<(u32, RecordFile)>,
    at: Option<(u32, usize)>,
    batch: Batch,
    scratch: Vec<u8>,
}

impl Spool {
    /// Opens the spool in a folder, and makes the folder if it is missing.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read. [`Error::ThreadRefused`].
    pub(super) fn open(
        options: &SpoolOptions,
        arrays: &[ArrayPlan],
        seeds: &[u64],
    ) -> Result<Self> {
        let columns =
            arrays.iter().zip(seeds).map(|(array, &seed)| SpooledColumn::new(array, seed));
        let shared = Arc::new(Shared {
            folder: options.folder.clone(),
            columns: columns.collect(),
            index: RwLock::default(),
            failure: Mutex::default(),
            is_full: AtomicBool::new(false),
        });
        // A folder that can't be made or written to may still be read.
        let made = fs::create_dir_all(&options.folder);
        let used = shared.read_folder().map_err(|error| match made {
            Err(source) => Error::Io { doing: "make", path: options.folder.clone(), source },
            Ok(()) => error,
        })?;
        let largest = shared.columns.iter().map(|column| column.array_bytes).max().unwrap_or(1);
        let (to, from) = sync_channel((QUEUE_BYTES / largest.max(1)).clamp(1, QUEUE_ARRAYS_MAX));
        let left = options.bytes.saturating_sub(used);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("embank-spool".to_owned())
            .spawn(move || WriterThread::new(for_thread, left).run(&from))
            .map_err(|source| Error::ThreadRefused { thread: "spool", source })?;
        let writer = Mutex::new(Some(Writer { to, thread }));
        Ok(Self { shared, writer, home: Home::here() })
    }

    /// Copies an array into `array`. Returns false if the spool does not have it.
    pub(super) fn read(
        &self,
        column: usize,
        key: u128,
        array: &mut [u8],
        reader: &mut SpoolReader,
        counts: &mut ArrayCounts,
    ) -> bool {
        let found = {
            let index = self.shared.index.read();
            let place = index.places.get(&key).copied();
            place.map(|place| (place, index.files[place.file as usize].clone()))
        };
        let Some((Place { file: number, row }, path)) = found else { return false };
        let rows = self.shared.columns[column].rows_per_group;
        let (group, row) = (row as usize / rows, row as usize % rows);
        let SpoolReader { file, at, batch, scratch } = reader;
        if *at != Some((number, group)) {
            *at = None;
            if file.as_ref().is_none_or(|(opened, _)| *opened != number) {
                *file = RecordFile::open(&path).ok().map(|opened| (number, opened));
            }
            let fits = |file: &&(u32, RecordFile)| {
                group < file.1.groups().len()
                    && file.1.outputs() == self.shared.columns[column].outputs
            };
            if let Some((_, file)) = file.as_ref().filter(fits)
                && file.read_into(group, batch, scratch).is_ok()
            {
                *at = Some((number, group));
            }
        }
        if at.is_some() && row < batch.rows() && key_of(batch, row) == key {
            let bytes = batch.little_endian(1);
            array.copy_from_slice(&bytes[row * array.len()..][..array.len()]);
            to_native(self.shared.columns[column].outputs[1].dtype, array);
            return true;
        }
        // The group is damaged, or the files do not belong together. Its arrays are made again.
        counts.damaged += 1;
        *at = None;
        let of_group = |place: &Place| place.file == number && place.row as usize / rows == group;
        self.shared.index.write().places.retain(|_, place| !of_group(place));
        false
    }

    /// True if the spool takes the array of `key`.
    pub(super) fn takes(&self, key: u128) -> bool {
        // Relaxed: an array that is taken too late is dropped. A forked child does not have the
        // thread.
        self.home.is_here()
            && !self.shared.is_full.load(Ordering::Relaxed)
            && !self.shared.index.read().places.contains_key(&key)
    }

    /// Gives an array to the thread that writes. Waits if the drive is slower than the run.
    /// [`takes`](Self::takes) must be true.
    pub(super) fn write(&self, column: usize, key: u128, array: KeptArray) {
        let to = self.writer.lock().as_ref().map(|writer| writer.to.clone());
        if let Some(to) = to {
            // A failed send means that the thread has panicked. The run needs no spool.
            let _ = to.send(Message::Array { column, key, array });
        }
    }

    /// Waits until all arrays are in files.
    pub(super) fn end_run(&self) {
        if !self.home.is_here() {
            return;
        }
        let to = self.writer.lock().as_ref().map(|writer| writer.to.clone());
        if let Some(to) = to {
            let (answer, answered) = sync_channel(1);
            if to.send(Message::EndRun(answer)).is_ok() {
                // The thread drops the sender when it is done.
                let _ = answered.recv();
            }
        }
    }

    /// Returns why arrays can't be written, once.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.shared.failure.lock().take()
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let Some(writer) = self.writer.lock().take() else { return };
        if !self.home.is_here() {
            // A forked child does not have the thread.
            std::mem::forget(writer);
            return;
        }
        drop(writer.to);
        // A panic of the thread loses arrays that the next process makes again.
        let _ = writer.thread.join();
    }
}

impl SpooledColumn {
    fn new(array: &ArrayPlan, seed: u64) -> Self {
        let info = |name: &str, dtype, shape: &[usize]| MatrixInfo {
            name: name.to_owned(),
            columns: vec![name.to_owned()],
            dtype,
            shape: shape.to_vec(),
        };
        let outputs = [info("key", Dtype::U8, &[16]), info("array", array.dtype, &array.shape)];
        let rows_per_group = (GROUP_BYTES / array.bytes()).clamp(1, 1 << 16);
        Self { seed, outputs, rows_per_group, array_bytes: array.bytes() }
    }
}

impl Shared {
    /// Reads the keys of all files. Returns the bytes of the folder's files.
    fn read_folder(&self) -> Result<u64> {
        let io = |source| Error::Io { doing: "read", path: self.folder.clone(), source };
        let mut names = Vec::new();
        let mut used = 0;
        for entry in fs::read_dir(&self.folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            used += entry.metadata().map_or(0, |metadata| metadata.len());
            names.extend(entry.file_name().into_string());
        }
        names.sort();
        for name in &names {
            let Some((stem, KEYS)) = name.rsplit_once('.') else { continue };
            let seed =
                stem.split_once('-').and_then(|(seed, _)| u64::from_str_radix(seed, 16).ok());
            let column = self.columns.iter().position(|column| Some(column.seed) == seed);
            if let Some(column) = column {
                // What can't be read is made again.
                let _ = self.add(column, stem);
            }
        }
        Ok(used)
    }

    fn path(&self, stem: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{stem}.{kind}"))
    }

    /// Adds the arrays of a pair of files.
    fn add(&self, column: usize, stem: &str) -> Result<()> {
        let column = &self.columns[column];
        let keys = RecordFile::open(&self.path(stem, KEYS))?;
        let arrays = RecordFile::open(&self.path(stem, ARRAYS))?;
        let fits = keys.outputs() == &column.outputs[..1]
            && arrays.outputs() == column.outputs
            && keys.rows() == arrays.rows()
            && arrays.groups().iter().all(|group| {
                group.first_row.is_multiple_of(column.rows_per_group as u64)
                    && group.rows <= column.rows_per_group
            });
        if !fits {
            return Ok(());
        }
        let mut found = Vec::with_capacity(keys.rows() as usize);
        for group in 0..keys.groups().len() {
            let batch = keys.read(group)?;
            found.extend((0..batch.rows()).map(|row| key_of(&batch, row)));
        }
        let mut index = self.index.write();
        let file = index.files.len() as u32;
        index.files.push(arrays.path().to_owned());
        // The newest file counts: an earlier one may have a damaged group with the same arrays.
        for (row, key) in (0..).zip(found) {
            index.places.insert(key, Place { file, row });
        }
        Ok(())
    }
}

/// The key of a row. The first output has it.
fn key_of(batch: &Batch, row: usize) -> u128 {
    let keys = batch.u8(0).expect("a key is bytes");
    u128::from_le_bytes(keys[row * 16..][..16].try_into().expect("sixteen bytes"))
}

/// Turns little-endian values of this type to the machine's byte order, and back.
fn to_native(dtype: Dtype, array: &mut [u8]) {
    if cfg!(target_endian = "big") {
        array.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
    }
}

/// The thread that writes.
struct WriterThread {
    shared: Arc<Shared>,
    /// Bytes that may still be written.
    left: u64,
    /// For each column the files that are not complete.
    open: Vec<Option<OpenFiles>>,
    /// True after a failure.
    has_failed: bool,
}

struct OpenFiles {
    stem: String,
    arrays: RecordWriter,
    keys: RecordWriter,
    batch: Batch,
    of_keys: Batch,
    /// The keys of the files' rows.
    written: HashSet<u128>,
    bytes: u64,
}

impl WriterThread {
    fn new(shared: Arc<Shared>, left: u64) -> Self {
        let open = shared.columns.iter().map(|_| None).collect();
        Self { shared, left, open, has_failed: false }
    }

    /// Writes until the spool is dropped.
    fn run(mut self, from: &Receiver<Message>) {
        for message in from {
            match message {
                Message::Array { column, key, array } => {
                    self.guarded(|thread| thread.write(column, key, &array));
                }
                Message::EndRun(answer) => {
                    self.complete_all();
                    drop(answer);
                }
            }
        }
        self.complete_all();
    }

    /// Calls `write` unless writing has failed.
    fn guarded(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) {
        if self.has_failed {
            return;
        }
        if let Err(error) = write(self) {
            self.has_failed = true;
            self.shared.is_full.store(true, Ordering::Relaxed);
            self.open.iter_mut().for_each(|files| *files = None);
            *self.shared.failure.lock() = Some(format!("arrays are not spooled any more: {error}"));
        }
    }

    fn write(&mut self, column: usize, key: u128, array: &[u8]) -> Result<()> {
        let bytes = array.len() as u64 + 2 * 16;
        if bytes > self.left {
            // What is there stays.
            self.left = 0;
            self.shared.is_full.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let spooled = &self.shared.columns[column];
        if self.open[column].is_none() {
            self.open[column] = Some(OpenFiles::create(&self.shared, spooled)?);
        }
        let files = self.open[column].as_mut().expect("it was made above");
        files.write(spooled, key, array)?;
        self.left -= bytes;
        if files.bytes >= FILE_BYTES { self.complete(column) } else { Ok(()) }
    }

    fn complete_all(&mut self) {
        for column in 0..self.open.len() {
            self.guarded(|thread| thread.complete(column));
        }
    }

    fn complete(&mut self, column: usize) -> Result<()> {
        let Some(OpenFiles { stem, arrays, keys, .. }) = self.open[column].take() else {
            return Ok(());
        };
        arrays.finish()?;
        keys.finish()?;
        self.shared.add(column, &stem)
    }
}

impl OpenFiles {
    fn create(shared: &Shared, column: &SpooledColumn) -> Result<Self> {
        let stem = free_stem(&shared.folder, column.seed);
        let options =
            RecordOptions { rows_per_group: column.rows_per_group, ..RecordOptions::default() };
        let arrays = RecordWriter::create(&shared.path(&stem, ARRAYS), &column.outputs, options)?;
        let of_keys = &column.outputs[..1];
        let keys =
            RecordWriter::create(&shared.path(&stem, KEYS), of_keys, RecordOptions::default())?;
        let (batch, of_keys) =
            (Batch::new(column.outputs.as_slice().into()), Batch::new(of_keys.into()));
        Ok(Self { stem, arrays, keys, batch, of_keys, written: HashSet::new(), bytes: 0 })
    }

    fn write(&mut self, column: &SpooledColumn, key: u128, array: &[u8]) -> Result<()> {
        if !self.written.insert(key) {
            return Ok(());
        }
        let key = key.to_le_bytes();
        let mut array = array.to_vec();
        to_native(column.outputs[1].dtype, &mut array);
        let mut parts = [&key[..], &array].into_iter();
        let fill = |into: &mut [u8]| {
            into.copy_from_slice(parts.next().expect("there are two outputs"));
            Ok::<_, Error>(())
        };
        self.batch.fill(1, fill)?;
        self.of_keys.fill(1, |into| {
            into.copy_from_slice(&key);
            Ok::<_, Error>(())
        })?;
        self.arrays.write(&self.batch)?;
        self.keys.write(&self.of_keys)?;
        self.bytes += array.len() as u64;
        Ok(())
    }
}

/// Returns a name that no file of the folder has. Another process may use the folder too, so the
/// name has the time and the number of this process. The time comes first: files are read in the
/// order of their names, and the newest one counts.
fn free_stem(folder: &Path, seed: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut number = now.map_or(0, |now| now.as_nanos() as u64);
    // The loop ends: a folder has a limited number of files.
    loop {
        let stem = format!("{seed:016x}-{number:016x}{:08x}", std::process::id());
        if !folder.join(format!("{stem}.{ARRAYS}")).exists() {
            return stem;
        }
        number += 1;
    }
}
