//! Attention with grouped heads, and what it has in common with the other kinds: rotation and
//! indexers.

use super::checker::{Checker, Form, Size, known};
use crate::block::{Attention, IndexNorm, Indexer, QkNormScope, Rope, Span};

/// Which mixer an indexer selects for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexerPlace {
    /// Blocks of tokens, besides all newer ones.
    Grouped,
    /// Single tokens.
    Latent,
    /// Entries of a compressor, which are its keys.
    Compressed,
}

impl Checker<'_> {
    pub(super) fn attention(&mut self, place: &str, a: &Attention) {
        let hidden = self.hidden();
        let size = ("head size", a.head_dim);
        let q = self.product(place, &[("heads", a.heads), size]);
        let kv = self.product(place, &[("key heads", a.kv_heads), size]);
        if a.kv_heads > 0 && !a.heads.is_multiple_of(a.kv_heads) {
            let message = format!("{} heads cannot share {} key heads", a.heads, a.kv_heads);
            self.geometry(place, message);
        }
        self.linear(place, &a.query, q, hidden);
        self.linear(place, &a.key, kv, hidden);
        self.linear(place, &a.value, kv, hidden);
        self.linear(place, &a.output, hidden, q);
        if let Some(norm) = &a.qk_norm {
            let (qn, kn) = match norm.scope {
                QkNormScope::Projection => (q, kv),
                QkNormScope::Head => (known(a.head_dim), known(a.head_dim)),
            };
            self.norm(place, &norm.query, qn);
            self.norm(place, &norm.key, kn);
        }
        if let Some(clip) = a.clip {
            self.positive(place, "clip", clip.into());
        }
        if let Some(rope) = &a.rope {
            self.rope(place, rope, a.head_dim);
        }
        self.positive(place, "score scale", a.scale.into());
        if let Span::Sliding { window } = a.span {
            self.count(place, "window", window);
        }
        if let Some(gate) = &a.output_gate {
            self.linear(place, gate, q, hidden);
        }
        self.attention_extras(place, a, kv);
    }

    fn attention_extras(&mut self, place: &str, a: &Attention, kv: Size) {
        let hidden = self.hidden();
        if let Some(sinks) = a.sinks {
            self.vector(place, sinks, known(a.heads));
        }
        if let Some(bias) = &a.relative_bias {
            let extent = self.count(place, "extent of the relative bias", bias.extent);
            let rank = self.rows(place, bias.projection, Form::Plain, extent);
            let rows = self.times(place, ("heads", a.heads), ("rank", rank));
            self.linear(place, &bias.query, rows, hidden);
        }
        if let Some(convolutions) = &a.convolutions {
            self.convolution(place, &convolutions.key, kv);
            self.convolution(place, &convolutions.value, kv);
        }
        if let Some(scaling) = &a.position_scaling {
            self.positive(place, "floor of the position scaling", scaling.floor);
            if !(scaling.alpha.is_finite() && scaling.alpha >= 0.0) {
                let message = format!("growth {} of the position scaling", scaling.alpha);
                self.geometry(place, message);
            }
        }
        if let Some(indexer) = &a.indexer {
            if a.span != Span::Full {
                let message = "a window and an indexer cannot both say what is visible";
                self.geometry(place, message.to_owned());
            }
            let place = format!("{place}.indexer");
            self.indexer(&place, indexer, hidden, IndexerPlace::Grouped);
        }
    }

    /// A rotation of a head of `width` channels.
    pub(super) fn rope(&mut self, place: &str, rope: &Rope, width: usize) {
        if rope.dims == 0 || rope.dims > width || !rope.dims.is_multiple_of(2) {
            let message = format!("{} rotated channels of {width}", rope.dims);
            self.geometry(place, message);
        }
        if !(rope.theta.is_finite() && rope.theta > 1.0) {
            self.geometry(place, format!("rope base {} is not usable", rope.theta));
        }
        if let Some(yarn) = &rope.yarn {
            self.count(place, "original context", yarn.original_context);
            if !(yarn.factor.is_finite() && yarn.factor >= 1.0) {
                self.geometry(place, format!("YaRN factor {} is below 1", yarn.factor));
            }
            let (fast, slow) = (yarn.beta_fast, yarn.beta_slow);
            if !(fast.is_finite() && slow > 0.0 && fast > slow) {
                let message = format!("YaRN keeps above {fast} and divides below {slow} rotations");
                self.geometry(place, message);
            }
        }
    }

    /// An indexer whose queries are made of vectors of `query_width` values.
    pub(super) fn indexer(
        &mut self,
        place: &str,
        ix: &Indexer,
        query_width: Size,
        of: IndexerPlace,
    ) {
        let hidden = self.hidden();
        let (heads, width) = (known(ix.heads), known(ix.head_dim));
        let rows = self.product(place, &[("heads", ix.heads), ("head size", ix.head_dim)]);
        self.linear(place, &ix.query, rows, query_width);
        if let Some(norm) = &ix.query_norm {
            self.norm(place, norm, width);
        }
        if let Some(key) = &ix.key {
            self.linear(place, key, width, hidden);
        }
        match &ix.key_norm {
            None => {}
            Some(IndexNorm::Rms(norm)) => self.norm(place, norm, width),
            Some(IndexNorm::Layer { weight, bias, eps }) => {
                self.vector(place, *weight, width);
                self.vector(place, *bias, width);
                self.eps(place, *eps);
            }
        }
        if let Some(weights) = &ix.head_weights {
            self.linear(place, weights, heads, hidden);
        }
        self.positive(place, "score scale", ix.scale.into());
        if let Some(rope) = &ix.rope {
            self.rope(place, rope, ix.head_dim);
        }
        self.selection_kind(place, ix, of);
    }

    /// Fields that only some of the selections have.
    fn selection_kind(&mut self, place: &str, ix: &Indexer, of: IndexerPlace) {
        self.count(place, "selected candidates", ix.top_k);
        self.count(place, "block", ix.block);
        let grouped = of == IndexerPlace::Grouped;
        let own_keys = of != IndexerPlace::Compressed;
        for (wrong, message) in [
            (own_keys && ix.key.is_none(), "the indexer has no keys"),
            (
                !own_keys && (ix.key.is_some() || ix.key_norm.is_some()),
                "the indexer's keys are the entries of its compressor",
            ),
            (
                !own_keys && ix.rope.is_none(),
                "entries rotate, and the indexer's queries do not",
            ),
            (
                !grouped && ix.block > 1,
                "blocks of tokens are selected by attention with grouped heads only",
            ),
            (
                !grouped && ix.query_norm.is_some(),
                "a norm of index queries belongs to selecting blocks",
            ),
            (
                grouped && ix.head_weights.is_some(),
                "index heads that select blocks have no weights",
            ),
        ] {
            if wrong {
                self.geometry(place, message.to_owned());
            }
        }
    }
}
