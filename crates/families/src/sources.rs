//! The tensors a checkpoint announces, and slices of them.

use lamella_program::operand::Coding;
use lamella_program::{Slice, TensorInfo};
use std::collections::HashMap;

/// The tensor table by name.
pub(crate) struct Sources<'a> {
    table: HashMap<&'a str, &'a TensorInfo>,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(tensors: &'a [TensorInfo]) -> Self {
        let table = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        Sources { table }
    }

    /// How many tensors there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// Element type as the file spells it.
    pub(crate) fn dtype(&self, name: &str) -> Option<&'a str> {
        self.table.get(name).map(|t| t.dtype.as_str())
    }

    /// Dimensions as the file gives them.
    pub(crate) fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.table.get(name).map(|t| t.shape.as_slice())
    }

    /// Names that `wanted` accepts, sorted.
    pub(crate) fn names(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut names: Vec<String> = self
            .table
            .keys()
            .filter(|name| wanted(name))
            .map(|name| (*name).to_owned())
            .collect();
        names.sort_unstable();
        names
    }
}

/// All rows of a tensor of `shape` numbers that is stored in `coding`.
pub(crate) fn coded(tensor: String, shape: &[usize], coding: Option<Coding>) -> Slice {
    let mut slice = Slice::whole(tensor, shape);
    if let (Some(coding), Some(last)) = (&coding, slice.tensor_shape.last_mut()) {
        *last /= coding.per_element();
    }
    slice.coding = coding;
    slice
}
