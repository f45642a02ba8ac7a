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
}

impl Guess {
    /// For at most `rows` rows, beside routes for as many.
    pub(super) fn new(hidden: usize, rows: usize, routes: Routes) -> Guess {
        Guess {
            input: vec![0.0; rows * hidden],
            routes,
        }
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
            let all = &work.routes.identity;
            store.foresee(next, all.get(..routed.experts).unwrap_or(all), true);
            return;
        }
        self.guess(layer, routed, work);
        let certain = routed.router.hash_table.is_some();
        store.foresee(next, &work.guess.routes.active, certain);
    }

    fn guess(&self, layer: usize, next: &Routed, work: &mut Work) {
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let norm = |layer: usize| {
            let norm = self.program.layer(layer).ffn.pre_norm.as_ref();
            norm.map_or(NormWeight::None, |norm| self.norm_weight(norm))
        };
        let (own, its) = (norm(layer), norm(layer + 1));
        let Guess { input, routes } = &mut work.guess;
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
