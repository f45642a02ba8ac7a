//! Feed-forward blocks: dense units, and mixtures of experts with the rows of a piece united by
//! expert.

use super::work::{Routes, Work};
use super::{Core, rows};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::experts::{ExpertStore, Which};
use crate::profile::Operator;
use lamella_kernels::{Epilogue, Input, Matrix, QuantisedRows, Rows, SharedRows};
use lamella_program::block::{GatedUnit, LatentExperts, Routed, WeightRule};
use lamella_program::encoding::TILE_ROWS;
use std::ops::Range;

/// Rows of a piece from which the inputs of experts are gathered.
const GATHER_ROWS: usize = 32;

/// Chosen experts that follow one another: all of a layer's, or some of those that a cache holds.
struct Block<'a> {
    routed: &'a Routed,
    /// Which of the active experts they are.
    active: Range<usize>,
    /// The first of the active ones that the cache holds.
    first: usize,
    store: Option<&'a ExpertStore>,
}

impl Core {
    /// `output += down(act(gate x, up x))`.
    pub(super) fn dense(&self, unit: &GatedUnit, work: &mut Work) {
        let all = Plain {
            weights: None,
            through: unit.output_gate.is_some() || unit.output_scale.is_some(),
        };
        self.unit(unit, &all, work);
    }

