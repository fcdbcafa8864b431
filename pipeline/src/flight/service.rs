//! Implements the calls of Arrow Flight.

use std::sync::Arc;

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket as RawTicket,
};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::epoch::{EpochReport, Epochs, Message};
use super::message::{Ticket, schema_message};

/// The path of the feed. A server has no other path.
const PATH: &str = "feed";
/// The action that returns a report. A server has no other action.
const REPORT: &str = "report";

#[derive(Debug)]
pub(super) struct Service {
    epochs: Arc<Epochs>,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    pub(super) fn new(epochs: Arc<Epochs>) -> Self {
        Self { epochs }
    }

    /// Describes the feed with the options of a ticket.
    fn info(&self, descriptor: FlightDescriptor, ticket: &Ticket) -> Result<FlightInfo, Status> {
        // An endpoint without a location means this server.
        let endpoint = FlightEndpoint::new().with_ticket(RawTicket::new(ticket.to_json()));
        Ok(FlightInfo {
            schema: schema_message(&self.epochs.schema)?.0,
            flight_descriptor: Some(descriptor),
            endpoint: vec![endpoint],
            // The number of rows is unknown until they are read.
            total_records: -1,
            total_bytes: -1,
            ordered: true,
            ..Default::default()
        })
    }
}

/// Parses a descriptor: the path `feed`, or a ticket as a command.
fn asked(descriptor: &FlightDescriptor) -> Result<Ticket, Status> {
    if descriptor.r#type == DescriptorType::Path as i32 {
        return match &descriptor.path[..] {
            [name] if name == PATH => Ok(Ticket::default()),
            other => Err(Status::not_found(format!(
                "there is no path {other:?} here: the path is [{PATH:?}], or use a ticket as a command"
            ))),
        };
    }
    Ticket::parse(&descriptor.cmd)
}

fn only_reading<T>(call: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("{call}: this server hands out batches, by do_get")))
}

fn report_json(EpochReport { run: report, discarded_rows }: &EpochReport) -> String {
    serde_json::json!({
        "rows": report.rows,
        "passed_rows": report.passed_rows,
        "bad_rows": report.bad_rows,
        "bad_lines": report.bad_lines,
        "first_bad_rows": report.first_bad_rows.iter().map(|bad| format!("{bad:#}")).collect::<Vec<_>>(),
        "bytes": report.bytes,
        "seconds": report.elapsed.as_secs_f64(),
        "discarded_rows": discarded_rows,
    })
    .to_string()
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = ReceiverStream<Message>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_get(&self, request: Request<RawTicket>) -> Answer<Self::DoGetStream> {
        let ticket = Ticket::parse(&request.into_inner().ticket)?;
        let messages = Arc::clone(&self.epochs).begin(&ticket).await?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        let descriptor = request.into_inner();
        let ticket = asked(&descriptor)?;
        Ok(Response::new(self.info(descriptor, &ticket)?))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        asked(request.get_ref())?;
        let schema = schema_message(&self.epochs.schema)?.0;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn list_flights(&self, _request: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        let descriptor = FlightDescriptor::new_path(vec![PATH.to_owned()]);
        let info = self.info(descriptor, &Ticket::default());
        Ok(Response::new(Box::pin(tokio_stream::once(info))))
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        let action = request.into_inner().r#type;
        if action != REPORT {
            return Err(Status::not_found(format!(
                "there is no action {action:?} here, only {REPORT:?}"
            )));
        }
        let Some(report) = self.epochs.report() else {
            return Err(Status::unavailable("no feed has come to its end yet"));
        };
        let answer = arrow_flight::Result::new(report_json(&report));
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(answer)))))
    }

    async fn list_actions(&self, _request: Request<Empty>) -> Answer<Self::ListActionsStream> {
        let action = ActionType {
            r#type: REPORT.to_owned(),
            description: "Rows, bad rows, bytes and discarded rows of the last feed that came to \
                          its end, as JSON"
                .to_owned(),
        };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(action)))))
    }

    async fn handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        Err(Status::unimplemented("handshake: this server asks nobody who they are"))
    }

    async fn poll_flight_info(&self, _request: Request<FlightDescriptor>) -> Answer<PollInfo> {
        Err(Status::unimplemented("poll_flight_info: get_flight_info answers at once"))
    }

    async fn do_put(&self, _request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        only_reading("do_put")
    }

    async fn do_exchange(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        only_reading("do_exchange")
    }
}
