//! Every mixer, ffn and residual scheme, small.

use super::{HIDDEN, Table, VOCABULARY, WIDTH, attention, layer, normed, program_of};
use lamella_program::Role;
use lamella_program::block::{
    Activation, Attention, CompressedAttention, CompressedIndexer, Compressor, DeltaNet, Ffn,
    GatedActivation, GatedUnit, HyperGate, HyperMap, IndexNorm, Indexer, KeyValueConvolutions,
    LatentAttention, LatentExperts, LatentSelection, Layer, Mixer, PositionScaling, QkNorm,
    QkNormScope, RelativeBias, Residual, ResidualRead, RmsNorm, Rope, RopePairing, RopePlace,
    Routed, Router, RouterGroups, Scoring, ShortConvolution, Span, WeightRule, Yarn,
};
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};
use lamella_program::program::{Exit, PerLayerEmbedding, Program, StreamReduction};

pub(crate) const EXPERTS: usize = 4;
pub(crate) const STREAMS: usize = 3;

pub(crate) fn rope(dims: usize) -> Rope {
    Rope {
        theta: 500.0,
        dims,
        place: RopePlace::Last,
        pairing: RopePairing::Adjacent,
        yarn: None,
    }
}

pub(crate) fn yarn() -> Yarn {
    Yarn {
        factor: 16.0,
        original_context: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
    }
}

pub(crate) fn convolution(t: &mut Table, name: &str, channels: usize) -> ShortConvolution {
    ShortConvolution {
        weight: t.add(name, &[channels, 1, 3], Role::Kernel),
        taps: 3,
        dilation: 1,
        residual: true,
        activation: Some(Activation::Silu),
    }
}

/// A window, sinks, a gate, a relative bias, convolutions, scaling, a rotation.
pub(crate) fn rich_attention(t: &mut Table) -> Attention {
    let mut a = attention(t);
    a.span = Span::Sliding { window: 4 };
    a.qk_norm = Some(QkNorm {
        scope: QkNormScope::Head,
        query: t.norm("query_norm", 2),
        key: t.norm("key_norm", 2),
    });
    a.clip = Some(1.5);
    a.rope = Some(rope(2));
    a.sinks = Some(t.vector("sinks", 4));
    a.output_gate = Some(t.linear("gate", 8, HIDDEN));
    a.relative_bias = Some(RelativeBias {
        query: t.linear("bias_query", 4 * 3, HIDDEN),
        projection: t.add("bias_projection", &[3, 6], Role::Kernel),
        extent: 6,
    });
    a.convolutions = Some(KeyValueConvolutions {
        key: convolution(t, "key_convolution", 4),
        value: convolution(t, "value_convolution", 4),
    });
    a.position_scaling = Some(PositionScaling {
        floor: 24.0,
        alpha: 0.1,
    });
    a
}

/// Two index heads of four channels.
pub(crate) fn indexer(t: &mut Table, query_width: usize) -> Indexer {
    Indexer {
        heads: 2,
        head_dim: 4,
        top_k: 3,
        block: 1,
        query: t.linear("index_query", 8, query_width),
        key: Some(t.linear("index_key", 4, HIDDEN)),
        query_norm: None,
        key_norm: None,
        head_weights: None,
        scale: 0.5,
        rope: Some(rope(2)),
    }
}

/// Attention over selected blocks.
pub(crate) fn block_attention(t: &mut Table) -> Attention {
    let mut a = attention(t);
    let mut ix = indexer(t, HIDDEN);
    ix.block = 4;
    ix.query_norm = Some(t.norm("index_query_norm", 4));
    ix.key_norm = Some(IndexNorm::Rms(t.norm("index_key_norm", 4)));
    a.indexer = Some(ix);
    a
}

pub(crate) fn latent(t: &mut Table, selection: Option<LatentSelection>) -> LatentAttention {
    LatentAttention {
        heads: 3,
        nope_dim: 4,
        rope_dim: 2,
        value_dim: 5,
        latent_dim: 7,
        query_down: t.linear("query_down", 6, HIDDEN),
        query_norm: t.norm("query_norm", 6),
        query_up: t.linear("query_up", 3 * 6, 6),
        latent_down: t.linear("latent_down", 9, HIDDEN),
        latent_norm: t.norm("latent_norm", 7),
        latent_up: t.linear("latent_up", 3 * 9, 7),
        output: t.linear("output", HIDDEN, 15),
        rope: Some(rope(2)),
        scale: 0.4,
        output_gate: Some(t.linear("gate", 15, HIDDEN)),
        selection,
    }
}