    /// A unit that every row visits, weighted as `plain` says.
    fn unit(&self, unit: &GatedUnit, plain: &Plain, work: &mut Work) {
        let count = work.rows();
        let width = self.program.dims.hidden;
        let [gate, up, down] =
            [unit.gate, unit.up, unit.down].map(|id| self.weights[id.index()].matrix(0));
        let Work {
            normed,
            quantised,
            inner,
            quantised_inner,
            hidden,
            branch,
            direct,
            shared,
            routes,
            ..
        } = work;
        let normed = &normed[..count * width];
        self.quantise_for(&[gate.encoding], normed, width, quantised);
        let input = rows::input(gate.encoding, normed, width, quantised);
        let rows = Rows::First(count);
        let inner = &mut inner[..count * unit.width];
        let target = SharedRows::new(inner, unit.width, unit.width);
        let act = unit.activation;
        self.over_blocks(gate.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .gated(&gate, &up, blocks, input, rows, &target, act);
            }
        });
        self.quantise_for(&[down.encoding], inner, unit.width, quantised_inner);
        let input = rows::input(down.encoding, inner, unit.width, quantised_inner);
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        let (target, epilogue) = if plain.through {
            (SharedRows::new(shared, width, width), Epilogue::Store)
        } else {
            (SharedRows::new(out, width, width), Epilogue::Add)
        };
        self.over_blocks(down.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&down, blocks, input, rows, &target, rows, epilogue);
            }
        });
        if plain.through {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let x = &normed[row * width..][..width];
                let mut factor = plain
                    .weights
                    .map_or(1.0, |(stride, at)| routes.scores[row * stride + at]);
                factor *= self.output_factor(unit, x);
                self.kernels
                    .add_scaled(out, factor, &shared[row * width..][..width]);
            }
        }
    }

    /// Gate and scale of a unit's output for the input `x`.
    fn output_factor(&self, unit: &GatedUnit, x: &[f32]) -> f32 {
        let mut factor = 1.0;
        if let Some(id) = unit.output_gate {
            factor *= lamella_kernels::sigmoid(self.kernels.dot(self.vector(id), x));
        }
        if let Some(id) = unit.output_scale {
            factor *= self.vector(id)[0];
        }
        factor
    }

    /// `output += sum over chosen experts, ascending, of weight * expert(x)`, then the shared
    /// experts. Each expert that any row chose is applied once, to all rows that chose it.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; if an expert of layer `layer` is not in memory and cannot be read.
    pub(super) fn routed(
        &self,
        (layer, routed): (usize, &Routed),
        mut store: Option<&mut ExpertStore>,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.route(routed, work);
        if let Some(store) = &mut store {
            self.foresee(layer, store, work);
        }
        self.clock.stop(Operator::Router);
        cancel.check()?;
        match &routed.latent {
            None => self.experts((layer, routed), store, work, cancel)?,
            Some(latent) => self.latent_experts((layer, routed), latent, store, work, cancel)?,
        }
        self.clock.stop(match routed.latent {
            None => Operator::Experts,
            Some(_) => Operator::ExpertLatent,
        });
        let stride = self.program.operand(routed.router.weight).rows();
        let weighted = matches!(routed.router.weights, WeightRule::WithShared { .. });
        for (i, unit) in routed.shared.iter().enumerate() {
            cancel.check()?;
            let plain = Plain {
                weights: weighted.then_some((stride, routed.experts + i)),
                through: weighted || unit.output_gate.is_some() || unit.output_scale.is_some(),
            };
            self.unit(unit, &plain, work);
            self.clock.stop(Operator::SharedExperts);
        }
        cancel.check()
    }

    /// Experts that work at another width: into it, through them, back.
    fn latent_experts(
        &self,
        (layer, routed): (usize, &Routed),
        latent: &LatentExperts,
        store: Option<&mut ExpertStore>,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let inner = self.program.operand(latent.down.weight).rows();
        let x = &work.normed[..count * width];
        let out = &mut work.latent[..count * inner];
        self.project(&latent.down, x, &mut work.quantised, out, Epilogue::Store);
        work.latent_out[..count * inner].fill(0.0);
        self.clock.stop(Operator::ExpertLatent);
        self.experts((layer, routed), store, work, cancel)?;
        self.clock.stop(Operator::Experts);
        let Work {
            latent_out,
            quantised,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let sum = &mut latent_out[..count * inner];
        if let Some(norm) = &latent.norm {
            let weight = self.norm_weight(norm);
            for row in sum.chunks_exact_mut(inner) {
                self.kernels.rms_norm_in_place(row, weight, norm.eps);
            }
        }
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        self.project(&latent.up, sum, quantised, out, Epilogue::Add);
        Ok(())
    }

    /// The routed experts of every row, added to the block's output, or to `work.latent_out` where
    /// they work at another width.
    fn experts(
        &self,
        (layer, routed): (usize, &Routed),
        store: Option<&mut ExpertStore>,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let count = work.rows();
        let Work {
            normed,
            latent,
            latent_out,
            quantised,
            quantised_gathered,
            inner,
            quantised_inner,
            routes,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let gate = &self.weights[routed.unit.gate.index()];
        let (encoding, width) = (gate.encoding(), gate.cols());
        let x = match routed.latent {
            Some(_) => &latent[..count * width],
            None => &normed[..count * width],
        };
        self.quantise_for(&[encoding], x, width, quantised);
        // Many rows of an expert run fastest when they lie together.
        let gathered = encoding.is_compiled() && count >= GATHER_ROWS;
        if gathered {
            self.gather(
                routes.taken(count * routed.top_k),
                quantised,
                quantised_gathered,
            );
        }
        let source = if gathered {
            &*quantised_gathered
        } else {
            &*quantised
        };
        let out = match (&routed.latent, *direct) {
            (Some(_), _) => latent_out,
            (None, true) => hidden,
            (None, false) => branch,
        };
        let through = Through {
            routes,
            input: rows::input(encoding, x, width, source),
            gathered,
            inner: &mut inner[..count * routed.top_k * routed.unit.width],
            quantised: quantised_inner,
            target: &SharedRows::new(&mut out[..count * width], width, width),
        };
        self.over_experts((layer, routed), store, through, cancel)
    }

    /// Sends rows through all active experts: those that are in memory while others come.
    fn over_experts(
        &self,
        (layer, routed): (usize, &Routed),
        store: Option<&mut ExpertStore>,
        mut through: Through<'_>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let routes = through.routes;
        let cached = self.weights[routed.unit.gate.index()].is_cached();
        let Some(store) = store.filter(|_| cached) else {
            let block = Block {
                routed,
                active: 0..routes.active.len(),
                first: 0,
                store: None,
            };
            let all = &routes.identity[..routes.active.len()];
            self.expert_inner(&block, all, &mut through, cancel);
            cancel.check()?;
            self.expert_outer(&block, &mut through, cancel);
            return cancel.check();
        };
        let mut first = 0;
        while first < routes.active.len() {
            let count = store.hold(layer, &routes.active[first..], cancel)?;
            store.expect(layer, &routes.active[first + count..]);
            store.expect_foreseen();
            self.as_they_come((routed, first..first + count), store, &mut through, cancel)?;
            first += count;
        }
        Ok(())
    }

    /// The experts that `store` holds, numbers `held` of the active ones. Inner values are computed
    /// as soon as an expert is there; outputs are added when all before it are.
    fn as_they_come(
        &self,
        (routed, held): (&Routed, Range<usize>),
        store: &mut ExpertStore,
        through: &mut Through<'_>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let mut added = 0;
        while added < held.len() {
            store.arrive(cancel)?;
            let block = |active: Range<usize>| Block {
                routed,
                active: held.start + active.start..held.start + active.end,
                first: held.start,
                store: Some(&*store),
            };
            self.expert_inner(&block(0..held.len()), store.fresh(), through, cancel);
            cancel.check()?;
            let ready = store.ready();
            if ready > added {
                self.expert_outer(&block(added..ready), through, cancel);
                cancel.check()?;
            }
            added = ready;
        }
        Ok(())
    }

    /// Copies the quantised rows of every (expert, row) pair, expert by expert.
    fn gather(&self, rows: &[u32], from: &QuantisedRows, out: &mut QuantisedRows) {
        let width = from.cols();
        out.reset(rows.len(), width);
        let writer = out.writer();
        self.over_rows(rows.len(), width, &|entry| {
            // SAFETY: each entry is one task's.
            unsafe { writer.copy_row(entry, from, rows[entry] as usize) };
        });
    }

    /// Inner values of the (expert, row) pairs of some of the block's experts, given by their
    /// number.
    fn expert_inner(
        &self,
        block: &Block<'_>,
        members: &[u32],
        through: &mut Through<'_>,
        cancel: &Cancel,
    ) {
        let Through {
            routes,
            input,
            gathered,
            ref mut inner,
            ..
        } = *through;
        let (unit, top_k) = (&block.routed.unit, block.routed.top_k);
        let target = SharedRows::new(inner, unit.width, unit.width);
        let active = &routes.active[block.active.clone()];
        let blocks = self.weights[unit.gate.index()].rows().div_ceil(TILE_ROWS);
        let chunk = self
            .block_chunk(blocks * members.len(), target.rows() / top_k)
            .min(blocks);
        let chunks = blocks.div_ceil(chunk);
        self.pool.run(chunks * members.len(), &|task, _| {
            if cancel.is_raised() {
                return;
            }
            let index = members[task / chunks] as usize;
            let entries = routes.entries(active[index] as usize);
            let first = task % chunks * chunk;
            let range = first..blocks.min(first + chunk);
            let rows = if gathered {
                &routes.identity
            } else {
                &routes.rows
            };
            let rows = Rows::At(&rows[entries.clone()]);
            let target = target.from_row(entries.start);
            let [gate, up] =
                [Which::Gate, Which::Up].map(|which| self.expert(block, index, which, routes));
            // SAFETY: each task writes the columns of its own blocks in its expert's rows.
            unsafe {
                self.kernels
                    .gated(&gate, &up, range, input, rows, &target, unit.activation);
            }
        });
    }

    /// Adds the output of every expert of the block to the rows that chose it. A task owns output
    /// columns and takes all experts in ascending order, so that the order of a row's sum is fixed.
    fn expert_outer(&self, block: &Block<'_>, through: &mut Through<'_>, cancel: &Cancel) {
        let Through {
            routes,
            target,
            ref inner,
            ref mut quantised,
            ..
        } = *through;
        let unit = &block.routed.unit;
        let down = &self.weights[unit.down.index()];
        let entries = block.entries(routes);
        let inner = &inner[entries.start * unit.width..entries.end * unit.width];
        self.quantise_for(&[down.encoding()], inner, unit.width, quantised);
        let input = rows::input(down.encoding(), inner, unit.width, quantised);
        let before = entries.start;
        let active = &routes.active[block.active.clone()];
        let blocks = down.rows().div_ceil(TILE_ROWS);
        self.over_blocks(blocks, target.rows(), &|blocks| {
            for (index, &expert) in active.iter().enumerate() {
                if cancel.is_raised() {
                    return;
                }
                let entries = routes.entries(expert as usize);
                let weights = Epilogue::AddScaled(&routes.weights[entries.clone()]);
                let within = entries.start - before..entries.end - before;
                let from = Rows::At(&routes.identity[within]);
                let to = Rows::At(&routes.rows[entries]);
                let matrix = self.expert(block, index, Which::Down, routes);
                // SAFETY: each task writes the columns of its own blocks.
                unsafe {
                    let blocks = blocks.clone();
                    self.kernels
                        .matmul(&matrix, blocks, input, from, target, to, weights);
                }
            }
        });
    }

    /// A map of the block's expert number `index`.
    fn expert<'b>(
        &'b self,
        block: &Block<'b>,
        index: usize,
        which: Which,
        routes: &Routes,
    ) -> Matrix<'b> {
        let unit = &block.routed.unit;
        let id = match which {
            Which::Gate => unit.gate,
            Which::Up => unit.up,
            Which::Down => unit.down,
        };
        let active = block.active.start + index;
        match block.store {
            Some(store) => store.matrix(active - block.first, which),
            None => self.weights[id.index()].matrix(routes.active[active] as usize),
        }
    }
}

