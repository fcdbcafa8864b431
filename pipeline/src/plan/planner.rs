//! Turns a spec into a plan.

use std::collections::HashMap;

use super::check::check;
use super::fields::Fields;
use super::outputs::outputs;
use super::plans::TextLimits;
use super::{Plan, VocabularyPlan};
use crate::decode::Slot;
use crate::error::{Result, refused};
use crate::format::Format;
use crate::operators::{Flow, Kind, NamedVocabulary, Operator, Place, Program, cross};
use crate::spec::{Column, Source, Spec};

/// Checks a pipeline and lays it out. `has_bank` is true if the pipeline has a bank. Without a
/// bank, a vocabulary can't number values of unknown range. A text that is longer than its
/// vocabulary's entry of `limits` makes its row bad.
///
/// # Errors
/// [`Error::Spec`](crate::Error::Spec); the message names the column and says what to change.
pub(super) fn plan(
    spec: &Spec,
    format: Format,
    has_bank: bool,
    limits: &TextLimits,
) -> Result<Plan> {
    format.check()?;
    if format == Format::Columns && cfg!(not(feature = "parquet")) {
        return refused("this program was built without Parquet and Arrow; convert to text");
    }
    check(spec, format)?;
    let mut fields = Fields::new(spec, format, limits)?;
    let mut program = Program::new(fields.layout.columns(), has_bank);
    let mut flows: HashMap<&str, Flow> = HashMap::new();
    for column in &spec.columns {
        let from = match &column.from {
            Source::Field(name) => fields.flow(column, name, &mut program)?,
            Source::Cross { first, second, seed } => {
                let first = crossed_slot(column, first, &flows)?;
                let second = crossed_slot(column, second, &flows)?;
                cross(&mut program, first, second, *seed)
            }
        };
        flows.insert(&column.name, through_operators(column, from, &mut program)?);
    }
    check_vocabularies(spec, &program.vocabularies)?;
    let outputs = outputs(spec, &flows, &mut program)?;
    let Program { kernels, vocabularies, look_ups, arrays, columns, .. } = program;
    let with_settings = |NamedVocabulary { name, space }| VocabularyPlan {
        settings: spec.vocabularies.iter().find(|settings| settings.name == name).cloned(),
        name,
        space,
    };
    Ok(Plan {
        field_names: spec.fields.iter().map(|field| field.name.clone()).collect(),
        layout: fields.layout,
        kernels,
        vocabularies: vocabularies.into_iter().map(with_settings).collect(),
        look_ups,
        arrays,
        outputs,
        columns,
    })
}

/// Plans a column's operators one after the other.
fn through_operators(column: &Column, from: Flow, program: &mut Program) -> Result<Flow> {
    let name = &column.name;
    let mut flow = from;
    let mut is_first = true;
    for operator in &column.operators {
        let definition = operator.definition();
        match flow.kind {
            Kind::Id => {
                return refused(format!("column {name:?}: Vocabulary must be its last operator"));
            }
            Kind::Array => {
                return refused(format!("column {name:?}: no operator takes its arrays"));
            }
            _ => {}
        }
        if flow.missing.is_some() && !definition.takes_missing() {
            return refused(format!(
                "column {name:?} may be missing: put FillMissing before {}, or make its field required",
                definition.name()
            ));
        }
        let is_alone = column.operators.len() == 1;
        flow = definition.plan(Place { column: name, is_first, is_alone, flow }, program)?;
        is_first &= matches!(operator, Operator::FillMissing(_));
    }
    Ok(flow)
}

/// Returns the slot of the earlier column `name`, which `column` crosses.
fn crossed_slot(column: &Column, name: &str, flows: &HashMap<&str, Flow>) -> Result<Slot> {
    let why = match flows.get(name) {
        None => "which no earlier column is named",
        Some(flow) if flow.kind == Kind::Id => {
            "which a vocabulary numbers: cross its values, by a column without Vocabulary"
        }
        Some(flow) if flow.missing.is_some() => "which may be missing: give it FillMissing",
        Some(flow) if flow.kind == Kind::Bytes => "which has text: give it Hash",
        Some(Flow { kind: Kind::Blob | Kind::File | Kind::Array, .. }) => {
            "which has arrays or bytes to decode"
        }
        Some(flow) => return Ok(flow.slot),
    };
    refused(format!("column {:?} crosses {name:?}, {why}", column.name))
}

/// Fails if the spec has settings for an unused vocabulary, or a `min_count` without an
/// `unknown_id`.
fn check_vocabularies(spec: &Spec, used: &[NamedVocabulary]) -> Result<()> {
    for settings in &spec.vocabularies {
        let name = &settings.name;
        if used.iter().all(|vocabulary| vocabulary.name != *name) {
            return refused(format!(
                "it has settings for vocabulary {name:?}, which no column uses"
            ));
        }
        if settings.min_count > 0 && settings.unknown_id.is_none() {
            return refused(format!(
                "vocabulary {name:?} has a min_count, so it needs an id for the values that come less often: \
                 unknown_id 0 and first_id 1, for example"
            ));
        }
    }
    Ok(())
}
