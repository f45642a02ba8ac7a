//! Recorded routing, and what a cache would have done with it.

use super::cache::{Cache, Place};
use super::policy::PolicyKind;
use std::collections::{BTreeMap, BinaryHeap};

/// The experts that a model chose, step by step.
///
/// As text: a line for each row and layer, the number of the layer and those of the experts.
/// Lines of one layer that follow each other are the rows of one step. A layer that is not above
/// the one before begins the next step, and so does an empty line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number of experts of a layer, as far as they occur.
    experts: u32,
    /// The layers that occur, ascending.
    layers: Vec<u32>,
    unions: Vec<Union>,
    /// Whether the next row begins a step.
    ended: bool,
}

/// What one layer uses in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Union {
    layer: u32,
    /// Whether it is the first of its step.
    begins: bool,
    rows: u32,
    /// Ascending, each once.
    experts: Vec<u32>,
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Experts used, each once a step and layer.
    pub uses: u64,
    /// Of those, found in the cache.
    pub hits: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Replayed {
    /// Part of the uses that were hits.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.uses.max(1) as f64
    }

    /// Experts to read for a token.
    #[must_use]
    pub fn misses_per_token(&self) -> f64 {
        (self.uses - self.hits) as f64 / self.tokens.max(1) as f64
    }
}

impl Trace {
    /// Reads a trace from its text.
    ///
    /// # Errors
    /// The number of the first line that is none, from 1, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Trace, (usize, String)> {
        const MOST: u32 = 1 << 16;
        let mut trace = Trace::default();
        for (index, line) in text.lines().enumerate() {
            let number = |word: &str| match word.parse::<u32>() {
                Ok(n) if n < MOST => Ok(n),
                _ => Err((index + 1, format!("{word:?} is no number below {MOST}"))),
            };
            let mut numbers = line.split_ascii_whitespace().map(number);
            let Some(layer) = numbers.next().transpose()? else {
                trace.end_step();
                continue;
            };
            let experts = numbers.collect::<Result<Vec<u32>, _>>()?;
            if experts.is_empty() {
                return Err((index + 1, "it names a layer and no expert".to_owned()));
            }
            trace.push(layer, &experts);
        }
        Ok(trace)
    }

    /// Adds a row: a layer and the experts it chose.
    pub fn push(&mut self, layer: u32, experts: &[u32]) {
        if let Err(place) = self.layers.binary_search(&layer) {
            self.layers.insert(place, layer);
        }
        let most = experts.iter().max().map_or(0, |&e| e + 1);
        self.experts = self.experts.max(most);
        let ended = std::mem::take(&mut self.ended);
        let last = self.unions.last().map(|union| union.layer);
        let begins = ended || last.is_none_or(|last| layer < last);
        let same = |union: &&mut Union| !ended && union.layer == layer;
        match self.unions.last_mut().filter(same) {
            Some(union) => {
                union.rows += 1;
                union.experts.extend(experts);
            }
            None => self.unions.push(Union {
                layer,
                begins,
                rows: 1,
                experts: experts.to_vec(),
            }),
        }
        if let Some(union) = self.unions.last_mut() {
            union.experts.sort_unstable();
            union.experts.dedup();
        }
    }

    /// Ends a step: the next row begins another one, whatever its layer is.
    pub fn end_step(&mut self) {
        self.ended = true;
    }

    /// Experts of all layers that occur.
    #[must_use]
    pub fn records(&self) -> u32 {
        let layers = u32::try_from(self.layers.len()).unwrap_or(u32::MAX);
        layers.saturating_mul(self.experts)
    }

    /// What a cache with room for `slots` experts does, under one policy or under whichever turns
    /// out best.
    #[must_use]
    pub fn replay(&self, slots: u32, policy: Option<PolicyKind>) -> Replayed {
        let mut cache = Cache::new(self.records(), slots, policy);
        let mut replayed = Replayed::default();
        let mut records = Vec::new();
        for (index, union) in self.unions.iter().enumerate() {
            self.records_of(union, &mut records);
            cache.begin(&records);
            replayed.uses += records.len() as u64;
            for &record in &records {
                replayed.hits += u64::from(matches!(cache.place(record), Place::Here(_)));
                cache.loaded(record);
            }
            if self.ends_step(index) {
                replayed.tokens += u64::from(union.rows);
                cache.token();
            }
        }
        replayed
    }

    /// What no policy can do better: the record that is used again last leaves (Belady, IBM Systems
    /// Journal 5, 1966).
    #[must_use]
    pub fn belady(&self, slots: u32) -> Replayed {
        const NEVER: u64 = u64::MAX;
        let mut uses: Vec<(u32, u64)> = Vec::new();
        let mut records = Vec::new();
        let mut replayed = Replayed::default();
        for (index, union) in self.unions.iter().enumerate() {
            self.records_of(union, &mut records);
            uses.extend(records.iter().map(|&r| (r, NEVER)));
            if self.ends_step(index) {
                replayed.tokens += u64::from(union.rows);
            }
        }
        let mut next = BTreeMap::new();
        for (at, (record, again)) in uses.iter_mut().enumerate().rev() {
            *again = next.insert(*record, at as u64).unwrap_or(NEVER);
        }
        // The next use of what is in the cache, and the same by next use; old entries stay.
        let (mut inside, mut by_next) = (BTreeMap::new(), BinaryHeap::new());
        for &(record, again) in &uses {
            replayed.uses += 1;
            if inside.insert(record, again).is_some() {
                replayed.hits += 1;
            } else if inside.len() > slots as usize {
                // What is used last of all may be the new one itself: it is used and not kept.
                by_next.push((again, record));
                while let Some((next, out)) = by_next.pop() {
                    if inside.get(&out) == Some(&next) {
                        inside.remove(&out);
                        break;
                    }
                }
                continue;
            }
            by_next.push((again, record));
        }
        replayed
    }

    fn records_of(&self, union: &Union, out: &mut Vec<u32>) {
        out.clear();
        let place = self.layers.binary_search(&union.layer).unwrap_or_default() as u32;
        out.extend(union.experts.iter().map(|e| place * self.experts + e));
    }

    fn ends_step(&self, index: usize) -> bool {
        let next = self.unions.get(index + 1);
        next.is_none_or(|next| next.begins)
    }
}
