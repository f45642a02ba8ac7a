//! Gated units, routers and experts.

use crate::common::blocks::{grouped, hashed, routed, sharing};
use crate::common::{WIDTH, fails, fails_and_frees, reshape, sweep, with_ffn};
use lamella_program::block::{
    Ffn, GatedActivation, GatedUnit, Routed, RouterGroups, Scoring, WeightRule,
};
use lamella_program::{Program, Role};

fn dense() -> Program {
    with_ffn(|t| {
        let mut unit = t.unit("unit", WIDTH);
        unit.output_gate = Some(t.add("output_gate", &[1, 8], Role::Vector));
        unit.output_scale = Some(t.vector("output_scale", 1));
        Ffn::Dense(unit)
    })
}

fn mixture(of: fn(&mut crate::common::Table) -> Routed) -> Program {
    let mut program = with_ffn(|t| Ffn::Routed(of(t)));
    program.boundary.needs_token_ids = edit(&mut program).router.hash_table.is_some();
    program
}

fn edit(p: &mut Program) -> &mut Routed {
    match &mut p.layers[0].ffn.body {
        Ffn::Routed(r) => r,
        _ => panic!("a mixture"),
    }
}

fn unit(p: &mut Program) -> &mut GatedUnit {
    match &mut p.layers[0].ffn.body {
        Ffn::Dense(unit) => unit,
        _ => panic!("a dense unit"),
    }
}

#[test]
fn every_operand_has_its_shape() {
    sweep(&dense(), &[], &[]);
    sweep(&mixture(routed), &[], &[]);
    sweep(&mixture(grouped), &["latent.down"], &[]);
    sweep(&mixture(sharing), &[], &[]);
    sweep(&mixture(hashed), &[], &[]);
}

#[test]
fn stacks_are_experts_and_units_are_not() {
    let role = |p: &mut Program, name: &str, role| {
        let operand = p.operands.iter_mut().find(|o| o.name == name);
        let operand = operand.expect("it is there");
        operand.role = role;
        let shape = operand.shape.clone();
        reshape(operand, &shape);
    };
    let program = mixture(routed);
    for name in ["experts.gate", "experts.up", "experts.down"] {
        let damage = |p: &mut Program| role(p, name, Role::Linear);
        fails(&program, damage, "has role Linear, needs Expert");
    }
    for wrong in [Role::Vector, Role::Linear] {
        let other = |p: &mut Program| role(p, "router", wrong);
        fails(
            &program,
            other,
            &format!("has role {wrong:?}, needs Router"),
        );
    }
    for name in ["unit.gate", "unit.up", "unit.down"] {
        let apart = |p: &mut Program| role(p, name, Role::Router);
        fails(&dense(), apart, "has role Router, needs Linear");
    }
    let map = |p: &mut Program| role(p, "output_gate", Role::Linear);
    fails(&dense(), map, "has role Linear, needs Vector or Kernel");
    let quantised = |p: &mut Program| role(p, "final", Role::Linear);
    fails(&program, quantised, "has role Linear, needs Vector");
}

#[test]
fn activations_have_usable_limits() {
    for limit in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let clamped = GatedActivation::ClampedSilu { limit };
        fails(&dense(), |p| unit(p).activation = clamped, "limit");
        let gate = GatedActivation::Situ {
            beta: limit,
            linear_beta: 1.0,
        };
        fails(&dense(), |p| unit(p).activation = gate, ": beta");
        let linear = GatedActivation::Situ {
            beta: 1.0,
            linear_beta: limit,
        };
        let program = mixture(routed);
        fails(
            &program,
            |p| edit(p).unit.activation = linear,
            "linear beta",
        );
    }
    fails(&dense(), |p| unit(p).width = 0, "inner width is zero");
}

#[test]
fn experts_are_chosen_of_those_there_are() {
    let program = mixture(routed);
    fails(&program, |p| edit(p).top_k = 0, "0 experts chosen of 4");
    fails(&program, |p| edit(p).top_k = 5, "5 experts chosen of 4");
    fails(
        &program,
        |p| edit(p).router.scale = Some(f32::NAN),
        "scale NaN is not finite",
    );
    let eps = WeightRule::Normalised { eps: f32::NAN };
    fails(&program, |p| edit(p).router.weights = eps, "eps NaN");
}

#[test]
fn experts_have_no_gate_of_their_own() {
    let with = |p: &mut Program| {
        let scale = edit(p).router.learned_scale;
        edit(p).unit.output_scale = scale;
    };
    fails(&mixture(sharing), with, "no gate or scale of their own");
}

#[test]
fn groups_divide_the_experts() {
    let groups = |count, top_k| {
        move |p: &mut Program| {
            edit(p).router.groups = Some(RouterGroups { count, top_k });
        }
    };
    let program = mixture(grouped);
    fails(&program, groups(3, 1), "4 experts in 3 groups");
    fails(&program, groups(0, 1), "4 experts in 0 groups");
    fails(&program, groups(4, 2), "groups of 1 experts");
    fails(&program, groups(2, 0), "0 groups kept of 2");
    fails(&program, groups(2, 3), "3 groups kept of 2");
    fails(
        &program,
        |p| edit(p).top_k = 3,
        "3 experts chosen of 1 groups",
    );
}

#[test]
fn shared_experts_take_part_as_often_as_they_are_there() {
    let program = mixture(sharing);
    for shared in [0, 1, 3, usize::MAX] {
        let weights = WeightRule::WithShared { shared };
        let damage = |p: &mut Program| edit(p).router.weights = weights;
        fails(&program, damage, "shared experts take part, 2 are there");
    }
    let softmax = |p: &mut Program| edit(p).router.scoring = Scoring::Softmax;
    fails(&program, softmax, "softmax over the others");
    let mut alone = mixture(routed);
    edit(&mut alone).router.scoring = Scoring::Sigmoid;
    edit(&mut alone).router.weights = WeightRule::WithShared { shared: 0 };
    fails(&alone, |_| {}, "0 shared experts take part");
}

#[test]
fn hash_routing_needs_token_ids_and_nothing_else() {
    let program = mixture(hashed);
    let blind = |p: &mut Program| p.boundary.needs_token_ids = false;
    fails(&program, blind, "needs token ids");
    let groups = Some(RouterGroups { count: 2, top_k: 1 });
    let both = |p: &mut Program| edit(p).router.groups = groups;
    fails(&program, both, "nothing else selects");
    fails_and_frees(
        &program,
        |p| {
            edit(p).router.hash_table = None;
            edit(p).router.groups = Some(RouterGroups { count: 9, top_k: 1 });
        },
        "4 experts in 9 groups",
    );
}
