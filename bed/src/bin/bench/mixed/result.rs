//! What is measured of a seed.

use super::side::Side;
use super::step::Steps;
use crate::measure::Block;

/// The measurements of a seed.
pub struct OfSeed {
    pub seed: u64,
    /// How many different metrics with their windows there are.
    pub metrics: usize,
    pub idle: Block,
    pub sides: Vec<(Side, Block, Steps)>,
}
