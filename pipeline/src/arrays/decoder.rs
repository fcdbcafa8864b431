//! The interface of decoders: units go out, and come back in any order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::unit::DecodeUnit;
use crate::spec::Dtype;

/// Default time without an answer after which a decoder counts as broken.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The error of a decoder that can't go on. It ends the run.
pub type DecodeFailure = Box<dyn std::error::Error + Send + Sync>;

/// Turns the values of a column into arrays: a function, or a device beside the processor.
///
/// [`Operator::Decode`](crate::Operator::Decode) names a decoder, and
/// [`RunOptions::decoders`](crate::RunOptions::decoders) has the decoder of each name. Each thread
/// of a run opens a channel of its own. It submits units while fewer than [`units`](Self::units) of
/// its units are out, and works on other chunks until they come back. For a function,
/// [`decode_with`] makes the decoder.
///
/// The technique is that of DLBooster (Cheng et al., ICPP 2019): a decoder that is offloaded, with
/// recycled buffers.
///
/// # Examples
/// A device that is a thread:
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use embank_pipeline::{
///     Batch, Column, Decode, DecodeChannel, DecodeFailure, DecodeUnit, Decoder, Decoders, Dtype, Field, FieldKind,
///     Input, Operator, Output, Pipeline, RunOptions, Spec,
/// };
///
/// #[derive(Debug)]
/// struct Device;
/// struct Channel(mpsc::Sender<DecodeUnit>, mpsc::Receiver<DecodeUnit>);
///
/// impl Decoder for Device {
///     fn open(&self, _: &[usize], _: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure> {
///         let (commands, submitted) = mpsc::channel::<DecodeUnit>();
///         let (answers, finished) = mpsc::channel();
///         std::thread::spawn(move || {
///             for mut unit in submitted {
///                 let waiting: Vec<usize> = unit.waiting().collect();
///                 for row in waiting {
///                     let (value, array) = unit.value_and_array(row);
///                     array[0] = value.len() as u8;
///                     unit.finish(row);
///                 }
///                 if answers.send(unit).is_err() {
///                     return;
///                 }
///             }
///         });
///         Ok(Box::new(Channel(commands, finished)))
///     }
/// }
///
/// impl DecodeChannel for Channel {
///     fn submit(&mut self, unit: DecodeUnit) -> Result<(), DecodeFailure> {
///         self.0.send(unit).map_err(|_| "the device is gone".into())
///     }
///     fn drain(&mut self, wait: Duration) -> Result<Vec<DecodeUnit>, DecodeFailure> {
///         Ok(self.1.recv_timeout(wait).into_iter().collect())
///     }
/// }
///
/// let decode = Decode { decoder: "length".to_owned(), shape: vec![1], dtype: Dtype::U8, version: String::new() };
/// let spec = Spec {
///     fields: vec![Field::new("word", FieldKind::Bytes)],
///     columns: vec![Column::field("word").then(Operator::Decode(decode))],
///     outputs: vec![Output::new("length", Dtype::U8, ["word"])],
///     ..Spec::default()
/// };
/// let decoders = Decoders::default().with("length", Arc::new(Device));
/// let mut pipeline = Pipeline::new(&spec, &RunOptions { decoders, ..Default::default() })?;
/// let mut lengths = Vec::new();
/// pipeline.run(&[Input::memory("words", b"red\ngreen\n\n")], &mut |batch: &mut Batch| {
///     lengths.extend_from_slice(batch.u8(0).unwrap());
///     Ok(())
/// })?;
/// assert_eq!(lengths, [3, 5, 0]);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
pub trait Decoder: Send + Sync + fmt::Debug {
    /// Opens a channel for one thread of a run. Each array has `shape` and `dtype`.
    ///
    /// # Errors
    /// A failure ends the run. The run's error has its text.
    fn open(&self, shape: &[usize], dtype: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure>;

    /// Largest number of units of a channel that are out at a time. Default: 1.
    fn units(&self) -> usize {
        1
    }

    /// Time without an answer after which the run fails, if a channel has units out. Default: 60 s.
    fn timeout(&self) -> Duration {
        TIMEOUT
    }
}

/// The connection of one thread to a decoder. If the run ends early, it is dropped while units are
/// out.
pub trait DecodeChannel {
    /// Takes a unit. Returns without waiting for its arrays.
    ///
    /// # Errors
    /// A failure ends the run. Bad bytes are no failure: [`DecodeUnit::fail`] says that of a row.
    fn submit(&mut self, unit: DecodeUnit) -> Result<(), DecodeFailure>;

    /// Gives complete units back, in any order. If no unit is complete, waits for one, at most for
    /// `wait`.
    ///
    /// # Errors
    /// A failure ends the run.
    fn drain(&mut self, wait: Duration) -> Result<Vec<DecodeUnit>, DecodeFailure>;
}

/// Decoders by their names.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use embank_pipeline::{Decoders, decode_with};
///
/// let length = decode_with(|value, array| {
///     array[0] = u8::try_from(value.len()).map_err(|_| "is too long".to_owned())?;
///     Ok(())
/// });
/// let decoders = Decoders::default().with("length", Arc::new(length));
/// assert!(decoders.get("length").is_some());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Decoders(BTreeMap<String, Arc<dyn Decoder>>);

impl Decoders {
    /// Adds a decoder, in place of one of this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, decoder: Arc<dyn Decoder>) -> Self {
        self.0.insert(name.into(), decoder);
        self
    }

    /// The decoder of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Decoder>> {
        self.0.get(name)
    }

    /// The names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// True if both have the same decoders by the same names.
impl PartialEq for Decoders {
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len()
            && pairs.into_iter().all(|(own, other)| own.0 == other.0 && Arc::ptr_eq(own.1, other.1))
    }
}

