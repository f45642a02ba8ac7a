//! Lowering of the Qwen3.5 line and of Qwen3-Next: the released shapes, the fixtures, and what the
//! program says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod qwen36_table;

use common::{defects, fixture, one_defect, parameters, program, tensor, with, without};
use lamella_program::block::{
    Activation, Attention, DeltaNet, Ffn, Mixer, QkNormScope, Rope, RopePairing, RopePlace, Routed,
    Scoring, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::{Defect, OperandId, Program, Role, TensorInfo, state};
use qwen36_table::{
    ALONE, Layout, Sizes, WRAPPED, a3b, dense, layouts, next, small_sparse, sparse, tensors, text,
    tower, wrapped,
};
use serde_json::json;

/// What the page says of a model: total parameters and those outside the experts in millions,
/// bytes of state a token in bf16, MiB of recurrent matrices and of convolution windows, millions
/// of parameters of the draft head.
struct Published {
    total: f64,
    resident: f64,
    per_token: usize,
    fixed: [f64; 2],
    draft: f64,
}

fn published(
    total: f64,
    resident: f64,
    per_token: usize,
    fixed: [f64; 2],
    draft: f64,
) -> Published {
    Published {
        total,
        resident,
        per_token,
        fixed,
        draft,
    }
}

fn assert_size(p: &Program, expected: &Published, name: &str) {
    // Within the last digit that the page gives.
    let near = |found: f64, stated: f64, digit: f64| (found - stated).abs() <= 0.51 * digit;
    let millions = |n: u64| n as f64 / 1e6;
    let digit = if expected.total > 1e6 { 100.0 } else { 1.0 };
    let total = millions(p.parameters());
    assert!(near(total, expected.total, digit), "{name}: {total}");
    let resident = millions(parameters(p, |role| role != Role::Expert));
    let digit = if expected.total > 1e6 { 10.0 } else { 1.0 };
    assert!(
        near(resident, expected.resident, digit),
        "{name}: {resident}"
    );
    assert_eq!(state::bytes_per_token(p), 2 * expected.per_token, "{name}");
    let fixed = state::fixed_bytes(p) as f64 / f64::from(1 << 20);
    let stated = expected.fixed[0] + expected.fixed[1];
    assert!(near(fixed, stated, 0.1), "{name}: {fixed}");
    let draft = millions(p.draft_parameters());
    let digit = if expected.draft > 1e3 { 100.0 } else { 0.1 };
    assert!(near(draft, expected.draft, digit), "{name}: {draft}");
}

#[test]
fn released_models_have_their_published_sizes() {
    let cases = [
        (
            "35B",
            a3b(),
            published(34_661.0, 2_448.0, 20_480, [60.0, 2.8], 844.6),
        ),
        (
            "27B",
            dense(5120, 64, [24, 4], 48, 17_408),
            published(26_896.0, 26_896.0, 65_536, [144.0, 5.6], 424.7),
        ),
        (
            "9B",
            dense(4096, 32, [16, 4], 32, 12_288),
            published(8_954.0, 8_954.0, 32_768, [48.0, 2.3], 243.3),
        ),
        (
            "4B",
            dense(2560, 32, [16, 4], 32, 9_216),
            published(4_206.0, 4_206.0, 32_768, [48.0, 2.3], 120.6),
        ),
        (
            "2B",
            dense(2048, 24, [8, 2], 16, 6_144),
            published(1_882.0, 1_882.0, 12_288, [18.0, 1.3], 60.8),
        ),
        (
            "0.8B",
            dense(1024, 24, [8, 2], 16, 3_584),
            published(752.0, 752.0, 12_288, [18.0, 1.3], 20.5),
        ),
    ];
    for (name, sizes, expected) in cases {
        let text = text(&sizes);
        let mut table = tensors(&text, WRAPPED, Layout::Stacked);
        table.extend(tower(27));
        let p = program(&wrapped(&text), &table);
        assert_size(&p, &expected, name);
        if name == "35B" {
            assert_eq!(table.len(), 1045);
            let experts = parameters(&p, |role| role == Role::Expert);
            assert_eq!(experts, 10_240 * 3_145_728);
            assert_eq!(p.unused.len(), 1);
            assert_eq!(p.unused[0].tensors.len(), 333);
        }
    }
}

#[test]
fn text_only_releases_have_their_published_sizes() {
    let largest = Sizes {
        heads: [64, 4],
        ..sparse(8192, 92, 128, [512, 10, 2048, 2048])
    };
    let text_only = text(&largest);
    let table = tensors(&text_only, ALONE, Layout::Stacked);
    assert_eq!(table.len(), 1609);
    let whole = with(&text_only, "model_type", json!("qwen3_5_moe"));
    let p = program(&whole, &table);
    let expected = published(2_419_800.0, 48_980.0, 94_208, [552.0, 16.2], 26_400.0);
    assert_size(&p, &expected, "2.4T");
    assert_eq!(program(&text_only, &table), p);

    let eighty = Sizes {
        vocabulary: 151_936,
        ..sparse(2048, 48, 32, [512, 10, 512, 512])
    };
    let config = next(&text(&eighty));
    let table = tensors(&config, ALONE, Layout::Apart);
    let p = program(&config, &table);
    let expected = published(79_674.0, 2_365.0, 24_576, [72.0, 3.4], 1_650.0);
    assert_size(&p, &expected, "Next");
}

/// Parameters of everything that is neither a scale nor unused.
fn used_elements(p: &Program, table: &[TensorInfo]) -> u64 {
    let unused: Vec<&String> = p.unused.iter().flat_map(|part| &part.tensors).collect();
    let used = |t: &&TensorInfo| !unused.contains(&&t.name) && !t.name.ends_with("_scale_inv");
    let shapes = table.iter().filter(used).map(|t| &t.shape);
    shapes
        .map(|shape| shape.iter().product::<usize>() as u64)
        .sum()
}

#[test]
fn the_fixtures_close() {
    for (name, unused, drafts) in [
        ("qwen36-101", 1, 1),
        ("qwen36fp8-404", 1, 0),
        ("qwen36fp8-707", 1, 1),
        ("qwen35dense-303", 1, 1),
        ("qwen3next-505", 0, 1),
    ] {
        let (config, table) = fixture(name);
        let p = program(&config, &table);
        assert_eq!(
            (p.unused.len(), p.depths().len()),
            (unused, drafts),
            "{name}"
        );
        let parameters = p.parameters() + p.draft_parameters();
        assert_eq!(parameters, used_elements(&p, &table), "{name}");
        assert_eq!(p.boundary.state_schema, "qwen36/stream.v1");
    }
}

fn attention(p: &Program) -> &Attention {
    match &p.layers[3].mixer.body {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn delta(p: &Program) -> &DeltaNet {
    match &p.layers[1].mixer.body {
        Mixer::GatedDeltaNet(delta) => delta,
        other => panic!("{other:?}"),
    }
}

fn routed(p: &Program) -> &Routed {
    match &p.layers[1].ffn.body {
        Ffn::Routed(routed) => routed,
        other => panic!("{other:?}"),
    }
}

/// End of the source's name, first row and number of rows of each slice of an operand.
fn rows(p: &Program, id: OperandId) -> Vec<(&str, usize, usize)> {
    let slices = p.operand(id).parts.iter().flatten();
    slices
        .map(|s| {
            let name = s.tensor.strip_suffix(".weight").unwrap_or(&s.tensor);
            (name.rsplit('.').next().unwrap(), s.start, s.rows)
        })
        .collect()
}

#[test]
fn attention_says_what_the_page_says() {
    let (config, table) = &layouts()[0];
    let p = program(config, table);
    let a = attention(&p);
    assert_eq!((a.heads, a.kv_heads, a.head_dim), (4, 2, 8));
    assert_eq!(a.scale, 8f32.sqrt().recip());
    let rope = Rope {
        theta: 1e7,
        dims: 2,
        place: RopePlace::First,
        pairing: RopePairing::Half,
        yarn: None,
    };
    assert_eq!(a.rope, Some(rope));
    let norm = a.qk_norm.as_ref().unwrap();
    assert_eq!(norm.scope, QkNormScope::Head);
    assert!(norm.query.unit_offset && norm.key.unit_offset);
    let starts = |offset: usize| -> Vec<(&str, usize, usize)> {
        (0..4).map(|h| ("q_proj", 16 * h + offset, 8)).collect()
    };
    assert_eq!(rows(&p, a.query.weight), starts(0));
    let gate = a.output_gate.as_ref().unwrap();
    assert_eq!(rows(&p, gate.weight), starts(8));
    for norm in [
        &p.layers[3].mixer.pre_norm,
        &p.layers[0].ffn.pre_norm,
        &p.exit.norm,
    ] {
        let norm = norm.as_ref().unwrap();
        assert!(norm.unit_offset && norm.eps == 1e-6);
    }
}

#[test]
fn the_delta_net_says_what_the_page_says() {
    let (config, table) = &layouts()[0];
    let p = program(config, table);
    let d = delta(&p);
    assert_eq!((d.key_heads, d.value_heads), (2, 6));
    assert_eq!((d.key_dim, d.value_dim), (5, 6));
    assert_eq!((d.decay_floor, d.gate_activation), (None, Activation::Silu));
    assert!(!d.norm.unit_offset);
    assert_eq!(d.norm.eps, 1e-6);
    assert_eq!(rows(&p, d.query.weight), [("in_proj_qkv", 0, 10)]);
    assert_eq!(rows(&p, d.key.weight), [("in_proj_qkv", 10, 10)]);
    assert_eq!(rows(&p, d.value.weight), [("in_proj_qkv", 20, 36)]);
    assert_eq!(rows(&p, d.gate.weight), [("in_proj_z", 0, 36)]);
    assert_eq!(rows(&p, d.beta.weight), [("in_proj_b", 0, 6)]);
    assert_eq!(rows(&p, d.decay[0].weight), [("in_proj_a", 0, 6)]);
    let kernels = d.convolutions.each_ref().map(|c| rows(&p, c.weight)[0]);
    let expected = [("conv1d", 0, 10), ("conv1d", 10, 10), ("conv1d", 20, 36)];
    assert_eq!(kernels, expected);
    for c in &d.convolutions {
        assert_eq!((c.taps, c.dilation, c.residual), (4, 1, false));
        assert_eq!(c.activation, Some(Activation::Silu));
    }
}

#[test]
fn joined_maps_are_grouped_by_key_head() {
    let (config, table) = &layouts()[4];
    let p = program(config, table);
    let d = delta(&p);
    // A group: 5 query rows, 5 key rows, 18 value rows, 18 gate rows; 3 betas, 3 decays.
    let wide = |start, rows| {
        [
            ("in_proj_qkvz", start, rows),
            ("in_proj_qkvz", 46 + start, rows),
        ]
    };
    assert_eq!(rows(&p, d.query.weight), wide(0, 5));
    assert_eq!(rows(&p, d.key.weight), wide(5, 5));
    assert_eq!(rows(&p, d.value.weight), wide(10, 18));
    assert_eq!(rows(&p, d.gate.weight), wide(28, 18));
    let narrow = |start| [("in_proj_ba", start, 3), ("in_proj_ba", 6 + start, 3)];
    assert_eq!(rows(&p, d.beta.weight), narrow(0));
    assert_eq!(rows(&p, d.decay[0].weight), narrow(3));
}

#[test]
fn experts_say_what_the_page_says() {
    let (config, table) = &layouts()[0];
    let p = program(config, table);
    let r = routed(&p);
    assert_eq!((r.experts, r.top_k, r.unit.width), (5, 2, 7));
    assert_eq!(r.router.scoring, Scoring::Softmax);
    assert_eq!(r.router.weights, WeightRule::Normalised { eps: 0.0 });
    assert!(r.router.selection_bias.is_none() && r.router.scale.is_none());
    assert_eq!(rows(&p, r.unit.gate)[3], ("gate_up_proj", 42, 7));
    assert_eq!(rows(&p, r.unit.up)[3], ("gate_up_proj", 49, 7));
    assert_eq!(rows(&p, r.unit.down)[3], ("down_proj", 72, 24));
    assert_eq!((r.shared.len(), r.shared[0].width), (1, 9));
    let gate = p.operand(r.shared[0].output_gate.unwrap());
    assert_eq!(gate.shape, [1, 24]);
    assert!(
        gate.parts[0][0]
            .tensor
            .ends_with(".mlp.shared_expert_gate.weight")
    );

    let (config, table) = &layouts()[4];
    let raw = with(config, "norm_topk_prob", json!(false));
    assert_eq!(
        routed(&program(&raw, table)).router.weights,
        WeightRule::Raw
    );
}

#[test]
fn layers_without_experts_are_listed_or_between_the_steps() {
    let (config, mut table) = layouts().remove(4);
    let listed = with(&config, "mlp_only_layers", json!([0, 2]));
    let stepped = with(&config, "decoder_sparse_step", json!(2));
    let text = one_defect(&listed, &table);
    let start = "config.json: mlp_only_layers: is [0,2], but the checkpoint fits []; with it, ";
    assert!(text.starts_with(start), "{text}");
    table.retain(|t| {
        ![0, 2]
            .iter()
            .any(|i| t.name.contains(&format!("layers.{i}.mlp.")))
    });
    // The draft head keeps its experts.
    let (_, whole) = layouts().remove(4);
    table.extend(
        whole
            .into_iter()
            .filter(|t| t.name.starts_with("mtp.layers.0.mlp.")),
    );
    for (layer, end) in [0, 2]
        .into_iter()
        .flat_map(|i| ["gate", "up", "down"].map(|e| (i, e)))
    {
        let shape = match end {
            "down" => [24, 5120],
            _ => [5120, 24],
        };
        let name = format!("model.layers.{layer}.mlp.{end}_proj.weight");
        table.push(tensor(name, "BF16", &shape));
    }
    let p = program(&listed, &table);
    assert!(matches!(&p.layers[2].ffn.body, Ffn::Dense(unit) if unit.width == 5120));
    assert_eq!(program(&stepped, &table), p);
}

#[test]
fn each_tensor_decides_whether_it_is_in_codes() {
    let (config, table) = &layouts()[1];
    let p = program(config, table);
    let query = p.operand(attention(&p).query.weight);
    let scale = "model.language_model.layers.3.self_attn.q_proj.weight_scale_inv";
    for slice in &query.parts[0] {
        let block = [128, 128];
        let expected = Coding::BlockFp8 {
            scale: scale.into(),
            block,
        };
        assert_eq!(slice.coding, Some(expected));
    }
    let plain = p.operand(delta(&p).beta.weight);
    assert_eq!(plain.parts[0][0].coding, None);
    let mut f32_scales = table.clone();
    for t in f32_scales
        .iter_mut()
        .filter(|t| t.name.ends_with("_scale_inv"))
    {
        *t = tensor(t.name.clone(), "F32", &t.shape.clone());
    }
    assert_eq!(program(config, &f32_scales), p);
}

#[test]
fn a_language_model_may_stand_alone_under_either_name() {
    let text = small_sparse();
    let long = program(&text, &tensors(&text, WRAPPED, Layout::Stacked));
    let wrapper = wrapped(&text);
    let short = program(&wrapper, &tensors(&text, ALONE, Layout::Stacked));
    assert_eq!(long.operands.len(), short.operands.len());
    // The list of mixers or the interval is enough, and both have to say the same.
    let table = tensors(&text, ALONE, Layout::Stacked);
    let other = with(&text, "full_attention_interval", json!(3));
    let found = common::one_defect(&other, &table);
    let start = "config.json: full_attention_interval: is 3, but ";
    assert!(found.starts_with(start), "{found}");
    assert_eq!(program(&without(&text, "layer_types"), &table), short);
    assert_eq!(
        program(&without(&text, "full_attention_interval"), &table),
        short
    );
}

#[test]
fn the_head_may_be_tied_inside_or_outside() {
    let text = small_sparse();
    let mut table = tensors(&text, WRAPPED, Layout::Stacked);
    let config = wrapped(&text);
    let both = with(&config, "tie_word_embeddings", json!(true));
    let both = with(&both, "text_config.tie_word_embeddings", json!(true));
    let extra = Defect::UnclaimedTensor("lm_head.weight".into());
    assert_eq!(defects(&both, &table), [extra]);
    table.retain(|t| t.name != "lm_head.weight");
    let p = program(&both, &table);
    assert_eq!(p.exit.head, p.entry.embedding);
    assert_eq!(program(&without(&both, "tie_word_embeddings"), &table), p);
    assert_eq!(
        program(&without(&both, "text_config.tie_word_embeddings"), &table),
        p
    );
    let torn = one_defect(&with(&both, "tie_word_embeddings", json!(false)), &table);
    assert!(
        torn.contains("text_config.tie_word_embeddings: is true"),
        "{torn}"
    );
}
