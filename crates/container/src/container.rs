//! An opened container: manifest, program and operand table read and checked, packs read on demand.

use crate::checkpoint::check_directory;
use crate::disk::{self, DataFile};
use crate::error::Error;
use crate::manifest::{FileEntry, MANIFEST_FILE, MAX_MANIFEST_BYTES, MAX_TABLE_BYTES, Manifest};
use crate::table::{Part, Table, encoding_index};
use lamella_program::{Encoding, OperandId, Program, closure};
use std::path::{Path, PathBuf};

/// An opened container directory.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) table: Table,
    pub(crate) program: Program,
    files: Vec<Pack>,
    lookup: Lookup,
}

/// A pack of the table.
#[derive(Debug)]
enum Pack {
    Open(DataFile),
    /// It cannot be read: absent, or not as long as recorded.
    Unusable(PathBuf),
}

impl Container {
    /// Opens a container: everything but the packs' content is checked against its digest.
    pub(crate) fn open(dir: &Path) -> Result<Container, Error> {
        let (container, faults) = Container::open_damaged(dir)?;
        match faults.into_iter().next() {
            None => Ok(container),
            Some(fault) => Err(fault),
        }
    }

    /// Opens a container some of whose packs may be unusable; says what is wrong with these.
    pub(crate) fn open_damaged(dir: &Path) -> Result<(Container, Vec<Error>), Error> {
        check_directory(dir)?;
        let path = dir.join(MANIFEST_FILE);
        let json = disk::read_file(&path, MAX_MANIFEST_BYTES)?
            .ok_or_else(|| Error::NotFound(path.clone()))?;
        let manifest = Manifest::parse(&json).map_err(|cause| Error::Manifest { path, cause })?;

        let json = read_entry(dir, &manifest.program, MAX_TABLE_BYTES)?;
        let path = dir.join(&manifest.program.file);
        let program = parse_program(&json).map_err(|problem| Error::Program {
            path: path.clone(),
            problem,
        })?;
        let defects = closure::check(&program);
        if !defects.is_empty() {
            return Err(Error::Defects { path, defects });
        }

        let bytes = read_entry(dir, &manifest.operands, MAX_TABLE_BYTES)?;
        let table = Table::parse(&bytes)
            .and_then(|table| table.check_against(&program).map(|()| table))
            .map_err(|cause| Error::Table {
                path: dir.join(&manifest.operands.file),
                cause,
            })?;
        let mut files = Vec::with_capacity(table.files.len());
        let mut faults = Vec::new();
        for pack in &table.files {
            let path = dir.join(&pack.name);
            files.push(match open_pack(&path, pack.length) {
                Ok(file) => Pack::Open(file),
                Err(fault) => {
                    faults.push(fault);
                    Pack::Unusable(path)
                }
            });
        }
        let lookup = Lookup::new(&table, &program);
        let container = Container {
            dir: dir.to_owned(),
            manifest,
            table,
            program,
            files,
            lookup,
        };
        Ok((container, faults))
    }

    /// Encodings an operand is stored in, canonical ones first.
    pub(crate) fn encodings(&self, operand: OperandId) -> &[Encoding] {
        self.lookup
            .encodings
            .get(operand.index())
            .map_or(&[], Vec::as_slice)
    }

    /// The stored part, if there is one.
    pub(crate) fn part(
        &self,
        operand: OperandId,
        encoding: Encoding,
        item: usize,
    ) -> Option<&Part> {
        let items = &self.lookup.parts.get(operand.index())?[encoding_index(encoding)];
        self.table.parts.get(*items.get(item)? as usize)
    }

    /// Pack and first byte of a part.
    pub(crate) fn place(&self, part: &Part) -> Result<(&DataFile, u64), Error> {
        let record = &self.table.records[part.record as usize];
        match &self.files[record.file as usize] {
            Pack::Open(file) => Ok((file, record.offset + part.offset)),
            Pack::Unusable(path) => Err(Error::Absent(path.clone())),
        }
    }

    /// Reads a part and checks its digest.
    pub(crate) fn read(&self, part: &Part, buffer: &mut [u8]) -> Result<(), Error> {
        let (file, offset) = self.place(part)?;
        file.read_at(buffer, offset)?;
        self.check(part, buffer)
    }

