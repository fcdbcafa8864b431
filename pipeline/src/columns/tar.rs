//! Reads tar files as WebDataset writes them: members that share a name up to the first dot of
//! their file names are a row, and what follows that dot names the field.
//!
//! An archive has no list of its members. So this module reads all headers first, and passes over
//! the members' bytes. It then knows all rows, and notices an archive that is cut short.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::builder::LargeBinaryBuilder;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::partitions::Partitions;
use super::types::{FieldMeaning, Found, Meaning, Origin};
use super::{Batches, Fields};
use crate::decode::FieldKind;
use crate::input::shown;

/// Bytes of a header and of a unit of an archive.
const BLOCK_BYTES: usize = 512;
/// A chunk ends at this number of bytes.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Where the bytes of a member are.
#[derive(Debug, Clone, Copy)]
struct Member {
    offset: u64,
    bytes: u64,
}

/// The members of a row.
#[derive(Debug)]
struct Row {
    /// The name that the members share, which may be no UTF-8.
    name: Vec<u8>,
    /// For each field the member that has its value.
    members: Vec<Option<Member>>,
}

/// True if `block`, the first bytes of a file, begins an archive.
pub(super) fn is_tar(block: &[u8]) -> bool {
    let Ok(block) = <&[u8; BLOCK_BYTES]>::try_from(block) else { return false };
    // The checksum of a header counts its own bytes as spaces.
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    let own: u32 = block[148..156].iter().map(|&byte| u32::from(byte)).sum();
    tar::Header::from_byte_slice(block).cksum().is_ok_and(|told| told == sum - own + 8 * 32)
}

/// The rows of an archive.
pub(super) struct Tar<R> {
    from: R,
    rows: std::vec::IntoIter<Row>,
    kinds: Vec<FieldKind>,
    schema: Arc<Schema>,
    chunk_rows: usize,
}

impl<'a, R: Read + Seek + Send + 'a> Tar<R> {
    /// Reads all headers of an archive. Returns also what it has of the fields, and the number of
    /// rows.
    pub(super) fn open(
        mut from: R,
        fields: &Fields,
        partitions: &Partitions,
        chunk_rows: usize,
    ) -> Result<(Self, Found, u64), String> {
        let rows = rows(&mut from, fields)?;
        let mut found = Found::default();
        let mut origins = Vec::new();
        for (place, (name, field)) in fields.iter().enumerate() {
            if rows.iter().all(|row| row.members[place].is_none()) {
                if let Some(value) = partitions.value(name) {
                    if let Some(meaning) = Meaning::of(field.kind, &DataType::Utf8) {
                        let of = "of a folder's name".to_owned();
                        let meaning = FieldMeaning { field: name.clone(), meaning, found: of };
                        found.meanings.push(meaning);
                    }
                    origins.push(Origin::Folder(value.map(<[u8]>::to_vec)));
                    continue;
                }
                if field.required {
                    return Err(format!(
                        "it has no member whose name ends in {:?}",
                        format!(".{name}")
                    ));
                }
                found.absent.push(name.clone());
                origins.push(Origin::Absent);
                continue;
            }
            if let Some(meaning) = Meaning::of(field.kind, &DataType::LargeBinary) {
                let of = "of a member".to_owned();
                found.meanings.push(FieldMeaning { field: name.clone(), meaning, found: of });
            }
            origins.push(Origin::Column { place, is_text: false });
            found.columns.push(place);
        }
        if found.columns.is_empty() {
            return Err("it has no member that a field is named after".to_owned());
        }
        found.origins = origins.into();
        let named = fields.iter().map(|(name, _)| Field::new(name, DataType::LargeBinary, true));
        let named = named.chain([Field::new("", DataType::Utf8, false)]);
        let schema = Arc::new(Schema::new(named.collect::<Vec<_>>()));
        let kinds = fields.iter().map(|(_, field)| field.kind).collect();
        let total = rows.len() as u64;
        let tar = Self { from, rows: rows.into_iter(), kinds, schema, chunk_rows };
        Ok((tar, found, total))
    }

    pub(super) fn batches(mut self) -> Batches<'a> {
        Box::new(move || self.next())
    }

    /// Reads the next rows. The last column has their names. `None` at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        let mut columns: Vec<_> = self.kinds.iter().map(|_| LargeBinaryBuilder::new()).collect();
        let mut names = Vec::new();
        let mut bytes = Vec::new();
        let mut read = 0;
        while names.len() < self.chunk_rows && read < CHUNK_BYTES_MAX {
            let Some(row) = self.rows.next() else { break };
            for ((member, column), kind) in row.members.iter().zip(&mut columns).zip(&self.kinds) {
                let Some(Member { offset, bytes: length }) = *member else {
                    column.append_null();
                    continue;
                };
                // A value that is too long makes its row bad, so its end is not read.
                let length = length.min(crate::arrays::VALUE_BYTES_MAX as u64 + 1);
                read += length;
                bytes.resize(length as usize, 0);
                let whole = self.from.seek(SeekFrom::Start(offset));
                let whole = whole.and_then(|_| self.from.read_exact(&mut bytes));
                whole.map_err(|error| format!("a member of {:?}: {error}", shown(&row.name)))?;
                column.append_value(value(*kind, &bytes));
            }
            names.push(shown(&row.name).into_owned());
        }
        if names.is_empty() {
            return Ok(None);
        }
        let columns = columns.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        let columns = columns.chain([Arc::new(StringArray::from(names)) as ArrayRef]).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        batch.map(Some).map_err(|error| error.to_string())
    }
}

