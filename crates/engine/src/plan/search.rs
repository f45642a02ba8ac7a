//! The search for the best ranges of layers, over sets of machines.

use super::chain::{Cost, Node};

/// A machine and its layers.
pub(super) type Held = (usize, usize, usize);

/// The best way to some layer.
#[derive(Clone, Copy)]
struct Step {
    /// Seconds of a token up to here.
    total: f64,
    /// Of those, the slowest machine's.
    worst: f64,
    /// The machine before.
    from: usize,
    /// First layer of the last machine.
    first: usize,
}

/// The best ways by the set of machines that have layers, the last of them, and how many layers
/// that makes.
struct Reached {
    nodes: usize,
    layers: usize,
    steps: Vec<Option<Step>>,
}

impl Reached {
    fn new(nodes: usize, layers: usize) -> Reached {
        let steps = vec![None; (1 << nodes) * nodes * (layers + 1)];
        Reached {
            nodes,
            layers,
            steps,
        }
    }

    fn members(&self, set: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.nodes).filter(move |node| set >> node & 1 == 1)
    }

    fn at(&self, set: usize, last: usize, done: usize) -> usize {
        (set * self.nodes + last) * (self.layers + 1) + done
    }

    fn get(&self, set: usize, last: usize, done: usize) -> Option<Step> {
        *self.steps.get(self.at(set, last, done))?
    }

    fn set(&mut self, set: usize, last: usize, done: usize, step: Option<Step>) {
        let at = self.at(set, last, done);
        self.steps[at] = step;
    }
}

/// What is searched.
pub(super) struct Search<'a> {
    pub(super) nodes: &'a [Node],
    pub(super) layers: usize,
    /// Bytes of a row on the wire.
    pub(super) row: f64,
    pub(super) table: Vec<Vec<Option<Cost>>>,
    /// Whether the slowest machine counts, or else all of them together.
    pub(super) slowest: bool,
    /// Seconds of the ends, which the first machine has beside its layers.
    pub(super) ends: f64,
}

impl Search<'_> {
    pub(super) fn cost(&self, node: usize, a: usize, b: usize) -> Option<Cost> {
        *self.table[node].get(a * (self.layers + 1) + b)?
    }

    /// Seconds until a row that `from` sends has reached `to`.
    pub(super) fn hop(&self, from: usize, to: usize) -> f64 {
        if from == to {
            return 0.0;
        }
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        from.latency.max(to.latency) + self.row / from.link.min(to.link)
    }

    /// Seconds that a machine is busy with a range.
    fn busy(&self, node: usize, cost: Cost) -> f64 {
        match node {
            0 => cost.seconds + self.ends,
            _ => cost.seconds,
        }
    }

    /// Whether a time for a token and one of the slowest machine are better than others.
    fn better(&self, new: (f64, f64), old: (f64, f64)) -> bool {
        match self.slowest {
            true => (new.1, new.0) < (old.1, old.0),
            false => new < old,
        }
    }

    /// The best ranges in ascending order.
    pub(super) fn best(&self) -> Option<Vec<Held>> {
        let mut reached = Reached::new(self.nodes.len(), self.layers);
        for set in 1..1usize << self.nodes.len() {
            for last in reached.members(set) {
                self.extend(&mut reached, set, last);
            }
        }
        let sets = 1..1usize << self.nodes.len();
        let mut found: Option<((f64, f64), (usize, usize))> = None;
        for (set, last) in sets.flat_map(|set| reached.members(set).map(move |last| (set, last))) {
            if let Some(end) = reached.get(set, last, self.layers) {
                let score = (end.total + self.hop(last, 0), end.worst);
                if found.is_none_or(|(old, _)| self.better(score, old)) {
                    found = Some((score, (set, last)));
                }
            }
        }
        let (_, (mut set, mut last)) = found?;
        let (mut held, mut done) = (Vec::new(), self.layers);
        while done > 0 {
            let step = reached.get(set, last, done)?;
            held.push((last, step.first, done));
            (set, done, last) = (set & !(1 << last), step.first, step.from);
        }
        held.reverse();
        Some(held)
    }

    /// Everything that ends with a range of `last`, where the machines of `set` have layers.
    fn extend(&self, reached: &mut Reached, set: usize, last: usize) {
        let before = set & !(1 << last);
        for a in 0..self.layers {
            for b in a + 1..=self.layers {
                let Some(cost) = self.cost(last, a, b) else {
                    break;
                };
                let mut found = reached.get(set, last, b);
                let mut offer = |step: Step| {
                    let (new, old) = ((step.total, step.worst), found);
                    if old.is_none_or(|old| self.better(new, (old.total, old.worst))) {
                        found = Some(step);
                    }
                };
                if before == 0 && a == 0 {
                    offer(Step {
                        total: self.hop(0, last) + cost.seconds,
                        worst: self.busy(last, cost).max(self.ends),
                        from: last,
                        first: 0,
                    });
                }
                for from in reached.members(before) {
                    if let Some(step) = reached.get(before, from, a).filter(|_| a > 0) {
                        offer(Step {
                            total: step.total + self.hop(from, last) + cost.seconds,
                            worst: step.worst.max(self.busy(last, cost)),
                            from,
                            first: a,
                        });
                    }
                }
                reached.set(set, last, b, found);
            }
        }
    }
}
