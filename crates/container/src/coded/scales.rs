//! Scales in tensors of their own: finding them, and reading those that some rows need.

use super::{f32_of, u16_of};
use crate::checkpoint::{Checkpoint, Location};
use crate::error::Error;
use crate::float::{E4M3, bf16_to_f32, e8m0_to_f32};
use crate::source::read_strided;
use lamella_program::Slice;
use lamella_program::operand::Coding;

/// Scales in a tensor of their own.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    location: Location,
    pub(super) kind: Scale,
    /// Dimensions of the tensor.
    dims: usize,
    /// Scales in a row of the grid.
    cols: usize,
    /// Columns of the weights that share a scale.
    pub(super) group: usize,
    /// Rows of the weights that share a row of the grid.
    rows: u64,
    /// The column whose reciprocals are the scales, where the grid holds divisors.
    divisors: Option<usize>,
}

/// What a scale is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    F32,
    Bf16,
    E8m0,
    E4m3,
}

impl Scale {
    fn bytes(self) -> usize {
        match self {
            Scale::F32 => 4,
            Scale::Bf16 => 2,
            Scale::E8m0 | Scale::E4m3 => 1,
        }
    }

    fn of(dtype: &str) -> Option<Scale> {
        Some(match dtype {
            "F32" => Scale::F32,
            "BF16" => Scale::Bf16,
            // Written before the format had a type of its own for them.
            "F8_E8M0" | "U8" => Scale::E8m0,
            "F8_E4M3" => Scale::E4m3,
            _ => return None,
        })
    }

    fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        out.clear();
        match self {
            Scale::F32 => out.extend(bytes.chunks_exact(4).map(f32_of)),
            Scale::Bf16 => out.extend(bytes.chunks_exact(2).map(|b| bf16_to_f32(u16_of(b)))),
            Scale::E8m0 => out.extend(bytes.iter().map(|&b| e8m0_to_f32(b))),
            Scale::E4m3 => out.extend(bytes.iter().map(|&b| E4M3[usize::from(b)])),
        }
    }
}

/// The grids of scales and of outer scales of a slice.
pub(super) type Grids = (Option<Grid>, Option<Grid>);

/// Finds the scales of a slice in `coding`.
pub(super) fn grids(
    checkpoint: &Checkpoint,
    slice: &Slice,
    coding: &Coding,
) -> Result<Grids, (String, String)> {
    let shape = &slice.tensor_shape;
    let (leading, last) = match shape.split_last() {
        Some((last, leading)) => (leading, *last),
        None => (&shape[..], 1),
    };
    let rows_of = |n: usize| [leading, &[n]].concat();
    let find = |name: &str, kinds: &[Scale], shapes: &[Vec<usize>]| {
        find_grid(checkpoint, name, kinds, shapes)
    };
    use Scale::{Bf16, E4m3, E8m0, F32};
    Ok(match coding {
        Coding::BlockFp8 { scale, block } => {
            let rows = leading.iter().product::<usize>().div_ceil(block[0].max(1));
            let shape = vec![rows, last.div_ceil(block[1].max(1))];
            let grid = find(scale, &[F32, Bf16, E8m0], &[shape])?;
            (Some(grid.shared(block[1], block[0] as u64)), None)
        }
        Coding::TensorFp8 { scale } => {
            let grid = find(scale, &[F32, Bf16], &[vec![1], vec![]])?;
            (Some(grid.shared(usize::MAX, u64::MAX)), None)
        }
        Coding::Mxfp4 { scale } => {
            let grid = find(scale, &[E8m0], &[rows_of(slice.cols().div_ceil(32))])?;
            (Some(grid.shared(32, 1)), None)
        }
        Coding::Nvfp4 {
            scale,
            global: outer,
        }
        | Coding::DividedNvfp4 {
            scale,
            divisor: outer,
            ..
        } => {
            let grid = find(scale, &[E4m3], &[rows_of(slice.cols().div_ceil(16))])?;
            let outer = find(outer, &[F32], &coding.outer_shapes(shape))?;
            (Some(grid.shared(16, 1)), Some(outer.outer(coding, leading)))
        }
    })
}

