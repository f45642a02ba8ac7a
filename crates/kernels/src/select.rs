//! The largest of many scores.

use crate::Kernels;

/// A number that grows with the score: NaN is 0, below everything; both zeros are equal.
#[inline(always)]
fn rank(score: f32) -> u32 {
    if score.is_nan() {
        return 0;
    }
    // Adding zero makes -0 a +0.
    let bits = (score + 0.0).to_bits();
    // Negative numbers grow downward.
    let flip = if bits >> 31 == 1 { u32::MAX } else { 1 << 31 };
    bits ^ flip
}

/// Whether score `a` loses against score `b`: smaller, or equal and of a higher index.
#[inline(always)]
fn loses(scores: &[f32], a: u32, b: u32) -> bool {
    let (x, y) = (rank(scores[a as usize]), rank(scores[b as usize]));
    (x, b) < (y, a)
}

/// Restores the heap below `at`: no entry loses against one below it.
fn sift(scores: &[f32], heap: &mut [u32], mut at: usize) {
    loop {
        let mut worst = at;
        for child in [2 * at + 1, 2 * at + 2] {
            if child < heap.len() && loses(scores, heap[child], heap[worst]) {
                worst = child;
            }
        }
        if worst == at {
            return;
        }
        heap.swap(at, worst);
        at = worst;
    }
}

impl Kernels {
    /// The indices of the `chosen.len()` largest scores, ascending; the lower index wins among
    /// equals, and NaN is chosen only when nothing else is left. Returns how many: with fewer
    /// scores than that all of them are chosen, and the rest of `chosen` stays as it is.
    ///
    /// Takes `n + k log k log(n / k)` steps for scores in random order and `n log k` for any.
    ///
    /// # Panics
    /// If there are more scores than a `u32` counts.
    pub fn top_k(&self, scores: &[f32], chosen: &mut [u32]) -> usize {
        let Ok(n) = u32::try_from(scores.len()) else {
            panic!("{} scores", scores.len());
        };
        let k = chosen.len().min(scores.len());
        let chosen = &mut chosen[..k];
        for (slot, index) in chosen.iter_mut().zip(0..) {
            *slot = index;
        }
        if k == scores.len() || k == 0 {
            return k;
        }
        // A heap with the worst chosen score on top.
        for at in (0..k / 2).rev() {
            sift(scores, chosen, at);
        }
        let mut bar = rank(scores[chosen[0] as usize]);
        for index in k as u32..n {
            // An equal one came later and loses.
            if rank(scores[index as usize]) > bar {
                chosen[0] = index;
                sift(scores, chosen, 0);
                bar = rank(scores[chosen[0] as usize]);
            }
        }
        chosen.sort_unstable();
        k
    }
}
