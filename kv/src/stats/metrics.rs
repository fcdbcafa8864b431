//! Statistics as named numbers, for monitoring.
//!
//! [`StoreStats`] is a struct for programs; what scrapes a process wants names, kinds and help texts. Both
//! are snapshots: taking one costs some hundred loads and disturbs no batch.

use crate::stats::StoreStats;

/// How a number moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only up, from zero at the open.
    Counter,
    /// Up and down.
    Gauge,
}

/// One number.
///
/// ```
/// use embank_kv::StoreStats;
/// use embank_kv::metrics::Kind;
/// let metrics = StoreStats::default().metrics();
/// let batches = metrics.iter().find(|metric| metric.name == "embank_batches").unwrap();
/// assert_eq!((batches.kind, batches.value), (Kind::Counter, 0.0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its name, without the `_total` that a counter gets in the text.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// What tells it from others of the same name; these follow one another.
    pub label: Option<(&'static str, &'static str)>,
    /// Times are in seconds, sizes in bytes.
    pub value: f64,
}

impl Metric {
    /// A number that only grows.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Metric { name, help, kind: Kind::Counter, label: None, value: value as f64 }
    }

    /// A number that grows and shrinks.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Metric { kind: Kind::Gauge, ..Metric::counter(name, help, value) }
    }

    /// A counter of time, given in microseconds.
    #[must_use]
    pub fn seconds(name: &'static str, help: &'static str, microseconds: u64) -> Self {
        Metric { value: microseconds as f64 / 1e6, ..Metric::counter(name, help, 0) }
    }

    /// A gauge of time, given in microseconds.
    #[must_use]
    pub fn seconds_now(name: &'static str, help: &'static str, microseconds: u64) -> Self {
        Metric { kind: Kind::Gauge, ..Metric::seconds(name, help, microseconds) }
    }

    /// The same with a label.
    #[must_use]
    pub fn labelled(self, key: &'static str, value: &'static str) -> Self {
        Metric { label: Some((key, value)), ..self }
    }
}

