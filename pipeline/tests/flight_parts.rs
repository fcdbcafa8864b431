//! Tests epochs that a server deals to several clients: the union of the parts, clients that leave,
//! come late or not at all, and tickets that do not fit.
#![cfg(feature = "flight")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Ticket};
use embank_pipeline::{
    Column, Dtype, FeedInput, FeedOptions, Field, FieldKind, FlightOptions, FlightServer, Operator,
    Output, Pipeline, RunOptions, Spec,
};
use serde_json::Value;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

type Client = FlightServiceClient<Channel>;
/// The numbers and ids of a message, and the position after it.
type Content = (Vec<i64>, u64);

fn spec() -> Spec {
    let c = Column::field("c").then(Operator::Modulus(1 << 20));
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![Column::field("n"), c.then(Operator::Vocabulary("c".to_owned()))],
        outputs: vec![Output::new("both", Dtype::I64, ["n", "c"])],
        ..Spec::default()
    }
}

fn text(rows: usize) -> Arc<[u8]> {
    let line = |row: usize| format!("{row}\t{:x}\n", (row * 7919) % 1013);
    (0..rows).map(line).collect::<String>().into_bytes().into()
}

fn pipeline() -> Pipeline {
    let options = RunOptions { threads: 2, chunk_bytes: 300, ..Default::default() };
    Pipeline::new(&spec(), &options).unwrap()
}

fn feed_options(batch_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows, shuffle_rows: 50, seed: 3, ..Default::default() }
}

fn options(batch_rows: usize) -> FlightOptions {
    // Longer than any test takes.
    let wait = Duration::from_secs(600);
    FlightOptions { feed: feed_options(batch_rows), wait, ..Default::default() }
}

fn start(text: &Arc<[u8]>, options: &FlightOptions) -> FlightServer {
    let inputs = vec![FeedInput::memory("text", Arc::clone(text))];
    FlightServer::start(pipeline(), inputs, "127.0.0.1:0", options).unwrap()
}

/// The batches of an undivided feed in this process.
fn local(text: &Arc<[u8]>, batch_rows: usize) -> Vec<Vec<i64>> {
    let inputs = vec![FeedInput::memory("text", Arc::clone(text))];
    let feed = pipeline().feed(inputs, &feed_options(batch_rows)).unwrap();
    feed.map(|batch| batch.unwrap().i64(0).unwrap().to_vec()).collect()
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

async fn connect(server: &FlightServer) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    // The smallest HTTP/2 windows, so few bytes are on their way.
    let endpoint =
        endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    FlightServiceClient::new(endpoint.connect().await.unwrap())
}

async fn get(client: &mut Client, ticket: Value) -> Result<FlightDataDecoder, Status> {
    let messages = client.do_get(Ticket::new(ticket.to_string())).await?.into_inner();
    Ok(FlightDataDecoder::new(messages.map(|message| message.map_err(FlightError::from))))
}

/// Connects, and takes a part of an epoch.
async fn take(server: &FlightServer, part: usize, of: usize) -> FlightDataDecoder {
    let ticket = serde_json::json!({ "part": part, "of": of });
    get(&mut connect(server).await, ticket).await.unwrap()
}

async fn next(batches: &mut FlightDataDecoder) -> Option<Result<Content, FlightError>> {
    loop {
        let decoded = match batches.next().await? {
            Ok(decoded) => decoded,
            Err(error) => return Some(Err(error)),
        };
        if let DecodedPayload::RecordBatch(batch) = decoded.payload {
            let json: Value = serde_json::from_slice(&decoded.inner.app_metadata).unwrap();
            let values = batch.column(0).as_fixed_size_list().values().clone();
            let values = values.as_primitive::<Int64Type>().values().to_vec();
            return Some(Ok((values, json["next_row"].as_u64().unwrap())));
        }
    }
}

