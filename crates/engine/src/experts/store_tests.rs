//! The store over a source that dawdles, fails and comes back.

use super::super::layers::{Bank, Map};
use super::*;
use crate::weights::{Choice, Layout};
use lamella_program::{Encoding, OperandId};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

const LAYERS: u32 = 3;
const EXPERTS: u32 = 16;
/// Values of each map, f32.
const VALUES: usize = 16;

fn layers() -> Arc<Layers> {
    let choice = Choice {
        stored: Encoding::F32,
        resident: Encoding::F32,
        layout: Layout::Cached,
    };
    let map = |number: usize| Map {
        id: OperandId(number as u32),
        choice,
        rows: 1,
        cols: VALUES,
        place: number * 4 * VALUES..(number + 1) * 4 * VALUES,
    };
    let bank = |layer: u32| Bank {
        layer: layer as usize,
        first: layer * EXPERTS,
        experts: EXPERTS,
        maps: [0, 1, 2].map(map),
    };
    Arc::new(Layers {
        banks: (0..LAYERS).map(bank).collect(),
        slot: 4096,
    })
}

/// Every byte of a record is its number. Some cannot be read while `broken`.
#[derive(Default)]
struct Disk {
    broken: AtomicBool,
    /// Everything takes so long.
    slow: AtomicU64,
    reads: AtomicU64,
    /// A fetch of this record panics.
    panics: Mutex<Option<u32>>,
    order: Mutex<Vec<u32>>,
}

impl Disk {
    fn fails(&self, record: u32) -> bool {
        self.broken.load(Ordering::Relaxed) && record % 5 == 2
    }
}

impl Fetch for Disk {
    fn fetch(&self, _: usize, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        self.order.lock().expect("no panic").push(record);
        assert!(
            *self.panics.lock().expect("no panic") != Some(record),
            "as told"
        );
        // What is half there is wrong.
        slot[..100].fill(0xff);
        let slow = self.slow.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(read % 7 * 20 + slow));
        if self.fails(record) {
            return Err(Error::Expert {
                layer: (record / EXPERTS) as usize,
                expert: (record % EXPERTS) as usize,
                cause: Box::new(Error::EmptySpan),
            });
        }
        slot[..12 * VALUES].fill(record as u8);
        Ok(12 * VALUES as u64)
    }
}

fn store(disk: &Arc<Disk>, slots: u32, threads: usize) -> ExpertStore {
    let disk: Arc<dyn Fetch> = Arc::clone(disk) as _;
    ExpertStore::over(disk, layers(), slots, (threads, true), Arc::default()).expect("a store")
}

/// Uses `experts` of `layer` as a step does.
fn uses(
    store: &mut ExpertStore,
    layer: usize,
    experts: &[u32],
    cancel: &Cancel,
) -> Result<(), Error> {
    let mut first = 0;
    while first < experts.len() {
        let count = store.hold(layer, &experts[first..], cancel)?;
        store.expect(layer, &experts[first + count..]);
        store.expect_foreseen();
        let mut told = vec![false; count];
        let mut ready = 0;
        while ready < count {
            store.arrive(cancel)?;
            for &index in store.fresh() {
                assert!(
                    !std::mem::replace(&mut told[index as usize], true),
                    "told once"
                );
            }
            ready = store.ready();
            assert!(told[..ready].iter().all(|&told| told));
        }
        // All are there until the next call, whatever comes meanwhile.
        for (index, expert) in experts[first..first + count].iter().enumerate() {
            for which in [Which::Gate, Which::Up, Which::Down] {
                let record = layer as u32 * EXPERTS + expert;
                let matrix = store.matrix(index, which);
                assert!(matrix.data.len() == 4 * VALUES);
                assert!(
                    matrix.data.iter().all(|&b| u32::from(b) == record),
                    "{record}"
                );
            }
        }
        first += count;
    }
    Ok(())
}

fn some(rng: &mut ChaCha8Rng, most: u32) -> Vec<u32> {
    let count = 1 + rng.next_u32() % most;
    let mut experts: Vec<u32> = (0..count).map(|_| rng.next_u32() % EXPERTS).collect();
    experts.sort_unstable();
    experts.dedup();
    experts
}

