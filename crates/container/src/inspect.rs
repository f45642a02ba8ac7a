//! What a model directory holds, in numbers.

use crate::checkpoint::Checkpoint;
use crate::container::Container;
use crate::error::Error;
use crate::expert::expert_banks;
use crate::store::Store;
use lamella_program::operand::Coding;
use lamella_program::{Encoding, OperandId, Program, Role, Slice};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Parameters of the model, tied ones once.
    pub parameters: u64,
    /// Draft heads.
    pub draft_heads: usize,
    /// Parameters that only the draft heads use.
    pub draft_parameters: u64,
    /// Operands of the program.
    pub operands: usize,
    /// Layers with routed experts, without those of draft heads.
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
    /// How they are stored; for a checkpoint's codes with scales and tables, what they are held
    /// as.
    pub encoding: Encoding,
    /// How a checkpoint stores them where that is not an encoding: `mxfp4`, `i64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coding: Option<String>,
    /// How many operands.
    pub operands: usize,
    /// Their bytes as they are stored, scales included.
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
        // What a checkpoint's codes can be decoded to is not stored.
        let stored = |id| match self.encodings(id) {
            [first, ..] if !self.is_container() => std::slice::from_ref(first),
            all => all,
        };
        let mut summary = summarise(self.program(), &stored, texts);
        if let Some(checkpoint) = self.checkpoint() {
            summary.stored = as_shipped(self, checkpoint);
            summary.bytes = summary.stored.iter().map(|s| s.bytes).sum();
        }
        summary.container = self.is_container();
        summary.identity = self.identity().map(str::to_owned);
        summary.format = self.container().map(|c| c.manifest.version);
        summary
    }
}

type Encodings<'a> = dyn Fn(OperandId) -> &'a [Encoding] + 'a;

/// Adds an operand to the entry it belongs to.
fn add(
    stored: &mut Vec<StoredBytes>,
    role: Role,
    encoding: Encoding,
    coding: Option<String>,
    bytes: u64,
) {
    let same =
        |s: &&mut StoredBytes| s.role == role && s.encoding == encoding && s.coding == coding;
    match stored.iter_mut().find(same) {
        Some(entry) => {
            entry.operands += 1;
            entry.bytes += bytes;
        }
        None => stored.push(StoredBytes {
            role,
            encoding,
            coding,
            operands: 1,
            bytes,
        }),
    }
}

/// What a checkpoint stores, in its own terms.
fn as_shipped(store: &Store, checkpoint: &Checkpoint) -> Vec<StoredBytes> {
    let mut stored = Vec::new();
    for (number, operand) in store.program().operands.iter().enumerate() {
        let slices = || operand.parts.iter().flatten();
        let names: BTreeSet<String> = slices()
            .filter_map(|s| coding_name(s, checkpoint))
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        let coding = (!names.is_empty()).then(|| names.join(" and "));
        let bytes = slices().map(|s| slice_bytes(s, checkpoint)).sum();
        if let Some(&encoding) = store.encodings(OperandId(number as u32)).first() {
            add(&mut stored, operand.role, encoding, coding, bytes);
        }
    }
    stored
}

/// How a slice is stored where its elements are not its numbers.
fn coding_name(slice: &Slice, checkpoint: &Checkpoint) -> Option<String> {
    let dtype = |name: &str| {
        let dtype = checkpoint.find(name).map(|(info, _)| info.dtype.as_str());
        dtype
            .unwrap_or_default()
            .trim_start_matches("F8_")
            .to_lowercase()
    };
    Some(match &slice.coding {
        Some(Coding::BlockFp8 { scale, block }) => {
            let [rows, cols] = block;
            format!("fp8 {rows}x{cols}, {} scales", dtype(scale))
        }
        Some(Coding::TensorFp8 { scale }) => format!("fp8, one {} scale", dtype(scale)),
        Some(Coding::Mxfp4 { .. }) => "mxfp4".to_owned(),
        Some(Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. }) => "nvfp4".to_owned(),
        None => {
            let (info, _) = checkpoint.find(&slice.tensor)?;
            return info.encoding.is_none().then(|| dtype(&slice.tensor));
        }
    })
}

/// Bytes of a slice, with its share of the scales.
fn slice_bytes(slice: &Slice, checkpoint: &Checkpoint) -> u64 {
    let rows = slice
        .tensor_shape
        .iter()
        .rev()
        .skip(1)
        .product::<usize>()
        .max(1);
    let share = |name: &str| {
        let length = checkpoint
            .find(name)
            .map_or(0, |(_, location)| location.length);
        u128::from(length) * slice.rows as u128 / rows as u128
    };
    let scales = slice
        .coding
        .as_ref()
        .map(Coding::scales)
        .unwrap_or_default();
    let total = share(&slice.tensor) + scales.into_iter().map(share).sum::<u128>();
    u64::try_from(total).unwrap_or(u64::MAX)
}

fn summarise<'a>(program: &Program, encodings: &Encodings<'a>, texts: Vec<String>) -> Summary {
    let mut stored: Vec<StoredBytes> = Vec::new();
    for (number, operand) in program.operands.iter().enumerate() {
        for &encoding in encodings(OperandId(number as u32)) {
            let item = encoding
                .matrix_bytes(operand.rows(), operand.cols())
                .unwrap_or(0);
            let bytes = item as u64 * operand.items() as u64;
            add(&mut stored, operand.role, encoding, None, bytes);
        }
    }
    let mut banks = expert_banks(program);
    banks.retain(|bank| bank.layer < program.layers.len());
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
        draft_heads: program.depths().len(),
        draft_parameters: program.draft_parameters(),
        operands: program.operands.len(),
        expert_layers: banks.len(),
        experts: banks.iter().map(|b| b.experts).max().unwrap_or(0),
        expert_bytes,
        bytes: stored.iter().map(|s| s.bytes).sum(),
        stored,
        texts,
    }
}
