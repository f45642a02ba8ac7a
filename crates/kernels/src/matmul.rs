//! Matrix products: the loop over tiles, and what is done with their results.

use std::mem::MaybeUninit;
use std::ops::Range;

use lamella_program::Encoding;
use lamella_program::block::GatedActivation;
use lamella_program::encoding::{GROUP, TILE_ROWS};

use crate::Kernels;
use crate::gate::{ClampedSilu, Gate, Silu, Situ};
use crate::lanes::{LANES, Lanes};
use crate::pack::{Matrix, block_bytes, packed_bytes};
use crate::quantise::QuantisedRows;
use crate::rows::{Rows, SharedRows};
use crate::tile::{MAX_BLOCKS, MAX_TOKENS, Machine, MatrixUnit, Tile, TileShape, format_index};

/// The input rows of a product.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// f32 rows, for all encodings that are not compiled.
    F32 {
        /// The rows.
        x: &'a [f32],
        /// Distance of rows in elements.
        stride: usize,
    },
    /// Quantised rows, for compiled encodings.
    Quantised(&'a QuantisedRows),
}

/// What becomes of a product `y`.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// `out = y`.
    Store,
    /// `out = out + y`.
    Add,
    /// `out = fma(w[t], y, out)` with one weight for each row taking part.
    AddScaled(&'a [f32]),
}

/// The tiles for a product, and the matrix unit they need, with its way to prepare weights.
#[derive(Clone, Copy)]
struct Tiles {
    shapes: &'static [TileShape],
    unit: Option<(&'static MatrixUnit, usize)>,
}

/// The work of one call, checked.
pub(crate) struct Job<'a> {
    first: &'a Matrix<'a>,
    /// With a second matrix the result is `activation(first x, second x)`.
    second: Option<(&'a Matrix<'a>, GatedActivation)>,
    tiles: Tiles,
    blocks: Range<usize>,
    input: Input<'a>,
    rows: Rows<'a>,
    out: &'a SharedRows<'a>,
    out_rows: Rows<'a>,
    epilogue: Epilogue<'a>,
}

