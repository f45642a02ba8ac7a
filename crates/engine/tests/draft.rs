//! Draft heads: against independent reference logits, and the same bits whatever the chunks,
//! threads, instruction set and company.

mod common;

use common::{bits, open, read, reference_matrix, reference_sequence, repository};
use lamella_container::safetensors::Header;
use lamella_container::{ConvertOptions, Keep, convert};
use lamella_engine::{BackendKind, Cancel, Error, Logits, Model, Options, Session, Span, lower};
use lamella_kernels::Isa;
use lamella_program::closure::draft_operands;
use lamella_program::draft::{Draft, DraftReads, HiddenNormScope, JoinMap};
use lamella_program::{Encoding, TensorInfo};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Fixtures with draft heads, and the names of their references, one a head.
const FIXTURES: [(&str, &[&str]); 11] = [
    ("glm-101", &["mtp_logits_postnorm"]),
    ("glm-404", &["mtp_logits_postnorm"]),
    ("qwen36-101", &["mtp_logits"]),
    ("qwen36fp8-707", &["mtp_logits"]),
    ("qwen35dense-303", &["mtp_logits"]),
    ("qwen3next-505", &["mtp_logits"]),
    ("qwen38-111", &["mtp_logits"]),
    ("qwen38fp8-777", &["mtp_logits"]),
    ("deepseek_v4-101", &["mtp_logits"]),
    ("deepseek_v4-303", &["mtp_logits"]),
    (
        "inkling-101",
        &[
            "mtp_logits_normed_0",
            "mtp_logits_normed_1",
            "mtp_logits_normed_2",
        ],
    ),
];
/// One more, whose reference stands alone.
const NVFP4: (&str, &[&str]) = ("inkling-nvfp4-303", &["mtp_logits_normed_0"]);

fn drafting(fixture: &str, options: Options) -> Arc<Model> {
    let options = Options {
        draft: true,
        ..options
    };
    open(&repository("fixtures").join(fixture), &options)
}

fn tokens(fixture: &str) -> Vec<u32> {
    reference_sequence(&repository("fixtures").join(fixture))
}

/// What the first head reads of `ids`, in chunks.
fn main_rows(model: &Model, ids: &[u32], chunk: usize) -> Vec<f32> {
    let (mut session, mut all, mut out) = (model.session(), Vec::new(), Vec::new());
    let mut rows = [Vec::new()];
    for tokens in ids.chunks(chunk) {
        let span = Span {
            session: &mut session,
            tokens,
            logits: Logits::None,
            out: &mut out,
        };
        let step = model.step_for_draft(&mut [span], &mut rows, &Cancel::new());
        step.expect("step");
        all.extend_from_slice(&rows[0]);
    }
    all
}

/// Logits of a head for every row, and the rows it writes.
struct Drafted {
    logits: Vec<f32>,
    rows: Vec<f32>,
}

fn draft(
    model: &Model,
    session: &mut Session,
    depth: usize,
    (tokens, rows): (&[u32], &[f32]),
    chunk: usize,
) -> Drafted {
    let width = model.program().boundary.width;
    let mut all = Drafted {
        logits: Vec::new(),
        rows: Vec::new(),
    };
    let (mut out, mut write) = (Vec::new(), [Vec::new()]);
    let chunk = chunk.min(tokens.len());
    for (tokens, read) in tokens.chunks(chunk).zip(rows.chunks(chunk * width)) {
        let span = Span {
            session: &mut *session,
            tokens,
            logits: Logits::All,
            out: &mut out,
        };
        let step = model.draft_step(depth, &mut [span], &[read], &mut write, &Cancel::new());
        step.expect("step");
        all.logits.extend_from_slice(&out);
        all.rows.extend_from_slice(&write[0]);
    }
    all
}

/// Every head over `ids`: row `i` of head `j` joins the token at `i + 1 + j`.
fn every_depth(model: &Model, ids: &[u32], chunk: usize) -> Vec<Drafted> {
    let width = model.program().boundary.width;
    let mut rows = main_rows(model, ids, chunk);
    let mut all: Vec<Drafted> = Vec::new();
    for depth in 0..model.draft().expect("it drafts").depths.len() {
        let tokens = &ids[depth + 1..];
        rows.truncate(tokens.len() * width);
        let mut session = model.draft_session(depth).expect("session");
        let drafted = draft(model, &mut session, depth, (tokens, &rows), chunk);
        assert_eq!(session.position(), tokens.len());
        rows.clone_from(&drafted.rows);
        all.push(drafted);
    }
    all
}

