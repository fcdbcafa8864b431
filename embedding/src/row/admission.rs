//! The setting that decides which keys of a table get rows. The module `table::admission` describes
//! how a Get decides.

/// The rule for which keys a Get makes a row. A put always makes a row. The rule is fixed when the
/// table is created. Default: [`Admission::Always`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Admission, Bank, BankOptions, Optimizer, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(1).optimizer(Optimizer::sgd(0.5));
/// let table = bank.table("item", config.admission(Admission::AfterGets(2)))?;
/// let mut row = [0.0];
/// table.get(&[7], &mut row)?.apply(&[1.0])?; // the gradient is dropped
/// assert_eq!((table.contains(&[7])?, table.stats().not_admitted_rows), (vec![false], 1));
/// table.get(&[7], &mut row)?.apply(&[1.0])?;
/// assert_eq!(table.contains(&[7])?, [true]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Admission {
    /// Every key gets a row at its first Get.
    #[default]
    Always,
    /// A key gets its row at its n-th Get; n is 1 or more. Each key without a row has a count,
    /// which takes 40 bytes of log and an index entry. The table forgets a count after it has
    /// counted enough other keys: as many as the table has rows, and at least 65,536. See
    /// [`Table::forget_counts`](crate::Table::forget_counts).
    AfterGets(u32),
    /// Each Get of a key without a row makes the row with this probability, which is above 0 and at
    /// most 1.
    Probability(f32),
}

impl Admission {
    pub(crate) fn check(self) -> std::result::Result<(), String> {
        match self {
            Self::AfterGets(0) => {
                Err("admission must come after 1 Get or more, found 0".to_owned())
            }
            Self::Probability(chance) if !(chance > 0.0 && chance <= 1.0) => Err(format!(
                "the probability of admission must be above 0 and at most 1, found {chance}"
            )),
            _ => Ok(()),
        }
    }
}
