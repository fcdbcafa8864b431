//! Types of elements in files, and their values as f32 and as keys.

use half::{bf16, f16};

/// How a value lies in a file, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F64,
    F32,
    F16,
    Bf16,
    I8,
    U64,
    I64,
    U32,
    I32,
    U16,
    I16,
    U8,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::U64 | Self::I64 => 8,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::U16 | Self::I16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }

    pub(crate) fn is_key(self) -> bool {
        !self.is_float()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U8 => "u8",
        }
    }

    /// Appends the values in `bytes` as f32, rounded where this type is wider.
    pub(crate) fn append_f32(self, bytes: &[u8], values: &mut Vec<f32>) {
        match self {
            Self::F64 => {
                let (words, _) = bytes.as_chunks();
                values.extend(words.iter().map(|&word| f64::from_le_bytes(word) as f32));
            }
            Self::F32 => {
                let (words, _) = bytes.as_chunks();
                values.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
            }
            Self::F16 => {
                let (words, _) = bytes.as_chunks();
                values.extend(words.iter().map(|&word| f16::from_le_bytes(word).to_f32()));
            }
            Self::Bf16 => {
                let (words, _) = bytes.as_chunks();
                values.extend(words.iter().map(|&word| bf16::from_le_bytes(word).to_f32()));
            }
            Self::I8 => values.extend(bytes.iter().map(|&byte| f32::from(byte as i8))),
            Self::U64 | Self::I64 | Self::U32 | Self::I32 | Self::U16 | Self::I16 | Self::U8 => {
                unreachable!("only floats and i8 are read as values")
            }
        }
    }

    /// Appends the keys in `bytes`. A negative one stands for the same 64 bits, as everywhere in Python.
    pub(crate) fn append_keys(self, bytes: &[u8], keys: &mut Vec<u64>) {
        match self {
            Self::U64 | Self::I64 => {
                let (words, _) = bytes.as_chunks();
                keys.extend(words.iter().map(|&word| u64::from_le_bytes(word)));
            }
            Self::U32 => {
                let (words, _) = bytes.as_chunks();
                keys.extend(words.iter().map(|&word| u64::from(u32::from_le_bytes(word))));
            }
            Self::I32 => {
                let (words, _) = bytes.as_chunks();
                keys.extend(words.iter().map(|&word| i64::from(i32::from_le_bytes(word)) as u64));
            }
            Self::U16 => {
                let (words, _) = bytes.as_chunks();
                keys.extend(words.iter().map(|&word| u64::from(u16::from_le_bytes(word))));
            }
            Self::I16 => {
                let (words, _) = bytes.as_chunks();
                keys.extend(words.iter().map(|&word| i64::from(i16::from_le_bytes(word)) as u64));
            }
            Self::U8 => keys.extend(bytes.iter().map(|&byte| u64::from(byte))),
            Self::I8 => {
                keys.extend(bytes.iter().map(|&byte| i64::from(byte.cast_signed()) as u64));
            }
            Self::F64 | Self::F32 | Self::F16 | Self::Bf16 => {
                unreachable!("only integers are read as keys")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_floats_become_f32() {
        let read = |element: Element, bytes: &[u8]| {
            let mut values = Vec::new();
            element.append_f32(bytes, &mut values);
            values
        };
        assert_eq!(read(Element::F64, &1.5_f64.to_le_bytes()), [1.5]);
        assert_eq!(read(Element::F16, &f16::from_f32(-0.25).to_le_bytes()), [-0.25]);
        assert_eq!(read(Element::Bf16, &bf16::from_f32(3.0).to_le_bytes()), [3.0]);
        assert_eq!(read(Element::I8, &[0xFF, 5]), [-1.0, 5.0]);
    }

    #[test]
    fn negative_keys_keep_their_64_bits() {
        let mut keys = Vec::new();
        Element::I32.append_keys(&(-1_i32).to_le_bytes(), &mut keys);
        Element::I64.append_keys(&(-1_i64).to_le_bytes(), &mut keys);
        Element::U32.append_keys(&u32::MAX.to_le_bytes(), &mut keys);
        assert_eq!(keys, [u64::MAX, u64::MAX, u64::from(u32::MAX)]);
        keys.clear();
        Element::I16.append_keys(&(-1_i16).to_le_bytes(), &mut keys);
        Element::U16.append_keys(&u16::MAX.to_le_bytes(), &mut keys);
        Element::I8.append_keys(&[0xFF], &mut keys);
        Element::U8.append_keys(&[0xFF], &mut keys);
        assert_eq!(keys, [u64::MAX, u64::from(u16::MAX), u64::MAX, 255]);
    }
}
