//! Reads Arrow files and streams, one record batch at a time. Before it allocates memory for a
//! declared size, it checks that the file has enough bytes for that size.
//!
//! This module finds each message, and the `arrow` crates decode it. Without this module, the
//! crates would allocate as much memory as a file declares, and the system kills a process that
//! takes too much. The module checks two things. A message must lie within the file, so it is no
//! longer than the file. A compressed buffer declares its decompressed length, and its codec must
//! be able to reach that length. The module decodes neither a column that no field uses nor that
//! column's dictionary.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::MutableBuffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, CompressionType, Message, MessageHeader, MetadataVersion};
use arrow_schema::Schema;

/// The mark before a message. The length of the message's metadata follows it.
const CONTINUATION: [u8; 4] = [0xFF; 4];
const PREFIX_BYTES: usize = 8;
/// Bytes at a file's end: the length of its footer, and its magic.
const TRAILER_BYTES: u64 = 10;
/// Largest number of bytes to which one byte of LZ4 can decompress.
const LZ4_RATIO_MAX: u64 = 255;
/// More bytes than one byte of zstd can decompress to. A block of at most 128 KiB takes at least
/// four bytes, so the limit is twice the largest ratio.
const ZSTD_RATIO_MAX: u64 = 1 << 16;
/// The format puts buffers at multiples of this number of bytes.
const BUFFER_ALIGNMENT: i64 = 8;
/// Decompressed bytes that the check allows beyond the ratio, so that it never refuses a short
/// buffer.
const COMPRESSED_SLACK_BYTES: u64 = 64;

/// The record batches of a file or stream.
pub(crate) struct Ipc<R> {
    from: R,
    bytes: u64,
    /// Offset of a stream's next message.
    at: u64,
    decoder: FileDecoder,
    /// The unread blocks of a file. `None` for a stream.
    blocks: Option<std::vec::IntoIter<Block>>,
    /// Ids of the dictionaries of columns that are read.
    dictionaries: HashSet<i64>,
}

impl<R: Read + Seek> Ipc<R> {
    /// Opens a file or stream of `bytes` bytes. `project` selects the columns to read, and returns
    /// the schema to decode them with.
    pub(crate) fn open(
        mut from: R,
        bytes: u64,
        is_file: bool,
        project: impl FnOnce(&Schema) -> (Schema, Vec<usize>),
    ) -> Result<Self, String> {
        if is_file {
            return Self::open_file(from, bytes, project);
        }
        let mut at = 0;
        let metadata = read_metadata(&mut from, bytes, &mut at)?.ok_or("it is empty")?;
        let message = message(&metadata[PREFIX_BYTES..])?;
        let schema = message.header_as_schema().ok_or("it does not begin with a schema")?;
        let (decoder, dictionaries) = decoder(schema, message.version(), project)?;
        Ok(Self { from, bytes, at, decoder, blocks: None, dictionaries })
    }

    fn open_file(
        mut from: R,
        bytes: u64,
        project: impl FnOnce(&Schema) -> (Schema, Vec<usize>),
    ) -> Result<Self, String> {
        let before_trailer = bytes.checked_sub(TRAILER_BYTES).ok_or("it is cut short")?;
        let mut trailer = [0; TRAILER_BYTES as usize];
        read_at(&mut from, before_trailer, &mut trailer)?;
        let footer_bytes = read_footer_length(trailer).map_err(|error| error.to_string())?;
        let begin = before_trailer.checked_sub(footer_bytes as u64);
        let mut footer = vec![0; begin.map_or(0, |_| footer_bytes)];
        read_at(&mut from, begin.ok_or("its footer is longer than itself")?, &mut footer)?;
        let footer = arrow_ipc::root_as_footer(&footer).map_err(|error| error.to_string())?;
        let schema = footer.schema().ok_or("its footer has no schema")?;
        let (decoder, dictionaries) = decoder(schema, footer.version(), project)?;
        let blocks = footer.recordBatches().ok_or("its footer has no record batches")?;
        let blocks: Vec<Block> = blocks.iter().copied().collect();
        let mut ipc =
            Self { from, bytes, at: 0, decoder, blocks: Some(blocks.into_iter()), dictionaries };
        for block in footer.dictionaries().iter().flatten() {
            let buffer = ipc.read_block(block)?;
            ipc.read_dictionary(block, buffer)?;
        }
        Ok(ipc)
    }

