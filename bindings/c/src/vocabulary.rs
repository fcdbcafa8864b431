//! Functions on a vocabulary, which gives each value of a feature an id.

use std::ffi::{c_char, c_void};

use bytemuck::{Pod, Zeroable};
use embank::{
    ByteBuffer, ByteValues, OwnedValues, UNKNOWN_ID, ValueKind, Values, Vocabulary,
    VocabularyConfig,
};

use crate::handle::{self, Owned, borrowed};
use crate::memory::{HandlePlace, Lent, Place};
use crate::refusals::{beyond_this_header, no_such_number};
use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};

/// Marks a value without an id: with EMBANK_UNKNOWN_VALUES_MARK, embank_vocabulary_ids_of_numbers
/// and embank_vocabulary_ids_of_bytes return this number in place of an id.
pub const EMBANK_NO_ID: u64 = 0xFFFF_FFFF_FFFF_FFFF;
const _: () = assert!(EMBANK_NO_ID == UNKNOWN_ID);

/// The kinds of values of a vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_value_kind {
    /// 64-bit numbers.
    U64 = 0,
    /// Byte strings. The empty string is a value too.
    Bytes = 1,
}

/// A vocabulary's setting for values that have no id.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_unknown {
    /// The call fails with EMBANK_STATUS_UNKNOWN_VALUE.
    Error = 0,
    /// The value gets the unknown_id of the settings.
    Id = 1,
}

/// How a call treats values that have no id.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_unknown_values {
    /// They get EMBANK_NO_ID.
    Mark = 0,
    /// The setting `unknown` of the vocabulary decides (embank_unknown).
    AsSettings = 1,
    /// The call inserts them, and each gets the next free id. If the vocabulary is frozen, its
    /// setting `unknown` decides (embank_unknown).
    Insert = 2,
}

/// The settings of a vocabulary. Call embank_vocabulary_settings_init, then change fields. A
/// vocabulary's settings never change: opening a vocabulary with other settings than those of its
/// creation fails.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_vocabulary_settings {
    /// Set by embank_vocabulary_settings_init.
    pub size: usize,
    /// The first value's id, at most 2^62. The vocabulary never gives out smaller ids; the caller
    /// may use them for padding and unknown values. Default: 0.
    pub first_id: u64,
    /// With EMBANK_UNKNOWN_ID: the id of values that have no id of their own; it must be below
    /// first_id. With EMBANK_UNKNOWN_ERROR it must be 0. Default: 0.
    pub unknown_id: u64,
    /// One of embank_value_kind. Default: EMBANK_VALUE_KIND_U64.
    pub kind: u32,
    /// One of embank_unknown. Default: EMBANK_UNKNOWN_ERROR.
    pub unknown: u32,
    /// The largest length of a byte string, 1 to 131,072. Default: 1,024.
    pub value_bytes_max: u32,
    /// 0 or 1: with 1, the vocabulary counts the occurrences of each value. Default: 0.
    pub counts: u32,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_vocabulary_settings {
    const NAME: &'static str = "embank_vocabulary_settings";
    const FILLED_BY: &'static str = "embank_vocabulary_settings_init";
    const SIZE_MIN: usize = 40;

    fn defaults() -> Self {
        // The conversion can't fail, because the header has a number for each kind of values.
        Self::from_rust(&VocabularyConfig::u64()).unwrap_or(Self::zeroed())
    }
}

impl embank_vocabulary_settings {
    fn from_rust(config: &VocabularyConfig) -> Result<Self, Failure> {
        let (unknown, unknown_id) = match config.unknown_id {
            None => (embank_unknown::Error, 0),
            Some(id) => (embank_unknown::Id, id),
        };
        let kind = match config.kind {
            ValueKind::U64 => embank_value_kind::U64,
            ValueKind::Bytes => embank_value_kind::Bytes,
            other => return Err(beyond_this_header("kind of values", &other)),
        };
        Ok(Self {
            size: size_of::<Self>(),
            first_id: config.first_id,
            unknown_id,
            kind: kind as u32,
            unknown: unknown as u32,
            value_bytes_max: config.value_bytes_max,
            counts: u32::from(config.counts),
        })
    }

    fn to_rust(self) -> Result<VocabularyConfig, Failure> {
        const U64: u32 = embank_value_kind::U64 as u32;
        const BYTES: u32 = embank_value_kind::Bytes as u32;
        const ERROR: u32 = embank_unknown::Error as u32;
        const ID: u32 = embank_unknown::Id as u32;
        let config = match self.kind {
            U64 => VocabularyConfig::u64(),
            BYTES => VocabularyConfig::bytes(),
            other => return Err(no_such_number("embank_value_kind", other)),
        };
        let unknown_id = match self.unknown {
            ERROR if self.unknown_id != 0 => {
                return Err(Failure::invalid(
                    "unknown_id is set, which EMBANK_UNKNOWN_ERROR does not use; set EMBANK_UNKNOWN_ID, or 0",
                ));
            }
            ERROR => None,
            ID => Some(self.unknown_id),
            other => return Err(no_such_number("embank_unknown", other)),
        };
        let counts = match self.counts {
            0 => false,
            1 => true,
            other => return Err(Failure::invalid(format!("counts is 0 or 1, found {other}"))),
        };
        let mut config = config.first_id(self.first_id).counts(counts);
        config.unknown_id = unknown_id;
        Ok(config.value_bytes_max(self.value_bytes_max))
    }
}

