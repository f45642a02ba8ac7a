//! The closure check finds every defect, all of them at once.

use lamella_program::block::{
    Attention, Block, Ffn, GatedActivation, GatedUnit, Layer, Linear, Mixer, Residual, RmsNorm,
    Routed, Router, Scoring, Span, WeightRule,
};
use lamella_program::closure::{check, check_against};
use lamella_program::program::{Boundary, Dims, Entry, Exit, PROGRAM_VERSION};
use lamella_program::state;
use lamella_program::{Defect, Encoding, Operand, OperandId, Program, Role, Slice, TensorInfo};

const HIDDEN: usize = 8;
const VOCABULARY: usize = 11;
const EXPERTS: usize = 3;
const WIDTH: usize = 5;

#[derive(Default)]
struct Table(Vec<Operand>);

impl Table {
    fn add(&mut self, name: &str, shape: &[usize], role: Role) -> OperandId {
        let parts = if role == Role::Expert {
            (0..shape[0])
                .map(|e| vec![Slice::whole(format!("{name}.{e}"), &shape[1..])])
                .collect()
        } else {
            vec![vec![Slice::whole(name, shape)]]
        };
        self.0.push(Operand {
            name: name.to_owned(),
            shape: shape.to_vec(),
            role,
            parts,
        });
        OperandId(self.0.len() as u32 - 1)
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Linear {
        Linear {
            weight: self.add(name, &[rows, cols], Role::Linear),
            bias: None,
        }
    }

    fn norm(&mut self, name: &str) -> RmsNorm {
        let weight = Some(self.add(name, &[HIDDEN], Role::Vector));
        RmsNorm {
            weight,
            eps: 1e-5,
            unit_offset: false,
        }
    }
}

fn layer(t: &mut Table) -> Layer {
    let attention = Attention {
        heads: 4,
        kv_heads: 2,
        head_dim: 2,
        query: t.linear("q", 8, HIDDEN),
        key: t.linear("k", 4, HIDDEN),
        value: t.linear("v", 4, HIDDEN),
        output: t.linear("o", HIDDEN, 8),
        qk_norm: None,
        clip: None,
        rope: None,
        scale: 0.7,
        span: Span::Full,
        sinks: None,
        output_gate: None,
        relative_bias: None,
        convolutions: None,
        position_scaling: None,
        indexer: None,
    };
    let routed = Routed {
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
        unit: GatedUnit {
            gate: t.add("gate", &[EXPERTS, WIDTH, HIDDEN], Role::Expert),
            up: t.add("up", &[EXPERTS, WIDTH, HIDDEN], Role::Expert),
            down: t.add("down", &[EXPERTS, HIDDEN, WIDTH], Role::Expert),
            width: WIDTH,
            activation: GatedActivation::Silu,
            output_gate: None,
            output_scale: None,
        },
        shared: Vec::new(),
        latent: None,
    };
    Layer {
        residual: Residual::Plain,
        mixer: Block {
            pre_norm: Some(t.norm("norm1")),
            body: Mixer::Attention(attention),
            convolution: None,
            post_norm: None,
        },
        ffn: Block {
            pre_norm: Some(t.norm("norm2")),
            body: Ffn::Routed(routed),
            convolution: None,
            post_norm: None,
        },
    }
}

fn program() -> Program {
    let mut t = Table::default();
    let embedding = t.add("embedding", &[VOCABULARY, HIDDEN], Role::Embedding);
    let layers = vec![layer(&mut t)];
    let norm = Some(t.norm("final"));
    let head = t.add("head", &[VOCABULARY, HIDDEN], Role::Head);
    Program {
        version: PROGRAM_VERSION,
        family: "made up".to_owned(),
        dims: Dims {
            hidden: HIDDEN,
            vocabulary: VOCABULARY,
            context: 64,
        },
        boundary: Boundary {
            state_schema: "made-up/1".to_owned(),
            width: HIDDEN,
            needs_token_ids: false,
        },
        entry: Entry {
            embedding,
            scale: None,
            norm: None,
            per_layer_embeddings: Vec::new(),
        },
        layers,
        exit: Exit {
            reduction: None,
            norm,
            head,
            logits: VOCABULARY,
            scale: None,
            soft_cap: None,
        },
        operands: t.0,
        unused: Vec::new(),
    }
}

fn tensors(program: &Program) -> Vec<TensorInfo> {
    let slices = program
        .operands
        .iter()
        .flat_map(|o| o.parts.iter().flatten());
    slices
        .map(|s| TensorInfo {
            name: s.tensor.clone(),
            dtype: "BF16".to_owned(),
            encoding: Some(Encoding::Bf16),
            shape: s.tensor_shape.clone(),
        })
        .collect()
}

fn attention(program: &mut Program) -> &mut Attention {
    match &mut program.layers[0].mixer.body {
        Mixer::Attention(a) => a,
        _ => unreachable!("the test program has attention"),
    }
}

#[test]
fn a_closed_program_has_no_defects_and_survives_json() {
    let program = program();
    assert_eq!(check_against(&program, &tensors(&program)), []);
    let json = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
}

#[test]
fn unknown_fields_in_a_stored_program_are_refused() {
    let mut json = serde_json::to_value(program()).unwrap();
    json["layers"][0]["mixer"]["body"]["surprise"] = 1.into();
    assert!(
        serde_json::from_value::<Program>(json)
            .unwrap_err()
            .to_string()
            .contains("surprise")
    );
}

#[test]
fn every_missing_tensor_is_its_own_defect() {
    let program = program();
    let all = tensors(&program);
    for (index, gone) in all.iter().enumerate() {
        let mut some = all.clone();
        some.remove(index);
        let defects = check_against(&program, &some);
        assert!(
            matches!(&defects[..], [Defect::MissingTensor { tensor, .. }] if *tensor == gone.name),
            "{}: {defects:?}",
            gone.name
        );
    }
}

#[test]
fn unclaimed_misshaped_and_mistyped_tensors_are_reported_together() {
    let program = program();
    let mut table = tensors(&program);
    table.push(TensorInfo {
        name: "extra".to_owned(),
        ..table[0].clone()
    });
    table[1].shape = vec![9, 9];
    table[2].dtype = "F8_E4M3".to_owned();
    table[2].encoding = None;
    let defects = check_against(&program, &table);
    assert!(matches!(&defects[..], [
        Defect::TensorShape { .. },
        Defect::ElementType { .. },
        Defect::UnclaimedTensor(name),
    ] if name == "extra"));
}

#[test]
fn an_operand_of_two_types_is_a_defect() {
    let program = program();
    let mut table = tensors(&program);
    let expert = table.iter_mut().find(|t| t.name == "gate.1").unwrap();
    expert.dtype = "F32".to_owned();
    let defects = check_against(&program, &table);
    assert!(matches!(&defects[..], [Defect::MixedTypes { operand, .. }] if operand == "gate"));
}

/// Damages a program, and expects one text in the only defect.
fn check_damage(damage: impl FnOnce(&mut Program), expected: &str) {
    let mut program = program();
    damage(&mut program);
    let texts: Vec<String> = check(&program).iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|t| t.contains(expected)),
        "{expected}: {texts:?}"
    );
}

