//! Building the operand table of a program.

use lamella_program::block::RmsNorm;
use lamella_program::{Operand, OperandId, Role, Slice};

/// The operands added so far.
#[derive(Default)]
pub(crate) struct Operands {
    table: Vec<Operand>,
}

impl Operands {
    /// A vector `[len]` that is a whole tensor.
    pub(crate) fn vector(&mut self, name: &str, tensor: String, len: usize) -> OperandId {
        self.whole(name, Role::Vector, tensor, &[len])
    }

    /// A matrix `[rows, cols]` that is a whole tensor.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        role: Role,
        tensor: String,
        [rows, cols]: [usize; 2],
    ) -> OperandId {
        self.whole(name, role, tensor, &[rows, cols])
    }

    /// A root-mean-square norm over `len` values.
    pub(crate) fn norm(&mut self, name: &str, tensor: String, len: usize, eps: f32) -> RmsNorm {
        RmsNorm {
            weight: Some(self.vector(name, tensor, len)),
            eps,
            unit_offset: false,
        }
    }

    /// An operand put together from slices: one list of them for each stacked item.
    pub(crate) fn parts(
        &mut self,
        name: &str,
        role: Role,
        shape: &[usize],
        parts: Vec<Vec<Slice>>,
    ) -> OperandId {
        self.add(Operand {
            name: name.to_owned(),
            shape: shape.to_vec(),
            role,
            parts,
        })
    }

    /// The finished table.
    pub(crate) fn finish(self) -> Vec<Operand> {
        self.table
    }

    fn whole(&mut self, name: &str, role: Role, tensor: String, shape: &[usize]) -> OperandId {
        let parts = vec![vec![Slice::whole(tensor, shape)]];
        self.add(Operand {
            name: name.to_owned(),
            shape: shape.to_vec(),
            role,
            parts,
        })
    }

    fn add(&mut self, operand: Operand) -> OperandId {
        let id = u32::try_from(self.table.len()).expect("lowerings bound layers and operands");
        self.table.push(operand);
        OperandId(id)
    }
}