/// What goes through experts, and where to.
struct Through<'a> {
    routes: &'a Routes,
    input: Input<'a>,
    /// Whether the input has a row for each (expert, row) pair, in their order.
    gathered: bool,
    /// Room for the inner values of every (expert, row) pair, and for the same quantised.
    inner: &'a mut [f32],
    quantised: &'a mut QuantisedRows,
    target: &'a SharedRows<'a>,
}

impl Block<'_> {
    /// Entries of its experts among all (expert, row) pairs.
    fn entries(&self, routes: &Routes) -> Range<usize> {
        let active = &routes.active[self.active.clone()];
        match (active.first(), active.last()) {
            (Some(&first), Some(&last)) => {
                routes.entries(first as usize).start..routes.entries(last as usize).end
            }
            _ => 0..0,
        }
    }
}

/// How a unit that every row visits joins the output.
struct Plain {
    /// Where in the scores of a row its weight is: distance of rows, place in the row.
    weights: Option<(usize, usize)>,
    /// Whether its output has a factor, and takes a buffer of its own.
    through: bool,
}

impl Routes {
    /// Entries of `expert` in `rows` and `weights`.
    fn entries(&self, expert: usize) -> Range<usize> {
        self.offsets[expert] as usize..self.offsets[expert + 1] as usize
    }