#[test]
fn contradictions_inside_a_program_are_named() {
    check_damage(|p| p.version = PROGRAM_VERSION + 1, "newer");
    check_damage(|p| p.dims.context = 0, "context is zero");
    check_damage(|p| p.layers.clear(), "number of layers is zero");
    check_damage(
        |p| p.exit.head = OperandId(999),
        "operand number 999 does not exist",
    );
    check_damage(|p| p.exit.logits = VOCABULARY + 1, "12 logits of 11 rows");
    check_damage(|p| attention(p).kv_heads = 3, "cannot share");
    check_damage(|p| attention(p).head_dim = 0, "is zero");
    check_damage(
        |p| attention(p).span = Span::Sliding { window: 0 },
        "window is zero",
    );
    check_damage(|p| p.operands[3].name = "q".to_owned(), "used twice");
    check_damage(|p| p.operands[0].shape = vec![usize::MAX, 8], "overflows");
    check_damage(|p| p.operands[0].shape = vec![0, 8], "no elements");
    check_damage(|p| p.operands[0].parts[0][0].start = 1, "reaches beyond");
    check_damage(|p| p.operands[0].parts[0][0].rows = 3, "do not add up");
    check_damage(|p| p.layers[0].ffn.pre_norm = None, "no block uses it");
    check_damage(
        |p| {
            if let Some(norm) = &mut p.exit.norm {
                norm.eps = f32::NAN;
            }
        },
        "eps NaN",
    );
    check_damage(
        |p| {
            if let Ffn::Routed(r) = &mut p.layers[0].ffn.body {
                r.top_k = 9;
            }
        },
        "9 experts chosen of 3",
    );
}

#[test]
fn state_sums_follow_the_declaration() {
    let program = program();
    // Keys and values of two heads of two channels, f32.
    assert_eq!(state::bytes_per_token(&program), 2 * 4 * 4);
    assert_eq!(state::fixed_bytes(&program), 0);
    assert!(
        state::layer_state(&program, 0)
            .iter()
            .all(|i| i.shape.truncates())
    );
}
