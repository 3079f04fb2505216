//! A fair queue of evaluations, for when more are due than may be in flight: namespaces take turns,
//! and none can hold all slots.

use std::collections::{HashMap, VecDeque};

/// Queued items, and how many of each namespace are in flight.
///
/// A namespace may begin an item as long as it has fewer in flight than slots are free. So one
/// namespace may have half of the slots, two have a third each, and another one always finds a free
/// slot, however many namespaces hold theirs for long.
pub struct FairQueue<T> {
    /// How many items may be in flight.
    slots: usize,
    /// How many more may be in flight.
    free: usize,
    /// How many items are queued.
    waiting: usize,
    in_flight: HashMap<String, usize>,
    queued: HashMap<String, VecDeque<T>>,
    /// The namespaces with queued items, in the order of their turns.
    order: VecDeque<String>,
}

impl<T> FairQueue<T> {
    /// An empty queue with this many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            free: slots,
            waiting: 0,
            in_flight: HashMap::new(),
            queued: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Queues an item of a namespace.
    pub fn push(&mut self, namespace: &str, item: T) {
        self.waiting += 1;
        match self.queued.get_mut(namespace) {
            Some(queued) => queued.push_back(item),
            None => {
                self.queued.insert(namespace.to_owned(), VecDeque::from([item]));
                self.order.push_back(namespace.to_owned());
            }
        }
    }

    /// The next item to begin; none if no queued item may begin.
    pub fn next(&mut self) -> Option<T> {
        // No namespace loses its turn for it.
        if self.free == 0 {
            return None;
        }
        // Namespaces that are skipped have items in flight, so there are not many.
        for _ in 0..self.order.len() {
            let namespace = self.order.pop_front()?;
            let in_flight = self.in_flight.get(&namespace).copied().unwrap_or(0);
            if in_flight >= self.free {
                self.order.push_back(namespace);
                continue;
            }
            let queued = self.queued.get_mut(&namespace)?;
            let item = queued.pop_front()?;
            self.free -= 1;
            self.waiting -= 1;
            *self.in_flight.entry(namespace.clone()).or_default() += 1;
            if queued.is_empty() {
                self.queued.remove(&namespace);
            } else {
                self.order.push_back(namespace);
            }
            return Some(item);
        }
        None
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether more items are queued than may be in flight, of any number of namespaces.
    pub fn is_backlogged(&self) -> bool {
        self.waiting > self.slots
    }

    /// An item of a namespace has ended.
    pub fn ended(&mut self, namespace: &str) {
        if let Some(in_flight) = self.in_flight.get_mut(namespace) {
            self.free += 1;
            *in_flight -= 1;
            if *in_flight == 0 {
                self.in_flight.remove(namespace);
            }
        }
    }

    /// Takes all queued items out.
    pub fn clear(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.order.clear();
        self.waiting = 0;
        std::mem::take(&mut self.queued).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_evaluations_of_some_namespaces_leave_slots_for_others() {
        let mut queue = FairQueue::new(256);
        let slow: Vec<String> = (0..5).map(|n| format!("slow-{n}")).collect();
        for namespace in &slow {
            (0..1_000).for_each(|_| queue.push(namespace, namespace.as_str()));
        }
        let begun = std::iter::from_fn(|| queue.next()).count();
        assert!((200..250).contains(&begun), "{begun}");
        // None of those ends; items of a thousand other namespaces are queued, and end at once.
        let names: Vec<String> = (0..1_000).map(|n| format!("good-{n}")).collect();
        for name in &names {
            queue.push(name, name);
        }
        let mut decided = 0;
        while let Some(name) = queue.next() {
            assert!(name.starts_with("good"));
            queue.ended(name);
            decided += 1;
        }
        assert_eq!(decided, 1_000);
        assert_eq!(queue.clear().count(), 5_000 - begun);
    }

    #[test]
    fn namespaces_take_turns_when_slots_become_free_one_by_one() {
        let mut queue = FairQueue::new(1);
        for namespace in ["a", "b", "c"] {
            (0..10).for_each(|_| queue.push(namespace, namespace));
        }
        let mut begun = String::new();
        while let Some(namespace) = queue.next() {
            assert!(queue.next().is_none());
            begun += namespace;
            queue.ended(namespace);
            // It is due again before the others are done.
            if begun.len() < 30 {
                queue.push(namespace, namespace);
            }
        }
        assert_eq!(begun[..30], "abc".repeat(10));
    }

    #[test]
    fn a_single_namespace_has_half_of_the_slots_and_all_its_items_run() {
        let mut queue = FairQueue::new(8);
        (0..100).for_each(|n| queue.push("shop", n));
        let mut in_flight: VecDeque<i32> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(in_flight, [0, 1, 2, 3]);
        let mut done = 0;
        while in_flight.pop_front().is_some() {
            done += 1;
            queue.ended("shop");
            in_flight.extend(std::iter::from_fn(|| queue.next()));
        }
        assert_eq!((done, queue.free, queue.in_flight.len()), (100, 8, 0));
    }
}
