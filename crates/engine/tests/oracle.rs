//! Both backends against independent reference logits.

mod common;

use common::{Measured, measure, repository};
use lamella_engine::BackendKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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
    glm: "glm-101", "glm-404";
    inkling: "inkling-101", "inkling-nvfp4-303";
    kimi_k3: "kimi_k3-101", "kimi_k3-bf16-404";
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
