//! Collects the damaged pages of the log.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Damage;
use super::log_files::{LogFiles, Looked, PageRead};
use super::walk::Source;

/// The damaged and missing pages of the log that a walk has found so far.
#[derive(Debug, Default)]
pub(super) struct PageFaults {
    pub(super) damage: Vec<Damage>,
    pages: BTreeSet<u64>,
    /// Ranges of page numbers that are in no file.
    missing: Vec<Range<u64>>,
}

impl PageFaults {
    /// True if a page is already noted as damaged or missing.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages.contains(&page) || self.missing.iter().any(|missing| missing.contains(&page))
    }

    /// Notes that the pages from address `start` to `end` are in no file.
    pub(super) fn note_missing(&mut self, log: &LogFiles, start: u64, end: u64) {
        let first = start / log.page_bytes;
        let after = end / log.page_bytes;
        if self.has(first) {
            return;
        }
        self.missing.push(first..after);
        self.missing_at(log, start, after - first);
    }

    /// Lists missing pages as damage. Adjacent missing pages of one file become one item of the
    /// list.
    fn missing_at(&mut self, log: &LogFiles, start: u64, pages: u64) {
        let number = start / log.page_bytes;
        let (path, offset) = log.locate(start);
        if let Some(last) = self.damage.last_mut()
            && last.path == path
            && last.page.is_some_and(|first| first + last.pages == number)
            && last.what.contains("not there")
        {
            last.pages += pages;
        } else {
            let mut damage = Damage::in_file(&path, offset, 0, String::new());
            damage.page = Some(number);
            damage.pages = pages;
            damage.checkpoint = None;
            self.damage.push(damage);
        }
        let Some(last) = self.damage.last_mut() else { return };
        let first = last.page.unwrap_or(number);
        let end = number + pages;
        last.what = match end - first {
            1 => format!("page {first} is not there: the file is cut short"),
            _ => format!("pages {first} to {} are not there: the file is cut short", end - 1),
        };
    }

    /// Notes a damaged page. `what` describes the damage, and `of` are the checkpoints that are
    /// read.
    pub(super) fn note(&mut self, log: &LogFiles, page: &PageRead, what: &str, of: &[Source]) {
        let number = page.start / log.page_bytes;
        self.pages.insert(number);
        if page.there == 0 && page.fault.as_deref().is_some_and(|what| what.contains("not there")) {
            self.missing_at(log, page.start, 1);
            return;
        }
        let (path, offset) = log.locate(page.start);
        self.damage.push(Damage {
            path,
            offset,
            page: Some(number),
            pages: 1,
            part: None,
            tables: tables(page, of),
            checkpoint: None,
            what: what.to_owned(),
        });
    }
}

/// Returns the tables of the sound records on a damaged page. The damaged records probably belong
/// to these tables too.
fn tables(page: &PageRead, sources: &[Source]) -> Vec<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        let note = |at: usize, record: Looked<'_>| {
            let address = page.start + at as u64;
            let table =
                record.ok().and_then(|record| source.table(record.shape().table(), address));
            if let Some(table) = table.filter(|table| !table.dropped) {
                names.insert(table.name.clone());
            }
            Ok(())
        };
        // The result is ignored: `note` never fails.
        let _ = page.records(|shape| source.knows(shape), note);
    }
    names.into_iter().collect()
}
