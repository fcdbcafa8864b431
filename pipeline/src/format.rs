//! Formats of inputs, and the format that a file's name implies.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Largest number of bytes of a separator. Common separators have one or two.
const SEPARATOR_BYTES_MAX: usize = 8;

/// How rows are stored in an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Text with one row a line. A line ends with LF or CRLF.
    Text {
        /// The bytes between fields.
        separator: Separator,
        /// Meaning of the first line of each input.
        header: Header,
        /// The quote: the byte before and after a field that contains separators or line ends, as
        /// in RFC 4180. Inside such a field, two quotes stand for one. The quote can't be a
        /// separator or a line end, and it needs a separator of one byte. With `None`, no byte is a
        /// quote, and several threads can read one input at different places.
        quote: Option<u8>,
    },
    /// Fields of 32 bits, little-endian, without gaps. The paper on PIPER calls this format
    /// Config III.
    Packed,
    /// Parquet, Arrow (IPC files or streams) and tar files, told apart by their first bytes. A
    /// field is read from the column that has its name. In a tar file, as WebDataset writes it, the
    /// members that share a name up to the first dot are a row, and the rest of the name is the
    /// field's. Needs the crate's feature `parquet`.
    Columns,
    /// The format that the names of a run's inputs imply by their extensions, in upper or lower
    /// case:
    ///
    /// - `.csv`: [`CSV`](Self::CSV)
    /// - `.tsv`, `.tab`: [`TSV`](Self::TSV)
    /// - `.bin`: [`Packed`](Self::Packed)
    /// - `.parquet`, `.pq`, `.arrow`, `.arrows`, `.feather`, `.ipc`, `.tar`:
    ///   [`Columns`](Self::Columns)
    ///
    /// Other extensions imply no format. If no name implies a format, the format is
    /// [`TSV`](Self::TSV). It is an error if two names imply different formats, or if an extension
    /// is that of a format that no pipeline reads.
    ByName(TextSettings),
}

/// Settings of text that replace a format's own.
///
/// # Examples
/// ```
/// use embank_pipeline::{Format, Header, TextSettings};
///
/// let semicolons = TextSettings { separator: Some(b';'.into()), ..Default::default() };
/// let Format::Text { header, quote, .. } = Format::CSV.with(semicolons)? else { unreachable!() };
/// assert_eq!((header, quote), (Header::Names, Some(b'"')));
/// assert!(Format::Packed.with(semicolons).is_err());
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextSettings {
    /// The bytes between fields. Default: the format's separator.
    pub separator: Option<Separator>,
    /// Meaning of the first line of each input. Default: the format's own.
    pub header: Option<Header>,
    /// The quote; `Some(None)` means that no byte is a quote. Default: the format's quote, or no
    /// quote if the separator has several bytes.
    pub quote: Option<Option<u8>>,
}

/// Meaning of the first line of each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Header {
    /// The line names the columns. A field is read from the column that has its name. Columns may
    /// be in any order, and columns without a field are not read. It is an error if no column, or
    /// more than one, has the name of a field. An input of no bytes has no rows.
    Names,
    /// The line is skipped, and the columns must be in the order of the fields. This is for headers
    /// whose names are not those of the fields.
    Skip,
    /// The line is a row. Columns are in the order of the fields.
    None,
}

/// The bytes between the fields of a text: one to eight, without a line end.
///
/// # Examples
/// ```
/// use embank_pipeline::Separator;
///
/// let movie_lens: Separator = "::".parse()?;
/// assert_eq!(movie_lens.as_bytes(), b"::");
/// assert_eq!(Separator::from(b',').as_bytes(), b",");
/// assert!("a line\n".parse::<Separator>().is_err());
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Separator {
    bytes: [u8; SEPARATOR_BYTES_MAX],
    length: u8,
}

impl Separator {
    const fn one(byte: u8) -> Self {
        let mut bytes = [0; SEPARATOR_BYTES_MAX];
        bytes[0] = byte;
        Self { bytes, length: 1 }
    }

    /// The separator's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Makes a separator of these bytes, which may be no UTF-8.
    pub(crate) fn of_bytes(given: &[u8]) -> Result<Self> {
        let has_line_end = given.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
        if !(1..=SEPARATOR_BYTES_MAX).contains(&given.len()) || has_line_end {
            return Err(Error::Spec(format!(
                "a separator has 1 to {SEPARATOR_BYTES_MAX} bytes and no line end, and this is {:?}",
                String::from_utf8_lossy(given)
            )));
        }
        let mut bytes = [0; SEPARATOR_BYTES_MAX];
        bytes[..given.len()].copy_from_slice(given);
        Ok(Self { bytes, length: given.len() as u8 })
    }

