//! Codes with scales are held and executed at their own size.

mod common;

use common::{bits, open, read, reference_sequence, repository};
use lamella_container::safetensors::Header;
use lamella_container::{ConvertOptions, Keep, convert};
use lamella_engine::{Model, Options};
use lamella_program::{Encoding, Role};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Fixtures with experts in codes, and the encoding that holds these.
const CODED: [(&str, Encoding); 6] = [
    ("kimi_k3-101", Encoding::Mxfp4),
    ("deepseek_v4-303", Encoding::Mxfp4),
    ("qwen36fp8-707", Encoding::Fp8),
    ("qwen38fp8-777", Encoding::Fp8),
    ("inkling-nvfp4-303", Encoding::Nvfp4),
    ("glm-404", Encoding::Fp8),
];

fn model(path: &Path, want: Option<Encoding>) -> Arc<Model> {
    let options = Options {
        want,
        threads: Some(2),
        ..Options::default()
    };
    open(path, &options)
}

fn logits(model: &Model, ids: &[u32]) -> Vec<u32> {
    bits(&read(model, &mut model.session(), ids, usize::MAX))
}

/// Elements and bytes of the routed experts, if each is held in `encoding`.
fn experts(model: &Model, encoding: Encoding) -> (u64, u64) {
    let (mut elements, mut bytes) = (0, 0);
    let (banks, layers) = (model.store().banks().iter(), model.program().layers.len());
    let banks = banks.filter(|bank| bank.layer < layers);
    for id in banks.flat_map(|bank| bank.operands()) {
        let (operand, encodings) = (model.program().operand(id), model.store().encodings(id));
        // Some releases leave the experts of a layer in bf16.
        if encodings[0] != Encoding::Bf16 {
            assert_eq!(encodings[0], encoding, "{}", operand.name);
            let item = encoding.matrix_bytes(operand.rows(), operand.cols());
            bytes += (item.expect("a size") * operand.items()) as u64;
            elements += operand.elements() as u64;
        }
    }
    (elements, bytes)
}

#[test]
fn experts_are_held_at_the_size_they_are_shipped_in() {
    for (fixture, encoding) in CODED {
        let path = repository("fixtures").join(fixture);
        let coded = model(&path, None);
        let (elements, held) = experts(&coded, encoding);
        assert!(elements > 0, "{fixture}");
        let summary = coded.store().summary();
        let shipped = summary.stored.iter();
        let shipped = shipped.filter(|s| s.role == Role::Expert && s.encoding == encoding);
        let shipped: u64 = shipped.map(|s| s.bytes).sum();
        // A plane of scales begins at a cache line, which is much for matrices as small as these.
        assert!(held <= shipped * 6 / 5, "{fixture}: {held} of {shipped}");
        let report = coded.report();
        assert!(report.encodings[encoding.name()] >= elements, "{fixture}");
        let bits = held * 8 / elements;
        let widest = if encoding == Encoding::Fp8 { 9 } else { 5 };
        assert!(bits <= widest, "{fixture}: {bits} bits a weight");
        println!("{fixture}: {held} bytes held, {shipped} shipped");
    }
}

/// Resident bytes are those of the codes: what they are decoded to takes at least as much more as
/// the experts alone grow by.
#[test]
fn resident_bytes_follow_the_codes() {
    for (fixture, encoding) in CODED {
        let coded = model(&repository("fixtures").join(fixture), None);
        let (elements, held) = experts(&coded, encoding);
        let temp = tempfile::tempdir().expect("a directory");
        let out = temp.path().join("wide");
        let quiet = &mut |_: lamella_container::Progress<'_>| {};
        let options = ConvertOptions::new(Keep::As(Encoding::F32));
        convert(
            coded.store(),
            &out,
            &options,
            quiet,
            &AtomicBool::new(false),
        )
        .expect("converts");
        let wide = model(&out, None);
        let saved = wide.report().resident_bytes - coded.report().resident_bytes;
        assert!(saved >= 4 * elements - held, "{fixture}: {saved}");
    }
}

#[test]
fn containers_of_codes_compute_what_the_checkpoint_computes() {
    for (fixture, encoding) in CODED {
        let path = repository("fixtures").join(fixture);
        let ids = reference_sequence(&path);
        for (want, keep) in [
            (None, Keep::Canonical),
            (Some(Encoding::Q4), Keep::As(Encoding::Q4)),
            (Some(Encoding::Q8), Keep::As(Encoding::Q8)),
        ] {
            let opened = model(&path, want);
            let temp = tempfile::tempdir().expect("a directory");
            let out = temp.path().join("container");
            let quiet = &mut |_: lamella_container::Progress<'_>| {};
            let options = ConvertOptions::new(keep);
            let never = AtomicBool::new(false);
            convert(opened.store(), &out, &options, quiet, &never).expect("converts");
            let converted = model(&out, want);
            let (a, b) = (opened.report(), converted.report());
            assert_eq!(a.encodings, b.encodings, "{fixture} {keep:?}");
            assert_eq!(a.resident_bytes, b.resident_bytes, "{fixture} {keep:?}");
            let same = logits(&opened, &ids) == logits(&converted, &ids);
            assert!(same, "{fixture} {keep:?}");
            // MXFP4 is what the experts were trained in: 4 bits leave it alone.
            let kept = encoding == Encoding::Mxfp4 && want == Some(Encoding::Q4);
            let kept = kept || want.is_none();
            assert_eq!(a.encodings.contains_key(encoding.name()), kept, "{fixture}");
        }
    }
}

/// A code that is no number: opening names its tensor.
#[test]
fn codes_that_are_no_numbers_are_refused_at_opening() {
    for (fixture, tensor, byte) in [
        ("kimi_k3-101", "experts.3.w2.weight_scale", 0xff),
        ("qwen36fp8-707", "experts.5.up_proj.weight", 0x7f),
        ("glm-404", "experts.1.gate_proj.weight", 0xff),
        ("inkling-nvfp4-303", "experts.w2_weight.scale", 0x7f),
    ] {
        let temp = tempfile::tempdir().expect("a directory");
        let path = repository("fixtures").join(fixture);
        for name in ["config.json", "hf_quant_config.json"] {
            let to = temp.path().join(name);
            let copied = std::fs::copy(path.join(name), to);
            assert!(copied.is_ok() || name != "config.json");
        }
        let mut file = std::fs::read(path.join("model.safetensors")).expect("weights");
        let header = Header::from_file_bytes(&file).expect("a header");
        let mut all = header.tensors.iter();
        let harmed = all.find(|t| t.name.ends_with(tensor)).expect("the tensor");
        file[(harmed.offset + harmed.length / 2) as usize] = byte;
        std::fs::write(temp.path().join("model.safetensors"), file).expect("writes");
        let opened = Model::open(temp.path(), &Options::default(), &mut |_| {});
        let message = opened.err().expect("refused").to_string();
        let stem = harmed.name.strip_suffix("_scale").unwrap_or(&harmed.name);
        let stem = stem.strip_suffix(".scale").unwrap_or(stem);
        assert!(
            message.contains(stem) && message.contains("NaN"),
            "{message}"
        );
    }
}
