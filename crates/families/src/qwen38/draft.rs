//! The draft heads: layers of attention, all behind one join and before one read of the streams.

use super::{Lowering, qwen};
use lamella_program::OperandId;
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};
use lamella_program::program::{Exit, StreamReduction};

impl Lowering<'_> {
    /// The draft heads, which share `head` with the model.
    pub(super) fn draft(&mut self, head: OperandId) -> Option<Draft> {
        let c = self.config;
        if c.drafts == 0 {
            return None;
        }
        let mut norm = |name: &str, source: &str, len| {
            let (name, source) = (format!("draft.join.{name}"), format!("mtp.{source}"));
            qwen::norm(&mut self.b, &name, &source, len, c.eps)
        };
        let embedding_norm = norm("embedding_norm", "pre_fc_norm_embedding", c.hidden);
        let width = c.streams * c.hidden;
        let hidden_norm = norm("hidden_norm", "pre_fc_norm_hidden", width);
        let mut linear = |name: &str, source: &str| {
            let (name, source) = (format!("draft.join.{name}"), format!("mtp.{source}.weight"));
            self.b.linear(&name, source, [c.hidden, c.hidden])
        };
        let join = Join {
            embedding_norm,
            // One mean square over all streams, where every other norm of the family has one each.
            hidden_norm_scope: HiddenNormScope::Joint,
            hidden_norm,
            map: JoinMap::Add {
                embedding: linear("embedding", "fc_embedding"),
                hidden: linear("hidden", "fc_hidden"),
            },
        };
        let last = self.gate("draft.exit_gate", "mtp.hyper_connection_mixer", false);
        let exit = Exit {
            reduction: Some(StreamReduction::HyperResidual(last)),
            norm: None,
            head,
            logits: c.vocabulary,
            scale: None,
            soft_cap: None,
        };
        let depth = |index| DraftDepth {
            join: join.clone(),
            layer: self.layer(
                &format!("draft.{index}"),
                &format!("mtp.layers.{index}"),
                false,
            ),
            exit: exit.clone(),
        };
        Some(Draft {
            reads: DraftReads::Streams,
            depths: (0..c.drafts).map(depth).collect(),
            recycles: true,
        })
    }
}
