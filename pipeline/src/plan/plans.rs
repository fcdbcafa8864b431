//! A pipeline's plans: one for each order in which its inputs have the fields.
//!
//! **Problem.** A header may name the fields in any order, with others between them, and each input
//! may have another header. The kernels that decode take neighbouring fields together, so the order
//! is a part of the plan.
//!
//! **Approach.** A header that has the pipeline's own fields in their order gets the pipeline's own
//! plan. For any other a plan is made of the same columns and outputs over the fields of the
//! header, and kept: inputs with one header share it. Plans differ in their slots alone, so
//! vocabularies, look-ups and outputs are the same in each.

use std::collections::HashMap;
use std::sync::Arc;

use embank::locks::Mutex;

use super::Plan;
use super::planner::plan;
use crate::decode::{FieldKind, row_bytes};
use crate::error::Result;
use crate::format::Format;
use crate::input::RowEnds;
use crate::spec::{Field, Spec};

/// The plans of one pipeline.
#[derive(Debug)]
pub(crate) struct Plans {
    spec: Spec,
    format: Format,
    has_bank: bool,
    own: Arc<Plan>,
    by_header: Mutex<HashMap<Vec<String>, Arc<Plan>>>,
}

impl Plans {
    /// Checks a pipeline and lays it out.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec), which names the column and the cure.
    pub(crate) fn new(spec: &Spec, format: Format, has_bank: bool) -> Result<Self> {
        let own = Arc::new(plan(spec, format, has_bank)?);
        Ok(Self { spec: spec.clone(), format, has_bank, own, by_header: Mutex::default() })
    }

    /// The plans of the pipeline for inputs of another format.
    ///
    /// # Errors
    /// As [`Plans::new`].
    pub(crate) fn of_format(&self, format: Format) -> Result<Self> {
        Self::new(&self.spec, format, self.has_bank)
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The plan of rows that have the pipeline's fields in the pipeline's order.
    pub(crate) fn own(&self) -> &Arc<Plan> {
        &self.own
    }

    /// How rows end.
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

    /// The plan of rows whose fields have these names.
    ///
    /// # Errors
    /// What of the names does not fit.
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
            // No name of the pipeline, and no other column's.
            None => Field::new(format!("\0{place}"), FieldKind::Skip),
        };
        let fields = names.iter().enumerate().map(field).collect();
        let spec = Spec { fields, ..self.spec.clone() };
        let plan = plan(&spec, self.format, self.has_bank).map_err(|error| error.to_string())?;
        let plan = Arc::new(Plan { field_names: names.to_vec(), ..plan });
        self.by_header.lock().insert(names.to_vec(), Arc::clone(&plan));
        Ok(plan)
    }
}

fn missing(needed: &str, names: &[String]) -> String {
    let alike = |name: &&String| name.trim().eq_ignore_ascii_case(needed.trim());
    match names.iter().find(alike) {
        Some(alike) => format!("it has no column {needed:?}, but {alike:?}"),
        None => format!("it has no column {needed:?}"),
    }
}
