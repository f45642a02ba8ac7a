//! A layer range is opened and run without a byte of the other layers' weights. Alone in its
//! process: it counts what the process reads.

mod common;

use common::{bits, open, repository};
use lamella_engine::{Cancel, Model, Options, Part, RowSpan};

/// Bytes that this process has read from files so far.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").expect("/proc/self/io");
    let line = text.lines().find_map(|l| l.strip_prefix("rchar: "));
    line.expect("rchar").trim().parse().expect("a number")
}

#[test]
fn a_range_is_used_without_the_others() {
    // Every weight outside the layer is damaged: codes that are no numbers would be refused.
    let source = repository("fixtures/olmoe-101");
    let dir = tempfile::tempdir().expect("directory");
    let mut damaged = 0;
    for entry in std::fs::read_dir(&source).expect("fixture") {
        let path = entry.expect("entry").path();
        let mut bytes = std::fs::read(&path).expect("file");
        if path.extension().is_some_and(|e| e == "safetensors")
            && !path.ends_with("ref.safetensors")
        {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("length")) as usize;
            let header: serde_json::Value =
                serde_json::from_slice(&bytes[8..8 + length]).expect("header");
            for (name, tensor) in header.as_object().expect("object") {
                if name.starts_with("model.layers.1.") || name == "__metadata__" {
                    continue;
                }
                let at = |i: usize| {
                    8 + length + tensor["data_offsets"][i].as_u64().expect("offset") as usize
                };
                bytes[at(0)..at(1)].fill(0xff);
                damaged += 1;
            }
        }
        std::fs::write(dir.path().join(path.file_name().expect("name")), bytes).expect("copy");
    }
    assert!(damaged > 10);
    let options = Options {
        part: Part::Layers(1..2),
        ..Options::default()
    };
    let before = bytes_read();
    let model = open(dir.path(), &options);
    let read = bytes_read() - before;
    let files = std::fs::read_dir(dir.path()).expect("directory");
    let all: u64 = files
        .map(|f| f.expect("entry").metadata().expect("metadata").len())
        .sum();
    assert!(read < all / 2, "{read} of {all} bytes");
    let whole = open(&source, &Options::default());
    let good = open(&source, &options);
    let run = |model: &Model| {
        let mut session = model.session();
        let input = vec![0.25; whole.program().row_width()];
        let span = RowSpan {
            session: &mut session,
            tokens: &[1],
            input: &input,
        };
        let mut out = [Vec::new()];
        model
            .step_rows(vec![span], &mut out, &Cancel::new())
            .expect("step");
        bits(&out[0])
    };
    assert_eq!(run(&model), run(&good));
}
