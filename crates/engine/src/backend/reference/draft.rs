//! Draft heads: how a row and a token enter a depth, and what the next depth reads.

use super::Reference;
use super::math::add;
use lamella_program::draft::{DraftReads, HiddenNormScope, JoinMap};

impl Reference {
    /// The streams that start from one row that depth `depth` reads and one token.
    pub(super) fn join_row(&self, depth: usize, token: u32, row: &[f32]) -> Vec<f32> {
        let join = &self.program.depths()[depth].join;
        let hidden = self.program.dims.hidden;
        let mut embedding = self.embedding(token);
        self.norm_parts(&join.embedding_norm, hidden, &mut embedding);
        let mut row = row.to_vec();
        let part = match join.hidden_norm_scope {
            HiddenNormScope::Stream => hidden,
            HiddenNormScope::Joint => row.len(),
        };
        self.norm_parts(&join.hidden_norm, part, &mut row);
        match &join.map {
            JoinMap::Concatenate {
                embedding_first: true,
                projection,
            } => self.linear(projection, &[embedding, row].concat()),
            JoinMap::Concatenate { projection, .. } => {
                self.linear(projection, &[row, embedding].concat())
            }
            JoinMap::Add {
                embedding: map,
                hidden: row_map,
            } => {
                let embedding = self.linear(map, &embedding);
                let streams = row.chunks_exact(hidden).flat_map(|stream| {
                    let mut stream = self.linear(row_map, stream);
                    add(&mut stream, &embedding);
                    stream
                });
                streams.collect()
            }
            _ => unreachable!("the closure check refuses joins without rules"),
        }
    }

    /// What a depth reads of the piece, after the layer of `depth` or the main model's last.
    pub(super) fn read_by_draft(&self, depth: Option<usize>) -> Vec<f32> {
        let mut rows = self.hidden.clone();
        let reads = self.program.draft.as_ref().map(|draft| draft.reads);
        if reads == Some(DraftReads::Normed)
            && let Some(norm) = &self.program.exit_of(depth).norm
        {
            self.norm_parts(norm, self.program.boundary.width, &mut rows);
        }
        rows
    }
}