    /// Rows of the first `entries` entries, expert by expert.
    fn taken(&self, entries: usize) -> &[u32] {
        &self.rows[..entries]
    }

    /// Counting sort of the chosen (row, expert) pairs by expert; rows stay in order.
    pub(super) fn group(&mut self, count: usize, top_k: usize, experts: usize) {
        let chosen = &self.chosen[..count * top_k];
        let offsets = &mut self.offsets[..=experts];
        offsets.fill(0);
        for &(expert, _) in chosen {
            offsets[expert as usize + 1] += 1;
        }
        self.active.clear();
        for expert in 0..experts {
            if offsets[expert + 1] > 0 {
                self.active.push(expert as u32);
            }
            offsets[expert + 1] += offsets[expert];
        }
        // `offsets[e]` is the next free entry of `e` while filling, and its end afterwards.
        for (index, &(expert, weight)) in chosen.iter().enumerate() {
            let entry = &mut offsets[expert as usize];
            self.rows[*entry as usize] = (index / top_k) as u32;
            self.weights[*entry as usize] = weight;
            *entry += 1;
        }
        offsets.copy_within(0..experts, 1);
        offsets[0] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_expert() {
        let mut routes = Routes {
            scores: Vec::new(),
            biased: Vec::new(),
            chosen: vec![(1, 0.1), (3, 0.3), (0, 0.5), (1, 0.7), (1, 0.2), (3, 0.4)],
            offsets: vec![0; 5],
            rows: vec![0; 6],
            weights: vec![0.0; 6],
            active: Vec::new(),
            identity: Vec::new(),
        };
        routes.group(3, 2, 4);
        assert_eq!(routes.active, [0, 1, 3]);
        assert_eq!(routes.offsets, [0, 1, 4, 4, 6]);
        assert_eq!(routes.rows, [1, 0, 1, 2, 0, 2]);
        assert_eq!(routes.weights, [0.5, 0.1, 0.7, 0.2, 0.3, 0.4]);
    }
}
