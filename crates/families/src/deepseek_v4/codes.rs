//! Which matrices are codes: FP8 anywhere, FP4 in routed experts alone.
//!
//! Types and scales decide, not the configuration. Of an expert, the same matrix of the other
//! experts of its layer has the last word, as they are one operand: a type that only it has is one
//! defect, and not the shape and the scales that would go with it.

use super::names::scale_of;
use crate::sources::Sources;
use lamella_program::operand::Coding;
use std::collections::{HashMap, HashSet};

/// The element type of FP8 codes.
const FP8: &str = "F8_E4M3";
/// The element types that stand for two FP4 codes.
const FP4: [&str; 3] = ["I8", "U8", "F4"];
/// The element types of all codes.
const CODES: [&str; 4] = [FP8, "I8", "U8", "F4"];
/// A part of the names of routed experts, and what stands before it.
const EXPERTS: &str = ".experts.";
const BLOCKS: [&str; 2] = [".ffn", ".mlp"];

/// How many tensors have a type of each kind.
#[derive(Clone, Copy, Default)]
struct Votes {
    fp8: usize,
    fp4: usize,
    others: usize,
}

impl Votes {
    fn add(&mut self, dtype: Option<&str>) {
        match dtype {
            Some(FP8) => self.fp8 += 1,
            Some(dtype) if FP4.contains(&dtype) => self.fp4 += 1,
            _ => self.others += 1,
        }
    }

    /// Whether most are FP4 (`true`) or FP8; `None` where most are neither.
    fn fp4(self) -> Option<bool> {
        (self.fp4.max(self.fp8) > 0 && self.fp4.max(self.fp8) >= self.others)
            .then_some(self.fp4 > self.fp8)
    }
}

/// The routed experts of a checkpoint.
#[derive(Default)]
struct Experts<'n> {
    /// By layer and matrix.
    stacks: HashMap<(&'n str, &'n str), Votes>,
    all: Votes,
    /// Layers whose experts have scales.
    scaled: HashSet<&'n str>,
}

impl<'n> Experts<'n> {
    fn of(sources: &Sources<'n>) -> Experts<'n> {
        let mut experts = Experts::default();
        for (name, dtype) in sources.types() {
            let Some((layer, matrix)) = place(name) else {
                continue;
            };
            let scales = scale_of(name).is_none_or(|_| name.ends_with("_scale_inv"));
            if scales {
                experts.scaled.insert(layer);
                continue;
            }
            experts.all.add(Some(dtype));
            let stack = (layer, matrix);
            experts.stacks.entry(stack).or_default().add(Some(dtype));
        }
        experts
    }

    /// Whether the matrix of an expert is in FP4 (`true`) or FP8; `None` where it is in no codes.
    fn fp4(&self, tensor: &str, dtype: Option<&str>, scaled: bool) -> Option<bool> {
        let (layer, matrix) = place(tensor)?;
        let most = self
            .stacks
            .get(&(layer, matrix))
            .and_then(|votes| votes.fp4());
        let coded = dtype.is_some_and(|dtype| CODES.contains(&dtype));
        match scaled {
            true => Some(most.or(self.all.fp4()).unwrap_or(true)),
            false => most.filter(|_| coded && self.scaled.contains(layer)),
        }
    }
}

/// Whether routed experts are in FP4 (`true`) or FP8, if some are in codes.
pub(super) fn experts_in_fp4(sources: &Sources<'_>) -> Option<bool> {
    let all = Experts::of(sources).all;
    (all.fp4.max(all.fp8) > 0).then_some(all.fp4 > all.fp8)
}

/// The layer that a tensor of routed experts belongs to and which matrix it is, `w1.weight` or
/// `down_proj`, the number of the expert left out.
fn place(tensor: &str) -> Option<(&str, &str)> {
    let (layer, end) = tensor.split_once(EXPERTS)?;
    BLOCKS.iter().find(|block| layer.ends_with(**block))?;
    let numbered = end.split_once('.');
    let matrix = numbered.filter(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()));
    Some((layer, matrix.map_or(end, |(_, matrix)| matrix)))
}

/// The coding of a matrix.
pub(super) fn coding<'a>(
    sources: &'a Sources<'a>,
    block: [usize; 2],
) -> impl Fn(&str) -> Option<Coding> + 'a {
    let experts = Experts::of(sources);
    move |tensor| {
        let scale = scale_of(tensor)?;
        let dtype = sources.dtype(tensor);
        let scaled = sources.has(&scale) && sources.takes_scales(tensor, &CODES);
        let fp4 = match place(tensor) {
            Some(_) => experts.fp4(tensor, dtype, scaled)?,
            None if dtype == Some(FP8) || scaled => false,
            None => return None,
        };
        Some(match fp4 {
            true => Coding::Mxfp4 { scale },
            false => Coding::BlockFp8 { scale, block },
        })
    }
}
