//! Misreadings of every family's mathematics, one at a time: each must show in the fixtures. A
//! fixture that a misreading passes proves nothing about it.

mod common;

use common::{read, reference_matrix, reference_sequence, repository};
use lamella_engine::{Model, Options, lower};
use lamella_program::Program;
use lamella_program::block::{
    Activation, Attention, CompressedAttention, DeltaNet, Ffn, GatedActivation, GatedUnit,
    LatentAttention, LatentSelection, Mixer, Residual, RmsNorm, Rope, RopePairing, RopePlace,
    Routed, Scoring, ShortConvolution, Span, WeightRule,
};
use lamella_program::program::StreamReduction;
use std::path::Path;

/// Changes a program wherever the misreading applies; whether it applied.
type Misreading = fn(&mut Program) -> bool;

fn attentions(p: &mut Program) -> impl Iterator<Item = &mut Attention> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::Attention(a) => Some(a),
        _ => None,
    })
}

fn latents(p: &mut Program) -> impl Iterator<Item = &mut LatentAttention> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::LatentAttention(a) => Some(a),
        _ => None,
    })
}

fn compressed(p: &mut Program) -> impl Iterator<Item = &mut CompressedAttention> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::CompressedAttention(a) => Some(a),
        _ => None,
    })
}

fn deltas(p: &mut Program) -> impl Iterator<Item = &mut DeltaNet> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => Some(d),
        _ => None,
    })
}

fn routed(p: &mut Program) -> impl Iterator<Item = &mut Routed> {
    p.layers.iter_mut().filter_map(|l| match &mut l.ffn.body {
        Ffn::Routed(r) => Some(r),
        _ => None,
    })
}

fn units(p: &mut Program) -> impl Iterator<Item = &mut GatedUnit> {
    p.layers.iter_mut().flat_map(|l| match &mut l.ffn.body {
        Ffn::Dense(unit) => vec![unit],
        Ffn::Routed(r) => std::iter::once(&mut r.unit).chain(&mut r.shared).collect(),
        _ => Vec::new(),
    })
}

fn ropes(p: &mut Program) -> impl Iterator<Item = &mut Rope> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::Attention(a) => a.rope.as_mut(),
        Mixer::LatentAttention(a) => a.rope.as_mut(),
        Mixer::CompressedAttention(a) => Some(&mut a.rope),
        _ => None,
    })
}

fn index_ropes(p: &mut Program) -> impl Iterator<Item = &mut Rope> {
    p.layers.iter_mut().filter_map(|l| match &mut l.mixer.body {
        Mixer::Attention(a) => a.indexer.as_mut()?.rope.as_mut(),
        Mixer::LatentAttention(a) => match a.selection.as_mut()? {
            LatentSelection::Own(ix) => ix.rope.as_mut(),
            LatentSelection::Shared => None,
        },
        Mixer::CompressedAttention(a) => a.indexer.as_mut()?.indexer.rope.as_mut(),
        _ => None,
    })
}

fn block_norms(p: &mut Program) -> impl Iterator<Item = &mut RmsNorm> {
    let norms = p
        .layers
        .iter_mut()
        .map(|l| (&mut l.mixer.pre_norm, &mut l.ffn.pre_norm));
    norms.flat_map(|(mixer, ffn)| mixer.iter_mut().chain(ffn))
}

fn convolutions(p: &mut Program) -> impl Iterator<Item = &mut ShortConvolution> {
    p.layers.iter_mut().flat_map(|l| {
        let mut all: Vec<&mut ShortConvolution> = Vec::new();
        match &mut l.mixer.body {
            Mixer::Attention(a) => {
                all.extend(
                    a.convolutions
                        .iter_mut()
                        .flat_map(|c| [&mut c.key, &mut c.value]),
                );
            }
            Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => all.extend(&mut d.convolutions),
            _ => {}
        }
        all.extend(&mut l.mixer.convolution);
        all.extend(&mut l.ffn.convolution);
        all
    })
}

/// Applies a change to all; whether there were any.
fn each<T>(all: impl Iterator<Item = T>, mut change: impl FnMut(T)) -> bool {
    let mut any = false;
    for one in all {
        change(one);
        any = true;
    }
    any
}

fn other_pairing(rope: &mut Rope) {
    rope.pairing = match rope.pairing {
        RopePairing::Half => RopePairing::Adjacent,
        RopePairing::Adjacent => RopePairing::Half,
    };
}

fn other_place(rope: &mut Rope) {
    rope.place = match rope.place {
        RopePlace::First => RopePlace::Last,
        RopePlace::Last => RopePlace::First,
    };
}

