//! Finds the fields' columns and checks their types.

use arrow_schema::{DataType, FieldRef, Schema, TimeUnit};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Type;
use std::sync::Arc;

use super::Fields;
use crate::decode::FieldKind;

/// Returns the indices of the fields' columns, and the names of fields without a column. Values of
/// such a field are missing, so only an optional field may lack its column.
///
/// # Errors
/// A text that says why the file can't be read: a required field has no column, two columns have
/// the name of one field, or a type does not fit.
pub(super) fn check(schema: &Schema, fields: &Fields) -> Result<(Vec<usize>, Vec<String>), String> {
    let mut columns = Vec::new();
    let mut absent = Vec::new();
    for (name, field) in fields {
        let mut named = schema.fields().iter().enumerate().filter(|(_, of)| of.name() == name);
        let Some((place, column)) = named.next() else {
            if field.required {
                return Err(format!("it has no column {name:?}, only {}", names(schema)));
            }
            absent.push(name.clone());
            continue;
        };
        if named.next().is_some() {
            return Err(format!(
                "two columns of it have the name {name:?}: give them names of their own"
            ));
        }
        let found = value_type(column.data_type());
        if !fits(field.kind, found) {
            return Err(format!(
                "its column {name:?} has the type {found}, which a field of {:?} can't be read from: {}",
                field.kind,
                cure(found)
            ));
        }
        columns.push(place);
    }
    if columns.is_empty() {
        // If no column of a file were read, its number of rows would be whatever the file declares.
        // Such a file is an error.
        return Err(match absent.first() {
            Some(name) => {
                format!(
                    "it has no column {name:?}, nor another that a field is named after, only {}",
                    names(schema)
                )
            }
            None => "no field of the pipeline is read from it, but for those that are skipped"
                .to_owned(),
        });
    }
    columns.sort_unstable();
    Ok((columns, absent))
}

fn names(schema: &Schema) -> String {
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names.join(", ")
}

/// The type of a column's values. For a dictionary, the type of its values, not of its keys.
fn value_type(of: &DataType) -> &DataType {
    match of {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

fn fits(kind: FieldKind, found: &DataType) -> bool {
    let decimal_places = match found {
        DataType::Decimal32(_, places)
        | DataType::Decimal64(_, places)
        | DataType::Decimal128(_, places)
        | DataType::Decimal256(_, places) => Some(*places),
        _ => None,
    };
    let time = matches!(
        found,
        DataType::Date32
            | DataType::Date64
            | DataType::Timestamp(..)
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Duration(_)
    );
    let whole = found.is_integer() || *found == DataType::Boolean || decimal_places == Some(0);
    let text = matches!(
        found,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    );
    if text || *found == DataType::Null {
        return true;
    }
    match kind {
        FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint64 => {
            whole || time || found.is_floating()
        }
        FieldKind::Hex32 => whole || found.is_floating(),
        FieldKind::Float32 => whole || found.is_floating() || decimal_places.is_some(),
        FieldKind::Bytes | FieldKind::Skip => false,
    }
}

/// Advice for a column whose type does not fit.
fn cure(found: &DataType) -> &'static str {
    match found {
        DataType::List(_)
        | DataType::LargeList(_)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::FixedSizeList(..)
        | DataType::Map(..) => {
            "lists are not read; write a column for each value, or a row for each"
        }
        DataType::Struct(_) | DataType::Union(..) => "write a column for each part of it",
        DataType::Date32
        | DataType::Date64
        | DataType::Timestamp(..)
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Duration(_) => "times are whole numbers: declare the field Int64",
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => {
            "declare the field Float32, or write the column as whole numbers"
        }
        found if found.is_floating() => "declare the field Float32, or write the column as text",
        found if found.is_integer() => "declare the field Int64, or write the column as text",
        _ => "write it as a number or as text",
    }
}

/// True if the column has 96-bit times.
fn is_int96(metadata: &ArrowReaderMetadata, name: &str) -> bool {
    let columns = metadata.parquet_schema().columns().iter();
    columns
        .filter(|column| column.physical_type() == Type::INT96)
        .any(|column| column.path().parts() == [name])
}

/// Returns the file's schema with some types of `columns` replaced. Byte strings become views. A
/// dictionary becomes a column of its values, which takes less memory, and then the column is read
/// as any other. The 96-bit times of Spark become microseconds, because the reader's nanoseconds
/// wrap without an error before 1677 and after 2262.
pub(super) fn views(metadata: &ArrowReaderMetadata, columns: &[usize]) -> Schema {
    let view = |(place, field): (usize, &FieldRef)| {
        let kind = match value_type(field.data_type()) {
            _ if is_int96(metadata, field.name()) => {
                DataType::Timestamp(TimeUnit::Microsecond, None)
            }
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            other => other.clone(),
        };
        if !columns.contains(&place) || kind == *field.data_type() {
            return Arc::clone(field);
        }
        Arc::new(field.as_ref().clone().with_data_type(kind))
    };
    let schema = metadata.schema();
    let fields: Vec<_> = schema.fields().iter().enumerate().map(view).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}
