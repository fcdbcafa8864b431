//! Kernels for processors with AVX2 and BMI2.
//!
//! The kernel works on four fields at a time. It loads each field's last eight bytes and masks out
//! the bytes before the field. It then classifies, checks and converts the bytes of all four fields
//! at once.

use std::arch::x86_64::*;

use super::narrow::{GROUP_ROWS, Group, Step, StepKind};

/// Indexes `text` ([`super::structure`]). Returns the number of newlines.
///
/// # Safety
/// The processor must have AVX2, BMI1, BMI2 and POPCNT.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn index(text: &[u8], separator: u8, ends: &mut Vec<u32>) -> usize {
    let separators = _mm256_set1_epi8(separator as i8);
    let line_ends = _mm256_set1_epi8(b'\n' as i8);
    let mut newlines = 0;
    let (blocks, rest) = text.as_chunks::<64>();
    for (i, block) in blocks.iter().enumerate() {
        let (low, high) = block.split_at(32);
        // SAFETY: each load needs 32 readable bytes, and `low` and `high` have 32 bytes each.
        let (low, high) = unsafe {
            (_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast()))
        };
        let mask = |wanted| {
            let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)) as u32;
            let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)) as u32;
            u64::from(low) | u64::from(high) << 32
        };
        let newline = mask(line_ends);
        let mut found = newline | mask(separators);
        newlines += newline.count_ones() as usize;
        let base = (i * 64) as u32;
        super::structure::reserve_ends(ends, 64);
        // SAFETY: the writes need space for up to 64 more ends, as many as `found` has bits.
        // `reserve_ends` has just reserved 64. `set_len` counts only ends that were written.
        unsafe {
            let mut next = ends.as_mut_ptr().add(ends.len());
            let count = found.count_ones() as usize;
            while found != 0 {
                next.write(base + found.trailing_zeros());
                next = next.add(1);
                found &= found - 1;
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

/// Returns the values of the hexadecimal digits in the `filled` bytes of `x`. The mask that it also
/// returns marks the filled bytes that are no hexadecimal digits.
#[target_feature(enable = "avx2")]
#[inline]
fn hex_values(x: __m256i, filled: __m256i) -> (__m256i, __m256i) {
    // '0' to '9' are 0x30 to 0x39, 'A' to 'F' are 0x41 to 0x46, and 'a' to 'f' are 0x61 to 0x66.
    let lower = _mm256_or_si256(x, _mm256_set1_epi8(0x20));
    let digit = _mm256_sub_epi8(x, _mm256_set1_epi8(b'0' as i8));
    let letter = _mm256_sub_epi8(lower, _mm256_set1_epi8(b'a' as i8));
    let is_digit = _mm256_cmpeq_epi8(_mm256_min_epu8(digit, _mm256_set1_epi8(9)), digit);
    let is_letter = _mm256_cmpeq_epi8(_mm256_min_epu8(letter, _mm256_set1_epi8(5)), letter);
    let letter_value = _mm256_add_epi8(letter, _mm256_set1_epi8(10));
    let value = _mm256_or_si256(
        _mm256_and_si256(is_digit, digit),
        _mm256_and_si256(is_letter, letter_value),
    );
    let good = _mm256_or_si256(is_digit, is_letter);
    (_mm256_and_si256(value, filled), _mm256_andnot_si256(good, filled))
}

/// Joins eight hexadecimal digits, one in each byte, first digit in the lowest byte, into a number.
/// Does this for four numbers at once.
#[target_feature(enable = "avx2")]
#[inline]
fn join_hex(values: __m256i) -> __m256i {
    let bytes = _mm256_maddubs_epi16(values, _mm256_set1_epi16(0x0110));
    let halves = _mm256_madd_epi16(bytes, _mm256_set1_epi32(0x0001_0100));
    _mm256_or_si256(_mm256_slli_epi64(halves, 16), _mm256_srli_epi64(halves, 32))
}

/// Joins eight decimal digits, one in each byte, first digit in the lowest byte, into a number.
/// Does this for four numbers at once.
#[target_feature(enable = "avx2")]
#[inline]
fn join_decimal(values: __m256i) -> __m256i {
    let hundreds = _mm256_maddubs_epi16(values, _mm256_set1_epi16(0x010A));
    let quarters = _mm256_madd_epi16(hundreds, _mm256_set1_epi32(0x0001_0064));
    let high = _mm256_mul_epu32(quarters, _mm256_set1_epi64x(10_000));
    _mm256_add_epi64(high, _mm256_srli_epi64(quarters, 32))
}

/// Converts four fields of at most eight bytes. `ends` are the places after their last bytes.
/// Returns the values in 64-bit lanes, and true if all fields are good.
///
/// # Safety
/// The processor must have AVX2, BMI1, BMI2 and POPCNT. The eight bytes before each end must be
/// within the text.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
#[inline]
unsafe fn four(text: *const u8, ends: [u32; 4], lens: __m256i, kind: StepKind) -> (__m256i, bool) {
    // SAFETY: the load needs eight readable bytes before `end`. The caller guarantees that they are
    // within the text.
    let word = |end: u32| unsafe { text.add(end as usize - 8).cast::<i64>().read_unaligned() };
    let x = _mm256_set_epi64x(word(ends[3]), word(ends[2]), word(ends[1]), word(ends[0]));
    // The field's bytes are the last bytes of the load, so they are the highest bytes of the lane.
    // A word of ones that is shifted left by the other bytes' bits marks them. For an empty field
    // the shift is 64, which marks no byte.
    let foreign_bits = _mm256_sub_epi64(_mm256_set1_epi64x(64), _mm256_slli_epi64(lens, 3));
    let filled = _mm256_sllv_epi64(_mm256_set1_epi8(-1), foreign_bits);
    match kind {
        StepKind::Hex => {
            let (values, bad) = hex_values(x, filled);
            (join_hex(values), _mm256_testz_si256(bad, bad) == 1)
        }
        StepKind::Decimal => {
            // Finds the first byte of each field that is a minus.
            let rest = _mm256_sllv_epi64(filled, _mm256_set1_epi64x(8));
            let first = _mm256_andnot_si256(rest, filled);
            let minus = _mm256_cmpeq_epi8(x, _mm256_set1_epi8(b'-' as i8));
            let sign = _mm256_and_si256(minus, first);
            // A field with only a sign has no digit left, so the check below finds it bad.
            let digits = _mm256_andnot_si256(sign, filled);
            let empty = _mm256_cmpeq_epi64(digits, _mm256_setzero_si256());
            let lone = _mm256_and_si256(empty, sign);
            let digit = _mm256_sub_epi8(x, _mm256_set1_epi8(b'0' as i8));
            let is_digit = _mm256_cmpeq_epi8(_mm256_min_epu8(digit, _mm256_set1_epi8(9)), digit);
            let bad = _mm256_or_si256(_mm256_andnot_si256(is_digit, digits), lone);
            let value = join_decimal(_mm256_and_si256(digit, digits));
            let signed = _mm256_cmpeq_epi64(sign, _mm256_setzero_si256());
            // `signed` is all ones in lanes without a sign. These lanes keep the value.
            let negated = _mm256_sub_epi64(_mm256_setzero_si256(), value);
            (_mm256_blendv_epi8(negated, value, signed), _mm256_testz_si256(bad, bad) == 1)
        }
    }
}

/// Converts one step of [`GROUP_ROWS`] rows. Returns a bit for each row that needs the slow path.
///
/// # Safety
/// The processor must have AVX2, BMI1, BMI2 and POPCNT. `group` must belong to this text and
/// structure.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn convert(text: &[u8], ends: &[u32], step: &Step, group: &mut Group<'_>) -> u8 {
    let lanes = step.lanes();
    // The lanes that have a field, as a vector mask.
    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let present =
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(i32::from(lanes)), bits), bits);
    let mut careful = 0;
    let mut rows = [_mm256_setzero_si256(); GROUP_ROWS];
    let first = group.first_end + step.first_field;
    let last_window = first + (GROUP_ROWS - 1) * group.fields;
    assert!(last_window + step.count < ends.len(), "the group is within the structure");
    let last_end = ends[last_window + step.count] as usize;
    assert!(last_end <= text.len(), "the structure is of this text");
    for (row, values) in rows.iter_mut().enumerate() {
        let at = first + row * group.fields;
        // SAFETY: the loads need readable ends in the lanes of `present`. These are `ends[at..=at +
        // count]`, and the assertion above has checked the last of them.
        let (before, after) = unsafe {
            let window = ends.as_ptr().add(at).cast();
            (_mm256_maskload_epi32(window, present), _mm256_maskload_epi32(window.add(1), present))
        };
        let mut lens = _mm256_sub_epi32(_mm256_sub_epi32(after, before), _mm256_set1_epi32(1));
        let mut stops = [0_u32; 8];
        // SAFETY: the store needs 32 writable bytes, the size of `stops`.
        unsafe { _mm256_storeu_si256(stops.as_mut_ptr().cast(), after) };
        let begin = ends[at].wrapping_add(1) as usize;
        let end = ends[at + step.count] as usize;
        if step.ends_row && end > begin && text[end - 1] == b'\r' {
            // The carriage return belongs to the line's end, so the last field becomes one byte
            // shorter. The field is not empty: the byte before an empty field's end is a separator.
            let last = _mm256_set1_epi32(1 << (step.count - 1));
            lens = _mm256_add_epi32(lens, _mm256_cmpeq_epi32(last, bits));
            stops[step.count - 1] -= 1;
        }
        lens = _mm256_and_si256(lens, present);
        let empty = _mm256_cmpeq_epi32(lens, _mm256_setzero_si256());
        group.missing[row] = _mm256_movemask_ps(_mm256_castsi256_ps(empty)) as u8 & lanes;
        let too_long = _mm256_cmpgt_epi32(lens, _mm256_set1_epi32(8));
        // If the first field ends at byte 8 or later, eight bytes precede every end. Lanes without
        // a field read the bytes before the first field's end.
        if _mm256_testz_si256(too_long, too_long) == 0 || stops[0] < 8 {
            careful |= 1 << row;
            continue;
        }
        let first_stop = stops[0];
        stops[step.count..].fill(first_stop);
        let wide = |half: __m128i| _mm256_cvtepi32_epi64(half);
        let low_lens = wide(_mm256_castsi256_si128(lens));
        let high_lens = wide(_mm256_extracti128_si256::<1>(lens));
        let [a, b, c, d, e, f, g, h] = stops;
        // SAFETY: `four` needs eight bytes before each end. Every end is at least 8 and within the
        // text.
        let (low, low_good) = unsafe { four(text.as_ptr(), [a, b, c, d], low_lens, step.kind) };
        // SAFETY: `four` needs eight bytes before each end. The ends e to h are at least 8 too.
        let (high, high_good) = unsafe { four(text.as_ptr(), [e, f, g, h], high_lens, step.kind) };
        careful |= u8::from(!(low_good && high_good)) << row;
        // Keeps the low half of each of the eight 64-bit lanes.
        let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(
            _mm256_castsi256_ps(low),
            _mm256_castsi256_ps(high),
        ));
        *values = _mm256_permute4x64_epi64::<0b11_01_10_00>(even);
    }
    // SAFETY: `store_transposed` needs AVX2, which this function requires too.
    unsafe { store_transposed(rows, step, group) };
    careful
}