/// The largest error of each head, as a share of its largest logit.
fn errors(model: &Model, dir: &Path, names: &[&str]) -> Vec<f32> {
    let depths = every_depth(model, &reference_sequence(dir), usize::MAX);
    assert_eq!(depths.len(), names.len());
    let pairs = depths.iter().zip(names);
    pairs
        .map(|(drafted, name)| {
            let (vocabulary, expected) = reference_matrix(&dir.join("ref.safetensors"), name);
            assert_eq!(vocabulary, model.vocabulary());
            assert_eq!(drafted.logits.len(), expected.len(), "{name}");
            assert!(drafted.logits.iter().all(|l| l.is_finite()), "{name}");
            let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let pairs = drafted.logits.iter().zip(&expected);
            pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / scale
        })
        .collect()
}

fn check(dir: &Path, names: &[&str], backend: BackendKind) {
    let options = Options {
        backend,
        draft: true,
        ..Options::default()
    };
    for (error, name) in errors(&open(dir, &options), dir, names).iter().zip(names) {
        let case = format!("{} {name} {backend:?}: {error:e}", dir.display());
        println!("{case}");
        assert!(*error < 1e-4, "{case}");
    }
}

#[test]
fn heads_compute_what_their_references_say() {
    for (fixture, names) in FIXTURES.into_iter().chain([NVFP4]) {
        let dir = repository("fixtures").join(fixture);
        check(&dir, names, BackendKind::Reference);
        check(&dir, names, BackendKind::Cpu);
    }
}

/// Changes a draft; whether it could.
type Misreading = fn(&mut Draft) -> bool;

fn other_order(draft: &mut Draft) -> bool {
    let mut changed = false;
    for depth in &mut draft.depths {
        match &mut depth.join.map {
            JoinMap::Concatenate {
                embedding_first, ..
            } => *embedding_first ^= true,
            JoinMap::Add { embedding, hidden } => std::mem::swap(embedding, hidden),
            _ => continue,
        }
        changed = true;
    }
    changed
}

fn norms_without_offset(draft: &mut Draft) -> bool {
    let joins = draft.depths.iter_mut().map(|depth| &mut depth.join);
    let norms = joins.flat_map(|join| [&mut join.embedding_norm, &mut join.hidden_norm]);
    norms.fold(false, |changed, norm| {
        changed | std::mem::take(&mut norm.unit_offset)
    })
}

fn norms_swapped(draft: &mut Draft) -> bool {
    let mut changed = false;
    for join in draft.depths.iter_mut().map(|depth| &mut depth.join) {
        if join.hidden_norm_scope == HiddenNormScope::Stream {
            std::mem::swap(&mut join.embedding_norm, &mut join.hidden_norm);
            changed = true;
        }
    }
    changed
}

fn unnormed_rows(draft: &mut Draft) -> bool {
    std::mem::replace(&mut draft.reads, DraftReads::Streams) == DraftReads::Normed
}

#[test]
fn misreadings_show() {
    let misreadings: [(&str, Misreading); 4] = [
        ("other order", other_order),
        ("norms without offset", norms_without_offset),
        ("norms swapped", norms_swapped),
        ("rows before the last norm", unnormed_rows),
    ];
    let mut shown = 0;
    for (fixture, names) in FIXTURES {
        let dir = repository("fixtures").join(fixture);
        for (what, misread) in misreadings {
            let applied = std::cell::Cell::new(false);
            let lowering = |config: &str, tensors: &[TensorInfo]| {
                let mut program = lower(config, tensors)?;
                applied.set(misread(program.draft.as_mut().expect("it drafts")));
                Ok(program)
            };
            let options = Options {
                draft: true,
                ..Options::default()
            };
            let model = Model::open_lowered(&dir, &options, &lowering, &mut |_| {});
            let model = model.expect("it opens");
            if !applied.get() {
                continue;
            }
            shown += 1;
            let found = errors(&model, &dir, names);
            let seen = found.iter().any(|error| *error > 1e-3);
            assert!(seen, "{fixture} {what}: {found:?}");
            if what == "rows before the last norm" && fixture.starts_with("glm") {
                let found = errors(&model, &dir, &["mtp_logits_prenorm"]);
                assert!(found[0] < 1e-4, "{fixture}: {found:?}");
            }
        }
    }
    assert_eq!(shown, 33);
}

