//! Statistics as named numbers, for monitoring.
//!
//! [`StoreStats`] is a struct for programs. A monitoring system also needs each number's name, kind
//! and help text, and gets a list of [`Metric`]s. The struct and the list are snapshots. Taking a
//! snapshot reads a few hundred counters and does not make batches wait.

use crate::stats::StoreStats;

/// How a number changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. It is 0 when the store is opened.
    Counter,
    /// Grows and shrinks.
    Gauge,
}

/// One number for monitoring.
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
    /// The metric's name, without the ending `_total` that the text format adds to counters.
    pub name: &'static str,
    /// Help text: what the number counts.
    pub help: &'static str,
    /// How the number changes over time.
    pub kind: Kind,
    /// Name and value of a label that distinguishes several metrics of one name. In a list of
    /// metrics, metrics of one name follow one another.
    pub label: Option<(&'static str, &'static str)>,
    /// The number. Times are in seconds, sizes in bytes.
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

    /// A counter in seconds. Its value is given in microseconds.
    #[must_use]
    pub fn seconds(name: &'static str, help: &'static str, microseconds: u64) -> Self {
        Metric { value: microseconds as f64 / 1e6, ..Metric::counter(name, help, 0) }
    }

    /// A gauge in seconds. Its value is given in microseconds.
    #[must_use]
    pub fn seconds_now(name: &'static str, help: &'static str, microseconds: u64) -> Self {
        Metric { kind: Kind::Gauge, ..Metric::seconds(name, help, microseconds) }
    }

    /// Returns this number with a label.
    #[must_use]
    pub fn labelled(self, key: &'static str, value: &'static str) -> Self {
        Metric { label: Some((key, value)), ..self }
    }
}

/// Unit of a number of the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, such as rows or batches.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Microseconds,
}

/// Position of a number in a view of the statistics that has groups, such as Python's nested
/// dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The group; `None` for a number outside the groups.
    pub group: Option<&'static str>,
    /// The number's name in the group.
    pub name: &'static str,
}

/// The name, label and help text of a number in monitoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Series {
    /// See [`Metric::name`].
    pub name: &'static str,
    /// See [`Metric::label`].
    pub label: Option<(&'static str, &'static str)>,
    /// See [`Metric::help`].
    pub help: &'static str,
}

/// One number of a snapshot of statistics, with its description.
///
/// ```
/// use embank_kv::StoreStats;
/// let fields = StoreStats::default().fields();
/// let hits = fields.iter().find(|field| field.name == "hits_disk").unwrap();
/// assert_eq!(hits.place.unwrap().group, Some("hits"));
/// assert_eq!(hits.series.unwrap().name, "embank_hits");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The name of the struct's field.
    pub name: &'static str,
    /// The field's documentation, one string for each line.
    pub docs: &'static [&'static str],
    /// How the number changes over time.
    pub kind: Kind,
    /// Unit of the number.
    pub unit: Unit,
    /// Position of the number in Python's dictionary of statistics. `None` for a number that this
    /// dictionary does not have.
    pub place: Option<Place>,
    /// Name, label and help text in monitoring. `None` for a number that monitoring does not show,
    /// such as a number of a single table.
    pub series: Option<Series>,
    /// The number.
    pub value: u64,
}

impl Field {
    /// Returns the number for monitoring, with times in seconds. `None` if monitoring does not show
    /// the number.
    #[must_use]
    pub fn metric(&self) -> Option<Metric> {
        let Series { name, label, help } = self.series?;
        let value = match self.unit {
            Unit::Microseconds => self.value as f64 / 1e6,
            Unit::Count | Unit::Bytes => self.value as f64,
        };
        Some(Metric { name, help, kind: self.kind, label, value })
    }
}

