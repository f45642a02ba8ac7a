//! What can go wrong in the engine, each with what to do about it.

use lamella_program::Encoding;
use std::path::PathBuf;

/// An engine failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's files could not be opened or read.
    #[error(transparent)]
    Container(#[from] lamella_container::Error),
    /// An expert that is not in memory cannot be had. The conversation is as it was before the
    /// step, which may be tried again.
    #[error("expert {expert} of layer {layer}: {cause}")]
    Expert {
        /// The layer, the draft's counted behind the others.
        layer: usize,
        /// Its number within the layer.
        expert: usize,
        /// Which file, where in it, and what is wrong.
        cause: Box<Error>,
    },
    /// A thread of the engine ended where it should not have.
    #[error("a thread stopped while it was {doing}; this is a defect of Lamella, please report it")]
    Stopped {
        /// What it was at.
        doing: &'static str,
    },
    /// An operand cannot be encoded or decoded.
    #[error("operand {operand}: {cause}")]
    Codec {
        /// The operand, and which of its items where there are several.
        operand: String,
        /// What is wrong with its numbers.
        cause: lamella_container::CodecError,
    },
    /// A wanted encoding cannot be had from this model under the given source policy.
    #[error("operand {operand}: {want} is not available: {reason}")]
    EncodingUnavailable {
        /// The operand.
        operand: String,
        /// The wanted encoding.
        want: Encoding,
        /// Why, and what to do.
        reason: String,
    },
    /// Two operands that are computed together are stored in encodings that have none in common.
    #[error(
        "operands {first} ({}) and {second} ({}) are computed together and need one encoding; \
         convert the checkpoint again",
        encodings[0],
        encodings[1]
    )]
    Unpaired {
        /// One of them.
        first: String,
        /// The other one.
        second: String,
        /// What they would be held in.
        encodings: [Encoding; 2],
    },
    /// The model needs more memory than it may take.
    #[error("not enough memory: {sum}; the limit is {limit} bytes ({origin}). {advice}")]
    Memory {
        /// The sum that does not fit, spelled out.
        sum: String,
        /// The limit in bytes.
        limit: u64,
        /// Where the limit comes from.
        origin: String,
        /// What would make it fit.
        advice: String,
    },
    /// The operating system refused memory.
    #[error("the system refused {bytes} bytes of memory: {cause}")]
    Allocation {
        /// Bytes asked for.
        bytes: usize,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The operating system refused threads.
    #[error(
        "the system refused threads, {wanted} are wanted: {cause}; ask for fewer threads, or raise \
         this process's limits (ulimit -u, ulimit -v, pids.max of its control group)"
    )]
    Threads {
        /// Threads that compute, the caller of a step among them.
        wanted: usize,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The instruction set asked for does not exist on this processor.
    #[error("this processor has no {isa}; it has {available}")]
    Isa {
        /// What was asked for.
        isa: String,
        /// What there is.
        available: String,
    },
    /// A setting is outside its range.
    #[error("{name}: {message}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A token id outside the model's vocabulary.
    #[error("token id {id} at index {index} is outside the vocabulary of {vocabulary}")]
    TokenRange {
        /// The bad id.
        id: u32,
        /// Its index among the tokens given.
        index: usize,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// The conversation would outgrow its context.
    #[error(
        "the context is full: {position} tokens are there, {tokens} more do not fit into {context}"
    )]
    ContextLength {
        /// Tokens already in the session.
        position: usize,
        /// Tokens that were to be added.
        tokens: usize,
        /// The limit.
        context: usize,
    },
    /// A step without tokens.
    #[error("a span needs at least one token")]
    EmptySpan,
    /// A session was used with a model that did not make it.
    #[error("the session belongs to another model")]
    ForeignSession,
    /// A rollback beyond what the session holds.
    #[error("cannot roll back to {wanted} tokens: the session has {position}")]
    Rollback {
        /// Where it was to go.
        wanted: usize,
        /// Where it is.
        position: usize,
    },
    /// A table of the model holds numbers that cannot be meant.
    #[error("operand {operand}: {message}; the checkpoint is damaged, fetch it again")]
    Table {
        /// The operand.
        operand: String,
        /// What it holds.
        message: String,
    },
    /// A rollback that the model's state does not allow.
    #[error(
        "cannot go back from {position} to {wanted} tokens: the model's state overwrites itself; \
         restore a checkpoint, or start the conversation again"
    )]
    Irreversible {
        /// Where it was to go.
        wanted: usize,
        /// Where it is.
        position: usize,
    },
    /// The step was cancelled; every session is as it was.
    #[error("cancelled")]
    Cancelled,
    /// A computation left the finite numbers.
    #[error("non-finite values {place}; the weights or the input are damaged, nothing was sampled")]
    NonFinite {
        /// Where they were first seen: `after layer 7`, `in the logits`.
        place: String,
    },
    /// Activations given for a layer range have the wrong size.
    #[error("{rows} rows of {width} values were expected, {values} values came")]
    Activations {
        /// Rows expected.
        rows: usize,
        /// Values per row.
        width: usize,
        /// Values given.
        values: usize,
    },
    /// A row that came from another node cannot be one.
    #[error("row {row} names positions that it cannot see; it was damaged on its way")]
    Rows {
        /// Index among the rows given.
        row: usize,
    },
    /// Only a part of the model is open, and this needs another one.
    #[error("this needs {needs} of the model, and {open} is open here")]
    Part {
        /// What it needs.
        needs: &'static str,
        /// What there is.
        open: String,
    },
    /// A draft head was asked for that there is not.
    #[error("no draft head: {reason}")]
    NoDraft {
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A conversation could not be written or restored.
    #[error(transparent)]
    Snapshot(#[from] crate::state::snapshot::SnapshotError),
    /// A text file of the model is unusable.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

impl Error {
    /// The allocator has no `bytes` bytes. Saying so takes no memory.
    pub(crate) fn refused(bytes: usize) -> Error {
        Error::Allocation {
            bytes,
            cause: std::io::ErrorKind::OutOfMemory.into(),
        }
    }
}
