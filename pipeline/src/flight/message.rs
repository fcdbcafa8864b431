//! The messages of the protocol: tickets, batches and failures.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::epoch::Message;
use crate::batch::{Batch, MatrixInfo};
use crate::error::{BadRowReport, Error};
use crate::execute::FeedPlace;
use crate::feed::{FeedPart, InputId, PARTS_MAX};

/// Largest number of bytes of a failure's text. gRPC libraries refuse headers above 8 KiB, and a
/// status has the text twice.
const TEXT_BYTES_MAX: usize = 2000;

/// The code of an I/O error in Arrow's libraries. They keep the details of a status that has this
/// code in a header.
const ARROW_IO_ERROR: &str = "5";

/// A client's request, as JSON. The server's options replace the settings that the ticket lacks. An
/// empty ticket lacks all.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ticket {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skip_rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) learn: Option<bool>,
    /// The inputs that the skipped rows came from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) inputs: Vec<InputId>,
    /// Where the feed may begin to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<FeedPlace>,
    /// The part of the epoch for this client, from 0, and the number of its parts. Both or neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<usize>,
}

impl Ticket {
    /// # Errors
    /// `INVALID_ARGUMENT` if the bytes are neither empty nor such JSON, and if there is no such
    /// part.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Status> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let ticket: Self = serde_json::from_slice(bytes).map_err(|error| {
            Status::invalid_argument(format!(
                "a ticket is empty, or JSON with `skip_rows`, `seed`, `learn`, `inputs`, `place`, `part` and `of`, all optional, and \
                 this one is not: {error}"
            ))
        })?;
        match (ticket.part, ticket.of) {
            (None, None) => Ok(ticket),
            (Some(part), Some(of)) if part < of && of <= PARTS_MAX => Ok(ticket),
            (part, of) => {
                let shown =
                    |number: Option<usize>| number.map_or("none".to_owned(), |n| n.to_string());
                Err(Status::invalid_argument(format!(
                    "`part` is {} and `of` is {}, and a ticket has both or neither: `of` from 1 to {PARTS_MAX}, and `part` from 0 \
                     to below `of`",
                    shown(part),
                    shown(of)
                )))
            }
        }
    }

    /// The part for this client, and the number of parts. An undivided feed is part 0 of 1.
    pub(super) fn share(&self) -> (usize, usize) {
        (self.part.unwrap_or(0), self.of.unwrap_or(1))
    }

    /// Says in which members but `part` the ticket `other` differs. Empty if in none.
    pub(super) fn differences(&self, other: &Self) -> String {
        let members = |ticket: &Self| serde_json::to_value(ticket).expect("numbers are JSON");
        let (ours, others) = (members(self), members(other));
        let names =
            ours.as_object().into_iter().chain(others.as_object()).flat_map(|map| map.keys());
        let names: BTreeSet<&String> = names.filter(|name| *name != "part").collect();
        let shown = |ticket: &serde_json::Value, name: &String| {
            ticket.get(name).map_or("absent".to_owned(), serde_json::Value::to_string)
        };
        let differs = names.into_iter().filter(|name| ours.get(name) != others.get(name));
        let differences = differs.map(|name| match name.as_str() {
            // Too long for a message.
            "inputs" => "`inputs` differ".to_owned(),
            "place" => "`place` differs".to_owned(),
            _ => format!(
                "`{name}` is {} there and {} here",
                shown(&ours, name),
                shown(&others, name)
            ),
        });
        differences.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers are JSON")
    }
}

/// Encodes the batches of one part of a feed.
pub(super) struct Encoder {
    schema: SchemaRef,
    message_bytes: Option<usize>,
    options: IpcWriteOptions,
    context: IpcWriteContext,
    /// Required by the encoder; the batches have no dictionaries.
    dictionaries: DictionaryTracker,
    /// Number of inputs whose names were sent.
    inputs_sent: usize,
    /// The place that was sent last.
    place_sent: Option<Arc<FeedPlace>>,
    /// The row after the part's last batch.
    next_row: u64,
}

impl Encoder {
    /// `next_row` is the part's place before its first batch.
    pub(super) fn new(schema: &SchemaRef, message_bytes: Option<usize>, next_row: u64) -> Self {
        Self {
            schema: SchemaRef::clone(schema),
            message_bytes,
            options: IpcWriteOptions::default(),
            context: IpcWriteContext::default(),
            dictionaries: DictionaryTracker::new(false),
            inputs_sent: 0,
            place_sent: None,
            next_row,
        }
    }

    /// The first message of a part: its schema.
    pub(super) fn schema(&self) -> FlightData {
        SchemaAsIpc::new(&self.schema, &self.options).into()
    }

    /// Encodes the batch that the part has just returned: as one message if messages have no limit
    /// of bytes, otherwise as one or more. The first message names the inputs of the part's
    /// position that no earlier message has named. The first message after a new place has the
    /// place.
    ///
    /// Each message has the position after it. A position within a batch exists only in an
    /// undivided feed. In a part, it is the position before the batch.
    pub(super) fn batch(&mut self, batch: Batch, part: &FeedPart) -> impl Iterator<Item = Message> {
        let (mut named, mut place) = (self.named(part), self.new_place(part));
        let before = std::mem::replace(&mut self.next_row, part.next_row());
        let (after, first_row) = (self.next_row, batch.first_row());
        let (is_divided, shuffle_rows) = (part.parts() > 1, part.shuffle_rows());
        let rows = batch.rows();
        let message_rows = self.message_rows(&batch);
        let batch = batch.into_record_batch();
        (0..rows).step_by(message_rows).map(move |begin| {
            let count = message_rows.min(rows - begin);
            let next_row = match begin + count {
                sent if sent == rows => after,
                _ if is_divided => before,
                sent => first_row + sent as u64,
            };
            let slice = batch.slice(begin, count);
            let place = place.take_if(|place| place.is_before(next_row, shuffle_rows));
            self.encode(&slice, next_row, std::mem::take(&mut named), place)
        })
    }

