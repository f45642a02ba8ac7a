//! Both backends against independent reference logits.

mod common;

use common::{first_list, read, reference_ids, reference_matrix, reference_sequence, repository};
use lamella_engine::{BackendKind, Error, Model, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How a backend fares against a reference.
struct Measured {
    /// Largest difference of a logit, over all positions, relative to the largest logit.
    error: f32,
    /// Index of the first generated token that another one beats.
    greedy: Option<usize>,
}

fn check(fixture: &str, backend: BackendKind) {
    let measured = measure(&repository("fixtures").join(fixture), backend);
    let Measured { error, greedy } = measured.unwrap_or_else(|e| panic!("{fixture}: {e}"));
    println!("{fixture} {backend:?}: maximum relative logit error {error:e}");
    assert!(error < 1e-4, "{fixture} {backend:?}: {error:e}");
    assert_eq!(
        greedy, None,
        "{fixture} {backend:?}: a greedy token differs"
    );
}

fn measure(dir: &Path, backend: BackendKind) -> Result<Measured, Error> {
    let (vocabulary, reference) = reference_matrix(&dir.join("ref.safetensors"), "logits");
    let ids = reference_sequence(dir);
    let prompt = reference_ids(&dir.join("ref.json"), "prompt_ids").len();
    let greedy = first_list(dir, ["generated_ids", "greedy_ids"]);
    let options = Options {
        backend,
        ..Options::default()
    };
    let model = Model::open(dir, &options, &mut |_| {})?;
    assert_eq!(model.vocabulary(), vocabulary);
    let mut session = model.session();
    let logits = read(&model, &mut session, &ids, usize::MAX);
    assert_eq!(logits.len(), reference.len());
    assert!(logits.iter().all(|l| l.is_finite()));
    let scale = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let pairs = logits.iter().zip(&reference);
    let error = pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / scale;
    let differs = |(i, &expected): (usize, &u32)| {
        let row = &logits[(prompt + i - 1) * vocabulary..(prompt + i) * vocabulary];
        let all = row.iter().enumerate();
        let best = all.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        best.map(|b| b.0 as u32) != Some(expected)
    };
    let greedy = greedy.iter().enumerate().position(differs);
    Ok(Measured { error, greedy })
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
/// names, each with a line of its own.
#[test]
#[ignore = "needs checkpoints that the oracle makes"]
fn checkpoints_of_a_directory() {
    let root = std::env::var("LAMELLA_CHECKPOINTS").expect("a directory of checkpoints");
    let (mut count, mut failed) = (0, 0);
    for entry in std::fs::read_dir(root).expect("the directory") {
        let dir = entry.expect("an entry").path();
        if !dir.join("ref.json").is_file() {
            continue;
        }
        count += 1;
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            failed += usize::from(!print_checked(&dir, backend));
        }
    }
    assert!(count > 0, "no checkpoint there");
    assert_eq!(failed, 0, "of {count} checkpoints");
}

/// One line about a checkpoint, for people and for `oracle/random_configs.py`; whether it passed.
fn print_checked(dir: &Path, backend: BackendKind) -> bool {
    let measured = catch_unwind(AssertUnwindSafe(|| measure(dir, backend)));
    print!("\nCHECKED {} {backend:?} ", dir.display());
    match measured {
        Ok(Ok(Measured { error, greedy })) => {
            let first = greedy.map_or("equal".to_owned(), |index| format!("differs-at-{index}"));
            println!("error {error:e} greedy {first}");
            error < 1e-4 && greedy.is_none()
        }
        Ok(Err(error)) => {
            println!("FAILED {}", error.to_string().replace('\n', " / "));
            false
        }
        Err(_) => {
            println!("FAILED it panicked");
            false
        }
    }
}