    /// Returns the next record batch. `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        // The loop ends: each round consumes a message.
        loop {
            let message =
                if self.blocks.is_some() { self.next_block() } else { self.next_message() };
            let Some((block, buffer)) = message? else { return Ok(None) };
            let batch = self.decoder.read_record_batch(&block, &buffer.into());
            if let Some(batch) = batch.map_err(|error| error.to_string())? {
                return Ok(Some(batch));
            }
        }
    }

    fn next_block(&mut self) -> Result<Option<(Block, MutableBuffer)>, String> {
        let Some(block) = self.blocks.as_mut().and_then(Iterator::next) else { return Ok(None) };
        let buffer = self.read_block(&block)?;
        Ok(Some((block, buffer)))
    }

    /// Reads a message of a file after checking its sizes.
    fn read_block(&mut self, block: &Block) -> Result<MutableBuffer, String> {
        let size = |of: i64| u64::try_from(of).map_err(|_| "a place in its footer is negative");
        let begin = size(block.offset())?;
        let metadata = size(block.metaDataLength().into())?;
        let whole = metadata.saturating_add(size(block.bodyLength())?);
        if begin.saturating_add(whole) > self.bytes {
            return Err(cut_short(begin, whole));
        }
        let mut buffer = MutableBuffer::from_len_zeroed(whole as usize);
        read_at(&mut self.from, begin, &mut buffer)?;
        let (metadata, body) = buffer.split_at(metadata as usize);
        // Files of old programs have no mark before the length.
        let prefix = if metadata.starts_with(&CONTINUATION) { PREFIX_BYTES } else { 4 };
        let metadata = metadata.get(prefix..).ok_or("a message of it is cut short")?;
        check_buffers(&message(metadata)?, body)?;
        Ok(buffer)
    }

    fn next_message(&mut self) -> Result<Option<(Block, MutableBuffer)>, String> {
        // The loop ends: each round consumes a message.
        loop {
            let begin = self.at;
            let Some(metadata) = read_metadata(&mut self.from, self.bytes, &mut self.at)? else {
                return Ok(None);
            };
            let message = message(&metadata[PREFIX_BYTES..])?;
            let body = u64::try_from(message.bodyLength()).unwrap_or(u64::MAX);
            if self.at.saturating_add(body) > self.bytes {
                return Err(cut_short(begin, body));
            }
            let mut buffer = MutableBuffer::from_len_zeroed(metadata.len() + body as usize);
            let (front, rest) = buffer.split_at_mut(metadata.len());
            front.copy_from_slice(&metadata);
            read_at(&mut self.from, self.at, rest)?;
            self.at += body;
            check_buffers(&message, rest)?;
            let bytes = i32::try_from(metadata.len()).map_err(|error| error.to_string())?;
            let block = Block::new(0, bytes, body as i64);
            if message.header_type() == MessageHeader::DictionaryBatch {
                self.read_dictionary(&block, buffer)?;
                continue;
            }
            return Ok(Some((block, buffer)));
        }
    }

    /// Stores a dictionary, or an addition to one, if a column that is read uses it.
    fn read_dictionary(&mut self, block: &Block, buffer: MutableBuffer) -> Result<(), String> {
        let metadata = usize::try_from(block.metaDataLength()).unwrap_or(0);
        let metadata = buffer.get(..metadata).ok_or("a message of it is cut short")?;
        let prefix = if metadata.starts_with(&CONTINUATION) { PREFIX_BYTES } else { 4 };
        let id = message(metadata.get(prefix..).ok_or("a message of it is cut short")?)?
            .header_as_dictionary_batch()
            .map(|batch| batch.id());
        if id.is_none_or(|id| !self.dictionaries.contains(&id)) {
            return Ok(());
        }
        let read = self.decoder.read_dictionary(block, &buffer.into());
        read.map_err(|error| error.to_string())
    }
}

