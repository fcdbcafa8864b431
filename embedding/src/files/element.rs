//! The types of numbers in files, and their conversion to f32 and to keys.

use half::{bf16, f16};

/// The type of a number in a file. All types are little-endian.
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

/// The size of an element and its names in each format.
struct Form {
    bytes: usize,
    /// The type's name in error messages.
    name: &'static str,
    /// The type's name in an npy header. `None` if NumPy lacks the type.
    npy: Option<&'static str>,
    safetensors: safetensors::Dtype,
}

impl Element {
    const ALL: [Self; 12] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I8,
        Self::U64,
        Self::I64,
        Self::U32,
        Self::I32,
        Self::U16,
        Self::I16,
        Self::U8,
    ];

    fn form(self) -> Form {
        use safetensors::Dtype;
        let form = |bytes, name, npy, safetensors| Form { bytes, name, npy, safetensors };
        match self {
            Self::F64 => form(8, "f64", Some("<f8"), Dtype::F64),
            Self::F32 => form(4, "f32", Some("<f4"), Dtype::F32),
            Self::F16 => form(2, "f16", Some("<f2"), Dtype::F16),
            Self::Bf16 => form(2, "bf16", None, Dtype::BF16),
            Self::I8 => form(1, "i8", Some("|i1"), Dtype::I8),
            Self::U64 => form(8, "u64", Some("<u8"), Dtype::U64),
            Self::I64 => form(8, "i64", Some("<i8"), Dtype::I64),
            Self::U32 => form(4, "u32", Some("<u4"), Dtype::U32),
            Self::I32 => form(4, "i32", Some("<i4"), Dtype::I32),
            Self::U16 => form(2, "u16", Some("<u2"), Dtype::U16),
            Self::I16 => form(2, "i16", Some("<i2"), Dtype::I16),
            Self::U8 => form(1, "u8", Some("|u1"), Dtype::U8),
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.form().bytes
    }

    pub(crate) fn name(self) -> &'static str {
        self.form().name
    }

    /// The type's name in an npy header. `None` if NumPy lacks the type.
    pub(crate) fn npy(self) -> Option<&'static str> {
        self.form().npy
    }

    /// Returns the element with the type name `kind` in an npy header.
    pub(crate) fn of_npy(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.npy() == Some(kind))
    }

    pub(crate) fn safetensors(self) -> safetensors::Dtype {
        self.form().safetensors
    }

    /// Returns the element for a safetensors type. `None` if an import can't read the type.
    pub(crate) fn of_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.safetensors() == dtype)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }

    pub(crate) fn is_key(self) -> bool {
        !self.is_float()
    }

    /// Appends the values in `bytes` as f32. f64 values are rounded.
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

    /// Appends the keys in `bytes`. A negative number is sign-extended to 64 bits, and its bits are
    /// the key.
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
    fn files_name_every_element_differently() {
        for element in Element::ALL {
            assert_eq!(Element::of_safetensors(element.safetensors()), Some(element));
            if let Some(kind) = element.npy() {
                assert_eq!(Element::of_npy(kind), Some(element));
            }
        }
        assert_eq!(Element::of_npy("<c8"), None);
        assert_eq!(Element::of_safetensors(safetensors::Dtype::BOOL), None);
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
