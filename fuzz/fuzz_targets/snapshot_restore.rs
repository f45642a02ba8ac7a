//! Snapshots: damage of any kind is refused, and afterwards the session still works; what is
//! undamaged restores.
//!
//! The input is a length to cut the snapshot to, then places and what is put there.
#![no_main]

use lamella_engine::{Cancel, Logits, Model, Options, Session, Span};
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::{Arc, LazyLock};

static MODEL: LazyLock<(Arc<Model>, Vec<u8>)> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/qwen36-101");
    let options = Options { threads: Some(1), context: Some(64), ..Options::default() };
    let model = Model::open(&path, &options, &mut |_| ()).expect("the fixture opens");
    let mut session = model.session();
    step(&model, &mut session);
    let mut snapshot = Vec::new();
    model.snapshot(&session, &mut snapshot).expect("memory takes everything");
    (model, snapshot)
});

fn step(model: &Model, session: &mut Session) {
    let out = &mut Vec::new();
    let span = Span { session, tokens: &[1, 2, 3], logits: Logits::Last, out };
    model.step(&mut [span], &Cancel::default()).expect("a step of three tokens");
}

fuzz_target!(|data: &[u8]| {
    let (model, sound) = &*MODEL;
    let Some((length, patches)) = data.split_first_chunk::<4>() else { return };
    let mut bytes = sound.clone();
    for patch in patches.chunks_exact(5) {
        let (at, value) = (u32::from_le_bytes([patch[0], patch[1], patch[2], patch[3]]), patch[4]);
        let at = at as usize % bytes.len();
        bytes[at] = value;
    }
    bytes.truncate(u32::from_le_bytes(*length) as usize);
    let mut session = model.session();
    let restored = model.restore(&mut session, &mut &bytes[..]);
    assert_eq!(restored.is_ok(), bytes == *sound);
    if restored.is_err() {
        step(model, &mut session);
    }
    // As it came, too.
    assert!(model.restore(&mut model.session(), &mut &data[..]).is_err());
});
