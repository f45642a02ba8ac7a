//! The draft heads: layers of attention, all behind one join and before one norm.

use super::config::Kind;
use super::{Lowering, plain, qwen};
use lamella_program::OperandId;
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};

impl Lowering<'_> {
    /// The draft heads, which share `head` with the model.
    pub(super) fn draft(&mut self, head: OperandId) -> Option<Draft> {
        let c = self.config;
        if c.draft_layers == 0 {
            return None;
        }
        let projection = self.table.linear(
            "draft.join.projection",
            "mtp.fc.weight".to_owned(),
            [c.hidden, 2 * c.hidden],
        );
        let mut norm = |name: &str, source: &str| {
            let (name, source) = (format!("draft.{name}"), format!("mtp.{source}"));
            qwen::norm(&mut self.table, &name, &source, c.hidden, c.eps)
        };
        let join = Join {
            embedding_norm: norm("join.embedding_norm", "pre_fc_norm_embedding"),
            hidden_norm_scope: HiddenNormScope::Stream,
            hidden_norm: norm("join.hidden_norm", "pre_fc_norm_hidden"),
            map: JoinMap::Concatenate {
                embedding_first: true,
                projection,
            },
        };
        let exit = plain::exit(norm("final_norm", "norm"), head, c.vocabulary);
        let kind = Kind {
            attends: true,
            sparse: c.mixture.is_some(),
        };
        let depth = |index| DraftDepth {
            join: join.clone(),
            layer: self.layer(
                &format!("draft.{index}"),
                &format!("mtp.layers.{index}"),
                kind,
            ),
            exit: exit.clone(),
        };
        Some(Draft {
            reads: DraftReads::Normed,
            depths: (0..c.draft_layers).map(depth).collect(),
            recycles: true,
        })
    }
}