impl StoreStats {
    /// All numbers, under the names that monitoring knows them by.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.operation_metrics();
        metrics.extend(self.disk_metrics());
        metrics.extend(self.space_metrics());
        metrics.extend(self.stall_metrics());
        metrics.extend(self.gauges());
        metrics
    }

    fn operation_metrics(&self) -> Vec<Metric> {
        let keys = |operation, value| {
            Metric::counter("embank_keys", "Keys of batches", value)
                .labelled("operation", operation)
        };
        let hits = |region, value| {
            Metric::counter("embank_hits", "Rows found", value).labelled("region", region)
        };
        let promoted = |fate, value| {
            Metric::counter("embank_promoted_rows", "Rows brought into memory ahead", value)
                .labelled("fate", fate)
        };
        vec![
            Metric::counter("embank_batches", "Batches run", self.batches),
            keys("peek", self.peek_keys),
            keys("get", self.get_keys),
            keys("update", self.update_keys),
            keys("put", self.put_keys),
            keys("delete", self.delete_keys),
            hits("mutable", self.hits_mutable),
            hits("read_only", self.hits_read_only),
            hits("disk", self.hits_disk),
            hits("cache", self.hits_cache),
            Metric::counter("embank_missing", "Rows looked for and missing", self.missing),
            Metric::counter("embank_inserted", "Rows inserted", self.inserted),
            Metric::counter("embank_changed", "Rows changed, inserted or deleted", self.changed),
            Metric::gauge(
                "embank_changed_since_checkpoint",
                "Changes of rows since the newest checkpoint",
                self.changed_since_checkpoint,
            ),
            Metric::counter("embank_deleted", "Rows deleted", self.deleted),
            Metric::counter("embank_records", "Records appended", self.records_appended),
            Metric::counter("embank_copied", "Records copied to the tail", self.copied_to_tail),
            Metric::counter(
                "embank_retained",
                "Rows kept from leaving memory because they are used often",
                self.retained,
            ),
            promoted("all", self.promoted),
            promoted("used", self.promoted_used),
            promoted("wasted", self.promoted_wasted),
            promoted("overtaken", self.overtaken),
        ]
    }

    fn disk_metrics(&self) -> Vec<Metric> {
        vec![
            Metric::counter("embank_disk_reads", "Read requests to the device", self.disk_reads),
            Metric::counter(
                "embank_disk_reads_joined",
                "Rows that came with the read of another",
                self.disk_reads_joined,
            ),
            Metric::gauge(
                "embank_disk_queue_depth_max",
                "The most reads that one batch had in flight",
                self.disk_queue_depth_max,
            ),
            Metric::counter("embank_disk_read_bytes", "Bytes read", self.disk_read_bytes),
            Metric::counter("embank_disk_write_bytes", "Bytes written", self.disk_write_bytes),
            Metric {
                value: self.written_bytes_per_changed_row(),
                ..Metric::gauge(
                    "embank_written_bytes_per_changed_row",
                    "Bytes written for each row changed, since the open",
                    0,
                )
            },
        ]
    }

    fn space_metrics(&self) -> Vec<Metric> {
        let gauge = Metric::gauge;
        let counter = Metric::counter;
        vec![
            gauge("embank_live_rows", "Rows that are there", self.live_rows),
            gauge("embank_live_bytes", "Bytes of their records", self.live_bytes),
            gauge("embank_log_disk_bytes", "Bytes of log on disk", self.log_disk_bytes),
            gauge("embank_log_held_bytes", "Bytes held for checkpoints", self.log_held_bytes),
            Metric {
                value: self.space_amplification(),
                ..gauge("embank_space_amplification", "Log on disk over rows", 0)
            },
            counter("embank_compacted_bytes", "Log compacted", self.compacted_bytes),
            counter("embank_compaction_copied_bytes", "Rows copied", self.compaction_copied_bytes),
            Metric::seconds("embank_compaction_seconds", "Time it took", self.compaction_us),
            counter("embank_freed_bytes", "Bytes given back", self.freed_bytes),
            counter("embank_freed_segments", "Segment files removed", self.segments_freed),
            gauge(
                "embank_compaction_stopped",
                "1 if compaction stopped at damage or a failure",
                u64::from(self.compaction_stopped.is_some()),
            ),
            gauge(
                "embank_not_removed",
                "Files and checkpoints that could not be cleared away",
                self.not_removed.len() as u64,
            ),
        ]
    }

    fn stall_metrics(&self) -> Vec<Metric> {
        let stalls = |cause, value| {
            Metric::counter("embank_stalls", "Times that batches stood still", value)
                .labelled("cause", cause)
        };
        let seconds = |cause, value| {
            Metric::seconds("embank_stalls_seconds", "How long they stood still", value)
                .labelled("cause", cause)
        };
        let longest = |cause, value| {
            Metric::seconds_now("embank_stall_longest_seconds", "The longest of them", value)
                .labelled("cause", cause)
        };
        vec![
            stalls("page", self.page_waits),
            stalls("compaction", self.compaction_waits),
            stalls("growth", self.growth_steps),
            stalls("checkpoint", self.checkpoints),
            seconds("page", self.page_waits_us),
            seconds("compaction", self.compaction_waits_us),
            seconds("growth", self.growth_steps_us),
            seconds("checkpoint", self.checkpoint_pauses_us),
            longest("page", self.page_waits_us_max),
            longest("compaction", self.compaction_waits_us_max),
            longest("growth", self.growth_steps_us_max),
            longest("growth (processor time)", self.growth_steps_cpu_us_max),
            longest("checkpoint", self.checkpoint_pauses_us_max),
            Metric::seconds_now(
                "embank_last_checkpoint_seconds",
                "Duration of the last checkpoint",
                self.last_checkpoint_us,
            ),
            Metric::seconds_now(
                "embank_last_checkpoint_pause_seconds",
                "How long the last checkpoint held batches",
                self.last_checkpoint_pause_us,
            ),
            Metric::gauge(
                "embank_newest_checkpoint",
                "The newest checkpoint's number",
                self.newest_checkpoint,
            ),
        ]
    }

    fn gauges(&self) -> Vec<Metric> {
        let memory = |part, value| {
            Metric::gauge("embank_memory_bytes", "Memory in use", value).labelled("part", part)
        };
        let log = |boundary, value| {
            Metric::gauge("embank_log_address", "Boundaries of the log, in bytes", value)
                .labelled("boundary", boundary)
        };
        vec![
            Metric::gauge(
                "embank_memory_budget_bytes",
                "The store's memory budget",
                self.memory_budget_bytes,
            ),
            memory("frames", self.memory_frames_bytes),
            memory("index", self.memory_index_bytes),
            memory("cache", self.memory_cache_bytes),
            memory("buffers", self.memory_buffers_bytes),
            Metric::gauge("embank_index_entries", "Index slots in use", self.index_entries),
            log("begin", self.log_begin),
            log("head", self.log_head),
            log("read_only", self.log_read_only),
            log("tail", self.log_tail),
            Metric::gauge(
                "embank_log_address_left_bytes",
                "Bytes of log that can be appended before the bank's addresses are used up",
                self.log_address_left_bytes,
            ),
            Metric::gauge("embank_page_bytes", "Size of a log page", self.page_size_bytes),
        ]
    }
}