impl Kernels {
    /// `y[t] = W x[rows[t]]` for every `t`, restricted to the 16-row blocks `blocks` of the
    /// outputs, then `epilogue` into row `out_rows[t]` of `out`.
    ///
    /// Compiled encodings take [`Input::Quantised`], all others [`Input::F32`]. Rows of
    /// `out_rows` may repeat; they are taken in order.
    ///
    /// # Panics
    /// If shapes, lengths or the kind of input do not fit together.
    ///
    /// # Safety
    /// While it runs nothing else accesses the elements it writes: columns
    /// `16 * blocks.start .. min(16 * blocks.end, rows)` of the rows `out_rows` of `out`.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is an independent axis of the product"
    )]
    pub unsafe fn matmul(
        &self,
        matrix: &Matrix<'_>,
        blocks: Range<usize>,
        input: Input<'_>,
        rows: Rows<'_>,
        out: &SharedRows<'_>,
        out_rows: Rows<'_>,
        epilogue: Epilogue<'_>,
    ) {
        let tiles = self.check(matrix, &blocks, input, rows, out, out_rows);
        if let Epilogue::AddScaled(weights) = epilogue {
            assert_eq!(weights.len(), rows.len(), "one weight for each row");
        }
        let (first, second) = (matrix, None);
        let job = Job {
            first,
            second,
            tiles,
            blocks,
            input,
            rows,
            out,
            out_rows,
            epilogue,
        };
        // SAFETY: checked shapes; exclusive outputs are the caller's promise; `Kernels` vouches
        // for the instruction set.
        unsafe { (self.table().matmul)(&job) }
    }

    /// `activation(gate x, up x)` for every row taking part, restricted to the output blocks
    /// `blocks`, into row `t` of `out`. A NaN product gives NaN.
    ///
    /// # Panics
    /// If shapes, lengths or the kind of input do not fit together.
    ///
    /// # Safety
    /// As for [`Kernels::matmul`].
    #[allow(
        clippy::too_many_arguments,
        reason = "each is an independent axis of the product"
    )]
    pub unsafe fn gated(
        &self,
        gate: &Matrix<'_>,
        up: &Matrix<'_>,
        blocks: Range<usize>,
        input: Input<'_>,
        rows: Rows<'_>,
        out: &SharedRows<'_>,
        activation: GatedActivation,
    ) {
        let out_rows = Rows::First(rows.len());
        let tiles = self.check(gate, &blocks, input, rows, out, out_rows);
        self.check(up, &blocks, input, rows, out, out_rows);
        assert!(
            gate.encoding == up.encoding && gate.rows == up.rows,
            "gate and up differ"
        );
        let (first, second, epilogue) = (gate, Some((up, activation)), Epilogue::Store);
        let job = Job {
            first,
            second,
            tiles,
            blocks,
            input,
            rows,
            out,
            out_rows,
            epilogue,
        };
        // SAFETY: checked shapes; exclusive outputs are the caller's promise; `Kernels` vouches
        // for the instruction set.
        unsafe { (self.table().matmul)(&job) }
    }

    /// Checks that the parts of a product fit together; the tiles for its encoding.
    fn check(
        &self,
        matrix: &Matrix<'_>,
        blocks: &Range<usize>,
        input: Input<'_>,
        rows: Rows<'_>,
        out: &SharedRows<'_>,
        out_rows: Rows<'_>,
    ) -> Tiles {
        let Matrix { encoding, cols, .. } = *matrix;
        let bytes = packed_bytes(encoding, matrix.rows, cols);
        assert!(
            bytes.is_some_and(|b| b <= matrix.data.len()),
            "matrix data is too short"
        );
        assert!(
            blocks.start <= blocks.end && blocks.end <= matrix.blocks(),
            "{blocks:?}"
        );
        let available = match input {
            Input::F32 { x, stride } => {
                assert!(!encoding.is_compiled(), "{encoding} takes quantised inputs");
                match x.len().checked_sub(cols) {
                    None => 0,
                    Some(_) if stride == 0 => 1,
                    Some(rest) => rest / stride + 1,
                }
            }
            Input::Quantised(x) => {
                assert!(encoding.is_compiled(), "{encoding} takes f32 inputs");
                assert_eq!(x.cols(), cols, "inputs of a row");
                x.rows()
            }
        };
        assert!(
            rows.all_below(available),
            "an input row is out of range ({available} rows)"
        );
        assert_eq!(rows.len(), out_rows.len(), "rows in and out");
        assert!(
            out_rows.all_below(out.rows()),
            "an output row is out of range"
        );
        assert!(
            matrix.rows <= out.width(),
            "{} outputs, {} columns",
            matrix.rows,
            out.width()
        );
        self.tiles(encoding, rows)
    }

    /// The tiles for an encoding and some input rows.
    fn tiles(&self, encoding: Encoding, rows: Rows<'_>) -> Tiles {
        let table = self.table();
        let which = [Encoding::Q8, Encoding::Q4]
            .iter()
            .position(|e| *e == encoding);
        if let (Some(unit), Some(which)) = (table.unit, which)
            && rows.len() >= PAYS_WITH_UNIT
            && rows.are_consecutive()
        {
            return Tiles {
                shapes: unit.tiles[which],
                unit: Some((unit, which)),
            };
        }
        match format_index(encoding) {
            Some(i) => Tiles {
                shapes: table.tiles[i],
                unit: None,
            },
            None => panic!("no kernels for {encoding}"),
        }
    }
}

/// The largest number of input rows that a tile takes of `n`.
#[inline(always)]
fn tokens_of(shapes: &[TileShape], n: usize) -> usize {
    shapes
        .iter()
        .map(|s| s.tokens)
        .find(|tokens| *tokens <= n)
        .unwrap_or(1)
}

