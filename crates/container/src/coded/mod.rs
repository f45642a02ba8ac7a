//! Tensors whose elements are not the numbers themselves.
//!
//! Codes with scales ([`Coding`]) of large operands are laid out in tiles as they are (`tiles`).
//! Where an encoding of codes does not hold them (slices in different codings, scales for other
//! stretches than it has), and for small operands, they are decoded while they are read. So are
//! tables of integers, and plain tensors of an operand that has both. They become rows of one
//! row-major encoding:
//!
//! * bf16 for FP4 and FP8 codes with E8M0 scales. A code has at most four significant bits and the
//!   scale is a power of two, so the product is a bf16 exactly. The one exception are FP8 products
//!   below 2^-133 (scales of 2^-125 and less, which no quantiser of weights emits): they are
//!   refused, never rounded.
//! * f32 for everything else: `code * scale`, for NVFP4 `(code * scale) * global`, each product
//!   rounded to f32; of a divisor `global` is the reciprocal, rounded too. Integers must be exact
//!   in f32.
//!
//! A result that is no finite number is an error that names tensor and place. So is a scale that
//! no quantiser writes: a negative one (E8M0 has none; in the others it would be a sign that the
//! codes hold already), and a zero of f32 or bf16 over codes that are not zero, as a hole in a file
//! makes it. Zeros in E4M3 are what small scales round to, and stand. Rows are decoded a window at
//! a time; nothing grows with the tensor.

mod fault;
mod scales;
mod tiles;

use crate::checkpoint::{Checkpoint, Location};
use crate::error::Error;
use crate::float::{E2M1, E4M3, bf16_to_f32, f16_to_f32};
use crate::source::Piece;
pub(crate) use fault::{Fault, Problem};
use lamella_program::operand::Coding;
use lamella_program::{Encoding, Role, Slice, TensorInfo};
use scales::{Grid, Rows, Scale, grids};
pub(crate) use tiles::Tiles;

/// Bytes of codes decoded at a time.
const WINDOW: usize = 1 << 18;

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// The numbers.
    Number(Encoding),
    /// FP8 codes.
    E4m3,
    /// Two FP4 codes a byte, the even column in the low nibble.
    E2m1,
    I32,
    I64,
}

/// How the elements of a piece become numbers.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) element: Element,
    /// bf16 or f32.
    pub(crate) to: Encoding,
    /// Row of the tensor the piece begins with, and rows from one to the next.
    start: u64,
    step: u64,
    scales: Option<Grid>,
    outer: Option<Grid>,
}

impl Element {
    /// What `info`'s elements are to an operand of `role` in `coding`.
    fn of(info: &TensorInfo, coding: Option<&Coding>, role: Role) -> Option<Element> {
        match (coding, info.dtype.as_str()) {
            (None, "I32") if role == Role::Table => Some(Element::I32),
            (None, "I64") if role == Role::Table => Some(Element::I64),
            (None, _) => info.encoding.map(Element::Number),
            (Some(Coding::BlockFp8 { .. } | Coding::TensorFp8 { .. }), "F8_E4M3") => {
                Some(Element::E4m3)
            }
            (Some(Coding::BlockFp8 { .. } | Coding::TensorFp8 { .. }), _) => None,
            (Some(_), "U8" | "I8" | "F4") => Some(Element::E2m1),
            _ => None,
        }
    }

    /// Bytes of one.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::Number(encoding) => encoding.element_bytes().unwrap_or(0),
            Element::E4m3 | Element::E2m1 => 1,
            Element::I32 => 4,
            Element::I64 => 8,
        }
    }
}

impl Decoder {
    /// Finds what the numbers of a slice of an operand of `role` are made from. `to` is the
    /// narrowest encoding that holds them.
    ///
    /// # Errors
    /// The tensor at fault and what is wrong with it, in words.
    pub(crate) fn find(
        checkpoint: &Checkpoint,
        slice: &Slice,
        role: Role,
    ) -> Result<(Decoder, Location), (String, String)> {
        let absent = || (slice.tensor.clone(), "it is not there".to_owned());
        let (info, location) = checkpoint.find(&slice.tensor).ok_or_else(absent)?;
        let coding = slice.coding.as_ref();
        let element = Element::of(info, coding, role).ok_or_else(|| {
            let fault = format!("its element type {} does not fit its coding", info.dtype);
            (slice.tensor.clone(), fault)
        })?;
        let (scales, outer) = match coding {
            Some(coding) => grids(checkpoint, slice, coding)?,
            None => (None, None),
        };
        let exact = scales.as_ref().is_some_and(|s| s.kind == Scale::E8m0);
        let to = match element {
            Element::Number(encoding) => encoding,
            Element::E4m3 | Element::E2m1 if exact => Encoding::Bf16,
            _ => Encoding::F32,
        };
        let decoder = Decoder {
            element,
            to,
            start: slice.start as u64,
            step: slice.step as u64,
            scales,
            outer,
        };
        Ok((decoder, location))
    }

