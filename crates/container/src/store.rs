//! A model's bytes, wherever they are: a checkpoint directory as it came, or a container.

use crate::checkpoint::{Checkpoint, check_directory};
use crate::constants;
use crate::container::Container;
use crate::disk;
use crate::error::Error;
use crate::expert::{ExpertBank, expert_banks};
use crate::manifest::{MANIFEST_FILE, PROGRAM_FILE, TABLE_FILE};
use crate::source::{Source, locate_all, read_item, read_tiles};
use crate::verify::digest_range;
use lamella_program::encoding::TILE_ROWS;
use lamella_program::{Defect, Encoding, Operand, OperandId, Program, TensorInfo, closure};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Turns the text of `config.json` and the tensor table into a program.
pub type Lower<'a> = dyn Fn(&str, &[TensorInfo]) -> Result<Program, Vec<Defect>> + 'a;

/// Text files that travel with a model. Of programs nothing is run: `encoding_dsv4.py` holds texts
/// that belong into prompts.
pub const TEXT_FILES: [&str; 12] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "encoding_dsv4.py",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
];

/// The folder in which a checkpoint may keep a text file.
const TEXT_FOLDER: &str = "encoding";

/// Where the checkpoint in `dir` has the text file `name`.
fn text_path(dir: &Path, name: &str) -> PathBuf {
    let inner = dir.join(TEXT_FOLDER).join(name);
    match dir.join(name) {
        path if path.exists() || !inner.exists() => path,
        _ => inner,
    }
}

/// An opened model. Reads are positioned and take `&self`: any number of threads may read.
#[derive(Debug)]
pub struct Store {
    origin: Origin,
    pub(crate) banks: Vec<ExpertBank>,
}

#[derive(Debug)]
enum Origin {
    Checkpoint(Box<Lowered>),
    Container(Box<Container>),
}

/// A checkpoint with its program and the places of its operands.
#[derive(Debug)]
struct Lowered {
    checkpoint: Checkpoint,
    program: Program,
    sources: Vec<Source>,
}

/// A run of bytes in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the file, see [`Store::file`].
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of the bytes, where the model records it.
    pub digest: Option<[u8; 32]>,
}

impl Store {
    /// Opens the model in directory `path`: a container, or a checkpoint that `lower` turns into a
    /// program.
    ///
    /// # Errors
    /// If the files are damaged, incomplete or do not form a closed program. All defects of a
    /// program come together.
    pub fn open(path: &Path, lower: &Lower<'_>) -> Result<Store, Error> {
        check_directory(path)?;
        if path.join(MANIFEST_FILE).exists() {
            let container = Container::open(path)?;
            let banks = expert_banks(&container.program);
            return Ok(Store {
                origin: Origin::Container(Box::new(container)),
                banks,
            });
        }
        if crate::convert::is_unfinished(path) {
            return Err(Error::Unfinished(path.to_owned()));
        }
        if [PROGRAM_FILE, TABLE_FILE]
            .iter()
            .all(|name| path.join(name).is_file())
        {
            return Err(Error::NoManifest(path.to_owned()));
        }
        let checkpoint = Checkpoint::open(path)?;
        let refuse = |defects| Error::Defects {
            path: path.to_owned(),
            defects,
        };
        let mut program = lower(checkpoint.config(), checkpoint.tensors()).map_err(refuse)?;
        let mut defects = closure::check_against(&program, checkpoint.tensors());
        if defects.is_empty() {
            defects = constants::compare(&mut program, &checkpoint)?;
        }
        if !defects.is_empty() {
            return Err(refuse(defects));
        }
        let sources = locate_all(&program, &checkpoint)?;
        let banks = expert_banks(&program);
        let lowered = Lowered {
            checkpoint,
            program,
            sources,
        };
        Ok(Store {
            origin: Origin::Checkpoint(Box::new(lowered)),
            banks,
        })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        match &self.origin {
            Origin::Checkpoint(l) => &l.program,
            Origin::Container(c) => &c.program,
        }
    }

    /// Whether this is a container (and not a checkpoint as it came).
    #[must_use]
    pub fn is_container(&self) -> bool {
        matches!(self.origin, Origin::Container(_))
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        match &self.origin {
            Origin::Checkpoint(l) => l.checkpoint.dir(),
            Origin::Container(c) => &c.dir,
        }
    }