/// Selects single tokens for [`latent`].
pub(crate) fn token_indexer(t: &mut Table) -> Indexer {
    let mut ix = indexer(t, 6);
    ix.key_norm = Some(IndexNorm::Layer {
        weight: t.vector("index_key_weight", 4),
        bias: t.vector("index_key_bias", 4),
        eps: 1e-6,
    });
    ix.head_weights = Some(t.linear("index_weights", 2, HIDDEN));
    ix
}

fn compressor(t: &mut Table, name: &str, width: usize, overlaps: bool) -> Compressor {
    let channels = if overlaps { 2 * width } else { width };
    let mut linear = |end: &str| t.linear(&format!("{name}.{end}"), channels, HIDDEN);
    let (value, gate) = (linear("value"), linear("gate"));
    Compressor {
        ratio: 4,
        overlaps,
        position: t.add(&format!("{name}.position"), &[4, channels], Role::Kernel),
        value,
        gate,
        norm: t.norm(&format!("{name}.norm"), width),
    }
}

/// A window of 8 and compressed entries, of which some are selected.
pub(crate) fn compressed(t: &mut Table) -> CompressedAttention {
    let weightless = RmsNorm {
        weight: None,
        eps: 1e-6,
        unit_offset: false,
    };
    CompressedAttention {
        heads: 4,
        head_dim: 6,
        window: 8,
        query_down: t.linear("query_down", 5, HIDDEN),
        query_norm: t.norm("query_norm", 5),
        query_up: t.linear("query_up", 24, 5),
        query_head_norm: weightless,
        key_value: t.linear("key_value", 6, HIDDEN),
        key_value_norm: t.norm("key_value_norm", 6),
        rope: rope(4),
        scale: 0.4,
        sinks: t.vector("sinks", 4),
        output_groups: 2,
        output_down: t.linear("output_down", 2 * 3, 12),
        output_up: t.linear("output_up", HIDDEN, 6),
        compressor: Some(compressor(t, "compressor", 6, true)),
        indexer: Some(CompressedIndexer {
            indexer: Indexer {
                key: None,
                head_weights: Some(t.linear("index_weights", 2, HIDDEN)),
                ..entry_indexer(t)
            },
            compressor: compressor(t, "index_compressor", 4, true),
        }),
    }
}

/// [`indexer`] without keys.
fn entry_indexer(t: &mut Table) -> Indexer {
    Indexer {
        heads: 2,
        head_dim: 4,
        top_k: 3,
        block: 1,
        query: t.linear("index_query", 8, 5),
        key: None,
        query_norm: None,
        key_norm: None,
        head_weights: None,
        scale: 0.5,
        rope: Some(rope(2)),
    }
}

/// A gated delta rule with `logits` decays made by linear maps through `inner` values each.
pub(crate) fn delta(t: &mut Table, logits: usize, inner: &[usize]) -> DeltaNet {
    let mut decay = Vec::new();
    let mut width = HIDDEN;
    for (index, &rows) in inner.iter().chain([&logits]).enumerate() {
        decay.push(t.linear(&format!("decay.{index}"), rows, width));
        width = rows;
    }
    DeltaNet {
        key_heads: 2,
        value_heads: 4,
        key_dim: 3,
        value_dim: 5,
        query: t.linear("query", 6, HIDDEN),
        key: t.linear("key", 6, HIDDEN),
        value: t.linear("value", 20, HIDDEN),
        convolutions: [
            convolution(t, "query_convolution", 6),
            convolution(t, "key_convolution", 6),
            convolution(t, "value_convolution", 20),
        ],
        decay,
        decay_log: t.vector("decay_log", 4),
        decay_bias: t.vector("decay_bias", logits),
        decay_floor: None,
        beta: t.linear("beta", 4, HIDDEN),
        gate: t.linear("gate", 20, HIDDEN),
        gate_activation: Activation::Sigmoid,
        norm: t.norm("norm", 5),
        output: t.linear("output", HIDDEN, 20),
    }
}

