//! Which policy would have kept the most.

use super::policy::{Policy, PolicyKind};

/// Tokens after which a hit weighs half.
const HALF_LIFE: f64 = 48.0;
/// By how much of all uses another policy must be better to take over.
const MARGIN: f64 = 0.004;
/// Tokens that a policy stays in force at least.
const STAY: u32 = 8;

/// Caches of every policy that hold nothing but the knowledge what they would hold.
pub(super) struct Chooser {
    shadows: Vec<Shadow>,
    active: usize,
    /// Uses, fading.
    uses: f64,
    tokens: u32,
}

struct Shadow {
    policy: Box<dyn Policy>,
    inside: Vec<bool>,
    free: u32,
    /// Uses that were hits, fading.
    hits: f64,
}

impl Chooser {
    pub(super) fn new(records: u32, slots: u32) -> Chooser {
        let shadow = |kind: PolicyKind| Shadow {
            policy: kind.of(records, slots),
            inside: vec![false; records as usize],
            free: slots,
            hits: 0.0,
        };
        Chooser {
            shadows: PolicyKind::ALL.map(shadow).into(),
            active: 0,
            uses: 0.0,
            tokens: 0,
        }
    }

    /// A step uses `records`; those of which `used` is `step` cannot leave.
    pub(super) fn step(&mut self, records: &[u32], used: &[u64], step: u64) {
        self.uses += records.len() as f64;
        let keep = |record: u32| used[record as usize] == step;
        for shadow in &mut self.shadows {
            shadow.step(records, &keep);
        }
    }

    /// There is one slot less.
    pub(super) fn shrink(&mut self) {
        for shadow in &mut self.shadows {
            match shadow.free.checked_sub(1) {
                Some(free) => shadow.free = free,
                None => {
                    if let Some(out) = shadow.policy.evict(&|_| false) {
                        shadow.inside[out as usize] = false;
                    }
                }
            }
        }
    }

    /// There is one slot more.
    pub(super) fn grow(&mut self) {
        self.shadows.iter_mut().for_each(|shadow| shadow.free += 1);
    }

    /// By what share of all uses the best policy would have hit more lately than the one in force.
    pub(super) fn regret(&self) -> f64 {
        let hits = |shadow: &Shadow| shadow.hits;
        let best = self.shadows.iter().map(hits).fold(0.0, f64::max);
        let lost = best - self.shadows[self.active].hits;
        if self.uses > 0.0 {
            lost / self.uses
        } else {
            0.0
        }
    }

    /// A token has gone through all layers; the policy to follow now, by its number in
    /// [`PolicyKind::ALL`].
    pub(super) fn token(&mut self) -> usize {
        let best = (0..self.shadows.len()).max_by(|&a, &b| {
            let hits = |i: usize| self.shadows[i].hits;
            hits(a).total_cmp(&hits(b))
        });
        self.tokens += 1;
        if let Some(best) = best.filter(|_| self.tokens >= STAY) {
            let gain = self.shadows[best].hits - self.shadows[self.active].hits;
            if gain > MARGIN * self.uses {
                self.active = best;
                self.tokens = 0;
            }
        }
        let fade = libm::exp2(-1.0 / HALF_LIFE);
        self.uses *= fade;
        for shadow in &mut self.shadows {
            shadow.hits *= fade;
            shadow.policy.token();
        }
        self.active
    }
}

impl Shadow {
    fn step(&mut self, records: &[u32], keep: &dyn Fn(u32) -> bool) {
        for &record in records.iter().filter(|&&r| self.inside[r as usize]) {
            self.policy.touch(record);
            self.hits += 1.0;
        }
        for &record in records {
            if self.inside[record as usize] {
                continue;
            }
            if self.free > 0 {
                self.free -= 1;
            } else if let Some(out) = self.policy.evict(keep) {
                self.inside[out as usize] = false;
            } else {
                return;
            }
            self.policy.admit(record);
            self.inside[record as usize] = true;
        }
    }
}
