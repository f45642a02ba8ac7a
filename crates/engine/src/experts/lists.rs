//! Ordered lists over numbers, in constant time.

/// No place in any list.
const NOWHERE: u32 = u32::MAX;

/// Lists of the numbers below a bound, each number in at most one list. Every operation takes
/// constant time.
pub(super) struct Lists {
    /// For each number, and behind them for each list, which is a ring through a node of its own.
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Numbers there are.
    numbers: u32,
}

impl Lists {
    /// `lists` empty lists of the numbers below `numbers`.
    pub(super) fn new(numbers: u32, lists: u32) -> Lists {
        let ring = |i: u32| if i < numbers { NOWHERE } else { i };
        let nodes: Vec<u32> = (0..numbers + lists).map(ring).collect();
        Lists {
            next: nodes.clone(),
            previous: nodes,
            numbers,
        }
    }

    /// Whether `number` is in a list.
    pub(super) fn holds(&self, number: u32) -> bool {
        self.next[number as usize] != NOWHERE
    }

    /// Puts `number`, which is in no list, at the front of `list`.
    pub(super) fn push(&mut self, list: u32, number: u32) {
        let front = self.numbers + list;
        let second = self.next[front as usize];
        self.join(front, number);
        self.join(number, second);
    }

    /// Takes `number` out of its list, if it is in one.
    pub(super) fn remove(&mut self, number: u32) {
        if self.holds(number) {
            let (previous, next) = (self.previous[number as usize], self.next[number as usize]);
            self.join(previous, next);
            self.next[number as usize] = NOWHERE;
        }
    }

    /// The last number of `list`.
    pub(super) fn last(&self, list: u32) -> Option<u32> {
        self.before(self.numbers + list)
    }

    /// The number before `number`, towards the front of its list.
    pub(super) fn before(&self, number: u32) -> Option<u32> {
        let before = self.previous[number as usize];
        (before < self.numbers).then_some(before)
    }

    /// The numbers of `list`, the last one first.
    pub(super) fn backwards(&self, list: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.last(list), |&number| self.before(number))
    }

    /// Puts all of `from` behind the last of `to`.
    pub(super) fn append(&mut self, from: u32, to: u32) {
        let (from, to) = (self.numbers + from, self.numbers + to);
        let (first, last) = (self.next[from as usize], self.previous[from as usize]);
        if first == from {
            return;
        }
        self.join(self.previous[to as usize], first);
        self.join(last, to);
        self.join(from, from);
    }

    fn join(&mut self, previous: u32, next: u32) {
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(lists: &Lists, list: u32) -> Vec<u32> {
        lists.backwards(list).collect()
    }

    #[test]
    fn numbers_move_between_lists() {
        let mut lists = Lists::new(6, 2);
        for number in [3, 1, 4] {
            lists.push(0, number);
        }
        lists.push(1, 5);
        assert_eq!(content(&lists, 0), [3, 1, 4]);
        lists.remove(1);
        lists.remove(1);
        assert!(!lists.holds(1) && lists.holds(3));
        lists.push(1, 1);
        assert_eq!(
            (content(&lists, 0), content(&lists, 1)),
            (vec![3, 4], vec![5, 1])
        );
        lists.append(0, 1);
        assert_eq!(content(&lists, 1), [3, 4, 5, 1]);
        assert_eq!(lists.last(0), None);
        lists.append(0, 1);
        lists.push(0, 0);
        lists.append(0, 1);
        assert_eq!(content(&lists, 1), [0, 3, 4, 5, 1]);
    }
}
