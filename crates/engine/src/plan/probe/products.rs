//! How fast a machine multiplies by weights in one encoding: with one row, which is how tokens are
//! decoded, and with many, which is how prompts are read.

use crate::error::Error;
use crate::memory::Buffer;
use lamella_container::encode;
use lamella_kernels::{
    Epilogue, Input, Kernels, Matrix, Pool, QuantisedRows, Rows, SharedRows, block_bytes, pack,
};
use lamella_program::Encoding;
use lamella_program::encoding::TILE_ROWS;
use std::time::Instant;

/// Inputs of the matrix.
const COLS: usize = 2048;
/// Rows of an input that stands for a prompt's share of an expert.
const MANY: usize = 64;
/// Tasks that a thread gets of a product.
const TASKS: usize = 4;

/// What was measured, all threads together.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Products {
    /// Bytes of weights per second, multiplied by one row.
    pub decode: f64,
    /// Multiplications per second with many rows.
    pub many: f64,
}

/// Multiplies by a matrix of about `bytes` bytes in `encoding`, the best of `passes`.
///
/// # Errors
/// If there is not enough memory, or the system refuses threads.
pub fn measure(
    kernels: Kernels,
    threads: usize,
    encoding: Encoding,
    bytes: usize,
    passes: usize,
) -> Result<Products, Error> {
    let pool = Pool::new(threads).map_err(|cause| Error::Threads {
        wanted: threads,
        cause,
    })?;
    let weights = Weights::new(encoding, bytes)?;
    let best = |rows: usize| {
        let mut bench = Bench::new(kernels, &pool, &weights, rows);
        let passes = (0..passes.max(1)).map(|_| bench.seconds());
        passes.fold(f64::INFINITY, f64::min)
    };
    let elements = (weights.blocks * TILE_ROWS * COLS) as f64;
    Ok(Products {
        decode: weights.data.len() as f64 / best(1),
        many: elements * MANY as f64 / best(MANY),
    })
}

/// A matrix of repeated row blocks.
struct Weights {
    encoding: Encoding,
    blocks: usize,
    data: Buffer,
}

impl Weights {
    fn new(encoding: Encoding, bytes: usize) -> Result<Weights, Error> {
        let block = block(encoding);
        let blocks = (bytes / block.len().max(1)).max(1);
        let mut data = Buffer::zeroed(blocks * block.len())?;
        for place in data.chunks_exact_mut(block.len().max(1)) {
            place.copy_from_slice(&block);
        }
        Ok(Weights {
            encoding,
            blocks,
            data,
        })
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix {
            encoding: self.encoding,
            rows: self.blocks * TILE_ROWS,
            cols: COLS,
            data: &self.data,
        }
    }
}

/// One row block as the kernels read it.
fn block(encoding: Encoding) -> Vec<u8> {
    /// A byte whose codes and scales are small finite numbers in every encoding of codes.
    const CODE: u8 = 0x33;
    let length = block_bytes(encoding, COLS).unwrap_or(0);
    let values: Vec<f32> = (0..TILE_ROWS * COLS)
        .map(|i| (i % 31) as f32 / 31.0 - 0.5)
        .collect();
    let size = encoding.matrix_bytes(TILE_ROWS, COLS).unwrap_or(0);
    let mut stored = vec![CODE; size];
    let made = encode(encoding, TILE_ROWS, COLS, &values, &mut stored);
    if made.is_ok() && !encoding.is_tiled() {
        let mut packed = vec![0; length];
        pack(encoding, TILE_ROWS, COLS, &stored, &mut packed);
        return packed;
    }
    stored.resize(length, CODE);
    stored
}

/// A product, ready to be repeated.
struct Bench<'a> {
    kernels: Kernels,
    pool: &'a Pool,
    weights: &'a Weights,
    rows: usize,
    x: Vec<f32>,
    quantised: QuantisedRows,
    out: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(kernels: Kernels, pool: &'a Pool, weights: &'a Weights, rows: usize) -> Bench<'a> {
        let x = vec![0.5; rows * COLS];
        let mut quantised = QuantisedRows::with_capacity(rows, COLS);
        quantised.quantise(&kernels, &x, rows, COLS, COLS);
        Bench {
            kernels,
            pool,
            weights,
            rows,
            x,
            quantised,
            out: vec![0.0; rows * weights.blocks * TILE_ROWS],
        }
    }

    /// Seconds that the product takes.
    fn seconds(&mut self) -> f64 {
        let matrix = self.weights.matrix();
        let input = match matrix.encoding.is_compiled() {
            true => Input::Quantised(&self.quantised),
            false => Input::F32 {
                x: &self.x,
                stride: COLS,
            },
        };
        let out = SharedRows::new(&mut self.out, matrix.rows, matrix.rows);
        let (rows, blocks) = (Rows::First(self.rows), self.weights.blocks);
        let share = blocks.div_ceil(self.pool.threads() * TASKS).max(1);
        let kernels = &self.kernels;
        let start = Instant::now();
        self.pool.run(blocks.div_ceil(share), &|task, _| {
            let range = task * share..blocks.min((task + 1) * share);
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                kernels.matmul(&matrix, range, input, rows, &out, rows, Epilogue::Store);
            }
        });
        start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_can_be_measured() {
        for encoding in Encoding::ALL {
            let products = measure(Kernels::best(), 2, encoding, 1 << 20, 1).expect("memory");
            assert!(
                products.decode > 0.0 && products.decode.is_finite(),
                "{encoding}"
            );
            assert!(
                products.many > 0.0 && products.many.is_finite(),
                "{encoding}"
            );
        }
    }
}
