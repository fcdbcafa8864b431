//! Tests tar archives of pictures.

use super::*;

/// A tar archive of members with these names.
pub(super) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

pub(super) fn run_tar(bytes: &[u8]) -> Result<(RunReport, Made)> {
    let mut pipeline = Pipeline::new(&spec(Image::new(1, 1), BadRows::Skip), &columns()).unwrap();
    run(&mut pipeline, &Input::memory("shard", bytes))
}

#[test]
fn members_of_an_archive_that_share_a_name_are_a_row() {
    let one = png(&[1, 2, 3], 1, 1);
    let two = png(&[4, 5, 6], 1, 1);
    let long = format!("{}/0003.jpg", "long".repeat(40));
    let long_class = format!("{}/0003.cls", "long".repeat(40));
    let members: &[(&str, &[u8])] = &[
        ("train/0001.cls", b"7\n"),
        ("train/0001.JPG", &one),
        ("train/0001.json", b"{}"),
        ("train/0002.jpg", &two),
        ("train/0002.cls", b"8"),
        ("README", b"no row"),
        ("train/.hidden.jpg", b"no row"),
        (&long, &one),
        (&long_class, b"9\r\n"),
        ("train/0004.seg.jpg", &one),
        ("train/0005.cls", b"5"),
        ("train/0006.jpg", b"bad"),
        ("train/0006.cls", b"6"),
        ("train/0007.jpg", &two),
        ("train/0007.cls", b"seven"),
    ];
    let bytes = archive(members);
    let (report, made) = run_tar(&bytes).unwrap();
    assert_eq!(made, (vec![7, 8, 9], vec![1, 2, 3, 4, 5, 6, 1, 2, 3]));
    let told: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    for (told, parts) in told.iter().zip([
        ["shard:4", "\"train/0005\"", "\"jpg\""],
        ["shard:5", "\"train/0006\"", "is neither a JPEG nor a PNG"],
        ["shard:6", "\"train/0007\"", "\"seven\""],
    ]) {
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
    // A file, found by its name, with names of POSIX, and cut at each block.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shard.tar");
    let options = RunOptions { format: Format::ByName(Default::default()), ..columns() };
    let mut pipeline = Pipeline::new(&spec(Image::new(1, 1), BadRows::Skip), &options).unwrap();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(run(&mut pipeline, &Input::file(&path)).unwrap().1, made);
    for end in (0..bytes.len() - 1024).step_by(512).skip(1) {
        for end in [end, end + 100] {
            let error = run_tar(&bytes[..end]).unwrap_err().to_string();
            assert!(error.contains("shard"), "{end}: {error}");
        }
    }
    let whole_twice = [&bytes[..], &bytes].concat();
    assert!(run_tar(&whole_twice).unwrap_err().to_string().contains("more bytes after its end"));
    let padded = [&bytes[..], &[0; 10_240]].concat();
    assert_eq!(run_tar(&padded).unwrap().1, made);
    // Names that are no UTF-8: two rows, whose shown names are equal.
    let mut latin = archive(&[("e.jpg", &one), ("e.cls", b"1"), ("e.jpg", &two), ("e.cls", b"2")]);
    for (member, letter) in [(0, 0xE8), (2, 0xE8), (4, 0xE9), (6, 0xE9)] {
        let header = &mut latin[member * 512..][..512];
        header[0] = letter;
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    assert_eq!(run_tar(&latin).unwrap().1, (vec![1, 2], vec![1, 2, 3, 4, 5, 6]));
}

/// A folder `name=value` gives the rows of its files a value, as with Parquet.
#[test]
fn an_archive_in_a_folder_of_a_partition() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cls=7");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.tar"), archive(&[("a.jpg", &png(&[1, 2, 3], 1, 1))])).unwrap();
    let mut pipeline = Pipeline::new(&spec(Image::new(1, 1), BadRows::Fail), &columns()).unwrap();
    let (_, made) = run(&mut pipeline, &Input::file(folder.join("a.tar"))).unwrap();
    assert_eq!(made, (vec![7], vec![1, 2, 3]));
}

#[test]
fn archives_that_would_lose_rows_are_refused() {
    let one = png(&[1, 2, 3], 1, 1);
    let twice = archive(&[("a.jpg", &one), ("a.cls", b"1"), ("a.jpg", &one)]);
    let none = archive(&[("a.png", &one), ("a.cls", b"1")]);
    let mut link = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "a.jpg", "b.jpg").unwrap();
    let link = link.into_inner().unwrap();
    let mut sparse = tar::Builder::new(Vec::new());
    sparse.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(one.len() as u64);
    sparse.append_data(&mut header, "a.jpg", &*one).unwrap();
    let sparse = sparse.into_inner().unwrap();
    for (bytes, expected) in [
        (&twice, "two members \"a.jpg\""),
        (&none, "no member whose name ends in \".jpg\""),
        (&vec![0; 10_240], "shard"),
        (&archive(&[("a.txt", b"x")]), "no member"),
        (&link, "\"a.jpg\" is a link"),
        (&sparse, "\"a.jpg\" is sparse"),
    ] {
        let error = run_tar(bytes).unwrap_err();
        assert!(matches!(error, Error::Columns { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    // POSIX names, which PAX headers hold, are read.
    let mut posix = tar::Builder::new(Vec::new());
    for (name, bytes) in [("w.jpg", &one[..]), ("w.cls", b"3")] {
        let path = format!("{}/{name}", "ü".repeat(200));
        posix.append_pax_extensions([("path", path.as_bytes())]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        posix.append_data(&mut header, "short", bytes).unwrap();
    }
    let posix = posix.into_inner().unwrap();
    assert_eq!(run_tar(&posix).unwrap().1, (vec![3], vec![1, 2, 3]));
    let compressed = Input::memory("shard.tar.gz", b"");
    let options = RunOptions { format: Format::ByName(Default::default()), ..columns() };
    let mut pipeline = Pipeline::new(&spec(Image::new(1, 1), BadRows::Skip), &options).unwrap();
    assert!(run(&mut pipeline, &compressed).unwrap_err().to_string().contains("compressed tar"));
}
