//! Settings that can change while a table is open.

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::row::config::check_clip_row_norm;
use crate::table::Table;

impl Table {
    /// Sets the staleness bound for all handles. Waiting Gets wake and check the new bound. The
    /// setting is not durable: the caller gives it again at the next open.
    pub fn set_staleness_bound(&self, bound: Option<u32>) {
        self.shared.set_bound(bound);
        self.context().store.wake_waiters();
    }

    /// Sets the learning rate for all handles and all later batches. The setting is not durable:
    /// the caller gives it again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the rate is negative, NaN or infinite. [`Error::NoOptimizer`] if
    /// the table has no optimizer.
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

    /// Sets the optimizer's numbers for all handles and all later batches. A batch uses either all
    /// new numbers or all old ones. The setting is not durable: the caller gives it again at the
    /// next open.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`] if `optimizer` is of another kind or needs other state per row
    /// (see [`Optimizer`]). [`Error::InvalidConfig`] if a number is invalid.
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

    /// Sets the largest L2 norm of a row's gradient for all handles and all later batches. Replaces
    /// the setting [`clip_row_norm`](crate::TableConfig::clip_row_norm). The setting is not
    /// durable: the caller gives it again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless the norm is finite and above 0.
    pub fn set_clip_row_norm(&self, norm: Option<f32>) -> Result<()> {
        check_clip_row_norm(norm).map_err(|what| self.invalid(what))?;
        self.shared.live.set_clip_row_norm(norm);
        Ok(())
    }

    fn invalid(&self, what: String) -> Error {
        Error::InvalidConfig { table: self.name().to_owned(), what }
    }

    /// Sets the time of a table whose tracking is [`SetTime`](crate::Tracking::SetTime), for all
    /// handles. Rows that are used from now on store this time, and eviction by age compares with
    /// it. Every checkpoint contains the largest time that was set. The next open continues with it
    /// until another time is set. In a read-only bank, only this process uses the new time.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the table does not have `Tracking::SetTime`. A failure of the
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
