//! Writes bytes to a file in chunks with checksums, and reads them back. A writer and a reader hold
//! one chunk in memory, so their memory does not depend on the file's length.
//!
//! ```text
//! file   = header chunk* end
//! header = magic (8) | format version (4) | CRC-32C (4) of all other header bytes
//!        | owner (8) | checkpoint number (8)
//! chunk  = length (4) | CRC-32C (4) of sequence number (8), length (4) and bytes | bytes
//! end    = a chunk of length 0
//! ```
//!
//! A chunk's checksum covers its sequence number, so a reader detects chunks that were swapped or
//! repeated. Without the end chunk, a reader could not detect a file that was cut between two
//! chunks.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use crate::files::hidden_file::Interruptible;

/// Length of the largest chunk, in bytes.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 32;

/// A kind of file, and the format versions of this kind that this build reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamKind {
    /// The kind's name in errors.
    pub(crate) name: &'static str,
    pub(crate) magic: [u8; 8],
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

/// The fields of a stream's header: the kind of the file, and the checkpoint that the file belongs
/// to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamIdentity {
    pub(crate) kind: StreamKind,
    pub(crate) version: u32,
    /// Random id of the checkpoint. In files of old format versions this is the bank's id, because
    /// checkpoints had no id then.
    pub(crate) owner: u64,
    pub(crate) checkpoint: u64,
}

impl StreamIdentity {
    pub(crate) fn header(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.kind.magic);
        header[8..12].copy_from_slice(&self.version.to_le_bytes());
        header[16..24].copy_from_slice(&self.owner.to_le_bytes());
        header[24..].copy_from_slice(&self.checkpoint.to_le_bytes());
        let crc = header_crc(&header);
        header[12..16].copy_from_slice(&crc.to_le_bytes());
        header
    }
}

fn header_crc(header: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..])
}

fn chunk_crc(sequence: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&sequence.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(bytes.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}

/// Writes a checked stream to a file.
pub(crate) struct CheckedWriter {
    file: HeldFile,
    place: Place,
    buffer: Vec<u8>,
    sequence: u64,
    written_bytes: u64,
}

impl CheckedWriter {
    /// Creates the file and writes its header. Fails if the file exists.
    pub(crate) fn create(place: &Place, identity: StreamIdentity) -> Result<Self> {
        let file = place.create_new().and_then(HeldFile::new);
        let file = file.map_err(|e| Error::io("create", place, e))?;
        let mut writer = CheckedWriter {
            file,
            place: place.clone(),
            buffer: Vec::with_capacity(CHUNK_BYTES),
            sequence: 0,
            written_bytes: 0,
        };
        writer.write_raw(&identity.header())?;
        Ok(writer)
    }

    fn write_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        let written = self.file.check().and_then(|()| self.file.file().write_all(bytes));
        written.map_err(|e| Error::io("write", &self.place, e))
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == CHUNK_BYTES {
                self.write_chunk()?;
            }
        }
        Ok(())
    }

    fn write_chunk(&mut self) -> Result<()> {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&(self.buffer.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&chunk_crc(self.sequence, &self.buffer).to_le_bytes());
        self.write_raw(&head)?;
        let buffer = std::mem::take(&mut self.buffer);
        self.write_raw(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        self.sequence += 1;
        Ok(())
    }

    /// Writes the buffered bytes and the end chunk. Returns the file and its length in bytes. The
    /// file is not synced.
    pub(crate) fn finish(mut self) -> Result<(HeldFile, u64)> {
        if !self.buffer.is_empty() {
            self.write_chunk()?;
        }
        self.write_chunk()?;
        Ok((self.file, self.written_bytes))
    }
}

/// Reads one file and checks it chunk by chunk.
pub(crate) struct CheckedReader {
    file: BufReader<File>,
    place: Place,
    chunk: Vec<u8>,
    at: usize,
    sequence: u64,
    offset: u64,
    ended: bool,
}

