use super::*;

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn put_zigzag(bytes: &mut Vec<u8>, value: i32) {
    let value = i64::from(value);
    put(bytes, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Encodes a header of blocks with 128 values in four miniblocks.
fn header(count: u64, first: i32) -> Vec<u8> {
    let mut bytes = vec![0x80, 0x01, 0x04];
    put(&mut bytes, count);
    put_zigzag(&mut bytes, first);
    bytes
}

/// Encodes `count` copies of a number in Parquet's `DELTA_BINARY_PACKED`. All differences are 0, so
/// a block has a smallest difference of 0, four bit widths of 0, and no packed bits.
fn same(count: u64, number: i32) -> Vec<u8> {
    let mut bytes = header(count, number);
    for _ in 0..count.saturating_sub(1).div_ceil(128) {
        bytes.extend([0; 5]);
    }
    bytes
}

fn numbers(bytes: &[u8]) -> Option<(Vec<i32>, &[u8])> {
    let mut all = Vec::new();
    let rest = Header::read(bytes)?.lengths(|number| {
        all.push(number);
        Some(())
    })?;
    Some((all, rest))
}

#[test]
fn packed_numbers_are_read_up_to_their_end() {
    for count in [0, 1, 2, 33, 128, 129, 130, 1000] {
        let mut bytes = same(count, 7);
        bytes.extend(b"rest");
        let (all, rest) = numbers(&bytes).unwrap();
        assert!(all == vec![7; count as usize] && rest == b"rest", "{count}");
    }
    // A miniblock of the 5-bit differences 0, 1, 2, ..., each less 3. The block's other miniblocks
    // are absent.
    let mut bytes = header(33, 100);
    put_zigzag(&mut bytes, -3);
    bytes.extend([5, 40, 0, 9]);
    let mut word = 0_u128;
    for place in 0..25_u128 {
        word |= place << (5 * place);
    }
    bytes.extend(word.to_le_bytes());
    // The last 32 of the miniblock's 160 bits, all 0. The test compares only the differences up to
    // number 24.
    bytes.extend([0; 4]);
    bytes.extend(b"rest");
    let (all, rest) = numbers(&bytes).unwrap();
    let mut expected = vec![100];
    for place in 0..25 {
        expected.push(expected[place] + place as i32 - 3);
    }
    assert_eq!((&all[..26], all.len(), rest), (&expected[..], 33, &b"rest"[..]));
}

#[test]
fn numbers_that_are_not_there_are_refused() {
    for bytes in [
        vec![],
        vec![0x80, 0x01],
        vec![0x80, 0x01, 0x00, 5, 5],
        vec![0x81, 0x01, 0x01, 5, 5],
        vec![0x80, 0x01, 0x08, 5, 5],
        // A block of 2^40 values.
        [vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x20], vec![0x04, 5, 5, 0, 0, 0, 0, 0]].concat(),
        header(2, 5),
        [header(2, 5), vec![0, 0, 0, 0]].concat(),
        [header(2, 5), vec![0, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF]].concat(),
        [header(2, 5), vec![0, 33, 0, 0, 0], vec![0; 132]].concat(),
        [vec![0x80, 0x01, 0x04], vec![0xFF; 20]].concat(),
    ] {
        assert!(numbers(&bytes).is_none(), "{bytes:?}");
    }
}

fn data_page(bytes: Vec<u8>, num_values: u32, encoding: Encoding) -> Page {
    Page::DataPage {
        buf: bytes.into(),
        num_values,
        encoding,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    }
}

fn told(page: &Page, definition: i16) -> String {
    check(page, (0, definition), DICTIONARY_VALUE_BYTES)
        .map_or_else(|error| error.to_string(), |()| "fits".to_owned())
}

#[test]
fn pages_that_name_more_values_than_they_have_are_refused() {
    let lengths = Encoding::DELTA_LENGTH_BYTE_ARRAY;
    let shared = Encoding::DELTA_BYTE_ARRAY;
    let levels = || vec![2, 0, 0, 0, 9, 9];
    assert_eq!(told(&data_page(same(5, 0), 5, lengths), 0), "fits");
    assert_eq!(told(&data_page([levels(), same(4, 0)].concat(), 5, lengths), 1), "fits");
    let both = |shares, rest| [same(shares, 0), same(rest, 0)].concat();
    assert_eq!(told(&data_page(both(5, 5), 5, shared), 0), "fits");
    assert_eq!(told(&data_page(both(0, 0), 5, shared), 0), "fits");
    for page in [
        data_page(header(6, 0), 5, lengths),
        data_page(header(u64::MAX, 0), 5, lengths),
        // These page headers declare 2^32 - 1 values, so only `LENGTHS_MAX` limits the lengths.
        data_page(header(1 << 31, 0), u32::MAX, lengths),
        data_page(header(1 << 31, 0), u32::MAX, shared),
        data_page(both(5, 6), 5, shared),
        data_page([same(5, 0), header(1 << 40, 0)].concat(), 5, shared),
    ] {
        let said = told(&page, 0);
        assert!(said.contains("lengths, of"), "{said}");
    }
    let said = told(&data_page([levels(), header(6, 0)].concat(), 5, lengths), 1);
    assert!(said.contains("6 lengths, of 5"), "{said}");
    let said = told(&data_page(levels(), 5, lengths), 1);
    assert!(said.contains("can't be read"), "{said}");
    let said = told(&data_page(vec![9, 0, 0, 0, 1], 5, lengths), 1);
    assert!(said.contains("within its levels"), "{said}");
    let second = |levels: u32, bytes: Vec<u8>| Page::DataPageV2 {
        buf: bytes.into(),
        num_values: 5,
        encoding: shared,
        num_nulls: 0,
        num_rows: 5,
        def_levels_byte_len: levels,
        rep_levels_byte_len: 0,
        is_compressed: false,
        statistics: None,
    };
    assert_eq!(told(&second(2, [vec![9, 9], both(3, 3)].concat()), 1), "fits");
    let said = told(&second(2, [vec![9, 9], header(6, 0)].concat()), 1);
    assert!(said.contains("6 lengths, of 5"), "{said}");
    let said = told(&second(u32::MAX, both(3, 3)), 1);
    assert!(said.contains("within its levels"), "{said}");
}

#[test]
fn values_that_share_more_than_a_page_may_have_are_refused() {
    // Each value shares its first `length` bytes with the first value; 1,000 times 1 MiB is too
    // much for a page.
    let page = |values: u64, length: i32| {
        let mut bytes = same(values, length);
        bytes.extend(same(values, 0));
        bytes.resize(bytes.len() + (1 << 20), b'x');
        data_page(bytes, values as u32, Encoding::DELTA_BYTE_ARRAY)
    };
    assert_eq!(told(&page(400, 1 << 20), 0), "fits");
    let said = told(&page(1000, 1 << 20), 0);
    assert!(said.contains("is to become"), "{said}");
    let said = told(&page(1000, i32::MAX), 0);
    assert!(said.contains("is to become"), "{said}");
    let said = told(&page(5, -1), 0);
    assert!(said.contains("can't be read"), "{said}");
}

#[test]
fn dictionaries_that_name_more_values_than_they_have_are_refused() {
    let page = |num_values| Page::DictionaryPage {
        buf: vec![0; 40].into(),
        num_values,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    };
    assert_eq!(told(&page(10), 0), "fits");
    for values in [11, u32::MAX] {
        assert!(told(&page(values), 0).contains("a dictionary of 40 bytes"), "{values}");
    }
}
