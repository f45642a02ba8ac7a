//! How blocks read from the stream and write to it.

use super::math::{add, dot, matrix_vector, sigmoid, softmax};
use super::{Reference, Row};
use lamella_program::block::{HyperGate, HyperMap, Layer, Residual, ResidualRead};
use lamella_program::program::{Exit, StreamReduction};

/// Which block of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Site {
    Mixer,
    Ffn,
}

/// The maps of a hyper-connection site at one row.
struct Maps {
    /// Weights of the streams in the block's input.
    pre: Vec<f64>,
    /// Weights of the block's output in the streams.
    post: Vec<f64>,
    /// `[from, to]`.
    mix: Vec<f64>,
}

impl Reference {
    /// Runs both blocks of a layer over one row of the stream.
    pub(super) fn walk(&self, layer: &Layer, stream: &mut [f32], row: &mut Row<'_>) {
        self.block(layer, Site::Mixer, stream, row);
        self.block(layer, Site::Ffn, stream, row);
    }

    fn block(&self, layer: &Layer, site: Site, stream: &mut [f32], row: &mut Row<'_>) {
        let hidden = self.program.dims.hidden;
        match &layer.residual {
            Residual::Plain => {
                let y = self.body(layer, site, stream, row);
                add(stream, &y);
            }
            Residual::AttentionResidual {
                mixer_read,
                ffn_read,
                seals,
            } => {
                let (mut sealed, current) = (row.sealed, stream.len() - hidden);
                let seals_here = *seals && site == Site::Mixer;
                if *seals && site == Site::Ffn {
                    sealed += 1;
                }
                let read = match site {
                    Site::Mixer => mixer_read,
                    Site::Ffn => ffn_read,
                };
                let x = self.attention_read(read, stream, sealed);
                if seals_here {
                    stream.copy_within(current.., sealed * hidden);
                    stream[current..].fill(0.0);
                }
                let y = self.body(layer, site, &x, row);
                add(&mut stream[current..], &y);
            }
            Residual::HyperConnections {
                streams,
                sinkhorn_iterations,
                eps,
                norm_eps,
                mixer,
                ffn,
            } => {
                let map = if site == Site::Mixer { mixer } else { ffn };
                let eps = [f64::from(*eps), f64::from(*norm_eps)];
                let maps = self.hyper_maps(map, *streams, *sinkhorn_iterations, eps, stream);
                let x = weighted_sum(&maps.pre, stream, hidden);
                let y = self.body(layer, site, &x, row);
                let old = stream.to_vec();
                for (k, target) in stream.chunks_exact_mut(hidden).enumerate() {
                    let mix = |j: usize| maps.mix[j * streams + k];
                    let weights: Vec<f64> = (0..*streams).map(mix).collect();
                    let kept = weighted_sum(&weights, &old, hidden);
                    for ((t, kept), y) in target.iter_mut().zip(kept).zip(&y) {
                        *t = (f64::from(kept) + maps.post[k] * f64::from(*y)) as f32;
                    }
                }
            }
            Residual::HyperResidual {
                streams,
                mixer,
                ffn,
            } => {
                let gate = if site == Site::Mixer { mixer } else { ffn };
                let (x, strengths) = self.hyper_read(gate, *streams, stream);
                let y = self.body(layer, site, &x, row);
                for (target, c) in stream.chunks_exact_mut(hidden).zip(strengths) {
                    for (t, y) in target.iter_mut().zip(&y) {
                        *t = (f64::from(*t) + c * f64::from(*y)) as f32;
                    }
                }
            }
            _ => unreachable!("the closure check refuses residual schemes without rules"),
        }
    }

    /// Pre-norm, body, convolution and post-norm of a block.
    fn body(&self, layer: &Layer, site: Site, x: &[f32], row: &mut Row<'_>) -> Vec<f32> {
        let (pre_norm, convolution, post_norm, name) = match site {
            Site::Mixer => {
                let b = &layer.mixer;
                (&b.pre_norm, &b.convolution, &b.post_norm, "conv.mixer")
            }
            Site::Ffn => {
                let b = &layer.ffn;
                (&b.pre_norm, &b.convolution, &b.post_norm, "conv.ffn")
            }
        };
        let mut x = x.to_vec();
        if let Some(norm) = pre_norm {
            let width = x.len();
            self.norm_parts(norm, width, &mut x);
        }
        let mut y = match site {
            Site::Mixer => self.mixer(&layer.mixer.body, &x, row),
            Site::Ffn => self.ffn(&layer.ffn.body, &x, row),
        };
        if let Some(convolution) = convolution {
            y = self.convolve(convolution, &y, row.fixed(name));
        }
        if let Some(norm) = post_norm {
            let width = y.len();
            self.norm_parts(norm, width, &mut y);
        }
        y
    }

