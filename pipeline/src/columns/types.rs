//! Finds the fields' columns and checks their types.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema, TimeUnit as FileUnit};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{ConvertedType, Type as PhysicalType};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use super::Fields;
use super::partitions::Partitions;
use crate::decode::{FieldKind, FieldLayout};
use crate::plan::alike;
use crate::spec::TimeUnit;

/// Where a field's values in a file come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Column {
        /// Index of the column among the columns that are read.
        place: usize,
        /// True if the column's type promises UTF-8.
        is_text: bool,
    },
    /// A folder of the file's path gives all rows this value. `None` if it is null.
    Folder(Option<Vec<u8>>),
    /// The file has no values for the field.
    Absent,
}

/// The columns of a pipeline's fields in a file.
#[derive(Debug, Default, Clone)]
pub(super) struct Found {
    /// Indices of the columns, in ascending order.
    pub(super) columns: Vec<usize>,
    /// Names of fields without a column. Their values are missing.
    pub(super) absent: Vec<String>,
    pub(super) meanings: Vec<FieldMeaning>,
    /// The origin of each field's values.
    pub(super) origins: Arc<[Origin]>,
}

/// What the values of a column mean for a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldMeaning {
    pub(crate) field: String,
    pub(crate) meaning: Meaning,
    /// The column's type, for an error.
    pub(crate) found: String,
}

impl FieldMeaning {
    /// The text of an error: the values mean another thing than those of `first` in an earlier
    /// input.
    #[cold]
    pub(crate) fn differs(&self, first: &Self, first_input: &str) -> String {
        format!(
            "its column {:?} has the type {}, read as {}; in {first_input} it has the type {}, read as {}: one number \
             would stand for two things; write the column with one type in all files of a run",
            self.field,
            self.found,
            self.meaning.shown(),
            first.found,
            first.meaning.shown()
        )
    }
}

/// What a value of a column means for a field of one kind. The columns of one field must have one
/// meaning in all files of a run: otherwise one number would stand for two things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The number that the value is equal to. A decimal text is a number of this kind.
    Number,
    /// Hexadecimal digits.
    HexDigits,
    /// Bytes of a text.
    Bytes,
    /// Days since 1970-01-01.
    Date,
    /// Time since 1970-01-01 00:00 UTC.
    Instant,
    /// Time since 1970-01-01 00:00 of a place that the file does not say.
    LocalTime,
    TimeOfDay,
    Duration,
}

impl Meaning {
    fn shown(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::HexDigits => "hexadecimal digits",
            Self::Bytes => "text",
            Self::Date => "days",
            Self::Instant => "a time in UTC",
            Self::LocalTime => "a time without a time zone",
            Self::TimeOfDay => "a time of day",
            Self::Duration => "a duration",
        }
    }

    /// `None` for columns of nulls, which have no values.
    pub(super) fn of(kind: FieldKind, found: &DataType) -> Option<Self> {
        Some(match found {
            DataType::Null => return None,
            DataType::Date32 | DataType::Date64 => Self::Date,
            DataType::Timestamp(_, Some(_)) => Self::Instant,
            DataType::Timestamp(_, None) => Self::LocalTime,
            DataType::Time32(_) | DataType::Time64(_) => Self::TimeOfDay,
            DataType::Duration(_) => Self::Duration,
            found if is_text(found) => match kind {
                FieldKind::Bytes | FieldKind::Blob | FieldKind::File => Self::Bytes,
                FieldKind::Hex32 => Self::HexDigits,
                _ => Self::Number,
            },
            _ => Self::Number,
        })
    }
}

