//! Where a checkpoint keeps its operands: rows of tensors, picked and put together.

use crate::checkpoint::{Checkpoint, Location};
use crate::error::Error;
use lamella_program::{Encoding, Operand, Program, Slice};

/// Where a checkpoint keeps an operand.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) encoding: [Encoding; 1],
    /// Per item, the pieces its rows are put together from.
    pub(crate) items: Vec<Vec<Piece>>,
}

/// Rows at a regular distance in one weights file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    /// Bytes from one row to the next.
    pub(crate) stride: u64,
    pub(crate) rows: usize,
}

/// Finds the bytes of every operand. The program has been checked against the tensor table.
pub(crate) fn locate_all(program: &Program, checkpoint: &Checkpoint) -> Result<Vec<Source>, Error> {
    program
        .operands
        .iter()
        .map(|operand| locate(operand, checkpoint))
        .collect()
}

fn locate(operand: &Operand, checkpoint: &Checkpoint) -> Result<Source, Error> {
    let mut found = None;
    let mut items = Vec::with_capacity(operand.parts.len());
    for part in &operand.parts {
        let mut pieces = Vec::with_capacity(part.len());
        for slice in part {
            let placed = checkpoint.find(&slice.tensor).and_then(|(info, location)| {
                Some((info.encoding?, piece(slice, info.encoding?, location)?))
            });
            let Some((encoding, piece)) = placed else {
                let (dir, tensor) = (checkpoint.dir().to_owned(), slice.tensor.clone());
                return Err(Error::NoTensor { dir, tensor });
            };
            found = Some(encoding);
            pieces.push(piece);
        }
        items.push(pieces);
    }
    match found {
        Some(encoding) => Ok(Source {
            encoding: [encoding],
            items,
        }),
        None => Err(Error::NoTensor {
            dir: checkpoint.dir().to_owned(),
            tensor: format!("for operand {}", operand.name),
        }),
    }
}

/// The bytes of a slice; `None` if they leave the tensor.
fn piece(slice: &Slice, encoding: Encoding, location: Location) -> Option<Piece> {
    let row = (slice.cols() as u64).checked_mul(encoding.element_bytes()? as u64)?;
    let start = row.checked_mul(slice.start as u64)?;
    let stride = row.checked_mul(slice.step as u64)?;
    let span = stride
        .checked_mul(slice.rows.checked_sub(1)? as u64)?
        .checked_add(row)?;
    if start.checked_add(span)? > location.length {
        return None;
    }
    let offset = location.offset + start;
    Some(Piece {
        file: location.file,
        offset,
        stride,
        rows: slice.rows,
    })
}

/// Fills `buffer` with rows from `first` on, `row` bytes each, of an item made of `pieces`.
pub(crate) fn read_pieces(
    checkpoint: &Checkpoint,
    pieces: &[Piece],
    row: usize,
    mut first: usize,
    mut buffer: &mut [u8],
) -> Result<(), Error> {
    for piece in pieces {
        if first >= piece.rows {
            first -= piece.rows;
            continue;
        }
        let rows = (piece.rows - first).min(buffer.len() / row);
        let (now, later) = buffer.split_at_mut(rows * row);
        let offset = piece.offset + piece.stride * first as u64;
        read_strided(
            checkpoint,
            piece.file,
            offset,
            piece.stride as usize,
            row,
            now,
        )?;
        (buffer, first) = (later, 0);
        if buffer.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads rows that lie `stride` bytes apart.
fn read_strided(
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
