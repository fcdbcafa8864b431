//! Translates the properties of YCSB's files into settings of a run.
//!
//! Each property of YCSB's client and core workload has one line in the table [`NAMES`]. The line
//! says that the program honours the property, accepts only some values of it, or gives it no
//! effect. The program ignores a name that is not in the table, with a warning, because each of
//! YCSB's store bindings has names of its own.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::distribution::Distribution;
use crate::keyspace::KeyOrder;
use crate::output;
use crate::properties::{Properties, Property, PropertyArgs};
use crate::worker::ScanLengths;
use crate::workload::Mix;

/// The treatment of a known property.
enum Rule {
    /// [`Core`] takes its value.
    Honoured,
    /// The program accepts only these values, because a run does what they ask anyway. Any other
    /// value is an error with this reason.
    Only(&'static [&'static str], &'static str),
    /// The program accepts any value, but it has no effect. A warning gives this reason.
    NoEffect(&'static str),
}

use Rule::{Honoured, NoEffect, Only};

const BOOLEANS: &[&str] = &["true", "false"];
const NO_FIELDS: &str = "a value is one piece here; its length is fieldcount times fieldlength";
const NO_FILES: &str = "latencies go to the report and to --json FILE alone";

const NAMES: &[(&str, Rule)] = &[
    (
        "workload",
        Only(
            &["site.ycsb.workloads.CoreWorkload", "com.yahoo.ycsb.workloads.CoreWorkload", "core"],
            "only YCSB's CoreWorkload is built in",
        ),
    ),
    ("recordcount", Honoured),
    ("operationcount", Honoured),
    ("maxexecutiontime", Honoured),
    ("threadcount", Honoured),
    ("target", Honoured),
    ("fieldcount", Honoured),
    ("fieldlength", Honoured),
    ("readproportion", Honoured),
    ("updateproportion", Honoured),
    ("insertproportion", Honoured),
    ("scanproportion", Honoured),
    ("readmodifywriteproportion", Honoured),
    ("requestdistribution", Honoured),
    ("zipfianconstant", Honoured),
    ("zipfian_const", Honoured),
    ("hotspotdatafraction", Honoured),
    ("hotspotopnfraction", Honoured),
    ("minscanlength", Honoured),
    ("maxscanlength", Honoured),
    ("scanlengthdistribution", Honoured),
    ("insertorder", Honoured),
    ("insertcount", Honoured),
    ("insertstart", Only(&["0"], "a load begins with row 0")),
    ("fieldlengthdistribution", Only(&["constant"], "all values of a store have one length")),
    ("minfieldlength", NoEffect("all values of a store have one length")),
    ("fieldlengthhistogram", NoEffect("all values of a store have one length")),
    ("fieldnameprefix", NoEffect(NO_FIELDS)),
    ("readallfields", Only(&["true"], NO_FIELDS)),
    ("readallfieldsbyname", NoEffect(NO_FIELDS)),
    ("writeallfields", Honoured),
    ("dataintegrity", Only(BOOLEANS, "it is true or false; answers are always checked")),
    ("core_workload_insertion_retry_limit", Only(&["0"], "an insertion that fails ends the run")),
    ("core_workload_insertion_retry_interval", NoEffect("insertions are not tried again")),
    ("zeropadding", NoEffect("keys are 64-bit numbers")),
    ("table", NoEffect("a store holds one table")),
    ("columnfamily", NoEffect("a store holds one table")),
    ("db", NoEffect("--engine names the store")),
    ("dotransactions", NoEffect("the commands `load` and `run` are the two phases")),
    ("exponential.percentile", NoEffect("there is no exponential distribution here")),
    ("exponential.frac", NoEffect("there is no exponential distribution here")),
    ("measurement.interval", Only(&["op", "intended", "both"], "it is op, intended or both")),
    ("measurementtype", Only(&["hdrhistogram", "histogram"], NO_FILES)),
    ("measurement.raw.output_file", NoEffect(NO_FILES)),
    ("measurement.trackjvm", Only(&["false"], "there is no Java machine to watch")),
    ("hdrhistogram.percentiles", Honoured),
    ("hdrhistogram.fileoutput", Only(&["false"], NO_FILES)),
    ("hdrhistogram.output.path", NoEffect(NO_FILES)),
    ("histogram.buckets", NoEffect("latencies are HdrHistograms of three digits")),
    ("timeseries.granularity", NoEffect("latencies are HdrHistograms of three digits")),
    ("exporter", NoEffect("the report is text, and --json FILE writes JSON")),
    ("exportfile", Only(&[], "name the file with --json FILE")),
    ("reportlatencyforeacherror", Only(&["false"], "an operation that fails ends the run")),
    ("latencytrackederrors", NoEffect("an operation that fails ends the run")),
    ("spin.sleep", NoEffect("a wait for a start sleeps, and spins for the last part only")),
    ("status.interval", NoEffect("a bar on a terminal shows the progress")),
    ("label", NoEffect("reports have no labels")),
];

/// A value and the option or property that set it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked<T> {
    pub(crate) value: T,
    /// The name of the option, or the name of the property and its file.
    pub(crate) by: String,
}