impl CheckedReader {
    /// Opens the file.
    ///
    /// # Errors
    /// `Damaged` if the header has another magic number, version, owner or checkpoint than
    /// `identity`. `NewerFormat` if the version is newer than this build reads.
    pub(crate) fn open(place: &Place, identity: StreamIdentity) -> Result<Self> {
        let file = place.open().map_err(|e| Error::io("open", place, e))?;
        Self::from_file(file, place, identity)
    }

    /// Reads an open file from its start. Checks the header as `open` does. The file may have lost
    /// its name since it was opened.
    pub(crate) fn from_file(file: File, place: &Place, identity: StreamIdentity) -> Result<Self> {
        let (reader, found) = Self::from_file_of_any(file, place, identity.kind)?;
        if found.version != identity.version {
            let (found, expected) = (found.version, identity.version);
            let what = format!("format version {found} is not {expected}, which belongs here");
            return Err(reader.damaged(0, what));
        }
        if found.checkpoint != identity.checkpoint {
            let what = format!("it does not belong to checkpoint {}", identity.checkpoint);
            return Err(reader.damaged(0, what));
        }
        if found.owner != identity.owner {
            let what = format!(
                "it belongs to checkpoint {} with id {:016x}, not {:016x}: the file comes from a copy that has gone on by \
                 itself, or from before a crash or a roll back",
                found.checkpoint, found.owner, identity.owner
            );
            return Err(reader.damaged(0, what));
        }
        Ok(reader)
    }

    /// Opens a stream of any owner and checkpoint, in any version of its kind. Returns the identity
    /// in the header.
    pub(crate) fn from_file_of_any(
        mut file: File,
        place: &Place,
        kind: StreamKind,
    ) -> Result<(Self, StreamIdentity)> {
        file.rewind().map_err(|e| Error::io("read", place, e))?;
        let mut reader = CheckedReader {
            file: BufReader::new(file),
            place: place.clone(),
            chunk: Vec::new(),
            at: 0,
            sequence: 0,
            offset: 0,
            ended: false,
        };
        let mut header = [0; HEADER_BYTES];
        reader.fill(&mut header)?;
        let word =
            |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
        let found = word(8);
        let StreamKind { name, magic, oldest, newest } = kind;
        let what = if header[..8] != magic {
            "its magic number is wrong".into()
        } else if word(12) != header_crc(&header) {
            "its header fails the checksum".into()
        } else if found > newest {
            let path = place.path();
            return Err(Error::NewerFormat { path, kind: name, found, oldest, newest });
        } else if found < oldest {
            format!("format version {found} is not {newest}, which belongs here")
        } else {
            let wide = |i: usize| u64::from(word(i)) | u64::from(word(i + 4)) << 32;
            let owner = wide(16);
            let checkpoint = wide(24);
            return Ok((reader, StreamIdentity { kind, version: found, owner, checkpoint }));
        };
        Err(reader.damaged(0, what))
    }

    pub(crate) fn damaged(&self, offset: u64, what: String) -> Error {
        Error::Damaged { path: self.place.path(), offset, what }
    }

