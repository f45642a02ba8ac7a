//! What blocks do row by row around their products: norms, quantised inputs, cutting of work.

use super::Core;
use lamella_kernels::{Epilogue, Input, NormWeight, QuantisedRows, Rows, SharedRows};
use lamella_program::Encoding;
use lamella_program::block::{Linear, RmsNorm};
use std::ops::Range;

/// Row-wise work below this many elements is done by the caller alone: a fork costs more.
const ALONE: usize = 16 * 1024;

/// Tasks a product of many rows is cut into for each thread, so that a late thread does not hold up
/// the others.
const TASKS_PER_THREAD: usize = 16;

/// The same for few rows: reading weights is the limit then, and long runs of memory are read
/// faster than short ones.
const TASKS_PER_THREAD_FEW: usize = 4;

/// Rows up to which a product counts as one of few rows.
const FEW_ROWS: usize = 32;

/// The input a matrix of `encoding` takes.
pub(super) fn input<'a>(
    encoding: Encoding,
    x: &'a [f32],
    stride: usize,
    quantised: &'a QuantisedRows,
) -> Input<'a> {
    if encoding.is_compiled() {
        Input::Quantised(quantised)
    } else {
        Input::F32 { x, stride }
    }
}

/// The weight of a norm over a part of the values it covers.
pub(super) fn part_of(weight: NormWeight<'_>, part: Range<usize>) -> NormWeight<'_> {
    match weight {
        NormWeight::None => NormWeight::None,
        NormWeight::Plain(w) => NormWeight::Plain(&w[part]),
        NormWeight::UnitOffset(w) => NormWeight::UnitOffset(&w[part]),
    }
}

impl Core {
    /// Norms the given rows of `width` elements into the rows of `out`, in order; copies them
    /// where there is no norm.
    pub(super) fn norm_rows(
        &self,
        norm: Option<&RmsNorm>,
        x: &[f32],
        rows: Rows<'_>,
        out: &mut [f32],
        width: usize,
    ) {
        let norm = norm.map(|norm| (self.norm_weight(norm), norm.eps));
        let out = SharedRows::new(out, width, width);
        self.over_rows(rows.len(), width, &|t| {
            let x = &x[rows.get(t) * width..][..width];
            // SAFETY: each row is one task's.
            let out = unsafe { out.slice_mut(t, 0..width) };
            match norm {
                Some((weight, eps)) => self.kernels.rms_norm(x, weight, eps, out),
                None => out.copy_from_slice(x),
            }
        });
    }

    /// Quantises rows of `width` elements if any of `encodings` needs it.
    pub(super) fn quantise_for(
        &self,
        encodings: &[Encoding],
        x: &[f32],
        width: usize,
        out: &mut QuantisedRows,
    ) {
        if !encodings.iter().any(|e| e.is_compiled()) {
            return;
        }
        let rows = x.len() / width;
        out.reset(rows, width);
        let writer = out.writer();
        self.over_rows(rows, width, &|row| {
            // SAFETY: each row is one task's.
            unsafe {
                writer.quantise_row(&self.kernels, row, &x[row * width..(row + 1) * width]);
            }
        });
    }

    /// Quantises rows of `width` elements if any of `maps` needs it.
    pub(super) fn prepare<'m>(
        &self,
        maps: impl IntoIterator<Item = &'m Linear>,
        x: &[f32],
        width: usize,
        out: &mut QuantisedRows,
    ) {
        for map in maps {
            let encoding = self.weights[map.weight.index()].matrix(0).encoding;
            if encoding.is_compiled() {
                return self.quantise_for(&[encoding], x, width, out);
            }
        }
    }

    /// `y[t] = W x[t] (+ bias)` for every row of `x`, then `epilogue` into the rows of `out`.
    pub(super) fn project(
        &self,
        map: &Linear,
        x: &[f32],
        quantised: &mut QuantisedRows,
        out: &mut [f32],
        epilogue: Epilogue<'_>,
    ) {
        let matrix = self.weights[map.weight.index()].matrix(0);
        self.quantise_for(&[matrix.encoding], x, matrix.cols, quantised);
        self.project_prepared(map, x, quantised, out, epilogue);
    }

    /// [`project`](Core::project) of rows that are quantised already where the map needs it.
    pub(super) fn project_prepared(
        &self,
        map: &Linear,
        x: &[f32],
        quantised: &QuantisedRows,
        out: &mut [f32],
        epilogue: Epilogue<'_>,
    ) {
        let matrix = self.weights[map.weight.index()].matrix(0);
        let count = x.len() / matrix.cols;
        let input = input(matrix.encoding, x, matrix.cols, quantised);
        let target = SharedRows::new(&mut *out, matrix.rows, matrix.rows);
        let rows = Rows::First(count);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, &target, rows, epilogue);
            }
        });
        if let Some(bias) = map.bias {
            for row in out.chunks_exact_mut(matrix.rows) {
                self.kernels.add(row, self.vector(bias));
            }
        }
    }

    /// Calls `body` for every row of `width` elements, on all threads where it pays.
    pub(super) fn over_rows(&self, rows: usize, width: usize, body: &(dyn Fn(usize) + Sync)) {
        if rows * width <= ALONE {
            (0..rows).for_each(body);
            return;
        }
        let chunk = rows.div_ceil(self.pool.threads() * 4);
        self.pool.run(rows.div_ceil(chunk), &|task, _| {
            (task * chunk..rows.min((task + 1) * chunk)).for_each(body);
        });
    }

    /// Cuts `blocks` row blocks of a product of `rows` rows into tasks and runs them.
    pub(super) fn over_blocks(
        &self,
        blocks: usize,
        rows: usize,
        body: &(dyn Fn(Range<usize>) + Sync),
    ) {
        let chunk = self.block_chunk(blocks, rows);
        self.pool.run(blocks.div_ceil(chunk), &|task, _| {
            body(task * chunk..blocks.min((task + 1) * chunk));
        });
    }

    /// Row blocks a task takes: even shares, whole register tiles where there are many.
    pub(super) fn block_chunk(&self, blocks: usize, rows: usize) -> usize {
        let tasks = if rows <= FEW_ROWS {
            TASKS_PER_THREAD_FEW
        } else {
            TASKS_PER_THREAD
        };
        let share = blocks / (self.pool.threads() * tasks);
        if share >= 4 {
            share / 4 * 4
        } else {
            share.max(1).next_power_of_two()
        }
    }
}
