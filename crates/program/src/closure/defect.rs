//! What can be wrong with a program, in words that say what to change.

use crate::operand::Role;
use crate::program::PROGRAM_VERSION;

/// Something that keeps a program from opening.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// No operand takes its numbers from this tensor.
    #[error("tensor {0}: no operation uses it")]
    UnclaimedTensor(String),
    /// An operand needs a tensor the checkpoint lacks.
    #[error("tensor {tensor}: missing from the checkpoint (needed for {operand})")]
    MissingTensor {
        /// The absent tensor.
        tensor: String,
        /// The operand that needs it.
        operand: String,
    },
    /// A numbered part of which the checkpoint has nothing, though it has others of its kind.
    #[error("tensors {part}*: all of them are missing from the checkpoint")]
    MissingPart {
        /// What the names of its tensors start with, up to the dot behind the number.
        part: String,
    },
    /// A numbered part that no operand takes anything from.
    #[error("tensors {part}*: no operation uses any of these {count}")]
    UnclaimedPart {
        /// What the names of its tensors start with, up to the dot behind the number.
        part: String,
        /// How many tensors the checkpoint has of it.
        count: usize,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor {tensor}: shape {found:?}, but the configuration needs {expected:?}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape the program needs.
        expected: Vec<usize>,
    },
    /// A tensor's element type cannot be used.
    #[error("tensor {tensor}: element type {dtype} is not supported")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// The type as the file spells it.
        dtype: String,
    },
    /// A constant of the model is another in the checkpoint than the configuration gives.
    #[error(
        "tensor {tensor}: number {index} is {found}, but the configuration gives {expected}; \
         one of the two belongs to another model"
    )]
    StoredConstant {
        /// The tensor.
        tensor: String,
        /// The first place where they differ, from 0.
        index: usize,
        /// What is stored.
        found: i64,
        /// What the program says.
        expected: u64,
    },
    /// The parts of an operand are stored in different codings, or some in codes and some not.
    #[error("operand {operand}: tensor {tensor} holds {second}, but those before it {first}")]
    MixedTypes {
        /// The operand.
        operand: String,
        /// The first tensor that differs.
        tensor: String,
        /// Coding of its first slice; `numbers` where they are not coded.
        first: String,
        /// The coding that differs.
        second: String,
    },
    /// A configuration key that no operation expresses.
    #[error("config.json: key {0} is not expressed by any operation of this family")]
    UnknownConfigKey(String),
    /// A configuration value that cannot be used.
    #[error("config.json: {key}: {message}")]
    ConfigValue {
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// An operand's shape does not fit the block that uses it.
    #[error("{place}: operand {operand} has shape {found:?}, needs {expected:?}")]
    OperandShape {
        /// Which block.
        place: String,
        /// The operand.
        operand: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the block needs.
        expected: Vec<usize>,
    },
    /// An operand's role does not fit the block that uses it: it would be stored in a form that
    /// the block cannot read.
    #[error("{place}: operand {operand} has role {found:?}, needs {expected}")]
    OperandRole {
        /// Which block.
        place: String,
        /// The operand.
        operand: String,
        /// Its role.
        found: Role,
        /// The roles that fit.
        expected: &'static str,
    },
    /// A block names an operand that is not in the table.
    #[error("{place}: operand number {id} does not exist")]
    DanglingOperand {
        /// Which block.
        place: String,
        /// The bad index.
        id: u32,
    },
    /// An operand that no block uses.
    #[error("operand {0}: no block uses it")]
    UnusedOperand(String),
    /// Two operands with one name.
    #[error("operand {0}: the name is used twice")]
    DuplicateOperand(String),
    /// The slices of an operand do not add up to its shape.
    #[error("operand {operand}: {message}")]
    OperandParts {
        /// The operand.
        operand: String,
        /// What does not add up.
        message: String,
    },
    /// Numbers inside a block contradict each other.
    #[error("{place}: {message}")]
    Geometry {
        /// Which block.
        place: String,
        /// What contradicts what.
        message: String,
    },
    /// A program written by a newer version.
    #[error(
        "program version {found} is newer than {PROGRAM_VERSION}, the newest this Lamella reads"
    )]
    Version {
        /// The version found.
        found: u32,
    },
}