    /// Returns the file's path and the number of bytes that have been read.
    pub(crate) fn place(&self) -> (PathBuf, u64) {
        (self.place.path(), self.offset)
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        self.file.read_exact(into).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::Truncated {
                path: self.place.path(),
                offset: self.offset,
                expected: into.len() as u64,
                found: self.place.len().map_or(0, |bytes| bytes.saturating_sub(self.offset)),
            },
            _ => Error::io("read", &self.place, e),
        })?;
        self.offset += into.len() as u64;
        Ok(())
    }

    /// Reads the next chunk and checks it. Returns false after the end chunk.
    fn next_chunk(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let start = self.offset;
        let mut head = [0; 8];
        self.fill(&mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if length > CHUNK_BYTES {
            return Err(self.damaged(start, format!("a chunk claims {length} bytes")));
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(length, 0);
        self.fill(&mut chunk)?;
        self.chunk = chunk;
        let computed = chunk_crc(self.sequence, &self.chunk);
        if stored != computed {
            let what = format!("a chunk's checksum is {computed:#010x}, not {stored:#010x}");
            return Err(self.damaged(start, what));
        }
        self.sequence += 1;
        self.at = 0;
        self.ended = length == 0;
        Ok(!self.ended)
    }

    /// Fills `into`. Fails if the stream ends first.
    pub(crate) fn read(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            if self.at == self.chunk.len() && !self.next_chunk()? {
                return Err(self.damaged(self.offset, "it ends too early".into()));
            }
            let count = into.len().min(self.chunk.len() - self.at);
            let (now, later) = into.split_at_mut(count);
            now.copy_from_slice(&self.chunk[self.at..self.at + count]);
            self.at += count;
            into = later;
        }
        Ok(())
    }

    /// Returns the unread bytes of the current chunk, or the next chunk if the current chunk has
    /// none. `None` at the end of the stream.
    pub(crate) fn read_some(&mut self) -> Result<Option<&[u8]>> {
        if self.at == self.chunk.len() && !self.next_chunk()? {
            return Ok(None);
        }
        let at = std::mem::replace(&mut self.at, self.chunk.len());
        Ok(Some(&self.chunk[at..]))
    }

    /// Returns all unread bytes. Fails if there are more than `limit_bytes`.
    pub(crate) fn read_to_end(&mut self, limit_bytes: usize) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let unread = &self.chunk[self.at..];
            if all.len() + unread.len() > limit_bytes {
                return Err(self.damaged(self.offset, format!("it exceeds {limit_bytes} bytes")));
            }
            all.extend_from_slice(unread);
            self.at = self.chunk.len();
            if !self.next_chunk()? {
                return Ok(all);
            }
        }
    }

    /// Checks that all of the file was read. Fails if unread bytes of the stream are left, or if
    /// bytes follow the end chunk.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.at != self.chunk.len() || self.next_chunk()? {
            return Err(self.damaged(self.offset, "it is longer than it should be".into()));
        }
        // `read_exact` tries again if a signal interrupts the call. `read` would return an error.
        match self.file.read_exact(&mut [0]) {
            Ok(()) => Err(self.damaged(self.offset, "bytes follow its end".into())),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(e) => Err(Error::io("read", &self.place, e)),
        }
    }
}

/// Copies a stream to a new file and checks each chunk. Returns the new file's length in bytes. On
/// return the content is durable. The caller must sync the directory to make the file's name
/// durable.
pub(crate) fn copy(from: &Place, into: &Place, identity: StreamIdentity) -> Result<u64> {
    let mut reader = CheckedReader::open(from, identity)?;
    let mut writer = CheckedWriter::create(into, identity)?;
    while let Some(bytes) = reader.read_some()? {
        Interruptible::check().map_err(|e| Error::io("copy", from, e))?;
        writer.write(bytes)?;
    }
    reader.finish()?;
    let (file, bytes) = writer.finish()?;
    file.sync_all().map_err(|e| Error::io("sync", into, e))?;
    Ok(bytes)
}

