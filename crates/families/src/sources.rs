//! The tensors a checkpoint announces, and slices of them.

use lamella_program::operand::Coding;
use lamella_program::{Slice, TensorInfo};
use std::cell::OnceCell;
use std::collections::HashMap;

/// Element types of plain numbers.
const NUMBERS: [&str; 3] = ["BF16", "F16", "F32"];

/// The tensor table by name.
pub(crate) struct Sources<'a> {
    table: HashMap<&'a str, &'a TensorInfo>,
    /// How many tensors have each element type, by their names without the digits: those of other
    /// layers and experts. Counted when it is asked for.
    likes: OnceCell<HashMap<String, HashMap<String, usize>>>,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(tensors: &'a [TensorInfo]) -> Self {
        let table = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        Sources {
            table,
            likes: OnceCell::new(),
        }
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

    /// Whether a tensor is in codes of one of the element types `codes`, if it has scales.
    ///
    /// One of plain numbers is not, and it is the scales that are too many; but where half of its
    /// likes in other layers are codes, it is its own type that is wrong, and the closure check
    /// names that.
    pub(crate) fn takes_scales(&self, name: &str, codes: &[&str]) -> bool {
        !self.is_plain(name) || self.mostly(name, codes)
    }

    /// The same of codes that need scales of two kinds: plain numbers beside one of them are none.
    pub(crate) fn takes_both(&self, name: &str, scales: [&str; 2], codes: &[&str]) -> bool {
        match scales.map(|scale| self.has(scale)) {
            [true, true] => self.takes_scales(name, codes),
            [false, false] => false,
            _ => !self.is_plain(name),
        }
    }

    /// Whether a tensor is there and holds plain numbers.
    fn is_plain(&self, name: &str) -> bool {
        let dtype = self.dtype(name);
        dtype.is_some_and(|dtype| NUMBERS.contains(&dtype))
    }

    /// Whether at least half of the tensors whose names differ from `name` in digits only have one
    /// of these element types.
    fn mostly(&self, name: &str, dtypes: &[&str]) -> bool {
        let likes = self.likes.get_or_init(|| self.count_likes());
        let Some(counts) = likes.get(&undigited(name)) else {
            return false;
        };
        let of = |dtype: &&str| counts.get(*dtype).copied().unwrap_or(0);
        2 * dtypes.iter().map(of).sum::<usize>() >= counts.values().sum()
    }

    fn count_likes(&self) -> HashMap<String, HashMap<String, usize>> {
        let mut likes: HashMap<String, HashMap<String, usize>> = HashMap::new();
        for (name, tensor) in &self.table {
            let counts = likes.entry(undigited(name)).or_default();
            *counts.entry(tensor.dtype.clone()).or_default() += 1;
        }
        likes
    }

    /// All names with their element types, in no order.
    pub(crate) fn types(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.table.iter().map(|(name, t)| (*name, t.dtype.as_str()))
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

/// A name without its digits.
pub(crate) fn undigited(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
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