#[test]
fn bits_do_not_depend_on_chunks_threads_and_instruction_sets() {
    for (fixture, _) in FIXTURES {
        let ids = tokens(fixture);
        for want in [None, Some(Encoding::Q4)] {
            let with = |threads, isa| {
                let options = Options {
                    want,
                    threads: Some(threads),
                    isa: Some(isa),
                    step_rows: 48,
                    ..Options::default()
                };
                drafting(fixture, options)
            };
            let expected = every_depth(&with(1, Isa::Scalar), &ids, usize::MAX);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let model = with(3, isa);
                for chunk in [1, 7] {
                    let found = every_depth(&model, &ids, chunk);
                    for (depth, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let case = format!("{fixture} {want:?} {isa} {chunk} head {depth}");
                        assert!(bits(&found.logits) == bits(&expected.logits), "{case}");
                        assert!(bits(&found.rows) == bits(&expected.rows), "{case}: rows");
                    }
                }
            }
        }
    }
}

#[test]
fn the_model_computes_the_same_with_and_without_its_draft() {
    for (fixture, _) in FIXTURES {
        let ids = tokens(fixture);
        let plain = open(&repository("fixtures").join(fixture), &Options::default());
        let model = drafting(fixture, Options::default());
        let logits = |model: &Model| bits(&read(model, &mut model.session(), &ids, usize::MAX));
        assert!(logits(&plain) == logits(&model), "{fixture}");
        let (without, with) = (plain.report(), model.report());
        assert!(without.resident_bytes < with.resident_bytes, "{fixture}");
        assert_eq!(without.draft_state_bytes_per_token, 0);
        assert_eq!(without.state_bytes_per_token, with.state_bytes_per_token);
        assert_eq!(plain.session().state_bytes(), model.session().state_bytes());
    }
}

#[test]
fn company_does_not_change_a_row() {
    for (fixture, _) in FIXTURES {
        let model = drafting(fixture, Options::default());
        let width = model.program().boundary.width;
        let ids = tokens(fixture);
        let rows = main_rows(&model, &ids, usize::MAX);
        // Three conversations of different lengths that begin differently.
        let spans = [0..40, 3..4, 10..75];
        let alone = spans.clone().map(|span| {
            let mut session = model.draft_session(0).expect("session");
            let input = (
                &ids[span.start + 1..=span.end],
                &rows[span.start * width..span.end * width],
            );
            draft(&model, &mut session, 0, input, usize::MAX)
        });
        let mut sessions = [0; 3].map(|_| model.draft_session(0).expect("session"));
        let mut outs = [0; 3].map(|_| Vec::new());
        let mut write = [0; 3].map(|_| Vec::new());
        let read = spans
            .clone()
            .map(|span| &rows[span.start * width..span.end * width]);
        let places = sessions.iter_mut().zip(&mut outs).zip(&spans);
        let mut together: Vec<Span<'_>> = places
            .map(|((session, out), span)| Span {
                session,
                tokens: &ids[span.start + 1..=span.end],
                logits: Logits::All,
                out,
            })
            .collect();
        let step = model.draft_step(0, &mut together, &read, &mut write, &Cancel::new());
        step.expect("step");
        for (i, alone) in alone.iter().enumerate() {
            assert!(bits(&outs[i]) == bits(&alone.logits), "{fixture} {i}");
            assert!(bits(&write[i]) == bits(&alone.rows), "{fixture} {i}");
        }
    }
}

/// A head that recycles reads on from its own row, and goes back to what is certain.
#[test]
fn guesses_are_forgotten_without_a_trace() {
    for (fixture, _) in FIXTURES {
        let model = drafting(fixture, Options::default());
        let width = model.program().boundary.width;
        let ids = tokens(fixture);
        let known = 60;
        let rows = main_rows(&model, &ids, usize::MAX);
        let mut session = model.draft_session(0).expect("session");
        let before = (&ids[1..=known], &rows[..known * width]);
        let first = draft(&model, &mut session, 0, before, usize::MAX);
        let checkpoint = session.checkpoint().expect("memory");
        let mut row = first.rows[(known - 1) * width..].to_vec();
        for guess in [3, 1, 4, 1, 5] {
            row = draft(&model, &mut session, 0, (&[guess], &row), 1).rows;
        }
        assert_eq!(session.position(), known + 5);
        session.restore(&checkpoint).expect("it goes back");
        let after = (
            &ids[known + 1..],
            &rows[known * width..(ids.len() - 1) * width],
        );
        let again = draft(&model, &mut session, 0, after, 5);
        let mut fresh = model.draft_session(0).expect("session");
        let whole = (&ids[1..], &rows[..(ids.len() - 1) * width]);
        let expected = draft(&model, &mut fresh, 0, whole, usize::MAX);
        let rest = &expected.logits[known * model.vocabulary()..];
        assert!(bits(&again.logits) == bits(rest), "{fixture}");
        if fixture.starts_with("glm") || fixture.starts_with("qwen35") {
            fresh.truncate(known).expect("attention alone truncates");
            let again = draft(&model, &mut fresh, 0, after, 1);
            assert!(bits(&again.logits) == bits(rest), "{fixture} truncated");
        }
    }
}

