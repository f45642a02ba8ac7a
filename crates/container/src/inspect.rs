//! What a model directory holds, in numbers.

use crate::container::Container;
use crate::error::Error;
use crate::expert::expert_banks;
use crate::store::Store;
use lamella_program::{Encoding, Program, Role};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A model in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Whether it is a container (or a checkpoint as it came).
    pub container: bool,
    /// Root of the container's digest tree.
    pub identity: Option<String>,
    /// Format version of the container.
    pub format: Option<u32>,
    /// The program's family.
    pub family: String,
    /// Layers.
    pub layers: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Longest context, in tokens.
    pub context: usize,
    /// Parameters, tied ones once.
    pub parameters: u64,
    /// Operands of the program.
    pub operands: usize,
    /// Layers with routed experts.
    pub expert_layers: usize,
    /// Routed experts in a layer; the largest number where layers differ.
    pub experts: usize,
    /// Bytes of one expert by encoding, where all banks agree in shape the first one's.
    pub expert_bytes: BTreeMap<String, u64>,
    /// Stored bytes by role and encoding.
    pub stored: Vec<StoredBytes>,
    /// Stored bytes in all, without padding.
    pub bytes: u64,
    /// Text files.
    pub texts: Vec<String>,
}

/// Bytes of one role in one encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoredBytes {
    /// What the operands are for.
    pub role: Role,
    /// How they are stored.
    pub encoding: Encoding,
    /// How many operands.
    pub operands: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Summarises the container in `dir`, without reading its packs.
///
/// # Errors
/// If it does not open.
pub fn inspect(dir: &Path) -> Result<Summary, Error> {
    let container = Container::open(dir)?;
    let texts = container
        .manifest
        .texts
        .iter()
        .map(|t| t.file.clone())
        .collect();
    let mut summary = summarise(&container.program, &|id| container.encodings(id), texts);
    summary.container = true;
    summary.identity = Some(container.manifest.identity);
    summary.format = Some(container.manifest.version);
    Ok(summary)
}

impl Store {
    /// The model in numbers.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let texts = self.text_names();
        let mut summary = summarise(self.program(), &|id| self.encodings(id), texts);
        summary.container = self.is_container();
        summary.identity = self.identity().map(str::to_owned);
        summary.format = self.container().map(|c| c.manifest.version);
        summary
    }
}

type Encodings<'a> = dyn Fn(lamella_program::OperandId) -> &'a [Encoding] + 'a;

fn summarise<'a>(program: &Program, encodings: &Encodings<'a>, texts: Vec<String>) -> Summary {
    let mut stored: Vec<StoredBytes> = Vec::new();
    for (number, operand) in program.operands.iter().enumerate() {
        for &encoding in encodings(lamella_program::OperandId(number as u32)) {
            let item = encoding
                .matrix_bytes(operand.rows(), operand.cols())
                .unwrap_or(0);
            let bytes = item as u64 * operand.items() as u64;
            let same = |s: &&mut StoredBytes| s.role == operand.role && s.encoding == encoding;
            match stored.iter_mut().find(same) {
                Some(entry) => {
                    entry.operands += 1;
                    entry.bytes += bytes;
                }
                None => {
                    stored.push(StoredBytes {
                        role: operand.role,
                        encoding,
                        operands: 1,
                        bytes,
                    });
                }
            }
        }
    }
    let banks = expert_banks(program);
    let mut expert_bytes = BTreeMap::new();
    if let Some(bank) = banks.first() {
        for &encoding in encodings(bank.gate) {
            let layout = crate::expert::expert_layout(program, bank, encoding);
            expert_bytes.extend(layout.map(|l| (encoding.name().to_owned(), l.length as u64)));
        }
    }
    Summary {
        container: false,
        identity: None,
        format: None,
        family: program.family.clone(),
        layers: program.layers.len(),
        hidden: program.dims.hidden,
        vocabulary: program.dims.vocabulary,
        context: program.dims.context,
        parameters: program.parameters(),
        operands: program.operands.len(),
        expert_layers: banks.len(),
        experts: banks.iter().map(|b| b.experts).max().unwrap_or(0),
        expert_bytes,
        bytes: stored.iter().map(|s| s.bytes).sum(),
        stored,
        texts,
    }
}
