//! The cases. Each names the mechanisms that a run turns off, or sets the depth of Lookahead.

use std::borrow::Cow;

use anyhow::{Context, Result};
use embank_kv::mechanisms::Mechanism;

use super::models::Kind;

/// A case: the mechanisms that a run turns off, and the depth of Lookahead if it is fixed.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(super) name: Cow<'static, str>,
    pub(crate) off: Cow<'static, [Mechanism]>,
    /// The depth of Lookahead. `None` leaves the depth to an `AutoDepth`.
    pub(super) depth: Option<usize>,
    pub(super) family: Family,
}

/// Cases that are compared with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Training,
    /// Cases that also run for the models that mostly read.
    Reading,
}

const fn case(family: Family, name: &'static str, off: &'static [Mechanism]) -> Case {
    let (name, off) = (Cow::Borrowed(name), Cow::Borrowed(off));
    Case { name, off, depth: None, family }
}

const fn at_depth(name: &'static str, depth: usize) -> Case {
    let (name, off) = (Cow::Borrowed(name), Cow::Borrowed([].as_slice()));
    Case { name, off, depth: Some(depth), family: Family::Training }
}

/// The cases. The first two have all mechanisms.
pub(super) const CASES: [Case; 11] = [
    case(Family::Reading, "all", &[]),
    case(Family::Reading, "all again", &[]),
    case(Family::Training, "no window", &[Mechanism::Window]),
    case(Family::Reading, "no retention", &[Mechanism::Retention]),
    case(Family::Reading, "cache of a 32nd", &[Mechanism::CacheSizing]),
    case(Family::Reading, "cache CLOCK", &[Mechanism::SmallQueue]),
    case(Family::Reading, "cache FIFO", &[Mechanism::SmallQueue, Mechanism::CacheRounds]),
    case(Family::Reading, "no priorities", &[Mechanism::Priorities]),
    at_depth("depth 2", 2),
    at_depth("depth 8", 8),
    at_depth("no lookahead", 0),
];

/// The mechanisms that can be turned off.
const MECHANISMS: [Mechanism; 6] = [
    Mechanism::Window,
    Mechanism::Retention,
    Mechanism::CacheSizing,
    Mechanism::SmallQueue,
    Mechanism::CacheRounds,
    Mechanism::Priorities,
];

impl Case {
    /// Makes the case that turns off each mechanism of `names`. The names are those of the code,
    /// joined by `+`.
    ///
    /// # Errors
    /// Fails if a name is not in [`MECHANISMS`].
    pub(crate) fn without(names: &str) -> Result<Self> {
        let named = |name: &str| {
            let found = MECHANISMS.into_iter().find(|known| format!("{known:?}") == name);
            found.with_context(|| format!("{name} is not one of {MECHANISMS:?}"))
        };
        let off: Vec<Mechanism> = names.split('+').map(named).collect::<Result<_>>()?;
        let name = Cow::Owned(format!("without {names}"));
        Ok(Self { name, off: Cow::Owned(off), depth: None, family: Family::Reading })
    }

    /// True if `all` has all mechanisms and this case is compared with it.
    pub(super) fn is_beside(&self, all: &Case) -> bool {
        all.off.is_empty() && all.depth.is_none()
    }

    pub(super) fn is_control(&self) -> bool {
        self.is_beside(self)
    }

    pub(super) fn is_for(&self, kind: Kind) -> bool {
        !matches!(kind, Kind::Serving | Kind::Reading) || self.family == Family::Reading
    }
}