#[test]
fn what_is_used_is_what_was_asked_for_whatever_fails_meanwhile() {
    let cancel = Cancel::new();
    for (slots, threads) in [(1, 1), (2, 4), (5, 2), (9, 4), (20, 3), (48, 4)] {
        let disk = Arc::new(Disk::default());
        let mut store = store(&disk, slots, threads);
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(slots));
        let (mut failed, mut done) = (0, 0);
        for step in 0..600 {
            disk.broken.store(step / 100 % 2 == 1, Ordering::Relaxed);
            for layer in 0..LAYERS as usize {
                let experts = some(&mut rng, 12);
                if layer + 1 < LAYERS as usize {
                    let certain = rng.next_u32() % 2 == 0;
                    let ranked = some(&mut rng, 12).into_iter().zip(0..);
                    store.foresee(layer + 1, &ranked.collect::<Vec<_>>(), certain);
                }
                if rng.next_u32() % 40 == 0 {
                    let cancelled = Cancel::new();
                    cancelled.cancel();
                    // It may be that nothing had to be waited for.
                    let _ = uses(&mut store, layer, &experts, &cancelled);
                    continue;
                }
                match uses(&mut store, layer, &experts, &cancel) {
                    Ok(()) => done += 1,
                    Err(Error::Expert {
                        layer: at, expert, ..
                    }) => {
                        assert!(at == layer && experts.contains(&(expert as u32)));
                        assert!(step / 100 % 2 == 1, "the disk is sound again");
                        failed += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(done > 900, "{slots} slots: {failed} of {done}");
        assert!(failed > 0 || slots == 48, "{slots} slots");
        let counts = store.counts().statistics();
        assert!(counts.hits <= counts.uses && counts.ahead_used <= counts.ahead);
        assert!(counts.bytes_read <= disk.reads.load(Ordering::Relaxed) * 12 * VALUES as u64);
    }
}

#[test]
fn a_panic_of_a_reader_is_an_error_and_the_next_step_runs() {
    let disk = Arc::new(Disk::default());
    let mut store = store(&disk, 4, 2);
    let cancel = Cancel::new();
    *disk.panics.lock().expect("no panic") = Some(3);
    let stopped = uses(&mut store, 0, &[1, 3], &cancel);
    assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
    *disk.panics.lock().expect("no panic") = None;
    uses(&mut store, 0, &[1, 3], &cancel).expect("it goes on");
}

#[test]
fn whoever_waits_for_a_slow_disk_can_be_called_off() {
    let disk = Arc::new(Disk::default());
    disk.slow.store(300_000, Ordering::Relaxed);
    let mut store = store(&disk, 4, 1);
    let cancel = Cancel::new();
    let other = cancel.clone();
    let start = Instant::now();
    let caller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        other.cancel();
    });
    let result = uses(&mut store, 1, &[0, 1, 2], &cancel);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "{:?}",
        start.elapsed()
    );
    caller.join().expect("no panic");
    disk.slow.store(0, Ordering::Relaxed);
    // The read that was running ends, the others were taken back.
    uses(&mut store, 1, &[0, 1, 2], &Cancel::new()).expect("it goes on");
    assert!(disk.reads.load(Ordering::Relaxed) <= 4);
}

#[test]
fn what_a_step_waits_for_is_read_before_what_it_may_need() {
    let disk = Arc::new(Disk::default());
    disk.slow.store(2_000, Ordering::Relaxed);
    let mut store = store(&disk, 40, 1);
    let cancel = Cancel::new();
    let ranked = [0, 1, 2, 3, 4, 5].map(|expert| (expert, 0));
    store.foresee(1, &ranked, true);
    uses(&mut store, 0, &[7], &cancel).expect("runs");
    let begun = disk.order.lock().expect("no panic").len();
    uses(&mut store, 1, &[5, 9], &cancel).expect("runs");
    let order = disk.order.lock().expect("no panic").clone();
    assert_eq!(order[0], 7);
    // One more may have been begun before it was asked for.
    let asked = [EXPERTS + 5, EXPERTS + 9];
    let between = order[begun..]
        .iter()
        .take_while(|record| **record != asked[1]);
    let others = between.filter(|record| !asked.contains(record)).count();
    assert!(others <= 1, "{begun} of {order:?}");
    assert!(
        order.len() <= begun + 3,
        "what was foreseen and not begun is not read"
    );
    assert_eq!(store.counts().statistics().uses, 3);
}
