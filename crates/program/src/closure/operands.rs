//! The operand table by itself: names, shapes, and the slices that make them up.

use super::checker::Checker;
use super::defect::Defect;
use crate::operand::{Coding, Operand, Role, Slice};
use std::collections::HashSet;

/// Most numbers that all operands may have together: a hundred times the largest model there is,
/// and so few that their bytes can be added up.
const MAX_ELEMENTS: usize = 1 << 48;

impl Checker<'_> {
    pub(super) fn operand_table(&mut self) {
        let mut names = HashSet::new();
        let mut total = Some(0usize);
        for operand in &self.program.operands {
            if !names.insert(operand.name.as_str()) {
                self.defects
                    .push(Defect::DuplicateOperand(operand.name.clone()));
            }
            match part_mismatch(operand) {
                Some(message) => self.defects.push(Defect::OperandParts {
                    operand: operand.name.clone(),
                    message,
                }),
                None => total = total.and_then(|t| t.checked_add(operand.elements())),
            }
        }
        if total.is_none_or(|t| t > MAX_ELEMENTS) {
            self.geometry("model", "the operands have too many elements".to_owned());
        }
    }
}

/// What does not add up between an operand's shape and its parts, if anything.
fn part_mismatch(operand: &Operand) -> Option<String> {
    let shape = &operand.shape;
    if shape.is_empty() || shape.contains(&0) {
        return Some(format!("shape {shape:?} has no elements"));
    }
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if elements.is_none_or(|n| n > MAX_ELEMENTS) {
        return Some(format!("shape {shape:?} overflows"));
    }
    if operand.role == Role::Expert && shape.len() != 3 {
        return Some(format!("shape {shape:?} is not [experts, out, in]"));
    }
    if operand.parts.len() != operand.items() {
        let (parts, items) = (operand.parts.len(), operand.items());
        return Some(format!("{parts} parts for {items} items"));
    }
    for part in &operand.parts {
        let rows = part
            .iter()
            .try_fold(0usize, |sum, s| sum.checked_add(s.rows));
        if rows != Some(operand.rows()) || part.iter().any(|s| s.cols() != operand.cols()) {
            return Some("its slices do not add up to its shape".to_owned());
        }
        if let Some(message) = part.iter().find_map(slice_fault) {
            return Some(message);
        }
        if operand.role == Role::Table && part.iter().any(|s| s.coding.is_some()) {
            return Some("integers have no coding".to_owned());
        }
    }
    None
}

/// What keeps a slice from being rows of its tensor, if anything.
fn slice_fault(slice: &Slice) -> Option<String> {
    let last = slice
        .rows
        .checked_sub(1)
        .and_then(|n| n.checked_mul(slice.step))
        .and_then(|n| n.checked_add(slice.start));
    let available = tensor_rows(slice);
    if slice.step == 0 || last.is_none_or(|last| last >= available) {
        return Some(format!("a slice reaches beyond tensor {}", slice.tensor));
    }
    let cols = slice.cols();
    let fault = match slice.coding.as_ref()? {
        Coding::BlockFp8 { block, .. } if block.contains(&0) => "has scale blocks of no size",
        Coding::BlockFp8 { .. } if slice.tensor_shape.len() != 2 => {
            "is no matrix, which scale blocks need"
        }
        Coding::Mxfp4 { .. } if !cols.is_multiple_of(32) => "has columns without a scale for 32",
        Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. } if !cols.is_multiple_of(16) => {
            "has columns without a scale for 16"
        }
        Coding::DividedNvfp4 { part, .. } if part[0] >= part[1] => "has no such part",
        _ => return None,
    };
    Some(format!("tensor {} {fault}", slice.tensor))
}

/// Rows of the tensor a slice is taken from, 0 where the count overflows.
fn tensor_rows(slice: &Slice) -> usize {
    match slice.tensor_shape.split_last() {
        Some((_, leading)) if !leading.is_empty() => leading
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .unwrap_or(0),
        _ => 1,
    }
}