/// Kimi delta attention: 4 value heads with 3 decays each, low-rank, with a floor.
pub(crate) fn kda(t: &mut Table) -> DeltaNet {
    let mut d = delta(t, 12, &[2]);
    d.decay_floor = Some(-5.0);
    d
}

fn experts(t: &mut Table, input: usize) -> GatedUnit {
    GatedUnit {
        gate: t.add("experts.gate", &[EXPERTS, WIDTH, input], Role::Expert),
        up: t.add("experts.up", &[EXPERTS, WIDTH, input], Role::Expert),
        down: t.add("experts.down", &[EXPERTS, input, WIDTH], Role::Expert),
        width: WIDTH,
        activation: GatedActivation::Silu,
        output_gate: None,
        output_scale: None,
    }
}

/// A mixture with nothing special.
pub(crate) fn routed(t: &mut Table) -> Routed {
    Routed {
        router: Router {
            weight: t.add("router", &[EXPERTS, HIDDEN], Role::Router),
            scoring: Scoring::Softmax,
            selection_bias: None,
            groups: None,
            hash_table: None,
            weights: WeightRule::Raw,
            scale: None,
            learned_scale: None,
        },
        experts: EXPERTS,
        top_k: 2,
        unit: experts(t, HIDDEN),
        shared: Vec::new(),
        latent: None,
    }
}

/// Groups, a bias, a gated shared expert, experts at another width.
pub(crate) fn grouped(t: &mut Table) -> Routed {
    let mut shared = t.unit("shared", WIDTH + 1);
    shared.output_gate = Some(t.add("shared.output_gate", &[1, HIDDEN], Role::Vector));
    let mut r = routed(t);
    r.router.scoring = Scoring::Sigmoid;
    r.router.selection_bias = Some(t.vector("router.bias", EXPERTS));
    r.router.groups = Some(RouterGroups { count: 2, top_k: 1 });
    r.router.weights = WeightRule::Normalised { eps: 1e-20 };
    r.router.scale = Some(2.5);
    r.shared = vec![shared];
    r.latent = Some(LatentExperts {
        down: t.linear("latent.down", 6, HIDDEN),
        norm: Some(t.norm("latent.norm", 6)),
        up: t.linear("latent.up", HIDDEN, 6),
    });
    let stacks = [r.unit.gate, r.unit.up, r.unit.down];
    let shapes = [
        [EXPERTS, WIDTH, 6],
        [EXPERTS, WIDTH, 6],
        [EXPERTS, 6, WIDTH],
    ];
    for (id, shape) in stacks.into_iter().zip(shapes) {
        super::reshape(&mut t.operands[id.index()], &shape);
    }
    r.unit.activation = GatedActivation::Situ {
        beta: 4.0,
        linear_beta: 25.0,
    };
    r
}

/// Two shared experts that the router weighs too.
pub(crate) fn sharing(t: &mut Table) -> Routed {
    let shared = vec![t.unit("shared.0", WIDTH), t.unit("shared.1", WIDTH)];
    let mut r = routed(t);
    let router = r.router.weight.index();
    super::reshape(&mut t.operands[router], &[EXPERTS + 2, HIDDEN]);
    r.router.scoring = Scoring::Sigmoid;
    r.router.weights = WeightRule::WithShared { shared: 2 };
    r.router.learned_scale = Some(t.vector("router.scale", 1));
    r.shared = shared;
    r
}

/// Experts chosen by token id.
pub(crate) fn hashed(t: &mut Table) -> Routed {
    let mut r = routed(t);
    r.router.scoring = Scoring::SqrtSoftplus;
    r.router.hash_table = Some(t.add("router.table", &[VOCABULARY, 2], Role::Table));
    r.unit.activation = GatedActivation::ClampedSilu { limit: 10.0 };
    r
}

