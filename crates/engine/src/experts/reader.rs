//! Threads that bring experts into slots while steps go on, what is needed now first.

use super::slots::Slots;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::memory::check_stacks;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often somebody who waits asks whether to go on.
const PATIENCE: Duration = Duration::from_millis(20);

/// Where experts come from.
pub(super) trait Fetch: Send + Sync {
    /// Brings a record into `slot` on thread number `thread`; the bytes read. What the slot holds
    /// after an error is of no use.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    fn fetch(&self, thread: usize, record: u32, slot: &mut [u8]) -> Result<u64, Error>;
}

/// How soon something is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// A step waits for it.
    Demand,
    /// The next layer will perhaps need it.
    Ahead,
    /// It was much used before.
    Warm,
}

/// All of them, the first ones first.
const PRIORITIES: [Priority; 3] = [Priority::Demand, Priority::Ahead, Priority::Warm];

/// A record to be read, and the slot that is its own until that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) record: u32,
    pub(super) slot: u32,
    /// Number of the step that asked for it; 0 if none has.
    pub(super) step: u64,
}

/// A job that was done.
pub(super) struct Finished {
    pub(super) job: Job,
    /// Bytes read.
    pub(super) result: Result<u64, Error>,
}

/// The threads, and what they have to do.
pub(super) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    fetch: Arc<dyn Fetch>,
    slots: Arc<Slots>,
    state: Mutex<State>,
    /// There is something to do, or nothing any more.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    /// Something was begun.
    begun: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that nobody has begun, by priority.
    queues: [VecDeque<Job>; PRIORITIES.len()],
    finished: Vec<Finished>,
    /// Jobs that threads are at.
    running: usize,
    /// Since when there are some.
    busy_since: Option<Instant>,
    /// How long there were some, in all.
    busy: Duration,
    closing: bool,
}

impl Reader {
    /// `threads` threads that fill `slots` from `fetch`.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses them, or has no room for their stacks.
    pub(super) fn new(
        fetch: Arc<dyn Fetch>,
        slots: Arc<Slots>,
        threads: usize,
    ) -> Result<Reader, Error> {
        check_stacks(threads)?;
        let shared = Arc::new(Shared {
            fetch,
            slots,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            begun: Condvar::new(),
        });
        let mut reader = Reader {
            shared,
            threads: Vec::with_capacity(threads),
        };
        for number in 0..threads {
            let shared = Arc::clone(&reader.shared);
            let builder = std::thread::Builder::new().name("lamella-reader".to_owned());
            let thread = builder.spawn(move || shared.serve(number));
            let thread = thread.map_err(|cause| Error::Threads {
                wanted: threads,
                cause,
            })?;
            reader.threads.push(thread);
        }
        Ok(reader)
    }

    /// Hands over a job. Its slot may not be touched before it comes back, finished or withdrawn.
    pub(super) fn submit(&self, job: Job, priority: Priority) {
        let mut state = self.shared.lock();
        state.queues[priority as usize].push_back(job);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Puts `record` among what is needed now, if nobody has begun it.
    pub(super) fn hurry(&self, record: u32) {
        let mut state = self.shared.lock();
        let [demand, others @ ..] = &mut state.queues;
        for queue in others {
            if let Some(at) = queue.iter().position(|job| job.record == record) {
                demand.extend(queue.remove(at));
            }
        }
    }

    /// Lets the threads begin what is needed now, before the caller keeps all processors busy: a
    /// read that has begun needs none.
    pub(super) fn begin(&self) {
        /// Longer than threads take to begin.
        const MOST: Duration = Duration::from_millis(1);
        let state = self.shared.lock();
        let waits = |state: &mut State| {
            !state.queues[Priority::Demand as usize].is_empty()
                && state.running < self.threads.len()
        };
        let waited = self.shared.begun.wait_timeout_while(state, MOST, waits);
        drop(waited);
    }

    /// Takes back the jobs nobody has begun that `which` names.
    pub(super) fn withdraw(&self, which: &dyn Fn(Job, Priority) -> bool, taken: &mut Vec<Job>) {
        let mut state = self.shared.lock();
        for (queue, priority) in state.queues.iter_mut().zip(PRIORITIES) {
            queue.retain(|&job| {
                let goes = which(job, priority);
                if goes {
                    taken.push(job);
                }
                !goes
            });
        }
    }

    /// Moves what was finished to `into`; waits for something if nothing was.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(super) fn wait(&self, cancel: &Cancel, into: &mut Vec<Finished>) -> Result<(), Error> {
        let mut state = self.shared.lock();
        while state.finished.is_empty() {
            let waited = self.shared.done.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.finished.is_empty() {
                // Somebody may be asked, who may take long.
                drop(state);
                cancel.check()?;
                state = self.shared.lock();
            }
        }
        into.append(&mut state.finished);
        Ok(())
    }

    /// Moves what was finished to `into`.
    pub(super) fn collect(&self, into: &mut Vec<Finished>) {
        into.append(&mut self.shared.lock().finished);
    }

    /// How long something was being read, in all.
    pub(super) fn busy(&self) -> Duration {
        let state = self.shared.lock();
        state.busy
            + state
                .busy_since
                .map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was told where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until there will be none.
    fn serve(&self, thread: usize) {
        let mut state = self.lock();
        while !state.closing {
            let Some(job) = state.next() else {
                let woken = self.work.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            self.begun.notify_all();
            let result = self.fetch_into(thread, job);
            state = self.lock();
            state.end(Finished { job, result });
            self.done.notify_all();
        }
    }

    fn fetch_into(&self, thread: usize, job: Job) -> Result<u64, Error> {
        let fetch = || {
            // SAFETY: a job has its slot alone until it comes back.
            let slot = unsafe { self.slots.write(job.slot) };
            self.fetch.fetch(thread, job.record, slot)
        };
        // A step that waits for a thread that is no more would wait for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fetch));
        let stopped = Error::Stopped {
            doing: "reading an expert",
        };
        result.unwrap_or(Err(stopped))
    }
}

impl State {
    fn next(&mut self) -> Option<Job> {
        /// Reads that keep a disk busy. More of those nobody waits for would only slow down those
        /// that somebody will wait for.
        const BUSY: usize = 2;
        let [demand, others @ ..] = &mut self.queues;
        let job = match demand.pop_front() {
            None if self.running < BUSY => others.iter_mut().find_map(VecDeque::pop_front)?,
            job => job?,
        };
        self.running += 1;
        self.busy_since.get_or_insert_with(Instant::now);
        Some(job)
    }

    fn end(&mut self, finished: Finished) {
        self.finished.push(finished);
        self.running -= 1;
        if self.running == 0
            && let Some(since) = self.busy_since.take()
        {
            self.busy += since.elapsed();
        }
    }
}
