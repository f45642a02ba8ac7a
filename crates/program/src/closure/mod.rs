//! The closure check: a program opens only when every tensor of the checkpoint is claimed, every
//! operand exists in the shape and form its block needs, and no numbers contradict each other.
//!
//! All defects are found in one pass; there is no best effort. A program may come from a file that
//! a stranger wrote: nothing here panics, and nothing is allocated by a number the program claims.

mod attention;
mod checker;
mod compressed;
mod defect;
mod delta;
mod draft;
mod ffn;
mod latent;
mod ngram;
mod operands;
mod residual;
mod sources;

pub use defect::Defect;
pub use draft::{draft_operands, part_operands, used_operands};
pub use sources::TensorInfo;

use crate::block::{Block, Ffn, Layer, Mixer};
use crate::program::{Exit, PROGRAM_VERSION, Program};
use crate::state;
use checker::{Checker, Form, known};
use std::ops::Range;

/// Largest state of a conversation, in bytes for each token and in bytes whatever its length: far
/// beyond any memory, and so small that sums of such numbers cannot overflow.
const MAX_STATE_BYTES: u64 = 1 << 46;

/// Checks the program by itself: operands, shapes, geometry.
#[must_use]
pub fn check(program: &Program) -> Vec<Defect> {
    let mut checker = Checker::new(program);
    checker.program();
    checker.defects
}

/// Checks the program against the checkpoint it was lowered from. Includes [`check`].
#[must_use]
pub fn check_against(program: &Program, tensors: &[TensorInfo]) -> Vec<Defect> {
    let mut defects = check(program);
    sources::check(program, tensors, &mut defects);
    defects
}

impl Checker<'_> {
    fn program(&mut self) {
        let p = self.program;
        if p.version > PROGRAM_VERSION {
            self.defects.push(Defect::Version { found: p.version });
        }
        self.operand_table();
        for (name, value) in [
            ("hidden size", p.dims.hidden),
            ("vocabulary", p.dims.vocabulary),
            ("context", p.dims.context),
            ("number of layers", p.layers.len()),
        ] {
            self.count("model", name, value);
        }
        self.main();
        self.draft();
        self.unused();
        self.state();
    }

    /// The main model.
    fn main(&mut self) {
        self.entry();
        self.ngram_embeddings(0..usize::MAX);
        self.streams();
        self.layers(0..self.program.layers.len());
        self.exit("exit", &self.program.exit);
    }

    fn layers(&mut self, range: Range<usize>) {
        let layers = self.program.layers.iter().enumerate();
        for (index, layer) in layers.take(range.end).skip(range.start) {
            self.layer(&format!("layers.{index}"), layer);
        }
    }

    fn entry(&mut self) {
        let entry = &self.program.entry;
        let (vocabulary, hidden) = (known(self.program.dims.vocabulary), self.hidden());
        self.expect(
            "entry",
            entry.embedding,
            Form::Embedding,
            &[vocabulary, hidden],
        );
        if let Some(norm) = &entry.norm {
            self.norm("entry.norm", norm, hidden);
        }
        if let Some(scale) = entry.scale {
            self.finite("entry", "scale", scale);
        }
    }

    fn exit(&mut self, place: &str, exit: &Exit) {
        let (vocabulary, hidden) = (self.program.dims.vocabulary, self.hidden());
        self.reduction(place, exit);
        if let Some(norm) = &exit.norm {
            self.norm(&format!("{place}.norm"), norm, hidden);
        }
        let rows = known(vocabulary);
        self.expect(place, exit.head, Form::Head, &[rows, hidden]);
        if exit.logits == 0 || exit.logits > vocabulary && vocabulary > 0 {
            let message = format!("{} logits of {vocabulary} rows", exit.logits);
            self.geometry(place, message);
        }
        if let Some(scale) = exit.scale {
            self.finite(place, "scale", scale);
        }
        if let Some(cap) = exit.soft_cap {
            self.positive(place, "soft cap", cap.into());
        }
    }

    fn layer(&mut self, place: &str, layer: &Layer) {
        self.residual(place, &layer.residual);
        let mixer = format!("{place}.mixer");
        self.block(&mixer, &layer.mixer);
        match &layer.mixer.body {
            Mixer::Attention(a) => self.attention(&mixer, a),
            Mixer::LatentAttention(a) => self.latent_attention(&mixer, a),
            Mixer::CompressedAttention(a) => self.compressed_attention(&mixer, a),
            Mixer::Kda(d) => self.kda(&mixer, d),
            Mixer::GatedDeltaNet(d) => self.gated_delta_net(&mixer, d),
        }
        let ffn = format!("{place}.ffn");
        self.block(&ffn, &layer.ffn);
        match &layer.ffn.body {
            Ffn::Dense(unit) => self.dense(&ffn, unit),
            Ffn::Routed(routed) => self.routed(&ffn, routed),
        }
    }

    fn block<B>(&mut self, place: &str, block: &Block<B>) {
        let hidden = self.hidden();
        if let Some(norm) = &block.pre_norm {
            self.norm(&format!("{place}.pre_norm"), norm, hidden);
        }
        if let Some(convolution) = &block.convolution {
            self.convolution(&format!("{place}.convolution"), convolution, hidden);
        }
        if let Some(norm) = &block.post_norm {
            self.norm(&format!("{place}.post_norm"), norm, hidden);
        }
    }

    /// Sizes of state come partly from numbers that no operand confirms.
    fn state(&mut self) {
        if !self.defects.is_empty() {
            return;
        }
        let p = self.program;
        for (place, bytes, when) in [
            ("model", state::bytes_per_token(p), "for each token"),
            ("model", state::fixed_bytes(p), "for each conversation"),
            ("draft", state::draft_bytes_per_token(p), "for each token"),
            (
                "draft",
                state::draft_fixed_bytes(p),
                "for each conversation",
            ),
        ] {
            if bytes as u64 > MAX_STATE_BYTES {
                self.geometry(place, format!("{bytes} bytes of state {when}"));
            }
        }
    }
}
