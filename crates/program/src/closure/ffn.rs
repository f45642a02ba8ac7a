//! Feed-forward blocks: gated units, routers, experts.

use super::checker::{Checker, Form, Size, known};
use crate::block::{GatedActivation, GatedUnit, Routed, Router, Scoring, WeightRule};

impl Checker<'_> {
    /// One unit on the full width.
    pub(super) fn dense(&mut self, place: &str, unit: &GatedUnit) {
        let hidden = self.hidden();
        self.activation(place, unit.activation);
        let width = self.product(place, &[("inner width", unit.width)]);
        self.expect(place, unit.gate, Form::Unit, &[width, hidden]);
        self.expect(place, unit.up, Form::Unit, &[width, hidden]);
        self.expect(place, unit.down, Form::Unit, &[hidden, width]);
        if let Some(gate) = unit.output_gate {
            self.expect(place, gate, Form::Plain, &[Some(1), hidden]);
        }
        if let Some(scale) = unit.output_scale {
            self.vector(place, scale, Some(1));
        }
    }

    /// A mixture of experts.
    pub(super) fn routed(&mut self, place: &str, r: &Routed) {
        let hidden = self.hidden();
        let experts = self.count(place, "number of experts", r.experts);
        if r.top_k == 0 || r.top_k > r.experts {
            let message = format!("{} experts chosen of {}", r.top_k, r.experts);
            self.geometry(place, message);
        }
        self.router(&format!("{place}.router"), r, experts);
        let input = match &r.latent {
            None => hidden,
            Some(latent) => {
                let place = format!("{place}.latent");
                let width = self.linear_rows(&place, &latent.down, hidden);
                if let Some(norm) = &latent.norm {
                    self.norm(&place, norm, width);
                }
                self.linear(&place, &latent.up, hidden, width);
                width
            }
        };
        self.experts(&format!("{place}.experts"), &r.unit, experts, input);
        for (index, unit) in r.shared.iter().enumerate() {
            self.dense(&format!("{place}.shared.{index}"), unit);
        }
    }

    /// The stacked units of all experts, which work on `input` values.
    fn experts(&mut self, place: &str, unit: &GatedUnit, experts: Size, input: Size) {
        self.activation(place, unit.activation);
        let width = self.product(place, &[("inner width", unit.width)]);
        self.expect(place, unit.gate, Form::Stack, &[experts, width, input]);
        self.expect(place, unit.up, Form::Stack, &[experts, width, input]);
        self.expect(place, unit.down, Form::Stack, &[experts, input, width]);
        if unit.output_gate.is_some() || unit.output_scale.is_some() {
            let message = "the router weighs experts; they have no gate or scale of their own";
            self.geometry(place, message.to_owned());
        }
    }

    fn router(&mut self, place: &str, r: &Routed, experts: Size) {
        let router = &r.router;
        let taking_part = match router.weights {
            WeightRule::WithShared { shared } => {
                if shared == 0 || shared != r.shared.len() {
                    let there = r.shared.len();
                    let message = format!("{shared} shared experts take part, {there} are there");
                    self.geometry(place, message);
                }
                if router.scoring == Scoring::Softmax {
                    let message = "shared experts cannot take part in a softmax over the others";
                    self.geometry(place, message.to_owned());
                }
                r.shared.len()
            }
            WeightRule::Normalised { eps } => {
                self.eps(place, eps);
                0
            }
            WeightRule::Raw => 0,
        };
        let rows = self.sum(place, experts, Some(taking_part));
        let hidden = self.hidden();
        self.expect(place, router.weight, Form::Router, &[rows, hidden]);
        if let Some(bias) = router.selection_bias {
            self.vector(place, bias, experts);
        }
        if let Some(scale) = router.scale {
            self.finite(place, "scale", scale);
        }
        if let Some(scale) = router.learned_scale {
            self.vector(place, scale, Some(1));
        }
        self.router_groups(place, r);
        self.hash_routing(place, router, r.top_k);
    }

    fn router_groups(&mut self, place: &str, r: &Routed) {
        let Some(groups) = r.router.groups else {
            return;
        };
        let (count, kept) = (groups.count, groups.top_k);
        if count == 0 || !r.experts.is_multiple_of(count) {
            self.geometry(place, format!("{} experts in {count} groups", r.experts));
            return;
        }
        let size = r.experts / count;
        if size < 2 {
            // A group is as good as its two best experts.
            self.geometry(place, format!("groups of {size} experts, needs 2"));
        }
        if kept == 0 || kept > count {
            self.geometry(place, format!("{kept} groups kept of {count}"));
        } else if r.top_k > kept * size {
            let message = format!("{} experts chosen of {kept} groups of {size}", r.top_k);
            self.geometry(place, message);
        }
    }

    fn hash_routing(&mut self, place: &str, router: &Router, top_k: usize) {
        let Some(table) = router.hash_table else {
            return;
        };
        let shape = [known(self.program.dims.vocabulary), known(top_k)];
        self.expect(place, table, Form::Table, &shape);
        self.needs_token_ids(place);
        if router.selection_bias.is_some() || router.groups.is_some() {
            let message = "experts are chosen by token id, nothing else selects";
            self.geometry(place, message.to_owned());
        }
    }

    fn activation(&mut self, place: &str, activation: GatedActivation) {
        match activation {
            GatedActivation::Silu => {}
            GatedActivation::ClampedSilu { limit } => {
                self.positive(place, "limit", limit.into());
            }
            GatedActivation::Situ { beta, linear_beta } => {
                self.positive(place, "beta", beta.into());
                self.positive(place, "linear beta", linear_beta.into());
            }
        }
    }

    /// What works on token ids gets them at the boundary.
    pub(super) fn needs_token_ids(&mut self, place: &str) {
        if !self.program.boundary.needs_token_ids {
            let message = "needs token ids, but the boundary does not pass them on";
            self.geometry(place, message.to_owned());
        }
    }
}