const MISREADINGS: &[(&str, Misreading)] = &[
    ("block norms: offset", |p| {
        each(block_norms(p), |n| n.unit_offset = !n.unit_offset)
    }),
    ("block norms: large eps", |p| {
        each(block_norms(p), |n| n.eps = 0.1)
    }),
    ("final norm: offset", |p| {
        each(p.exit.norm.iter_mut(), |n| n.unit_offset = !n.unit_offset)
    }),
    ("rope: pairing", |p| each(ropes(p), other_pairing)),
    ("rope: base", |p| each(ropes(p), |r| r.theta *= 4.0)),
    ("rope: place", |p| {
        let partial: Vec<_> = attentions(p)
            .filter(|a| a.rope.as_ref().is_some_and(|r| r.dims < a.head_dim))
            .filter_map(|a| a.rope.as_mut())
            .collect();
        each(partial.into_iter(), other_place) || each(compressed(p), |a| other_place(&mut a.rope))
    }),
    ("rope: no interpolation", |p| {
        each(ropes(p).filter(|r| r.yarn.is_some()), |r| r.yarn = None)
    }),
    ("index rope: pairing", |p| {
        each(index_ropes(p), other_pairing)
    }),
    ("index rope: place", |p| each(index_ropes(p), other_place)),
    ("attention: scale", |p| {
        each(attentions(p), |a| a.scale *= 1.5)
            | each(latents(p), |a| a.scale *= 1.5)
            | each(compressed(p), |a| a.scale *= 1.5)
    }),
    ("attention: query and key norms swapped", |p| {
        // Without a rotation between them only the product of the two weights counts.
        let rotated = attentions(p).filter(|a| a.rope.is_some());
        let normed = rotated.filter_map(|a| a.qk_norm.as_mut());
        let alike = normed.filter(|n| n.query.weight != n.key.weight);
        each(alike, |n| std::mem::swap(&mut n.query, &mut n.key))
    }),
    ("attention: norms' offset", |p| {
        each(attentions(p).filter_map(|a| a.qk_norm.as_mut()), |n| {
            n.query.unit_offset = !n.query.unit_offset;
        })
    }),
    ("attention: keys and values swapped", |p| {
        each(attentions(p), |a| std::mem::swap(&mut a.key, &mut a.value))
    }),
    ("attention: window", |p| {
        let windows = attentions(p).filter_map(|a| match &mut a.span {
            Span::Sliding { window } => Some(window),
            Span::Full => None,
        });
        each(windows, |w| *w -= 1) || each(compressed(p), |a| a.window -= 1)
    }),
    ("attention: growth", |p| {
        each(
            attentions(p).filter_map(|a| a.position_scaling.as_mut()),
            |s| s.alpha *= 2.0,
        )
    }),
    ("attention: key and value convolutions swapped", |p| {
        each(attentions(p).filter_map(|a| a.convolutions.as_mut()), |c| {
            std::mem::swap(&mut c.key, &mut c.value);
        })
    }),
    ("selection: fewer", |p| {
        let mut any = each(attentions(p).filter_map(|a| a.indexer.as_mut()), |i| {
            i.top_k -= 1
        });
        any |= each(compressed(p).filter_map(|a| a.indexer.as_mut()), |i| {
            i.indexer.top_k -= 1;
        });
        let own = latents(p).filter_map(|a| match &mut a.selection {
            Some(LatentSelection::Own(ix)) => Some(ix),
            _ => None,
        });
        any | each(own, |ix| ix.top_k -= 1)
    }),
    ("latent attention: lora norms' offset", |p| {
        each(latents(p), |a| a.latent_norm.unit_offset = true)
    }),
    ("latent attention: query norm's offset", |p| {
        each(latents(p), |a| a.query_norm.unit_offset = true)
    }),
    ("latent attention: lora norms with the blocks' eps", |p| {
        let outer: Vec<f32> = block_norms(p).map(|n| n.eps).take(1).collect();
        let others = latents(p).filter(|a| a.latent_norm.eps != outer[0]);
        each(others, |a| {
            a.latent_norm.eps = outer[0];
            a.query_norm.eps = outer[0];
        })
    }),
    ("compressed attention: query norm's eps", |p| {
        each(compressed(p), |a| a.query_head_norm.eps = 1.0)
    }),
    ("compressed attention: entry norm's offset", |p| {
        each(compressed(p).filter_map(|a| a.compressor.as_mut()), |c| {
            c.norm.unit_offset = true;
        })
    }),
    ("compressed attention: values and gates swapped", |p| {
        each(compressed(p).filter_map(|a| a.compressor.as_mut()), |c| {
            std::mem::swap(&mut c.value, &mut c.gate);
        })
    }),
    ("delta net: queries and keys swapped", |p| {
        each(deltas(p), |d| std::mem::swap(&mut d.query, &mut d.key))
    }),
    ("delta net: decay and strength swapped", |p| {
        each(deltas(p).filter(|d| d.decay.len() == 1), |d| {
            std::mem::swap(&mut d.decay[0], &mut d.beta);
        })
    }),
    ("delta net: decay floor", |p| {
        each(deltas(p).filter_map(|d| d.decay_floor.as_mut()), |f| {
            *f *= 2.0
        })
    }),
    ("delta net: gate activation", |p| {
        each(deltas(p), |d| {
            d.gate_activation = match d.gate_activation {
                Activation::Silu => Activation::Sigmoid,
                Activation::Sigmoid => Activation::Silu,
            };
        })
    }),
    ("delta net: norm's offset", |p| {
        each(deltas(p), |d| d.norm.unit_offset = true)
    }),
    ("delta net: norm's eps", |p| {
        each(deltas(p), |d| d.norm.eps *= 100.0)
    }),
    ("convolutions: residual", |p| {
        each(convolutions(p), |c| c.residual = !c.residual)
    }),
    ("convolutions: activation", |p| {
        each(convolutions(p), |c| {
            c.activation = match c.activation {
                None => Some(Activation::Silu),
                Some(_) => None,
            };
        })
    }),
    ("units: gate and up swapped", |p| {
        each(units(p), |u| std::mem::swap(&mut u.gate, &mut u.up))
    }),
    ("units: activation", |p| {
        each(units(p), |u| {
            u.activation = match u.activation {
                GatedActivation::Silu => GatedActivation::ClampedSilu { limit: 0.1 },
                _ => GatedActivation::Silu,
            };
        })
    }),
    ("router: fewer experts", |p| {
        each(routed(p).filter(|r| r.top_k > 1), |r| r.top_k -= 1)
    }),
    ("router: scoring", |p| {
        each(routed(p), |r| {
            r.router.scoring = match r.router.scoring {
                Scoring::Sigmoid => Scoring::SqrtSoftplus,
                _ => Scoring::Sigmoid,
            };
        })
    }),
    ("router: renormalisation", |p| {
        each(routed(p), |r| {
            r.router.weights = match r.router.weights {
                WeightRule::Raw => WeightRule::Normalised { eps: 0.0 },
                _ => WeightRule::Raw,
            };
        })
    }),
    ("router: scale", |p| {
        each(routed(p), |r| {
            r.router.scale = Some(r.router.scale.unwrap_or(1.0) * 1.5)
        })
    }),
    ("router: another layer's bias", |p| {
        let mut biases = routed(p).filter_map(|r| r.router.selection_bias.as_mut());
        let mut pair = || Some((biases.next()?, biases.next()?));
        pair().is_some_and(|(a, b)| {
            std::mem::swap(a, b);
            true
        })
    }),
    ("router: groups", |p| {
        each(
            routed(p)
                .filter_map(|r| r.router.groups.as_mut())
                .filter(|g| g.top_k > 1),
            |g| g.top_k -= 1,
        )
    }),
    ("attention residual: another layer seals", |p| {
        let mut seals = p.layers.iter_mut().filter_map(|l| match &mut l.residual {
            Residual::AttentionResidual { seals, .. } => Some(seals),
            _ => None,
        });
        let mut pair = || Some((seals.next()?, seals.next()?));
        pair().is_some_and(|(a, b)| {
            std::mem::swap(a, b);
            true
        })
    }),
    ("attention residual: reads swapped", |p| {
        each(p.layers.iter_mut(), |l| {
            if let Residual::AttentionResidual {
                mixer_read,
                ffn_read,
                ..
            } = &mut l.residual
            {
                std::mem::swap(mixer_read, ffn_read);
            }
        }) && matches!(p.layers[0].residual, Residual::AttentionResidual { .. })
    }),
    ("hyper-connections: one Sinkhorn pass", |p| {
        let mut any = false;
        for l in &mut p.layers {
            if let Residual::HyperConnections {
                sinkhorn_iterations,
                ..
            } = &mut l.residual
            {
                *sinkhorn_iterations = 1;
                any = true;
            }
        }
        any
    }),
    ("hyper-connections: sites swapped", |p| {
        let mut any = false;
        for l in &mut p.layers {
            if let Residual::HyperConnections { mixer, ffn, .. } = &mut l.residual {
                std::mem::swap(mixer, ffn);
                any = true;
            }
        }
        any
    }),
    ("hyper-residual: sites swapped", |p| {
        let mut any = false;
        for l in &mut p.layers {
            if let Residual::HyperResidual { mixer, ffn, .. } = &mut l.residual {
                std::mem::swap(mixer, ffn);
                any = true;
            }
        }
        any
    }),
    ("hyper-residual: exit norm's offset", |p| {
        match &mut p.exit.reduction {
            Some(StreamReduction::HyperResidual(gate)) => {
                gate.norm.unit_offset = !gate.norm.unit_offset;
                true
            }
            _ => false,
        }
    }),
    ("n-grams: dilation", |p| {
        each(p.entry.per_layer_embeddings.iter_mut(), |t| {
            t.convolution.dilation -= 1
        })
    }),
    ("n-grams: key and value norms swapped", |p| {
        each(p.entry.per_layer_embeddings.iter_mut(), |t| {
            std::mem::swap(&mut t.key_norm, &mut t.convolution_norm);
        })
    }),
    ("n-grams: multipliers in another order", |p| {
        each(p.entry.per_layer_embeddings.iter_mut(), |t| {
            t.multipliers.reverse()
        })
    }),
    ("n-grams: another layer", |p| {
        each(p.entry.per_layer_embeddings.iter_mut(), |t| t.layer += 1)
    }),
    ("n-grams: boundary token", |p| {
        each(p.entry.per_layer_embeddings.iter_mut(), |t| {
            t.boundary_token -= 1
        })
    }),
    ("exit: scale", |p| {
        p.exit.scale = Some(p.exit.scale.unwrap_or(1.0) * 1.01);
        true
    }),
    ("layers: the last two in another order", |p| {
        let n = p.layers.len();
        p.layers.swap(n - 1, n - 2);
        true
    }),
];

