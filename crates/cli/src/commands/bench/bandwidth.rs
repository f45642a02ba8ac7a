//! How fast this machine reads memory: the limit of decoding.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Far beyond any cache in all threads together.
const BYTES_A_THREAD: usize = 192 << 20;
const PASSES: usize = 5;

/// Bytes per second that `threads` threads read together, each its own memory; the best of a few
/// passes.
pub(super) fn measure(threads: usize) -> f64 {
    let barrier = Barrier::new(threads + 1);
    let mut best = f64::INFINITY;
    std::thread::scope(|scope| {
        for index in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                let memory = vec![index as u64 + 1; BYTES_A_THREAD / 8];
                for _ in 0..PASSES {
                    barrier.wait();
                    black_box(sum(black_box(&memory)));
                    barrier.wait();
                }
            });
        }
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            best = best.min(start.elapsed().as_secs_f64());
        }
    });
    (threads * BYTES_A_THREAD) as f64 / best
}

/// Reads everything. Independent accumulators, so that loads are the limit and not additions.
fn sum(memory: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for block in memory.as_chunks::<32>().0 {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        assert_eq!(sum(&[1; 32 * 5]), 160);
    }
}