/// The settings that properties ask for. Every field is `None` or false if there are no properties.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Core {
    /// True if there are properties. Settings that are not given then have YCSB's defaults.
    pub(crate) given: bool,
    pub(crate) rows: Option<Asked<u64>>,
    pub(crate) value_bytes: Option<Asked<u64>>,
    pub(crate) key_order: Option<Asked<KeyOrder>>,
    /// The number of operations; 0 means no limit.
    pub(crate) operations: Option<u64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) threads: Option<usize>,
    pub(crate) target: Option<u64>,
    pub(crate) mix: Option<Mix>,
    pub(crate) distribution: Option<Distribution>,
    pub(crate) theta: Option<f64>,
    pub(crate) hot_rows: Option<f64>,
    pub(crate) hot_operations: Option<f64>,
    pub(crate) scan_rows_min: Option<u64>,
    pub(crate) scan_rows_max: Option<u64>,
    pub(crate) scan_lengths: Option<ScanLengths>,
}

impl Core {
    /// Reads the properties of a command line. Warns of names that are unknown or have no effect.
    ///
    /// # Errors
    /// Returns an error for an unreadable file, and for a value that is malformed or cannot be
    /// honoured.
    pub(crate) fn read(args: &PropertyArgs) -> Result<Self> {
        let properties = args.read()?;
        let (core, warnings) = Core::of(&properties)?;
        warnings.iter().for_each(output::warn);
        Ok(core)
    }

    fn of(properties: &Properties) -> Result<(Self, Vec<String>)> {
        let mut warnings = check_names(properties)?;
        if properties.is_empty() {
            return Ok((Core::default(), warnings));
        }
        let get = Getter(properties);
        check_percentiles(&get)?;
        let core = Core {
            given: true,
            rows: rows(&get)?,
            value_bytes: value_bytes(&get)?,
            key_order: get.choice("insertorder", "", |value| match value {
                "hashed" => Some(KeyOrder::Hashed),
                "ordered" => Some(KeyOrder::Ordered),
                _ => None,
            })?,
            operations: get.number("operationcount")?,
            seconds: get.number::<u64>("maxexecutiontime")?.filter(|&s| s > 0).map(|s| s as f64),
            threads: get.positive("threadcount")?.map(|threads| threads as usize),
            target: get.number("target")?.filter(|&target| target > 0),
            mix: Some(mix(&get, &mut warnings)?),
            distribution: distribution(&get)?,
            theta: get.number("zipfian_const")?.or(get.number("zipfianconstant")?),
            hot_rows: get.share("hotspotdatafraction")?,
            hot_operations: get.share("hotspotopnfraction")?,
            scan_rows_min: get.positive("minscanlength")?,
            scan_rows_max: get.positive("maxscanlength")?,
            scan_lengths: get
                .choice("scanlengthdistribution", "", |value| match value {
                    "uniform" => Some(ScanLengths::Uniform),
                    "zipfian" => Some(ScanLengths::Zipfian),
                    _ => None,
                })?
                .map(|asked| asked.value),
        };
        Ok((core, warnings))
    }
}

/// Applies the table [`NAMES`] to every property that is set. Returns the warnings, or an error for
/// a value that the table does not accept.
fn check_names(properties: &Properties) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (name, property) in properties {
        let Property { value, origin } = property;
        match NAMES.iter().find(|(known, _)| known == name) {
            Some((_, Honoured)) => {}
            Some((_, Only(values, reason))) => {
                ensure!(values.contains(&&**value), refusal(name, property, reason));
            }
            Some((_, NoEffect(reason))) => {
                warnings.push(format!("{origin}: {name} has no effect: {reason}"));
            }
            None => {
                let lower = name.to_lowercase();
                let near = NAMES.iter().find(|(known, _)| *known == lower);
                let hint = near.map_or(String::new(), |(n, _)| format!("; did you mean {n}?"));
                warnings.push(format!("{origin}: unknown property {name:?} is ignored{hint}"));
            }
        }
    }
    Ok(warnings)
}

fn refusal(name: &str, property: &Property, reason: impl Display) -> String {
    format!("{}: {name}={}: {reason}", property.origin, property.value.escape_debug())
}

/// Typed access to properties. An error names the file, the property and the value.
struct Getter<'a>(&'a Properties);

