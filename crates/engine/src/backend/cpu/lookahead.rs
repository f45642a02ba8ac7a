//! Which experts the next layer will probably choose, so that they are read meanwhile.

use super::Core;
use super::work::{Routes, Work};
use crate::experts::ExpertStore;
use lamella_kernels::NormWeight;
use lamella_program::block::{Ffn, Routed};

/// Rows up to which they are foreseen one by one. More rows choose nearly all experts together.
pub(super) const FEW_ROWS: usize = 8;

/// What is guessed.
pub(super) struct Guess {
    /// About what the next router will read, `[rows, hidden]`.
    input: Vec<f32>,
    routes: Routes,
    /// Chosen experts of a row with their weights, the largest first.
    row: Vec<(u32, f32)>,
    /// Chosen experts of all rows with their rank, the best first.
    ranked: Vec<(u32, usize)>,
}

impl Guess {
    /// For at most `rows` rows, beside routes for as many.
    pub(super) fn new(hidden: usize, rows: usize, routes: Routes) -> Guess {
        Guess {
            input: vec![0.0; rows * hidden],
            row: Vec::with_capacity(routes.chosen.len()),
            ranked: Vec::with_capacity(routes.chosen.len().max(routes.offsets.len())),
            routes,
        }
    }
}

impl Guess {
    /// Ranks the experts chosen for `rows` rows, `top_k` each, by their weight for the row: the
    /// larger, the more certain.
    fn rank(&mut self, rows: usize, top_k: usize) {
        self.ranked.clear();
        for chosen in self.routes.chosen[..rows * top_k].chunks_exact(top_k) {
            self.row.clear();
            self.row.extend_from_slice(chosen);
            self.row.sort_unstable_by(|(_, a), (_, b)| b.total_cmp(a));
            let ranked = self.row.iter().enumerate();
            self.ranked
                .extend(ranked.map(|(rank, &(expert, _))| (expert, rank)));
        }
        self.ranked
            .sort_unstable_by_key(|&(expert, rank)| (rank, expert));
    }
}

impl Core {
    /// Tells `store` what the layer after `layer` will probably choose: what its router says to the
    /// input of this layer's experts, under the next layer's norm. The stream changes little from
    /// layer to layer (Eliseev and Mazur 2023, arXiv 2312.17238, section 3.2).
    pub(super) fn foresee(&self, layer: usize, store: &mut ExpertStore, work: &mut Work) {
        let next = layer + 1;
        if next >= self.program.layers.len() || !store.looks_ahead(next) {
            return;
        }
        let Ffn::Routed(routed) = &self.program.layer(next).ffn.body else {
            return;
        };
        let rows = work.rows();
        if rows > FEW_ROWS {
            let Guess { ranked, .. } = &mut work.guess;
            ranked.clear();
            ranked.extend((0..routed.experts as u32).map(|expert| (expert, 0)));
            store.foresee(next, ranked, true);
            return;
        }
        self.guess(layer, routed, work);
        work.guess.rank(rows, routed.top_k);
        let certain = routed.router.hash_table.is_some();
        store.foresee(next, &work.guess.ranked, certain);
    }

    fn guess(&self, layer: usize, next: &Routed, work: &mut Work) {
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let norm = |layer: usize| {
            let norm = self.program.layer(layer).ffn.pre_norm.as_ref();
            norm.map_or(NormWeight::None, |norm| self.norm_weight(norm))
        };
        let (own, its) = (norm(layer), norm(layer + 1));
        let Guess { input, routes, .. } = &mut work.guess;
        let input = &mut input[..rows * width];
        let normed = work.normed[..rows * width].chunks_exact(width);
        for (out, x) in input.chunks_exact_mut(width).zip(normed) {
            for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
                *out = match factor(&own, i) {
                    0.0 => 0.0,
                    own => x / own * factor(&its, i),
                };
            }
        }
        self.choose(next, input, &work.tokens, routes);
    }
}

/// What a norm multiplies value `i` by.
fn factor(weight: &NormWeight<'_>, i: usize) -> f32 {
    match weight {
        NormWeight::None => 1.0,
        NormWeight::Plain(w) => w[i],
        NormWeight::UnitOffset(w) => 1.0 + w[i],
    }
}
