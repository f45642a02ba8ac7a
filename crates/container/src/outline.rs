//! A model without its bytes: what configuration and tensor table alone tell, so that one can plan
//! before downloading.

use crate::checkpoint::{Checkpoint, check_directory};
use crate::disk;
use crate::error::Error;
use crate::manifest::MANIFEST_FILE;
use crate::safetensors::{Header, MAX_HEADER_BYTES, Tensor, tensor_bytes};
use crate::source::locate_all;
use crate::store::{Lower, Store};
use lamella_program::closure::{check_against, draft_operands};
use lamella_program::encoding::Policy;
use lamella_program::{Encoding, OperandId, Program};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The tensor table beside a `config.json` whose weights are not there.
pub const TENSORS_FILE: &str = "tensors.json";

/// What is stored of a model: its program, and the encodings each operand can be read in.
pub trait Stored {
    /// The program.
    fn program(&self) -> &Program;
    /// As [`Store::encodings`].
    fn encodings(&self, operand: OperandId) -> &[Encoding];
}

impl Stored for Store {
    fn program(&self) -> &Program {
        Store::program(self)
    }

    fn encodings(&self, operand: OperandId) -> &[Encoding] {
        Store::encodings(self, operand)
    }
}

/// A model as far as it can be known without a byte of its weights.
#[derive(Clone, Debug)]
pub struct Outline {
    program: Program,
    /// Of each operand.
    encodings: Vec<Vec<Encoding>>,
}

impl Stored for Outline {
    fn program(&self) -> &Program {
        &self.program
    }

    fn encodings(&self, operand: OperandId) -> &[Encoding] {
        self.encodings
            .get(operand.index())
            .map_or(&[], Vec::as_slice)
    }
}

impl Outline {
    /// The outline of a model that is there.
    #[must_use]
    pub fn of(stored: &impl Stored) -> Outline {
        let program = stored.program().clone();
        let ids = (0..program.operands.len()).map(|number| OperandId(number as u32));
        let encodings = ids.map(|id| stored.encodings(id).to_vec()).collect();
        Outline { program, encodings }
    }

    /// Whether the directory `path` has to be opened as an outline: it is no container, has a
    /// `config.json`, and no weights but perhaps a [`TENSORS_FILE`] or the heads of weights files.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn is_all_there_is(path: &Path) -> Result<bool, Error> {
        check_directory(path)?;
        if path.join(MANIFEST_FILE).exists() || !path.join("config.json").is_file() {
            return Ok(false);
        }
        match path.join(TENSORS_FILE).is_file() {
            true => Ok(true),
            false => Checkpoint::is_cut_off(path),
        }
    }

    /// Reads `config.json` in `dir` and the tensor table: of `tables`, if there are any, otherwise
    /// of [`TENSORS_FILE`] in `dir`, otherwise of the heads of the weights files there. A table is
    /// a JSON list of objects `name`, `dtype`, `shape`, or the header of a safetensors file.
    ///
    /// # Errors
    /// If a file is missing, damaged or no such table, naming it; all defects of the program.
    pub fn read(dir: &Path, tables: &[PathBuf], lower: &Lower<'_>) -> Result<Outline, Error> {
        check_directory(dir)?;
        let config = disk::read_text(&dir.join("config.json"))?
            .ok_or_else(|| Error::NoConfig(dir.to_owned()))?;
        let own = dir.join(TENSORS_FILE);
        let tables = match tables {
            [] if own.is_file() => std::slice::from_ref(&own),
            given => given,
        };
        let checkpoint = match tables {
            [] => Checkpoint::heads(dir, config)?,
            tables => {
                let read = tables.iter().map(|path| Ok((path.clone(), table(path)?)));
                let files = read.collect::<Result<Vec<_>, Error>>()?;
                Checkpoint::of_tables(dir, config, files)?
            }
        };
        Outline::lowered(dir, &checkpoint, lower)
    }

    fn lowered(dir: &Path, checkpoint: &Checkpoint, lower: &Lower<'_>) -> Result<Outline, Error> {
        let refuse = |defects| Error::Defects {
            path: dir.to_owned(),
            defects,
        };
        let mut program = lower(checkpoint.config(), checkpoint.tensors()).map_err(refuse)?;
        let defects = check_against(&program, checkpoint.tensors());
        if !defects.is_empty() {
            return Err(refuse(defects));
        }
        let sources = locate_all(&program, checkpoint)?;
        // What they hold cannot be compared with what the program says.
        for embedding in &mut program.entry.per_layer_embeddings {
            embedding.stored = None;
        }
        let encodings = sources.into_iter().map(|source| source.encodings).collect();
        Ok(Outline { program, encodings })
    }

    /// The same, without the places that operands come from, which are most of a large program:
    /// what is planned many times copies it many times.
    #[must_use]
    pub fn without_parts(mut self) -> Outline {
        for operand in &mut self.program.operands {
            operand.parts = Vec::new();
        }
        self
    }

    /// The outline of the container that conversion to `encoding` would make.
    #[must_use]
    pub fn converted(&self, encoding: Encoding) -> Outline {
        let draft = draft_operands(&self.program);
        let operands = self.program.operands.iter().enumerate();
        let stored = |(number, operand): (usize, &lamella_program::Operand)| {
            let id = OperandId(number as u32);
            let stored = self.encodings(id);
            let want = encoding.given(stored);
            let policy = match draft.contains(&id) {
                true => Policy::draft(want),
                false => Policy::uniform(want),
            };
            vec![policy.encoding(operand.role).unwrap_or(Encoding::F32)]
        };
        Outline {
            encodings: operands.map(stored).collect(),
            program: self.program.clone(),
        }
    }
}

/// A line of a tensor table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

/// The tensors of the table in `path`, laid out one behind the other.
fn table(path: &Path) -> Result<Vec<Tensor>, Error> {
    let json = disk::read_file(path, MAX_HEADER_BYTES)?;
    let json = json.ok_or_else(|| Error::NotFound(path.to_owned()))?;
    let wrap = |cause| Error::Header {
        path: path.to_owned(),
        cause,
    };
    let first = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'[') {
        return Ok(Header::parse_alone(&json).map_err(wrap)?.tensors);
    }
    let lines: Vec<Line> = serde_json::from_slice(&json).map_err(|cause| Error::TensorTable {
        path: path.to_owned(),
        cause: cause.to_string(),
    })?;
    let (mut tensors, mut offset) = (Vec::with_capacity(lines.len()), 0u64);
    for Line { name, dtype, shape } in lines {
        let length = tensor_bytes(&name, &dtype, &shape).map_err(wrap)?;
        tensors.push(Tensor {
            name,
            dtype,
            shape,
            offset,
            length,
        });
        offset = offset.saturating_add(length);
    }
    Ok(tensors)
}