    /// Root of the container's digest tree, 64 hexadecimal digits; `None` for a checkpoint.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        match &self.origin {
            Origin::Checkpoint(_) => None,
            Origin::Container(c) => Some(&c.manifest.identity),
        }
    }

    /// The tensor table of a checkpoint; empty for a container.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        match &self.origin {
            Origin::Checkpoint(l) => l.checkpoint.tensors(),
            Origin::Container(_) => &[],
        }
    }

    /// Encodings in which all items of the operand can be read; the first is the canonical one
    /// where there is one. A checkpoint's codes with scales can be read in tiles as they are, and
    /// decoded to the row-major encoding that holds them: bf16 for FP4 and FP8 with E8M0 scales,
    /// f32 for the others. Only the latter is there where no encoding of codes holds them all, and
    /// where operands that are computed together come in different codings. Tables are f32. Empty
    /// for an unknown operand.
    #[must_use]
    pub fn encodings(&self, operand: OperandId) -> &[Encoding] {
        match &self.origin {
            Origin::Checkpoint(l) => l.sources.get(operand.index()).map_or(&[], |s| &s.encodings),
            Origin::Container(c) => c.encodings(operand),
        }
    }

    /// Where an item of an operand is stored in one run of bytes; `None` where it is not, or is
    /// put together from several (slices of checkpoint tensors).
    #[must_use]
    pub fn stored(&self, operand: OperandId, encoding: Encoding, item: usize) -> Option<Record> {
        match &self.origin {
            Origin::Checkpoint(l) => {
                let source = l.sources.get(operand.index())?;
                let [piece] = source.items.get(item)?.as_slice() else {
                    return None;
                };
                let row = row_bytes(l.program.operand(operand), encoding);
                let whole = piece.decoder.is_none()
                    && source.encodings == [encoding]
                    && (piece.rows == 1 || piece.stride == row);
                whole.then_some(Record {
                    file: piece.file,
                    offset: piece.offset,
                    length: row * piece.rows as u64,
                    digest: None,
                })
            }
            Origin::Container(c) => {
                let part = c.part(operand, encoding, item)?;
                let record = &c.table.records[part.record as usize];
                Some(Record {
                    file: record.file,
                    offset: record.offset + part.offset,
                    length: part.length,
                    digest: Some(part.digest),
                })
            }
        }
    }

    /// Path of file number `file` of a [`Record`].
    #[must_use]
    pub fn file(&self, file: u32) -> Option<&Path> {
        match &self.origin {
            Origin::Checkpoint(l) => l.checkpoint.file(file),
            Origin::Container(c) => c.file(file).map(|f| f.path.as_path()),
        }
    }

    /// Reads one item of an operand as it is stored: row-major, or tiles. `buffer` must
    /// have exactly its size ([`Encoding::matrix_bytes`]). Containers check the digest.
    ///
    /// # Errors
    /// If it is not stored so, the buffer does not fit, reading fails, or the bytes are damaged.
    pub fn read(
        &self,
        operand: OperandId,
        item: usize,
        encoding: Encoding,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        match &self.origin {
            Origin::Checkpoint(_) => {
                let rows = self.operand(operand, item, encoding)?.rows();
                self.read_rows(operand, item, encoding, 0..rows, buffer)
            }
            Origin::Container(c) => {
                let Some(part) = c.part(operand, encoding, item) else {
                    return Err(self.not_stored(operand, item, encoding));
                };
                self.check_buffer(operand, buffer.len(), part.length)?;
                c.read(part, buffer)
            }
        }
    }

    /// Reads one item of an operand and compares it with its digest, a piece at a time. Checkpoints
    /// record no digests and accept everything.
    ///
    /// # Errors
    /// If it is not stored so, reading fails, or the bytes are damaged.
    pub fn check(&self, operand: OperandId, item: usize, encoding: Encoding) -> Result<(), Error> {
        let Origin::Container(c) = &self.origin else {
            return Ok(());
        };
        let Some(part) = c.part(operand, encoding, item) else {
            return Err(self.not_stored(operand, item, encoding));
        };
        let (file, offset) = c.place(part)?;
        match digest_range(file, offset, part.length)? == part.digest {
            true => Ok(()),
            false => Err(c.damaged(part)),
        }
    }

    /// Reads rows of one item; in a tiled encoding whole row blocks, the last one perhaps cropped
    /// by the end of the matrix. `buffer` must have [`Encoding::matrix_bytes`] of so many rows. A
    /// part of an item has no digest of its own: nothing is checked here; `read` checks.
    ///
    /// # Errors
    /// If it is not stored so, the rows or the buffer do not fit, or reading fails.
    pub fn read_rows(
        &self,
        operand: OperandId,
        item: usize,
        encoding: Encoding,
        rows: Range<usize>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let shape = self.operand(operand, item, encoding)?;
        let whole = |row: usize| row.is_multiple_of(TILE_ROWS) || row == shape.rows();
        let blocks = !encoding.is_tiled() || (whole(rows.start) && whole(rows.end));
        let fits = rows.start <= rows.end && rows.end <= shape.rows() && blocks;
        let bytes = |count: usize| encoding.matrix_bytes(count, shape.cols());
        let needed = bytes(rows.len()).filter(|_| fits);
        let needed = needed.map_or(u64::MAX, |n| n as u64);
        self.check_buffer(operand, buffer.len(), needed)?;
        if buffer.is_empty() {
            return Ok(());
        }
        match &self.origin {
            Origin::Checkpoint(l) => {
                let of = (shape, &l.sources[operand.index()]);
                if encoding.is_tiled() {
                    return read_tiles(&l.checkpoint, of, item, encoding, rows, buffer);
                }
                let row = buffer.len() / rows.len();
                read_item(&l.checkpoint, of, item, row, rows.start, buffer)
            }
            Origin::Container(c) => {
                let Some(part) = c.part(operand, encoding, item) else {
                    return Err(self.not_stored(operand, item, encoding));
                };
                let (file, offset) = c.place(part)?;
                let before = bytes(rows.start).unwrap_or(0) as u64;
                file.read_at(buffer, offset + before)
            }
        }
    }

    /// A text file that came with the model ([`TEXT_FILES`]); `None` where there is none.
    ///
    /// # Errors
    /// If it is there and cannot be read, is no text, or is damaged.
    pub fn read_text(&self, name: &str) -> Result<Option<String>, Error> {
        if !TEXT_FILES.contains(&name) {
            return Ok(None);
        }
        match &self.origin {
            Origin::Checkpoint(l) => disk::read_text(&text_path(l.checkpoint.dir(), name)),
            Origin::Container(c) => c.read_text(name),
        }
    }

    /// Names of the text files the model has, sorted.
    #[must_use]
    pub fn text_names(&self) -> Vec<String> {
        match &self.origin {
            Origin::Checkpoint(l) => TEXT_FILES
                .into_iter()
                .filter(|name| text_path(l.checkpoint.dir(), name).is_file())
                .map(str::to_owned)
                .collect(),
            Origin::Container(c) => c.manifest.texts.iter().map(|t| t.file.clone()).collect(),
        }
    }

    /// The checkpoint behind the store, if it is one.
    pub(crate) fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.origin {
            Origin::Checkpoint(l) => Some(&l.checkpoint),
            Origin::Container(_) => None,
        }
    }

    /// Digest that tells these weights from others. For a container it follows from the identity;
    /// for a checkpoint, which is too large to be read for it, from `config.json` and from the
    /// names, headers, sizes and modification times of its weights files and 64 pages of each (all
    /// of a file of at most 256 KiB). It does not see bytes changed between those pages by
    /// something that put the time back.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], Error> {
        match &self.origin {
            Origin::Checkpoint(l) => l.checkpoint.fingerprint(),
            Origin::Container(c) => Ok(*blake3::hash(c.manifest.identity.as_bytes()).as_bytes()),
        }
    }

    /// Digest of the model as far as `operands` go, the same wherever its files lie. For a
    /// container it follows from the identity, the root of all digests; for a checkpoint from
    /// `config.json` and the name, type, shape and a sample of every tensor that these operands are
    /// made of: all of one of at most 16 KiB, of others 1 KiB of both ends, of the middle and of
    /// three places that follow from the name. No other tensor is read.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn model_digest(&self, operands: &[OperandId]) -> Result<[u8; 32], Error> {
        match &self.origin {
            Origin::Checkpoint(l) => {
                let operands = operands
                    .iter()
                    .filter_map(|id| l.program.operands.get(id.index()));
                let slices = operands.flat_map(|operand| operand.parts.iter().flatten());
                l.checkpoint
                    .digest_of(slices.map(|slice| slice.tensor.as_str()))
            }
            Origin::Container(_) => self.fingerprint(),
        }
    }

    /// The container behind the store, if it is one.
    pub(crate) fn container(&self) -> Option<&Container> {
        match &self.origin {
            Origin::Checkpoint(_) => None,
            Origin::Container(c) => Some(c),
        }
    }

    /// The tensors an item of an operand comes from, for messages.
    pub(crate) fn origin_of(&self, operand: OperandId, item: usize) -> String {
        let parts = &self.program().operand(operand).parts;
        let names: Vec<&str> = parts
            .get(item)
            .into_iter()
            .flatten()
            .map(|s| s.tensor.as_str())
            .collect();
        names.join(", ")
    }

    /// The operand, if this item of it is stored in this encoding.
    fn operand(
        &self,
        operand: OperandId,
        item: usize,
        encoding: Encoding,
    ) -> Result<&Operand, Error> {
        match self.program().operands.get(operand.index()) {
            Some(o) if item < o.items() && self.encodings(operand).contains(&encoding) => Ok(o),
            _ => Err(self.not_stored(operand, item, encoding)),
        }
    }

    /// The error that says so.
    pub(crate) fn not_stored(&self, operand: OperandId, item: usize, encoding: Encoding) -> Error {
        let name = self
            .program()
            .operands
            .get(operand.index())
            .map(|o| o.name.clone());
        let operand = name.unwrap_or_else(|| format!("number {}", operand.0));
        Error::NotStored {
            operand,
            item,
            encoding,
        }
    }

    /// Refuses a buffer of another size than `expected`.
    pub(crate) fn check_buffer(
        &self,
        operand: OperandId,
        found: usize,
        expected: u64,
    ) -> Result<(), Error> {
        if found as u64 == expected {
            return Ok(());
        }
        let operand = self.program().operand(operand).name.clone();
        Err(Error::Buffer {
            operand,
            found,
            expected: expected as usize,
        })
    }
}

/// Bytes of one row of a row-major encoding; 0 for a tiled one.
fn row_bytes(operand: &Operand, encoding: Encoding) -> u64 {
    encoding
        .element_bytes()
        .map_or(0, |b| (operand.cols() * b) as u64)
}
