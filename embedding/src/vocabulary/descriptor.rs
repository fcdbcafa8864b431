//! The encodings of a vocabulary's descriptors and of its header row (docs/format.md).

use embank_kv::metadata;

use super::config::{ValueKind, VocabularyConfig};

/// The table kind of a vocabulary's tables. `crate::row::descriptor` has the other kinds.
const VOCABULARY: u16 = 3;
const IDS: u16 = 4;
const VALUES: u16 = 5;
const COUNTS: u16 = 6;
const VERSION: u16 = 1;

mod tag {
    pub(super) const KIND: u16 = 1;
    pub(super) const IDENTITY: u16 = 2;
    pub(super) const SEED: u16 = 3;
    pub(super) const FIRST_ID: u16 = 4;
    pub(super) const UNKNOWN_ID: u16 = 5;
    pub(super) const COUNTS: u16 = 6;
    pub(super) const VALUE_BYTES_MAX: u16 = 7;
    pub(super) const MAY_BE_SKIPPED: u16 = 1 << 15;
}

type Parsed<T> = std::result::Result<T, String>;

/// The role that a table of the bank has for a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// The vocabulary's own table, which has the header as its only row.
    Header(Box<Founding>),
    /// A table that holds a part of a vocabulary's numbering: its ids, values or counts.
    Part { part: Part, identity: u64, numbering: u64 },
}

/// The facts about a vocabulary that never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Founding {
    pub(crate) config: VocabularyConfig,
    pub(crate) identity: u64,
    /// Seed of the hash of byte strings.
    pub(crate) seed: u64,
}

/// The parts of a numbering. Each part is a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Maps a value to its place.
    Ids,
    /// Maps a place to its value.
    Values,
    /// Maps a place to its count.
    Counts,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ids => "ids",
            Self::Values => "values",
            Self::Counts => "counts",
        }
    }

    fn kind(self) -> u16 {
        match self {
            Self::Ids => IDS,
            Self::Values => VALUES,
            Self::Counts => COUNTS,
        }
    }

    pub(crate) fn descriptor(self, identity: u64, numbering: u64) -> Vec<u8> {
        let whose = [identity.to_le_bytes(), numbering.to_le_bytes()].concat();
        metadata::encode(&(self.kind(), VERSION, whose))
    }
}

impl Founding {
    pub(crate) fn descriptor(&self) -> Vec<u8> {
        let config = &self.config;
        let kind = match config.kind {
            ValueKind::U64 => 1,
            ValueKind::Bytes => 2,
        };
        let mut settings: Vec<(u16, Vec<u8>)> = vec![
            (tag::KIND, vec![kind]),
            (tag::IDENTITY, self.identity.to_le_bytes().to_vec()),
            (tag::SEED, self.seed.to_le_bytes().to_vec()),
            (tag::FIRST_ID, config.first_id.to_le_bytes().to_vec()),
            (tag::COUNTS, vec![u8::from(config.counts)]),
            (tag::VALUE_BYTES_MAX, config.value_bytes_max.to_le_bytes().to_vec()),
        ];
        if let Some(id) = config.unknown_id {
            settings.push((tag::UNKNOWN_ID, id.to_le_bytes().to_vec()));
        }
        metadata::encode(&(VOCABULARY, VERSION, metadata::encode(&settings)))
    }

    fn parse(bytes: &[u8]) -> Parsed<Self> {
        let settings: Vec<(u16, Vec<u8>)> =
            metadata::decode(bytes).map_err(|error| error.to_string())?;
        let mut needed = vec![
            tag::KIND,
            tag::IDENTITY,
            tag::SEED,
            tag::FIRST_ID,
            tag::COUNTS,
            tag::VALUE_BYTES_MAX,
        ];
        let mut config = VocabularyConfig::u64();
        let mut identity = 0;
        let mut seed = 0;
        for (tag, bytes) in &settings {
            match *tag {
                tag::KIND => {
                    config.kind = match number(bytes, 1)? {
                        1 => ValueKind::U64,
                        2 => ValueKind::Bytes,
                        other => {
                            return Err(format!(
                                "its values are number {other}; use a newer Embank"
                            ));
                        }
                    }
                }
                tag::IDENTITY => identity = number(bytes, 8)?,
                tag::SEED => seed = number(bytes, 8)?,
                tag::FIRST_ID => config.first_id = number(bytes, 8)?,
                tag::UNKNOWN_ID => config.unknown_id = Some(number(bytes, 8)?),
                tag::COUNTS => config.counts = number(bytes, 1)? != 0,
                tag::VALUE_BYTES_MAX => config.value_bytes_max = number(bytes, 4)? as u32,
                unknown if unknown & tag::MAY_BE_SKIPPED != 0 => {}
                unknown => {
                    return Err(format!(
                        "it has setting number {unknown}, which this program does not know and must; use a \
                         newer Embank"
                    ));
                }
            }
            needed.retain(|needed| needed != tag);
        }
        match needed.first() {
            None => Ok(Self { config, identity, seed }),
            Some(missing) => Err(format!("its setting number {missing} is missing")),
        }
    }
}

