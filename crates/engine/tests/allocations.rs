//! Steady decoding on the cpu backend allocates nothing.

mod common;

use common::{open, reference_ids, repository};
use lamella_engine::{Cancel, Logits, Options, Span};
use lamella_program::Encoding;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// The only test of this binary: another one running beside it would be counted too.
#[test]
fn steady_decoding_allocates_nothing() {
    let dir = repository("fixtures/olmoe-202");
    let ids = reference_ids(&dir.join("ref.json"), "full_ids");
    for want in [None, Some(Encoding::Q8), Some(Encoding::Q4)] {
        let model = open(
            &dir,
            &Options {
                want,
                threads: Some(3),
                ..Options::default()
            },
        );
        let mut session = model.session();
        session.reserve(200).expect("room");
        let mut out = Vec::with_capacity(model.vocabulary());
        let cancel = Cancel::new();
        let mut before = 0;
        for i in 0..150 {
            if i == 20 {
                // Starting a thread allocates; on a busy machine the pool's may start late.
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
            if i == 25 {
                before = CALLS.load(Ordering::Relaxed);
            }
            let token = [ids[i % ids.len()]];
            let span = Span {
                session: &mut session,
                tokens: &token,
                logits: Logits::Last,
                out: &mut out,
            };
            model.step(&mut [span], &cancel).expect("step");
        }
        assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0, "{want:?}");
    }
}
