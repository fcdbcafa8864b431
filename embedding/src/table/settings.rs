//! The settings of a table that change while it is open.

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::row::config::check_clip_row_norm;
use crate::table::Table;

impl Table {
    /// Sets the staleness bound of all handles. Gets that are waiting wake and look at the new
    /// bound. Not durable: it is given again at the next open.
    pub fn set_staleness_bound(&self, bound: Option<u32>) {
        self.shared.set_bound(bound);
        self.context().store.wake_waiters();
    }

    /// Sets the learning rate of all handles, for batches applied from now on. Not durable: it is
    /// given again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is negative, NaN or infinite; [`Error::NoOptimizer`].
    pub fn set_learning_rate(&self, lr: f64) -> Result<()> {
        if self.shared.config.optimizer == Optimizer::None {
            return Err(Error::NoOptimizer { table: self.name().to_owned() });
        }
        self.shared.live.change_optimizer(|optimizer| {
            let changed = optimizer.with_learning_rate(lr);
            changed.check().map_err(|what| self.invalid(what))?;
            Ok(changed)
        })
    }

    /// Sets the numbers of the optimizer of all handles, for batches applied from now on; a batch
    /// sees all of them or none. Not durable: they are given again at the next open.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`] if it is another optimizer, or one that keeps something else
    /// beside a row (see [`Optimizer`]); [`Error::InvalidConfig`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Adam, Bank, BankOptions, Optimizer, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2).optimizer(Optimizer::adam(0.01)))?;
    /// table.set_optimizer(Optimizer::Adam(Adam { weight_decay: 0.1, ..Adam::new(0.001) }))?;
    /// assert_eq!(table.config().optimizer.learning_rate(), Some(0.001));
    /// assert!(table.set_optimizer(Optimizer::sgd(0.1)).is_err());
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn set_optimizer(&self, optimizer: Optimizer) -> Result<()> {
        optimizer.check().map_err(|what| self.invalid(what))?;
        let config = &self.shared.config;
        config.check_same_table(self.name(), &config.clone().optimizer(optimizer))?;
        self.shared.live.change_optimizer(|_| Ok(optimizer))
    }

    /// Sets the longest gradient of a row ([`TableConfig::clip_row_norm`]) of all handles, for
    /// batches applied from now on. Not durable: it is given again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless it is finite and above 0.
    pub fn set_clip_row_norm(&self, norm: Option<f32>) -> Result<()> {
        check_clip_row_norm(norm).map_err(|what| self.invalid(what))?;
        self.shared.live.set_clip_row_norm(norm);
        Ok(())
    }

    fn invalid(&self, what: String) -> Error {
        Error::InvalidConfig { table: self.name().to_owned(), what }
    }

    /// Sets the time of all handles of a table with
    /// [`Tracking::SetTime`](crate::Tracking::SetTime): what rows that are used from now on
    /// tell, and what eviction by age counts from. The largest time is part of each checkpoint: an
    /// open goes on with it until another is set. A handle of a bank that is open to read only sets
    /// it for itself.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a table that tracks otherwise or not at all; a failure of the
    /// store.
    pub fn set_time(&self, time: u32) -> Result<()> {
        match self.shared.set_tracker() {
            Some(tracker) => {
                if self.context().store.reading().is_none() {
                    let context = self.context();
                    let kept = context.times.keep(&context.store, self.shared.id, time);
                    kept.map_err(|error| self.in_terms_of_the_table(error))?;
                }
                tracker.set(time);
                Ok(())
            }
            None => Err(Error::InvalidConfig {
                table: self.name().to_owned(),
                what: format!(
                    "its tracking is {:?}, so it has no time to set; create it with Tracking::SetTime",
                    self.shared.config.tracking
                ),
            }),
        }
    }
}