fn number(bytes: &[u8], length: usize) -> Parsed<u64> {
    if bytes.len() != length {
        return Err(format!("one of its settings has {} bytes, not {length}", bytes.len()));
    }
    let mut number = [0; 8];
    number[..length].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(number))
}

/// Returns the role of the table with this descriptor. `None` if the table belongs to no
/// vocabulary.
pub(crate) fn role_of(descriptor: &[u8]) -> Option<Parsed<Role>> {
    let (kind, version, settings): (u16, u16, Vec<u8>) = metadata::decode(descriptor).ok()?;
    let part = match kind {
        VOCABULARY => None,
        IDS => Some(Part::Ids),
        VALUES => Some(Part::Values),
        COUNTS => Some(Part::Counts),
        _ => return None,
    };
    if version != VERSION {
        return Some(Err(format!(
            "its descriptor has kind {kind} version {version}, this program reads version {VERSION}; use a newer \
             Embank"
        )));
    }
    let Some(part) = part else {
        return Some(Founding::parse(&settings).map(|founding| Role::Header(Box::new(founding))));
    };
    let (Ok(identity), Ok(numbering)) =
        (number(settings.get(..8).unwrap_or(&[]), 8), number(settings.get(8..).unwrap_or(&[]), 8))
    else {
        return Some(Err("its descriptor does not say whose it is".to_owned()));
    };
    Some(Ok(Role::Part { part, identity, numbering }))
}

/// True if the table with this descriptor belongs to a vocabulary. Also true for a descriptor of a
/// version that this program cannot read.
pub(crate) fn is_of_a_vocabulary(descriptor: &[u8]) -> bool {
    role_of(descriptor).is_some()
}

/// Bytes of the header row.
pub(crate) const HEADER_BYTES: usize = 64;

/// The header row of a vocabulary. It says which numbering's tables are valid, and how many values
/// they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of values.
    pub(crate) len: u64,
    pub(crate) fingerprint: u64,
    /// The number of the numbering whose tables hold the values.
    pub(crate) numbering: u64,
    pub(crate) frozen: bool,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let words = [self.len, self.fingerprint, self.numbering, u64::from(self.frozen)];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Parsed<Self> {
        let word = |i: usize| number(&bytes[i * 8..][..8], 8);
        let frozen = match word(3)? {
            0 => false,
            1 => true,
            other => {
                return Err(format!("its header has the flags {other:#x}; use a newer Embank"));
            }
        };
        Ok(Self { len: word(0)?, fingerprint: word(1)?, numbering: word(2)?, frozen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_headers_come_back() {
        for config in [
            VocabularyConfig::u64(),
            VocabularyConfig::bytes().first_id(9).unknown_id(3).counts(true),
            VocabularyConfig::bytes().value_bytes_max(77),
        ] {
            let founding = Founding { config, identity: 5, seed: u64::MAX };
            let role = role_of(&founding.descriptor()).unwrap().unwrap();
            assert_eq!(role, Role::Header(Box::new(founding)));
        }
        for part in [Part::Ids, Part::Values, Part::Counts] {
            let role = role_of(&part.descriptor(3, 4)).unwrap().unwrap();
            assert_eq!(role, Role::Part { part, identity: 3, numbering: 4 });
        }
        let header = Header { len: 1, fingerprint: 2, numbering: 3, frozen: true };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
        let mut bytes = header.to_bytes();
        bytes[24] = 2;
        assert!(Header::from_bytes(&bytes).is_err());
    }

    #[test]
    fn what_is_not_known_is_refused_or_passed_over() {
        assert_eq!(role_of(&metadata::encode(&(1_u16, 2_u16, Vec::<u8>::new()))), None);
        assert_eq!(role_of(b"nothing"), None);
        let role = |kind: u16, version: u16, settings: &[(u16, Vec<u8>)]| {
            role_of(&metadata::encode(&(kind, version, metadata::encode(&settings.to_vec()))))
                .unwrap()
        };
        assert!(role(VOCABULARY, 2, &[]).is_err());
        assert!(role(IDS, 1, &[]).is_err());
        let founding = Founding { config: VocabularyConfig::u64(), identity: 1, seed: 2 };
        let (_, _, settings): (u16, u16, Vec<u8>) =
            metadata::decode(&founding.descriptor()).unwrap();
        let settings: Vec<(u16, Vec<u8>)> = metadata::decode(&settings).unwrap();
        let with = |tag, bytes: &[u8]| {
            let mut settings = settings.clone();
            settings.retain(|of| of.0 != tag);
            settings.push((tag, bytes.to_vec()));
            role(VOCABULARY, 1, &settings)
        };
        assert!(with(0x8009, b"x").is_ok());
        assert!(with(9, b"x").unwrap_err().contains("setting number 9"));
        assert!(with(tag::KIND, &[3]).unwrap_err().contains("number 3"));
        assert!(with(tag::SEED, &[3]).is_err());
        assert!(role(VOCABULARY, 1, &settings[1..]).unwrap_err().contains("missing"));
    }
}