/// The widest tile for exactly `tokens` input rows and at most `blocks` blocks.
#[inline(always)]
fn shape_of(shapes: &'static [TileShape], tokens: usize, blocks: usize) -> &'static TileShape {
    let fits = |s: &&TileShape| s.tokens == tokens && s.blocks <= blocks;
    match shapes.iter().find(fits) {
        Some(shape) => shape,
        None => panic!("no tile for {tokens} rows"),
    }
}

impl Job<'_> {
    /// Points a tile at `tokens` input rows from the `t`th on.
    #[inline(always)]
    fn aim(&self, tile: &mut Tile, t: usize, tokens: usize) {
        // Tiles of a matrix unit take their rows' distance from the first two.
        let pointers = if tokens >= ROWS_OF_UNIT { 2 } else { tokens };
        for (i, x) in tile.x.iter_mut().enumerate().take(pointers) {
            let row = self.rows.get(t + i);
            *x = match self.input {
                Input::F32 { x, stride } => x[row * stride..].as_ptr().cast(),
                Input::Quantised(x) => x.row(row).as_ptr().cast(),
            };
        }
    }

    /// Finishes the results of a tile, the second ones being those of the second matrix, if any.
    #[inline(always)]
    unsafe fn finish_tile<M: Machine>(
        &self,
        shape: &TileShape,
        t: usize,
        block: usize,
        y: [*const f32; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.second.map(|(_, activation)| activation) {
                None => self.finish::<M>(shape, t, block, y[0]),
                Some(GatedActivation::Silu) => {
                    self.finish_gated::<M, _>(Silu, shape, t, block, y);
                }
                Some(GatedActivation::ClampedSilu { limit }) => {
                    self.finish_gated::<M, _>(ClampedSilu { limit }, shape, t, block, y);
                }
                Some(GatedActivation::Situ { beta, linear_beta }) => {
                    self.finish_gated::<M, _>(Situ { beta, linear_beta }, shape, t, block, y);
                }
            }
        }
    }

    /// Applies the epilogue to the results of a tile: `[shape.blocks][shape.tokens][16]`, for
    /// output rows from the `t`th on and blocks from `block` on.
    #[inline(always)]
    unsafe fn finish<M: Machine>(&self, shape: &TileShape, t: usize, block: usize, y: *const f32) {
        for r in 0..shape.blocks {
            let column = (block + r) * TILE_ROWS;
            let n = TILE_ROWS.min(self.first.rows - column);
            for i in 0..shape.tokens {
                let at = LANES * (r * shape.tokens + i);
                // SAFETY: the tile holds this lane group; the output element range was checked.
                unsafe {
                    let y = M::L::load(y.add(at));
                    let out = self.out.at(self.out_rows.get(t + i), column);
                    let result = match self.epilogue {
                        Epilogue::Store => y,
                        Epilogue::Add => M::L::load_part(out, n, 0.0).add(y),
                        Epilogue::AddScaled(weights) => {
                            M::L::splat(weights[t + i]).fma(y, M::L::load_part(out, n, 0.0))
                        }
                    };
                    result.store_part(out, n);
                }
            }
        }
    }

    /// Stores `gate(y, up)` for the results of a tile of each matrix, laid out and placed as in
    /// [`Job::finish`].
    #[inline(always)]
    unsafe fn finish_gated<M: Machine, G: Gate>(
        &self,
        gate: G,
        shape: &TileShape,
        t: usize,
        block: usize,
        [y, up]: [*const f32; 2],
    ) {
        for r in 0..shape.blocks {
            let column = (block + r) * TILE_ROWS;
            let n = TILE_ROWS.min(self.first.rows - column);
            for i in 0..shape.tokens {
                let at = LANES * (r * shape.tokens + i);
                // SAFETY: the tiles hold this lane group; the output element range was checked.
                unsafe {
                    let out = self.out.at(self.out_rows.get(t + i), column);
                    let result = gate.apply(M::L::load(y.add(at)), M::L::load(up.add(at)));
                    result.store_part(out, n);
                }
            }
        }
    }
}

/// Input rows of a matrix unit's tile.
const ROWS_OF_UNIT: usize = 16;

/// Input rows from which preparing the weights for a matrix unit pays.
const PAYS_WITH_UNIT: usize = 32;

/// Most input rows whose accumulators are held at once.
const TOKENS_AT_ONCE: usize = 128;

