//! The messages of the protocol: tickets, batches and failures.

use std::sync::Arc;

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
use crate::feed::InputId;

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
}

impl Ticket {
    /// # Errors
    /// `INVALID_ARGUMENT` if the bytes are neither empty nor such JSON.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Status> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(bytes).map_err(|error| {
            Status::invalid_argument(format!(
                "a ticket is empty, or JSON with `skip_rows`, `seed`, `learn`, `inputs` and `place`, all optional, and this one is not: \
                 {error}"
            ))
        })
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers are JSON")
    }
}

/// Encodes the batches of one feed.
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
}

impl Encoder {
    pub(super) fn new(schema: &SchemaRef, message_bytes: Option<usize>) -> Self {
        Self {
            schema: SchemaRef::clone(schema),
            message_bytes,
            options: IpcWriteOptions::default(),
            context: IpcWriteContext::default(),
            dictionaries: DictionaryTracker::new(false),
            inputs_sent: 0,
            place_sent: None,
        }
    }

    /// The first message of a feed: its schema.
    pub(super) fn schema(&self) -> FlightData {
        SchemaAsIpc::new(&self.schema, &self.options).into()
    }

    /// Encodes a batch: as one message if messages have no limit of bytes, otherwise as one or
    /// more. `inputs` are those of the feed's position. The first message names the inputs that no
    /// earlier message of the feed has named. The first message after a new place has the place.
    pub(super) fn batch(
        &mut self,
        batch: Batch,
        inputs: &[InputId],
    ) -> impl Iterator<Item = Message> {
        let mut place = batch
            .place
            .clone()
            .filter(|place| self.place_sent.as_ref().is_none_or(|sent| !Arc::ptr_eq(sent, place)));
        if place.is_some() {
            self.place_sent.clone_from(&place);
        }
        let mut named = inputs[self.inputs_sent..].to_vec();
        self.inputs_sent = inputs.len();
        let first_row = batch.first_row();
        let rows = batch.rows();
        let message_rows = self.message_rows(&batch);
        let batch = batch.into_record_batch();
        (0..rows).step_by(message_rows).map(move |begin| {
            let count = message_rows.min(rows - begin);
            let part = batch.slice(begin, count);
            let encoded = IpcDataGenerator::default().encode(
                &part,
                &mut self.dictionaries,
                &self.options,
                &mut self.context,
            );
            let (_, data) = encoded.map_err(|error| Status::internal(error.to_string()))?;
            let next_row = first_row + (begin + count) as u64;
            let mut position = serde_json::json!({ "next_row": next_row });
            if !named.is_empty() {
                position["inputs"] = serde_json::json!(std::mem::take(&mut named));
            }
            if let Some(place) = place.take_if(|place| place.rows <= next_row) {
                position["place"] = serde_json::json!(*place);
            }
            Ok(FlightData::from(data).with_app_metadata(position.to_string()))
        })
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
