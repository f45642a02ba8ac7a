//! Residual schemes: what passes between layers, and how it ends.

use super::checker::{Checker, Form, Size};
use crate::block::{HyperGate, HyperMap, Layer, Residual, ResidualRead};
use crate::program::{Exit, StreamReduction};

/// Most Sinkhorn passes: each costs time, and the matrix has long converged.
const MAX_SINKHORN: usize = 1000;

/// What a residual scheme passes between layers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Sum,
    History,
    Connections(usize),
    Gated(usize),
}

fn flow(residual: &Residual) -> Flow {
    match residual {
        Residual::Plain => Flow::Sum,
        Residual::AttentionResidual { .. } => Flow::History,
        Residual::HyperConnections { streams, .. } => Flow::Connections(*streams),
        Residual::HyperResidual { streams, .. } => Flow::Gated(*streams),
    }
}

impl Checker<'_> {
    /// All layers use one scheme, and the boundary has room for what it passes on.
    pub(super) fn streams(&mut self) {
        let p = self.program;
        let Some(first) = p.layers.first().map(|l| flow(&l.residual)) else {
            return;
        };
        for (index, layer) in p.layers.iter().enumerate() {
            if flow(&layer.residual) != first {
                let message = "its residual is of another kind than that of layer 0";
                self.geometry(&format!("layers.{index}"), message.to_owned());
            }
        }
        let vectors = match first {
            Flow::Sum => 1,
            Flow::History => 1 + p.layers.iter().filter(|l| seals(&l.residual)).count(),
            Flow::Connections(streams) | Flow::Gated(streams) => streams,
        };
        let needed = self.product(
            "boundary",
            &[("streams", vectors), ("hidden size", p.dims.hidden)],
        );
        if let Some(needed) = needed
            && p.boundary.width != needed
        {
            let width = p.boundary.width;
            let message = format!("width {width}, but {vectors} vectors need {needed}");
            self.geometry("boundary", message);
        }
    }

    /// A layer of the draft passes on what the main model's layers do.
    pub(super) fn same_streams(&mut self, place: &str, layer: &Layer) {
        let first = self.program.layers.first();
        if first.is_some_and(|first| flow(&first.residual) != flow(&layer.residual)) {
            let message = "its residual is of another kind than that of layer 0";
            self.geometry(place, message.to_owned());
        }
    }

    /// Streams that a block may add to; `None` where the scheme keeps a history instead.
    pub(super) fn stream_count(&self) -> Size {
        match flow(&self.program.layers.first()?.residual) {
            Flow::Sum => Some(1),
            Flow::History => None,
            Flow::Connections(streams) | Flow::Gated(streams) => Some(streams),
        }
    }

    pub(super) fn residual(&mut self, place: &str, residual: &Residual) {
        match residual {
            Residual::Plain => {}
            Residual::AttentionResidual {
                mixer_read,
                ffn_read,
                ..
            } => {
                self.residual_read(&format!("{place}.mixer_read"), mixer_read);
                self.residual_read(&format!("{place}.ffn_read"), ffn_read);
            }
            Residual::HyperConnections {
                streams,
                sinkhorn_iterations,
                eps,
                norm_eps,
                mixer,
                ffn,
            } => {
                if !(1..=MAX_SINKHORN).contains(sinkhorn_iterations) {
                    let message =
                        format!("{sinkhorn_iterations} Sinkhorn passes, needs 1 to {MAX_SINKHORN}");
                    self.geometry(place, message);
                }
                self.eps(place, *eps);
                self.eps(place, *norm_eps);
                self.hyper_map(&format!("{place}.mixer_map"), mixer, *streams);
                self.hyper_map(&format!("{place}.ffn_map"), ffn, *streams);
            }
            Residual::HyperResidual {
                streams,
                mixer,
                ffn,
            } => {
                self.hyper_gate(&format!("{place}.mixer_gate"), mixer, Some(*streams), true);
                self.hyper_gate(&format!("{place}.ffn_gate"), ffn, Some(*streams), true);
            }
        }
    }

    /// The streams are joined as the layers' scheme needs it.
    pub(super) fn reduction(&mut self, place: &str, exit: &Exit) {
        let first = self.program.layers.first().map(|l| flow(&l.residual));
        let reduction = &exit.reduction;
        let fits = match (first, reduction) {
            (None, _)
            | (Some(Flow::Sum), None)
            | (Some(Flow::History), Some(StreamReduction::AttentionResidual(_)))
            | (Some(Flow::Connections(_)), Some(StreamReduction::HyperConnections { .. }))
            | (Some(Flow::Gated(_)), Some(StreamReduction::HyperResidual(_))) => true,
            (Some(_), _) => false,
        };
        if !fits {
            let message = "its stream reduction does not fit the layers' residual";
            self.geometry(place, message.to_owned());
        }
        let streams = self.stream_count().filter(|_| fits);
        let place = &format!("{place}.reduction");
        match reduction {
            None => {}
            Some(StreamReduction::AttentionResidual(read)) => {
                self.residual_read(place, read);
            }
            Some(StreamReduction::HyperConnections {
                function,
                base,
                scale,
                eps,
                norm_eps,
            }) => {
                self.eps(place, *eps);
                self.eps(place, *norm_eps);
                let width = self.width(place, streams);
                let shape = [streams, width];
                self.expect(place, *function, Form::Linear, &shape);
                self.vector(place, *base, streams);
                self.vector(place, *scale, Some(1));
            }
            Some(StreamReduction::HyperResidual(gate)) => {
                self.hyper_gate(place, gate, streams, false);
            }
        }
    }

    fn residual_read(&mut self, place: &str, read: &ResidualRead) {
        let hidden = self.hidden();
        self.norm(place, &read.norm, hidden);
        self.expect(place, read.projection, Form::Plain, &[Some(1), hidden]);
    }

    fn hyper_map(&mut self, place: &str, map: &HyperMap, streams: usize) {
        let width = self.width(place, Some(streams));
        let maps = self.sum(place, Some(2), Some(streams));
        let rows = self.times(place, ("streams", streams), ("maps", maps));
        self.expect(place, map.function, Form::Linear, &[rows, width]);
        self.vector(place, map.base, rows);
        self.vector(place, map.scale, Some(3));
    }

    fn hyper_gate(&mut self, place: &str, gate: &HyperGate, streams: Size, injects: bool) {
        let width = self.width(place, streams);
        self.norm(place, &gate.norm, width);
        let rank = self.linear_rows(place, &gate.down, width);
        self.linear(place, &gate.up, width, rank);
        match (&gate.inject, injects) {
            (Some(inject), true) => self.linear(place, inject, streams, width),
            (None, false) => {}
            (Some(inject), false) => {
                self.linear(place, inject, streams, width);
                self.geometry(place, "the last read has nothing to inject".to_owned());
            }
            (None, true) => self.geometry(place, "the gate injects nothing".to_owned()),
        }
    }

    /// Values of all streams of a token.
    pub(super) fn width(&mut self, place: &str, streams: Size) -> Size {
        let (streams, hidden) = (streams?, self.hidden()?);
        self.product(place, &[("streams", streams), ("hidden size", hidden)])
    }
}

fn seals(residual: &Residual) -> bool {
    matches!(residual, Residual::AttentionResidual { seals: true, .. })
}