#[test]
fn a_cancelled_or_wrong_step_leaves_nothing() {
    for (fixture, _) in FIXTURES {
        let model = drafting(fixture, Options::default());
        let width = model.program().boundary.width;
        let ids = tokens(fixture);
        let rows = main_rows(&model, &ids, usize::MAX);
        let mut session = model.draft_session(0).expect("session");
        draft(
            &model,
            &mut session,
            0,
            (&ids[1..11], &rows[..10 * width]),
            10,
        );
        let mut out = vec![1.0];
        let mut write = [vec![1.0]];
        let mut step = |session: &mut Session, depth, read: &[f32], cancel: &Cancel| {
            let span = Span {
                session,
                tokens: &ids[11..21],
                logits: Logits::All,
                out: &mut out,
            };
            let result = model.draft_step(depth, &mut [span], &[read], &mut write, cancel);
            (result, out.len(), write[0].len())
        };
        let good = &rows[10 * width..20 * width];
        let cancel = Cancel::new();
        cancel.cancel();
        let cancelled = step(&mut session, 0, good, &cancel);
        assert!(
            matches!(cancelled, (Err(Error::Cancelled), 0, 0)),
            "{fixture}"
        );
        let go = Cancel::new();
        let broken = vec![f32::NAN; good.len()];
        let broken = step(&mut session, 0, &broken, &go);
        assert!(
            matches!(broken, (Err(Error::NonFinite { .. }), 0, 0)),
            "{fixture}"
        );
        let short = step(&mut session, 0, &good[1..], &go).0;
        assert!(matches!(short, Err(Error::Activations { .. })), "{fixture}");
        let depths = model.program().depths().len();
        let none = step(&mut session, depths, good, &go).0;
        assert!(matches!(none, Err(Error::NoDraft { .. })), "{fixture}");
        let foreign = step(&mut model.session(), 0, good, &go).0;
        assert!(matches!(foreign, Err(Error::ForeignSession)), "{fixture}");
        assert_eq!(session.position(), 10);
        let rest = (&ids[11..], &rows[10 * width..(ids.len() - 1) * width]);
        let found = draft(&model, &mut session, 0, rest, usize::MAX);
        let whole = (&ids[1..], &rows[..(ids.len() - 1) * width]);
        let mut fresh = model.draft_session(0).expect("session");
        let expected = draft(&model, &mut fresh, 0, whole, usize::MAX);
        let expected = &expected.logits[10 * model.vocabulary()..];
        assert!(bits(&found.logits) == bits(expected), "{fixture}");
    }
}

#[test]
fn sessions_of_heads_and_models_are_not_mixed() {
    let model = drafting("inkling-101", Options::default());
    let mut out = Vec::new();
    for depth in 0..3 {
        let mut session = model.draft_session(depth).expect("session");
        let span = Span {
            session: &mut session,
            tokens: &[1],
            logits: Logits::None,
            out: &mut out,
        };
        let main = model.step(&mut [span], &Cancel::new());
        assert!(matches!(main, Err(Error::ForeignSession)));
    }
    let plain = open(
        &repository("fixtures").join("inkling-101"),
        &Options::default(),
    );
    assert!(plain.draft().is_none());
    assert!(matches!(plain.draft_session(0), Err(Error::NoDraft { .. })));
    let none = Options {
        draft: true,
        ..Options::default()
    };
    let olmoe = repository("fixtures").join("olmoe-101");
    let opened = Model::open(&olmoe, &none, &mut |_| {});
    assert!(matches!(opened, Err(Error::NoDraft { .. })));
}