/// Finds the fields' columns. Values of a field without a column are missing, so only an optional
/// field may lack its column. `partitions` are the values that the file's path names.
///
/// # Errors
/// A text that says why the file can't be read: a required field has no column, two columns have
/// the name of one field, a column's name differs from a field's only in case, or a type does not
/// fit.
pub(super) fn check(
    schema: &Schema,
    fields: &Fields,
    partitions: &Partitions,
) -> Result<Found, String> {
    let columns = Columns::of(schema);
    let mut all = Found::default();
    let mut origins = Vec::with_capacity(fields.len());
    for (name, field) in fields {
        let Some(place) = columns.place(name)? else {
            if let Some(value) = partitions.value(name) {
                if let Some(meaning) = Meaning::of(field.kind, &DataType::Utf8) {
                    let found = "of a folder's name".to_owned();
                    all.meanings.push(FieldMeaning { field: name.clone(), meaning, found });
                }
                origins.push(Origin::Folder(value.map(<[u8]>::to_vec)));
                continue;
            }
            check_alike(schema, fields, name)?;
            if field.required {
                return Err(format!("it has no column {name:?}, only {}", names(schema)));
            }
            all.absent.push(name.clone());
            origins.push(Origin::Absent);
            continue;
        };
        let found = value_type(schema.field(place).data_type());
        if !fits(field.kind, found) {
            return Err(format!(
                "its column {name:?} has the type {found}, which a field of {:?} can't be read from: {}",
                field.kind,
                cure(found)
            ));
        }
        if let Some(meaning) = Meaning::of(field.kind, found) {
            let found = found.to_string();
            all.meanings.push(FieldMeaning { field: name.clone(), meaning, found });
        }
        all.columns.push(place);
        // The index in the file. Below, it becomes the index among the columns that are read.
        origins.push(Origin::Column { place, is_text: is_utf8(found) });
    }
    if all.columns.is_empty() {
        // If no column of a file were read, its number of rows would be whatever the file declares.
        // Such a file is an error.
        return Err(match all.absent.first() {
            Some(name) => {
                format!(
                    "it has no column {name:?}, nor another that a field is named after, only {}",
                    names(schema)
                )
            }
            None if fields.is_empty() => {
                "the pipeline uses no field, so no column of it is read: make a column of a field"
                    .to_owned()
            }
            None => format!(
                "all fields that the pipeline uses have their values from the names of its folders, and at least one \
                 must be a column of it: use one of its columns {}",
                names(schema)
            ),
        });
    }
    all.columns.sort_unstable();
    for origin in &mut origins {
        if let Origin::Column { place, .. } = origin {
            *place = all.columns.binary_search(place).expect("each of these columns is read");
        }
    }
    all.origins = origins.into();
    Ok(all)
}

/// The columns of a file by their names.
struct Columns<'a> {
    places: HashMap<&'a str, usize>,
    /// Names that several columns have.
    twice: HashSet<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(schema: &'a Schema) -> Self {
        let mut places = HashMap::with_capacity(schema.fields().len());
        let mut twice = HashSet::new();
        for (place, column) in schema.fields().iter().enumerate() {
            if places.insert(column.name().as_str(), place).is_some() {
                twice.insert(column.name().as_str());
            }
        }
        Self { places, twice }
    }

    /// Returns the index of the column of this name.
    fn place(&self, name: &str) -> Result<Option<usize>, String> {
        if self.twice.contains(name) {
            return Err(format!(
                "two columns of it have the name {name:?}: give them names of their own"
            ));
        }
        Ok(self.places.get(name).copied())
    }
}

