//! Ends that do not fit stay on disk, and compute the same bits.

mod common;

use common::{bits, least, open, repository};
use lamella_container::{ConvertOptions, Keep, Store, convert};
use lamella_engine::{Cancel, Model, Options, Part, lower};
use lamella_program::Encoding;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn ends(threads: usize, want: Option<Encoding>) -> Options {
    Options {
        threads: Some(threads),
        step_rows: 16,
        part: Part::Ends,
        want,
        ..Options::default()
    }
}

/// Rows and logits of all tokens of the vocabulary, in an order that goes to and fro.
fn through(model: &Model) -> (Vec<u32>, Vec<u32>) {
    let count = model.vocabulary() as u32;
    let ids: Vec<u32> = (0..count).map(|i| i * 7919 % count).collect();
    let (mut rows, mut logits) = (Vec::new(), Vec::new());
    let cancel = Cancel::new();
    model.embed(&ids, &mut rows, &cancel).expect("embed");
    let width = model.program().row_width();
    let few = &rows[..37 * width];
    model.logits(few, &mut logits, &cancel).expect("logits");
    (bits(&rows), bits(&logits))
}

fn compare(path: &Path, want: Option<Encoding>) -> Arc<Model> {
    let resident = open(path, &ends(2, want));
    assert_eq!(resident.report().streamed_bytes, 0);
    let limit = least(path, &ends(2, want));
    let options = Options {
        memory_limit: Some(limit),
        ..ends(2, want)
    };
    let streamed = open(path, &options);
    let name = path.display();
    let (all, some) = (resident.report(), streamed.report());
    assert!(some.streamed_bytes > 0, "{name}, {want:?}: {some:?}");
    assert!(some.resident_bytes < all.resident_bytes, "{name}, {want:?}");
    assert!(some.resident_bytes + some.workspace_bytes <= limit);
    assert_eq!(streamed.numeric_class(), resident.numeric_class());
    let [expected, found] = [&resident, &streamed].map(|model| through(model));
    assert!(expected == found, "{name}, {want:?}");
    streamed
}

#[test]
fn ends_on_disk_compute_the_same_bits() {
    let demo = repository("demo/model");
    for want in [None, Some(Encoding::Q8), Some(Encoding::Q4)] {
        compare(&demo, want);
    }
}

#[test]
fn containers_are_streamed_and_their_damage_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("q8");
    let source = Store::open(&repository("demo/model"), &lower).expect("demo");
    let options = ConvertOptions::new(Keep::As(Encoding::Q8));
    let never = AtomicBool::new(false);
    convert(&source, &out, &options, &mut |_| {}, &never).expect("converts");
    let model = compare(&out, None);
    let limit = least(&out, &ends(2, None));
    let head = model.program().exit.head;
    let record = model.store().stored(head, Encoding::Q8, 0);
    let record = record.expect("the head is there");
    let file = model
        .store()
        .file(record.file)
        .expect("its file")
        .to_path_buf();
    let mut content = std::fs::read(&file).expect("pack");
    content[(record.offset + record.length / 2) as usize] ^= 1;
    std::fs::write(&file, content).expect("damage");
    let options = Options {
        memory_limit: Some(limit),
        ..ends(2, None)
    };
    let error = Model::open(&out, &options, &mut |_| {}).map(|_| ());
    let text = error.expect_err("it is damaged").to_string();
    let name = &model.program().operand(head).name;
    assert!(text.contains(name.as_str()), "{text}");
}
