//! Numbers whose squares f32 cannot hold: the cpu backend gives what the reference gives, or says
//! that it cannot.

mod common;

use common::{FAMILIES, reference_sequence, repository};
use lamella_engine::{BackendKind, Cancel, Error, Logits, Model, Options, Span, lower};

/// Logits of a fixture whose embeddings are `scale` times as large.
fn logits(fixture: &str, backend: BackendKind, scale: f32) -> Result<Vec<f32>, Error> {
    let dir = repository("fixtures").join(fixture);
    let options = Options {
        backend,
        ..Options::default()
    };
    let larger = |config: &str, tensors: &[_]| {
        let mut program = lower(config, tensors)?;
        program.entry.scale = Some(program.entry.scale.unwrap_or(1.0) * scale);
        Ok(program)
    };
    let model = Model::open_lowered(&dir, &options, &larger, &mut |_| {}).expect("opens");
    let mut out = Vec::new();
    let span = Span {
        session: &mut model.session(),
        tokens: &reference_sequence(&dir)[..12],
        logits: Logits::All,
        out: &mut out,
    };
    model.step(&mut [span], &Cancel::new()).map(|()| out)
}

#[test]
fn what_overflows_is_right_or_refused() {
    let mut right = 0;
    for fixture in FAMILIES {
        for scale in [1e15, 1e20, 1e25] {
            let [reference, cpu] = [BackendKind::Reference, BackendKind::Cpu]
                .map(|backend| logits(fixture, backend, scale));
            let (expected, found) = match (reference, cpu) {
                (_, Err(Error::NonFinite { .. })) => continue,
                (Ok(expected), Ok(found)) => (expected, found),
                (reference, cpu) => panic!("{fixture}, {scale}: {reference:?}, {cpu:?}"),
            };
            let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let pairs = expected.iter().zip(&found);
            let error = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(
                error <= 1e-3 * most,
                "{fixture}, {scale}: {error} of {most}"
            );
            right += 1;
        }
    }
    assert!(right >= 12, "{right} of 24 are computed");
}
