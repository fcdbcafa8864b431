//! Kernels for processors with AVX-512 VBMI2.
//!
//! One load reads the fields of a step with their separators, up to 64 bytes. A table look-up
//! replaces every byte by the value of its digit and checks it. A compression removes the
//! separators. An expansion moves each field to the right end of a slot of eight bytes. Two
//! multiplications and a shift join the digits of all slots.

use std::arch::x86_64::*;

use super::avx2::store_transposed;
use super::narrow::{GROUP_ROWS, Group, Step, StepKind};

/// Marks a byte that is no digit, in the tables of digits. No digit's value has this bit.
const BAD: u8 = 0x80;

/// Value of each ASCII character as a hexadecimal digit.
static HEX: [u8; 128] = digits(true);
/// Value of each ASCII character as a decimal digit. A minus has the value 0; `negate` checks its
/// place.
static DECIMAL: [u8; 128] = digits(false);
/// For a length of 0 to 8, a bit for each byte of the slot that a field of this length fills.
static FILLED: [u8; 16] = [0, 0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF, 0, 0, 0, 0, 0, 0, 0];
static PLACES: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = i as u8;
        i += 1;
    }
    places
};

const fn digits(hex: bool) -> [u8; 128] {
    let mut table = [BAD; 128];
    let mut i = 0;
    while i < 10 {
        table[b'0' as usize + i] = i as u8;
        i += 1;
    }
    if hex {
        let mut i = 0;
        while i < 6 {
            table[b'a' as usize + i] = 10 + i as u8;
            table[b'A' as usize + i] = 10 + i as u8;
            i += 1;
        }
    } else {
        table[b'-' as usize] = 0;
    }
    table
}

/// Indexes `text` ([`super::structure`]). Returns the number of newlines.
///
/// # Safety
/// The processor must have AVX-512 F, BW, VL, VBMI, VBMI2, BMI1, BMI2 and POPCNT.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn index(text: &[u8], separator: u8, ends: &mut Vec<u32>) -> usize {
    let separators = _mm512_set1_epi8(separator as i8);
    let line_ends = _mm512_set1_epi8(b'\n' as i8);
    // SAFETY: the load needs 64 readable bytes, the size of the table.
    let places = unsafe { _mm512_loadu_si512(PLACES.as_ptr().cast()) };
    let mut newlines = 0;
    let (blocks, rest) = text.as_chunks::<64>();
    for (i, block) in blocks.iter().enumerate() {
        // SAFETY: the load needs 64 readable bytes, the size of a block.
        let block = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let newline = _mm512_cmpeq_epi8_mask(block, line_ends);
        let found = newline | _mm512_cmpeq_epi8_mask(block, separators);
        newlines += newline.count_ones() as usize;
        let count = found.count_ones() as usize;
        let found = _mm512_maskz_compress_epi8(found, places);
        let base = _mm512_set1_epi32((i * 64) as i32);
        super::structure::reserve_ends(ends, 64);
        // SAFETY: the writes need space for up to 64 more ends. `reserve_ends` has just reserved
        // it. `set_len` counts only the `count` ends that were written.
        unsafe {
            let next = ends.as_mut_ptr().add(ends.len());
            let low = _mm512_castsi512_si256(found);
            let write = |part: __m128i, at: usize| {
                let wide = _mm512_add_epi32(_mm512_cvtepu8_epi32(part), base);
                _mm512_storeu_si512(next.add(at).cast(), wide);
            };
            write(_mm256_castsi256_si128(low), 0);
            if count > 16 {
                write(_mm256_extracti128_si256::<1>(low), 16);
                if count > 32 {
                    let high = _mm512_extracti64x4_epi64::<1>(found);
                    write(_mm256_castsi256_si128(high), 32);
                    write(_mm256_extracti128_si256::<1>(high), 48);
                }
            }
            ends.set_len(ends.len() + count);
        }
    }
    let done = ends.len();
    newlines += super::structure::index_portable(rest, separator, ends);
    for end in &mut ends[done..] {
        *end += (blocks.len() * 64) as u32;
    }
    newlines
}

/// Converts one step of [`GROUP_ROWS`] rows. Returns a bit for each row that needs the slow path.
///
/// # Safety
/// The processor must have AVX-512 F, BW, VL, VBMI, VBMI2, BMI1, BMI2 and POPCNT. `group` must
/// belong to this text and structure.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn convert(text: &[u8], ends: &[u32], step: &Step, group: &mut Group<'_>) -> u8 {
    match step.kind {
        // SAFETY: `convert_kind` has the requirements of this function, and the caller meets them.
        StepKind::Decimal => unsafe { convert_kind::<true>(text, ends, step, group) },
        // SAFETY: `convert_kind` has the requirements of this function, and the caller meets them.
        StepKind::Hex => unsafe { convert_kind::<false>(text, ends, step, group) },
    }
}

