//! Gated delta rules, token by token, and short convolutions.

use super::attention::push;
use super::math::{activate, sigmoid, softplus};
use super::{Reference, Row};
use crate::state::Fixed;
use lamella_program::block::{DeltaNet, ShortConvolution};

/// Added to the sum of squares of queries and keys.
const L2_EPS: f64 = 1e-6;

impl Reference {
    /// A gated delta rule over one row.
    pub(super) fn delta_net(&self, d: &DeltaNet, x: &[f32], row: &mut Row<'_>) -> Vec<f32> {
        let [cq, ck, cv] = &d.convolutions;
        let q = self.convolve(cq, &self.linear(&d.query, x), row.fixed("conv.query"));
        let k = self.convolve(ck, &self.linear(&d.key, x), row.fixed("conv.key"));
        let v = self.convolve(cv, &self.linear(&d.value, x), row.fixed("conv.value"));
        let decay = self.log_decay(d, x);
        let beta = self.linear(&d.beta, x);
        let gate = self.linear(&d.gate, x);
        let state = row.fixed("recurrent").edit();
        let mut heads = Vec::with_capacity(v.len());
        for (h, (v, s)) in v
            .chunks_exact(d.value_dim)
            .zip(state.chunks_exact_mut(d.key_dim * d.value_dim))
            .enumerate()
        {
            let kh = h / (d.value_heads / d.key_heads);
            let part = kh * d.key_dim..(kh + 1) * d.key_dim;
            let q = unit(&q[part.clone()], 1.0 / (d.key_dim as f64).sqrt());
            let k = unit(&k[part], 1.0);
            let per_head = decay.len() / d.value_heads;
            let decay = &decay[h * per_head..(h + 1) * per_head];
            let beta = sigmoid(f64::from(beta[h]));
            heads.extend(step(s, &q, &k, v, decay, beta));
        }
        self.norm_parts(&d.norm, d.value_dim, &mut heads);
        for (y, g) in heads.iter_mut().zip(gate) {
            *y = (f64::from(*y) * activate(d.gate_activation, f64::from(g))) as f32;
        }
        self.linear(&d.output, &heads)
    }

    /// Logarithms of the decays: one a value head, or one a key channel of each.
    fn log_decay(&self, d: &DeltaNet, x: &[f32]) -> Vec<f64> {
        let mut logit = x.to_vec();
        for map in &d.decay {
            logit = self.linear(map, &logit);
        }
        let (bias, log) = (self.weight(d.decay_bias), self.weight(d.decay_log));
        let per_head = logit.len() / d.value_heads;
        let pairs = logit.iter().zip(bias).enumerate();
        pairs
            .map(|(i, (&logit, &bias))| {
                let a = f64::from(log[i / per_head]).exp();
                let logit = f64::from(logit) + f64::from(bias);
                match d.decay_floor {
                    Some(floor) => f64::from(floor) * sigmoid(a * logit),
                    None => -a * softplus(logit),
                }
            })
            .collect()
    }

    /// A causal depthwise convolution at one row; `ring` holds the inputs before it.
    pub(super) fn convolve(&self, c: &ShortConvolution, x: &[f32], ring: &mut Fixed) -> Vec<f32> {
        let ring = ring.edit();
        let weight = self.weight(c.weight);
        let channels = x.len();
        let y = x
            .iter()
            .enumerate()
            .map(|(i, &now)| {
                let mut sum = 0.0;
                for tap in 0..c.taps {
                    let lag = (c.taps - 1 - tap) * c.dilation;
                    let input = match lag {
                        0 => now,
                        _ => ring[ring.len() - lag * channels + i],
                    };
                    sum += f64::from(weight[i * c.taps + tap]) * f64::from(input);
                }
                if c.residual {
                    sum += f64::from(now);
                }
                c.activation.map_or(sum, |a| activate(a, sum)) as f32
            })
            .collect();
        push(ring, x);
        y
    }
}

/// `x * scale / sqrt(sum(x²) + eps)`.
fn unit(x: &[f32], scale: f64) -> Vec<f64> {
    let sum: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let factor = scale / (sum + L2_EPS).sqrt();
    x.iter().map(|&v| f64::from(v) * factor).collect()
}

/// One step of one head: decay, write, read. `s` is `[key, value]`.
fn step(s: &mut [f32], q: &[f64], k: &[f64], v: &[f32], decay: &[f64], beta: f64) -> Vec<f32> {
    let width = v.len();
    let mut state: Vec<f64> = s.iter().map(|&v| f64::from(v)).collect();
    let mut seen = vec![0.0; width];
    for (i, row) in state.chunks_exact_mut(width).enumerate() {
        let factor = decay[if decay.len() == 1 { 0 } else { i }].exp();
        for (value, seen) in row.iter_mut().zip(&mut seen) {
            *value *= factor;
            *seen += *value * k[i];
        }
    }
    let write: Vec<f64> = v
        .iter()
        .zip(&seen)
        .map(|(&v, seen)| beta * (f64::from(v) - seen))
        .collect();
    let mut out = vec![0.0; width];
    for (i, row) in state.chunks_exact_mut(width).enumerate() {
        for ((value, write), out) in row.iter_mut().zip(&write).zip(&mut out) {
            *value += k[i] * write;
            *out += *value * q[i];
        }
    }
    s.iter_mut().zip(state).for_each(|(s, v)| *s = v as f32);
    out.into_iter().map(|v| v as f32).collect()
}
