//! What a model computes, as data.
//!
//! A checkpoint is lowered once to a [`Program`]: operations of a closed vocabulary over named
//! operands. After that nothing asks which family it is. This crate holds the vocabulary
//! ([`block`], [`draft`]), the operands ([`operand`]) and their encodings ([`encoding`]), the
//! declared continuation state ([`state`]) and the [`closure`] check. It does no I/O and no
//! arithmetic on weights.

pub mod block;
pub mod closure;
pub mod draft;
pub mod encoding;
pub mod ffn;
pub mod mixer;
pub mod operand;
pub mod part;
pub mod program;
pub mod state;

pub use closure::{Defect, TensorInfo};
pub use encoding::Encoding;
pub use operand::{Operand, OperandId, Role, Slice};
pub use part::Part;
pub use program::Program;
