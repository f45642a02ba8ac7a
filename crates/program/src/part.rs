//! Which part of a program one node runs.

use crate::block::{LatentSelection, Layer, Mixer};
use crate::program::Program;
use std::ops::Range;

/// A part of a program. A chain of machines holds layer ranges that follow one another, and one
/// node the ends; rows of [`Program::row_width`] values pass between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// These layers, without the ends.
    Layers(Range<usize>),
    /// The entry and the exit, without any layer.
    Ends,
}

impl Part {
    /// The layers of the main model that the part runs.
    #[must_use]
    pub fn layers(&self, program: &Program) -> Range<usize> {
        match self {
            Part::Whole => 0..program.layers.len(),
            Part::Layers(range) => range.clone(),
            Part::Ends => 0..0,
        }
    }

    /// Whether the part runs the entry and the exit.
    #[must_use]
    pub fn has_ends(&self) -> bool {
        !matches!(self, Part::Layers(_))
    }
}

impl Program {
    /// The layers that a part of it runs; those of the draft are the whole's.
    pub fn layers_of(&self, part: &Part) -> impl Iterator<Item = &Layer> {
        let depths = match part {
            Part::Whole => self.depths(),
            _ => &[],
        };
        let own = self.layers.get(part.layers(self)).unwrap_or_default();
        own.iter().chain(depths.iter().map(|depth| &depth.layer))
    }

    /// Positions that pass from layer to layer beside the streams: the longest selection that a
    /// later layer uses again. 0 where none does.
    #[must_use]
    pub fn carried_positions(&self) -> usize {
        let selections = self
            .layers
            .iter()
            .filter_map(|layer| match &layer.mixer.body {
                Mixer::LatentAttention(a) => a.selection.as_ref(),
                _ => None,
            });
        let (mut longest, mut shared) = (0, false);
        for selection in selections {
            match selection {
                LatentSelection::Own(indexer) => longest = longest.max(indexer.top_k),
                LatentSelection::Shared => shared = true,
            }
        }
        if shared { longest } else { 0 }
    }

    /// Values of a row between two layers: the streams, and behind them, where positions are
    /// carried, their number (-1 = every position) and the positions in ascending order, padded
    /// with zeros.
    #[must_use]
    pub fn row_width(&self) -> usize {
        match self.carried_positions() {
            0 => self.boundary.width,
            positions => self.boundary.width.saturating_add(1 + positions),
        }
    }
}