/// Fills the settings with their defaults. `size` is sizeof(embank_vocabulary_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_settings_init(
    settings: *mut embank_vocabulary_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `settings` is null or valid until the call returns.
    call(|| unsafe { sized::write(settings, size, &Growing::defaults()) })
}

/// A vocabulary of an open bank: a list of values, each with an id. The ids follow each other
/// without gaps. Free with embank_vocabulary_free.
#[derive(Debug)]
pub struct embank_vocabulary {
    inner: Owned<Vocabulary>,
}

impl embank_vocabulary {
    pub(crate) fn new(vocabulary: Vocabulary) -> Self {
        Self { inner: Owned::new(vocabulary) }
    }
}

/// # Safety
/// `vocabulary` must be null or a handle that the caller does not free while the returned reference
/// is in use.
unsafe fn vocabulary_of<'a>(
    vocabulary: *const embank_vocabulary,
) -> Result<&'a Vocabulary, Failure> {
    // SAFETY: by this function's `# Safety`, `vocabulary` is null or a live handle.
    unsafe { borrowed("vocabulary", vocabulary) }?.inner.get()
}

/// # Safety
/// `settings` must be null or point to a struct whose first field is the struct's size in bytes.
pub(crate) unsafe fn config_of(
    settings: *const embank_vocabulary_settings,
) -> Result<VocabularyConfig, Failure> {
    // SAFETY: by this function's `# Safety`, `settings` is null or a struct of the size in its
    // first field.
    unsafe { sized::read(settings) }?.to_rust()
}

/// Frees the handle. The vocabulary stays in its bank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_free(vocabulary: *mut embank_vocabulary) {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and the caller does
    // not use it again.
    unsafe { handle::free(vocabulary) };
}

/// Fills `settings` with the vocabulary's settings. `size` is sizeof(embank_vocabulary_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_get_settings(
    vocabulary: *const embank_vocabulary,
    settings: *mut embank_vocabulary_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `settings` is
    // null or valid until the call returns.
    call(|| unsafe {
        let config = vocabulary_of(vocabulary)?.config().clone();
        sized::write(settings, size, &embank_vocabulary_settings::from_rust(&config)?)
    })
}

/// `len` gets the number of values, and `next_id` the id that the next new value will get. Each of
/// the two may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_len(
    vocabulary: *const embank_vocabulary,
    len: *mut u64,
    next_id: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `len` and
    // `next_id` are each null or valid until the call returns.
    call(|| unsafe {
        let len = Place::optional("length", len)?;
        let next_id = Place::optional("next id", next_id)?;
        let vocabulary = vocabulary_of(vocabulary)?;
        len.set(vocabulary.len());
        next_id.set(vocabulary.next_id());
        Ok(())
    })
}

/// Freezes the vocabulary if `frozen` is 1: from now on no call inserts a value. If `frozen` is 0,
/// calls insert new values again. The next checkpoint makes the change durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_set_frozen(
    vocabulary: *const embank_vocabulary,
    frozen: u32,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle.
    call(|| unsafe {
        let vocabulary = vocabulary_of(vocabulary)?;
        match frozen {
            0 | 1 => Ok(vocabulary.set_frozen(frozen == 1)?),
            other => Err(Failure::invalid(format!("frozen is 0 or 1, found {other}"))),
        }
    })
}

/// Writes the ids of `values` to `ids`. Inserts values without an id if `unknown` is `Insert`.
fn ids_of<'v>(
    vocabulary: &Vocabulary,
    values: impl Into<Values<'v>>,
    unknown: u32,
    ids: &mut [u64],
) -> Result<(), Failure> {
    const MARK: u32 = embank_unknown_values::Mark as u32;
    const AS_SETTINGS: u32 = embank_unknown_values::AsSettings as u32;
    const INSERT: u32 = embank_unknown_values::Insert as u32;
    match unknown {
        MARK => drop(vocabulary.ids(values, ids)?),
        AS_SETTINGS => vocabulary.lookup(values, ids)?,
        INSERT => drop(vocabulary.ids_or_insert(values, ids)?),
        other => return Err(no_such_number("embank_unknown_values", other)),
    }
    Ok(())
}

