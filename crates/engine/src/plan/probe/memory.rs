//! How fast a machine reads memory: the limit of decoding.

use crate::error::Error;
use crate::memory::Buffer;
use lamella_kernels::{Kernels, Pool};
use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

/// Bytes that each thread reads unless told otherwise: far beyond any cache.
pub const BYTES_A_THREAD: usize = 192 << 20;
/// Places each thread reads at, alternating: some processors fetch ahead better on several.
const STREAMS: [usize; 3] = [1, 2, 4];

/// Bytes per second that `threads` threads read together, each its own `bytes`, from pages like
/// those the weights lie in; the best of `passes` for each way to read.
///
/// # Errors
/// If there is not enough memory for the buffers, or the system refuses threads.
pub fn measure(
    kernels: Kernels,
    threads: usize,
    bytes: usize,
    passes: usize,
) -> Result<f64, Error> {
    let refused = |cause| Error::Threads {
        wanted: threads,
        cause,
    };
    let pool = Pool::new(threads).map_err(refused)?;
    let mut buffers = Vec::with_capacity(threads);
    for _ in 0..threads {
        let mut buffer = Buffer::zeroed(bytes)?;
        buffer.fill(1);
        buffers.push(buffer);
    }
    let mut best = f64::INFINITY;
    for streams in STREAMS {
        for _ in 0..passes {
            best = best.min(pass(kernels, &pool, &buffers, streams));
        }
    }
    Ok((threads * bytes) as f64 / best)
}

/// Seconds that reading all buffers takes, a thread each: those of the slowest thread, by the
/// threads' own clocks (a clock of its own thread would wait for a processor).
fn pass(kernels: Kernels, pool: &Pool, buffers: &[Buffer], streams: usize) -> f64 {
    // A thread that waits for the others takes no second buffer.
    let barrier = Barrier::new(buffers.len());
    let slowest = Mutex::new(0.0);
    pool.run(buffers.len(), &|task, _| {
        barrier.wait();
        let start = Instant::now();
        black_box(kernels.read(black_box(&buffers[task]), streams));
        let seconds = start.elapsed().as_secs_f64();
        let mut slowest = slowest.lock().unwrap_or_else(PoisonError::into_inner);
        *slowest = f64::max(*slowest, seconds);
    });
    slowest.into_inner().unwrap_or_else(PoisonError::into_inner)
}
