//! Attention and feed-forward blocks.

use super::Lowering;
use lamella_program::block::{
    Attention, GatedActivation, GatedUnit, KeyValueConvolutions, Linear, PositionScaling, QkNorm,
    QkNormScope, RelativeBias, Routed, Router, Scoring, Span, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::{OperandId, Role, Slice};

/// Ends of the names of the stacks of experts: gate and up rows alternating, and down.
pub(super) const EXPERTS: [&str; 2] = ["mlp.experts.w13_weight", "mlp.experts.w2_weight"];
/// The same of the shared experts.
pub(super) const SHARED: [&str; 2] = [
    "mlp.shared_experts.shared_w13_weight",
    "mlp.shared_experts.shared_w2_weight",
];
/// Which of the matrices that a tensor joins each one is, and of how many.
const GATE: [usize; 2] = [0, 2];
const UP: [usize; 2] = [1, 2];
const DOWN: [usize; 2] = [0, 1];

impl Lowering<'_> {
    pub(super) fn attention(&mut self, name: &str, tensor: &str, local: bool) -> Attention {
        let c = self.config;
        let geometry = if local { c.local } else { c.global };
        let (heads, head_dim) = (geometry.heads, geometry.head_dim);
        let (queries, keys) = (heads * head_dim, geometry.kv_heads * head_dim);
        let mut linear = |end: &str, source: &str, shape| {
            self.linear(
                &format!("{name}.attention.{end}"),
                &format!("{tensor}.{source}"),
                shape,
            )
        };
        let query = linear("query", "wq_du", [queries, c.hidden]);
        let key = linear("key", "wk_dv", [keys, c.hidden]);
        let value = linear("value", "wv_dv", [keys, c.hidden]);
        let output = linear("output", "wo_ud", [c.hidden, queries]);
        let mut norm = |end: &str, source: &str| {
            let (name, tensor) = (
                format!("{name}.attention.{end}"),
                format!("{tensor}.{source}"),
            );
            self.norm(&name, &tensor, head_dim)
        };
        let qk_norm = QkNorm {
            scope: QkNormScope::Head,
            query: norm("query_norm", "q_norm"),
            key: norm("key_norm", "k_norm"),
        };
        let mut convolution = |end: &str, source: &str| {
            let (name, tensor) = (
                format!("{name}.attention.{end}"),
                format!("{tensor}.{source}"),
            );
            self.convolution(&name, &tensor, keys)
        };
        let convolutions = KeyValueConvolutions {
            key: convolution("key_convolution", "k_sconv"),
            value: convolution("value_convolution", "v_sconv"),
        };
        let scaling = c.scaling.filter(|_| !local);
        Attention {
            heads,
            kv_heads: geometry.kv_heads,
            head_dim,
            query,
            key,
            value,
            output,
            qk_norm: Some(qk_norm),
            clip: None,
            rope: None,
            scale: (1.0 / head_dim as f64) as f32,
            span: match local {
                true => Span::Sliding { window: c.window },
                false => Span::Full,
            },
            sinks: None,
            output_gate: None,
            relative_bias: Some(self.relative_bias(name, tensor, local)),
            convolutions: Some(convolutions),
            position_scaling: scaling.map(|(floor, alpha)| PositionScaling { floor, alpha }),
            indexer: None,
        }
    }

    /// A bias for every distance that the layer sees, or sees best.
    fn relative_bias(&mut self, name: &str, tensor: &str, local: bool) -> RelativeBias {
        let c = self.config;
        let (heads, extent) = match local {
            true => (c.local.heads, c.window),
            false => (c.global.heads, c.bias_extent),
        };
        let query = self.linear(
            &format!("{name}.attention.bias_query"),
            &format!("{tensor}.wr_du"),
            [heads * c.bias_rank, c.hidden],
        );
        let projection = self.b.matrix(
            &format!("{name}.attention.bias_projection"),
            Role::Kernel,
            format!("{tensor}.rel_logits_proj.proj"),
            [c.bias_rank, extent],
        );
        RelativeBias {
            query,
            projection,
            extent,
        }
    }

    /// A dense unit with a learned scale of its output.
    pub(super) fn dense(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let (width, hidden) = (self.config.dense_width, self.config.hidden);
        let stack = Stack {
            tensors: ["w13_dn", "w2_md"].map(|map| self.stored(&format!("{tensor}.mlp.{map}"))),
            items: None,
            width,
            hidden,
        };
        let scale = format!("{tensor}.mlp.global_scale");
        let mut unit = self.unit(&format!("{name}.ffn"), &stack, 0);
        let scale = self
            .b
            .operands
            .vector(&format!("{name}.ffn.scale"), scale, 1);
        unit.output_scale = Some(scale);
        unit
    }

    pub(super) fn routed(&mut self, name: &str, tensor: &str) -> Routed {
        let c = self.config;
        let weight = self.b.matrix(
            &format!("{name}.router"),
            Role::Router,
            format!("{tensor}.mlp.gate.weight"),
            [c.experts + c.shared, c.hidden],
        );
        let mut vector = |end: &str, source: &str, len| {
            let name = format!("{name}.router.{end}");
            let tensor = format!("{tensor}.mlp.gate.{source}");
            self.b.operands.vector(&name, tensor, len)
        };
        let router = Router {
            weight,
            scoring: Scoring::Sigmoid,
            selection_bias: Some(vector("bias", "bias", c.experts)),
            groups: None,
            hash_table: None,
            weights: WeightRule::WithShared { shared: c.shared },
            scale: Some(c.route_scale),
            learned_scale: Some(vector("scale", "global_scale", 1)),
        };
        let stack = |tensors: [String; 2], items| Stack {
            tensors,
            items: Some(items),
            width: c.expert_width,
            hidden: c.hidden,
        };
        let routed = EXPERTS.map(|end| {
            let map = format!("{tensor}.{end}");
            c.codes.tensor(self.b.sources, &map, map.clone())
        });
        let routed = stack(routed, c.experts);
        let unit = self.experts(&format!("{name}.experts"), &routed);
        let shared = SHARED.map(|end| format!("{tensor}.{end}"));
        let shared = stack(shared, c.shared);
        Routed {
            router,
            experts: c.experts,
            top_k: c.top_k,
            unit,
            shared: (0..c.shared)
                .map(|item| self.unit(&format!("{name}.shared.{item}"), &shared, item))
                .collect(),
            latent: None,
        }
    }

    /// Unit number `item` of a stack as a resident one.
    fn unit(&mut self, name: &str, stack: &Stack, item: usize) -> GatedUnit {
        let mut add = |end: &str, shape: [usize; 2], slice, part| {
            let parts = vec![vec![self.in_codes(slice, part)]];
            let name = format!("{name}.{end}");
            self.b.operands.parts(&name, Role::Linear, &shape, parts)
        };
        let (inner, outer) = ([stack.width, stack.hidden], [stack.hidden, stack.width]);
        silu_unit(
            add("gate", inner, stack.inner(item, 0), GATE),
            add("up", inner, stack.inner(item, 1), UP),
            add("down", outer, stack.outer(item), DOWN),
            stack.width,
        )
    }

    /// A linear map of the checkpoint called `map`, without bias.
    fn linear(&mut self, name: &str, map: &str, shape: [usize; 2]) -> Linear {
        let tensor = self.stored(map);
        self.b.linear(name, tensor, shape)
    }

    /// The tensor that holds the matrix called `map`.
    fn stored(&self, map: &str) -> String {
        let plain = format!("{map}.weight");
        self.config.codes.tensor(self.b.sources, map, plain)
    }

    /// The slice as it is stored; `part` of the matrices that its tensor joins.
    fn in_codes(&self, plain: Slice, part: [usize; 2]) -> Slice {
        let coded = self.b.slice(plain.tensor.clone(), &plain.tensor_shape);
        let (tensor_shape, mut coding) = (coded.tensor_shape, coded.coding);
        if let Some(Coding::DividedNvfp4 { part: own, .. }) = &mut coding {
            *own = part;
        }
        Slice {
            tensor_shape,
            coding,
            ..plain
        }
    }

    /// All units of a stack as routed experts, which may be in codes.
    fn experts(&mut self, name: &str, stack: &Stack) -> GatedUnit {
        let items = stack.items.unwrap_or(1);
        let (width, hidden) = (stack.width, stack.hidden);
        let mut add = |end: &str, [rows, cols]: [usize; 2], part, of: &dyn Fn(usize) -> Slice| {
            let slices = (0..items).map(|item| vec![self.in_codes(of(item), part)]);
            let (name, parts) = (format!("{name}.{end}"), slices.collect());
            let shape = [items, rows, cols];
            self.b.operands.parts(&name, Role::Expert, &shape, parts)
        };
        let (inner, outer) = ([width, hidden], [hidden, width]);
        silu_unit(
            add("gate", inner, GATE, &|item| stack.inner(item, 0)),
            add("up", inner, UP, &|item| stack.inner(item, 1)),
            add("down", outer, DOWN, &|item| stack.outer(item)),
            width,
        )
    }
}