fn residual_read(t: &mut Table, name: &str) -> ResidualRead {
    ResidualRead {
        norm: t.norm(&format!("{name}.norm"), HIDDEN),
        projection: t.add(&format!("{name}.projection"), &[1, HIDDEN], Role::Vector),
    }
}

fn hyper_map(t: &mut Table, name: &str) -> HyperMap {
    let rows = (2 + STREAMS) * STREAMS;
    let width = STREAMS * HIDDEN;
    HyperMap {
        function: t.add(&format!("{name}.function"), &[rows, width], Role::Router),
        base: t.vector(&format!("{name}.base"), rows),
        scale: t.vector(&format!("{name}.scale"), 3),
    }
}

fn hyper_gate(t: &mut Table, name: &str, injects: bool) -> HyperGate {
    let width = STREAMS * HIDDEN;
    HyperGate {
        norm: t.norm(&format!("{name}.norm"), width),
        down: t.linear(&format!("{name}.down"), 2, width),
        up: t.linear(&format!("{name}.up"), width, 2),
        inject: injects.then(|| t.linear(&format!("{name}.inject"), STREAMS, width)),
    }
}

/// Three layers, of which the first and the last seal.
pub(crate) fn history() -> Program {
    let mut reduction = None;
    let mut program = program_of(|t| {
        let layers = (0..3).map(|index| {
            t.prefix = format!("layers.{index}.");
            let residual = Residual::AttentionResidual {
                mixer_read: residual_read(t, "mixer_read"),
                ffn_read: residual_read(t, "ffn_read"),
                seals: index != 1,
            };
            Layer {
                residual,
                ..super::plain_layer(t)
            }
        });
        let layers = layers.collect();
        t.prefix.clear();
        reduction = Some(StreamReduction::AttentionResidual(residual_read(t, "last")));
        layers
    });
    program.boundary.width = 3 * HIDDEN;
    program.exit.reduction = reduction;
    program
}

/// Two layers joined by hyper-connections.
pub(crate) fn connections() -> Program {
    let mut reduction = None;
    let mut program = program_of(|t| {
        let layers = (0..2).map(|index| {
            t.prefix = format!("layers.{index}.");
            let residual = Residual::HyperConnections {
                streams: STREAMS,
                sinkhorn_iterations: 20,
                eps: 1e-6,
                norm_eps: 1e-6,
                mixer: hyper_map(t, "mixer_map"),
                ffn: hyper_map(t, "ffn_map"),
            };
            Layer {
                residual,
                ..super::plain_layer(t)
            }
        });
        let layers = layers.collect();
        t.prefix.clear();
        reduction = Some(StreamReduction::HyperConnections {
            function: t.add("last.function", &[STREAMS, STREAMS * HIDDEN], Role::Router),
            base: t.vector("last.base", STREAMS),
            scale: t.vector("last.scale", 1),
            eps: 1e-6,
            norm_eps: 1e-6,
        });
        layers
    });
    program.boundary.width = STREAMS * HIDDEN;
    program.exit.reduction = reduction;
    program
}

/// Two layers joined by gated streams, with an n-gram embedding before the second.
pub(crate) fn gated_streams() -> Program {
    let mut reduction = None;
    let mut embedding = None;
    let mut program = program_of(|t| {
        let layers = (0..2).map(|index| {
            t.prefix = format!("layers.{index}.");
            let residual = Residual::HyperResidual {
                streams: STREAMS,
                mixer: hyper_gate(t, "mixer_gate", true),
                ffn: hyper_gate(t, "ffn_gate", true),
            };
            Layer {
                residual,
                ..super::plain_layer(t)
            }
        });
        let layers = layers.collect();
        t.prefix.clear();
        reduction = Some(StreamReduction::HyperResidual(hyper_gate(t, "last", false)));
        embedding = Some(ngram(t));
        layers
    });
    program.boundary.width = STREAMS * HIDDEN;
    program.boundary.needs_token_ids = true;
    program.exit.reduction = reduction;
    program.entry.per_layer_embeddings = embedding.into_iter().collect();
    program
}

