//! Settings that can change while a table is open. A batch must see either the whole change or
//! nothing of it.
//!
//! A batch takes one `Arc` of the settings when it begins. All its steps therefore use the learning
//! rate and the betas of one set, even if another call changes the settings meanwhile. Values that
//! are derived from the settings, such as Adam's tables of powers, are computed at each change and
//! not for each batch.

use std::sync::Arc;

use embank_kv::locks::RwLock;

use crate::optimizer::{Optimizer, Stepper};
use crate::row::config::TableConfig;

/// One consistent set of the settings.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) optimizer: Optimizer,
    pub(crate) stepper: Stepper,
    /// True if a step in f32 never makes a finite value infinite; see [`Optimizer::is_ordinary`].
    pub(crate) is_ordinary: bool,
    pub(crate) clip_row_norm: Option<f32>,
}

impl Live {
    fn new(optimizer: Optimizer, clip_row_norm: Option<f32>) -> Arc<Self> {
        Arc::new(Self {
            stepper: Stepper::new(&optimizer),
            is_ordinary: optimizer.is_ordinary(),
            optimizer,
            clip_row_norm,
        })
    }
}

/// A table's present settings.
#[derive(Debug)]
pub(crate) struct LiveSettings(RwLock<Arc<Live>>);

impl LiveSettings {
    pub(crate) fn of(config: &TableConfig) -> Self {
        Self(RwLock::new(Live::new(config.optimizer, config.clip_row_norm)))
    }

    pub(crate) fn now(&self) -> Arc<Live> {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, config: &TableConfig) {
        *self.0.write() = Live::new(config.optimizer, config.clip_row_norm);
    }

    /// Replaces the optimizer by the result of `change`. If `change` fails, nothing changes.
    pub(crate) fn change_optimizer<E>(
        &self,
        change: impl FnOnce(Optimizer) -> Result<Optimizer, E>,
    ) -> Result<(), E> {
        let mut live = self.0.write();
        *live = Live::new(change(live.optimizer)?, live.clip_row_norm);
        Ok(())
    }

    pub(crate) fn set_clip_row_norm(&self, norm: Option<f32>) {
        let mut live = self.0.write();
        *live = Live::new(live.optimizer, norm);
    }
}
