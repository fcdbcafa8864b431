//! The slot that holds a pipeline while no run has it, and how the pipeline ends with its bank.
//!
//! A Rust pipeline belongs to one run at a time. A run takes the pipeline out of its [`Slot`] and
//! puts it back. Another call that needs the pipeline during the run raises an error. A run that
//! learns nothing uses an evaluation pipeline, which the slot can make at any time
//! ([`Slot::evaluation`]).
//!
//! A pipeline on a bank has handles of that bank, so the bank's files stay open until the pipeline
//! is dropped. The bank's cell shares the slot, and [`Slot::close`] empties it. If a run has the
//! pipeline, `close` tells the run to stop and waits until it puts the pipeline back. After that
//! the slot stays empty: a call that puts the pipeline back drops it. No thread waits here while it
//! holds the GIL, and a thread of a pipeline
//! asks for the GIL only to call a decoder ([`decoders`](super::decoders)).
//!
//! Lock order: the feed's lock first, then the slot's.

use std::ops::Deref;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use embank::Home;
use embank::locks::{Condvar, Mutex, MutexGuard};
use embank_pipeline::Pipeline;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::feed_cell::{Batches, FeedCell};
use crate::cell::{Attached, BankCell, DependentId, EndsWithBank};
use crate::errors;

/// Holds one pipeline, or says which call has it.
#[derive(Debug)]
pub(crate) struct Slot {
    home: Home,
    /// False for an evaluation pipeline, which inserts no values and so has nothing to save.
    learns: bool,
    /// The bank that ends the pipeline. Weak, because the bank's cell shares the slot.
    bank: Weak<BankCell>,
    state: Mutex<SlotState>,
    /// Notified when the pipeline is put back, and when a feed gets it.
    changed: Condvar,
}

#[derive(Debug)]
struct SlotState {
    place: Place,
    /// The pipeline from which evaluation pipelines are made, also while a run has the pipeline of
    /// `place`. It holds handles of the bank. `None` after the bank is closed.
    evaluation: Option<Box<Pipeline>>,
    /// True when the bank begins to close.
    closing: bool,
}

/// The state of the pipeline: in its slot, in use by a call or a feed, lost, or dropped.
#[derive(Debug)]
enum Place {
    Here(Box<Pipeline>),
    /// A call has the pipeline. The call ends soon after the flag becomes true.
    Running(Arc<AtomicBool>),
    /// A feed has the pipeline.
    Feeding {
        feed: Arc<FeedCell>,
        /// Whether all values of a batch are in the bank before the batch is handed out.
        saves: bool,
    },
    /// A thread panicked while it had the pipeline.
    Lost,
    /// The pipeline was dropped when its bank closed.
    Closed,
}

impl Place {
    /// The exception for a call that needs the pipeline. `ended` is the one for a pipeline that was
    /// dropped.
    fn refusal(&self, ended: impl FnOnce() -> PyErr) -> PyErr {
        PyRuntimeError::new_err(match self {
            Self::Closed => return ended(),
            Self::Lost => "this pipeline was lost when a thread panicked: make a new one",
            Self::Feeding { saves: false, .. } => {
                "this pipeline has a feed under way that does not save each batch: take it to the end, close() it, or \
                 make it with save_each_batch=True to take checkpoints beside it"
            }
            Self::Here(_) | Self::Running(_) | Self::Feeding { saves: true, .. } => {
                "this pipeline has a run under way: take its feed, or each part of it, to the end, or close() it"
            }
        })
    }
}

impl Slot {
    /// Makes the slot of a pipeline. `bank` is the bank that ends it, if there is one.
    pub(crate) fn new(pipeline: Pipeline, bank: Weak<BankCell>) -> Arc<Self> {
        let learns = pipeline.learns();
        let evaluation = Some(Box::new(pipeline.evaluation()));
        let place = Place::Here(Box::new(pipeline));
        Arc::new(Self {
            home: Home::here(),
            learns,
            bank,
            state: Mutex::new(SlotState { place, evaluation, closing: false }),
            changed: Condvar::new(),
        })
    }