/// The accumulators of `TOKENS_AT_ONCE` input rows and `MAX_BLOCKS` row blocks, on the stack.
#[repr(C, align(64))]
struct Accumulators([MaybeUninit<f32>; LANES * TOKENS_AT_ONCE * MAX_BLOCKS]);

impl Accumulators {
    #[inline(always)]
    fn clear(&mut self, len: usize) -> *mut f32 {
        self.0[..len].fill(MaybeUninit::new(0.0));
        self.0.as_mut_ptr().cast()
    }
}

/// Columns (groups, for compiled encodings) of `blocks` row blocks that together take
/// less than half of a first-level cache; even, for pairs of bf16, and whole groups of codes.
#[inline(always)]
fn part_of_k(encoding: Encoding, blocks: usize) -> usize {
    let (unit, least) = match encoding {
        Encoding::F32 => (TILE_ROWS * 4, 2),
        Encoding::F16 | Encoding::Bf16 => (TILE_ROWS * 2, 2),
        Encoding::Q8 | Encoding::Q4 => {
            let codes = encoding.tile_code_bytes().unwrap_or(TILE_ROWS * GROUP);
            (TILE_ROWS * 2 + codes, 2)
        }
        _ => (TILE_ROWS, encoding.group().unwrap_or(GROUP)),
    };
    ((20 << 10) / (unit * blocks)).max(least) / least * least
}

/// # Safety
/// The instruction set of `M`; a checked job.
#[inline(always)]
pub(crate) unsafe fn matmul<M: Machine>(job: &Job<'_>) {
    let n = job.rows.len();
    // SAFETY: blocks and rows in range; the unit is claimed while its tiles run.
    unsafe {
        if let Some((unit, _)) = job.tiles.unit {
            (unit.begin)();
        }
        let mut t = 0;
        while t < n {
            let rows = t..n.min(t + job.tokens_at_once());
            let lead = job.blocks_at_once(rows.len());
            let mut block = job.blocks.start;
            while block < job.blocks.end {
                let left = job.blocks.end - block;
                // Two pairs are faster than a triple and a single one.
                let blocks = if lead == 3 && left % 3 == 1 && left > 3 {
                    2
                } else {
                    lead.min(left)
                };
                job.part::<M>(rows.clone(), block, blocks);
                block += blocks;
            }
            t = rows.end;
        }
        if let Some((unit, _)) = job.tiles.unit {
            (unit.end)();
        }
    }
}

/// The tiles of some input rows and row blocks, one after the other.
struct Walk {
    shapes: &'static [TileShape],
    tokens: usize,
    blocks: usize,
    t: usize,
    b: usize,
}

/// A tile: its shape, its first input row and block, and the place of its accumulators.
struct Place {
    shape: &'static TileShape,
    t: usize,
    b: usize,
    at: usize,
}

impl Iterator for Walk {
    type Item = Place;

    #[inline(always)]
    fn next(&mut self) -> Option<Place> {
        if self.t == self.tokens || self.blocks == 0 {
            return None;
        }
        let (t, b) = (self.t, self.b);
        let count = tokens_of(self.shapes, self.tokens - t);
        let shape = shape_of(self.shapes, count, self.blocks - b);
        let at = LANES * (t * self.blocks + b * count);
        self.b += shape.blocks;
        if self.b == self.blocks {
            (self.t, self.b) = (t + count, 0);
        }
        Some(Place { shape, t, b, at })
    }
}

/// Groups of a row block that are prepared at once for a matrix unit. Long runs keep its pipeline
/// full; the inputs stream from the second-level cache meanwhile.
const PREPARED_GROUPS: usize = 64;

/// The prepared groups of a row block.
#[repr(C, align(64))]
struct Prepared([MaybeUninit<u8>; PREPARED_GROUPS * TILE_ROWS * GROUP]);

