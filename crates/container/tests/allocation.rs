//! What is allocated: never on the word of a file, and while converting never much.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::coded::Shipment;
use common::{Sizes, convert_quietly, options};
use lamella_container::Keep;
use lamella_container::safetensors::Header;
use lamella_container::table::Table;
use lamella_program::{Encoding, OperandId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts bytes in use and their highest value.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all requests go to the system allocator unchanged; counting touches only atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that `action` held at most, beyond what was in use before.
fn peak_of<T>(action: impl FnOnce() -> T) -> (T, usize) {
    let before = USED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = action();
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

/// Counts are of the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Room for error messages, hash tables' first steps and readers' buffers.
const SLACK: usize = 64 << 10;

#[test]
fn false_lengths_allocate_nothing() {
    let _alone = alone();
    let temp = tempfile::tempdir().unwrap();
    common::write_single(temp.path());
    let model = temp.path().join("model.safetensors");
    let config = std::fs::metadata(temp.path().join("config.json"))
        .unwrap()
        .len() as usize;
    let heads: [Vec<u8>; 4] = [
        99_999_999u64.to_le_bytes().to_vec(),
        [&99_999_999u64.to_le_bytes()[..], b"{\"a\":"].concat(),
        vec![0xff; 100],
        common::with_header(
            r#"{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#,
            &[],
        ),
    ];
    for head in heads {
        std::fs::write(&model, &head).unwrap();
        let (error, peak) = peak_of(|| common::open(temp.path()).unwrap_err());
        assert!(
            peak < head.len() + config + SLACK,
            "{peak} bytes for: {error}"
        );
    }

    let mut table = b"LAMOPTAB\x01\0\0\0".to_vec();
    table.extend_from_slice(&[0xff; 16]);
    let (error, peak) = peak_of(|| Table::parse(&table).unwrap_err());
    assert!(peak < table.len() + SLACK, "{peak} bytes for: {error}");
}

#[test]
fn parsed_headers_are_about_as_large_as_their_files() {
    let _alone = alone();
    // The worst that fits: many empty tensors, and one shape of many ones.
    let entry = |n: usize| format!(r#""{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let many: Vec<String> = (0..20_000).map(entry).collect();
    let many = common::with_header(&format!("{{{}}}", many.join(",")), &[]);
    let ones = vec!["1"; 500_000].join(",");
    let ones = format!(r#"{{"a":{{"dtype":"U8","shape":[{ones}],"data_offsets":[0,1]}}}}"#);
    let ones = common::with_header(&ones, &[7]);
    for file in [many, ones] {
        let (_, peak) = peak_of(|| Header::from_file_bytes(&file).map(|h| h.tensors.len()));
        assert!(
            peak < 10 * file.len(),
            "{peak} bytes for a file of {}",
            file.len()
        );
    }
}

#[test]
fn conversion_needs_far_less_than_a_layer() {
    let _alone = alone();
    let sizes = Sizes {
        hidden: 512,
        width: 256,
        experts: 32,
        vocabulary: 8192,
    };
    let layer = sizes.experts * 3 * sizes.width * sizes.hidden * 2;
    let temp = tempfile::tempdir().unwrap();
    let plain = common::open_of(&temp.path().join("model"), sizes);
    let coded = Shipment::new(sizes).open(&temp.path().join("coded"));
    let both = [Encoding::Q4, Encoding::F32];
    for (store, name, wanted) in [
        (plain, "plain", &both[..]),
        (coded.unwrap(), "coded", &both[..1]),
    ] {
        for &want in wanted {
            let out = temp.path().join(format!("{name}-{want}"));
            let (report, peak) =
                peak_of(|| convert_quietly(&store, &out, &options(Keep::As(want))).unwrap());
            let what = format!("{name}, {want}: {peak} bytes, a layer's experts are {layer}");
            println!("{what}");
            assert!(peak < 10 << 20, "{what}");
            assert!(
                report.bytes as usize > 2 * peak,
                "the model is too small to tell"
            );
        }
    }
}

#[test]
fn reading_codes_needs_little_beside_the_rows() {
    let _alone = alone();
    let sizes = Sizes {
        hidden: 2048,
        width: 512,
        experts: 2,
        vocabulary: 1024,
    };
    let temp = tempfile::tempdir().unwrap();
    let store = Shipment::new(sizes).open(temp.path()).unwrap();
    let operands = store.program().operands.iter().enumerate();
    for (number, operand) in operands.filter(|(_, o)| o.rows() > 100) {
        let id = OperandId(number as u32);
        let encoding = store.encodings(id)[0];
        let few = if encoding.is_tiled() { 16 } else { 1 };
        for rows in [0..few, 0..operand.rows()] {
            let bytes = encoding.matrix_bytes(rows.len(), operand.cols()).unwrap();
            let mut buffer = vec![0; bytes];
            let read = || store.read_rows(id, 0, encoding, rows.clone(), &mut buffer);
            let (result, peak) = peak_of(read);
            result.unwrap();
            assert!(peak < 2 << 20, "{}, {rows:?}: {peak} bytes", operand.name);
        }
    }
}