/// Writes eight rows of eight lanes to eight columns.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn store_transposed(rows: [__m256i; 8], step: &Step, group: &mut Group<'_>) {
    let columns = transpose(rows);
    for (lane, column) in columns.iter().enumerate().take(step.count) {
        let into = group.column(step, lane);
        // SAFETY: the store needs 32 writable bytes. `into` has eight values of four bytes.
        unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), *column) };
    }
}

/// Transposes eight rows of eight 32-bit values.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let mut pairs = rows;
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut quads = pairs;
    for i in 0..2 {
        let of = &pairs[4 * i..4 * i + 4];
        quads[4 * i] = _mm256_unpacklo_epi64(of[0], of[2]);
        quads[4 * i + 1] = _mm256_unpackhi_epi64(of[0], of[2]);
        quads[4 * i + 2] = _mm256_unpacklo_epi64(of[1], of[3]);
        quads[4 * i + 3] = _mm256_unpackhi_epi64(of[1], of[3]);
    }
    let mut columns = quads;
    for i in 0..4 {
        columns[i] = _mm256_permute2x128_si256::<0x20>(quads[i], quads[i + 4]);
        columns[i + 4] = _mm256_permute2x128_si256::<0x31>(quads[i], quads[i + 4]);
    }
    columns
}
