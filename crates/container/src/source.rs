//! Where a checkpoint keeps its operands: rows of tensors, picked, decoded and put together.

use crate::checkpoint::{Checkpoint, Location};
use crate::coded::{Decoder, Element, Fault, Tiles};
use crate::error::Error;
use lamella_program::block::{Ffn, GatedUnit};
use lamella_program::encoding::TILE_ROWS;
use lamella_program::{Encoding, Operand, OperandId, Program, Slice};
use std::ops::Range;

/// Where a checkpoint keeps an operand.
#[derive(Debug)]
pub(crate) struct Source {
    /// Those it can be read in: first that of its codes, if they can be held as they are; last
    /// the row-major one that holds its numbers.
    pub(crate) encodings: Vec<Encoding>,
    /// Per item, the pieces its rows are put together from: one for each slice.
    pub(crate) items: Vec<Vec<Piece>>,
}

/// Rows at a regular distance in one weights file.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    /// Bytes from one row to the next.
    pub(crate) stride: u64,
    /// Bytes of one row as it is stored.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    /// How its elements become the operand's numbers; `None` where they are.
    pub(crate) decoder: Option<Box<Decoder>>,
}

/// Finds the bytes of every operand. The program has been checked against the tensor table.
pub(crate) fn locate_all(program: &Program, checkpoint: &Checkpoint) -> Result<Vec<Source>, Error> {
    let operands = program.operands.iter();
    let mut sources = operands
        .map(|operand| locate(operand, checkpoint))
        .collect::<Result<Vec<Source>, Error>>()?;
    for layer in program.every_layer() {
        match &layer.ffn.body {
            Ffn::Dense(unit) => agree(&mut sources, &pair(unit)),
            Ffn::Routed(routed) => {
                let unit = &routed.unit;
                agree(&mut sources, &[unit.gate, unit.up, unit.down]);
                for unit in &routed.shared {
                    agree(&mut sources, &pair(unit));
                }
            }
            _ => unreachable!("the closure check refuses blocks without rules"),
        }
    }
    for source in &mut sources {
        let Some(&encoding) = source.encodings.last() else {
            continue;
        };
        for piece in source.items.iter_mut().flatten() {
            piece.present(encoding);
        }
    }
    Ok(sources)
}

/// The two maps of a unit that are computed together.
fn pair(unit: &GatedUnit) -> [OperandId; 2] {
    [unit.gate, unit.up]
}

/// Gives operands that are computed or stored together one encoding: their own where it is the
/// same, else the row-major one that holds them all.
fn agree(sources: &mut [Source], ids: &[OperandId]) {
    let of = |sources: &[Source], id: &OperandId| -> Option<Vec<Encoding>> {
        Some(sources.get(id.index())?.encodings.clone())
    };
    let differ = |sources: &[Source]| {
        let all: Vec<_> = ids.iter().map(|id| of(sources, id)).collect();
        all.windows(2).any(|w| w[0] != w[1])
    };
    if !differ(sources) {
        return;
    }
    let set = |sources: &mut [Source], to: &dyn Fn(Encoding) -> Encoding| {
        for id in ids {
            if let Some(source) = sources.get_mut(id.index()) {
                source.encodings = source
                    .encodings
                    .last()
                    .map(|&e| to(e))
                    .into_iter()
                    .collect();
            }
        }
    };
    set(sources, &|own| own);
    if differ(sources) {
        set(sources, &|_| Encoding::F32);
    }
}

fn locate(operand: &Operand, checkpoint: &Checkpoint) -> Result<Source, Error> {
    let refuse = |(tensor, fault)| Error::Unreadable {
        dir: checkpoint.dir().to_owned(),
        operand: operand.name.clone(),
        tensor,
        fault,
    };
    let mut items = Vec::with_capacity(operand.parts.len());
    let mut encoding = None;
    let mut coded = operand.role.may_quantise().then_some(None);
    for part in &operand.parts {
        let mut pieces = Vec::with_capacity(part.len());
        for slice in part {
            let (decoder, location) =
                Decoder::find(checkpoint, slice, operand.role).map_err(refuse)?;
            // Slices that differ are all widened.
            encoding = match encoding {
                Some(other) if other != decoder.to => Some(Encoding::F32),
                _ => Some(decoder.to),
            };
            // Codes are kept where all slices are in the same ones.
            coded = coded.and_then(|one| match (one, decoder.coded(operand.cols())) {
                (Some(one), Some(other)) if one != other => None,
                (_, other) => other.map(Some),
            });
            let piece = piece(slice, decoder, location)
                .ok_or_else(|| refuse((slice.tensor.clone(), "rows leave it".to_owned())))?;
            pieces.push(piece);
        }
        items.push(pieces);
    }
    let encoding = encoding.ok_or_else(|| refuse((String::new(), "no slices".to_owned())))?;
    let encodings = coded.flatten().into_iter().chain([encoding]).collect();
    Ok(Source { encodings, items })
}

