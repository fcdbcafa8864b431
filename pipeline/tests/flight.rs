//! Tests feeds over Arrow Flight: they give the batches of a local feed, serve one client at a
//! time, and tell the client of their ends and failures.
#![cfg(feature = "flight")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Criteria, Empty, FlightDescriptor, Ticket};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, FeedInput, FeedOptions, Field, FieldKind, FlightOptions,
    FlightServer, Input, Operator, Output, Pipeline, RunOptions, Spec, VocabularySpec,
    arrow_schema,
};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

type Client = FlightServiceClient<Channel>;

/// A spec with a number and the id of a category, in outputs of all four types.
fn spec() -> Spec {
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![
            Column::field("n"),
            Column::field("c")
                .then(Operator::Modulus(1 << 20))
                .then(Operator::Vocabulary("c".to_owned())),
        ],
        outputs: vec![
            Output::new("f", Dtype::F32, ["n"]),
            Output::new("i", Dtype::I32, ["n", "n"]),
            Output::new("w", Dtype::I64, ["c", "n"]),
            Output::new("b", Dtype::Bits32, ["n"]),
        ],
        ..Spec::default()
    }
}

fn text(rows: usize) -> Arc<[u8]> {
    let line = |row: usize| format!("{row}\t{:x}\n", (row * 7919) % 1013);
    (0..rows).map(line).collect::<String>().into_bytes().into()
}

fn pipeline(spec: &Spec) -> Pipeline {
    let options = RunOptions { threads: 2, chunk_bytes: 300, ..Default::default() };
    Pipeline::new(spec, &options).unwrap()
}

fn feed_options(batch_rows: usize, shuffle_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows, shuffle_rows, seed: 3, ..Default::default() }
}

fn options(batch_rows: usize, shuffle_rows: usize) -> FlightOptions {
    // Longer than any test takes, so a waiting client is never refused.
    let wait = Duration::from_secs(60);
    FlightOptions { feed: feed_options(batch_rows, shuffle_rows), wait, ..Default::default() }
}

fn start(text: &Arc<[u8]>, options: &FlightOptions) -> FlightServer {
    let inputs = vec![FeedInput::memory("text", Arc::clone(text))];
    FlightServer::start(pipeline(&spec()), inputs, "127.0.0.1:0", options).unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(server: &FlightServer) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    // The smallest HTTP/2 windows, so few bytes are on their way.
    let endpoint =
        endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let client = FlightServiceClient::new(endpoint.connect().await.unwrap());
    client.max_decoding_message_size(usize::MAX)
}

/// Connects like a default client in Rust, which takes messages of at most 4 MiB.
async fn connect_limited(server: &FlightServer) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    FlightServiceClient::new(endpoint.connect().await.unwrap())
}

async fn get(client: &mut Client, ticket: &str) -> Result<FlightDataDecoder, Status> {
    let messages = client.do_get(Ticket::new(ticket.to_owned())).await?.into_inner();
    Ok(FlightDataDecoder::new(messages.map(|message| message.map_err(FlightError::from))))
}

/// Returns the next batch and the position after it.
async fn next(batches: &mut FlightDataDecoder) -> Option<Result<(RecordBatch, u64), FlightError>> {
    loop {
        let decoded = match batches.next().await? {
            Ok(decoded) => decoded,
            Err(error) => return Some(Err(error)),
        };
        if let DecodedPayload::RecordBatch(batch) = decoded.payload {
            let json: serde_json::Value =
                serde_json::from_slice(&decoded.inner.app_metadata).unwrap();
            return Some(Ok((batch, json["next_row"].as_u64().unwrap())));
        }
    }
}

/// Returns a batch's numbers and ids. The matrices must agree.
fn content(batch: &RecordBatch) -> Vec<(i32, i64)> {
    let column =
        |name: &str| batch.column_by_name(name).unwrap().as_fixed_size_list().values().clone();
    let (i, w) = (column("i"), column("w"));
    let (i, w) = (i.as_primitive::<Int32Type>().values(), w.as_primitive::<Int64Type>().values());
    let rows = batch.num_rows();
    assert_eq!((i.len(), w.len()), (rows * 2, rows * 2));
    assert_eq!((column("f").len(), column("b").len()), (rows, rows));
    (0..rows)
        .map(|row| {
            assert_eq!((i[row * 2], i64::from(i[row * 2])), (i[row * 2 + 1], w[row * 2 + 1]));
            (i[row * 2], w[row * 2])
        })
        .collect()
}

