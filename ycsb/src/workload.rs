//! The mix of operations of a run, and YCSB's core workloads A to F. The workloads are from Cooper
//! et al., *Benchmarking Cloud Serving Systems with YCSB* (SoCC 2010).

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;

/// A kind of operation. All operations of a batch have one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Reads whole values.
    Read,
    /// Replaces whole values.
    Update,
    /// Adds new rows.
    Insert,
    /// Reads rows in key order, from a given key on.
    Scan,
    /// Reads values, adds to their counters, and writes them back.
    Rmw,
}

impl Kind {
    /// All kinds in the order of `Mix`.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Read, Kind::Update, Kind::Insert, Kind::Scan, Kind::Rmw];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Read => "read",
            Kind::Update => "update",
            Kind::Insert => "insert",
            Kind::Scan => "scan",
            Kind::Rmw => "rmw",
        })
    }
}

/// The shares of the kinds, whose sum is 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Mix {
    pub(crate) read: f64,
    pub(crate) update: f64,
    pub(crate) insert: f64,
    pub(crate) scan: f64,
    pub(crate) rmw: f64,
}

impl Mix {
    fn shares(&self) -> [f64; 5] {
        [self.read, self.update, self.insert, self.scan, self.rmw]
    }

    /// Checks the shares.
    ///
    /// # Errors
    /// Returns an error for a share outside 0 to 1, or for shares whose sum is not 1.
    pub(crate) fn check(&self) -> Result<()> {
        let shares = self.shares();
        for share in shares {
            ensure!((0.0..=1.0).contains(&share), "the share {share} is not between 0 and 1");
        }
        let sum: f64 = shares.iter().sum();
        ensure!(
            (sum - 1.0).abs() < 1e-6,
            "the shares of --read, --update, --insert, --scan and --rmw add up to {sum}, not to 1"
        );
        Ok(())
    }

    /// Draws a kind according to the shares.
    #[inline]
    pub(crate) fn draw(&self, random: &mut Rng) -> Kind {
        let mut left = random.f64();
        for (kind, share) in Kind::ALL.into_iter().zip(self.shares()) {
            if left < share {
                return kind;
            }
            left -= share;
        }
        // Because of rounding, the shares may add up to slightly less than the drawn number. The
        // draw then goes to the last kind with a share.
        let last = self.shares().iter().rposition(|&share| share > 0.0);
        Kind::ALL[last.expect("the shares add up to 1")]
    }

    /// Returns true if the mix inserts rows.
    pub(crate) fn inserts(&self) -> bool {
        self.insert > 0.0
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, share) in Kind::ALL.into_iter().zip(self.shares()) {
            if share > 0.0 {
                write!(f, "{separator}{kind} {}%", (share * 10_000.0).round() / 100.0)?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// A core workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Update heavy: 50% read, 50% update; scrambled Zipf
    A,
    /// Read mostly: 95% read, 5% update; scrambled Zipf
    B,
    /// Read only; scrambled Zipf
    C,
    /// Read latest: 95% read, 5% insert; the newest rows are the hottest
    D,
    /// Short ranges: 95% scan, 5% insert; scrambled Zipf
    E,
    /// Read-modify-write: 50% read, 50% read-modify-write; scrambled Zipf
    F,
}

impl Workload {
    pub(crate) fn mix(self) -> Mix {
        let none = Mix::default();
        match self {
            Workload::A => Mix { read: 0.5, update: 0.5, ..none },
            Workload::B => Mix { read: 0.95, update: 0.05, ..none },
            Workload::C => Mix { read: 1.0, ..none },
            Workload::D => Mix { read: 0.95, insert: 0.05, ..none },
            Workload::E => Mix { scan: 0.95, insert: 0.05, ..none },
            Workload::F => Mix { read: 0.5, rmw: 0.5, ..none },
        }
    }

    pub(crate) fn distribution(self) -> Distribution {
        if self == Workload::D { Distribution::Latest } else { Distribution::Scrambled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn every_core_workload_adds_up_and_is_drawn_by_its_shares() {
        for workload in Workload::value_variants() {
            let mix = workload.mix();
            mix.check().unwrap();
            let mut random = stream(1, 0);
            let mut counts = [0.0; 5];
            for _ in 0..100_000 {
                counts[mix.draw(&mut random) as usize] += 1e-5;
            }
            for (count, share) in counts.iter().zip(mix.shares()) {
                // The limit is five standard deviations of the largest share, 50%.
                assert!((count - share).abs() < 0.008, "{workload:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn shares_that_do_not_add_up_are_refused() {
        assert!(Mix { read: 0.5, ..Mix::default() }.check().is_err());
        let error = Mix { read: 1.5, update: -0.5, ..Mix::default() }.check().unwrap_err();
        assert!(error.to_string().contains("the share 1.5"), "{error}");
    }
}