    /// Decodes rows of `piece` from its row `first` on into `out`, `cols` numbers a row.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        piece: &Piece,
        first: usize,
        cols: usize,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let Some(row) = self.to.element_bytes().map(|b| b * cols) else {
            return Ok(());
        };
        let per_window = row_window(piece);
        let mut window = Window::default();
        for (n, out) in out.chunks_mut(per_window * row).enumerate() {
            let at = first + n * per_window;
            window.fill(self, checkpoint, piece, at, out.len() / row)?;
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let codes = &window.codes[i * piece.row..][..piece.row];
                let (scales, outer) = (window.scales.row(i), window.outer.row(i));
                self.check_scales(self.row(at + i), codes, scales, outer)?;
                window.numbers.resize(cols, 0.0);
                self.numbers(codes, scales, outer, &mut window.numbers);
                if !self.write(&window.numbers, out) {
                    let row = self.row(at + i);
                    return Err(self.judge(row, codes, scales, outer, &window.numbers));
                }
            }
        }
        Ok(())
    }

    /// Row of the tensor that row `n` of the piece is.
    fn row(&self, n: usize) -> u64 {
        self.start + self.step * n as u64
    }

    /// One row of numbers.
    fn numbers(&self, codes: &[u8], scales: &[f32], outer: &[f32], out: &mut [f32]) {
        match self.element {
            Element::E4m3 => {
                let group = self.group();
                for ((codes, out), &scale) in
                    codes.chunks(group).zip(out.chunks_mut(group)).zip(scales)
                {
                    for (out, &code) in out.iter_mut().zip(codes) {
                        *out = E4M3[usize::from(code)] * scale;
                    }
                }
            }
            Element::E2m1 => {
                let group = self.group();
                let groups = codes.chunks(group / 2).zip(out.chunks_mut(group));
                for ((codes, out), &scale) in groups.zip(scales) {
                    let table = match outer.first() {
                        Some(outer) => E2M1.map(|v| v * scale * outer),
                        None => E2M1.map(|v| v * scale),
                    };
                    for (out, &code) in out.chunks_exact_mut(2).zip(codes) {
                        out[0] = table[usize::from(code & 15)];
                        out[1] = table[usize::from(code >> 4)];
                    }
                }
            }
            element => {
                for (out, bytes) in out.iter_mut().zip(codes.chunks_exact(element.bytes())) {
                    *out = number(element, bytes);
                }
            }
        }
    }

    /// Refuses scales of a row that are negative, or zero where they cannot be.
    fn check_scales(
        &self,
        row: u64,
        codes: &[u8],
        scales: &[f32],
        outer: &[f32],
    ) -> Result<(), Fault> {
        if scales.iter().chain(outer).all(|&scale| scale > 0.0) {
            return Ok(());
        }
        // The bits that are zero in a code for zero of either sign, and codes of a group in bytes.
        let (bits, group) = match self.element {
            Element::E2m1 => (0x77, self.group() / 2),
            _ => (0x7f, self.group()),
        };
        let filled = |codes: &[u8]| codes.iter().any(|code| code & bits != 0);
        let rounds = |grid: &Option<Grid>| grid.as_ref().is_some_and(|g| g.kind == Scale::E4m3);
        let bad = |scale: f32, rounds: bool, codes: &[u8]| {
            scale < 0.0 || scale == 0.0 && !rounds && filled(codes)
        };
        let fault = |column, problem| Fault::Bad {
            row,
            column,
            problem,
        };
        for (n, (&scale, codes)) in scales.iter().zip(codes.chunks(group)).enumerate() {
            if bad(scale, rounds(&self.scales), codes) {
                return Err(fault(n.saturating_mul(self.group()), Problem::Scale(scale)));
            }
        }
        match outer.first() {
            Some(&scale) if bad(scale, rounds(&self.outer), codes) => {
                Err(fault(0, Problem::Outer(scale)))
            }
            _ => Ok(()),
        }
    }

    fn group(&self) -> usize {
        self.scales.as_ref().map_or(usize::MAX, |s| s.group)
    }

    /// Writes a row; false if a number is not finite or not one of the encoding.
    fn write(&self, numbers: &[f32], out: &mut [u8]) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        let mut wrong = 0;
        if self.to == Encoding::Bf16 {
            for (out, number) in out.chunks_exact_mut(2).zip(numbers) {
                let bits = number.to_bits();
                wrong |= u32::from(bits & EXPONENT == EXPONENT) | (bits & 0xffff);
                out.copy_from_slice(&((bits >> 16) as u16).to_le_bytes());
            }
        } else {
            for (out, number) in out.chunks_exact_mut(4).zip(numbers) {
                wrong |= u32::from(number.to_bits() & EXPONENT == EXPONENT);
                out.copy_from_slice(&number.to_le_bytes());
            }
        }
        wrong == 0
    }

    /// What is wrong with a row that [`Decoder::write`] refused.
    fn judge(
        &self,
        row: u64,
        codes: &[u8],
        scales: &[f32],
        outer: &[f32],
        numbers: &[f32],
    ) -> Fault {
        let exact = |n: &f32| self.to != Encoding::Bf16 || n.to_bits() & 0xffff == 0;
        let good = |n: &f32| n.is_finite() && exact(n);
        let column = numbers.iter().position(|n| !good(n)).unwrap_or(0);
        let number = numbers.get(column).copied().unwrap_or(f32::NAN);
        let factor = |scales: &[f32], column: usize| scales.get(column).copied().unwrap_or(1.0);
        let (scale, outer) = (factor(scales, column / self.group()), factor(outer, 0));
        let problem = match self.element {
            Element::E4m3 if E4M3[usize::from(codes[column])].is_nan() => Problem::Code,
            Element::E4m3 | Element::E2m1 if !scale.is_finite() => Problem::Scale(scale),
            Element::E4m3 | Element::E2m1 if !outer.is_finite() => Problem::Outer(outer),
            Element::E4m3 | Element::E2m1 if number.is_finite() => Problem::TooSmall(number),
            Element::E4m3 | Element::E2m1 => Problem::TooLarge,
            Element::Number(_) => Problem::Number(number),
            element => {
                let bytes = &codes[column * element.bytes()..][..element.bytes()];
                Problem::Integer(integer(element, bytes))
            }
        };
        Fault::Bad {
            row,
            column,
            problem,
        }
    }
}