/// The metrics in the text format that Prometheus scrapes (OpenMetrics 1.0; serve it as
/// `application/openmetrics-text; version=1.0.0; charset=utf-8`).
///
/// ```
/// let text = embank_kv::metrics::to_prometheus(&embank_kv::StoreStats::default().metrics());
/// assert!(text.contains("embank_keys_total{operation=\"get\"} 0.0"));
/// ```
#[cfg(feature = "prometheus")]
#[must_use]
pub fn to_prometheus(metrics: &[Metric]) -> String {
    use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::registry::Registry;

    fn write(
        encoder: &mut MetricEncoder<'_>,
        kind: Kind,
        value: f64,
    ) -> Result<(), std::fmt::Error> {
        match kind {
            Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
            Kind::Gauge => encoder.encode_gauge(&value),
        }
    }

    #[derive(Debug)]
    struct Snapshot(Vec<Metric>);

    impl prometheus_client::collector::Collector for Snapshot {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            for family in self.0.chunk_by(|one, next| one.name == next.name) {
                let Metric { name, help, kind, .. } = family[0];
                let metric_type = match kind {
                    Kind::Counter => MetricType::Counter,
                    Kind::Gauge => MetricType::Gauge,
                };
                let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
                for &Metric { label, value, .. } in family {
                    // Without a label no family: an empty set of labels would be written as {}.
                    match label {
                        Some(label) => write(&mut encoder.encode_family(&[label])?, kind, value)?,
                        None => write(&mut encoder, kind, value)?,
                    }
                }
            }
            Ok(())
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(metrics.to_vec())));
    let mut text = String::new();
    let encoded = prometheus_client::encoding::text::encode(&mut text, &registry);
    encoded.expect("writing to a string does not fail");
    text
}

