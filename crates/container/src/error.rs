//! What can go wrong with bytes at rest. Every message is one line that names the file and says
//! what to do where something can be done.

use crate::codec::CodecError;
use crate::manifest::ManifestError;
use crate::safetensors::HeaderError;
use crate::shard_index::IndexError;
use crate::table::TableError;
use lamella_program::{Defect, Encoding};
use std::path::{Path, PathBuf};

/// A failure to read, write or trust a model's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{path}: cannot {action}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: `read`, `create`.
        action: &'static str,
        /// The operating system's answer.
        cause: std::io::Error,
    },
    /// Nothing is there.
    #[error("{0}: no such file or directory")]
    NotFound(PathBuf),
    /// A file was given where a model directory is needed.
    #[error("{0}: not a directory; give the directory that holds the model")]
    NotADirectory(PathBuf),
    /// A directory, pipe or device stands where a file is needed.
    #[error("{0}: not a regular file")]
    NotAFile(PathBuf),
    /// Neither a checkpoint nor a container.
    #[error("{0}: no config.json and no lamella.json; not a model directory")]
    NoConfig(PathBuf),
    /// A checkpoint without safetensors weights.
    #[error("{dir}: no safetensors weights{found}")]
    NoWeights {
        /// The directory.
        dir: PathBuf,
        /// What was found instead, starting with `; `, or nothing.
        found: String,
    },
    /// A conversion that has not finished.
    #[error("{0}: an unfinished conversion; run the same convert again to resume it")]
    Unfinished(PathBuf),
    /// A container without its manifest.
    #[error(
        "{0}: program.json and operands.bin of a container, but no lamella.json: the copy is \
         incomplete; copy the container again, or convert the checkpoint again"
    )]
    NoManifest(PathBuf),
    /// A file that the container records is not there.
    #[error("{0}: no such file, but the container records it; the copy is incomplete")]
    Absent(PathBuf),
    /// A file larger than anything sensible.
    #[error("{path}: {length} bytes; more than the {limit} this file may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        length: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A small text file that is no text.
    #[error("{path}: {problem}")]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// A safetensors file that cannot be trusted.
    #[error("{path}: {cause}")]
    Header {
        /// The weights file.
        path: PathBuf,
        /// What is wrong.
        cause: HeaderError,
    },
    /// A tensor table that is none.
    #[error("{path}: not a tensor table, a list of objects name, dtype and shape: {cause}")]
    TensorTable {
        /// The file.
        path: PathBuf,
        /// What the JSON reader says.
        cause: String,
    },
    /// The weights themselves are not there.
    #[error("{0}: the weights are not there, only the table of their tensors")]
    OutlineOnly(PathBuf),
    /// A weights file with a good header that was never filled.
    #[error("{path}: zero bytes from about {offset} on: the download is unfinished")]
    ZeroStretch {
        /// The weights file.
        path: PathBuf,
        /// About where they begin.
        offset: u64,
    },
    /// A damaged shard index.
    #[error("{path}: {cause}")]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong.
        cause: IndexError,
    },
    /// Shards that the index names are not there.
    #[error("{dir}: missing {}; the download is unfinished", list(shards))]
    MissingShards {
        /// The checkpoint.
        dir: PathBuf,
        /// The absent files.
        shards: Vec<String>,
    },
    /// Several weight files, and nothing that says which belong.
    #[error("{dir}: {count} safetensors files but no model.safetensors.index.json")]
    NoIndex {
        /// The checkpoint.
        dir: PathBuf,
        /// Weight files found.
        count: usize,
    },
    /// The index places a tensor in a shard that has no such tensor.
    #[error("{path}: no tensor {tensor}, which the index places in this shard")]
    ShardLacksTensor {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A shard holds a tensor the index does not know.
    #[error("{path}: tensor {tensor} is not in model.safetensors.index.json")]
    NotIndexed {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor was asked for that the checkpoint does not have.
    #[error("{dir}: no tensor {tensor}")]
    NoTensor {
        /// The checkpoint.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that an operand cannot be read from.
    #[error("{dir}: operand {operand}, tensor {tensor}: {fault}")]
    Unreadable {
        /// The checkpoint.
        dir: PathBuf,
        /// The operand.
        operand: String,
        /// The tensor, or one of its scales.
        tensor: String,
        /// What is wrong.
        fault: String,
    },
    /// A code, scale or integer that stands for no usable number.
    #[error("{path}: tensor {tensor}, row {row}, column {column}: {problem}")]
    Number {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Row of the tensor seen as a matrix.
        row: u64,
        /// Column of the number (FP4: two in a byte).
        column: usize,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A tensor stands in two shards.
    #[error("{path}: tensor {tensor} is also in {first}; which one is meant is unknown")]
    DuplicateTensor {
        /// The second shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first shard's name.
        first: String,
    },
    /// The model needs something that is not there, or has something that nothing uses.
    #[error("{path}: {}", defect_list(defects))]
    Defects {
        /// The model directory or its `program.json`.
        path: PathBuf,
        /// All of them.
        defects: Vec<Defect>,
    },
    /// A container's `program.json` that cannot be read.
    #[error("{path}: not a program: {problem}")]
    Program {
        /// The file.
        path: PathBuf,
        /// What the JSON reader says.
        problem: String,
    },
    /// A damaged or foreign `lamella.json`.
    #[error("{path}: {cause}")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        cause: ManifestError,
    },
    /// A damaged operand table.
    #[error("{path}: {cause}")]
    Table {
        /// The table file.
        path: PathBuf,
        /// What is wrong.
        cause: TableError,
    },
    /// A file of the container has another length than recorded.
    #[error("{path}: {found} bytes, but the container records {expected}")]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The recorded length.
        expected: u64,
    },
    /// A file of the container does not have the recorded digest.
    #[error("{path}: damaged: its BLAKE3 digest is not the recorded one")]
    FileDigest {
        /// The file.
        path: PathBuf,
    },
    /// A stored operand does not have the recorded digest.
    #[error(
        "{path}: operand {operand}, item {item} ({encoding}), {length} bytes at {offset}: damaged: \
         the BLAKE3 digest is not the recorded one"
    )]
    OperandDigest {
        /// The pack file.
        path: PathBuf,
        /// The operand's name.
        operand: String,
        /// Expert number, 0 where nothing is stacked.
        item: usize,
        /// The encoding read.
        encoding: Encoding,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The bytes between stored operands are zero; these are not.
    #[error("{path}: damaged: the padding at {offset} is not zero")]
    Padding {
        /// The pack file.
        path: PathBuf,
        /// First byte that is not zero.
        offset: u64,
    },
    /// An operand was asked for in an encoding that is not stored.
    #[error("operand {operand}, item {item}: not stored as {encoding}")]
    NotStored {
        /// The operand's name, or its number if there is no such operand.
        operand: String,
        /// Expert number.
        item: usize,
        /// The encoding asked for.
        encoding: Encoding,
    },
    /// A caller's buffer or row range does not fit the operand.
    #[error("operand {operand}: a buffer of {found} bytes for {expected}")]
    Buffer {
        /// The operand's name.
        operand: String,
        /// Length given.
        found: usize,
        /// Length needed.
        expected: usize,
    },
    /// Weights that cannot be converted.
    #[error("operand {operand}, item {item} (from {origin}): {cause}")]
    Weights {
        /// The operand's name.
        operand: String,
        /// Expert number.
        item: usize,
        /// The tensors it comes from.
        origin: String,
        /// What is wrong with them.
        cause: CodecError,
    },
    /// The conversion failed for a reason of its own.
    #[error(transparent)]
    Convert(#[from] crate::convert::ConvertError),
}

impl Error {
    /// An I/O failure on `path`, with the plain word for an absent file.
    pub(crate) fn io(path: &Path, action: &'static str, cause: std::io::Error) -> Error {
        if cause.kind() == std::io::ErrorKind::NotFound {
            return Error::NotFound(path.to_owned());
        }
        Error::Io {
            path: path.to_owned(),
            action,
            cause,
        }
    }
}

/// `a, b and 3 more`.
fn list<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    let mut text = shown.join("; ");
    if items.len() > SHOWN {
        text.push_str(&format!(" and {} more", items.len() - SHOWN));
    }
    text
}

fn defect_list(defects: &[Defect]) -> String {
    match defects.len() {
        1 => list(defects),
        n => format!("{n} defects: {}", list(defects)),
    }
}