    /// The exception for a pipeline that its bank ended: the bank was closed, or was taken back to
    /// a checkpoint and is open.
    pub(crate) fn ended(&self) -> PyErr {
        match self.bank.upgrade().map(|bank| bank.is_closed()) {
            Some(Ok(false)) => PyValueError::new_err(
                "this pipeline ended when its bank was taken back to a checkpoint, which may lack values that the \
                 pipeline knew: make the pipeline again, Pipeline(spec, bank=bank)",
            ),
            Some(Ok(true) | Err(_)) | None => errors::bank_closed(),
        }
    }

    /// Fails in a forked child of the process that made the pipeline: the pipeline's threads do not
    /// exist there.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.home.is_here() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this pipeline was made in process {} and does not survive the fork into process {}: make it after \
             forking, or start processes with the \"spawn\" method",
            self.home.process_id(),
            process::id()
        )))
    }

    /// Takes the pipeline out for a call, or for a feed.
    pub(crate) fn take(&self) -> PyResult<Taken<'_>> {
        self.check_process()?;
        self.take_from(&mut self.state.lock())
    }

    /// Takes the pipeline out to save its values. `None` if nothing has to be saved: this is an
    /// evaluation pipeline, or a feed has the pipeline and saves each batch.
    fn take_to_save(&self) -> PyResult<Option<Taken<'_>>> {
        self.check_process()?;
        if !self.learns {
            return Ok(None);
        }
        let mut state = self.state.lock();
        match state.place {
            Place::Feeding { saves: true, .. } => Ok(None),
            _ => self.take_from(&mut state).map(Some),
        }
    }

    fn take_from(&self, state: &mut MutexGuard<'_, SlotState>) -> PyResult<Taken<'_>> {
        let stop = Arc::new(AtomicBool::new(false));
        match std::mem::replace(&mut state.place, Place::Running(Arc::clone(&stop))) {
            Place::Here(pipeline) => Ok(Taken { slot: Some(self), pipeline: Some(pipeline), stop }),
            other => {
                state.place = other;
                Err(state.place.refusal(|| self.ended()))
            }
        }
    }

    /// Calls `look` on the pipeline if no run has it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Pipeline) -> R) -> PyResult<R> {
        self.check_process()?;
        match &self.state.lock().place {
            Place::Here(pipeline) => Ok(look(pipeline)),
            other => Err(other.refusal(|| self.ended())),
        }
    }

    /// Makes a pipeline that has the vocabularies of this slot's pipeline and inserts nothing.
    /// Works also while a run has the slot's pipeline.
    pub(crate) fn evaluation(&self) -> PyResult<Pipeline> {
        self.check_process()?;
        let state = self.state.lock();
        match (&state.place, &state.evaluation) {
            (Place::Lost, _) => Err(state.place.refusal(|| self.ended())),
            (_, Some(evaluation)) => Ok(evaluation.evaluation()),
            (_, None) => Err(self.ended()),
        }
    }

    /// Puts the pipeline back. `None` if it was lost in a panic.
    pub(crate) fn put_back(&self, pipeline: Option<Box<Pipeline>>) {
        let mut state = self.state.lock();
        if state.closing {
            drop(state);
            drop(pipeline);
            state = self.state.lock();
            state.place = Place::Closed;
        } else {
            state.place = pipeline.map_or(Place::Lost, Place::Here);
        }
        self.changed.notify_all();
    }

    /// Ends a feed's run and puts the pipeline back. Must be called without the GIL: a thread that
    /// waits for a batch holds the feed's lock for up to a signal interval.
    pub(crate) fn end_feed(&self, feed: &FeedCell, by_bank: bool) {
        feed.end(by_bank, &|pipeline| self.put_back(pipeline));
    }

    /// Hands the pipeline on to a feed, which puts it back.
    fn hand_on(&self, feed: &Arc<FeedCell>, saves: bool) -> PyResult<()> {
        let mut state = self.state.lock();
        if state.closing {
            drop(state);
            self.end_feed(feed, true);
            return Err(self.ended());
        }
        state.place = Place::Feeding { feed: Arc::clone(feed), saves };
        self.changed.notify_all();
        Ok(())
    }
}

