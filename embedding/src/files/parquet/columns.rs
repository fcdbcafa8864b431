//! Finds which columns of a Parquet file hold the keys, the vectors, the optimizer's state, and
//! each row's last use and number of uses. The module `selection` has the rules for this choice.

use std::collections::HashSet;
use std::path::Path;

use arrow_schema::{DataType, Schema};

use crate::error::Result;
use crate::files::batch::{LAST_USED, USES, Wanted};
use crate::files::selection::{KEY_CURE, KEYS, ROWS, SCALES, STATE, Selection};
use crate::files::selection::{one_of, refuse_by_position, refuse_state};
use crate::files::unreadable;

/// Positions of a table's columns in a file's schema.
pub(super) struct Columns {
    pub(super) vector: usize,
    pub(super) key: Option<usize>,
    pub(super) state: Option<usize>,
    /// The columns of the last use and of the number of uses.
    pub(super) uses: Option<[usize; 2]>,
}

/// The schema of a file that is being opened.
pub(super) struct Found<'a> {
    pub(super) path: &'a Path,
    pub(super) schema: &'a Schema,
}

impl Found<'_> {
    pub(super) fn columns(&self, selection: Selection<'_>) -> Result<Columns> {
        self.refuse_twins()?;
        let vector = self.vector(selection.rows)?;
        if selection.rows.is_none() && self.find(SCALES).is_some() {
            return Err(unreadable(
                self.path,
                format!(
                    "it has a column {SCALES:?}, and vectors in Parquet have no scales; multiply the vectors and leave it out, \
                     or name {:?} with `rows` to take them as they are",
                    self.schema.field(vector).name()
                ),
            ));
        }
        let key = self.key(selection, vector)?;
        let wanted = self.wanted_for(vector, selection.wanted)?;
        let state = self.find(STATE).filter(|_| wanted.state);
        let uses = if wanted.uses { self.uses()? } else { None };
        Ok(Columns { vector, key, state, uses })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.schema.index_of(name).ok()
    }

    fn named(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| {
            let what = format!("it has no column {name:?}; it has {}", self.listed());
            unreadable(self.path, what)
        })
    }

    fn listed(&self) -> String {
        let fields = self.schema.fields().iter();
        let listed = fields.map(|field| format!("{:?} ({})", field.name(), field.data_type()));
        listed.collect::<Vec<_>>().join(", ")
    }

    /// Fails if two columns have the same name: the file does not show which one is meant.
    fn refuse_twins(&self) -> Result<()> {
        let mut seen = HashSet::new();
        match self.schema.fields().iter().find(|field| !seen.insert(field.name())) {
            None => Ok(()),
            Some(twin) => {
                let what =
                    format!("it has two columns {:?}; give one of them another name", twin.name());
                Err(unreadable(self.path, what))
            }
        }
    }

    /// Returns the parts to read in addition to the vectors. State and uses in a file belong to
    /// vectors of the usual names. If the caller names another column as vectors, the import does
    /// not read state and uses.
    fn wanted_for(&self, vector: usize, wanted: Wanted) -> Result<Wanted> {
        let name = self.schema.field(vector).name();
        if ROWS.contains(&name.as_str()) {
            return Ok(wanted);
        }
        let has_own = ROWS.iter().any(|name| self.find(name).is_some());
        if wanted.state && !has_own && self.find(STATE).is_some() {
            return refuse_state(self.path, name);
        }
        Ok(Wanted::NOTHING)
    }

    /// Finds the column of vectors. If the caller gives no name, this is `vector` or `rows`, or the
    /// only column of lists.
    fn vector(&self, name: Option<&str>) -> Result<usize> {
        if let Some(name) = name {
            return self.named(name);
        }
        if let Some(name) = one_of(self.path, "rows", &ROWS, |name| self.find(name).is_some())? {
            return self.named(name);
        }
        let is_list = |i: &usize| {
            let field = self.schema.field(*i);
            is_list(field.data_type()) && field.name() != STATE
        };
        let lists: Vec<usize> = (0..self.schema.fields().len()).filter(is_list).collect();
        let [one] = lists[..] else {
            return Err(unreadable(
                self.path,
                format!(
                    "it has no column \"vector\", and which of its columns is meant does not show; name one of {}",
                    self.listed()
                ),
            ));
        };
        Ok(one)
    }

    /// Finds the column of keys. If the caller gives no name, this is `key` or `keys`. `None` if
    /// the keys are given by position.
    fn key(&self, selection: Selection<'_>, vector: usize) -> Result<Option<usize>> {
        let named = match selection.keys {
            Some(name) => Some(self.named(name)?),
            None if selection.first_key.is_some() => return Ok(None),
            None => {
                let name = one_of(self.path, "keys", &KEYS, |name| self.find(name).is_some())?;
                name.map(|name| self.named(name)).transpose()?
            }
        };
        let described = |i: usize| {
            let field = self.schema.field(i);
            format!("column {:?} ({})", field.name(), field.data_type())
        };
        if let Some(key) = named {
            let kind = self.schema.field(key).data_type();
            if kind.is_integer() {
                return Ok(Some(key));
            }
            let what =
                format!("{} can't be the keys{}; keys are {KEY_CURE}", described(key), why(kind));
            return Err(unreadable(self.path, what));
        }
        let may_be = |i: &usize| {
            let field = self.schema.field(*i);
            *i != vector && field.name() != STATE && !field.data_type().is_nested()
        };
        match (0..self.schema.fields().len()).find(may_be) {
            None => Ok(None),
            Some(maybe) => refuse_by_position(self.path, &format!("a {}", described(maybe))),
        }
    }

    /// Finds the columns of the last use and of the number of uses. Fails if only one of them
    /// exists, or if one is not UInt32.
    fn uses(&self) -> Result<Option<[usize; 2]>> {
        let names = [LAST_USED, USES];
        if names.iter().all(|name| self.find(name).is_none()) {
            return Ok(None);
        }
        for name in names {
            let kind = self.schema.field(self.named(name)?).data_type();
            if *kind != DataType::UInt32 {
                let what = "times of last use and numbers of uses are UInt32";
                return Err(unreadable(self.path, format!("column {name:?} is {kind}; {what}")));
            }
        }
        Ok(Some([self.named(LAST_USED)?, self.named(USES)?]))
    }
}

/// Returns a likely reason why a column of keys does not contain integers; empty if unknown.
fn why(kind: &DataType) -> &'static str {
    match kind {
        _ if kind.is_floating() => {
            " (pandas makes floats of integers beside a missing value: fill it, or leave its row out)"
        }
        DataType::Dictionary(..) => " (a dictionary, as of pandas' categories)",
        _ => "",
    }
}

fn is_list(kind: &DataType) -> bool {
    matches!(kind, DataType::FixedSizeList(..) | DataType::List(_) | DataType::LargeList(_))
}