    /// The separator's first byte.
    pub(crate) fn first(self) -> u8 {
        self.bytes[0]
    }

    pub(crate) fn has_several_bytes(self) -> bool {
        self.length > 1
    }
}

impl From<u8> for Separator {
    fn from(byte: u8) -> Self {
        Self::one(byte)
    }
}

impl FromStr for Separator {
    type Err = Error;

    /// # Errors
    /// [`Error::Spec`] if the text has no byte, more than eight bytes, or a line end.
    fn from_str(text: &str) -> Result<Self> {
        Self::of_bytes(text.as_bytes())
    }
}

impl fmt::Debug for Separator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Format {
    /// Text with tabs between fields and without a header, as in the Criteo data sets.
    pub const TSV: Self =
        Self::Text { separator: Separator::one(b'\t'), header: Header::None, quote: None };
    /// Text with commas between fields, double quotes around some fields, and a header with the
    /// names of the columns.
    pub const CSV: Self =
        Self::Text { separator: Separator::one(b','), header: Header::Names, quote: Some(b'"') };

    /// Returns this format with some settings replaced.
    ///
    /// # Errors
    /// [`Error::Spec`] if this format is [`Packed`](Self::Packed) or [`Columns`](Self::Columns) and
    /// `settings` is not empty. Also if the result would have a line end as separator or quote, a
    /// quote that is the separator, or a quote and a separator of several bytes.
    pub fn with(self, settings: TextSettings) -> Result<Self> {
        let Self::Text { separator, header, quote } = self else {
            if let Self::ByName(own) = self {
                let separator = settings.separator.or(own.separator);
                let header = settings.header.or(own.header);
                let quote = settings.quote.or(own.quote);
                return Ok(Self::ByName(TextSettings { separator, header, quote }));
            }
            if settings == TextSettings::default() {
                return Ok(self);
            }
            return Err(Error::Spec(
                "separator, header and quotes are settings of text, and packed rows and columns are none".to_owned(),
            ));
        };
        let separator = settings.separator.unwrap_or(separator);
        let quote = settings.quote.unwrap_or(quote.filter(|_| !separator.has_several_bytes()));
        let format = Self::Text { separator, header: settings.header.unwrap_or(header), quote };
        format.check()?;
        Ok(format)
    }

    /// # Errors
    /// [`Error::Spec`] if the separator or the quote is a line end. Also if the quote is the
    /// separator, or the separator has several bytes beside a quote.
    pub(crate) fn check(self) -> Result<()> {
        let Self::Text { separator, quote, .. } = self else { return Ok(()) };
        let wrong = |why: &str| Err(Error::Spec(why.to_owned()));
        if separator.as_bytes().iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return wrong("the separator of fields can't be a line end");
        }
        let Some(quote) = quote else { return Ok(()) };
        if separator.has_several_bytes() {
            return wrong("quotes need a separator of one character: say that there is no quote");
        }
        if matches!(quote, b'\n' | b'\r') || quote == separator.first() {
            return wrong("the quote can't be a line end or the separator of fields");
        }
        Ok(())
    }

    /// Returns the format of inputs with these names.
    ///
    /// # Errors
    /// [`Error::Inputs`] if the names imply different formats, or a format that no pipeline reads.
    pub(crate) fn of_names<'a>(self, names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let Self::ByName(settings) = self else { return Ok(self) };
        let mut known: Option<(Named, &str)> = None;
        for name in names {
            let Some(named) = Named::of(name)? else { continue };
            match known {
                Some((other, first)) if other != named => {
                    return Err(Error::Inputs(format!(
                        "{first} is {other:?} and {name} is {named:?} by their names: run over them apart, or say the \
                         format that all of them have"
                    )));
                }
                _ => known = Some((named, name)),
            }
        }
        match known {
            None => Self::TSV,
            Some((named, _)) => named.format(),
        }
        .with(settings)
    }
}

/// A format that a file's extension implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Csv,
    Tsv,
    Packed,
    Columns,
}

impl Named {
    fn format(self) -> Format {
        match self {
            Self::Csv => Format::CSV,
            Self::Tsv => Format::TSV,
            Self::Packed => Format::Packed,
            Self::Columns => Format::Columns,
        }
    }