#[cfg(all(test, feature = "prometheus"))]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_statistics_reaches_the_text() {
        let mut stats = StoreStats::default();
        // A new field does not compile here until it is named; give it a metric too.
        let StoreStats {
            device: _,
            device_notes: _,
            batches,
            peek_keys,
            get_keys,
            update_keys,
            put_keys,
            delete_keys,
            changed,
            deleted,
            hits_mutable,
            hits_read_only,
            hits_disk,
            hits_cache,
            missing,
            inserted,
            records_appended,
            copied_to_tail,
            retained,
            disk_reads,
            disk_reads_joined,
            disk_queue_depth_max,
            disk_read_bytes,
            disk_write_bytes,
            promoted,
            promoted_used,
            promoted_wasted,
            overtaken,
            page_waits,
            page_waits_us,
            page_waits_us_max,
            growth_steps,
            growth_steps_us,
            growth_steps_us_max,
            growth_steps_cpu_us_max,
            checkpoint_pauses_us,
            checkpoint_pauses_us_max,
            memory_budget_bytes,
            memory_frames_bytes,
            memory_index_bytes,
            memory_cache_bytes,
            memory_buffers_bytes,
            index_entries,
            live_rows,
            live_bytes,
            log_disk_bytes,
            log_held_bytes,
            compacted_bytes,
            compaction_copied_bytes,
            compaction_us,
            compaction_waits,
            compaction_waits_us,
            compaction_waits_us_max,
            freed_bytes,
            segments_freed,
            compaction_stopped: _,
            not_removed: _,
            log_begin,
            log_head,
            log_read_only,
            log_tail,
            page_size_bytes,
            log_address_left_bytes,
            log_address_warning: _,
            checkpoints,
            last_checkpoint_us,
            last_checkpoint_pause_us,
            newest_checkpoint,
            changed_since_checkpoint,
        } = &mut stats;
        let fields = [
            batches,
            peek_keys,
            get_keys,
            update_keys,
            put_keys,
            delete_keys,
            changed,
            deleted,
            hits_mutable,
            hits_read_only,
            hits_disk,
            hits_cache,
            missing,
            inserted,
            records_appended,
            copied_to_tail,
            retained,
            disk_reads,
            disk_reads_joined,
            disk_queue_depth_max,
            disk_read_bytes,
            disk_write_bytes,
            promoted,
            promoted_used,
            promoted_wasted,
            overtaken,
            page_waits,
            page_waits_us,
            page_waits_us_max,
            growth_steps,
            growth_steps_us,
            growth_steps_us_max,
            growth_steps_cpu_us_max,
            checkpoint_pauses_us,
            checkpoint_pauses_us_max,
            memory_budget_bytes,
            memory_frames_bytes,
            memory_index_bytes,
            memory_cache_bytes,
            memory_buffers_bytes,
            index_entries,
            live_rows,
            live_bytes,
            log_disk_bytes,
            log_held_bytes,
            compacted_bytes,
            compaction_copied_bytes,
            compaction_us,
            compaction_waits,
            compaction_waits_us,
            compaction_waits_us_max,
            freed_bytes,
            segments_freed,
            log_begin,
            log_head,
            log_read_only,
            log_tail,
            page_size_bytes,
            log_address_left_bytes,
            checkpoints,
            last_checkpoint_us,
            last_checkpoint_pause_us,
            newest_checkpoint,
            changed_since_checkpoint,
        ];
        let count = fields.len() as u64;
        for (number, field) in (1_000..).zip(fields) {
            *field = number * 1_000_000;
        }
        let text = to_prometheus(&stats.metrics());
        for number in 1_000..1_000 + count {
            let as_number = text.contains(&format!(" {number}000000.0\n"));
            let as_seconds = text.contains(&format!(" {number}.0\n"));
            assert!(as_number || as_seconds, "field number {} in:\n{text}", number - 1_000);
        }
    }

    #[test]
    fn the_text_names_kind_and_label_and_ends_as_it_must() {
        let text = to_prometheus(&[
            Metric::counter("a", "Help", 3).labelled("k", "v"),
            Metric::gauge("b", "More", 4),
        ]);
        let expected = "# HELP a Help\n# TYPE a counter\na_total{k=\"v\"} 3.0\n\
                        # HELP b More\n# TYPE b gauge\nb 4.0\n# EOF\n";
        assert_eq!(text, expected);
    }
}