    /// Attention over the first `sealed` blocks of the stream and its running sum.
    fn attention_read(&self, read: &ResidualRead, stream: &[f32], sealed: usize) -> Vec<f32> {
        let hidden = self.program.dims.hidden;
        let candidates: Vec<&[f32]> = stream[..sealed * hidden]
            .chunks_exact(hidden)
            .chain([&stream[stream.len() - hidden..]])
            .collect();
        let projection = self.weight(read.projection);
        let scores: Vec<f64> = candidates
            .iter()
            .map(|candidate| {
                let mut normed = candidate.to_vec();
                self.norm_parts(&read.norm, hidden, &mut normed);
                dot(&normed, projection)
            })
            .collect();
        let weights = softmax(&scores);
        (0..hidden)
            .map(|i| {
                let terms = weights.iter().zip(&candidates);
                terms.map(|(w, c)| w * f64::from(c[i])).sum::<f64>() as f32
            })
            .collect()
    }

    fn hyper_maps(
        &self,
        map: &HyperMap,
        n: usize,
        iterations: usize,
        [eps, norm_eps]: [f64; 2],
        stream: &[f32],
    ) -> Maps {
        let m = matrix_vector(self.weight(map.function), &joint_norm(stream, norm_eps));
        let (base, scale) = (self.weight(map.base), self.weight(map.scale));
        let logit =
            |i: usize, part: usize| f64::from(m[i]) * f64::from(scale[part]) + f64::from(base[i]);
        let pre = (0..n).map(|i| sigmoid(logit(i, 0)) + eps).collect();
        let post = (n..2 * n).map(|i| 2.0 * sigmoid(logit(i, 1))).collect();
        let mut mix: Vec<f64> = Vec::with_capacity(n * n);
        for from in 0..n {
            let logits: Vec<f64> = (0..n).map(|to| logit(2 * n + from * n + to, 2)).collect();
            mix.extend(softmax(&logits).into_iter().map(|w| w + eps));
        }
        let columns = |mix: &mut Vec<f64>| {
            for to in 0..n {
                let sum: f64 = (0..n).map(|from| mix[from * n + to]).sum();
                (0..n).for_each(|from| mix[from * n + to] /= sum + eps);
            }
        };
        columns(&mut mix);
        for _ in 1..iterations {
            for row in mix.chunks_exact_mut(n) {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|w| *w /= sum + eps);
            }
            columns(&mut mix);
        }
        Maps { pre, post, mix }
    }

    /// What a gated residual site reads, and how strongly it writes each stream.
    fn hyper_read(&self, gate: &HyperGate, n: usize, stream: &[f32]) -> (Vec<f32>, Vec<f64>) {
        let hidden = self.program.dims.hidden;
        let mut normed = stream.to_vec();
        self.norm_parts(&gate.norm, hidden, &mut normed);
        let inner: Vec<f32> = self
            .linear(&gate.down, &normed)
            .into_iter()
            .map(|v| {
                let v = f64::from(v) / n as f64;
                (v * sigmoid(v)) as f32
            })
            .collect();
        let mixing = self.linear(&gate.up, &inner);
        let x = (0..hidden)
            .map(|i| {
                let term = |s: usize| {
                    let at = s * hidden + i;
                    sigmoid(f64::from(mixing[at])) * f64::from(normed[at])
                };
                ((0..n).map(term).sum::<f64>() / n as f64) as f32
            })
            .collect();
        let strength = |v: f32| 2.0 * sigmoid(f64::from(v) / n as f64);
        let strengths = match &gate.inject {
            Some(inject) => self
                .linear(inject, &normed)
                .into_iter()
                .map(strength)
                .collect(),
            None => Vec::new(),
        };
        (x, strengths)
    }

    /// One hidden vector from the stream after the last layer.
    pub(super) fn reduce(&self, exit: &Exit, stream: &[f32]) -> Vec<f32> {
        let hidden = self.program.dims.hidden;
        match &exit.reduction {
            None => stream.to_vec(),
            Some(StreamReduction::AttentionResidual(read)) => {
                self.attention_read(read, stream, stream.len() / hidden - 1)
            }
            Some(StreamReduction::HyperConnections {
                function,
                base,
                scale,
                eps,
                norm_eps,
            }) => {
                let normed = joint_norm(stream, f64::from(*norm_eps));
                let m = matrix_vector(self.weight(*function), &normed);
                let scale = f64::from(self.weight(*scale)[0]);
                let weights: Vec<f64> = m
                    .iter()
                    .zip(self.weight(*base))
                    .map(|(&m, &b)| sigmoid(f64::from(m) * scale + f64::from(b)) + f64::from(*eps))
                    .collect();
                weighted_sum(&weights, stream, hidden)
            }
            Some(StreamReduction::HyperResidual(gate)) => {
                self.hyper_read(gate, stream.len() / hidden, stream).0
            }
            Some(_) => unreachable!("the closure check refuses reductions without rules"),
        }
    }
}

/// All streams divided by their common root mean square.
fn joint_norm(stream: &[f32], eps: f64) -> Vec<f32> {
    let squares: f64 = stream.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let scale = 1.0 / (squares / stream.len() as f64 + eps).sqrt();
    stream
        .iter()
        .map(|&v| (f64::from(v) * scale) as f32)
        .collect()
}

/// `sum over streams s of weights[s] * stream_s`.
fn weighted_sum(weights: &[f64], stream: &[f32], hidden: usize) -> Vec<f32> {
    (0..hidden)
        .map(|i| {
            let terms = weights.iter().enumerate();
            terms
                .map(|(s, w)| w * f64::from(stream[s * hidden + i]))
                .sum::<f64>() as f32
        })
        .collect()
}
