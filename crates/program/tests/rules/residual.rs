//! Residual schemes, and blocks around their bodies.

use crate::common::blocks::{connections, convolved, gated_streams, history};
use crate::common::{HIDDEN, fails, fails_and_frees, reshape, sweep};
use lamella_program::block::Residual;
use lamella_program::program::StreamReduction;
use lamella_program::{OperandId, Program};

#[test]
fn every_scheme_has_its_operands() {
    sweep(&history(), &[], &[]);
    sweep(&connections(), &[], &[]);
    let ranks = [
        "layers.0.mixer_gate.down",
        "layers.0.ffn_gate.down",
        "layers.1.mixer_gate.down",
        "layers.1.ffn_gate.down",
        "last.down",
        "ngram.table",
    ];
    sweep(&gated_streams(), &ranks, &["ngram.table"]);
}

#[test]
fn blocks_may_end_in_convolutions_and_norms() {
    sweep(&convolved(), &[], &[]);
    let damage = |p: &mut Program, taps, dilation| {
        if let Some(c) = &mut p.layers[0].ffn.convolution {
            (c.taps, c.dilation) = (taps, dilation);
        }
    };
    fails(&convolved(), |p| damage(p, 0, 1), "taps is zero");
    fails(&convolved(), |p| damage(p, 3, 0), "dilation is zero");
    fails(&convolved(), |p| damage(p, 33, 1), "33 taps, at most 32");
    fails(
        &convolved(),
        |p| damage(p, 3, usize::MAX),
        "larger than anything could use",
    );
}

#[test]
fn all_layers_use_one_scheme() {
    let mixed = "layers.1: its residual is of another kind";
    for program in [history(), connections(), gated_streams()] {
        let plain = |p: &mut Program| p.layers[1].residual = Residual::Plain;
        fails_and_frees(&program, plain, mixed);
    }
}

#[test]
fn all_layers_have_the_same_streams() {
    let mut program = connections();
    let Residual::HyperConnections { streams, .. } = &mut program.layers[1].residual else {
        panic!("connections")
    };
    *streams = 2;
    for operand in &mut program.operands {
        // (2 + 2) * 2 maps of 2 streams.
        let shape: &[usize] = match operand.name.as_str() {
            "layers.1.mixer_map.function" | "layers.1.ffn_map.function" => &[8, 2 * HIDDEN],
            "layers.1.mixer_map.base" | "layers.1.ffn_map.base" => &[8],
            _ => continue,
        };
        reshape(operand, shape);
    }
    fails(
        &program,
        |_| {},
        "layers.1: its residual is of another kind",
    );
}

#[test]
fn the_boundary_holds_what_the_scheme_passes_on() {
    for program in [convolved(), history(), connections(), gated_streams()] {
        let needed = format!("need {}", program.boundary.width);
        fails(&program, |p| p.boundary.width += HIDDEN, &needed);
    }
    let seal = |p: &mut Program| {
        if let Residual::AttentionResidual { seals, .. } = &mut p.layers[1].residual {
            *seals = true;
        }
    };
    fails(&history(), seal, "width 24, but 4 vectors need 32");
}

#[test]
fn the_exit_joins_the_streams_that_there_are() {
    let misfit = "exit: its stream reduction does not fit";
    for program in [history(), connections(), gated_streams()] {
        fails_and_frees(&program, |p| p.exit.reduction = None, misfit);
        let reduction = program.exit.reduction.clone();
        let mut plain = convolved();
        plain.operands.extend(program.operands.iter().cloned());
        let offset = convolved().operands.len() as u32;
        let renamed = plain.operands.iter_mut().skip(offset as usize);
        renamed.for_each(|o| o.name.insert_str(0, "other."));
        plain.exit.reduction = reduction.map(|r| moved(r, offset));
        fails_and_frees(&plain, |_| {}, misfit);
    }
}

/// A reduction whose operands stand `offset` further down.
fn moved(mut reduction: StreamReduction, offset: u32) -> StreamReduction {
    let mut shift = |id: &mut OperandId| id.0 += offset;
    match &mut reduction {
        StreamReduction::AttentionResidual(read) => {
            read.norm.weight.iter_mut().for_each(&mut shift);
            shift(&mut read.projection);
        }
        StreamReduction::HyperConnections {
            function,
            base,
            scale,
            ..
        } => [function, base, scale].into_iter().for_each(shift),
        StreamReduction::HyperResidual(gate) => {
            gate.norm.weight.iter_mut().for_each(&mut shift);
            shift(&mut gate.down.weight);
            shift(&mut gate.up.weight);
        }
        _ => panic!("a new reduction"),
    }
    reduction
}

#[test]
fn gates_inject_in_layers_and_not_at_the_exit() {
    let program = gated_streams();
    let silent = |p: &mut Program| {
        if let Residual::HyperResidual { ffn, .. } = &mut p.layers[0].residual {
            ffn.inject = None;
        }
    };
    fails_and_frees(&program, silent, "the gate injects nothing");
    let inject = |p: &mut Program| {
        let Residual::HyperResidual { ffn, .. } = &p.layers[0].residual else {
            panic!("gated streams")
        };
        let inject = ffn.inject.clone();
        if let Some(StreamReduction::HyperResidual(gate)) = &mut p.exit.reduction {
            gate.inject = inject;
        }
    };
    fails(&program, inject, "nothing to inject");
}

#[test]
fn numbers_of_a_scheme_are_usable() {
    type Edit = fn(&mut usize, &mut f32, &mut f32);
    let cases: [(Edit, &str); 5] = [
        (|n, _, _| *n = 0, "0 Sinkhorn passes"),
        (|n, _, _| *n = usize::MAX, "Sinkhorn passes"),
        (|_, e, _| *e = f32::NAN, "eps NaN"),
        (|_, _, e| *e = -1.0, "eps -1"),
        (|_, e, _| *e = f32::INFINITY, "eps inf"),
    ];
    for (edit, expected) in cases {
        let damage = |p: &mut Program| {
            if let Residual::HyperConnections {
                sinkhorn_iterations,
                eps,
                norm_eps,
                ..
            } = &mut p.layers[1].residual
            {
                edit(sinkhorn_iterations, eps, norm_eps);
            }
        };
        fails(&connections(), damage, expected);
    }
    let reduction = |p: &mut Program| {
        if let Some(StreamReduction::HyperConnections { eps, .. }) = &mut p.exit.reduction {
            *eps = f32::NAN;
        }
    };
    fails(&connections(), reduction, "exit.reduction: eps NaN");
}