impl Getter<'_> {
    fn refuse<T>(&self, name: &str, reason: impl Display) -> Result<T> {
        let property = self.0.get(name).context("only a property that is named is refused")?;
        bail!(refusal(name, property, reason))
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|property| &*property.value)
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.refuse(name, "it is no number of this property"),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<u64>> {
        match self.number(name)? {
            Some(0) => self.refuse(name, "it must be 1 or more"),
            number => Ok(number),
        }
    }

    fn share(&self, name: &str) -> Result<Option<f64>> {
        match self.number(name)? {
            Some(share) if !(0.0..=1.0).contains(&share) => {
                self.refuse(name, "it is no share: it is not from 0 to 1")
            }
            share => Ok(share),
        }
    }

    fn choice<T>(
        &self,
        name: &str,
        why: &str,
        choose: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<Asked<T>>> {
        let Some(property) = self.0.get(name) else { return Ok(None) };
        let by = format!("{name} of {}", property.origin);
        match choose(&property.value) {
            Some(value) => Ok(Some(Asked { value, by })),
            None => self.refuse(name, format!("no such choice here{why}")),
        }
    }
}

fn rows(get: &Getter<'_>) -> Result<Option<Asked<u64>>> {
    if get.value("recordcount") == Some("0") {
        return get.refuse("recordcount", "0 stands for 2,147,483,647 in YCSB; write the number");
    }
    let rows: Option<u64> = get.number("recordcount")?;
    let inserted: Option<u64> = get.number("insertcount")?;
    if inserted.is_some() && inserted != rows {
        return get.refuse("insertcount", "a load inserts all rows: it must be recordcount");
    }
    let by = get.0.get("recordcount").map(|p| format!("recordcount of {}", p.origin));
    Ok(rows.zip(by).map(|(value, by)| Asked { value, by }))
}

/// Returns the length of a value: the number of its fields times the length of a field.
fn value_bytes(get: &Getter<'_>) -> Result<Option<Asked<u64>>> {
    let (count, length) = (get.positive("fieldcount")?, get.positive("fieldlength")?);
    if get.value("writeallfields").is_some_and(|all| all != "true") && count != Some(1) {
        return get.refuse(
            "writeallfields",
            "an update writes the whole value here; set it to true, or fieldcount to 1",
        );
    }
    let named = ["fieldlength", "fieldcount"].into_iter().find_map(|name| {
        let property = get.0.get(name)?;
        Some((name, &property.origin))
    });
    let Some((name, origin)) = named else { return Ok(None) };
    let (count, length) = (count.unwrap_or(FIELD_COUNT), length.unwrap_or(FIELD_BYTES));
    let Some(value) = count.checked_mul(length) else {
        return get.refuse(name, "fieldcount times fieldlength is too large");
    };
    let by = format!("fieldcount {count} times fieldlength {length}, {name} of {origin}");
    Ok(Some(Asked { value, by }))
}

/// YCSB's default number of fields.
const FIELD_COUNT: u64 = 10;
/// YCSB's default length of a field in bytes.
const FIELD_BYTES: u64 = 100;
/// Default length of a value if properties are given: the length of all of YCSB's fields.
pub(crate) const VALUE_BYTES: u64 = FIELD_COUNT * FIELD_BYTES;
/// Default number of rows of the longest scan if properties are given, as in YCSB.
pub(crate) const SCAN_ROWS_MAX: u64 = 1_000;

/// Returns the shares of the operations. YCSB takes the shares as weights. If their sum is not 1,
/// this function scales them and adds a warning.
fn mix(get: &Getter<'_>, warnings: &mut Vec<String>) -> Result<Mix> {
    let mut shares = [0.95, 0.05, 0.0, 0.0, 0.0];
    let names = [
        "readproportion",
        "updateproportion",
        "insertproportion",
        "scanproportion",
        "readmodifywriteproportion",
    ];
    for (share, name) in shares.iter_mut().zip(names) {
        *share = get.share(name)?.unwrap_or(*share);
    }
    let sum: f64 = shares.iter().sum();
    ensure!(sum > 0.0, "the properties ask for no operation: all proportions are 0");
    if (sum - 1.0).abs() > 1e-6 {
        let [read, update, ..] = shares;
        warnings.push(format!(
            "the proportions add up to {sum}, and are scaled to 1 (YCSB's default is readproportion 0.95 and \
             updateproportion 0.05; here they are {read} and {update})"
        ));
    }
    let [read, update, insert, scan, rmw] = shares.map(|share| share / sum);
    Ok(Mix { read, update, insert, scan, rmw })
}

fn distribution(get: &Getter<'_>) -> Result<Option<Distribution>> {
    let why = ": there are uniform, zipfian, latest and hotspot";
    let chosen = get.choice("requestdistribution", why, |value| match value {
        "uniform" => Some(Distribution::Uniform),
        // With this name, YCSB's core workload means its scrambled Zipf distribution.
        "zipfian" => Some(Distribution::Scrambled),
        "latest" => Some(Distribution::Latest),
        "hotspot" => Some(Distribution::Hotspot),
        _ => None,
    })?;
    Ok(chosen.map(|asked| asked.value))
}

