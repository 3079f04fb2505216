//! The body of a response.

use super::budget::Reservation;
use std::ops::Deref;
use std::time::Duration;

/// The body of a response, with its part of the memory budget.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    reservation: Reservation,
    took: Duration,
}

impl Body {
    /// A body that was received so long after its request had a seat.
    pub(super) fn new(bytes: Vec<u8>, reservation: Reservation, took: Duration) -> Self {
        Self { bytes, reservation, took }
    }

    /// How long the request took since it had a seat.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The bytes, and their reservation in the budget.
    pub fn into_parts(self) -> (Vec<u8>, Reservation) {
        (self.bytes, self.reservation)
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
