//! Damaged pages of the log, listed.

use std::collections::BTreeSet;

use super::Damage;
use super::log_files::{LogFiles, Looked, PageRead};
use super::walk::Source;

/// The damaged pages that were met.
#[derive(Debug, Default)]
pub(super) struct PageFaults {
    pub(super) damage: Vec<Damage>,
    pages: BTreeSet<u64>,
}

impl PageFaults {
    /// Whether a page has been noted.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages.contains(&page)
    }

    /// Notes what is wrong with a page.
    pub(super) fn note(&mut self, log: &LogFiles, page: &PageRead, what: &str, of: &[Source]) {
        let number = page.start / log.page_bytes;
        let (path, offset) = log.locate(page.start);
        self.pages.insert(number);
        // Pages that are missing one after another are one finding.
        if page.there == 0
            && let Some(last) = self.damage.last_mut()
            && last.path == path
            && last.page.is_some_and(|first| first + last.pages == number)
            && last.what.contains("not there")
        {
            last.pages += 1;
            let first = number + 1 - last.pages;
            last.what = format!("pages {first} to {number} are not there: the file is cut short");
            return;
        }
        self.damage.push(Damage {
            path,
            offset,
            page: Some(number),
            pages: 1,
            tables: tables(log, page, of),
            checkpoint: None,
            what: what.to_owned(),
        });
    }
}

/// The tables whose records on a damaged page are sound: those that are not are probably of them too.
fn tables(log: &LogFiles, page: &PageRead, sources: &[Source]) -> Vec<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        let note = |_, record: Looked<'_>| {
            let table = record.ok().and_then(|record| source.table(record.shape().table()));
            if let Some(table) = table.filter(|table| !table.dropped) {
                names.insert(table.name.clone());
            }
            Ok(())
        };
        // It never fails: `note` does not.
        let _ = page.records(log.bank, |shape| source.knows(shape), note);
    }
    names.into_iter().collect()
}
