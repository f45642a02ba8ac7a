//! Latent attention and its selection of positions.

use super::attention::IndexerPlace;
use super::checker::{Checker, Form};
use crate::block::{LatentAttention, LatentSelection};

impl Checker<'_> {
    pub(super) fn latent_attention(&mut self, place: &str, a: &LatentAttention) {
        let hidden = self.hidden();
        let heads = ("heads", a.heads);
        let nope = self.product(place, &[("unrotated channels", a.nope_dim)]);
        let value = self.product(place, &[("value channels", a.value_dim)]);
        let latent = self.product(place, &[("latent width", a.latent_dim)]);
        let head = self.sum(place, nope, Some(a.rope_dim));
        let up = self.sum(place, nope, value);
        let row = self.sum(place, latent, Some(a.rope_dim));
        let queries = self.times(place, heads, ("head size", head));
        let ups = self.times(place, heads, ("key and value channels", up));
        let outputs = self.times(place, heads, ("value channels", value));

        let rank = self.linear_rows(place, &a.query_down, hidden);
        self.norm(place, &a.query_norm, rank);
        self.linear(place, &a.query_up, queries, rank);
        self.linear(place, &a.latent_down, row, hidden);
        self.norm(place, &a.latent_norm, latent);
        self.linear_as(place, &a.latent_up, Form::Rows, ups, latent);
        self.linear(place, &a.output, hidden, outputs);
        if let Some(gate) = &a.output_gate {
            self.linear(place, gate, outputs, hidden);
        }
        if let Some(rope) = &a.rope {
            self.rope(place, rope, a.rope_dim);
        }
        self.positive(place, "score scale", a.scale.into());
        match &a.selection {
            None => {}
            Some(LatentSelection::Own(indexer)) => {
                let place = format!("{place}.indexer");
                self.indexer(&place, indexer, rank, IndexerPlace::Latent);
                self.selection = true;
            }
            Some(LatentSelection::Shared) if self.selection => {}
            Some(LatentSelection::Shared) => {
                let message = "shares a selection, but no earlier layer makes one";
                self.geometry(place, message.to_owned());
            }
        }
    }
}
