//! Records which opening of the bank wrote each page of the log.
//!
//! **Problem.** Bank id, page number and address do not identify a page's content. A bank and its
//! copy share one bank id, and later write different pages with the same number. A bank that is
//! opened after a crash or a rollback cuts off the end of its log, and later writes other pages
//! with the numbers of the lost pages. The checksums alone would accept a page of the wrong origin.
//! A bank gets such a page if a person replaces a segment file by the file of a copy that has since
//! been used on its own. It also gets one if the drive loses a write, so that an older page stays
//! on disk.
//!
//! **Approach.** Each opening for writing draws a random *salt*. The opening writes the salt into
//! the header of every page, and into the seed of its records' checksums. The manifest lists each
//! opening's first page and salt. A reader therefore knows the salt of every page before it reads
//! the page.
//!
//! **Invariants.**
//! 1. `first_page` is strictly ascending. A checkpoint's list omits openings that wrote no page
//!    below the checkpoint's end.
//! 2. A page below the first opening's `first_page` has salt 0: a build of format 5 wrote it.
//! 3. An opening stays in the list while a page of it can lie at or above the log's begin.

use std::ops::Range;

use crate::files::metadata;
use crate::log::page::PageIdentity;
use crate::record::address::Address;

/// One opening of the bank for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct Opening {
    pub(crate) first_page: u64,
    /// A random number. The value is 0 only for pages that a build of format 5 wrote.
    pub(crate) salt: u64,
}

/// The openings that wrote the pages of a log, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lineage {
    bank: u64,
    page_bits: u32,
    openings: Vec<Opening>,
}

impl Lineage {
    pub(crate) fn new(bank: u64, page_bits: u32, openings: Vec<Opening>) -> Self {
        Lineage { bank, page_bits, openings }
    }

    /// Adds the opening that writes from `first_page` on. Removes earlier openings that begin at or
    /// after that page, because the log has no page that they wrote.
    #[must_use]
    pub(crate) fn then(mut self, first_page: u64, salt: u64) -> Self {
        self.openings.retain(|opening| opening.first_page < first_page);
        self.openings.push(Opening { first_page, salt });
        self
    }

    fn salt(&self, page: u64) -> u64 {
        let before = self.openings.partition_point(|opening| opening.first_page <= page);
        before.checked_sub(1).map_or(0, |last| self.openings[last].salt)
    }

    /// Returns the identity that the header of page `page` must have.
    pub(crate) fn page(&self, page: u64) -> PageIdentity {
        PageIdentity { page, bank: self.bank, salt: self.salt(page) }
    }

    /// Returns the seed of the checksum of the record at `address`.
    pub(crate) fn origin(&self, address: Address) -> u64 {
        self.page(address.raw() >> self.page_bits).origin()
    }

    /// Returns the openings that a checkpoint must list if its log has the pages `pages`.
    pub(crate) fn of_pages(&self, pages: Range<u64>) -> Vec<Opening> {
        // The opening that wrote the first page stays. Pages of earlier openings are no longer in
        // the log.
        let first = self.openings.partition_point(|opening| opening.first_page <= pages.start);
        let from_first = &self.openings[first.saturating_sub(1)..];
        from_first.iter().copied().filter(|opening| opening.first_page < pages.end).collect()
    }

    /// True if both lineages name the same openings for `pages`.
    pub(crate) fn agrees(&self, other: &Lineage, pages: Range<u64>) -> bool {
        let salts = |lineage: &Lineage| {
            let mut openings = lineage.of_pages(pages.clone());
            for opening in &mut openings {
                opening.first_page = opening.first_page.max(pages.start);
            }
            // Pages without an opening have salt 0, as pages of an opening with salt 0 do.
            openings.retain(|opening| opening.salt != 0);
            openings
        };
        pages.is_empty() || salts(self) == salts(other)
    }

    /// Adds those openings of `older`, an earlier checkpoint's lineage, that begin before the first
    /// opening of this lineage.
    pub(crate) fn extend_back(&mut self, older: &Lineage) {
        let first = self.openings.first().map_or(u64::MAX, |opening| opening.first_page);
        let before = older.openings.iter().copied().filter(|opening| opening.first_page < first);
        self.openings.splice(0..0, before);
    }
}

/// True if the openings are in order and begin before page `end`, where the manifest's log ends.
pub(crate) fn is_sound(openings: &[Opening], end: u64) -> bool {
    openings.is_sorted_by(|a, b| a.first_page < b.first_page)
        && openings.last().is_none_or(|last| last.first_page < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(openings: &[(u64, u64)]) -> Lineage {
        let opening = |&(first_page, salt)| Opening { first_page, salt };
        Lineage::new(7, 13, openings.iter().map(opening).collect())
    }

    #[test]
    fn each_page_has_the_salt_of_the_last_opening_before_it() {
        let lineage = lineage(&[(3, 30), (8, 80)]);
        let salts: Vec<_> = [0, 2, 3, 7, 8, 100].map(|page| lineage.page(page).salt).into();
        assert_eq!(salts, [0, 0, 30, 30, 80, 80]);
        assert_eq!(lineage.origin(Address::new(9 << 13 | 64)), 7 ^ 80);
        assert_eq!(lineage.origin(Address::new(64)), 7);
    }

    #[test]
    fn an_opening_replaces_those_that_wrote_nothing_that_is_left() {
        let after = lineage(&[(3, 30), (8, 80), (9, 90)]).then(8, 81);
        assert_eq!(after, lineage(&[(3, 30), (8, 81)]));
        assert_eq!(lineage(&[]).then(0, 1), lineage(&[(0, 1)]));
    }

    #[test]
    fn openings_below_the_begin_and_beyond_the_end_drop_out() {
        let all = lineage(&[(0, 10), (3, 30), (8, 80)]);
        assert_eq!(all.of_pages(0..9), all.openings);
        assert_eq!(all.of_pages(5..9), all.openings[1..]);
        assert_eq!(all.of_pages(3..8), all.openings[1..2]);
        assert_eq!(all.of_pages(8..8), []);
        assert!(is_sound(&all.of_pages(5..9), 9) && !is_sound(&all.openings, 8));
    }

    #[test]
    fn two_lines_of_history_agree_as_far_as_they_are_one() {
        let bank = lineage(&[(0, 10), (8, 80)]);
        let copy = lineage(&[(0, 10), (8, 81)]);
        assert!(bank.agrees(&copy, 0..8) && bank.agrees(&copy, 3..3));
        assert!(!bank.agrees(&copy, 7..9));
        assert!(lineage(&[]).agrees(&lineage(&[(0, 0)]), 0..9));
        let mut newer = lineage(&[(8, 80)]);
        newer.extend_back(&bank);
        assert_eq!(newer, bank);
    }
}
