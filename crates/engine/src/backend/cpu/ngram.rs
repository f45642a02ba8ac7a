//! Hashed n-gram embeddings, added to the streams before a layer.

use super::work::Work;
use super::{Core, Segment};
use crate::step::Span;
use lamella_kernels::{Epilogue, Rows, SharedRows, sigmoid, unpack_row};
use lamella_program::program::PerLayerEmbedding;

/// Smallest magnitude under the signed root of a gate.
const GATE_FLOOR: f32 = 1e-6;

impl Core {
    /// Adds the n-gram embeddings that enter before layer `index`.
    pub(super) fn add_ngrams(
        &self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        for table in &self.program.entry.per_layer_embeddings {
            if table.layer == index {
                self.add_ngram(table, segments, spans, work);
            }
        }
    }

    fn add_ngram(
        &self,
        t: &PerLayerEmbedding,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        let embedded = self.program.operand(t.key.weight).cols();
        let item = self.item(t.layer, "ngram");
        let Work {
            hidden,
            wide,
            wide_too,
            ngram,
            shared,
            quantised,
            mixers,
            ..
        } = work;
        let embedding = &mut ngram[..count * embedded];
        self.look_up(t, segments, spans, embedding);
        let wide = &mut wide[..count * stream_width];
        let keys = &mut wide_too[..count * stream_width];
        let values = &mut shared[..count * width];
        self.prepare([&t.key, &t.value], embedding, embedded, quantised);
        self.project_prepared(&t.key, embedding, quantised, wide, Epilogue::Store);
        self.project_prepared(&t.value, embedding, quantised, values, Epilogue::Store);
        let all = Rows::First(count);
        self.norm_streams(&t.key_norm, wide, all, keys);
        self.norm_streams(&t.query_norm, hidden, all, wide);
        let root = 1.0 / (width as f32).sqrt();
        for row in 0..count {
            let at = row * stream_width..(row + 1) * stream_width;
            let value = &values[row * width..][..width];
            let keys = keys[at.clone()].chunks_exact_mut(width);
            for (key, query) in keys.zip(wide[at].chunks_exact(width)) {
                let score = self.kernels.dot(key, query) * root;
                let magnitude = score.abs().max(GATE_FLOOR).sqrt();
                let gate = sigmoid(if score == 0.0 {
                    0.0
                } else {
                    magnitude.copysign(score)
                });
                key.copy_from_slice(value);
                self.kernels.scale(key, gate);
            }
        }
        // The gated values join the stream as they are, and once more convolved.
        self.kernels.add(hidden, keys);
        self.norm_streams(&t.convolution_norm, keys, all, wide);
        self.convolve(
            &t.convolution,
            [t.layer, item],
            segments,
            spans,
            mixers,
            wide,
        );
        self.kernels.add(hidden, wide);
    }

    /// The table rows of every n-gram that ends at each row of the piece, concatenated.
    fn look_up(
        &self,
        t: &PerLayerEmbedding,
        segments: &[Segment],
        spans: &[Span<'_>],
        out: &mut [f32],
    ) {
        let table = self.weights[t.table.index()].matrix(0);
        let (head, per_row) = (table.cols, out.len() / rows_of(segments));
        let target = SharedRows::new(out, per_row, per_row);
        for segment in segments {
            let span = &spans[segment.span];
            for i in 0..segment.rows {
                // SAFETY: one thread.
                let out = unsafe { target.slice_mut(segment.row + i, 0..per_row) };
                let position = segment.position + i;
                let mut parts = out.chunks_exact_mut(head);
                for order in 2..=t.ngram {
                    let mix = mix(t, order, |back| span.token_before(position, back));
                    for h in 0..t.heads_per_ngram {
                        let at = (order - 2) * t.heads_per_ngram + h;
                        let row = mix % t.sizes[at] + t.offsets[at];
                        if let Some(part) = parts.next() {
                            unpack_row(&table, row as usize, part);
                        }
                    }
                }
            }
        }
    }
}

fn rows_of(segments: &[Segment]) -> usize {
    segments.iter().map(|s| s.rows).sum()
}

/// The hash of the last `order` tokens; what lies behind the boundary token or before the start
/// counts as the boundary token.
fn mix(t: &PerLayerEmbedding, order: usize, token: impl Fn(usize) -> Option<u32>) -> u64 {
    let mut cut = false;
    let mut mix = 0;
    for (back, multiplier) in t.multipliers.iter().enumerate().take(order) {
        let id = match token(back) {
            Some(id) if !cut => id,
            _ => t.boundary_token,
        };
        cut |= back > 0 && id == t.boundary_token;
        mix ^= u64::from(id).wrapping_mul(*multiplier);
    }
    mix
}
