//! Recurrent mixers: Kimi delta attention and the gated delta net.

use super::checker::{Checker, Size, known};
use crate::block::DeltaNet;

impl Checker<'_> {
    /// Decays every key channel.
    pub(super) fn kda(&mut self, place: &str, d: &DeltaNet) {
        let logits = self.product(
            place,
            &[("value heads", d.value_heads), ("key size", d.key_dim)],
        );
        if let Some(floor) = d.decay_floor
            && !(floor.is_finite() && floor < 0.0)
        {
            self.geometry(
                place,
                format!("decay floor {floor} is not a negative number"),
            );
        }
        self.delta_net(place, d, logits);
    }

    /// Decays every head.
    pub(super) fn gated_delta_net(&mut self, place: &str, d: &DeltaNet) {
        if d.decay_floor.is_some() {
            let message = "a decay floor belongs to decays by channel";
            self.geometry(place, message.to_owned());
        }
        self.delta_net(place, d, known(d.value_heads));
    }

    fn delta_net(&mut self, place: &str, d: &DeltaNet, logits: Size) {
        let hidden = self.hidden();
        let keys = self.product(
            place,
            &[("key heads", d.key_heads), ("key size", d.key_dim)],
        );
        let values = self.product(
            place,
            &[("value heads", d.value_heads), ("value size", d.value_dim)],
        );
        if d.key_heads > 0 && !d.value_heads.is_multiple_of(d.key_heads) {
            let (values, keys) = (d.value_heads, d.key_heads);
            let message = format!("{values} value heads cannot share {keys} key heads");
            self.geometry(place, message);
        }
        let heads = known(d.value_heads);
        self.linear(place, &d.query, keys, hidden);
        self.linear(place, &d.key, keys, hidden);
        self.linear(place, &d.value, values, hidden);
        let [query, key, value] = &d.convolutions;
        self.convolution(place, query, keys);
        self.convolution(place, key, keys);
        self.convolution(place, value, values);
        self.decay(place, d, logits);
        self.vector_from(place, d.decay_log, heads);
        self.vector(place, d.decay_bias, logits);
        self.linear(place, &d.beta, heads, hidden);
        self.linear(place, &d.gate, values, hidden);
        self.norm(place, &d.norm, known(d.value_dim));
        self.linear(place, &d.output, hidden, values);
    }

    /// Each map takes what the one before gives.
    fn decay(&mut self, place: &str, d: &DeltaNet, logits: Size) {
        let Some((last, before)) = d.decay.split_last() else {
            self.geometry(place, "the decay has no map".to_owned());
            return;
        };
        let mut width = self.hidden();
        for map in before {
            width = self.linear_rows(place, map, width);
        }
        self.linear(place, last, logits, width);
    }
}