impl Job<'_> {
    /// Input rows that stay in the second-level cache; more of them share prepared weights.
    #[inline(always)]
    fn tokens_at_once(&self) -> usize {
        if self.tiles.unit.is_some() {
            TOKENS_AT_ONCE
        } else {
            TOKENS_AT_ONCE / 2
        }
    }

    /// Row blocks that pass over `tokens` input rows together.
    #[inline(always)]
    fn blocks_at_once(&self, tokens: usize) -> usize {
        let shapes = self.tiles.shapes;
        shape_of(shapes, tokens_of(shapes, tokens), MAX_BLOCKS).blocks
    }

    /// The tiles that make up `tokens` input rows and `blocks` row blocks.
    #[inline(always)]
    fn walk(&self, tokens: usize, blocks: usize) -> Walk {
        Walk {
            shapes: self.tiles.shapes,
            tokens,
            blocks,
            t: 0,
            b: 0,
        }
    }

    /// Some input rows times some row blocks that one tile spans.
    #[inline(always)]
    unsafe fn part<M: Machine>(&self, rows: Range<usize>, block: usize, blocks: usize) {
        let mut storage = [const { Accumulators([MaybeUninit::uninit(); _]) }; 2];
        let len = LANES * rows.len() * blocks;
        let [first, second] = &mut storage;
        let first = first.clear(len);
        // SAFETY: the blocks and rows are in range; the accumulators hold them all.
        unsafe {
            self.accumulate(self.first, rows.clone(), block, blocks, first);
            let mut up = first;
            if let Some((matrix, _)) = self.second {
                up = second.clear(len);
                self.accumulate(matrix, rows.clone(), block, blocks, up);
            }
            // A loop, not a function that is called with each tile: a closure is a function of its
            // own, without the instruction set unless it happens to be inlined.
            for Place { shape, t, b, at } in self.walk(rows.len(), blocks) {
                let tiles = [first.add(at).cast_const(), up.add(at).cast_const()];
                self.finish_tile::<M>(shape, rows.start + t, block + b, tiles);
            }
        }
    }

    /// Adds the products of `rows` and the blocks from `block` on to `acc`.
    #[inline(always)]
    unsafe fn accumulate(
        &self,
        matrix: &Matrix<'_>,
        rows: Range<usize>,
        block: usize,
        blocks: usize,
        acc: *mut f32,
    ) {
        let Matrix {
            encoding,
            cols,
            data,
            ..
        } = *matrix;
        let stride = block_bytes(encoding, cols).unwrap_or(0);
        let groups = cols.div_ceil(GROUP);
        let total = if encoding.is_compiled() { groups } else { cols };
        let few = rows.len() <= tokens_of(self.tiles.shapes, rows.len());
        let step = match self.tiles.unit {
            Some(_) => PREPARED_GROUPS,
            None if few => total,
            None => part_of_k(encoding, blocks),
        };
        let mut prepared = Prepared([MaybeUninit::uninit(); _]);
        let prepared: *mut u8 = prepared.0.as_mut_ptr().cast();
        let mut tile = Tile {
            weights: std::ptr::null(),
            block_bytes: stride,
            plane_bytes: encoding.scale_bytes(cols).unwrap_or(0),
            start: 0,
            end: 0,
            prepared,
            cold: true,
            x: [std::ptr::null(); MAX_TOKENS],
            acc,
        };
        while tile.start < total {
            tile.end = total.min(tile.start + step);
            tile.cold = true;
            // SAFETY: the matrix holds these blocks, the input rows were checked, the
            // accumulators hold every tile.
            unsafe {
                if let Some((unit, which)) = self.tiles.unit {
                    let code_bytes = encoding.tile_code_bytes().unwrap_or(0);
                    let codes = tile.plane_bytes + tile.start * code_bytes;
                    let codes = data.as_ptr().add(block * stride + codes);
                    let groups = tile.end - tile.start;
                    (unit.prepare[which])(codes, groups, prepared);
                    tile.cold = false;
                }
                for Place { shape, t, b, at } in self.walk(rows.len(), blocks) {
                    if b == 0 {
                        self.aim(&mut tile, rows.start + t, shape.tokens);
                    }
                    tile.weights = data.as_ptr().add((block + b) * stride);
                    tile.acc = acc.add(at);
                    (shape.run)(&tile);
                    tile.cold &= b + shape.blocks < blocks;
                }
            }
            tile.start = tile.end;
        }
    }
}
