//! A pool of threads for thousands of tiny fork-joins a second.
//!
//! A run is published by one store to `state`; workers that are awake enter it, claim tasks from
//! an atomic counter and leave. The caller claims tasks too, closes the run when none is left, and
//! waits only for workers that entered: one that is still asleep costs nothing. Idle workers spin
//! for a short while, then park.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

/// How long an idle worker, or a caller whose workers are late, spins before it parks.
const SPIN: Duration = Duration::from_micros(80);

/// Set in `state` when a run takes no more workers. Below it: how many are inside; above: which
/// run it is.
const CLOSED: u64 = 1 << 31;
const INSIDE: u64 = CLOSED - 1;
const NEXT_RUN: u64 = 1 << 32;

/// A task body: `(task, worker)`.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Worker threads that share out the tasks of a run. Dropping it joins them.
///
/// Runs from several threads are serialised. A run from within a task of the same pool is done by
/// that worker alone.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

/// One cache line of its own (two, for the adjacent-line prefetcher).
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Run number, [`CLOSED`], workers inside.
    state: Line<AtomicU64>,
    /// The next unclaimed task.
    next: Line<AtomicUsize>,
    /// What the current run executes; written only while no worker is inside.
    job: Line<Cell<Option<Job>>>,
    /// Parked workers.
    sleeping: AtomicUsize,
    /// Whether the caller is parked.
    waiting: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<()>,
    work: Condvar,
    done: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the caller of `run` (serialised by `turn`) only while the run is
// closed and nobody is inside, and read by workers only after entering; `state` orders the two.
unsafe impl Sync for Shared {}
// SAFETY: as above; a `Job` is only dereferenced inside the run it belongs to.
unsafe impl Send for Shared {}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    tasks: usize,
}

/// The pool of all processors, while somebody uses it.
static ALL_PROCESSORS: Mutex<Weak<Pool>> = Mutex::new(Weak::new());

thread_local! {
    /// The pool whose task this thread is executing, and its worker number.
    static CURRENT: Cell<(*const Shared, usize)> = const { Cell::new((std::ptr::null(), 0)) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool that runs tasks on `threads` threads, the caller of a run among them (0 counts as
    /// 1).
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(CLOSED)),
            next: Line(AtomicUsize::new(0)),
            job: Line(Cell::new(None)),
            sleeping: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            shared,
            workers: Vec::new(),
            turn: Mutex::new(()),
        };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("lamella-{worker}"));
            pool.workers
                .push(thread.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// A pool of `threads` threads. Those who ask for all processors at the same time get the same
    /// one: two would take the processors from each other, and wake up when the other spins.
    ///
    /// # Errors
    /// As [`new`](Pool::new).
    pub fn shared(threads: usize) -> std::io::Result<Arc<Pool>> {
        if available_parallelism().map_or(1, usize::from) != threads {
            return Pool::new(threads).map(Arc::new);
        }
        let mut all = lock(&ALL_PROCESSORS);
        match all.upgrade().filter(|pool| pool.threads() == threads) {
            Some(pool) => Ok(pool),
            None => {
                let pool = Arc::new(Pool::new(threads)?);
                *all = Arc::downgrade(&pool);
                Ok(pool)
            }
        }
    }

    /// Threads that take part in a run, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(task, worker)` for every task in `0..tasks`, each once, on any worker in
    /// `0..threads()`, and returns when all are done. The caller is worker 0. A worker number is
    /// in use by one thread at a time. Allocates nothing.
    ///
    /// # Panics
    /// If a task panics: tasks not begun are dropped, and when all have stopped the first panic is
    /// raised again here. The pool stays usable.
    pub fn run(&self, tasks: usize, body: &Body<'_>) {
        let me: *const Shared = &*self.shared;
        let (current, worker) = CURRENT.get();
        if current == me {
            (0..tasks).for_each(|task| body(task, worker));
            return;
        }
        let turn = lock(&self.turn);
        let outer = CURRENT.replace((me, 0));
        let shared = &*self.shared;
        if self.workers.is_empty() || tasks <= 1 {
            shared.execute_all(0..tasks, body);
        } else {
            // SAFETY: the lifetime is erased only for the length of this run: `close` returns
            // when nobody is inside any more, and later entrants find the run closed.
            let body: *const Body<'static> =
                unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
            shared.open(Job { body, tasks });
            shared.claim(0);
            shared.close();
        }
        CURRENT.set(outer);
        let panic = lock(&shared.panic).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.lock));
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task; there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a run and wakes parked workers.
    fn open(&self, job: Job) {
        self.job.0.set(Some(job));
        self.next.0.store(0, Ordering::Relaxed);
        let run =
            (self.state.0.load(Ordering::Relaxed) & !(CLOSED | INSIDE)).wrapping_add(NEXT_RUN);
        self.state.0.store(run, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.work.notify_all();
        }
    }

    /// Lets no more workers in and waits for those inside.
    fn close(&self) {
        if self.state.0.fetch_or(CLOSED, Ordering::AcqRel) & INSIDE == 0 {
            return;
        }
        let inside = || self.state.0.load(Ordering::SeqCst) & INSIDE != 0;
        if spin_while(inside) {
            return;
        }
        let mut guard = lock(&self.lock);
        self.waiting.store(true, Ordering::SeqCst);
        while inside() {
            guard = self
                .done
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.store(false, Ordering::SeqCst);
    }

    /// The life of a worker.
    fn serve(&self, worker: usize) {
        CURRENT.set((self, worker));
        let mut last = 0;
        loop {
            let idle = || {
                let state = self.state.0.load(Ordering::SeqCst);
                (state & CLOSED != 0 || state / NEXT_RUN == last)
                    && !self.stop.load(Ordering::SeqCst)
            };
            if !spin_while(idle) {
                self.park_while(idle);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if let Some(run) = self.enter(last) {
                last = run;
                self.claim(worker);
                self.leave();
            }
        }
    }

    /// Enters the current run unless it is closed or was run `last`; its number.
    fn enter(&self, last: u64) -> Option<u64> {
        let mut state = self.state.0.load(Ordering::Acquire);
        while state & CLOSED == 0 && state / NEXT_RUN != last {
            let entered = self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match entered {
                Ok(_) => return Some(state / NEXT_RUN),
                Err(now) => state = now,
            }
        }
        None
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::SeqCst);
        if before & INSIDE == 1 && self.waiting.load(Ordering::SeqCst) {
            drop(lock(&self.lock));
            self.done.notify_all();
        }
    }

    fn park_while(&self, idle: impl Fn() -> bool) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.lock);
        while idle() {
            guard = self
                .work
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Executes tasks of the current run until none is left.
    fn claim(&self, worker: usize) {
        let Some(job) = self.job.0.get() else { return };
        // SAFETY: this thread is inside the run (or is its caller), so the body is alive.
        let body = unsafe { &*job.body };
        loop {
            let task = self.next.0.fetch_add(1, Ordering::Relaxed);
            if task >= job.tasks {
                return;
            }
            self.execute(|| body(task, worker), job.tasks);
        }
    }

    fn execute_all(&self, tasks: std::ops::Range<usize>, body: &Body<'_>) {
        let end = tasks.end;
        self.execute(|| tasks.for_each(|task| body(task, 0)), end);
    }

    /// Calls `f`; a panic is kept and the tasks not yet claimed are dropped.
    fn execute(&self, f: impl FnOnce(), tasks: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
            self.next.0.store(tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

/// Spins while `busy`, but no longer than [`SPIN`]; whether it ended in time.
fn spin_while(busy: impl Fn() -> bool) -> bool {
    for _ in 0..64 {
        if !busy() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if !busy() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}