/// Gated units that share two tensors.
struct Stack {
    /// `[items, 2 * width, hidden]`, gate and up rows alternating, and `[items, hidden, width]`.
    tensors: [String; 2],
    /// The leading dimension; `None` where there is none.
    items: Option<usize>,
    width: usize,
    hidden: usize,
}

impl Stack {
    /// Every other row of a unit's first matrix: the gate's where `branch` is 0, up's where it
    /// is 1.
    fn inner(&self, item: usize, branch: usize) -> Slice {
        let rows = 2 * self.width;
        Slice {
            start: item * rows + branch,
            step: 2,
            rows: self.width,
            ..Slice::whole(&self.tensors[0], &self.shape([rows, self.hidden]))
        }
    }

    fn outer(&self, item: usize) -> Slice {
        Slice {
            start: item * self.hidden,
            rows: self.hidden,
            ..Slice::whole(&self.tensors[1], &self.shape([self.hidden, self.width]))
        }
    }

    fn shape(&self, matrix: [usize; 2]) -> Vec<usize> {
        self.items.into_iter().chain(matrix).collect()
    }
}

fn silu_unit(gate: OperandId, up: OperandId, down: OperandId, width: usize) -> GatedUnit {
    GatedUnit {
        gate,
        up,
        down,
        width,
        activation: GatedActivation::Silu,
        output_gate: None,
        output_scale: None,
    }
}