/// Makes a decoder for the columns that `project` selects. Also returns the ids of these columns'
/// dictionaries.
fn decoder(
    schema: arrow_ipc::Schema<'_>,
    version: MetadataVersion,
    project: impl FnOnce(&Schema) -> (Schema, Vec<usize>),
) -> Result<(FileDecoder, HashSet<i64>), String> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err("it was written on a machine of another byte order".to_owned());
    }
    let declared = schema;
    let schema = try_fb_to_schema(schema).map_err(|error| error.to_string())?;
    let (schema, columns) = project(&schema);
    let dictionary = |column: &usize| {
        let field = declared.fields().filter(|fields| *column < fields.len())?.get(*column);
        Some(field.dictionary()?.id())
    };
    let dictionaries = columns.iter().filter_map(dictionary).collect();
    Ok((FileDecoder::new(Arc::new(schema), version).with_projection(columns), dictionaries))
}

fn message(metadata: &[u8]) -> Result<Message<'_>, String> {
    arrow_ipc::root_as_message(metadata)
        .map_err(|error| format!("a message of it is wrong: {error}"))
}

fn cut_short(begin: u64, bytes: u64) -> String {
    format!(
        "it is cut short or damaged: {bytes} bytes are to follow on byte {begin}, and it ends before that"
    )
}

fn read_at(from: &mut (impl Read + Seek), at: u64, into: &mut [u8]) -> Result<(), String> {
    let read = from.seek(SeekFrom::Start(at)).and_then(|_| from.read_exact(into));
    read.map_err(|error| error.to_string())
}

/// Reads the prefix (mark and length) of a stream's next message, and returns the message's
/// metadata. `None` at the stream's end.
fn read_metadata(
    from: &mut (impl Read + Seek),
    bytes: u64,
    at: &mut u64,
) -> Result<Option<Vec<u8>>, String> {
    let mut word = || -> Result<Option<[u8; 4]>, String> {
        if bytes - *at < 4 {
            // A stream may end without an end mark.
            return if bytes == *at { Ok(None) } else { Err(cut_short(*at, 4)) };
        }
        let mut word = [0; 4];
        read_at(from, *at, &mut word)?;
        *at += 4;
        Ok(Some(word))
    };
    let length = match word()? {
        Some(CONTINUATION) => word()?,
        old => old,
    };
    let Some(length) = length.map(i32::from_le_bytes).filter(|&length| length != 0) else {
        return Ok(None);
    };
    let length = u64::try_from(length).map_err(|_| "the length of a message is negative")?;
    if length > bytes - *at {
        return Err(cut_short(*at, length));
    }
    let mut metadata = vec![0; PREFIX_BYTES + length as usize];
    metadata[..4].copy_from_slice(&CONTINUATION);
    metadata[4..PREFIX_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    read_at(from, *at, &mut metadata[PREFIX_BYTES..])?;
    *at += length;
    Ok(Some(metadata))
}

/// Fails if a buffer does not lie at a multiple of 8 bytes, as the format demands, or if a
/// compressed buffer declares a length that its codec can't reach.
fn check_buffers(message: &Message<'_>, body: &[u8]) -> Result<(), String> {
    let of_dictionary = || message.header_as_dictionary_batch()?.data();
    let Some(batch) = message.header_as_record_batch().or_else(of_dictionary) else {
        return Ok(());
    };
    let Some(buffers) = batch.buffers() else { return Ok(()) };
    if let Some(buffer) = buffers.iter().find(|buffer| buffer.offset() % BUFFER_ALIGNMENT != 0) {
        return Err(format!("it is damaged: a buffer begins at byte {}", buffer.offset()));
    }
    let Some(compression) = batch.compression() else { return Ok(()) };
    let ratio = match compression.codec() {
        CompressionType::LZ4_FRAME => LZ4_RATIO_MAX,
        _ => ZSTD_RATIO_MAX,
    };
    for buffer in buffers {
        let place =
            usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let bytes = place.and_then(|(begin, length)| body.get(begin..begin.checked_add(length)?));
        let Some(bytes) = bytes else {
            return Err("a buffer of it lies outside of its message".to_owned());
        };
        let Some((length, compressed)) = bytes.split_first_chunk::<8>() else { continue };
        // The length -1 means that the buffer is not compressed.
        let length = u64::try_from(i64::from_le_bytes(*length)).unwrap_or(0);
        if length > compressed.len() as u64 * ratio + COMPRESSED_SLACK_BYTES {
            return Err(format!(
                "it is damaged: {} compressed bytes are to become {length}, which is more than they can",
                compressed.len()
            ));
        }
    }
    Ok(())
}
