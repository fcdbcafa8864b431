//! Makes pipelines from arbitrary JSON or operators. Each pipeline runs or is refused. A pipeline
//! that runs must give the same result for every level, number of threads and chunk size.

use arbitrary::Arbitrary;
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, Source, Spec, Value, VocabularySpec,
};

use super::reference::{Kind, expected_of_input};

/// Largest modulus of a vocabulary here. The pipeline allows 2^31, but a table of that size takes 8
/// GiB.
const MODULUS_MAX: u32 = 1 << 16;
const COLUMNS_MAX: usize = 16;

/// A pipeline and a text for it.
#[derive(Debug, Arbitrary)]
pub struct Pipelines {
    format: u8,
    chunk: u16,
    keep: Option<u8>,
    text: Vec<u8>,
    of: Of,
}

#[derive(Debug, Arbitrary)]
enum Of {
    Json(String),
    Made(Made),
}

#[derive(Debug, Arbitrary)]
struct Made {
    fields: Vec<(Kind, bool)>,
    columns: Vec<(OneSource, Vec<OneOperator>)>,
    outputs: Vec<(u8, Vec<u8>)>,
    skip: bool,
    vocabularies: Vec<OneVocabulary>,
}

#[derive(Debug, Arbitrary)]
struct OneVocabulary {
    of: u8,
    min_count: u64,
    unknown_id: Option<u64>,
    first_id: u64,
    counts: bool,
    value_bytes_max: Option<u32>,
}

#[derive(Debug, Arbitrary)]
enum OneSource {
    Field(u8),
    Cross(u8, u8, u64),
}

#[derive(Debug, Arbitrary)]
enum OneOperator {
    FillInt(i64),
    FillFloat(f64),
    FillText(String),
    Hex2Int,
    Modulus(u32),
    Hash(u64),
    Vocabulary(u8),
    Neg2Zero,
    Logarithm,
    Clip(f64, f64),
    ClipWhole(i32, i32),
    Bucketize(Vec<f32>),
    Float,
}

fn name(what: &str, place: usize) -> String {
    format!("{what}{place}")
}

impl Made {
    fn spec(&self) -> Spec {
        let field = |(place, &(kind, required)): (usize, &(Kind, bool))| Field {
            required,
            ..Field::new(name("f", place), kind.into())
        };
        let fields: Vec<_> = self.fields.iter().take(COLUMNS_MAX).enumerate().map(field).collect();
        let place = |of: u8, count: usize| usize::from(of) % count.max(1);
        let columns = self.columns.iter().take(COLUMNS_MAX).enumerate().map(|(at, column)| {
            let from = match column.0 {
                OneSource::Field(of) => Source::Field(name("f", place(of, fields.len()))),
                OneSource::Cross(first, second, seed) => Source::Cross {
                    first: name("c", place(first, at)),
                    second: name("c", place(second, at)),
                    seed,
                },
            };
            let operators = column.1.iter().map(OneOperator::operator).collect();
            Column { name: name("c", at), from, operators }
        });
        let columns: Vec<_> = columns.collect();
        let outputs = self.outputs.iter().take(4).enumerate().map(|(at, (dtype, of))| {
            let dtype = [Dtype::F32, Dtype::I32, Dtype::I64, Dtype::Bits32][usize::from(dtype % 4)];
            let shown = of.iter().take(COLUMNS_MAX).map(|&of| name("c", place(of, columns.len())));
            Output::new(name("o", at), dtype, shown)
        });
        let outputs = outputs.collect();
        let vocabularies = self.vocabularies.iter().take(4).map(|of| VocabularySpec {
            min_count: of.min_count % 4,
            unknown_id: of.unknown_id,
            first_id: of.first_id,
            counts: of.counts,
            value_bytes_max: of.value_bytes_max,
            ..VocabularySpec::new(name("v", usize::from(of.of % 4)))
        });
        let vocabularies = vocabularies.collect();
        let bad_rows = if self.skip { BadRows::Skip } else { BadRows::Fail };
        Spec { fields, columns, outputs, bad_rows, bad_rows_max: 1.0, vocabularies }
    }
}

impl From<Kind> for FieldKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Int32 => Self::Int32,
            Kind::Int64 => Self::Int64,
            Kind::Hex32 => Self::Hex32,
            Kind::Float32 => Self::Float32,
            Kind::Bytes => Self::Bytes,
            Kind::Skip => Self::Skip,
        }
    }
}