/// Returns the value in a member's bytes. A number or a text in a file of its own may have a line
/// end.
fn value(kind: FieldKind, bytes: &[u8]) -> &[u8] {
    match bytes {
        _ if kind == FieldKind::Blob => bytes,
        [value @ .., b'\r', b'\n'] | [value @ .., b'\n'] => value,
        value => value,
    }
}

/// Reads the headers of an archive.
fn rows(from: &mut (impl Read + Seek), fields: &Fields) -> Result<Vec<Row>, String> {
    let end = from.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
    from.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
    let cut = |name: &str| format!("it is cut short in or after its member {name:?}");
    let mut rows: Vec<Row> = Vec::new();
    let mut last = (String::new(), 0);
    let mut archive = tar::Archive::new(&mut *from);
    for entry in archive.entries_with_seek().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| format!("after its member {:?}: {error}", last.0))?;
        let raw_path = entry.path_bytes().into_owned();
        let path = shown(&raw_path).into_owned();
        // A sparse file is longer than its bytes in the archive.
        let bytes = match entry.header().entry_type().is_gnu_sparse() {
            true => entry.header().entry_size().map_err(|error| error.to_string())?,
            false => entry.size(),
        };
        let member = Member { offset: entry.raw_file_position(), bytes };
        if member.offset.checked_add(bytes).is_none_or(|after| after > end) {
            return Err(cut(&path));
        }
        last = (path.clone(), (member.offset + bytes).next_multiple_of(BLOCK_BYTES as u64));
        let Some((name, extension)) = parts(&raw_path) else { continue };
        let is_named = |field: &str| field.as_bytes().eq_ignore_ascii_case(extension);
        let Some(field) = fields.iter().position(|(field, _)| is_named(field)) else { continue };
        check_kind(&mut entry, &path)?;
        if rows.last().is_none_or(|row| row.name != name) {
            rows.push(Row { name: name.to_owned(), members: vec![None; fields.len()] });
        }
        let row = rows.last_mut().expect("one was added");
        if row.members[field].replace(member).is_some() {
            return Err(format!("it has two members {path:?} in a row: names must differ"));
        }
    }
    check_end(from, last.1, end, || cut(&last.0))?;
    Ok(rows)
}

/// Divides the path of a member into the name of its row and the name of its field. `None` for
/// files without a row: those that begin with a dot, and those without one.
fn parts(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1);
    let dot = memchr::memchr(b'.', &path[file..])?;
    (dot > 0).then(|| (&path[..file + dot], &path[file + dot + 1..]))
}

/// Fails if a member with the name of a field is no file whose bytes follow its header.
fn check_kind(entry: &mut tar::Entry<'_, impl Read>, path: &str) -> Result<(), String> {
    let kind = entry.header().entry_type();
    if kind.is_symlink() || kind.is_hard_link() {
        return Err(format!(
            "its member {path:?} is a link: write the archive with the files themselves (tar --dereference --hard-dereference)"
        ));
    }
    let extensions = entry.pax_extensions().map_err(|error| error.to_string())?;
    let is_sparse = |key: &[u8]| key.starts_with(b"GNU.sparse.");
    let has_sparse = extensions
        .is_some_and(|mut all| all.any(|one| one.is_ok_and(|one| is_sparse(one.key_bytes()))));
    if kind.is_gnu_sparse() || has_sparse {
        return Err(format!(
            "its member {path:?} is sparse: write the archive without the option --sparse"
        ));
    }
    if kind.is_file() || kind.is_contiguous() {
        return Ok(());
    }
    Err(format!("its member {path:?} is no file"))
}

/// Checks what follows the last member, at `at`: a block of zeros at least, and nothing else.
fn check_end(
    from: &mut (impl Read + Seek),
    at: u64,
    end: u64,
    cut: impl Fn() -> String,
) -> Result<(), String> {
    if end < at + BLOCK_BYTES as u64 {
        return Err(cut());
    }
    from.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
    let mut buffer = vec![0; 64 << 10];
    // The loop ends with the file.
    loop {
        let read = from.read(&mut buffer).map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(());
        }
        if buffer[..read].iter().any(|&byte| byte != 0) {
            return Err("it has more bytes after its end: several archives in one file are not read, so give each a \
                        file"
                .to_owned());
        }
    }
}
