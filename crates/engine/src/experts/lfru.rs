//! Heat: uses that fade.

use super::lists::Lists;
use super::policy::Policy;

/// Steps of heat a doubling is told in.
const STEPS: f64 = 4.0;
/// Steps between the coldest and the hottest record that are told apart.
const LISTS: u32 = 1024;
/// Steps above the heat of a single use that a record can have: a use for every token.
const ABOVE: f64 = 64.0;

/// Records by their heat: the sum of their uses, each of which weighs half after every half-life
/// (LRFU: Lee and others, IEEE Transactions on Computers 50, 2001). A short half-life makes it the
/// least recently used, a long one the least frequently used.
///
/// Kept is the logarithm of the heat as it was at the beginning of time. It does not change while a
/// record is not used, and so neither does the order.
pub(super) struct Lfru {
    /// A ring of lists, one for each step of heat.
    lists: Lists,
    /// Logarithm to base 2 of the heat of each record, in the cache or not.
    heat: Vec<f64>,
    /// The lowest step that is told apart; colder records are in its list.
    lowest: i64,
    /// No record of the cache is below this step.
    coldest: i64,
    half_life: f64,
    tokens: f64,
}

impl Lfru {
    /// For `records` records, with a half-life in tokens.
    pub(super) fn new(records: u32, half_life: f64) -> Lfru {
        let lowest = ABOVE as i64 - i64::from(LISTS);
        Lfru {
            lists: Lists::new(records, LISTS),
            heat: vec![f64::NEG_INFINITY; records as usize],
            lowest,
            coldest: lowest,
            half_life,
            tokens: 0.0,
        }
    }

    /// Adds the heat of a use now.
    fn warm(&mut self, record: u32) {
        let heat = &mut self.heat[record as usize];
        let use_now = self.tokens / self.half_life;
        // log2(2^heat + 2^use), from the larger of the two.
        let (high, low) = (heat.max(use_now), heat.min(use_now));
        *heat = high + libm::log1p(libm::exp2(low - high)) / std::f64::consts::LN_2;
    }

    fn place(&mut self, record: u32) {
        let step = ((self.heat[record as usize] * STEPS) as i64)
            .clamp(self.lowest, self.lowest + i64::from(LISTS) - 1);
        self.coldest = self.coldest.min(step);
        self.lists.remove(record);
        self.lists.push(list(step), record);
    }
}

/// The list of a step.
fn list(step: i64) -> u32 {
    step.rem_euclid(i64::from(LISTS)) as u32
}

impl Policy for Lfru {
    fn touch(&mut self, record: u32) {
        self.warm(record);
        self.place(record);
    }

    fn admit(&mut self, record: u32) {
        self.touch(record);
    }

    fn evict(&mut self, keep: &dyn Fn(u32) -> bool) -> Option<u32> {
        let end = self.lowest + i64::from(LISTS);
        while self.coldest + 1 < end && self.lists.last(list(self.coldest)).is_none() {
            self.coldest += 1;
        }
        let steps = self.coldest..end;
        let record = steps
            .into_iter()
            .find_map(|step| self.lists.backwards(list(step)).find(|&r| !keep(r)))?;
        self.lists.remove(record);
        Some(record)
    }

    fn remove(&mut self, record: u32) {
        self.lists.remove(record);
    }

    fn token(&mut self) {
        self.tokens += 1.0;
        let now = self.tokens / self.half_life * STEPS;
        let lowest = (now + ABOVE) as i64 - i64::from(LISTS);
        while self.lowest < lowest {
            let (from, to) = (list(self.lowest), list(self.lowest + 1));
            self.lists.append(from, to);
            self.lowest += 1;
        }
        self.coldest = self.coldest.max(self.lowest);
    }
}