    /// `None` if the name implies no format.
    fn of(name: &str) -> Result<Option<Self>> {
        let refused = |why: String| Err(Error::Inputs(format!("{name}: {why}")));
        let lower = name.to_ascii_lowercase();
        let file = lower.rsplit('/').next().unwrap_or_default();
        let extension = |of: &str| of.rsplit_once('.').map(|(_, extension)| extension.to_owned());
        let compressed = match extension(file).as_deref() {
            Some("gz" | "gzip" | "zst" | "zstd") => true,
            Some(
                other @ ("bz2" | "xz" | "lzma" | "lz4" | "lzo" | "snappy" | "br" | "z" | "zip"
                | "7z" | "tgz"),
            ) => {
                return refused(format!(
                    ".{other} is not decompressed: unpack it, or compress it by gzip or zstd"
                ));
            }
            _ => false,
        };
        let file =
            if compressed { file.rsplit_once('.').map_or("", |(stem, _)| stem) } else { file };
        match extension(file).as_deref() {
            Some("csv") => Ok(Some(Self::Csv)),
            Some("tsv" | "tab") => Ok(Some(Self::Tsv)),
            Some("bin") => Ok(Some(Self::Packed)),
            Some("tar") if compressed => refused(
                "a compressed tar is not read: unpack it, since pictures hardly become smaller"
                    .to_owned(),
            ),
            Some("parquet" | "parq" | "pq" | "arrow" | "arrows" | "feather" | "ipc")
                if compressed =>
            {
                refused(
                    "files of columns are compressed inside, not as a whole: unpack it".to_owned(),
                )
            }
            Some("parquet" | "parq" | "pq" | "arrow" | "arrows" | "feather" | "ipc" | "tar") => {
                Ok(Some(Self::Columns))
            }
            Some(
                other @ ("json" | "jsonl" | "ndjson" | "avro" | "orc" | "xls" | "xlsx" | "xml"
                | "npy" | "npz" | "pkl" | "pickle" | "h5" | "hdf5" | "safetensors"
                | "tfrecord"),
            ) => refused(format!(
                ".{other} is no file format that a pipeline reads: convert it to Parquet, Arrow or CSV, or say its format \
                     if the name is wrong"
            )),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Result<Format> {
        Format::ByName(TextSettings::default()).of_names(names.iter().copied())
    }

    #[test]
    fn names_say_the_format_in_either_case() {
        for name in ["n.csv", "n.CSV", "n.csv.gzip", "N.Csv.ZST", "a.b/x.csv.zstd", "c.csv.gz"] {
            assert_eq!(of(&[name]).unwrap(), Format::CSV, "{name}");
        }
        for name in
            ["n.tsv", "TRAIN.TSV.GZ", "n.tab", "train", "train.txt", "day_0", "csv", "a.csv/x"]
        {
            assert_eq!(of(&[name]).unwrap(), Format::TSV, "{name}");
        }
        for name in
            ["p.snappy.parquet", "X.PARQUET", "x.pq", "x.Feather", "x.arrow", "x.gz.parquet"]
        {
            assert_eq!(of(&[name]).unwrap(), Format::Columns, "{name}");
        }
        assert_eq!(of(&["rows.BIN.zst"]).unwrap(), Format::Packed);
        // A name without a known extension takes the format of the other names.
        assert_eq!(of(&["part-0", "part-1.csv"]).unwrap(), Format::CSV);
    }

    #[test]
    fn names_that_do_not_go_together_are_refused() {
        for (names, told) in [
            (&["a.csv", "b.tsv"][..], "a.csv is Csv and b.tsv is Tsv"),
            (&["x", "a.parquet", "b.CSV"], "a.parquet is Columns and b.CSV is Csv"),
            (&["a.bin", "b.arrow"], "by their names"),
            (&["a.csv.bz2"], "a.csv.bz2: .bz2 is not decompressed"),
            (&["a.csv", "b.XZ"], "b.XZ: .xz is not"),
            (&["a.parquet.gz"], "inside, not as a whole"),
            (&["clicks.jsonl"], "is no file format that a pipeline reads"),
        ] {
            let error = of(names).unwrap_err();
            assert!(
                matches!(error, Error::Inputs(_)) && error.to_string().contains(told),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_change_the_format_of_a_name() {
        let settings = TextSettings {
            separator: Some("::".parse().unwrap()),
            header: Some(Header::None),
            quote: None,
        };
        let format = Format::ByName(settings);
        let Format::Text { separator, header, quote } =
            format.of_names(["r.csv"].into_iter()).unwrap()
        else {
            panic!("it is text");
        };
        assert_eq!((separator.as_bytes(), header, quote), (&b"::"[..], Header::None, None));
        assert!(format.of_names(["r.parquet"].into_iter()).is_err());
        let quoted = TextSettings { quote: Some(Some(b'"')), ..settings };
        assert!(Format::CSV.with(quoted).unwrap_err().to_string().contains("one character"));
        for wrong in ["", "\n", "a\r", "123456789"] {
            assert!(wrong.parse::<Separator>().is_err(), "{wrong:?}");
        }
    }
}