impl OneOperator {
    fn operator(&self) -> Operator {
        match self {
            Self::FillInt(value) => Operator::FillMissing(Value::Int(*value)),
            Self::FillFloat(value) => Operator::FillMissing(Value::Float(*value)),
            Self::FillText(value) => Operator::FillMissing(Value::Text(value.clone())),
            Self::Hex2Int => Operator::Hex2Int,
            Self::Modulus(modulus) => Operator::Modulus(*modulus),
            Self::Hash(seed) => Operator::Hash { seed: *seed },
            Self::Vocabulary(of) => Operator::Vocabulary(name("v", usize::from(of % 4))),
            Self::Neg2Zero => Operator::Neg2Zero,
            Self::Logarithm => Operator::Logarithm,
            Self::Clip(low, high) => Operator::Clip { low: *low, high: *high },
            Self::ClipWhole(low, high) => {
                Operator::Clip { low: f64::from(*low), high: f64::from(*high) }
            }
            Self::Bucketize(boundaries) => {
                let mut boundaries = boundaries.clone();
                boundaries.sort_by(f32::total_cmp);
                Operator::Bucketize(boundaries)
            }
            Self::Float => Operator::Float,
        }
    }
}

/// Lowers the moduli and clips before a vocabulary, because the vocabulary's table of ids takes
/// memory in proportion to them. Returns false if the pipeline has too many columns or fields.
fn small(spec: &mut Spec) -> bool {
    for column in &mut spec.columns {
        let numbered = column.operators.iter().any(|of| matches!(of, Operator::Vocabulary(_)));
        for operator in &mut column.operators {
            match operator {
                Operator::Modulus(modulus) if numbered && *modulus <= 1 << 31 => {
                    *modulus = (*modulus).min(MODULUS_MAX);
                }
                Operator::Clip { high, .. } if numbered => {
                    *high = high.min(f64::from(MODULUS_MAX));
                }
                _ => {}
            }
        }
    }
    spec.columns.len() <= 64 && spec.fields.len() <= 256
}

/// The result of a run: the bits of each output, the rows and the bad rows, or the error.
type Came = Result<(Vec<Vec<u64>>, u64, u64), String>;

impl Pipelines {
    fn format(&self) -> Format {
        match self.format % 4 {
            0 => Format::Packed,
            1 => Format::CSV,
            2 => Format::Text { separator: b','.into(), header: Header::None, quote: None },
            _ => Format::TSV,
        }
    }

    fn go(&self, spec: &Spec, level: Level, threads: usize, chunk_bytes: usize) -> Came {
        let format = self.format();
        let options = RunOptions { threads, level, format, chunk_bytes, ..RunOptions::default() };
        let told = |error: embank_pipeline::Error| {
            expected_of_input(&error);
            error.to_string()
        };
        let mut pipeline = Pipeline::new(spec, &options).map_err(told)?;
        let input = [Input::memory("text", &self.text)];
        if let Some(keep) = self.keep {
            pipeline.generate(&input).map_err(told)?;
            pipeline.keep_frequent(u64::from(keep % 4)).map_err(told)?;
        }
        let mut all = vec![Vec::new(); pipeline.outputs().len()];
        let report = pipeline.run(&input, &mut |batch: &mut Batch| {
            for (output, all) in all.iter_mut().enumerate() {
                let words = batch.f32(output).map(|of| of.iter().map(|of| of.to_bits()).collect());
                let words = words.or(batch.bits32(output).map(<[u32]>::to_vec));
                let ints = batch.i32(output).map(|of| of.iter().map(|&of| of.cast_unsigned()));
                let words: Vec<u32> = words.or(ints.map(Iterator::collect)).unwrap_or_default();
                let wides = batch.i64(output).unwrap_or_default();
                all.extend(words.into_iter().map(u64::from));
                all.extend(wides.iter().map(|&of| of.cast_unsigned()));
            }
            Ok(())
        });
        let report = report.map_err(told)?;
        Ok((all, report.rows, report.bad_rows))
    }

    /// Runs the pipeline at every level and compares.
    pub fn run(&self) {
        if super::text::looks_compressed(&self.text) {
            return;
        }
        let mut spec = match &self.of {
            Of::Made(made) => made.spec(),
            Of::Json(json) => match Spec::from_json(json) {
                Ok(spec) => spec,
                Err(error) => return expected_of_input(&error),
            },
        };
        let made = Pipeline::new(&spec, &RunOptions::default());
        if made.is_ok() {
            // A valid pipeline can be written as JSON and read back.
            let again = Spec::from_json(&spec.to_json()).expect("it was written so");
            assert_eq!(again, spec);
        }
        drop(made);
        if !small(&mut spec) {
            return;
        }
        let first = self.go(&spec, Level::Portable, 1, 1 << 20);
        let chunk = usize::from(self.chunk).max(self.text.len() / 200) + 1;
        for (level, threads) in Level::available().into_iter().zip([2, 1, 2]) {
            let found = self.go(&spec, level, threads, chunk);
            match (&first, &found) {
                // With other chunks, a failing pipeline may meet another error first.
                (Err(_), Err(_)) => {}
                _ => assert!(found == first, "{level}: {found:?} for {first:?}"),
            }
        }
    }
}
