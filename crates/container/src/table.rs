//! The operand table: which bytes of which pack hold which operand.
//!
//! A fixed little-endian layout, so that opening a model of a hundred thousand experts costs one
//! read. See docs/container-format.md for the bytes.

use crate::manifest::is_plain_name;
use lamella_program::{Encoding, Program};
use std::collections::HashSet;
use std::ops::Range;

/// First bytes of the table.
pub const TABLE_MAGIC: &[u8; 8] = b"LAMOPTAB";

/// Version of the layout.
pub const TABLE_VERSION: u32 = 1;

/// Records begin at multiples of this: one page, one sector of every disk.
pub const RECORD_ALIGN: u64 = 4096;

/// Operands within a record begin at multiples of this: one cache line, one register.
pub const PART_ALIGN: u64 = 64;

/// Most dimensions an operand has.
const MAX_DIMENSIONS: usize = 8;

/// What is wrong with an operand table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table ends early.
    #[error("the operand table ends in the middle")]
    Truncated,
    /// Bytes after the end.
    #[error("{0} bytes follow the operand table")]
    Trailing(usize),
    /// Not an operand table.
    #[error("not an operand table")]
    Magic,
    /// A newer layout.
    #[error("operand table version {0} is newer than {TABLE_VERSION}; update Lamella")]
    Version(u32),
    /// A pack name that could lead out of the directory.
    #[error("{0:?} is not a usable pack name")]
    FileName(String),
    /// A name stands twice.
    #[error("{0} stands twice")]
    Duplicate(String),
    /// An encoding this version does not know.
    #[error("encoding number {0} is unknown; update Lamella")]
    Encoding(u8),
    /// Text that is no text, or a shape of too many dimensions.
    #[error("operand {0}: its name or shape cannot be read")]
    Operand(usize),
    /// A record in an impossible place.
    #[error("record {record}: {problem}")]
    Record {
        /// Its number.
        record: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Table and program disagree.
    #[error("operand {operand}: {problem}")]
    Program {
        /// The operand's name.
        operand: String,
        /// How.
        problem: &'static str,
    },
}

/// A pack file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackFile {
    /// Name in the container.
    pub name: String,
    /// Bytes, a multiple of [`RECORD_ALIGN`].
    pub length: u64,
}

/// Name and shape of an operand, as a check against the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOperand {
    /// Its name in the program.
    pub name: String,
    /// Its logical shape.
    pub shape: Vec<usize>,
}

/// Bytes that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordEntry {
    /// Number of the pack.
    pub file: u32,
    /// First byte, a multiple of [`RECORD_ALIGN`].
    pub offset: u64,
    /// Bytes, without the padding up to the next record.
    pub length: u64,
    /// Its parts, as a range of [`Table::parts`].
    pub parts: Range<usize>,
}

/// One item of one operand in one encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of its record.
    pub record: u32,
    /// Number of the operand.
    pub operand: u32,
    /// Expert number, 0 where nothing is stacked.
    pub item: u32,
    /// How it is stored.
    pub encoding: Encoding,
    /// First byte within the record, a multiple of [`PART_ALIGN`].
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of the bytes.
    pub digest: [u8; 32],
}

/// The operand table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The packs.
    pub files: Vec<PackFile>,
    /// The program's operands, in its order.
    pub operands: Vec<TableOperand>,
    /// Records, by file and offset.
    pub records: Vec<RecordEntry>,
    /// Parts, by record and offset.
    pub parts: Vec<Part>,
}

/// Number of an encoding in files.
fn encoding_code(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::F32 => 0,
        Encoding::F16 => 1,
        Encoding::Bf16 => 2,
        Encoding::Fp8 => 8,
        Encoding::Mxfp8 => 9,
        Encoding::Mxfp4 => 10,
        Encoding::Nvfp4 => 11,
        Encoding::Q8 => 16,
        Encoding::Q4 => 17,
        // A new encoding without a number cannot be written: readers refuse this one.
        _ => u8::MAX,
    }
}

fn encoding_from_code(code: u8) -> Result<Encoding, TableError> {
    let found = Encoding::ALL
        .into_iter()
        .find(|&e| encoding_code(e) == code);
    found.ok_or(TableError::Encoding(code))
}

