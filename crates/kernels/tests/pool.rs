//! The pool: every task once, panics contained, callers serialised.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lamella_kernels::Pool;

#[test]
fn every_task_runs_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 3, 17, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task, worker| {
                assert!(worker < pool.threads());
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn many_rounds_with_pauses_lose_nothing() {
    let pool = Pool::new(3).unwrap();
    let total = AtomicUsize::new(0);
    for round in 0..20_000 {
        pool.run(1 + round % 5, &|task, _| {
            total.fetch_add(task + 1, Ordering::Relaxed);
        });
        if round % 1000 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let want: usize = (0..20_000).map(|r| (1..=1 + r % 5).sum::<usize>()).sum();
    assert_eq!(total.load(Ordering::Relaxed), want);
}

#[test]
fn a_panic_is_raised_in_the_caller_and_the_pool_stays_usable() {
    let pool = Pool::new(3).unwrap();
    for round in 0..50 {
        let inside = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|task, _| {
                inside.fetch_add(1, Ordering::SeqCst);
                if task == round {
                    inside.fetch_sub(1, Ordering::SeqCst);
                    std::panic::panic_any("task failed");
                }
                inside.fetch_sub(1, Ordering::SeqCst);
            });
        }));
        assert_eq!(inside.load(Ordering::SeqCst), 0, "a task outlived the run");
        assert_eq!(
            *caught.unwrap_err().downcast::<&str>().unwrap(),
            "task failed"
        );
        let count = AtomicUsize::new(0);
        pool.run(10, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }
}

#[test]
fn concurrent_callers_are_serialised() {
    let pool = Pool::new(2).unwrap();
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for caller in 1..=4usize {
            let (pool, inside) = (&pool, &inside);
            scope.spawn(move || {
                for _ in 0..500 {
                    pool.run(8, &|_, _| {
                        let before = inside.fetch_add(caller * 1000, Ordering::SeqCst);
                        assert_eq!(before % (caller * 1000), 0);
                        assert!(before <= caller * 1000, "two runs at once");
                        inside.fetch_sub(caller * 1000, Ordering::SeqCst);
                    });
                }
            });
        }
    });
}

#[test]
fn a_run_within_a_task_is_done_by_that_worker() {
    let pool = Pool::new(2).unwrap();
    let count = AtomicUsize::new(0);
    pool.run(6, &|_, outer| {
        pool.run(5, &|_, inner| {
            assert_eq!(outer, inner);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.load(Ordering::Relaxed), 30);
}

#[test]
fn those_who_take_all_processors_share_a_pool_and_others_do_not() {
    let all = std::thread::available_parallelism().unwrap().get();
    let (one, two) = (Pool::shared(all).unwrap(), Pool::shared(all).unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    let own = Pool::shared(all + 1).unwrap();
    assert!(!Arc::ptr_eq(&own, &Pool::shared(all + 1).unwrap()));
    drop(two);
    let count = AtomicUsize::new(0);
    for pool in [&one, &own] {
        pool.run(10, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(count.load(Ordering::Relaxed), 20);
}

#[test]
fn dropping_joins_parked_workers() {
    for _ in 0..20 {
        let pool = Pool::new(4).unwrap();
        pool.run(4, &|_, _| {});
        std::thread::sleep(std::time::Duration::from_micros(300));
        drop(pool);
    }
}
