//! What the oracles looked at, and what they found.

use crate::plan::WORKLOADS;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The oracles.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
pub enum Oracle {
    /// Each number that is written follows from the whole history.
    Number,
    /// Only the holder of the Lease writes.
    OneWriter,
    /// Nothing is written for what is deleted, paused, frozen or not Plimsoll's to scale.
    LeftAlone,
    /// Nothing is removed while metrics fail.
    NoWayDown,
    /// Windows and policies hold, whoever leads.
    Windows,
    /// While all is calm, each decision for one workload is exact.
    Exact,
    /// Each due change is made in time.
    InTime,
    /// A fresh process comes to the same, and a checkpoint has all that it needs.
    Restart,
    /// A checkpoint has the changes of the one before it, whoever wrote that.
    Continuity,
    /// A status is that of its object, and of no other time.
    Status,
    /// A steady state asks for nothing.
    Steady,
    /// Queues and tasks are bounded.
    Bounded,
    /// Each step of an observed HPA is compared, and found equal or not.
    Compared,
}

impl Oracle {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::OneWriter => "one writer",
            Self::LeftAlone => "left alone",
            Self::NoWayDown => "no way down",
            Self::Windows => "windows",
            Self::Exact => "exact",
            Self::InTime => "in time",
            Self::Restart => "restart",
            Self::Continuity => "continuity",
            Self::Status => "status",
            Self::Steady => "steady",
            Self::Bounded => "bounded",
            Self::Compared => "compared",
        }
    }

    /// Whether it looks at each workload; the others look at the cluster and at Plimsoll's processes.
    pub fn is_of_workloads(self) -> bool {
        match self {
            Self::Number
            | Self::LeftAlone
            | Self::NoWayDown
            | Self::Windows
            | Self::InTime
            | Self::Restart
            | Self::Steady => true,
            Self::OneWriter
            | Self::Exact
            | Self::Continuity
            | Self::Status
            | Self::Compared
            | Self::Bounded => false,
        }
    }
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often the condition of an oracle held while a write was made, and while one was due and was
/// rightly not made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Writes, or states, that were looked at.
    pub checked: u64,
    /// Writes that were wanted and withheld.
    pub withheld: u64,
    /// The looks, of both kinds, at each workload while the condition of the oracle held for it.
    pub of: [u64; WORKLOADS],
}

impl Count {
    /// Adds the count of another run.
    pub fn add(&mut self, other: &Self) {
        self.checked += other.checked;
        self.withheld += other.withheld;
        for (of, other) in self.of.iter_mut().zip(other.of) {
            *of += other;
        }
    }

    /// The looks that count for an oracle: those at the workload that it looked at least often, or all.
    pub fn least(&self, oracle: Oracle) -> u64 {
        let of = self.of.into_iter().filter(|_| oracle.is_of_workloads());
        of.min().unwrap_or(self.checked + self.withheld)
    }
}

/// The counts of all oracles.
pub type Counts = BTreeMap<Oracle, Count>;