impl Table {
    /// The bytes of the table.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = TABLE_MAGIC.to_vec();
        let put32 = |out: &mut Vec<u8>, n: u32| out.extend_from_slice(&n.to_le_bytes());
        let put64 = |out: &mut Vec<u8>, n: u64| out.extend_from_slice(&n.to_le_bytes());
        let counts = [
            self.files.len(),
            self.operands.len(),
            self.records.len(),
            self.parts.len(),
        ];
        put32(&mut out, TABLE_VERSION);
        for count in counts {
            put32(&mut out, count as u32);
        }
        for file in &self.files {
            put_name(&mut out, &file.name);
            put64(&mut out, file.length);
        }
        for operand in &self.operands {
            put_name(&mut out, &operand.name);
            out.push(operand.shape.len() as u8);
            for &d in &operand.shape {
                put64(&mut out, d as u64);
            }
        }
        for record in &self.records {
            put32(&mut out, record.file);
            put64(&mut out, record.offset);
            put64(&mut out, record.length);
            put32(&mut out, record.parts.len() as u32);
        }
        for part in &self.parts {
            put32(&mut out, part.operand);
            put32(&mut out, part.item);
            out.push(encoding_code(part.encoding));
            put64(&mut out, part.offset);
            put64(&mut out, part.length);
            out.extend_from_slice(&part.digest);
        }
        out
    }

    /// Reads a table and checks everything that can be checked without the program: places,
    /// alignment, order, names.
    ///
    /// # Errors
    /// Any [`TableError`] but [`TableError::Program`].
    pub fn parse(bytes: &[u8]) -> Result<Table, TableError> {
        let mut cursor = Cursor(bytes);
        if cursor.take(8)? != TABLE_MAGIC {
            return Err(TableError::Magic);
        }
        let version = cursor.u32()?;
        if version != TABLE_VERSION {
            return Err(TableError::Version(version));
        }
        let [files, operands, records, parts] =
            [cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?].map(|n| n as usize);
        let mut table = Table::default();
        for _ in 0..files {
            table.files.push(read_file_entry(&mut cursor)?);
        }
        for number in 0..operands {
            table.operands.push(read_operand(&mut cursor, number)?);
        }
        let mut next_part = 0usize;
        for _ in 0..records {
            table
                .records
                .push(read_record(&mut cursor, &mut next_part)?);
        }
        if next_part != parts {
            return Err(TableError::Truncated);
        }
        for (number, record) in table.records.iter().enumerate() {
            for _ in record.parts.clone() {
                table.parts.push(read_part(&mut cursor, number as u32)?);
            }
        }
        if !cursor.0.is_empty() {
            return Err(TableError::Trailing(cursor.0.len()));
        }
        table.check_names()?;
        table.check_places()?;
        Ok(table)
    }

    fn check_names(&self) -> Result<(), TableError> {
        let mut seen = HashSet::new();
        for file in &self.files {
            if !is_plain_name(&file.name) || !file.name.ends_with(".pack") {
                return Err(TableError::FileName(file.name.clone()));
            }
            if !seen.insert(&file.name) {
                return Err(TableError::Duplicate(file.name.clone()));
            }
        }
        Ok(())
    }

    /// Records lie in order, aligned, apart, inside their pack; parts likewise in their record.
    fn check_places(&self) -> Result<(), TableError> {
        let mut ends = vec![0u64; self.files.len()];
        let mut last_file = 0;
        for (number, record) in self.records.iter().enumerate() {
            let wrong = |problem| {
                Err(TableError::Record {
                    record: number,
                    problem,
                })
            };
            let Some(file) = self.files.get(record.file as usize) else {
                return wrong("its pack does not exist");
            };
            if record.file < last_file {
                return wrong("it is out of order");
            }
            last_file = record.file;
            if !record.offset.is_multiple_of(RECORD_ALIGN) {
                return wrong("its offset is not aligned");
            }
            let start = ends[record.file as usize];
            let end = record.offset.checked_add(record.length);
            let Some(end) = end.and_then(|e| e.checked_next_multiple_of(RECORD_ALIGN)) else {
                return wrong("its end overflows");
            };
            if record.offset != start || record.length == 0 {
                return wrong("it does not follow the record before it");
            }
            if end > file.length {
                return wrong("it reaches beyond its pack");
            }
            ends[record.file as usize] = end;
            self.check_parts(number, record)?;
        }
        match self
            .files
            .iter()
            .zip(ends)
            .find(|(file, end)| file.length != *end)
        {
            None => Ok(()),
            Some((file, _)) => Err(TableError::Program {
                operand: file.name.clone(),
                problem: "the records do not fill the pack",
            }),
        }
    }

    fn check_parts(&self, number: usize, record: &RecordEntry) -> Result<(), TableError> {
        let wrong = |problem| {
            Err(TableError::Record {
                record: number,
                problem,
            })
        };
        let mut end = 0u64;
        for part in &self.parts[record.parts.clone()] {
            if end.checked_next_multiple_of(PART_ALIGN) != Some(part.offset) {
                return wrong("a part does not follow the part before it");
            }
            match part.offset.checked_add(part.length) {
                Some(next) if next <= record.length && part.length > 0 => end = next,
                _ => return wrong("a part reaches beyond it"),
            }
        }
        if end == record.length {
            Ok(())
        } else {
            wrong("its parts do not fill it")
        }
    }

    /// Checks that the table stores exactly the operands of `program`: every item of every
    /// operand, in each encoding all items or none, at the size its shape needs.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn check_against(&self, program: &Program) -> Result<(), TableError> {
        let wrong = |name: &str, problem| {
            Err(TableError::Program {
                operand: name.to_owned(),
                problem,
            })
        };
        if self.operands.len() != program.operands.len() {
            return wrong(
                "(all)",
                "table and program have different numbers of operands",
            );
        }
        for (ours, theirs) in self.operands.iter().zip(&program.operands) {
            if ours.name != theirs.name || ours.shape != theirs.shape {
                return wrong(&theirs.name, "table and program differ in name or shape");
            }
        }
        let mut counts = vec![[0usize; Encoding::ALL.len()]; program.operands.len()];
        let mut seen = HashSet::with_capacity(self.parts.len());
        for part in &self.parts {
            let Some(operand) = program.operands.get(part.operand as usize) else {
                return wrong(
                    "(unknown)",
                    "the table stores an operand that does not exist",
                );
            };
            if part.item as usize >= operand.items() {
                return wrong(&operand.name, "an item beyond its shape is stored");
            }
            let bytes = part.encoding.matrix_bytes(operand.rows(), operand.cols());
            if bytes.map(|b| b as u64) != Some(part.length) {
                return wrong(
                    &operand.name,
                    "a stored size is not the size its shape needs",
                );
            }
            if part.encoding.is_tiled() && !operand.role.may_quantise() {
                return wrong(&operand.name, "it may not be stored in a tiled encoding");
            }
            if !seen.insert((part.operand, part.item, part.encoding)) {
                return wrong(&operand.name, "an item is stored twice in one encoding");
            }
            counts[part.operand as usize][encoding_index(part.encoding)] += 1;
        }
        for (operand, counts) in program.operands.iter().zip(counts) {
            if counts.iter().any(|&n| n != 0 && n != operand.items()) {
                return wrong(&operand.name, "some of its items are missing");
            }
            if counts.iter().all(|&n| n == 0) {
                return wrong(&operand.name, "it is not stored");
            }
        }
        Ok(())
    }
}

