//! What is measured of a seed.

use super::side::Side;
use super::step::Steps;
use crate::measure::Block;

/// The measurements of a seed.
pub struct OfSeed {
    pub seed: u64,
    /// How many different metrics with their windows there are.
    pub metrics: usize,
    /// In the order in which they were measured.
    pub sides: Vec<(Side, Block, Steps)>,
    /// Without a side, before each of them: what a stack uses then grows from one seed to the next.
    pub idle: Vec<Block>,
}

impl OfSeed {
    /// Before anything is measured.
    pub fn new(seed: u64, metrics: usize) -> Self {
        Self { seed, metrics, sides: Vec::new(), idle: Vec::new() }
    }
}