/// Rows of a piece that are decoded together.
fn row_window(piece: &Piece) -> usize {
    (WINDOW / piece.row).max(1)
}

/// One number of a tensor that has no scales; NaN for an integer that f32 does not hold.
fn number(element: Element, bytes: &[u8]) -> f32 {
    match element {
        Element::Number(Encoding::F16) => f16_to_f32(u16_of(bytes)),
        Element::Number(Encoding::Bf16) => bf16_to_f32(u16_of(bytes)),
        Element::I32 | Element::I64 => {
            let integer = integer(element, bytes);
            let number = integer as f32;
            if integer >= 0 && number as i128 == i128::from(integer) {
                number
            } else {
                f32::NAN
            }
        }
        _ => f32_of(bytes),
    }
}

fn integer(element: Element, bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let value = i64::from_le_bytes(wide);
    if element == Element::I32 {
        i64::from(value as i32)
    } else {
        value
    }
}

/// Buffers for some rows of codes with their scales.
#[derive(Default)]
struct Window {
    codes: Vec<u8>,
    scales: Rows,
    outer: Rows,
    numbers: Vec<f32>,
}

impl Window {
    /// Reads `rows` rows of `piece` from its row `first` on, and their scales.
    fn fill(
        &mut self,
        decoder: &Decoder,
        checkpoint: &Checkpoint,
        piece: &Piece,
        first: usize,
        rows: usize,
    ) -> Result<(), Error> {
        self.codes.resize(rows * piece.row, 0);
        piece.read(checkpoint, first, &mut self.codes)?;
        let rows = first..first + rows;
        for (grid, into) in [
            (&decoder.scales, &mut self.scales),
            (&decoder.outer, &mut self.outer),
        ] {
            if let Some(grid) = grid {
                into.fill(grid, checkpoint, rows.clone().map(|n| decoder.row(n)))?;
            }
        }
        Ok(())
    }
}

fn f32_of(b: &[u8]) -> f32 {
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn u16_of(b: &[u8]) -> u16 {
    u16::from_le_bytes([b[0], b[1]])
}