/// The bytes of a slice; `None` if they leave the tensor.
fn piece(slice: &Slice, decoder: Decoder, location: Location) -> Option<Piece> {
    let elements = slice.tensor_shape.last().copied().unwrap_or(1) as u64;
    let row = elements.checked_mul(decoder.element.bytes() as u64)?;
    let start = row.checked_mul(slice.start as u64)?;
    let stride = row.checked_mul(slice.step as u64)?;
    let span = stride
        .checked_mul(slice.rows.checked_sub(1)? as u64)?
        .checked_add(row)?;
    if row == 0 || start.checked_add(span)? > location.length {
        return None;
    }
    Some(Piece {
        file: location.file,
        offset: location.offset + start,
        stride,
        row: usize::try_from(row).ok()?,
        rows: slice.rows,
        decoder: Some(Box::new(decoder)),
    })
}

impl Piece {
    /// Settles for the operand's encoding; what is stored so needs no decoder.
    fn present(&mut self, encoding: Encoding) {
        if let Some(decoder) = &mut self.decoder {
            decoder.to = encoding;
            if decoder.element == Element::Number(encoding) {
                self.decoder = None;
            }
        }
    }

    /// Fills `out` with rows as they are stored, from row `first` on.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        first: usize,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let offset = self.offset + self.stride * first as u64;
        read_strided(
            checkpoint,
            self.file,
            offset,
            self.stride as usize,
            self.row,
            out,
        )
    }
}

/// Fills `buffer` with rows of an item of `operand`, in tiles of codes. The first one is a multiple
/// of [`TILE_ROWS`].
pub(crate) fn read_tiles(
    checkpoint: &Checkpoint,
    (operand, source): (&Operand, &Source),
    item: usize,
    encoding: Encoding,
    rows: Range<usize>,
    buffer: &mut [u8],
) -> Result<(), Error> {
    debug_assert!(rows.start.is_multiple_of(TILE_ROWS));
    let Some(mut tiles) = Tiles::new(encoding, operand.cols(), buffer) else {
        return Ok(());
    };
    let mut start = 0;
    for (piece, slice) in source.items[item].iter().zip(&operand.parts[item]) {
        let end = start + piece.rows;
        let wanted = rows.start.max(start)..rows.end.min(end);
        if let (false, Some(decoder)) = (wanted.is_empty(), &piece.decoder) {
            let at = wanted.start - rows.start;
            let from = wanted.start - start..wanted.end - start;
            decoder
                .lay(checkpoint, piece, from, &mut tiles, at)
                .map_err(|fault| explain(fault, checkpoint, piece, slice))?;
        }
        start = end;
    }
    Ok(())
}

/// Fills `buffer` with rows of an item of `operand` from `first` on, in the source's row-major
/// encoding, `row` bytes each.
pub(crate) fn read_item(
    checkpoint: &Checkpoint,
    (operand, source): (&Operand, &Source),
    item: usize,
    row: usize,
    mut first: usize,
    mut buffer: &mut [u8],
) -> Result<(), Error> {
    for (piece, slice) in source.items[item].iter().zip(&operand.parts[item]) {
        if first >= piece.rows {
            first -= piece.rows;
            continue;
        }
        let rows = (piece.rows - first).min(buffer.len() / row);
        let (now, later) = buffer.split_at_mut(rows * row);
        match &piece.decoder {
            None => piece.read(checkpoint, first, now)?,
            Some(decoder) => decoder
                .read(checkpoint, piece, first, operand.cols(), now)
                .map_err(|fault| explain(fault, checkpoint, piece, slice))?,
        }
        (buffer, first) = (later, 0);
        if buffer.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

fn explain(fault: Fault, checkpoint: &Checkpoint, piece: &Piece, slice: &Slice) -> Error {
    match fault {
        Fault::Read(error) => error,
        Fault::Bad {
            row,
            column,
            problem,
        } => Error::Number {
            path: checkpoint
                .file(piece.file)
                .map_or_else(|| checkpoint.dir().to_owned(), |path| path.to_owned()),
            tensor: slice.tensor.clone(),
            row,
            column,
            problem: problem.describe(slice),
        },
    }
}

/// Reads rows that lie `stride` bytes apart.
pub(crate) fn read_strided(
    checkpoint: &Checkpoint,
    file: u32,
    offset: u64,
    stride: usize,
    row: usize,
    out: &mut [u8],
) -> Result<(), Error> {
    const WINDOW: usize = 1 << 20;
    if stride == row {
        return checkpoint.read_at(file, offset, out);
    }
    // Far apart, one read a row; close together, one read for many rows and a copy of the wanted.
    let per_window = (WINDOW / stride).max(1);
    let mut window = Vec::new();
    for (n, rows) in out.chunks_mut(per_window * row).enumerate() {
        let offset = offset + (n * per_window * stride) as u64;
        if rows.len() == row {
            checkpoint.read_at(file, offset, rows)?;
            continue;
        }
        window.resize((rows.len() / row - 1) * stride + row, 0);
        checkpoint.read_at(file, offset, &mut window)?;
        for (out, from) in rows.chunks_exact_mut(row).zip(window.chunks(stride)) {
            out.copy_from_slice(&from[..row]);
        }
    }
    Ok(())
}
