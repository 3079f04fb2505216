//! Whose round is begun next, where more are due than are decided at once: each
//! namespace has its turn, and none can hold all there is.

use std::collections::{HashMap, VecDeque};

/// Rounds that wait, and how many of each namespace are under way.
///
/// A namespace may begin a round as long as it has fewer under way than there is
/// room left. So one alone may have half of the room, two a third each, and however
/// many hold theirs for long, a further one finds some.
pub struct Turns<T> {
    /// How many more may be under way.
    room: usize,
    under_way: HashMap<String, usize>,
    waiting: HashMap<String, VecDeque<T>>,
    /// The namespaces that have some waiting, in the order of their turns.
    order: VecDeque<String>,
}

impl<T> Turns<T> {
    /// With room for so many at once.
    pub fn new(room: usize) -> Self {
        Self { room, under_way: HashMap::new(), waiting: HashMap::new(), order: VecDeque::new() }
    }

    /// One more of a namespace waits.
    pub fn push(&mut self, namespace: &str, round: T) {
        match self.waiting.get_mut(namespace) {
            Some(waiting) => waiting.push_back(round),
            None => {
                self.waiting.insert(namespace.to_owned(), VecDeque::from([round]));
                self.order.push_back(namespace.to_owned());
            }
        }
    }

    /// The next to be begun; none where nobody waits who may begin one.
    pub fn next(&mut self) -> Option<T> {
        // Those that are passed over have some under way, so they are not many.
        for _ in 0..self.order.len() {
            let namespace = self.order.pop_front()?;
            let under_way = self.under_way.get(&namespace).copied().unwrap_or(0);
            if self.room == 0 || under_way >= self.room {
                self.order.push_back(namespace);
                if self.room == 0 {
                    return None;
                }
                continue;
            }
            let waiting = self.waiting.get_mut(&namespace)?;
            let round = waiting.pop_front()?;
            self.room -= 1;
            *self.under_way.entry(namespace.clone()).or_default() += 1;
            if waiting.is_empty() {
                self.waiting.remove(&namespace);
            } else {
                self.order.push_back(namespace);
            }
            return Some(round);
        }
        None
    }

    /// One of a namespace has ended.
    pub fn ended(&mut self, namespace: &str) {
        if let Some(under_way) = self.under_way.get_mut(namespace) {
            self.room += 1;
            *under_way -= 1;
            if *under_way == 0 {
                self.under_way.remove(namespace);
            }
        }
    }

    /// Takes all that wait: they are not begun.
    pub fn clear(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.order.clear();
        std::mem::take(&mut self.waiting).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_rounds_of_some_namespaces_leave_room_for_others() {
        let mut turns = Turns::new(256);
        let slow: Vec<String> = (0..5).map(|n| format!("slow-{n}")).collect();
        for namespace in &slow {
            (0..1_000).for_each(|_| turns.push(namespace, namespace.as_str()));
        }
        let begun = std::iter::from_fn(|| turns.next()).count();
        assert!((200..250).contains(&begun), "{begun}");
        // None of those ends; a thousand others come, and end at once.
        let names: Vec<String> = (0..1_000).map(|n| format!("good-{n}")).collect();
        for name in &names {
            turns.push(name, name);
        }
        let mut decided = 0;
        while let Some(name) = turns.next() {
            assert!(name.starts_with("good"));
            turns.ended(name);
            decided += 1;
        }
        assert_eq!(decided, 1_000);
        assert_eq!(turns.clear().count(), 5_000 - begun);
    }

    #[test]
    fn one_namespace_alone_has_half_of_the_room_and_gets_through() {
        let mut turns = Turns::new(8);
        (0..100).for_each(|n| turns.push("shop", n));
        let mut under_way: VecDeque<i32> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(under_way, [0, 1, 2, 3]);
        let mut done = 0;
        while under_way.pop_front().is_some() {
            done += 1;
            turns.ended("shop");
            under_way.extend(std::iter::from_fn(|| turns.next()));
        }
        assert_eq!((done, turns.room, turns.under_way.len()), (100, 8, 0));
    }
}
