//! The plans of a pipeline: one for each order of fields in its inputs.
//!
//! **Problem.** A header may name the fields in any order, with other columns between them, and
//! each input may have another header. The decoding kernels read neighbouring fields together, so
//! the plan depends on the order of the fields.
//!
//! **Approach.** A header that names exactly the pipeline's fields, in their order, uses the
//! pipeline's own plan. For any other header, this module makes a plan with the header's fields,
//! and with the columns and outputs of the pipeline. It keeps the plan, and all inputs with this
//! header share it. The plans of a pipeline differ in the fields that they read and in the places
//! of columns within a block. Apart from these places, their vocabularies, look-ups and outputs are
//! equal.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use embank::locks::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::Plan;
use super::planner::plan;
use crate::decode::{FieldKind, row_bytes};
use crate::error::Result;
use crate::format::Format;
use crate::input::RowEnds;
use crate::spec::{Field, Spec};

/// Largest number of bytes of a value, by the name of a vocabulary of text.
pub(crate) type TextLimits = HashMap<String, u32>;

/// The plans of one pipeline.
#[derive(Debug)]
pub(crate) struct Plans {
    spec: Spec,
    format: Format,
    has_bank: bool,
    limits: TextLimits,
    own: Arc<Plan>,
    by_header: Mutex<HashMap<Vec<String>, Arc<Plan>>>,
}

impl Plans {
    /// Checks a pipeline and makes its own plan.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec); the message names the column and says what to change.
    pub(crate) fn new(spec: &Spec, format: Format, has_bank: bool) -> Result<Self> {
        Self::with(spec.clone(), format, has_bank, TextLimits::default())
    }

    fn with(spec: Spec, format: Format, has_bank: bool, limits: TextLimits) -> Result<Self> {
        let own = Arc::new(plan(&spec, format, has_bank, &limits)?);
        Ok(Self { spec, format, has_bank, limits, own, by_header: Mutex::default() })
    }

    /// Makes the plans of the same pipeline for one run, over inputs of `format`. A row is bad if
    /// it has a text that is longer than its vocabulary's entry of `limits`.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if the pipeline can't run on that format.
    pub(crate) fn of_run(&self, format: Format, limits: TextLimits) -> Result<Self> {
        Self::with(self.spec.clone(), format, self.has_bank, limits)
    }

    /// A digest of all that decides which rows of an input are good.
    pub(crate) fn digest(&self) -> u64 {
        let limits: BTreeMap<_, _> = self.limits.iter().collect();
        let all = format!("{:?} {limits:?} {}", self.format, self.spec.to_json());
        xxh3_64(all.as_bytes())
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The plan for rows that have the pipeline's fields in the pipeline's order.
    pub(crate) fn own(&self) -> &Arc<Plan> {
        &self.own
    }

    /// How a reader finds the ends of rows.
    pub(crate) fn row_ends(&self) -> RowEnds {
        match self.format {
            Format::Text { quote: None, .. } | Format::ByName(_) => RowEnds::Lines,
            Format::Text { separator, quote: Some(quote), .. } => {
                RowEnds::Quoted { separator: separator.first(), quote }
            }
            Format::Packed => RowEnds::Rows(row_bytes(self.own.layout.fields())),
            Format::Columns => RowEnds::Columns,
        }
    }

    /// Returns the plan for rows whose fields have these names.
    ///
    /// # Errors
    /// A text that says which name does not fit.
    pub(crate) fn of_header(&self, names: &[String]) -> std::result::Result<Arc<Plan>, String> {
        if names == self.own.field_names {
            return Ok(Arc::clone(&self.own));
        }
        if let Some(known) = self.by_header.lock().get(names) {
            return Ok(Arc::clone(known));
        }
        let mut places: HashMap<&str, usize> = HashMap::new();
        for needed in self.own.needed_fields() {
            let Some(place) = names.iter().position(|name| *name == needed) else {
                return Err(missing(&needed, names));
            };
            if names[place + 1..].contains(&needed) {
                return Err(format!("two columns have the name {needed:?}"));
            }
            let field = self.spec.fields.iter().position(|field| field.name == needed);
            places.insert(&names[place], field.expect("a needed field is one of the pipeline's"));
        }
        let field = |(place, name): (usize, &String)| match places.get(name.as_str()) {
            Some(&field) => self.spec.fields[field].clone(),
            // The name begins with a NUL byte, so that neither the pipeline nor another column has
            // it.
            None => Field::new(format!("\0{place}"), FieldKind::Skip),
        };
        let fields = names.iter().enumerate().map(field).collect();
        let spec = Spec { fields, ..self.spec.clone() };
        let plan = plan(&spec, self.format, self.has_bank, &self.limits)
            .map_err(|error| error.to_string())?;
        let plan = Arc::new(Plan { field_names: names.to_vec(), ..plan });
        self.by_header.lock().insert(names.to_vec(), Arc::clone(&plan));
        Ok(plan)
    }
}

fn missing(needed: &str, names: &[String]) -> String {
    match names.iter().find(|name| alike(name, needed)) {
        Some(alike) => format!("it has no column {needed:?}, but {alike:?}"),
        None => format!("it has no column {needed:?}"),
    }
}

/// True if two names differ at most in the case of letters and in spaces around them.
pub(crate) fn alike(one: &str, other: &str) -> bool {
    one.trim().to_lowercase() == other.trim().to_lowercase()
}