/// # Safety
/// The caller must meet the requirements of [`convert`]: the processor has the instructions that it
/// lists, and `group` belongs to this `text` and these `ends`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
unsafe fn convert_kind<const SIGNED: bool>(
    text: &[u8],
    ends: &[u32],
    step: &Step,
    group: &mut Group<'_>,
) -> u8 {
    let table = if SIGNED { &DECIMAL } else { &HEX };
    // SAFETY: the load needs 64 readable bytes. The table has 128.
    let table_low = unsafe { _mm512_loadu_si512(table.as_ptr().cast()) };
    // SAFETY: the load needs 64 readable bytes from byte 64 on. The table has 128.
    let table_high = unsafe { _mm512_loadu_si512(table.as_ptr().add(64).cast()) };
    // SAFETY: the load needs 16 readable bytes, the size of `FILLED`.
    let filled = unsafe { _mm_loadu_si128(FILLED.as_ptr().cast()) };
    let separators = _mm512_set1_epi8(step.separator as i8);
    let lanes = step.lanes();
    let mut careful = 0;
    let mut rows = [_mm256_setzero_si256(); GROUP_ROWS];
    let first = group.first_end + step.first_field;
    // Checks the last row's window, so the windows of all rows are within `ends`.
    let last_window = first + (GROUP_ROWS - 1) * group.fields;
    assert!(last_window + step.count < ends.len(), "the group is within the structure");
    let last_end = ends[last_window + step.count] as usize;
    assert!(last_end <= text.len(), "the structure is of this text");
    for (row, values) in rows.iter_mut().enumerate() {
        let at = first + row * group.fields;
        // SAFETY: `lengths` needs the ends of the fields in `lanes`. These are the step's fields,
        // and the assertion above has checked their ends.
        let mut lens = unsafe { lengths(ends, at, lanes) };
        let begin = ends[at].wrapping_add(1) as usize;
        let mut end = ends[at + step.count] as usize;
        if step.ends_row && end > begin && text[end - 1] == b'\r' {
            // The carriage return belongs to the line's end, so the last field becomes one byte
            // shorter. The field is not empty: the byte before an empty field's end is a separator.
            end -= 1;
            let last = 1 << (step.count - 1);
            lens = _mm256_mask_sub_epi32(lens, last, lens, _mm256_set1_epi32(1));
        }
        // Lanes without a field hold -1 here. They become 0.
        lens = _mm256_maskz_mov_epi32(lanes, lens);
        let bytes = end - begin;
        let too_long = _mm256_cmpgt_epu32_mask(lens, _mm256_set1_epi32(8));
        group.missing[row] = _mm256_testn_epi32_mask(lens, lens) & lanes;
        if too_long != 0 || bytes > 64 {
            careful |= 1 << row;
            continue;
        }
        let within = _bzhi_u64(u64::MAX, bytes as u32);
        // SAFETY: the mask limits the load to the bytes of the fields, which are within the text.
        let x = unsafe { _mm512_maskz_loadu_epi8(within, text.as_ptr().add(begin).cast()) };
        // Bytes after the fields are 0. `kept` excludes them even if the separator is 0.
        let separator = _mm512_cmpeq_epi8_mask(x, separators);
        let kept = within & !separator;
        let digits = _mm512_permutex2var_epi8(table_low, x, table_high);
        // The look-up uses only the lower seven bits of a byte. A byte with the eighth bit set is
        // no digit, so it is marked as bad too.
        let mut bad = _mm512_movepi8_mask(_mm512_or_si512(digits, x)) & kept;

        let slots = _mm_shuffle_epi8(filled, _mm256_cvtepi32_epi8(lens));
        let slots = _mm_cvtsi128_si64(slots) as u64;
        let digits = _mm512_maskz_expand_epi8(slots, _mm512_maskz_compress_epi8(kept, digits));
        *values = joined::<SIGNED>(digits);
        if SIGNED {
            let minus = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(b'-' as i8)) & kept;
            if minus != 0 {
                bad |= negate(values, minus, (separator << 1 | 1) & (within << 1 | 1), lens);
            }
        }
        careful |= u8::from(bad != 0) << row;
    }
    // SAFETY: `store_transposed` needs AVX2, which this level implies.
    unsafe { store_transposed(rows, step, group) };
    careful
}

/// Returns the lengths of the fields that end at `ends[at + 1]` and the following ends. Lanes
/// without a field get -1.
///
/// # Safety
/// The processor must have AVX-512 VL. For each bit `k` of `lanes`, `ends` must have the entries
/// `at + k` and `at + k + 1`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
unsafe fn lengths(ends: &[u32], at: usize, lanes: u8) -> __m256i {
    // SAFETY: the masks limit the loads to entries that the caller guarantees.
    let (before, after) = unsafe {
        let window = ends.as_ptr().add(at).cast();
        (_mm256_maskz_loadu_epi32(lanes, window), _mm256_maskz_loadu_epi32(lanes, window.add(1)))
    };
    _mm256_sub_epi32(_mm256_sub_epi32(after, before), _mm256_set1_epi32(1))
}

/// Joins the digits of eight fields into numbers. Each field's digits are right-aligned in eight
/// bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn joined<const DECIMAL: bool>(digits: __m512i) -> __m256i {
    let wide = if DECIMAL {
        let hundreds = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010A));
        let quarters = _mm512_madd_epi16(hundreds, _mm512_set1_epi32(0x0001_0064));
        let high = _mm512_mul_epu32(quarters, _mm512_set1_epi64(10_000));
        _mm512_add_epi64(high, _mm512_srli_epi64::<32>(quarters))
    } else {
        let bytes = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x0110));
        let halves = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x0001_0100));
        _mm512_or_si512(_mm512_slli_epi64::<16>(halves), _mm512_srli_epi64::<32>(halves))
    };
    _mm512_cvtepi64_epi32(wide)
}

/// Negates the values whose fields begin with a minus. `minus` has a bit for each minus in the
/// text. `begins` has a bit for the first byte of each field, even of an empty one. `lens` has the
/// fields' lengths. Returns the bits of minus signs that are at a wrong place or have no digit.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn negate(values: &mut __m256i, minus: u64, begins: u64, lens: __m256i) -> u64 {
    let negative = _pext_u64(minus, begins) as u8;
    let lone = _mm256_mask_cmpeq_epi32_mask(negative, lens, _mm256_set1_epi32(1));
    *values = _mm256_mask_sub_epi32(*values, negative, _mm256_setzero_si256(), *values);
    (minus & !begins) | u64::from(lone)
}
