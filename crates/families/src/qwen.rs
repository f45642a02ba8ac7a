//! What the families of the Qwen line share: gated attention, the gated delta net, experts beside a
//! gated shared one, and the names of the vision tower.

use crate::common::{Builder, component, numbered};
use crate::sources::Sources;
use lamella_program::block::{
    Activation, Attention, DeltaNet, Linear, QkNorm, QkNormScope, RmsNorm, Rope, Routed, Router,
    Scoring, ShortConvolution, Span, WeightRule,
};
use lamella_program::program::UnusedComponent;
use lamella_program::{OperandId, Role, Slice};

/// Eps of norms and width of the stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) hidden: usize,
    pub(crate) eps: f32,
}

/// Heads of gated attention.
pub(crate) struct GatedHeads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope: Rope,
}

/// Heads of a gated delta net.
pub(crate) struct DeltaHeads {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Taps of the convolution.
    pub(crate) taps: usize,
    /// Activation of the output gate.
    pub(crate) gate: Activation,
}

/// A mixture of experts beside a gated shared one.
pub(crate) struct Mixture {
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    /// Inner width of one expert.
    pub(crate) width: usize,
    /// Inner width of the shared expert.
    pub(crate) shared_width: usize,
    pub(crate) renormalise: bool,
}

/// A norm whose stored weight is zero-centred.
pub(crate) fn norm(b: &mut Builder<'_>, name: &str, tensor: &str, len: usize, eps: f32) -> RmsNorm {
    RmsNorm {
        unit_offset: true,
        ..b.operands.norm(name, format!("{tensor}.weight"), len, eps)
    }
}

/// Attention whose query rows alternate, head by head, with those of a sigmoid gate of its output.
/// `name` is the layer's, `tensor` that of its attention.
pub(crate) fn gated_attention(
    b: &mut Builder<'_>,
    name: &str,
    tensor: &str,
    stream: Stream,
    h: &GatedHeads,
) -> Attention {
    let (queries, keys) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
    let pairs = format!("{tensor}.q_proj.weight");
    let mut alternating = |end: &str, branch: usize| {
        let shape = [2 * queries, stream.hidden];
        let cuts = (0..h.heads).map(|i| [(2 * i + branch) * h.head_dim, h.head_dim]);
        let slices = b.cuts(&pairs, &shape, queries, cuts);
        linear_of(
            b,
            &format!("{name}.attention.{end}"),
            slices,
            [queries, stream.hidden],
        )
    };
    let query = alternating("query", 0);
    let gate = alternating("output_gate", 1);
    let mut linear = |end: &str, source: &str, shape| {
        let source = format!("{tensor}.{source}.weight");
        b.linear(&format!("{name}.attention.{end}"), source, shape)
    };
    let key = linear("key", "k_proj", [keys, stream.hidden]);
    let value = linear("value", "v_proj", [keys, stream.hidden]);
    let output = linear("output", "o_proj", [stream.hidden, queries]);
    let mut norm_of = |end: &str, source: &str| {
        let (name, tensor) = (
            format!("{name}.attention.{end}"),
            format!("{tensor}.{source}"),
        );
        norm(b, &name, &tensor, h.head_dim, stream.eps)
    };
    Attention {
        heads: h.heads,
        kv_heads: h.kv_heads,
        head_dim: h.head_dim,
        query,
        key,
        value,
        output,
        qk_norm: Some(QkNorm {
            scope: QkNormScope::Head,
            query: norm_of("query_norm", "q_norm"),
            key: norm_of("key_norm", "k_norm"),
        }),
        clip: None,
        rope: Some(h.rope.clone()),
        scale: (1.0 / (h.head_dim as f64).sqrt()) as f32,
        span: Span::Full,
        sinks: None,
        output_gate: Some(gate),
        relative_bias: None,
        convolutions: None,
        position_scaling: None,
        indexer: None,
    }
}

/// Rows of one or several tensors as a linear map.
pub(crate) fn linear_of(
    b: &mut Builder<'_>,
    name: &str,
    slices: Vec<Slice>,
    shape: [usize; 2],
) -> Linear {
    Linear {
        weight: b.operands.parts(name, Role::Linear, &shape, vec![slices]),
        bias: None,
    }
}