/// Declares a struct for a snapshot of statistics, by a table with one row for each number.
///
/// A row holds the whole description of a number:
///
/// - the documentation of the struct's field,
/// - its kind and its unit,
/// - after `in`, its position in views that have groups ([`Place`](crate::metrics::Place)),
/// - after `as`, its name, label and help text in monitoring ([`Series`](crate::metrics::Series)),
/// - after `from`, the expression that reads it from the store's counters.
///
/// A row may leave out the parts after `in`, `as` and `from`. Without `in` or `as`, that
/// description is `None`. Without `from`, the caller of `counted` sets the number. Rows with the
/// same name in monitoring must follow one another. Fields of the struct that are not numbers come
/// after `and`.
///
/// From the table, the macro makes the struct and its methods `fields` and `counted`. Monitoring,
/// Python's dictionaries and type stubs, and the structs of C are made from the result of `fields`.
#[doc(hidden)]
#[macro_export]
macro_rules! statistics {
    (
        $(#[$of_struct:meta])*
        pub struct $struct:ident $(counted by $counters:ty)? {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $kind:ident $unit:ident $(in $($place:ident).+)?
                    $(as $series:literal $({ $label:ident: $label_value:literal })? $help:literal)?
                    $(from |$c:ident| $read:expr)?;
            )*
        } and {
            $($(#[$of_other:meta])* pub $other:ident: $type:ty,)*
        }
    ) => {
        $(#[$of_struct])*
        pub struct $struct {
            $($(#[doc = $doc])* pub $field: u64,)*
            $($(#[$of_other])* pub $other: $type,)*
        }

        impl $struct {
            /// All numbers, each with its description.
            #[must_use]
            pub fn fields(&self) -> Vec<$crate::metrics::Field> {
                vec![$($crate::metrics::Field {
                    name: stringify!($field),
                    docs: &[$($doc),*],
                    kind: $crate::metrics::Kind::$kind,
                    unit: $crate::metrics::Unit::$unit,
                    place: $crate::statistics!(@place $($($place)+)?),
                    series: $crate::statistics!(
                        @series $($series, $help $(, $label = $label_value)?)?
                    ),
                    value: self.$field,
                },)*]
            }

            /// Returns a reference to the number of every field, so that a test can set the
            /// numbers.
            #[cfg(all(test, feature = "prometheus"))]
            pub(crate) fn numbers_mut(&mut self) -> Vec<&mut u64> {
                vec![$(&mut self.$field,)*]
            }
        }

        $crate::statistics!(
            @counted $struct [$($counters)?] $($field [$($c $read)?])*
        );
    };
    (@place) => { None };
    (@place $name:ident) => {
        Some($crate::metrics::Place { group: None, name: stringify!($name) })
    };
    (@place $group:ident $name:ident) => {
        Some($crate::metrics::Place { group: Some(stringify!($group)), name: stringify!($name) })
    };
    (@series) => { None };
    (@series $name:literal, $help:literal) => {
        Some($crate::metrics::Series { name: $name, label: None, help: $help })
    };
    (@series $name:literal, $help:literal, $label:ident = $value:literal) => {
        Some($crate::metrics::Series {
            name: $name,
            label: Some((stringify!($label), $value)),
            help: $help,
        })
    };
    (@counted $struct:ident [] $($field:ident [])*) => {};
    (@counted $struct:ident [$counters:ty] $($field:ident [$($c:ident $read:expr)?])*) => {
        impl $struct {
            /// Returns a snapshot with the numbers that are read from the store's counters. All
            /// other fields have their default value.
            pub(crate) fn counted(counters: &$counters) -> Self {
                let mut stats = Self::default();
                $($({
                    let $c = counters;
                    stats.$field = $read;
                })?)*
                stats
            }
        }
    };
}

impl StoreStats {
    /// All numbers that monitoring shows.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> = self.fields().iter().filter_map(Field::metric).collect();
        metrics.extend([
            Metric {
                value: self.written_bytes_per_changed_row(),
                ..Metric::gauge(
                    "embank_written_bytes_per_changed_row",
                    "Bytes written for each row changed, since the open",
                    0,
                )
            },
            Metric {
                value: self.space_amplification(),
                ..Metric::gauge("embank_space_amplification", "Log and parts on disk over rows", 0)
            },
            Metric {
                value: self.cold_debt(),
                ..Metric::gauge("embank_cold_debt", "Log or runs over their limit", 0)
            },
            Metric::gauge(
                "embank_compaction_stopped",
                "1 if compaction stopped at damage or a failure",
                u64::from(self.compaction_stopped.is_some()),
            ),
            Metric::gauge(
                "embank_not_removed",
                "Files and checkpoints that could not be cleared away",
                self.not_removed.len() as u64,
            ),
        ]);
        metrics
    }
}

/// Returns the metrics in the text format that Prometheus reads, OpenMetrics 1.0. A server must
/// send the text with the content type `application/openmetrics-text; version=1.0.0;
/// charset=utf-8`.
///
/// ```
/// let text = embank_kv::metrics::to_prometheus(&embank_kv::StoreStats::default().metrics());
/// assert!(text.contains("embank_keys_total{operation=\"get\"} 0.0"));
/// ```
#[cfg(feature = "prometheus")]
#[must_use]
pub fn to_prometheus(metrics: &[Metric]) -> String {
    encoded(vec![(None, metrics.to_vec())])
}

/// Returns the metrics of several banks in one text, in the format of [`to_prometheus`]. Each
/// number has the label `bank` with its bank's name. The names must differ.
///
/// ```
/// use embank_kv::StoreStats;
///
/// let metrics = || StoreStats::default().metrics();
/// let banks = vec![("train".to_owned(), metrics()), ("serve".to_owned(), metrics())];
/// let text = embank_kv::metrics::banks_to_prometheus(banks);
/// assert!(text.contains("embank_keys_total{bank=\"serve\",operation=\"get\"} 0.0"));
/// ```
#[cfg(feature = "prometheus")]
#[must_use]
pub fn banks_to_prometheus(banks: Vec<(String, Vec<Metric>)>) -> String {
    encoded(banks.into_iter().map(|(name, metrics)| (Some(name), metrics)).collect())
}

/// The metrics of banks. A bank without a name is alone.
#[cfg(feature = "prometheus")]
fn encoded(banks: Vec<(Option<String>, Vec<Metric>)>) -> String {
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

    /// Each metric with its bank's name. Metrics of one name follow one another.
    #[derive(Debug)]
    struct Snapshot(Vec<(Option<String>, Metric)>);

    impl prometheus_client::collector::Collector for Snapshot {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            for family in self.0.chunk_by(|(_, one), (_, next)| one.name == next.name) {
                let Metric { name, help, kind, .. } = family[0].1;
                let metric_type = match kind {
                    Kind::Counter => MetricType::Counter,
                    Kind::Gauge => MetricType::Gauge,
                };
                let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
                for (bank, Metric { label, value, .. }) in family {
                    let bank = bank.iter().map(|bank| ("bank", bank.as_str()));
                    let labels: Vec<_> = bank.chain(*label).collect();
                    // A metric without a label is written outside a family: an empty label set
                    // would be written as `{}`.
                    if labels.is_empty() {
                        write(&mut encoder, kind, *value)?;
                    } else {
                        write(&mut encoder.encode_family(&labels)?, kind, *value)?;
                    }
                }
            }
            Ok(())
        }
    }
    // The format wants the numbers of one name together, so the banks take turns.
    let mut places = std::collections::HashMap::new();
    let mut all = Vec::new();
    for (bank, metrics) in banks {
        for metric in metrics {
            let next = places.len();
            let place: usize = *places.entry(metric.name).or_insert(next);
            all.push((place, (bank.clone(), metric)));
        }
    }
    // The sort is stable, so the banks keep their order within a name.
    all.sort_by_key(|(place, _)| *place);
    let mut registry = Registry::default();
    let all = all.into_iter().map(|(_, metric)| metric).collect();
    registry.register_collector(Box::new(Snapshot(all)));
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
        let mut count = 0;
        for number in stats.numbers_mut() {
            *number = (1_000 + count) * 1_000_000;
            count += 1;
        }
        assert!(count > 60, "{count}");
        let text = to_prometheus(&stats.metrics());
        for number in 1_000..1_000 + count {
            let as_number = text.contains(&format!(" {number}000000.0\n"));
            let as_seconds = text.contains(&format!(" {number}.0\n"));
            assert!(as_number || as_seconds, "field number {} in:\n{text}", number - 1_000);
        }
    }

    #[test]
    fn numbers_of_one_series_follow_one_another() {
        let metrics = StoreStats::default().metrics();
        let mut names: Vec<_> =
            metrics.chunk_by(|a, b| a.name == b.name).map(|of| of[0].name).collect();
        let runs = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), runs);
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

    /// The texts of two banks could not be joined: both had the same series, and an end.
    #[test]
    fn the_text_of_several_banks_has_each_name_once_and_the_bank_as_a_label() {
        let of = |a, b| {
            vec![
                Metric::counter("a", "Help", a).labelled("k", "v"),
                Metric::counter("a", "Help", a).labelled("k", "w"),
                Metric::gauge("b", "More", b),
            ]
        };
        let mut odd = of(5, 6);
        odd.push(Metric::gauge("only", "One bank has it", 7));
        let text =
            banks_to_prometheus(vec![("x".to_owned(), of(3, 4)), ("a \"b\"".to_owned(), odd)]);
        let expected = r#"# HELP a Help
# TYPE a counter
a_total{bank="x",k="v"} 3.0
a_total{bank="x",k="w"} 3.0
a_total{bank="a \"b\"",k="v"} 5.0
a_total{bank="a \"b\"",k="w"} 5.0
# HELP b More
# TYPE b gauge
b{bank="x"} 4.0
b{bank="a \"b\""} 6.0
# HELP only One bank has it
# TYPE only gauge
only{bank="a \"b\""} 7.0
# EOF
"#;
        assert_eq!(text, expected);
        assert_eq!(banks_to_prometheus(vec![]), "# EOF\n");
    }
}
