//! Both backends against independent reference logits.

mod common;

use common::{
    first_list, open, read, reference_ids, reference_matrix, reference_sequence, repository,
};
use lamella_engine::{BackendKind, Options};
use std::path::Path;

fn check(fixture: &str, backend: BackendKind) {
    check_directory(&repository("fixtures").join(fixture), backend);
}

fn check_directory(dir: &Path, backend: BackendKind) {
    let fixture = dir.display();
    let (vocabulary, reference) = reference_matrix(&dir.join("ref.safetensors"), "logits");
    let ids = reference_sequence(dir);
    let prompt = reference_ids(&dir.join("ref.json"), "prompt_ids").len();
    let greedy = first_list(dir, ["generated_ids", "greedy_ids"]);
    let model = open(
        dir,
        &Options {
            backend,
            ..Options::default()
        },
    );
    assert_eq!(model.vocabulary(), vocabulary);
    let mut session = model.session();
    let logits = read(&model, &mut session, &ids, usize::MAX);
    assert_eq!(logits.len(), reference.len());
    assert!(logits.iter().all(|l| l.is_finite()));
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

/// One test a family: both backends on each of its fixtures.
macro_rules! families {
    ($($family:ident: $($fixture:literal),*;)*) => {
        $(#[test]
        fn $family() {
            for fixture in [$($fixture),*] {
                check(fixture, BackendKind::Reference);
                check(fixture, BackendKind::Cpu);
            }
        })*
    };
}

families! {
    olmoe: "olmoe-101", "olmoe-202";
    glm: "glm-101", "glm-303";
    inkling: "inkling-101", "inkling-nvfp4-303";
    kimi_k3: "kimi_k3-101", "kimi_k3-bf16-303";
    qwen36: "qwen36-101", "qwen36fp8-707", "qwen35dense-303", "qwen3next-505";
    qwen38: "qwen38-111", "qwen38fp8-777";
    deepseek_v4: "deepseek_v4-101", "deepseek_v4-303";
}

/// Checkpoints fresh from the oracle: every directory below the one that `LAMELLA_CHECKPOINTS`
/// names.
#[test]
#[ignore = "needs checkpoints that the oracle makes"]
fn checkpoints_of_a_directory() {
    let root = std::env::var("LAMELLA_CHECKPOINTS").expect("a directory of checkpoints");
    let mut count = 0;
    for entry in std::fs::read_dir(root).expect("the directory") {
        let dir = entry.expect("an entry").path();
        if dir.join("ref.json").is_file() {
            check_directory(&dir, BackendKind::Reference);
            check_directory(&dir, BackendKind::Cpu);
            count += 1;
        }
    }
    assert!(count > 0, "no checkpoint there");
}