/// A gated delta net. `name` is the layer's, `tensor` that of the delta net.
pub(crate) fn delta_net(
    b: &mut Builder<'_>,
    name: &str,
    tensor: &str,
    stream: Stream,
    d: &DeltaHeads,
) -> DeltaNet {
    let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
    let rows = Projections::of(b, tensor, stream.hidden, d);
    let name = format!("{name}.delta");
    let mut linear = |end: &str, slices, rows| {
        linear_of(b, &format!("{name}.{end}"), slices, [rows, stream.hidden])
    };
    let query = linear("query", rows.query, keys);
    let key = linear("key", rows.key, keys);
    let value = linear("value", rows.value, values);
    let gate = linear("gate", rows.gate, values);
    let beta = linear("beta", rows.beta, d.value_heads);
    let decay = linear("decay", rows.decay, d.value_heads);
    let output = b.linear(
        &format!("{name}.output"),
        format!("{tensor}.out_proj.weight"),
        [stream.hidden, values],
    );
    let mut vector = |end: &str, source: &str| {
        let source = format!("{tensor}.{source}");
        b.operands
            .vector(&format!("{name}.{end}"), source, d.value_heads)
    };
    let decay_log = vector("decay_log", "A_log");
    let decay_bias = vector("decay_bias", "dt_bias");
    let convolutions = convolutions(b, &name, &format!("{tensor}.conv1d.weight"), d);
    DeltaNet {
        key_heads: d.key_heads,
        value_heads: d.value_heads,
        key_dim: d.key_dim,
        value_dim: d.value_dim,
        query,
        key,
        value,
        convolutions,
        decay: vec![decay],
        decay_log,
        decay_bias,
        decay_floor: None,
        beta,
        gate,
        gate_activation: d.gate,
        // The one norm of the line whose weight is stored as it is.
        norm: b.operands.norm(
            &format!("{name}.output_norm"),
            format!("{tensor}.norm.weight"),
            d.value_dim,
            stream.eps,
        ),
        output,
    }
}

/// The convolutions of queries, keys and values, which are stored as one.
fn convolutions(
    b: &mut Builder<'_>,
    name: &str,
    tensor: &str,
    d: &DeltaHeads,
) -> [ShortConvolution; 3] {
    let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
    let joined = [2 * keys + values, 1, d.taps];
    let parts = [
        ("query", 0, keys),
        ("key", keys, keys),
        ("value", 2 * keys, values),
    ];
    parts.map(|(end, start, rows)| {
        let kernel = Slice {
            start,
            rows,
            ..Slice::whole(tensor, &joined)
        };
        let (name, shape) = (format!("{name}.{end}_convolution"), [rows, 1, d.taps]);
        let slices = vec![vec![kernel]];
        ShortConvolution {
            weight: b.operands.parts(&name, Role::Kernel, &shape, slices),
            taps: d.taps,
            dilation: 1,
            residual: false,
            activation: Some(Activation::Silu),
        }
    })
}

/// Where the rows of a delta net's input maps are.
struct Projections {
    query: Vec<Slice>,
    key: Vec<Slice>,
    value: Vec<Slice>,
    gate: Vec<Slice>,
    beta: Vec<Slice>,
    decay: Vec<Slice>,
}

impl Projections {
    /// Four tensors (queries, keys and values in one), or, as Qwen3-Next has it, two whose rows are
    /// grouped by key head.
    fn of(b: &Builder<'_>, tensor: &str, hidden: usize, d: &DeltaHeads) -> Projections {
        let wide = format!("{tensor}.in_proj_qkvz.weight");
        let narrow = format!("{tensor}.in_proj_ba.weight");
        if b.sources.has(&wide) || b.sources.has(&narrow) {
            Self::grouped(b, [&wide, &narrow], hidden, d)
        } else {
            Self::apart(b, tensor, hidden, d)
        }
    }

