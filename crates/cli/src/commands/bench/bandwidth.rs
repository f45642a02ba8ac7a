//! How fast this machine reads memory: the limit of decoding.

use lamella_engine::Error;
use lamella_engine::memory::Buffer;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Far beyond any cache.
const BYTES_A_THREAD: usize = 192 << 20;
const PASSES: usize = 4;
/// Places each thread reads at, alternating: some processors fetch ahead better on several.
const STREAMS: [usize; 3] = [1, 2, 4];
/// Bytes read at one place before the next.
const BLOCK: usize = 256;

/// Bytes per second that `threads` threads read together, each its own memory, from pages like
/// those the weights lie in; the best of a few passes.
///
/// # Errors
/// If there is not enough memory for the buffers.
pub(super) fn measure(threads: usize) -> Result<f64, Error> {
    let mut buffers = Vec::with_capacity(threads);
    for _ in 0..threads {
        let mut buffer = Buffer::zeroed(BYTES_A_THREAD)?;
        buffer.fill(1);
        buffers.push(buffer);
    }
    let mut best = f64::INFINITY;
    for streams in STREAMS {
        for _ in 0..PASSES {
            best = best.min(pass(&buffers, streams));
        }
    }
    Ok((threads * BYTES_A_THREAD) as f64 / best)
}

/// Seconds that reading all buffers takes, a thread each: those of the slowest thread, by the
/// threads' own clocks (a clock of its own thread would wait for a processor).
fn pass(buffers: &[Buffer], streams: usize) -> f64 {
    let barrier = &Barrier::new(buffers.len());
    std::thread::scope(|scope| {
        let start = |buffer| scope.spawn(move || timed(buffer, streams, barrier));
        let readers: Vec<_> = buffers.iter().map(start).collect();
        readers
            .into_iter()
            .filter_map(|reader| reader.join().ok())
            .fold(0.0, f64::max)
    })
}

/// Seconds that one thread reads, once all have begun.
fn timed(buffer: &Buffer, streams: usize, barrier: &Barrier) -> f64 {
    barrier.wait();
    let start = Instant::now();
    black_box(sum(black_box(buffer), streams));
    start.elapsed().as_secs_f64()
}

/// Reads everything. Independent accumulators, so that loads are the limit and not additions.
fn sum(memory: &[u8], streams: usize) -> u64 {
    let blocks = memory.as_chunks::<BLOCK>().0;
    let part = blocks.len() / streams;
    let mut sums = [0u64; BLOCK / 8];
    for index in 0..part {
        for stream in 0..streams {
            let words = blocks[stream * part + index].as_chunks::<8>().0;
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let memory: Vec<u8> = (0..BLOCK).flat_map(|_| 1u64.to_le_bytes()).collect();
        for streams in STREAMS {
            assert_eq!(sum(&memory, streams), BLOCK as u64, "{streams}");
        }
    }
}
