//! Measurements, not tests:
//! `cargo test --release -p lamella-container --test speed -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Sizes, convert_quietly};
use lamella_container::{ConvertOptions, Keep, Store, quantise, verify};
use lamella_program::Encoding;
use std::path::Path;
use std::time::Instant;

/// Seconds of the best of `tries` runs.
fn best_of(tries: usize, mut action: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        action();
        start.elapsed().as_secs_f64()
    };
    (0..tries).map(time).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn quantising() {
    let (rows, cols) = (2048, 2048);
    let tensor = common::tensor("speed", &[rows, cols]);
    let mut weights = vec![0.0; rows * cols];
    lamella_container::decode(Encoding::Bf16, rows, cols, &tensor.bytes, &mut weights).unwrap();
    for encoding in [Encoding::Q8, Encoding::Q4] {
        let mut out = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
        let time = best_of(10, || {
            quantise(encoding, rows, cols, &weights, &mut out).unwrap()
        });
        println!(
            "{encoding}: {:.0} M weights/s on one core",
            weights.len() as f64 / time / 1e6
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn converting_and_reading() {
    let sizes = Sizes {
        hidden: 1024,
        width: 512,
        experts: 32,
        vocabulary: 8192,
    };
    let temp = tempfile::tempdir().unwrap();
    let checkpoint = common::open_of(&temp.path().join("model"), sizes);
    let weights = checkpoint.program().parameters() as f64 / 1e6;
    for want in [Encoding::Q8, Encoding::Q4] {
        let out = temp.path().join(want.name());
        let start = Instant::now();
        let options = ConvertOptions::new(Keep::As(want));
        let bytes = convert_quietly(&checkpoint, &out, &options).unwrap().bytes as f64;
        let time = start.elapsed().as_secs_f64();
        println!(
            "convert to {want}: {:.0} M weights/s, all cores",
            weights / time
        );
        let store = Store::open(&out, &|_, _| Err(Vec::new())).unwrap();
        let open = best_of(5, || {
            drop(Store::open(&out, &|_, _| Err(Vec::new())).unwrap())
        });
        let read = best_of(5, || read_experts(&store, want));
        let plain = best_of(5, || read_files(&out));
        let verified = best_of(3, || {
            assert!(verify(&out, &mut |_| {}).unwrap().damage.is_empty())
        });
        println!(
            "  open {:.2} ms, one thread with digests {:.2} GB/s, plain reads {:.2} GB/s, \
             verify {:.2} GB/s",
            open * 1e3,
            bytes / read / 1e9,
            bytes / plain / 1e9,
            bytes / verified / 1e9
        );
    }
}

fn read_experts(store: &Store, encoding: Encoding) {
    let mut buffer = Vec::new();
    for bank in store.banks() {
        buffer.resize(store.expert_layout(bank, encoding).unwrap().length, 0);
        for item in 0..bank.experts {
            store
                .read_expert(bank, item, encoding, &mut buffer)
                .unwrap();
        }
    }
}

fn read_files(dir: &Path) {
    let mut buffer = vec![0; 1 << 20];
    for entry in std::fs::read_dir(dir).unwrap() {
        let mut file = std::fs::File::open(entry.unwrap().path()).unwrap();
        while std::io::Read::read(&mut file, &mut buffer).unwrap() > 0 {}
    }
}