    fn apart(b: &Builder<'_>, tensor: &str, hidden: usize, d: &DeltaHeads) -> Projections {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let joined = format!("{tensor}.in_proj_qkv.weight");
        let shape = [2 * keys + values, hidden];
        let part = |start, rows| vec![b.rows(&joined, &shape, start, rows)];
        let whole = |end: &str, rows| {
            vec![b.slice(format!("{tensor}.in_proj_{end}.weight"), &[rows, hidden])]
        };
        Projections {
            query: part(0, keys),
            key: part(keys, keys),
            value: part(2 * keys, values),
            gate: whole("z", values),
            beta: whole("b", d.value_heads),
            decay: whole("a", d.value_heads),
        }
    }

    fn grouped(
        b: &Builder<'_>,
        [wide, narrow]: [&str; 2],
        hidden: usize,
        d: &DeltaHeads,
    ) -> Projections {
        let ratio = d.value_heads / d.key_heads;
        let (key, values) = (d.key_dim, ratio * d.value_dim);
        let cut = |tensor: &str, group: usize, start: usize, rows: usize| -> Vec<Slice> {
            let shape = [d.key_heads * group, hidden];
            let cuts = (0..d.key_heads).map(|g| [g * group + start, rows]);
            b.cuts(tensor, &shape, d.key_heads * rows, cuts)
        };
        let group = 2 * (key + values);
        Projections {
            query: cut(wide, group, 0, key),
            key: cut(wide, group, key, key),
            value: cut(wide, group, 2 * key, values),
            gate: cut(wide, group, 2 * key + values, values),
            beta: cut(narrow, 2 * ratio, 0, ratio),
            decay: cut(narrow, 2 * ratio, ratio, ratio),
        }
    }
}

/// A mixture of experts. `name` is the layer's, `tensor` that of its feed-forward block.
pub(crate) fn mixture(
    b: &mut Builder<'_>,
    name: &str,
    tensor: &str,
    hidden: usize,
    m: &Mixture,
) -> Routed {
    let weight = b.matrix(
        &format!("{name}.router"),
        Role::Router,
        format!("{tensor}.gate.weight"),
        [m.experts, hidden],
    );
    let experts = [m.experts, m.width, hidden];
    let unit = b.experts(
        &format!("{name}.experts"),
        &format!("{tensor}.experts"),
        experts,
    );
    let shared_name = format!("{name}.shared");
    let source = format!("{tensor}.shared_expert");
    let mut shared = b.unit(&shared_name, &source, [m.shared_width, hidden]);
    shared.output_gate = Some(output_gate(b, &shared_name, &source, hidden));
    Routed {
        router: Router {
            weight,
            scoring: Scoring::Softmax,
            selection_bias: None,
            groups: None,
            hash_table: None,
            weights: match m.renormalise {
                true => WeightRule::Normalised { eps: 0.0 },
                false => WeightRule::Raw,
            },
            scale: None,
            learned_scale: None,
        },
        experts: m.experts,
        top_k: m.top_k,
        unit,
        shared: vec![shared],
        latent: None,
    }
}

/// One logit for all of a unit's output; too small to be worth codes.
fn output_gate(b: &mut Builder<'_>, name: &str, tensor: &str, hidden: usize) -> OperandId {
    let (name, tensor) = (
        format!("{name}.output_gate"),
        format!("{tensor}_gate.weight"),
    );
    b.matrix(&name, Role::Vector, tensor, [1, hidden])
}

/// The vision tower of the line's multimodal releases.
pub(crate) fn vision_tower(sources: &Sources<'_>) -> Option<UnusedComponent> {
    let tensors = sources.names(is_vision);
    component("vision tower", "only text is computed", tensors)
}

fn is_vision(name: &str) -> bool {
    const BLOCK: [&str; 6] = [
        "attn.proj",
        "attn.qkv",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
        "norm1",
        "norm2",
    ];
    const MERGER: [&str; 3] = ["linear_fc1", "linear_fc2", "norm"];
    let Some(end) = name.strip_prefix("model.visual.") else {
        return false;
    };
    if end == "pos_embed.weight" {
        return true;
    }
    let stem = end.strip_suffix(".weight").or(end.strip_suffix(".bias"));
    let Some(stem) = stem else { return false };
    let block = numbered(stem, "blocks.").map(|(_, end)| end);
    let merger = stem.strip_prefix("merger.");
    stem == "patch_embed.proj"
        || block.is_some_and(|end| BLOCK.contains(&end))
        || merger.is_some_and(|end| MERGER.contains(&end))
}