impl Grid {
    /// The same grid as outer scales in `coding`, for rows with these leading dimensions.
    fn outer(self, coding: &Coding, leading: &[usize]) -> Grid {
        let (columns, divisors) = match coding {
            // Where the parts of an item share a divisor, there is one column.
            Coding::DividedNvfp4 { part, .. } => match self.dims {
                2 => (self.cols, Some(part[0].min(self.cols.saturating_sub(1)))),
                _ => (1, Some(0)),
            },
            _ => (1, None),
        };
        // A row for each item of the leading dimension, unless there is one in all.
        let items = (self.location.length / 4 / columns.max(1) as u64).max(1);
        let each = leading.iter().product::<usize>() as u64 / items;
        let outer = Grid {
            cols: columns,
            divisors,
            ..self
        };
        outer.shared(usize::MAX, each)
    }

    /// The same grid, each scale for `group` columns, each row for `rows` rows of the weights.
    fn shared(self, group: usize, rows: u64) -> Grid {
        let (group, rows) = (group.max(1), rows.max(1));
        Grid {
            group,
            rows,
            ..self
        }
    }
}

/// The tensor of scales `name`, if it is of one of these kinds and shapes.
fn find_grid(
    checkpoint: &Checkpoint,
    name: &str,
    kinds: &[Scale],
    shapes: &[Vec<usize>],
) -> Result<Grid, (String, String)> {
    let fail = |fault: String| Err((name.to_owned(), fault));
    let Some((info, location)) = checkpoint.find(name) else {
        return fail("these scales are not there".to_owned());
    };
    let Some(kind) = Scale::of(&info.dtype).filter(|kind| kinds.contains(kind)) else {
        return fail(format!("scales cannot be {} here", info.dtype));
    };
    if !shapes.contains(&info.shape) {
        let (found, wanted) = (&info.shape, &shapes[0]);
        return fail(format!("scales of shape {found:?}, not {wanted:?}"));
    }
    Ok(Grid {
        location,
        kind,
        dims: info.shape.len(),
        cols: info.shape.last().copied().unwrap_or(1),
        group: 1,
        rows: 1,
        divisors: None,
    })
}

/// Rows of a grid, and which of them each row of codes takes.
#[derive(Default)]
pub(super) struct Rows {
    values: Vec<f32>,
    cols: usize,
    taken: Vec<usize>,
    raw: Vec<u8>,
}

impl Rows {
    /// Reads the grid's rows for these rows of the tensor, which ascend.
    pub(super) fn fill(
        &mut self,
        grid: &Grid,
        checkpoint: &Checkpoint,
        rows: impl Iterator<Item = u64>,
    ) -> Result<(), Error> {
        let mut wanted: Vec<u64> = Vec::new();
        self.taken.clear();
        for row in rows.map(|row| row / grid.rows) {
            if wanted.last() != Some(&row) {
                wanted.push(row);
            }
            self.taken.push(wanted.len() - 1);
        }
        let bytes = grid.cols * grid.kind.bytes();
        self.raw.resize(wanted.len() * bytes, 0);
        let mut at = 0;
        while at < wanted.len() {
            // As many as lie at one distance.
            let distance = wanted.get(at + 1).map_or(1, |next| next - wanted[at]);
            let regular = wanted[at..]
                .windows(2)
                .take_while(|w| w[1] - w[0] == distance);
            let end = at + 1 + regular.count();
            let offset = grid.location.offset + wanted[at] * bytes as u64;
            let out = &mut self.raw[at * bytes..end * bytes];
            let stride = distance as usize * bytes;
            read_strided(checkpoint, grid.location.file, offset, stride, bytes, out)?;
            at = end;
        }
        self.cols = grid.cols;
        grid.kind.widen(&self.raw, &mut self.values);
        if let Some(column) = grid.divisors {
            let divisors = self.values.chunks_exact(grid.cols.max(1));
            self.values = divisors.map(|row| 1.0 / row[column]).collect();
            self.cols = 1;
        }
        Ok(())
    }

    /// The scales of row `n` of the window, as they are stored.
    pub(super) fn raw_row(&self, n: usize) -> &[u8] {
        let each = self.raw.len() / self.values.len().max(1);
        match self.taken.get(n) {
            Some(taken) => &self.raw[taken * self.cols * each..][..self.cols * each],
            None => &[],
        }
    }

    /// The scales of row `n` of the window; none where there is no grid.
    pub(super) fn row(&self, n: usize) -> &[f32] {
        match self.taken.get(n) {
            Some(taken) => &self.values[taken * self.cols..][..self.cols],
            None => &[],
        }
    }
}