/// Containers keep the heads, at 8 bits or more where the rest has 4, and compute the same.
#[test]
fn containers_keep_the_heads() {
    for fixture in ["glm-101", "qwen38-111", "inkling-101"] {
        let q4 = Options {
            want: Some(Encoding::Q4),
            ..Options::default()
        };
        let opened = drafting(fixture, q4.clone());
        let temp = tempfile::tempdir().expect("a directory");
        let out = temp.path().join("container");
        let options = ConvertOptions::new(Keep::As(Encoding::Q4));
        let quiet = &mut |_: lamella_container::Progress<'_>| {};
        let never = AtomicBool::new(false);
        convert(opened.store(), &out, &options, quiet, &never).expect("converts");
        let draft = Options { draft: true, ..q4 };
        let converted = open(&out, &draft);
        assert_eq!(converted.program(), opened.program(), "{fixture}");
        let (store, mut large) = (converted.store(), 0);
        for id in draft_operands(store.program()) {
            let name = &store.program().operand(id).name;
            let encodings = store.encodings(id);
            assert!(!encodings.contains(&Encoding::Q4), "{fixture} {name}");
            large += usize::from(encodings == [Encoding::Q8]);
        }
        assert!(large > 0, "{fixture}");
        let ids = tokens(fixture);
        let pairs = every_depth(&opened, &ids, usize::MAX);
        for (a, b) in pairs.iter().zip(&every_depth(&converted, &ids, usize::MAX)) {
            assert!(bits(&a.logits) == bits(&b.logits), "{fixture}");
        }
    }
}

/// Names of the draft heads' logits in the reference beside a checkpoint, one a head.
fn reference_heads(dir: &Path) -> Vec<String> {
    let bytes = std::fs::read(dir.join("ref.safetensors")).expect("a reference");
    let names = Header::from_file_bytes(&bytes).expect("a header").tensors;
    let many = (0..8).map(|j| format!("mtp_logits_normed_{j}"));
    let all = ["mtp_logits", "mtp_logits_postnorm"].map(str::to_owned);
    let all = all.into_iter().chain(many);
    all.filter(|head| names.iter().any(|t| t.name == *head))
        .collect()
}

/// The largest error of a checkpoint's draft heads, if it has any.
fn measure_heads(dir: &Path, backend: BackendKind) -> Result<Option<f32>, String> {
    let names = reference_heads(dir);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let options = Options {
        backend,
        draft: true,
        ..Options::default()
    };
    match Model::open(dir, &options, &mut |_| {}) {
        Err(Error::NoDraft { .. }) if names.is_empty() => Ok(None),
        Err(error) => Err(error.to_string().replace('\n', " / ")),
        Ok(_) if names.is_empty() => Err("the reference lacks its draft heads".to_owned()),
        Ok(model) => Ok(errors(&model, dir, &names).into_iter().reduce(f32::max)),
    }
}

/// Checkpoints fresh from the oracle: every directory below the one that `LAMELLA_CHECKPOINTS`
/// names, each with a line of its own where it has draft heads, for people and for
/// `oracle/random_configs.py`.
#[test]
#[ignore = "needs checkpoints that the oracle makes"]
fn checkpoints_of_a_directory() {
    let root = std::env::var("LAMELLA_CHECKPOINTS").expect("a directory of checkpoints");
    let (mut without, mut passed, mut failed) = (0, 0, 0);
    for entry in std::fs::read_dir(&root).expect("the directory") {
        let dir = entry.expect("an entry").path();
        if !dir.join("ref.safetensors").is_file() {
            continue;
        }
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            let measured = catch_unwind(|| measure_heads(&dir, backend));
            let measured = measured.unwrap_or_else(|_| Err("it panicked".to_owned()));
            if measured == Ok(None) {
                without += 1;
                continue;
            }
            print!("\nCHECKED {} {backend:?}-heads ", dir.display());
            match measured {
                Ok(error) => println!("error {:e}", error.unwrap_or(f32::INFINITY)),
                Err(ref message) => println!("FAILED {message}"),
            }
            match measured {
                Ok(Some(error)) if error < 1e-4 => passed += 1,
                _ => failed += 1,
            }
        }
    }
    let all = without + passed + failed;
    assert!(all > 0, "no checkpoint in {root}");
    assert!(
        without < all,
        "none of the {} checkpoints in {root} has draft heads, so there is nothing to check",
        all / 2
    );
    assert_eq!(failed, 0, "of {} runs of draft heads", passed + failed);
}