async fn all(client: &mut Client, ticket: &str) -> Vec<Vec<(i32, i64)>> {
    let mut batches = get(client, ticket).await.unwrap();
    let mut found = Vec::new();
    while let Some(batch) = next(&mut batches).await {
        found.push(content(&batch.unwrap().0));
    }
    found
}

/// Returns the batches of a feed in this process.
fn local(text: &Arc<[u8]>, options: &FeedOptions) -> Vec<Vec<(i32, i64)>> {
    let inputs = vec![FeedInput::memory("text", Arc::clone(text))];
    let feed = pipeline(&spec()).feed(inputs, options).unwrap();
    feed.map(|batch| content(&batch.unwrap().into_record_batch())).collect()
}

/// Regression test: every epoch gave ids to new values, so a server for evaluation changed its
/// vocabulary.
#[test]
fn an_epoch_that_is_not_to_learn_inserts_nothing() {
    let text = text(100);
    runtime().block_on(async {
        let mut spec = spec();
        let new = VocabularySpec::new("c");
        spec.vocabularies = vec![VocabularySpec { first_id: 1, unknown_id: Some(0), ..new }];
        let mut pipeline = pipeline(&spec);
        let some = text.split_inclusive(|&byte| byte == b'\n').take(10).flatten();
        let some: Vec<u8> = some.copied().collect();
        pipeline.run(&[Input::memory("some", &some)], &mut |_: &mut Batch| Ok(())).unwrap();
        let evaluation = pipeline.evaluation();
        let inputs = vec![FeedInput::memory("text", Arc::clone(&text))];
        let server =
            FlightServer::start(pipeline, inputs.clone(), "127.0.0.1:0", &options(8, 0)).unwrap();
        let mut client = connect(&server).await;
        let expected = |row: i64| if row < 10 { row + 1 } else { 0 };
        for _ in 0..2 {
            let found = all(&mut client, r#"{"learn": false}"#).await.concat();
            assert_eq!(found.len(), 100);
            assert!(found.iter().all(|&(row, id)| id == expected(i64::from(row))), "{found:?}");
        }
        // By default an epoch learns, also after epochs that did not.
        let found = all(&mut client, "").await.concat();
        assert!(found.iter().all(|&(row, id)| id == i64::from(row) + 1), "{found:?}");
        assert_eq!(server.stop().unwrap().vocabularies().next().unwrap().1.len(), 100);

        let server =
            FlightServer::start(evaluation, inputs, "127.0.0.1:0", &options(8, 0)).unwrap();
        let mut client = connect(&server).await;
        let refused = get(&mut client, r#"{"learn": true}"#).await.err().unwrap();
        assert!(refused.message().contains("looks values up and inserts nothing"), "{refused}");
        assert_eq!(all(&mut client, "").await.concat().len(), 100);
    });
}

#[test]
fn each_get_is_a_feed_of_the_same_batches_as_a_local_one() {
    let text = text(1000);
    runtime().block_on(async {
        for (batch_rows, shuffle_rows) in [(1, 0), (64, 0), (64, 300), (5000, 10)] {
            let server = start(&text, &options(batch_rows, shuffle_rows));
            let mut client = connect(&server).await;
            let expected = local(&text, &feed_options(batch_rows, shuffle_rows));
            for _ in 0..3 {
                // Vocabularies continue from feed to feed, so values keep their ids.
                assert_eq!(all(&mut client, "").await, expected);
            }
            let other = FeedOptions { seed: 8, ..feed_options(batch_rows, shuffle_rows) };
            assert_eq!(all(&mut client, r#"{"seed": 8}"#).await, local(&text, &other));
            let pipeline = server.stop().unwrap();
            assert_eq!(pipeline.vocabularies().next().unwrap().1.len(), 1000);
        }
    });
}

#[test]
fn a_get_goes_on_behind_any_batch_of_another() {
    let text = text(1000);
    runtime().block_on(async {
        for shuffle_rows in [0, 300] {
            let server = start(&text, &options(64, shuffle_rows));
            let mut client = connect(&server).await;
            let mut batches = get(&mut client, "{}").await.unwrap();
            let (mut positions, mut whole) = (vec![0], Vec::new());
            while let Some(batch) = next(&mut batches).await {
                let (batch, next_row) = batch.unwrap();
                whole.push(content(&batch));
                positions.push(next_row);
            }
            assert_eq!(positions.last(), Some(&1000));
            for taken in [0, 1, 7, whole.len()] {
                let ticket = format!("{{\"skip_rows\": {}}}", positions[taken]);
                assert_eq!(all(&mut client, &ticket).await, whole[taken..]);
                // A new server with empty vocabularies continues at this position too.
                let other = start(&text, &options(64, shuffle_rows));
                assert_eq!(all(&mut connect(&other).await, &ticket).await, whole[taken..]);
            }
        }
    });
}

/// A place comes in or before the message after which it counts, also if a batch has several
/// messages.
#[test]
fn a_get_with_a_place_does_not_read_the_rows_before_it() {
    let text = text(1000);
    runtime().block_on(async {
        let limits = [None, Some(300)];
        for message_bytes in limits {
            let server = start(&text, &FlightOptions { message_bytes, ..options(64, 0) });
            let mut client = connect(&server).await;
            let messages = client.do_get(Ticket::new("")).await.unwrap().into_inner();
            let mut messages =
                FlightDataDecoder::new(messages.map(|message| message.map_err(FlightError::from)));
            let (mut whole, mut states) = (Vec::new(), Vec::new());
            let (mut inputs, mut place) = (serde_json::Value::Null, serde_json::Value::Null);
            while let Some(decoded) = messages.next().await {
                let decoded = decoded.unwrap();
                let DecodedPayload::RecordBatch(batch) = decoded.payload else { continue };
                let told = decoded.inner.app_metadata;
                let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
                for (kept, name) in [(&mut inputs, "inputs"), (&mut place, "place")] {
                    told.get(name).inspect(|new| *kept = (*new).clone());
                }
                let rows = &told["next_row"];
                assert!(place.is_null() || place["rows"].as_u64() <= rows.as_u64(), "{told}");
                whole.push(content(&batch));
                states.push(
                    serde_json::json!({ "skip_rows": rows, "inputs": inputs, "place": place }),
                );
            }
            let last = states.len() - 1;
            for taken in [last / 2, last - 1, last] {
                let rest = all(&mut client, &states[taken].to_string()).await.concat();
                assert_eq!(rest, whole[taken + 1..].concat());
                let mut answer =
                    client.do_action(Action::new("report", "")).await.unwrap().into_inner();
                let body = answer.next().await.unwrap().unwrap().body;
                let report: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(report["rows"], 1000);
                assert!(report["passed_rows"].as_u64().unwrap() > 300, "{report}");
            }
        }
    });
}

#[test]
fn a_batch_is_one_message_unless_there_is_a_limit() {
    const ROWS: usize = 200_000;
    // A row has 32 bytes, so the batch has 6.4 MB. Clients in Rust take 4 MiB by default.
    let text = text(ROWS);
    runtime().block_on(async {
        let server = start(&text, &options(ROWS, 0));
        let mut client = connect(&server).await;
        let whole = all(&mut client, "").await;
        assert_eq!(whole.len(), 1);
        let mut limited = connect_limited(&server).await;
        let mut batches = get(&mut limited, "").await.unwrap();
        let Some(Err(FlightError::Tonic(refusal))) = next(&mut batches).await else {
            panic!("a batch came")
        };
        assert_eq!(refusal.code(), Code::OutOfRange, "{refusal}");
        drop(batches);

        let message_bytes = Some(1 << 20);
        let server = start(&text, &FlightOptions { message_bytes, ..options(ROWS, 0) });
        let mut limited = connect_limited(&server).await;
        let parts = all(&mut limited, "").await;
        assert_eq!(parts.len(), (ROWS * 32).div_ceil(1 << 20));
        assert_eq!(parts.concat(), whole[0]);
        // A feed can continue after a part of a batch.
        let ticket = format!("{{\"skip_rows\": {}}}", parts[0].len() + parts[1].len());
        assert_eq!(all(&mut limited, &ticket).await.concat(), parts[2..].concat());
    });
}

#[test]
fn a_bad_row_comes_as_a_failure_that_says_where() {
    let good = text(1000);
    let broken: Arc<[u8]> = [&*good, b"7\tno number\n", &*good].concat().into();
    runtime().block_on(async {
        let server = start(&broken, &options(10, 0));
        let mut client = connect(&server).await;
        // Runs twice, because the server must get its pipeline back after each failure.
        for _ in 0..2 {
            let mut batches = get(&mut client, "").await.unwrap();
            let mut rows = 0;
            let error = loop {
                match next(&mut batches).await.unwrap() {
                    Ok((batch, _)) => rows += batch.num_rows(),
                    Err(error) => break error,
                }
            };
            assert!((500..=1000).contains(&rows), "{rows} rows before it");
            let FlightError::Tonic(status) = error else { panic!("{error}") };
            assert_eq!(status.code(), Code::DataLoss);
            assert!(status.message().starts_with("text:1001:3: "), "{status}");
            let details: serde_json::Value = serde_json::from_slice(status.details()).unwrap();
            assert_eq!(
                details,
                serde_json::json!({ "input": "text", "line": 1001, "lines": 1, "column": 3 })
            );
            assert!(next(&mut batches).await.is_none());
        }
        let missing = vec![FeedInput::file("/not/there.tsv")];
        let address = "127.0.0.1:0";
        let server =
            FlightServer::start(pipeline(&spec()), missing, address, &options(10, 0)).unwrap();
        let mut batches = get(&mut connect(&server).await, "").await.unwrap();
        let error = next(&mut batches).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("/not/there.tsv"), "{error}");
    });
}

#[test]
fn bad_rows_that_are_left_out_are_in_the_report() {
    let text = [&*text(20), b"x\t1\n1\n"].concat();
    let spec = Spec { bad_rows: BadRows::Skip, ..spec() };
    runtime().block_on(async {
        let inputs = vec![FeedInput::memory("text", text)];
        let server =
            FlightServer::start(pipeline(&spec), inputs, "127.0.0.1:0", &options(8, 0)).unwrap();
        let mut client = connect(&server).await;
        let early = client.do_action(Action::new("report", "")).await.unwrap_err();
        assert_eq!(early.code(), Code::Unavailable);
        assert_eq!(all(&mut client, "").await.concat().len(), 20);
        let mut answer = client.do_action(Action::new("report", "")).await.unwrap().into_inner();
        let body = answer.next().await.unwrap().unwrap().body;
        let report: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&report["rows"], &report["bad_rows"]), (&20.into(), &2.into()));
        let first = report["first_bad_rows"][0].as_str().unwrap();
        assert!(first.starts_with("text:21:1: "), "{first}");
        let unknown = client.do_action(Action::new("stop", "")).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        let mut actions = client.list_actions(Empty {}).await.unwrap().into_inner();
        assert_eq!(actions.next().await.unwrap().unwrap().r#type, "report");
    });
}

#[test]
fn a_second_client_is_refused_when_the_wait_is_over() {
    let text = text(50_000);
    runtime().block_on(async {
        let server = start(&text, &FlightOptions { wait: Duration::ZERO, ..options(500, 0) });
        let (mut first, mut second) = (connect(&server).await, connect(&server).await);
        let mut batches = get(&mut first, "").await.unwrap();
        next(&mut batches).await.unwrap().unwrap();
        for client in [&mut second, &mut first.clone()] {
            let refusal = get(client, "").await.err().unwrap();
            assert_eq!(refusal.code(), Code::Unavailable);
            assert!(refusal.message().contains("one epoch at a time"), "{refusal}");
        }
        // After a client has seen the end of its feed, the pipeline is free for the next client.
        while let Some(batch) = next(&mut batches).await {
            batch.unwrap();
        }
        assert_eq!(all(&mut second, "").await.concat().len(), 50_000);
    });
}

#[test]
fn a_client_that_goes_away_frees_the_pipeline_for_one_that_waits() {
    let text = text(50_000);
    runtime().block_on(async {
        let server = start(&text, &options(500, 100));
        let expected = local(&text, &feed_options(500, 100));
        for taken in [0, 1, 5] {
            let mut first = connect(&server).await;
            let mut batches = get(&mut first, "").await.unwrap();
            for _ in 0..taken {
                next(&mut batches).await.unwrap().unwrap();
            }
            // Breaks off the call, then the whole connection.
            drop(batches);
            assert_eq!(all(&mut first, "").await, expected);
            let abandoned = get(&mut first, "").await.unwrap();
            drop((abandoned, first));
            assert_eq!(all(&mut connect(&server).await, "").await, expected);
        }
    });
}

#[test]
fn a_client_that_stands_still_holds_the_run_back() {
    // Each row has its own category, so the size of the vocabulary is the number of rows that the
    // server has read.
    const ROWS: usize = 200_000;
    let text = (0..ROWS).map(|row| format!("{row}\t{row:x}\n")).collect::<String>();
    let text: Arc<[u8]> = text.into_bytes().into();
    runtime().block_on(async {
        let server = start(&text, &options(2000, 0));
        let mut client = connect(&server).await;
        let mut batches = get(&mut client, "").await.unwrap();
        for _ in 0..2 {
            next(&mut batches).await.unwrap().unwrap();
        }
        // Gives the server time to run ahead: the time to make all batches twice.
        for _ in 0..2 {
            assert_eq!(local(&text, &feed_options(2000, 0)).len(), ROWS / 2000);
        }
        drop(batches);
        let pipeline = server.stop().unwrap();
        let (_, values) = pipeline.vocabularies().next().unwrap();
        // A batch has 88 KB. Seven may exist outside the connection. The client has taken two, and
        // two are in the feed. The run waits to put another one into the feed. The server's thread
        // has encoded one, and one is in the channel. The connection's buffers hold some hundred
        // KiB more.
        assert!((4000..=20 * 2000).contains(&values.len()), "{} rows", values.len());
    });
}

#[test]
fn a_server_that_is_stopped_or_dropped_ends_its_feed() {
    let text = text(50_000);
    runtime().block_on(async {
        for taken in [0, 2] {
            let server = start(&text, &options(500, 0));
            let mut client = connect(&server).await;
            let mut batches = get(&mut client, "").await.unwrap();
            for _ in 0..taken {
                next(&mut batches).await.unwrap().unwrap();
            }
            let pipeline = server.stop().unwrap();
            assert_eq!(pipeline.vocabularies().count(), 1);
            // Batches in the connection's buffers still arrive. Then comes a failure, not the end.
            let failed = loop {
                match next(&mut batches).await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => break true,
                    None => break false,
                }
            };
            assert!(failed);
        }
        let server = start(&text, &options(500, 0));
        let mut client = connect(&server).await;
        let batches = get(&mut client, "").await.unwrap();
        drop(server); // joins its threads
        drop(batches);
    });
    assert_eq!(Arc::strong_count(&text), 1, "nobody holds the input any more");
}

#[test]
fn a_feed_is_described_before_it_begins() {
    let text = text(100);
    runtime().block_on(async {
        let server = start(&text, &options(64, 0));
        let mut client = connect(&server).await;
        let expected = arrow_schema(pipeline(&spec()).outputs());
        assert_eq!(expected.field(2).metadata()["embank.columns"], r#"["c","n"]"#);
        let mut listed = client.list_flights(Criteria::default()).await.unwrap().into_inner();
        let listed = listed.next().await.unwrap().unwrap();
        let path = FlightDescriptor::new_path(vec!["feed".to_owned()]);
        assert_eq!(listed.flight_descriptor, Some(path.clone()));
        let by_path = client.get_flight_info(path.clone()).await.unwrap().into_inner();
        assert_eq!(by_path, listed);
        assert_eq!(by_path.try_decode_schema().unwrap(), *expected);
        let schema = client.get_schema(path).await.unwrap().into_inner();
        assert_eq!(arrow_schema::Schema::try_from(&schema).unwrap(), *expected);

        let command = FlightDescriptor::new_cmd(r#"{"skip_rows": 90}"#);
        let info = client.get_flight_info(command).await.unwrap().into_inner();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let ticket = String::from_utf8(ticket.ticket.to_vec()).unwrap();
        assert_eq!(all(&mut client, &ticket).await.concat().len(), 10);

        let elsewhere = FlightDescriptor::new_path(vec!["other".to_owned()]);
        let refusal = client.get_flight_info(elsewhere).await.unwrap_err();
        assert_eq!(refusal.code(), Code::NotFound);
        for ticket in ["7", "{\"skip\": 1}", "{\"seed\": -1}", "feed"] {
            let refusal = get(&mut client, ticket).await.err().unwrap();
            assert_eq!(refusal.code(), Code::InvalidArgument, "{ticket}");
            assert!(refusal.message().contains("skip_rows"), "{refusal}");
        }
        // A stream that begins at the end has a schema but no batches.
        let mut batches = get(&mut client, r#"{"skip_rows": 100}"#).await.unwrap();
        assert!(next(&mut batches).await.is_none());
        assert_eq!(batches.schema(), Some(&expected));
    });
}

/// Regression test: a position beyond the end gave an empty epoch, which a trainer takes for a
/// complete one.
#[test]
fn a_resume_beyond_the_end_is_out_of_range() {
    runtime().block_on(async {
        let text = text(100);
        for shuffle_rows in [0, 32] {
            let server = start(&text, &options(64, shuffle_rows));
            let mut client = connect(&server).await;
            for skip_rows in [101, 1000, u64::MAX] {
                let ticket = format!("{{\"skip_rows\": {skip_rows}}}");
                let mut batches = get(&mut client, &ticket).await.unwrap();
                let refusal = next(&mut batches).await.unwrap().unwrap_err().to_string();
                for expected in ["100 rows", &skip_rows.to_string()] {
                    assert!(refusal.contains(expected), "{refusal}");
                }
            }
            // The server still works after the failures.
            assert_eq!(all(&mut client, r#"{"skip_rows": 99}"#).await.concat().len(), 1);
        }
    });
}

#[test]
fn what_makes_no_sense_is_refused_at_the_start() {
    let refused = |address: &str, options: &FlightOptions| {
        FlightServer::start(pipeline(&spec()), Vec::new(), address, options)
            .unwrap_err()
            .to_string()
    };
    let any = "127.0.0.1:0";
    assert!(refused(any, &options(0, 0)).contains("batch_rows is 0"));
    let message_bytes = Some(0);
    let limited = FlightOptions { message_bytes, ..options(1, 0) };
    assert!(refused(any, &limited).contains("message_bytes"));
    let durable = FlightOptions { checkpoints: true, ..options(1, 0) };
    assert!(refused(any, &durable).contains("a server with checkpoints needs one"));
    assert!(refused("nowhere", &options(1, 0)).starts_with("listen on nowhere: "));
    // Regression test: when an input was a pipe, the first client got a part of the pipe's rows,
    // and later clients got empty epochs.
    let (reader, _writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let inputs = vec![FeedInput::memory("text", text(1)), FeedInput::file(&path)];
    let refusal = FlightServer::start(pipeline(&spec()), inputs, any, &options(1, 0)).unwrap_err();
    assert!(matches!(refusal, Error::Spec(_)), "{refusal}");
    let expected = format!("{path:?} can be read only once: write the pipe to a file first");
    assert!(refusal.to_string().ends_with(&expected), "{refusal}");
    let server = start(&text(1), &options(1, 0));
    assert!(
        refused(&server.address().to_string(), &options(1, 0)).contains("listen on 127.0.0.1:")
    );
}