/// Checks a whole file and continues after damage. Returns the offset and a description of each
/// damage. The length of a damaged chunk is unknown. The next chunk is assumed `CHUNK_BYTES` later,
/// because only the last chunk with content is shorter.
pub(crate) fn survey(place: &Place, identity: StreamIdentity) -> Result<Vec<(u64, String)>> {
    let file = place.open().map_err(|e| Error::io("open", place, e))?;
    let file_bytes = file.metadata().map_err(|e| Error::io("stat", place, e))?.len();
    let mut file = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut faults = Vec::new();
    match CheckedReader::open(place, identity) {
        Ok(_) => {}
        Err(Error::Damaged { what, .. }) => faults.push((0, what)),
        Err(Error::Truncated { .. }) => return Ok(vec![(0, "it ends within its header".into())]),
        Err(error) => return Err(error),
    }
    let failed = |e| Error::io("read", place, e);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = HEADER_BYTES as u64;
    let mut sequence = 0;
    // The loop ends: each round advances by at least the 8 bytes of a chunk's head, up to the end
    // of the file.
    loop {
        if at + 8 > file_bytes {
            faults.push((at, format!("it is cut short: its {file_bytes} bytes have no end mark")));
            return Ok(faults);
        }
        let mut head = [0; 8];
        file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut head)).map_err(failed)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let fits = length <= CHUNK_BYTES && at + 8 + length as u64 <= file_bytes;
        let sound = fits && {
            file.read_exact(&mut chunk[..length]).map_err(failed)?;
            chunk_crc(sequence, &chunk[..length]) == stored
        };
        if sound && length == 0 {
            if at + 8 != file_bytes {
                faults.push((at + 8, "bytes follow its end".into()));
            }
            return Ok(faults);
        }
        let step = if sound { length } else { CHUNK_BYTES };
        if !sound {
            let last = at + 8 + CHUNK_BYTES as u64 >= file_bytes;
            faults.push((at, format!("chunk {sequence} fails its checksum")));
            if last {
                return Ok(faults);
            }
        }
        at += 8 + step as u64;
        sequence += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const IDENTITY: StreamIdentity =
        StreamIdentity { kind: KIND, version: 3, owner: 5, checkpoint: 9 };
    const KIND: StreamKind = StreamKind { name: "test", magic: *b"EMBKTEST", oldest: 2, newest: 3 };

    fn sample(dir: &Path) -> (Place, Vec<u8>) {
        let path = Place::of_path(&dir.join("stream")).unwrap();
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 2 + 77).map(|i| (i * 31) as u8).collect();
        let mut writer = CheckedWriter::create(&path, IDENTITY).unwrap();
        for part in bytes.chunks(1000) {
            writer.write(part).unwrap();
        }
        let (_, length) = writer.finish().unwrap();
        assert_eq!(length, path.len().unwrap());
        (path, bytes)
    }

    fn read_all(path: &Place) -> Result<Vec<u8>> {
        let mut reader = CheckedReader::open(path, IDENTITY)?;
        let mut first = vec![0; 10];
        reader.read(&mut first)?;
        first.extend(reader.read_to_end(1 << 30)?);
        reader.finish()?;
        Ok(first)
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(dir.path());
        assert_eq!(read_all(&path).unwrap(), bytes);
    }

    #[test]
    fn more_bytes_than_the_limit_are_refused_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(dir.path());
        // The first byte's chunk is then the current one, and the end is two chunks further.
        let rest = bytes.len() - 1;
        for (limit, fits) in [(0, false), (CHUNK_BYTES - 2, false), (rest - 1, false), (rest, true)]
        {
            let mut reader = CheckedReader::open(&path, IDENTITY).unwrap();
            reader.read(&mut [0]).unwrap();
            assert_eq!(reader.read_to_end(limit).is_ok(), fits, "{limit}");
        }
        let last_chunk = 77;
        let mut reader = CheckedReader::open(&path, IDENTITY).unwrap();
        reader.read(&mut vec![0; CHUNK_BYTES * 2 + 1]).unwrap();
        assert!(reader.read_to_end(last_chunk - 2).is_err(), "all of it is in the current chunk");
    }

    #[test]
    fn every_cut_and_every_flip_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = sample(dir.path());
        let good = path.read().unwrap();
        for cut in (0..good.len()).step_by(997).chain([good.len() - 1, good.len() - 8]) {
            std::fs::write(path.path(), &good[..cut]).unwrap();
            assert!(read_all(&path).is_err(), "cut at {cut}");
        }
        for at in (0..good.len()).step_by(499).chain(0..24).chain(good.len() - 8..good.len()) {
            let mut flipped = good.clone();
            flipped[at] ^= 4;
            std::fs::write(path.path(), &flipped).unwrap();
            assert!(read_all(&path).is_err(), "flip at {at}");
        }
        let newer = StreamIdentity { version: 4, ..IDENTITY }.header();
        std::fs::write(path.path(), newer).unwrap();
        let error = read_all(&path).unwrap_err();
        let Error::NewerFormat { found: 4, oldest: 2, newest: 3, .. } = error else {
            panic!("{error}")
        };
        let mut longer = good.clone();
        longer.push(0);
        std::fs::write(path.path(), &longer).unwrap();
        assert!(read_all(&path).is_err());
    }
}
