//! How fast this machine reads memory: the limit of decoding.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Far beyond any cache in all threads together.
const BYTES_A_THREAD: usize = 192 << 20;
const PASSES: usize = 5;

/// Bytes per second that `threads` threads read together, each its own memory; the best of a few
/// passes. A pass takes as long as its slowest thread, by the threads' own clocks.
pub(super) fn measure(threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let passes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let barrier = &barrier;
                scope.spawn(move || read_passes(index, barrier))
            })
            .collect();
        let times = workers.into_iter().filter_map(|worker| worker.join().ok());
        times.fold([0.0; PASSES], |mut slowest: [f64; PASSES], times| {
            for (slowest, time) in slowest.iter_mut().zip(times) {
                *slowest = slowest.max(time);
            }
            slowest
        })
    });
    let best = passes.into_iter().fold(f64::INFINITY, f64::min);
    (threads * BYTES_A_THREAD) as f64 / best
}

/// Seconds of each pass of one thread over its own memory.
fn read_passes(index: usize, barrier: &Barrier) -> [f64; PASSES] {
    let memory = vec![index as u64 + 1; BYTES_A_THREAD / 8];
    std::array::from_fn(|_| {
        barrier.wait();
        let start = Instant::now();
        black_box(sum(black_box(&memory)));
        start.elapsed().as_secs_f64()
    })
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