/// Position of an encoding in [`Encoding::ALL`].
pub(crate) fn encoding_index(encoding: Encoding) -> usize {
    Encoding::ALL
        .iter()
        .position(|&e| e == encoding)
        .unwrap_or(0)
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

/// Reads from the front of a slice; the vectors it fills grow only as bytes are consumed, so a
/// false count cannot allocate.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], TableError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(TableError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TableError> {
        let (head, tail) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(TableError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, TableError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, TableError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn name(&mut self) -> Result<Option<String>, TableError> {
        let length = u16::from_le_bytes(self.array()?);
        Ok(std::str::from_utf8(self.take(usize::from(length))?)
            .ok()
            .map(str::to_owned))
    }
}

fn read_file_entry(cursor: &mut Cursor<'_>) -> Result<PackFile, TableError> {
    let name = cursor
        .name()?
        .ok_or_else(|| TableError::FileName("(not UTF-8)".to_owned()))?;
    Ok(PackFile {
        name,
        length: cursor.u64()?,
    })
}

fn read_operand(cursor: &mut Cursor<'_>, number: usize) -> Result<TableOperand, TableError> {
    let name = cursor.name()?.ok_or(TableError::Operand(number))?;
    let [dims] = cursor.array::<1>()?;
    if usize::from(dims) > MAX_DIMENSIONS {
        return Err(TableError::Operand(number));
    }
    let mut shape = Vec::with_capacity(usize::from(dims));
    for _ in 0..dims {
        let d = usize::try_from(cursor.u64()?).map_err(|_| TableError::Operand(number))?;
        shape.push(d);
    }
    Ok(TableOperand { name, shape })
}

fn read_record(cursor: &mut Cursor<'_>, next: &mut usize) -> Result<RecordEntry, TableError> {
    let (file, offset, length) = (cursor.u32()?, cursor.u64()?, cursor.u64()?);
    let first = *next;
    *next = first
        .checked_add(cursor.u32()? as usize)
        .ok_or(TableError::Truncated)?;
    Ok(RecordEntry {
        file,
        offset,
        length,
        parts: first..*next,
    })
}

fn read_part(cursor: &mut Cursor<'_>, record: u32) -> Result<Part, TableError> {
    let (operand, item) = (cursor.u32()?, cursor.u32()?);
    let [code] = cursor.array::<1>()?;
    let encoding = encoding_from_code(code)?;
    let (offset, length) = (cursor.u64()?, cursor.u64()?);
    Ok(Part {
        record,
        operand,
        item,
        encoding,
        offset,
        length,
        digest: cursor.array()?,
    })
}