/// Makes a decoder of a function from bytes to an array, which the threads of a run call. An error
/// makes the row bad; its text follows the field's name in reports.
///
/// # Examples
/// See [`Decoders`].
pub fn decode_with(
    function: impl Fn(&[u8], &mut [u8]) -> Result<(), String> + Send + Sync + 'static,
) -> impl Decoder {
    FunctionDecoder(Arc::new(function))
}

type Function = dyn Fn(&[u8], &mut [u8]) -> Result<(), String> + Send + Sync;

struct FunctionDecoder(Arc<Function>);

impl fmt::Debug for FunctionDecoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("FunctionDecoder").finish()
    }
}

impl Decoder for FunctionDecoder {
    fn open(&self, _: &[usize], _: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure> {
        let function = Arc::clone(&self.0);
        Ok(Box::new(InThread::new(move |value: &[u8], array: &mut [u8]| function(value, array))))
    }
}

/// A channel that decodes in the thread that submits.
pub(super) struct InThread<F> {
    decode: F,
    finished: Vec<DecodeUnit>,
}

impl<F: FnMut(&[u8], &mut [u8]) -> Result<(), String>> InThread<F> {
    pub(super) fn new(decode: F) -> Self {
        Self { decode, finished: Vec::new() }
    }
}

impl<F: FnMut(&[u8], &mut [u8]) -> Result<(), String>> DecodeChannel for InThread<F> {
    fn submit(&mut self, mut unit: DecodeUnit) -> Result<(), DecodeFailure> {
        for row in 0..unit.rows() {
            if unit.is_waiting(row) {
                let (value, array) = unit.value_and_array(row);
                match (self.decode)(value, array) {
                    Ok(()) => unit.finish(row),
                    Err(why) => unit.fail(row, why),
                }
            }
        }
        self.finished.push(unit);
        Ok(())
    }

    fn drain(&mut self, _: Duration) -> Result<Vec<DecodeUnit>, DecodeFailure> {
        Ok(std::mem::take(&mut self.finished))
    }
}