    /// The message after a part's last batch: without rows, and with the position at the end of the
    /// feed. `None` if the last batch's message had this position, as in every undivided feed.
    pub(super) fn end(&mut self, part: &FeedPart) -> Option<Message> {
        if part.next_row() == self.next_row {
            return None;
        }
        let empty = RecordBatch::new_empty(SchemaRef::clone(&self.schema));
        let (named, place) = (self.named(part), self.new_place(part));
        Some(self.encode(&empty, part.next_row(), named, place))
    }

    /// Encodes a message with the position after it, which has no inputs if `named` is empty.
    fn encode(
        &mut self,
        batch: &RecordBatch,
        next_row: u64,
        named: Vec<InputId>,
        place: Option<Arc<FeedPlace>>,
    ) -> Message {
        let encoded = IpcDataGenerator::default().encode(
            batch,
            &mut self.dictionaries,
            &self.options,
            &mut self.context,
        );
        let (_, data) = encoded.map_err(|error| Status::internal(error.to_string()))?;
        let mut position = serde_json::json!({ "next_row": next_row });
        if !named.is_empty() {
            position["inputs"] = serde_json::json!(named);
        }
        if let Some(place) = place {
            position["place"] = serde_json::json!(*place);
        }
        Ok(FlightData::from(data).with_app_metadata(position.to_string()))
    }

    /// The inputs of the part's position that no message has named.
    fn named(&mut self, part: &FeedPart) -> Vec<InputId> {
        let inputs = part.inputs_of_position();
        let named = inputs[self.inputs_sent..].to_vec();
        self.inputs_sent = inputs.len();
        named
    }

    /// The place of the part's position, if it was not sent before.
    fn new_place(&mut self, part: &FeedPart) -> Option<Arc<FeedPlace>> {
        let place = part.place_of_position()?;
        if self.place_sent.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, place)) {
            return None;
        }
        self.place_sent = Some(Arc::clone(place));
        self.place_sent.clone()
    }

    /// Largest number of rows of a message. At least one, because a row is never divided between
    /// messages.
    fn message_rows(&self, batch: &Batch) -> usize {
        let Some(message_bytes) = self.message_bytes else { return batch.rows().max(1) };
        let bytes = |info: &MatrixInfo| info.row_values() * info.dtype.bytes();
        let row_bytes: usize = batch.infos().iter().map(bytes).sum();
        (message_bytes / row_bytes.max(1)).max(1)
    }
}

/// Converts an error to a status for the client. The status has the error's text, and for a bad row
/// also the row's place.
pub(super) fn status(error: &Error) -> Status {
    let code = match error {
        Error::BadRow(_)
        | Error::TooManyBadRows { .. }
        | Error::LineTooLong { .. }
        | Error::Compressed { .. }
        | Error::Columns { .. }
        | Error::Header { .. }
        | Error::Encoding { .. }
        | Error::Inputs(_)
        | Error::InputChanged { .. }
        | Error::OtherInputs { .. }
        | Error::NoWholeRows { .. } => Code::DataLoss,
        Error::SkipsTooMany { .. } => Code::OutOfRange,
        _ => Code::Internal,
    };
    let details = match error {
        Error::BadRow(BadRowReport { input, line, lines, column, .. }) => {
            serde_json::json!({ "input": input, "line": line, "lines": lines, "column": column })
                .to_string()
        }
        Error::SkipsTooMany { rows, .. } => serde_json::json!({ "rows": rows }).to_string(),
        _ => String::new(),
    };
    told(code, error.to_string(), details)
}

/// Makes a failure with details. Arrow's libraries show its details, and its text without a prefix.
pub(super) fn told(code: Code, mut text: String, details: String) -> Status {
    if text.len() > TEXT_BYTES_MAX {
        let ends = text.char_indices().map(|(at, _)| at);
        text.truncate(ends.take_while(|&at| at <= TEXT_BYTES_MAX).last().unwrap_or(0));
        text += " ...";
    }
    let mut headers = MetadataMap::new();
    headers.insert("x-arrow-status", MetadataValue::from_static(ARROW_IO_ERROR));
    // With this header, client libraries do not put a prefix before the text.
    headers.insert_bin("x-arrow-status-message-bin", MetadataValue::from_bytes(text.as_bytes()));
    Status::with_details_and_metadata(code, text, details.into(), headers)
}

/// Encodes a schema for the calls that describe a feed.
pub(super) fn schema_message(schema: &Schema) -> Result<arrow_flight::IpcMessage, Status> {
    let options = IpcWriteOptions::default();
    let message = SchemaAsIpc::new(schema, &options).try_into();
    message.map_err(|error: arrow_schema::ArrowError| Status::internal(error.to_string()))
}
