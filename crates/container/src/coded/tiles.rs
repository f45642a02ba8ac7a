//! Codes laid out in tiles as they are, checked while they are read.

use super::{Decoder, Element, Fault, Problem, Window, row_window};
use crate::checkpoint::Checkpoint;
use crate::float::{E2M1, E4M3};
use crate::source::Piece;
use lamella_program::Encoding;
use lamella_program::encoding::TILE_ROWS;
use std::ops::Range;

use super::scales::Scale;

/// Bytes of one word of every row of a block.
const WORD_BYTES: usize = TILE_ROWS * 4;

/// A place in a tiled matrix, in an encoding of codes with scales.
pub(crate) struct Tiles<'a> {
    encoding: Encoding,
    cols: usize,
    block: usize,
    plane: usize,
    out: &'a mut [u8],
}

impl<'a> Tiles<'a> {
    /// The zeroed matrix in `out`, `cols` numbers a row; `None` if `encoding` is not coded.
    pub(crate) fn new(encoding: Encoding, cols: usize, out: &'a mut [u8]) -> Option<Tiles<'a>> {
        encoding.word_inputs()?;
        out.fill(0);
        Some(Tiles {
            encoding,
            cols,
            block: encoding.row_block_bytes(cols)?,
            plane: encoding.scale_bytes(cols)?,
            out,
        })
    }

    /// Writes the codes of a row, `inputs` of them in four bytes.
    fn codes(&mut self, row: usize, codes: &[u8]) {
        let (block, i) = (row / TILE_ROWS * self.block + self.plane, row % TILE_ROWS);
        let words = self.out[block..].chunks_exact_mut(WORD_BYTES);
        if self.encoding.word_inputs() == Some(8) {
            for (word, codes) in words.zip(codes.chunks(4)) {
                word[4 * i..][..codes.len()].copy_from_slice(codes);
            }
            return;
        }
        for (word, codes) in words.zip(codes.chunks(4)) {
            let pairs = word.chunks_exact_mut(WORD_BYTES / 2).zip(codes.chunks(2));
            for (half, pair) in pairs {
                half[2 * i..][..pair.len()].copy_from_slice(pair);
            }
        }
    }

    /// Writes number `place` of 16 a group in the scale plane of a row, `N` bytes each.
    fn scale<const N: usize>(&mut self, row: usize, place: usize, bytes: [u8; N]) {
        let block = row / TILE_ROWS * self.block;
        let at = block + (place * TILE_ROWS + row % TILE_ROWS) * N;
        self.out[at..at + N].copy_from_slice(&bytes);
    }
}

impl Decoder {
    /// The encoding whose tiles hold these codes as they are, for rows of `cols` numbers.
    pub(crate) fn coded(&self, cols: usize) -> Option<Encoding> {
        let scales = self.scales.as_ref()?;
        let spans = |group: usize| scales.group.is_multiple_of(group) || scales.group >= cols;
        match (self.element, scales.kind) {
            (Element::E2m1, Scale::E8m0) => Some(Encoding::Mxfp4),
            (Element::E2m1, Scale::E4m3) => Some(Encoding::Nvfp4),
            (Element::E4m3, _) if spans(128) => Some(Encoding::Fp8),
            (Element::E4m3, Scale::E8m0) if spans(32) => Some(Encoding::Mxfp8),
            _ => None,
        }
    }

    /// Lays `rows` of `piece` out as the rows from `at` on.
    pub(crate) fn lay(
        &self,
        checkpoint: &Checkpoint,
        piece: &Piece,
        rows: Range<usize>,
        tiles: &mut Tiles<'_>,
        at: usize,
    ) -> Result<(), Fault> {
        let mut window = Window::default();
        let step = row_window(piece);
        for first in rows.clone().step_by(step) {
            let count = step.min(rows.end - first);
            window.fill(self, checkpoint, piece, first, count)?;
            for i in 0..count {
                let codes = &window.codes[i * piece.row..][..piece.row];
                self.check(&mut window.numbers, first + i, tiles.cols, {
                    (codes, window.scales.row(i), window.outer.row(i))
                })?;
                let row = at + (first - rows.start) + i;
                tiles.codes(row, codes);
                self.lay_scales(&window, i, tiles, row);
            }
        }
        Ok(())
    }

    /// Writes the scales of row `i` of the window as those of `row`.
    fn lay_scales(&self, window: &Window, i: usize, tiles: &mut Tiles<'_>, row: usize) {
        let (values, raw) = (window.scales.row(i), window.scales.raw_row(i));
        let Some(group) = tiles.encoding.group() else {
            return;
        };
        let head = usize::from(tiles.encoding == Encoding::Nvfp4);
        if head == 1 {
            let outer = window.outer.row(i).first().copied().unwrap_or(1.0);
            tiles.scale(row, 0, outer.to_le_bytes());
        }
        for g in 0..tiles.cols.div_ceil(group) {
            let from = g * group / self.group();
            match tiles.encoding {
                Encoding::Fp8 => tiles.scale(row, g, values[from].to_le_bytes()),
                _ => tiles.scale(row, 4 * head + g, [raw[from]]),
            }
        }
    }

    /// Refuses a row that holds what is no finite number, and scales that are none or whose product
    /// is none.
    fn check(
        &self,
        numbers: &mut Vec<f32>,
        row: usize,
        cols: usize,
        (codes, scales, outer): (&[u8], &[f32], &[f32]),
    ) -> Result<(), Fault> {
        self.check_scales(self.row(row), codes, scales, outer)?;
        let largest = match self.element {
            Element::E4m3 => E4M3[0x7e],
            _ => E2M1[7],
        };
        let factor = outer.first().copied().unwrap_or(1.0);
        let nan = self.element == Element::E4m3 && codes.iter().any(|c| c & 0x7f == 0x7f);
        let fits = |scale: &f32| ((largest * scale) * factor).is_finite();
        if !nan && scales.iter().all(fits) {
            return Ok(());
        }
        numbers.resize(cols, 0.0);
        self.numbers(codes, scales, outer, numbers);
        let row = self.row(row);
        if numbers.iter().any(|n| !n.is_finite()) {
            let widest = Decoder {
                to: Encoding::F32,
                ..self.clone()
            };
            return Err(widest.judge(row, codes, scales, outer, numbers));
        }
        match scales.iter().position(|s| !(s * factor).is_finite()) {
            None => Ok(()),
            Some(group) => Err(Fault::Bad {
                row,
                column: group.saturating_mul(self.group()),
                problem: Problem::TooLarge,
            }),
        }
    }
}