/// Looks up the ids of `count` numbers, in a vocabulary of EMBANK_VALUE_KIND_U64. `unknown` is one
/// of embank_unknown_values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_ids_of_numbers(
    vocabulary: *const embank_vocabulary,
    values: *const u64,
    count: usize,
    unknown: u32,
    ids: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `values` and
    // `ids` are each null or valid until the call returns.
    call(|| unsafe {
        let vocabulary = vocabulary_of(vocabulary)?;
        let values = Lent::new("values", values, count)?;
        let ids = Lent::new_mut("ids", ids, count)?;
        values.check_apart(&ids)?;
        ids_of(vocabulary, values.read(), unknown, ids.write())
    })
}

/// Looks up the ids of `count` byte strings, in a vocabulary of EMBANK_VALUE_KIND_BYTES. The
/// strings lie one after the other in `bytes`: string i begins at offsets[i] and ends before
/// offsets[i + 1]. There are count + 1 offsets, as in Arrow's large strings. `unknown` is one of
/// embank_unknown_values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_ids_of_bytes(
    vocabulary: *const embank_vocabulary,
    offsets: *const u64,
    count: usize,
    bytes: *const c_void,
    bytes_len: usize,
    unknown: u32,
    ids: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `offsets`,
    // `bytes` and `ids` are each null or valid until the call returns.
    call(|| unsafe {
        let vocabulary = vocabulary_of(vocabulary)?;
        let offsets = Lent::new("offsets", offsets, count.saturating_add(1))?;
        let bytes = Lent::new("bytes", bytes.cast::<u8>(), bytes_len)?;
        let ids = Lent::new_mut("ids", ids, count)?;
        offsets.check_apart(&ids)?;
        bytes.check_apart(&ids)?;
        let values = ByteValues::with_long_offsets(offsets.read(), bytes.read())?;
        ids_of(vocabulary, values, unknown, ids.write())
    })
}

/// Looks up the numbers of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_U64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_numbers(
    vocabulary: *const embank_vocabulary,
    ids: *const u64,
    count: usize,
    values: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `ids` and
    // `values` are each null or valid until the call returns.
    call(|| unsafe {
        let vocabulary = vocabulary_of(vocabulary)?;
        let ids = Lent::new("ids", ids, count)?;
        let values = Lent::new_mut("values", values, count)?;
        ids.check_apart(&values)?;
        match vocabulary.values(ids.read())? {
            OwnedValues::U64(found) => values.write().copy_from_slice(&found),
            _ => return Err(of_the_other_kind(vocabulary, "embank_vocabulary_byte_strings")),
        }
        Ok(())
    })
}

/// Looks up the byte strings of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_BYTES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_vocabulary_byte_strings(
    vocabulary: *const embank_vocabulary,
    ids: *const u64,
    count: usize,
    strings: *mut *mut embank_byte_strings,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `vocabulary` is null or a live handle, and `ids` and
    // `strings` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("byte strings", strings)?;
        let vocabulary = vocabulary_of(vocabulary)?;
        let ids = Lent::new("ids", ids, count)?;
        match vocabulary.values(ids.read())? {
            OwnedValues::Bytes(strings) => place.hand_over(embank_byte_strings { strings }),
            _ => return Err(of_the_other_kind(vocabulary, "embank_vocabulary_numbers")),
        }
        Ok(())
    })
}

fn of_the_other_kind(vocabulary: &Vocabulary, call: &str) -> Failure {
    Failure::invalid(format!(
        "vocabulary {:?} has {} values; call {call}",
        vocabulary.name(),
        vocabulary.config().kind.name()
    ))
}

/// Byte strings that a call returns. Free with embank_byte_strings_free.
#[derive(Debug)]
pub struct embank_byte_strings {
    strings: ByteBuffer,
}

/// The number of byte strings; 0 if `strings` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_byte_strings_count(strings: *const embank_byte_strings) -> usize {
    // SAFETY: by the rules of embank.h, `strings` is null or a live handle.
    unsafe { strings.as_ref() }.map_or(0, |of| of.strings.len())
}

/// The byte string with the number `place`, counted from 0, without a NUL at its end. NULL if there
/// is no such byte string. `size` gets the length in bytes, and may be NULL. The bytes are valid
/// until embank_byte_strings_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_byte_strings_at(
    strings: *const embank_byte_strings,
    place: usize,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: by the rules of embank.h, `strings` is null or a live handle.
    let strings = unsafe { strings.as_ref() };
    let found = strings.filter(|of| place < of.strings.len()).map(|of| of.strings.get(place));
    if let Ok(size) = Place::optional("size", size) {
        // SAFETY: by the rules of embank.h, `size` is null or valid until the call returns.
        unsafe { size.set(found.map_or(0, <[u8]>::len)) };
    }
    found.map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}

/// Frees the byte strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_byte_strings_free(strings: *mut embank_byte_strings) {
    // SAFETY: by the rules of embank.h, `strings` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(strings) };
}
