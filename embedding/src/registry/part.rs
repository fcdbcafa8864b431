//! A subset of the distinct keys of a Get.

/// The keys of a Get that have rows. Used only if some keys of the Get have no row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KeyPart {
    pub(crate) keys: Vec<u64>,
    /// Indices of `keys` among the distinct keys, ascending.
    pub(crate) places: Vec<u32>,
}

impl KeyPart {
    /// Returns all of `keys` except the keys at the `refused` places.
    pub(crate) fn without(keys: &[u64], refused: &[u32]) -> Self {
        let mut stays = vec![true; keys.len()];
        for &place in refused {
            stays[place as usize] = false;
        }
        let places: Vec<u32> =
            (0..keys.len() as u32).filter(|&place| stays[place as usize]).collect();
        Self { keys: places.iter().map(|&place| keys[place as usize]).collect(), places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_was_not_refused() {
        let part = KeyPart::without(&[10, 11, 12, 13], &[0, 2]);
        assert_eq!((&part.keys[..], &part.places[..]), (&[11, 13][..], &[1, 3][..]));
    }
}