/// Fails if the name of a column differs from the absent field's name only in the case of letters,
/// or in spaces around it. The field would be missing in all rows, although its values are there.
fn check_alike(schema: &Schema, fields: &Fields, name: &str) -> Result<(), String> {
    let is_field = |column: &str| fields.iter().any(|(field, _)| field == column);
    let mut columns = schema.fields().iter().map(|column| column.name().as_str());
    match columns.find(|column| alike(column, name) && !is_field(column)) {
        None => Ok(()),
        Some(column) => Err(format!(
            "it has no column {name:?}, but {column:?}: names are compared letter by letter, so give the column the \
             same name in all files, or a pipeline with that name for these files"
        )),
    }
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

/// True if the values must be UTF-8.
fn is_utf8(found: &DataType) -> bool {
    matches!(found, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_text(found: &DataType) -> bool {
    matches!(
        found,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    )
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
    if is_text(found) || *found == DataType::Null {
        return true;
    }
    match kind {
        FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint64 => {
            whole || time || found.is_floating()
        }
        FieldKind::Hex32 => whole || found.is_floating(),
        FieldKind::Float32 => whole || found.is_floating() || decimal_places.is_some(),
        FieldKind::Bytes | FieldKind::Blob | FieldKind::File | FieldKind::Skip => false,
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

/// Returns the units in which the file's columns of 96-bit times are read, by name: that of the
/// field, but no coarser one than microseconds, which reach from 290,000 BC to 290,000 AD.
pub(super) fn int96_units(
    metadata: &ArrowReaderMetadata,
    fields: &Fields,
) -> HashMap<String, TimeUnit> {
    let columns = metadata.parquet_schema().columns().iter();
    let int96 = columns.filter(|column| column.physical_type() == PhysicalType::INT96);
    let fields: HashMap<_, _> = fields.iter().map(|(name, field)| (name, field)).collect();
    let named = int96.filter_map(|column| match column.path().parts() {
        [name] => fields.get_key_value(name),
        _ => None,
    });
    let unit = |(name, field): (&&String, &&FieldLayout)| {
        let is_nanoseconds = field.time_unit == TimeUnit::Nanosecond;
        let unit = if is_nanoseconds { TimeUnit::Nanosecond } else { TimeUnit::Microsecond };
        ((*name).clone(), unit)
    };
    named.map(unit).collect()
}

/// Returns the file's schema with some types of `columns` replaced. Byte strings become views. A
/// dictionary becomes a column of its values, which takes less memory, and then the column is read
/// as any other. 96-bit times get the unit of `int96`.
pub(super) fn views(
    schema: &Schema,
    columns: &[usize],
    int96: &HashMap<String, TimeUnit>,
) -> Schema {
    let view = |(place, field): (usize, &FieldRef)| {
        let kind = match (int96.get(field.name()), value_type(field.data_type())) {
            (Some(TimeUnit::Nanosecond), _) => DataType::Timestamp(FileUnit::Nanosecond, None),
            (Some(_), _) => DataType::Timestamp(FileUnit::Microsecond, None),
            (None, DataType::Utf8 | DataType::LargeUtf8) => DataType::Utf8View,
            (None, DataType::Binary | DataType::LargeBinary) => DataType::BinaryView,
            (None, other) => other.clone(),
        };
        if columns.binary_search(&place).is_err() {
            Arc::clone(field)
        } else {
            with_type(field, kind)
        }
    };
    let fields: Vec<_> = schema.fields().iter().enumerate().map(view).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// Returns the schema with text among `columns` replaced by plain bytes of the same layout. The
/// decoders of text check the UTF-8 of a whole batch, and their error names no row.
pub(super) fn as_bytes(schema: &Schema, columns: &[usize]) -> Schema {
    let bytes = |text: &DataType| match text {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::Utf8View => DataType::BinaryView,
        other => other.clone(),
    };
    let fields = schema.fields().iter().enumerate().map(|(place, field)| {
        let kind = match field.data_type() {
            DataType::Dictionary(keys, values) => {
                DataType::Dictionary(keys.clone(), Box::new(bytes(values)))
            }
            other => bytes(other),
        };
        if columns.binary_search(&place).is_ok() {
            with_type(field, kind)
        } else {
            Arc::clone(field)
        }
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

/// Returns a Parquet schema whose columns of text are plain bytes, as [`as_bytes`] does for Arrow.
///
/// # Errors
/// The error of the `parquet` crate for a schema that can't be made.
pub(super) fn parquet_as_bytes(
    schema: &SchemaDescriptor,
) -> parquet::errors::Result<SchemaDescriptor> {
    let root = schema.root_schema();
    let field = |field: &TypePtr| {
        let info = field.get_basic_info();
        // The crate `parquet` reads columns of JSON as text, too.
        let is_text = matches!(info.converted_type(), ConvertedType::UTF8 | ConvertedType::JSON);
        if !field.is_primitive() || !is_text {
            return Ok(Arc::clone(field));
        }
        let id = info.has_id().then(|| info.id());
        let bytes = Type::primitive_type_builder(field.name(), field.get_physical_type());
        Ok(Arc::new(bytes.with_repetition(info.repetition()).with_id(id).build()?))
    };
    let fields = root.get_fields().iter().map(field).collect::<parquet::errors::Result<_>>()?;
    let root = Type::group_type_builder(root.name()).with_fields(fields).build()?;
    Ok(SchemaDescriptor::new(Arc::new(root)))
}

fn with_type(field: &FieldRef, kind: DataType) -> FieldRef {
    if kind == *field.data_type() {
        return Arc::clone(field);
    }
    Arc::new(field.as_ref().clone().with_data_type(kind))
}