fn check_percentiles(get: &Getter<'_>) -> Result<()> {
    let name = "hdrhistogram.percentiles";
    let Some(value) = get.value(name) else { return Ok(()) };
    let reported = ["50", "95", "99", "99.9"];
    if value.split(',').all(|percentile| reported.contains(&percentile.trim())) {
        return Ok(());
    }
    get.refuse(name, "the report has 50, 95, 99 and 99.9")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(pairs: &[(&str, &str)]) -> Result<(Core, Vec<String>)> {
        let property = |value: &str| Property { value: value.to_owned(), origin: "w:1".to_owned() };
        let all = pairs.iter().map(|(name, value)| ((*name).to_owned(), property(value)));
        Core::of(&all.collect())
    }

    #[test]
    fn without_properties_nothing_is_asked() {
        assert_eq!(core(&[]).unwrap(), (Core::default(), Vec::new()));
    }

    #[test]
    fn values_of_ycsb_are_honoured() {
        let (core, warnings) = core(&[
            ("recordcount", "1000"),
            ("fieldcount", "4"),
            ("fieldlength", "16"),
            ("readproportion", "0.25"),
            ("updateproportion", "0"),
            ("readmodifywriteproportion", "0.75"),
            ("requestdistribution", "zipfian"),
            ("zipfian_const", "0.8"),
            ("insertorder", "ordered"),
            ("maxscanlength", "7"),
            ("minscanlength", "3"),
            ("scanlengthdistribution", "zipfian"),
            ("threadcount", "3"),
            ("target", "500"),
            ("maxexecutiontime", "9"),
            ("hdrhistogram.percentiles", "95,99"),
        ])
        .unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(core.rows.unwrap().value, 1_000);
        assert_eq!(core.value_bytes.unwrap().value, 64);
        assert_eq!(core.mix.unwrap(), Mix { read: 0.25, rmw: 0.75, ..Mix::default() });
        assert_eq!(core.distribution, Some(Distribution::Scrambled));
        assert_eq!((core.theta, core.threads, core.target), (Some(0.8), Some(3), Some(500)));
        assert_eq!(core.key_order.unwrap().value, KeyOrder::Ordered);
        assert_eq!((core.scan_rows_min, core.scan_rows_max), (Some(3), Some(7)));
        assert_eq!((core.scan_lengths, core.seconds), (Some(ScanLengths::Zipfian), Some(9.0)));
    }

    #[test]
    fn every_value_that_cannot_be_honoured_is_refused_with_its_place_and_reason() {
        for (name, value) in [
            ("workload", "site.ycsb.workloads.TimeSeriesWorkload"),
            ("recordcount", "0"),
            ("recordcount", "1k"),
            ("operationcount", "-1"),
            ("threadcount", "0"),
            ("fieldlength", "0"),
            ("fieldlength", "99999999999999999999"),
            ("fieldlength", "9999999999999999999"),
            ("fieldlengthdistribution", "uniform"),
            ("readproportion", "1.5"),
            ("readproportion", "NaN"),
            ("requestdistribution", "exponential"),
            ("requestdistribution", "sequential"),
            ("hotspotdatafraction", "2"),
            ("scanlengthdistribution", "exponential"),
            ("maxscanlength", "0"),
            ("insertorder", "random"),
            ("insertstart", "5"),
            ("insertcount", "5"),
            ("readallfields", "false"),
            ("writeallfields", "false"),
            ("measurementtype", "raw"),
            ("measurement.interval", "never"),
            ("hdrhistogram.percentiles", "75"),
            ("exportfile", "x"),
            ("core_workload_insertion_retry_limit", "3"),
        ] {
            let error = format!("{:#}", core(&[(name, value)]).unwrap_err());
            assert!(error.starts_with(&format!("w:1: {name}={value}: ")), "{error}");
        }
    }

    #[test]
    fn names_without_effect_and_unknown_names_are_warned_of() {
        let (_, warnings) =
            core(&[("recordCount", "5"), ("table", "t"), ("rocksdb.dir", "/x")]).unwrap();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].contains("did you mean recordcount?"), "{warnings:?}");
        assert!(warnings[1].contains("\"rocksdb.dir\" is ignored"), "{warnings:?}");
        assert!(warnings[2].contains("table has no effect"), "{warnings:?}");
    }

    #[test]
    fn proportions_are_weights() {
        let (core, warnings) = core(&[("readproportion", "1"), ("updateproportion", "1")]).unwrap();
        assert_eq!(core.mix.unwrap(), Mix { read: 0.5, update: 0.5, ..Mix::default() });
        assert!(warnings[0].contains("add up to 2"), "{warnings:?}");
    }
}
