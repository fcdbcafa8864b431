//! The format of record files: a fixture, and files of newer programs.

use std::fs;
use std::path::{Path, PathBuf};

use embank_pipeline::{Error, RecordFile, RecordOptions, verify_records};

use super::seals::seal;
use super::{assert_rows, write};

const FIRST: usize = 1_000_000;
const ROWS: usize = 250;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record_fixtures/format-1").join(name)
}

fn options(zstd_level: Option<i32>) -> RecordOptions {
    let metadata = [("key", "5f1b8c0a"), ("made by", "a \"test\"")];
    RecordOptions {
        rows_per_group: 100,
        zstd_level,
        metadata: metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    }
}

/// Files of format 1 can be read, and this build writes the same bytes. The fixture with zstd is
/// only read: another version of zstd may compress otherwise.
#[test]
fn files_of_format_1_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    for (name, level) in [("plain.records", None), ("zstd.records", Some(9))] {
        let written = dir.path().join(name);
        write(&written, FIRST, ROWS, options(level));
        if std::env::var_os("EMBANK_BLESS").is_some() {
            fs::copy(&written, fixture(name)).unwrap();
        }
        assert!(verify_records(&fixture(name), &mut |_| {}).unwrap().is_clean());
        assert_rows(&fixture(name), FIRST, ROWS);
        let file = RecordFile::open(&fixture(name)).unwrap();
        assert_eq!(*file.metadata(), options(None).metadata);
        let rows: Vec<_> =
            file.groups().iter().map(|group| (group.first_row, group.rows)).collect();
        assert_eq!(rows, [(0, 100), (100, 100), (200, 50)]);
        assert!(file.groups().iter().all(|group| group.is_compressed == level.is_some()));
        assert_eq!(file.fidelities()[0].name, "full");
        if level.is_none() {
            let is_same = fs::read(&written).unwrap() == fs::read(fixture(name)).unwrap();
            assert!(
                is_same,
                "this build writes other bytes than the fixture has: give the format a new version, or \
                 `EMBANK_BLESS=1 cargo test -p embank-pipeline --test records` before the first release"
            );
        }
    }
}

/// The tables of docs/format.md, by hand.
#[test]
fn the_bytes_are_those_of_the_page() {
    let file = fs::read(fixture("plain.records")).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!((&file[..8], u32_at(8)), (&b"EMBKRECS"[..], 1));
    let text = std::str::from_utf8(&file[64..64 + u64_at(16) as usize]).unwrap();
    assert_eq!(
        text,
        r#"{"outputs":[{"name":"floats","columns":["n"],"dtype":"f32","shape":[1]},{"name":"whole","columns":["n","n"],"dtype":"i32","shape":[2]},{"name":"wide","columns":["c","n"],"dtype":"i64","shape":[2]},{"name":"bits","columns":["c","n","c"],"dtype":"bits32","shape":[3]}],"fidelities":["full"],"metadata":{"key":"5f1b8c0a","made by":"a \"test\""}}"#
    );
    let trailer = file.len() - 64;
    assert_eq!((&file[trailer..trailer + 8], u32_at(trailer + 8)), (&b"EMBKRECE"[..], 1));
    assert_eq!((u64_at(trailer + 40), u64_at(trailer + 48)), (3, ROWS as u64));
    let footer = u64_at(trailer + 16) as usize;
    assert_eq!((footer + 8 + 3 * 48, footer % 4096), (trailer, 0));
    assert_eq!(u64_at(trailer + 24), 8 + 3 * 48);
    // Outputs of 4, 8, 16 and 12 bytes a row, each at a multiple of 64.
    let bytes = |rows: u64| {
        let next = |at: u64, row_bytes: u64| at.next_multiple_of(64) + rows * row_bytes;
        [4, 8, 16, 12].into_iter().fold(0, next)
    };
    let mut at = 4096;
    for (group, rows) in [100, 100, 50].into_iter().enumerate() {
        let entry = footer + 8 + group * 48;
        assert_eq!((u64_at(entry), u64_at(entry + 8)), (at, group as u64 * 100));
        assert_eq!((u64::from(u32_at(entry + 16)), u32_at(entry + 20)), (rows, 0));
        assert_eq!((u64_at(entry + 24), u64_at(entry + 32)), (at + bytes(rows), bytes(rows)));
        let stored = &file[at as usize..(at + bytes(rows)) as usize];
        assert_eq!((u32_at(entry + 40), u32_at(entry + 44)), (crc32c::crc32c(stored), 0));
        // Row 0 of the group: the float at 0, the integers behind the floats.
        let n = FIRST as u64 + group as u64 * 100;
        assert_eq!(f32::from_le_bytes(stored[..4].try_into().unwrap()), n as f32);
        let whole = (rows as usize * 4).next_multiple_of(64);
        assert_eq!(stored[whole..whole + 4], (n as u32).to_le_bytes());
        at = (at + bytes(rows)).next_multiple_of(4096);
    }
    assert_eq!(at as usize, footer);
    assert_eq!(u64_at(footer), 2 * bytes(100) + bytes(50));
}

/// Changes the bytes of a file.
type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);

/// A file of a newer program is no damage. The error names what this program does not know.
#[test]
fn files_of_newer_programs_are_no_damage() {
    let intact = fs::read(fixture("plain.records")).unwrap();
    let trailer = intact.len() - 64;
    let entry = |group: usize| trailer - (3 - group) * 48;
    let describe = |from: &'static str, to: &'static str| {
        move |file: &mut Vec<u8>| {
            assert_eq!(from.len(), to.len());
            let at = file.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            file[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    };
    let version = |file: &mut Vec<u8>| file[8] = 2;
    let trailers_version = |file: &mut Vec<u8>| file[trailer + 8] = 2;
    let codec = |file: &mut Vec<u8>| file[entry(1) + 44] = 1;
    let compression = |file: &mut Vec<u8>| file[entry(2) + 46] = 2;
    let dtype = describe("\"f32\"", "\"u16\"");
    let shape = describe("[3]", "[9]");
    let member = describe("\"metadata\"", "\"metadatb\"");
    let fidelities = describe("[\"full\"]", "[\"fu\",1]");
    let edits: [(Edit<'_>, &str, Option<u64>); 8] = [
        (&version, "version 2", None),
        (&trailers_version, "version 2", None),
        (&codec, "codec 1", Some(1)),
        (&compression, "compression 2", Some(2)),
        (&dtype, "u16", None),
        (&shape, "shape [9]", None),
        (&member, "metadatb", None),
        (&fidelities, "invalid type", None),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("newer.records");
    for (edit, told, place) in edits {
        let mut file = intact.clone();
        edit(&mut file);
        // With wrong checksums, the file is damaged.
        fs::write(&path, &file).unwrap();
        assert!(matches!(RecordFile::open(&path), Err(Error::Records(_))), "{told}");
        seal(&mut file);
        fs::write(&path, &file).unwrap();
        for error in
            [RecordFile::open(&path).unwrap_err(), verify_records(&path, &mut |_| {}).unwrap_err()]
        {
            assert!(
                matches!(&error, Error::NewerRecords { path: of, group, .. } if (of, *group) == (&path, place)),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains(told) && text.contains("use a newer Embank"), "{text}");
        }
    }
    // A newer program writes JSON, too.
    let mut file = intact.clone();
    describe("\"outputs\":", "\"outputs\"!")(&mut file);
    seal(&mut file);
    fs::write(&path, &file).unwrap();
    let error = RecordFile::open(&path).unwrap_err();
    assert!(matches!(&error, Error::Records(damage) if damage.offset == 64), "{error}");
}
