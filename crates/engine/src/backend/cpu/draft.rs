//! Draft heads: how a row and a token enter a depth, and what the next depth reads.

use super::Core;
use super::work::Work;
use lamella_kernels::{Epilogue, Rows, SharedRows};
use lamella_program::Program;
use lamella_program::block::Linear;
use lamella_program::draft::{DraftReads, HiddenNormScope, Join, JoinMap};

/// Floats of `work.join` that a join needs for each row.
pub(super) fn floats_per_row(program: &Program, join: &Join) -> usize {
    let hidden = program.dims.hidden;
    match join.map {
        JoinMap::Concatenate { .. } => 2 * hidden,
        _ => program.boundary.width + 2 * hidden,
    }
}

impl Core {
    /// Starts the streams of a piece from the rows that depth `depth` reads and its tokens.
    pub(super) fn join(&self, depth: usize, tokens: &[u32], read: &[f32], work: &mut Work) {
        let join = &self.program.depths()[depth].join;
        match &join.map {
            JoinMap::Concatenate {
                embedding_first,
                projection,
            } => self.concatenate(join, *embedding_first, projection, tokens, read, work),
            JoinMap::Add { embedding, hidden } => {
                self.add_rows(join, [embedding, hidden], tokens, read, work);
            }
            _ => unreachable!("the closure check refuses joins without rules"),
        }
    }

    fn concatenate(
        &self,
        join: &Join,
        embedding_first: bool,
        projection: &Linear,
        tokens: &[u32],
        read: &[f32],
        work: &mut Work,
    ) {
        let width = self.program.dims.hidden;
        let both = &mut work.join[..tokens.len() * 2 * width];
        let (weight, eps) = (self.norm_weight(&join.hidden_norm), join.hidden_norm.eps);
        let rows = SharedRows::new(both, 2 * width, 2 * width);
        self.over_rows(tokens.len(), 2 * width, &|t| {
            // SAFETY: each row is one task's.
            let (first, second) = unsafe { rows.slice_mut(t, 0..2 * width) }.split_at_mut(width);
            let (embedding, row) = match embedding_first {
                true => (first, second),
                false => (second, first),
            };
            self.normed_embedding(join, tokens[t], embedding);
            let read = &read[t * width..(t + 1) * width];
            self.kernels.rms_norm(read, weight, eps, row);
        });
        let out = &mut work.hidden;
        self.project(projection, both, &mut work.quantised, out, Epilogue::Store);
    }

    /// The embedding of each token, added to every stream of its row.
    fn add_rows(
        &self,
        join: &Join,
        [embedding, hidden]: [&Linear; 2],
        tokens: &[u32],
        read: &[f32],
        work: &mut Work,
    ) {
        let width = self.program.dims.hidden;
        let count = tokens.len();
        let (rows, rest) = work.join.split_at_mut(read.len());
        let (embedded, rest) = rest.split_at_mut(count * width);
        let mapped = &mut rest[..count * width];
        let part = match join.hidden_norm_scope {
            HiddenNormScope::Stream => width,
            HiddenNormScope::Joint => self.program.boundary.width,
        };
        let parts = Rows::First(read.len() / part);
        self.norm_rows(Some(&join.hidden_norm), read, parts, rows, part);
        let out = &mut work.hidden;
        self.project(hidden, rows, &mut work.quantised, out, Epilogue::Store);
        let target = SharedRows::new(embedded, width, width);
        self.over_rows(count, width, &|t| {
            // SAFETY: each row is one task's.
            let out = unsafe { target.slice_mut(t, 0..width) };
            self.normed_embedding(join, tokens[t], out);
        });
        self.project(
            embedding,
            embedded,
            &mut work.quantised,
            mapped,
            Epilogue::Store,
        );
        let stream = self.program.boundary.width;
        for (row, mapped) in out.chunks_exact_mut(stream).zip(mapped.chunks_exact(width)) {
            for stream in row.chunks_exact_mut(width) {
                self.kernels.add(stream, mapped);
            }
        }
    }

    fn normed_embedding(&self, join: &Join, token: u32, out: &mut [f32]) {
        let norm = &join.embedding_norm;
        self.embed_token(token, out);
        self.kernels
            .rms_norm_in_place(out, self.norm_weight(norm), norm.eps);
    }

    /// Replaces `out` by what a depth reads of the piece, after the layer of `depth` or the main
    /// model's last.
    pub(super) fn draft_rows(&self, depth: Option<usize>, work: &Work, out: &mut Vec<f32>) {
        let reads = self.program.draft.as_ref().map(|draft| draft.reads);
        let norm = match reads {
            Some(DraftReads::Normed) => self.program.exit_of(depth).norm.as_ref(),
            _ => None,
        };
        out.clear();
        out.resize(work.hidden.len(), 0.0);
        let rows = Rows::First(work.rows());
        let width = self.program.boundary.width;
        self.norm_rows(norm, &work.hidden, rows, out, width);
    }
}