/// The status with which a part fails.
async fn failure(batches: &mut FlightDataDecoder) -> Status {
    loop {
        match next(batches).await.expect("a failure, and no end") {
            Ok(_) => {}
            Err(FlightError::Tonic(status)) => return *status,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes one message of each part in turn until all have ended. Returns all messages with rows in
/// the order of the epoch, and checks that positions agree.
async fn together(parts: &mut [FlightDataDecoder]) -> Vec<Vec<i64>> {
    let (mut found, mut ended) = (Vec::new(), 0);
    while ended < parts.len() {
        let mut positions = Vec::new();
        ended = 0;
        for part in &mut *parts {
            match next(part).await.transpose().unwrap() {
                None => ended += 1,
                Some((values, position)) => {
                    positions.push(position);
                    found.extend((!values.is_empty()).then_some(values));
                }
            }
        }
        assert!(positions.windows(2).all(|pair| pair[0] == pair[1]), "{positions:?}");
    }
    found
}

async fn report(server: &FlightServer) -> Value {
    let mut client = connect(server).await;
    let mut answer = client.do_action(Action::new("report", "")).await.unwrap().into_inner();
    serde_json::from_slice(&answer.next().await.unwrap().unwrap().body).unwrap()
}

#[test]
fn clients_together_get_the_epoch() {
    let text = text(1000);
    run(async {
        for batch_rows in [64, 250] {
            let expected = local(&text, batch_rows);
            for of in [1, 2, 3, 5] {
                let server = start(&text, &options(batch_rows));
                // Each epoch continues the vocabulary of the one before.
                for _ in 0..2 {
                    let mut parts = Vec::new();
                    // The parts come in any order.
                    for part in (0..of).rev() {
                        parts.push(take(&server, part, of).await);
                    }
                    parts.reverse();
                    assert_eq!(together(&mut parts).await, expected, "{of} parts");
                    assert_eq!(report(&server).await["discarded_rows"], 0);
                }
                assert_eq!(server.stop().unwrap().vocabularies().next().unwrap().1.len(), 1000);
            }
        }
    });
}

/// A part without a batch in the last round ends with a message without rows, so that all parts end
/// at one position.
#[test]
fn positions_are_those_of_whole_rounds() {
    let text = text(1000);
    run(async {
        let whole = local(&text, 64);
        let server = start(&text, &options(64));
        let mut parts = Vec::new();
        for part in 0..3 {
            parts.push(take(&server, part, 3).await);
        }
        for (round, position) in [192, 384, 576, 768, 960, 1000].into_iter().enumerate() {
            for (number, part) in parts.iter_mut().enumerate() {
                let (values, next_row) = next(part).await.unwrap().unwrap();
                let expected = whole.get(round * 3 + number).cloned().unwrap_or_default();
                assert_eq!((values, next_row), (expected, position), "round {round}");
            }
            let resumed = start(&text, &options(64));
            let mut rest = Vec::new();
            for part in 0..3 {
                let ticket = serde_json::json!({ "part": part, "of": 3, "skip_rows": position });
                rest.push(get(&mut connect(&resumed).await, ticket).await.unwrap());
            }
            let expected = &whole[whole.len().min((round + 1) * 3)..];
            assert_eq!(together(&mut rest).await, expected, "round {round}");
        }
        for part in &mut parts {
            assert!(next(part).await.is_none());
        }
        // In a batch of several messages, the position stays before the batch.
        let message_bytes = Some(32 * 16);
        let server = start(&text, &FlightOptions { message_bytes, ..options(64) });
        let mut parts = [take(&server, 0, 2).await, take(&server, 1, 2).await];
        for expected in [0, 128, 128, 256] {
            for part in &mut parts {
                assert_eq!(next(part).await.unwrap().unwrap().1, expected);
            }
        }
    });
}

#[test]
fn a_client_that_leaves_early_is_counted_and_the_others_go_on() {
    let text = text(50_000);
    run(async {
        let expected = local(&text, 500);
        let server = start(&text, &options(500));
        for taken in [0, 1, 4] {
            let mut parts = Vec::new();
            for part in 0..3 {
                parts.push(take(&server, part, 3).await);
            }
            for _ in 0..taken {
                next(&mut parts[2]).await.unwrap().unwrap();
                next(&mut parts[0]).await.unwrap().unwrap();
                next(&mut parts[1]).await.unwrap().unwrap();
            }
            drop(parts.pop());
            let rest = together(&mut parts).await;
            let others = expected.iter().enumerate().skip(3 * taken).filter(|(at, _)| at % 3 < 2);
            assert_eq!(rest, others.map(|(_, batch)| batch.clone()).collect::<Vec<_>>());
            let report = report(&server).await;
            assert_eq!(report["rows"], 50_000);
            // The server may have sent some batches more than the client has taken. A part has 264
            // KB, and the connection's buffers hold less.
            let discarded = report["discarded_rows"].as_u64().unwrap();
            assert!((1..=16_500 - 500 * taken as u64).contains(&discarded), "{discarded}");
            assert_eq!(discarded % 500, 0);
        }
        // All leave, so the run ends, and the pipeline is free.
        let parts = [take(&server, 0, 2).await, take(&server, 1, 2).await];
        drop(parts);
        let mut whole =
            [get(&mut connect(&server).await, Value::Object(Default::default())).await.unwrap()];
        assert_eq!(together(&mut whole).await, expected);
    });
}

#[test]
fn a_client_that_never_comes_ends_the_epoch_of_the_others() {
    let text = text(1000);
    run(async {
        for (part, missing) in [(0, "part 1, 2 within"), (1, "part 0, 2 within")] {
            let server = start(&text, &FlightOptions { wait: Duration::ZERO, ..options(10) });
            let mut alone = take(&server, part, 3).await;
            let status = failure(&mut alone).await;
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(status.message().contains(missing), "{status}");
        }
    });
    // The epoch fits the queues, so the client sees its end before the wait is over. The server
    // stops with the pipeline although nothing came for the other part.
    let short: Arc<[u8]> = b"1\t1\n".repeat(20).into();
    run(async {
        let server = start(&short, &options(10));
        let mut first = take(&server, 0, 2).await;
        assert!(next(&mut first).await.unwrap().is_ok());
        assert!(next(&mut first).await.is_none());
        assert_eq!(server.stop().unwrap().vocabularies().count(), 1);
    });
}

#[test]
fn a_late_client_gets_its_whole_part() {
    let text = text(1000);
    run(async {
        let expected = local(&text, 10);
        let server = start(&text, &options(10));
        let mut first = take(&server, 0, 2).await;
        let begun = next(&mut first).await.unwrap().unwrap().0;
        let mut second = take(&server, 1, 2).await;
        let begun_second = next(&mut second).await.unwrap().unwrap().0;
        let rest = together(&mut [first, second]).await;
        assert_eq!([vec![begun, begun_second], rest].concat(), expected);
    });
}

#[test]
fn a_client_of_a_part_that_is_over_gets_the_next_epoch() {
    let text = text(20);
    run(async {
        let expected = local(&text, 10);
        let server = start(&text, &options(10));
        let mut first = take(&server, 0, 2).await;
        assert_eq!(next(&mut first).await.unwrap().unwrap().0, expected[0]);
        assert!(next(&mut first).await.is_none());
        // Another seed is no difference from the epoch under way: this client is done with it.
        let ticket = serde_json::json!({ "part": 0, "of": 2, "seed": 9 });
        let mut client = connect(&server).await;
        let again = get(&mut client, ticket);
        let server = &server;
        let second = async move {
            let mut second = take(server, 1, 2).await;
            assert_eq!(next(&mut second).await.unwrap().unwrap().0, expected[1]);
            assert!(next(&mut second).await.is_none());
            let ticket = serde_json::json!({ "part": 1, "of": 2, "seed": 9 });
            get(&mut connect(server).await, ticket).await.unwrap()
        };
        let (again, second) = tokio::join!(again, second);
        let rows = together(&mut [again.unwrap(), second]).await.concat();
        assert_eq!(rows.len(), 40);
    });
}

#[test]
fn clients_that_do_not_fit_an_epoch_are_refused() {
    let text = text(1000);
    run(async {
        let server = start(&text, &options(10));
        let mut client = connect(&server).await;
        for (part, of) in [(2, 2), (0, 0), (7, 3), (0, 5000)] {
            let ticket = serde_json::json!({ "part": part, "of": of });
            let refusal = get(&mut client, ticket).await.err().unwrap();
            assert_eq!(refusal.code(), Code::InvalidArgument);
            let expected = format!("`part` is {part} and `of` is {of}");
            assert!(refusal.message().starts_with(&expected), "{refusal}");
        }
        let refusal = get(&mut client, serde_json::json!({ "part": 0 })).await.err().unwrap();
        assert!(refusal.message().contains("`of` is none"), "{refusal}");

        let ticket = serde_json::json!({ "part": 0, "of": 3, "seed": 5 });
        let mut first = get(&mut client, ticket.clone()).await.unwrap();
        assert!(next(&mut first).await.unwrap().is_ok());
        let refusal = get(&mut connect(&server).await, ticket).await.err().unwrap();
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(refusal.message().contains("another client is taking part 0 of 3"), "{refusal}");
        for (other, difference) in [
            (serde_json::json!({ "part": 1, "of": 3 }), "`seed` is 5 there and absent here"),
            (serde_json::json!({ "part": 1, "of": 4, "seed": 5 }), "`of` is 3 there and 4 here"),
            (
                serde_json::json!({ "part": 2, "of": 3, "seed": 5, "learn": false, "skip_rows": 10 }),
                "`learn` is absent there and false here, `skip_rows` is absent there and 10 here",
            ),
            (
                serde_json::json!({ "part": 2, "of": 3, "seed": 5, "inputs": [["text", 1]] }),
                "`inputs` differ",
            ),
        ] {
            let refusal = get(&mut client, other).await.err().unwrap();
            assert_eq!(refusal.code(), Code::FailedPrecondition);
            assert!(refusal.message().contains(difference), "{refusal}");
        }
        // The refused clients have changed nothing.
        let more = |part| serde_json::json!({ "part": part, "of": 3, "seed": 5 });
        let mut parts = vec![first];
        for part in [1, 2] {
            parts.push(get(&mut client, more(part)).await.unwrap());
        }
        for part in &mut parts {
            assert!(next(part).await.unwrap().is_ok());
        }
    });
}

#[test]
fn a_client_waits_for_an_epoch_of_parts_and_is_refused_after_the_wait() {
    let text = text(50_000);
    run(async {
        let server = start(&text, &options(10));
        let parts = [take(&server, 0, 2).await, take(&server, 1, 2).await];
        let mut client = connect(&server).await;
        let mut undivided = Box::pin(get(&mut client, serde_json::json!({})));
        // The parts hold the epoch, so the call waits, however long this takes.
        let waits = tokio::time::timeout(Duration::from_millis(20), &mut undivided).await;
        assert!(waits.is_err());
        drop(parts);
        assert!(next(&mut undivided.await.unwrap()).await.unwrap().is_ok());

        let server = start(&text, &FlightOptions { wait: Duration::ZERO, ..options(10) });
        let mut first = get(&mut connect(&server).await, serde_json::json!({})).await.unwrap();
        assert!(next(&mut first).await.unwrap().is_ok());
        let ticket = serde_json::json!({ "part": 0, "of": 2 });
        let refusal = get(&mut connect(&server).await, ticket).await.err().unwrap();
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(refusal.message().contains("one epoch at a time"), "{refusal}");
    });
}

#[test]
fn an_error_comes_to_each_part_and_a_stop_ends_all() {
    let broken: Arc<[u8]> = [&*text(1000), b"7\tno number\n", &*text(10)].concat().into();
    run(async {
        let server = start(&broken, &options(10));
        for _ in 0..2 {
            let mut parts = [take(&server, 0, 2).await, take(&server, 1, 2).await];
            // The parts hold each other back, so they must be taken together.
            let [first, second] = &mut parts;
            let (first, second) = tokio::join!(failure(first), failure(second));
            for status in [first, second] {
                assert_eq!(status.code(), Code::DataLoss);
                assert!(status.message().starts_with("text:1001:3: "), "{status}");
            }
        }
    });
    let text = text(50_000);
    run(async {
        for clients in [1, 2, 3] {
            let server = start(&text, &options(10));
            let mut parts = Vec::new();
            for part in 0..clients {
                parts.push(take(&server, part, 3).await);
            }
            assert!(next(&mut parts[0]).await.unwrap().is_ok());
            assert_eq!(server.stop().unwrap().vocabularies().count(), 1);
            for part in &mut parts {
                // Batches in the connection's buffers still arrive. Then comes a failure.
                while next(part).await.expect("a failure, and no end").is_ok() {}
            }
        }
    });
    assert_eq!(Arc::strong_count(&text), 1, "nothing holds the input any more");
}
