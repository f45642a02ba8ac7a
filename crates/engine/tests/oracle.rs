//! Both backends against independent reference logits.

mod common;

use common::{open, read, reference_ids, reference_matrix, repository};
use lamella_engine::{BackendKind, Options};

fn check(fixture: &str, backend: BackendKind) {
    let dir = repository("fixtures").join(fixture);
    let (vocabulary, reference) = reference_matrix(&dir.join("ref.safetensors"), "logits");
    let ids = reference_ids(&dir.join("ref.json"), "full_ids");
    let prompt = reference_ids(&dir.join("ref.json"), "prompt_ids").len();
    let greedy = reference_ids(&dir.join("ref.json"), "greedy_ids");
    let model = open(
        &dir,
        &Options {
            backend,
            ..Options::default()
        },
    );
    assert_eq!(model.vocabulary(), vocabulary);
    let mut session = model.session();
    let logits = read(&model, &mut session, &ids, usize::MAX);
    assert_eq!(logits.len(), reference.len());
    let scale = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let error = logits
        .iter()
        .zip(&reference)
        .fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    println!(
        "{fixture} {backend:?}: maximum relative logit error {:e}",
        error / scale
    );
    assert!(
        error / scale < 1e-4,
        "{fixture} {backend:?}: {:e}",
        error / scale
    );
    for (i, &expected) in greedy.iter().enumerate() {
        let row = &logits[(prompt + i - 1) * vocabulary..(prompt + i) * vocabulary];
        let best = row
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        assert_eq!(
            best.map(|b| b.0 as u32),
            Some(expected),
            "{fixture} greedy token {i}"
        );
    }
}

#[test]
fn olmoe_on_the_reference_backend() {
    check("olmoe-101", BackendKind::Reference);
    check("olmoe-202", BackendKind::Reference);
}

#[test]
fn olmoe_on_the_cpu_backend() {
    check("olmoe-101", BackendKind::Cpu);
    check("olmoe-202", BackendKind::Cpu);
}
