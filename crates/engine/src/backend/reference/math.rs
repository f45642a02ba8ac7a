//! Plain arithmetic: f32 in and out, f64 between.

use lamella_program::block::{Activation, GatedActivation, Rope, RopePairing, RopePlace};

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

/// `W x` for a row-major `W` with `x.len()` columns.
pub(super) fn matrix_vector(w: &[f32], x: &[f32]) -> Vec<f32> {
    w.chunks_exact(x.len())
        .map(|row| dot(row, x) as f32)
        .collect()
}

/// `a += b`.
pub(super) fn add(a: &mut [f32], b: &[f32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

pub(super) fn softmax(logits: &[f64]) -> Vec<f64> {
    softmax_with_sink(logits, None)
}

/// Softmax with one more logit that takes part in the denominator only.
pub(super) fn softmax_with_sink(logits: &[f64], sink: Option<f64>) -> Vec<f64> {
    let start = sink.unwrap_or(f64::NEG_INFINITY);
    let max = logits.iter().copied().fold(start, f64::max);
    let exps: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = exps.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    exps.into_iter().map(|e| e / sum).collect()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

pub(super) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
    }
}

/// `act(gate, up)` of a gated unit.
pub(super) fn gated(activation: GatedActivation, gate: f64, up: f64) -> f64 {
    match activation {
        GatedActivation::Silu => gate * sigmoid(gate) * up,
        GatedActivation::ClampedSilu { limit } => {
            let limit = f64::from(limit);
            let gate = gate.min(limit);
            gate * sigmoid(gate) * up.clamp(-limit, limit)
        }
        GatedActivation::Situ { beta, linear_beta } => {
            let (b, l) = (f64::from(beta), f64::from(linear_beta));
            b * (gate / b).tanh() * sigmoid(gate) * l * (up / l).tanh()
        }
    }
}

/// The `k` largest scores, the lower index first on ties, as ascending indices.
pub(super) fn top_k(scores: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Rotates one vector to `position` (Su et al. 2021); back from it with `inverse`.
pub(super) fn rotate(rope: &Rope, position: usize, inverse: bool, vector: &mut [f32]) {
    let offset = match rope.place {
        RopePlace::First => 0,
        RopePlace::Last => vector.len() - rope.dims,
    };
    let channels = &mut vector[offset..offset + rope.dims];
    let pairs = rope.dims / 2;
    for j in 0..pairs {
        let angle = position as f64 * frequency(rope, j);
        let (sin, cos) = if inverse { -angle } else { angle }.sin_cos();
        let (a, b) = match rope.pairing {
            RopePairing::Half => (j, j + pairs),
            RopePairing::Adjacent => (2 * j, 2 * j + 1),
        };
        let (p, q) = (f64::from(channels[a]), f64::from(channels[b]));
        channels[a] = (p * cos - q * sin) as f32;
        channels[b] = (q * cos + p * sin) as f32;
    }
}

/// Frequency of pair `j`, with YaRN interpolation (Peng et al. 2023) where the rope has it.
fn frequency(rope: &Rope, j: usize) -> f64 {
    let dims = rope.dims as f64;
    let plain = rope.theta.powf(-2.0 * j as f64 / dims);
    let Some(yarn) = &rope.yarn else { return plain };
    let correction = |rotations: f64| {
        let context = yarn.original_context as f64;
        dims * (context / (2.0 * std::f64::consts::PI * rotations)).ln() / (2.0 * rope.theta.ln())
    };
    let low = correction(yarn.beta_fast).floor().max(0.0);
    let mut high = correction(yarn.beta_slow).ceil().min(dims - 1.0);
    if low == high {
        high += 0.001;
    }
    let ramp = ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
    plain / yarn.factor * ramp + plain * (1.0 - ramp)
}