    /// Checks bytes that were read for `part` against its digest.
    pub(crate) fn check(&self, part: &Part, bytes: &[u8]) -> Result<(), Error> {
        if blake3::hash(bytes).as_bytes() == &part.digest {
            return Ok(());
        }
        Err(self.damaged(part))
    }

    /// The error that says `part` is not what was written.
    pub(crate) fn damaged(&self, part: &Part) -> Error {
        let record = &self.table.records[part.record as usize];
        Error::OperandDigest {
            path: match &self.files[record.file as usize] {
                Pack::Open(file) => file.path.clone(),
                Pack::Unusable(path) => path.clone(),
            },
            operand: self.program.operands[part.operand as usize].name.clone(),
            item: part.item as usize,
            encoding: part.encoding,
            offset: record.offset + part.offset,
            length: part.length,
        }
    }

    /// Pack number `file`, if it is usable.
    pub(crate) fn file(&self, file: u32) -> Option<&DataFile> {
        match self.files.get(file as usize)? {
            Pack::Open(file) => Some(file),
            Pack::Unusable(_) => None,
        }
    }

    /// The content of a listed text, checked.
    pub(crate) fn read_text(&self, name: &str) -> Result<Option<String>, Error> {
        let Some(entry) = self.manifest.texts.iter().find(|e| e.file == name) else {
            return Ok(None);
        };
        let bytes = read_entry(&self.dir, entry, disk::MAX_TEXT_BYTES)?;
        disk::text(&self.dir.join(name), bytes).map(Some)
    }
}

/// Reads a file of the manifest and checks its digest.
pub(crate) fn read_entry(dir: &Path, entry: &FileEntry, limit: u64) -> Result<Vec<u8>, Error> {
    let path = dir.join(&entry.file);
    let bytes = disk::read_file(&path, limit)?.ok_or_else(|| Error::Absent(path.clone()))?;
    check_length(&path, bytes.len() as u64, entry.length)?;
    if entry.fits(&bytes) {
        Ok(bytes)
    } else {
        Err(Error::FileDigest { path })
    }
}

fn open_pack(path: &Path, length: u64) -> Result<DataFile, Error> {
    let mut file = match DataFile::open(path.to_owned()) {
        Err(Error::NotFound(path)) => return Err(Error::Absent(path)),
        other => other?,
    };
    check_length(path, file.length, length)?;
    file.open_direct();
    Ok(file)
}

fn check_length(path: &Path, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::FileLength {
        path: path.to_owned(),
        found,
        expected,
    })
}

/// Reads the text of a `program.json`. The result is not yet checked for closure.
///
/// # Errors
/// What the JSON reader says, or that there is no such version.
pub fn parse_program(json: &[u8]) -> Result<Program, String> {
    let program: Program = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    // Newer ones are refused by the check for closure, older ones than the first never existed.
    if program.version == 0 {
        return Err("its version is 0; the first is 1".to_owned());
    }
    Ok(program)
}

/// From operand, encoding and item to the part, without a search.
#[derive(Debug)]
struct Lookup {
    encodings: Vec<Vec<Encoding>>,
    parts: Vec<[Vec<u32>; Encoding::ALL.len()]>,
}

impl Lookup {
    /// `table` has been checked against `program`: items are complete.
    fn new(table: &Table, program: &Program) -> Lookup {
        let mut parts = vec![<[Vec<u32>; Encoding::ALL.len()]>::default(); program.operands.len()];
        for (number, part) in table.parts.iter().enumerate() {
            let operand = part.operand as usize;
            let items = &mut parts[operand][encoding_index(part.encoding)];
            if items.is_empty() {
                items.resize(program.operands[operand].items(), 0);
            }
            items[part.item as usize] = number as u32;
        }
        let stored = |by_encoding: &[Vec<u32>; Encoding::ALL.len()]| {
            let pairs = Encoding::ALL.into_iter().zip(by_encoding);
            pairs
                .filter(|(_, items)| !items.is_empty())
                .map(|(e, _)| e)
                .collect()
        };
        Lookup {
            encodings: parts.iter().map(stored).collect(),
            parts,
        }
    }
}
