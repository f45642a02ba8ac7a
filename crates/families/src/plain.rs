//! The program around the layers of a model with a single stream and nothing special at its ends.

use crate::operands::Operands;
use lamella_program::OperandId;
use lamella_program::block::{Layer, RmsNorm};
use lamella_program::draft::Draft;
use lamella_program::program::{
    Boundary, Dims, Entry, Exit, PROGRAM_VERSION, Program, UnusedComponent,
};

/// What stands before and after the layers.
pub(crate) struct Ends {
    pub(crate) embedding: OperandId,
    pub(crate) norm: RmsNorm,
    /// The embedding itself where the checkpoint ties them.
    pub(crate) head: OperandId,
}

/// The way out of a single stream.
pub(crate) fn exit(norm: RmsNorm, head: OperandId, vocabulary: usize) -> Exit {
    Exit {
        reduction: None,
        norm: Some(norm),
        head,
        logits: vocabulary,
        scale: None,
        soft_cap: None,
    }
}

/// The program of `layers` around a stream of the model's width.
pub(crate) fn program(
    family: &str,
    dims: Dims,
    ends: Ends,
    layers: Vec<Layer>,
    draft: Option<Draft>,
    operands: Operands,
    unused: Vec<UnusedComponent>,
) -> Program {
    Program {
        version: PROGRAM_VERSION,
        family: family.to_owned(),
        boundary: Boundary {
            state_schema: format!("{family}/stream.v1"),
            width: dims.hidden,
            needs_token_ids: false,
        },
        entry: Entry {
            embedding: ends.embedding,
            scale: None,
            norm: None,
            per_layer_embeddings: Vec::new(),
        },
        layers,
        exit: exit(ends.norm, ends.head, dims.vocabulary),
        draft,
        dims,
        operands: operands.finish(),
        unused,
    }
}