/// Largest difference from the reference, relative to its largest logit; infinite where the
/// misread program does not even open.
fn error_of(dir: &Path, misreading: Misreading) -> Option<f32> {
    let applied = std::cell::Cell::new(false);
    let lowering = |config: &str, tensors: &[lamella_program::TensorInfo]| {
        let mut program = lower(config, tensors)?;
        applied.set(misreading(&mut program));
        Ok(program)
    };
    let options = Options {
        threads: Some(2),
        ..Options::default()
    };
    let opened = Model::open_lowered(dir, &options, &lowering, &mut |_| {});
    if !applied.get() {
        return None;
    }
    let Ok(model) = opened else {
        return Some(f32::INFINITY);
    };
    let (_, reference) = reference_matrix(&dir.join("ref.safetensors"), "logits");
    let ids = reference_sequence(dir);
    let logits = read(&model, &mut model.session(), &ids, usize::MAX);
    let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = most(&mut reference.iter().copied());
    Some(most(&mut logits.iter().zip(&reference).map(|(a, b)| a - b)) / scale)
}

/// `least` is how many apply today: a fixture that loses what one of them needs does not pass.
fn every_misreading_shows(fixtures: &[&str], least: usize) {
    let (mut caught, mut unopened) = (0, Vec::new());
    let mut missed = Vec::new();
    for (name, misreading) in MISREADINGS {
        let errors = fixtures
            .iter()
            .filter_map(|f| error_of(&repository("fixtures").join(f), *misreading));
        let Some(worst) = errors.reduce(f32::max) else {
            continue;
        };
        if worst.is_infinite() {
            unopened.push(name);
        }
        if worst > 1e-4 {
            caught += 1;
        } else {
            missed.push(format!("{name}: {worst:e}"));
        }
    }
    println!("{fixtures:?}: {caught} misreadings caught; do not open: {unopened:?}");
    assert!(missed.is_empty(), "{fixtures:?} pass {missed:?}");
    assert!(
        caught >= least,
        "{fixtures:?}: only {caught} misreadings apply"
    );
}

#[test]
fn olmoe() {
    every_misreading_shows(&["olmoe-101", "olmoe-202"], 17);
}

#[test]
fn glm() {
    every_misreading_shows(&["glm-101", "glm-404"], 22);
}

#[test]
fn inkling() {
    every_misreading_shows(&["inkling-101", "inkling-nvfp4-303"], 20);
}

#[test]
fn kimi_k3() {
    every_misreading_shows(&["kimi_k3-101", "kimi_k3-bf16-404"], 25);
}

#[test]
fn qwen36() {
    every_misreading_shows(&["qwen36-101", "qwen35dense-303", "qwen3next-505"], 25);
}

#[test]
fn qwen38() {
    every_misreading_shows(&["qwen38-111"], 32);
}

#[test]
fn deepseek_v4() {
    every_misreading_shows(&["deepseek_v4-101"], 26);
}