impl EndsWithBank for Slot {
    /// Saves the pipeline's new values in the bank, with the GIL released. Does nothing if a feed
    /// saves each batch, or if the pipeline learns nothing.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut taken) = self.take_to_save()? else { return Ok(()) };
        py.detach(|| {
            let saved = taken.pipeline().save();
            drop(taken);
            saved
        })
        .map_err(|error| errors::pipeline_to_python(py, &error))
    }

    /// Ends the run or the feed, and drops the pipeline. When it returns, the pipeline has no
    /// handle of the bank any more. Must be called without the GIL.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let evaluation = state.evaluation.take();
        MutexGuard::unlocked(&mut state, || drop(evaluation));
        // The loop ends: a run ends at its next chunk, a feed is ended here, and `closing` refuses
        // new runs.
        loop {
            match &state.place {
                Place::Here(_) => {
                    let pipeline = std::mem::replace(&mut state.place, Place::Closed);
                    return MutexGuard::unlocked(&mut state, || drop(pipeline));
                }
                Place::Running(stop) => {
                    // Relaxed: the flag guards no other data, and the run may see it late.
                    stop.store(true, Ordering::Relaxed);
                    self.changed.wait(&mut state);
                }
                Place::Feeding { feed, .. } => {
                    let feed = Arc::clone(feed);
                    MutexGuard::unlocked(&mut state, || self.end_feed(&feed, true));
                }
                Place::Lost | Place::Closed => return,
            }
        }
    }
}

/// A pipeline that was taken out of its slot. Its drop puts the pipeline back.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    /// The slot that gets the pipeline back when this value is dropped. `None` once a feed owns the
    /// pipeline.
    slot: Option<&'a Slot>,
    pipeline: Option<Box<Pipeline>>,
    /// Becomes true when the bank closes.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Taken<'_> {
    pub(crate) fn pipeline(&mut self) -> &mut Pipeline {
        self.pipeline.as_mut().expect("it is there until it goes to a feed")
    }

    /// Makes a feed of the pipeline.
    pub(crate) fn feed(
        mut self,
        saves: bool,
        make: impl FnOnce(Pipeline) -> embank_pipeline::Result<embank_pipeline::Feed>,
    ) -> PyResult<embank_pipeline::Result<Arc<FeedCell>>> {
        let pipeline = self.pipeline.take().expect("it is there until it goes to a feed");
        let feed = match make(*pipeline) {
            Ok(feed) => Arc::new(FeedCell::new(Batches::Whole(feed))),
            // `make` fails only for invalid options, and the caller has checked the options. After
            // such an error the drop of `self` marks the pipeline as lost.
            Err(error) => return Ok(Err(error)),
        };
        let slot = self.slot.take().expect("a feed takes it once");
        slot.hand_on(&feed, saves)?;
        Ok(Ok(feed))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // After a panic the pipeline's state is unknown, so it is not put back.
            slot.put_back(self.pipeline.take().filter(|_| !std::thread::panicking()));
        }
    }
}

/// The share of a slot that Python objects hold. Dropping the last share makes the bank's cell drop
/// the pipeline.
#[derive(Debug)]
pub(crate) struct SlotOwner {
    slot: Arc<Slot>,
    bank: Option<AttachedTo>,
}

/// The bank that ends a pipeline when it closes, and the pipeline's id in that bank's cell.
#[derive(Debug)]
struct AttachedTo {
    cell: Arc<BankCell>,
    id: DependentId,
}

impl SlotOwner {
    /// The owner of a pipeline without a bank.
    pub(crate) fn alone(slot: Arc<Slot>) -> Arc<Self> {
        Arc::new(Self { slot, bank: None })
    }

    /// The owner of a pipeline that the bank of `cell` ends when it closes.
    pub(crate) fn attached(cell: &Arc<BankCell>, slot: Attached<Slot>) -> Arc<Self> {
        let bank = AttachedTo { cell: Arc::clone(cell), id: slot.id };
        Arc::new(Self { slot: slot.dependent, bank: Some(bank) })
    }

    /// Calls `call`, which checks for signals. A signal handler that closes the bank during the
    /// call gets an error.
    pub(crate) fn refusing_close<R>(&self, call: impl FnOnce() -> R) -> R {
        match &self.bank {
            Some(bank) => bank.cell.as_call_of_this_thread(call),
            None => call(),
        }
    }
}

impl Deref for SlotOwner {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl Drop for SlotOwner {
    fn drop(&mut self) {
        if let Some(bank) = self.bank.take() {
            // `forget` makes the cell empty the slot. `self` still shares the slot, so the empty
            // slot is dropped only with `self`.
            bank.cell.forget(bank.id);
        }
    }
}
