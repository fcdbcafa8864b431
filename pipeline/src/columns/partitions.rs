//! Values that the folders of a file's path name, as Hive, Spark, DuckDB and pyarrow lay data out:
//! `clicks/day=2026-01-31/site=de/part-0.parquet`.

/// The folder name of a null value.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The values of a path's folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Partitions(Vec<(String, Option<Vec<u8>>)>);

impl Partitions {
    /// Finds the folders `name=value` in a path. In both, `%` and two hexadecimal digits stand for
    /// a byte.
    pub(crate) fn of_path(path: &str) -> Self {
        let folders = path.rsplit('/').skip(1);
        let pair = |folder: &str| {
            let (name, value) = folder.split_once('=')?;
            let name = String::from_utf8(decoded(name)).ok()?;
            Some((name, (value != NULL).then(|| decoded(value))))
        };
        Self(folders.filter_map(pair).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The value of a name; the inner `None` is null. `None` if no folder has the name. If several
    /// folders have it, the innermost counts.
    pub(super) fn value(&self, name: &str) -> Option<Option<&[u8]>> {
        let (_, value) = self.0.iter().find(|(of, _)| of == name)?;
        Some(value.as_deref())
    }
}

/// Replaces `%` and two hexadecimal digits by the byte that they stand for.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    // The loop ends: each round consumes a byte.
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_name_values() {
        let found = Partitions::of_path(
            "/d/day=2026-01-31/site=a%2Fb%3Dc/x=1/x=2/n=__HIVE_DEFAULT_PARTITION__/e=/p=9.parquet",
        );
        assert_eq!(found.value("day"), Some(Some(&b"2026-01-31"[..])));
        assert_eq!(found.value("site"), Some(Some(&b"a/b=c"[..])));
        assert_eq!(found.value("x"), Some(Some(&b"2"[..])));
        assert_eq!((found.value("n"), found.value("e")), (Some(None), Some(Some(&b""[..]))));
        assert_eq!((found.value("p"), found.value("d")), (None, None));
        assert_eq!(Partitions::of_path("100%=5%/a.pq").value("100%"), Some(Some(&b"5%"[..])));
    }
}
