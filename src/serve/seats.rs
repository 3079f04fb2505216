//! Seats and queues, as in API Priority and Fairness: a request occupies a seat while it
//! executes, and waits in a queue while there is none.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of flows from which on idle flows are dropped.
const MAX_IDLE_FLOWS: usize = 1024;

/// Seats, and a FIFO queue of as many requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SeatPool {
    seats: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl SeatPool {
    /// A pool of `seats` seats, and a queue of the same length.
    pub fn new(seats: usize) -> Self {
        let semaphore = || Arc::new(Semaphore::new(seats));
        Self { seats: semaphore(), queue: semaphore() }
    }

    /// Waits for a seat. Returns none if the queue is full.
    pub async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(seat) = self.seats.clone().try_acquire_owned() {
            return Some(seat);
        }
        let _queued = self.queue.clone().try_acquire_owned().ok()?;
        self.seats.clone().acquire_owned().await.ok()
    }

    /// A seat, if one is free now.
    pub fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.seats.clone().try_acquire_owned().ok()
    }

    /// Whether nobody has it, a seat or a place in its queue.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.seats) == 1 && Arc::strong_count(&self.queue) == 1
    }
}

/// A pool of seats for each flow, all of the same size.
#[derive(Debug)]
pub struct FlowSeats<K> {
    seats_per_flow: usize,
    flows: Mutex<HashMap<K, SeatPool>>,
}

impl<K: Eq + Hash> FlowSeats<K> {
    /// Pools of `seats_per_flow` seats each.
    pub fn new(seats_per_flow: usize) -> Self {
        Self { seats_per_flow, flows: Mutex::default() }
    }

    /// The pool of a flow.
    pub fn of<Q>(&self, flow: &Q) -> SeatPool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        if flows.len() >= MAX_IDLE_FLOWS {
            flows.retain(|_, pool| !pool.is_idle());
        }
        if let Some(pool) = flows.get(flow) {
            return pool.clone();
        }
        let pool = SeatPool::new(self.seats_per_flow);
        flows.insert(flow.to_owned(), pool.clone());
        pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_flows_are_dropped() {
        let seats = FlowSeats::new(1);
        let first = seats.of(&0);
        for n in 1..3 * MAX_IDLE_FLOWS {
            drop(seats.of(&n));
        }
        assert!(seats.flows.lock().unwrap().len() <= MAX_IDLE_FLOWS);
        // One that a caller has not used yet is kept: there would be two for its flow.
        let seat = first.try_acquire();
        assert!(seat.is_some() && seats.of(&0).try_acquire().is_none());
    }
}