/// 2-grams and 3-grams, two heads each, in a table of 40 rows of 3 values.
fn ngram(t: &mut Table) -> PerLayerEmbedding {
    let width = STREAMS * HIDDEN;
    let mut kernel = convolution(t, "ngram.convolution", width);
    kernel.dilation = 3;
    kernel.residual = false;
    PerLayerEmbedding {
        stored: None,
        layer: 1,
        ngram: 3,
        heads_per_ngram: 2,
        boundary_token: 10,
        multipliers: vec![5, 7, 9],
        sizes: vec![7, 9, 11, 13],
        offsets: vec![0, 7, 16, 27],
        table: t.add("ngram.table", &[40, 3], Role::Embedding),
        key: t.linear("ngram.key", width, 12),
        value: t.linear("ngram.value", HIDDEN, 12),
        key_norm: t.norm("ngram.key_norm", width),
        query_norm: t.norm("ngram.query_norm", width),
        convolution_norm: t.norm("ngram.convolution_norm", width),
        convolution: kernel,
    }
}

/// Layers of latent attention: no selection, its own, and one that shares it.
pub(crate) fn selecting() -> Program {
    program_of(|t| {
        let mut layers = Vec::new();
        for index in 0..3 {
            t.prefix = format!("layers.{index}.");
            let selection = match index {
                0 => None,
                1 => Some(LatentSelection::Own(token_indexer(t))),
                _ => Some(LatentSelection::Shared),
            };
            let mixer = Mixer::LatentAttention(latent(t, selection));
            let ffn = Ffn::Dense(t.unit("unit", WIDTH));
            layers.push(layer(t, mixer, ffn));
        }
        layers
    })
}

/// A layer whose blocks end in convolutions and norms.
pub(crate) fn convolved() -> Program {
    program_of(|t| {
        let mut layer = super::plain_layer(t);
        layer.mixer.convolution = Some(convolution(t, "mixer_convolution", HIDDEN));
        layer.ffn.convolution = Some(convolution(t, "ffn_convolution", HIDDEN));
        layer.mixer.post_norm = normed(t, "mixer_post_norm", ()).pre_norm;
        layer.ffn.post_norm = normed(t, "ffn_post_norm", ()).pre_norm;
        vec![layer]
    })
}

/// Two draft heads of a program, which share its head: they concatenate where it has one stream and
/// add where it has several.
pub(crate) fn drafting(mut program: Program) -> Program {
    let streams = program.boundary.width / HIDDEN;
    let mut t = Table {
        operands: std::mem::take(&mut program.operands),
        prefix: String::new(),
    };
    let depths = (0..2).map(|index| {
        t.prefix = format!("draft.{index}.");
        let map = match streams {
            1 => JoinMap::Concatenate {
                embedding_first: index == 0,
                projection: t.linear("projection", HIDDEN, 2 * HIDDEN),
            },
            _ => JoinMap::Add {
                embedding: t.linear("embedding", HIDDEN, HIDDEN),
                hidden: t.linear("hidden", HIDDEN, HIDDEN),
            },
        };
        // The second head's norm covers all streams.
        let (scope, width) = match index {
            0 => (HiddenNormScope::Stream, HIDDEN),
            _ => (HiddenNormScope::Joint, streams * HIDDEN),
        };
        let join = Join {
            embedding_norm: t.norm("embedding_norm", HIDDEN),
            hidden_norm_scope: scope,
            hidden_norm: t.norm("hidden_norm", width),
            map,
        };
        let residual = match streams {
            1 => Residual::Plain,
            _ => Residual::HyperResidual {
                streams,
                mixer: hyper_gate(&mut t, "mixer_gate", true),
                ffn: hyper_gate(&mut t, "ffn_gate", true),
            },
        };
        let reduction = (streams > 1)
            .then(|| StreamReduction::HyperResidual(hyper_gate(&mut t, "last", false)));
        DraftDepth {
            join,
            layer: Layer {
                residual,
                ..super::plain_layer(&mut t)
            },
            exit: Exit {
                reduction,
                norm: Some(t.norm("final", HIDDEN)),
                ..program.exit.clone()
            },
        }
    });
    program.draft = Some(Draft {
        reads: match streams {
            1 => DraftReads::Normed,
            _ => DraftReads::Streams,
        },
        depths: depths.collect(),
        recycles: false,
    });
    program.operands = t.operands;
    program
}
