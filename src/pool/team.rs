//! The threads of a step, and how work is handed to them.
//!
//! The leader hands out one job at a time and takes part in it. A worker that comes while the job is open helps; one that
//! comes too late does nothing, and nobody waits for it: so a machine with fewer free cores than threads does not
//! collapse. Between jobs the threads spin briefly, then yield, then park.

use super::block::{Block, Whole};
use crate::error::Error;
use crate::faults;
use crate::panic::{give_up, quietly};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Tries in each way of waiting: a pause of the core, then handing the core to others, then the condition variable.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 100;

/// Bit of `Team::entered`: no job is open.
const CLOSED: u32 = 1 << 31;

/// A job as the leader hands it out: called with its number and the index of the worker.
type Job<'a> = &'a (dyn Fn(u32, usize) + Sync);

/// A job as the workers find it, without its lifetime.
type Posted = *const (dyn Fn(u32, usize) + Sync);

/// A value alone on its cache lines (the processor fetches them in pairs), so that waiting for one does not slow another.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// The threads of one step. Its methods hand work to all of them and return when it is done.
#[derive(Debug)]
pub struct Team {
    threads: usize,
    /// Counts the jobs; a worker looks for one when it sees the number change.
    number: Alone<AtomicU32>,
    /// The job and its number. A worker may come to it before it sees `number` change.
    job: UnsafeCell<Option<(Posted, u32)>>,
    /// Workers inside the job, and [`CLOSED`].
    entered: Alone<AtomicU32>,
    /// For each worker's fixed range of items the number of the last job in which somebody took it.
    claims: Vec<AtomicU32>,
    /// Next item of the shared tail of the job.
    tail: Alone<AtomicUsize>,
    /// Why workers have failed, and whether one has.
    failure: Mutex<Option<Error>>,
    failed: AtomicBool,
    dismissed: AtomicBool,
    /// Threads waiting at `wake`; they re-check their condition under the lock.
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: the leader alone writes `job`, while `entered` is `CLOSED` and no more: a worker reads it only after it has
// entered an open job (Acquire of the opening), and the leader waits for those inside after closing.
unsafe impl Sync for Team {}
// SAFETY: `job` is empty or points to what outlives the job, see `run`.
unsafe impl Send for Team {}

impl Team {
    /// The calling thread alone: for work too small to share.
    pub fn solo() -> Team {
        Team::new(1)
    }

    /// A team of `threads`, all but the leader still to come: each calls [`follow`](Self::follow).
    pub(super) fn new(threads: usize) -> Team {
        Team {
            threads,
            number: Alone::default(),
            job: UnsafeCell::new(None),
            entered: Alone(AtomicU32::new(CLOSED)),
            claims: (0..threads).map(|_| AtomicU32::new(0)).collect(),
            tail: Alone::default(),
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
            dismissed: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `job` on the calling thread, the leader, and on all workers that come while it does. If one of them fails, the
    /// leader gives up: what follows must not build on what the worker left undone.
    fn run(&self, job: Job<'_>) {
        let number = self.number.0.load(Ordering::Relaxed).wrapping_add(1).max(1); // 0: never claimed
        if self.threads == 1 {
            self.number.0.store(number, Ordering::Relaxed);
            return job(number, 0);
        }
        let pointer: *const (dyn Fn(u32, usize) + Sync + '_) = job;
        // SAFETY: only the lifetime changes; `Close` waits for everybody inside, also when the leader's part unwinds.
        let pointer: Posted = unsafe { std::mem::transmute(pointer) };
        // SAFETY: see `Sync`: the last job was closed and left.
        unsafe { *self.job.get() = Some((pointer, number)) };
        self.entered.0.fetch_and(!CLOSED, Ordering::SeqCst);
        self.number.0.store(number, Ordering::SeqCst);
        self.wake_parked();
        let close = Close(self);
        job(number, 0);
        drop(close);
        if let Some(error) = self.take_failure() {
            give_up(error);
        }
    }

    /// A worker's life: takes part in each job until dismissed.
    pub(super) fn follow(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.wait(|| self.number.0.load(Ordering::SeqCst) != seen || self.dismissed());
            if self.dismissed() {
                return;
            }
            seen = self.number.0.load(Ordering::SeqCst);
            if self.entered.0.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
                // SAFETY: see `Sync`: the job is open and stays valid until this worker leaves.
                if let Some((job, number)) = unsafe { *self.job.get() } {
                    let outcome = quietly(|| {
                        faults::point("worker");
                        // SAFETY: as above.
                        unsafe { (*job)(number, worker) }
                    });
                    if let Err(error) = outcome {
                        self.note_failure(error);
                    }
                }
            }
            if self.entered.0.fetch_sub(1, Ordering::SeqCst) == CLOSED + 1 {
                self.wake_parked();
            }
        }
    }

    /// Ends the workers' lives.
    pub(super) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::SeqCst);
        self.wake_parked();
    }

    /// Whether the team is dismissed.
    pub(super) fn dismissed(&self) -> bool {
        self.dismissed.load(Ordering::SeqCst)
    }

    fn note_failure(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(match failure.take() {
            Some(earlier) => earlier.or_defect(error),
            None => error,
        });
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Why workers have failed since the last call, if any has.
    pub(super) fn take_failure(&self) -> Option<Error> {
        if !self.failed.load(Ordering::SeqCst) {
            return None; // without the lock: this is asked after each job
        }
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.store(false, Ordering::SeqCst);
        failure.take()
    }

    /// Waits for `done`, which somebody makes true before calling [`wake_parked`](Self::wake_parked).
    pub(super) fn wait(&self, done: impl Fn() -> bool) {
        loop {
            for _ in 0..SPINS {
                if done() {
                    return;
                }
                std::hint::spin_loop();
            }
            for _ in 0..YIELDS {
                if done() {
                    return;
                }
                std::thread::yield_now();
            }
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.parked.fetch_add(1, Ordering::SeqCst);
            if !done() {
                // Once awake, it spins again: what comes next comes soon.
                drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Lets those who wait look again.
    pub(super) fn wake_parked(&self) {
        // A waiter counts itself before it re-checks, both sequentially consistent: it sees the change or is seen here.
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Cuts `items` into ranges of whole grains and runs `f(worker, range)` for all of them: nine tenths as one fixed
    /// range per worker, the same each time, and the rest, and the ranges of workers that do not come, by whoever is free.
    fn split(&self, items: usize, grain: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let grains = items.div_ceil(grain);
        let fixed = if grains > 8 * self.threads { grains * 9 / 10 / self.threads } else { grains / self.threads };
        self.cut(items, grain, fixed, f);
    }

    /// [`split`](Self::split) without a fixed part: for items of unequal cost.
    fn share(&self, items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.cut(items, 1, 0, f);
    }

    /// Runs `f` once for each item, in ranges of whole grains: `fixed` grains are each worker's own, the others a tail that all
    /// draw from. A fixed range is run by who first notes the job's number in its claim, a part of the tail by who draws it.
    fn cut(&self, items: usize, grain: usize, fixed: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let grains = items.div_ceil(grain);
        if grains <= 1 {
            return if items > 0 {
                f(0, 0..items)
            };
        }
        let range = |grains: Range<usize>| grains.start * grain..items.min(grains.end * grain);
        self.tail.0.store(fixed * self.threads, Ordering::Relaxed);
        self.run(&|job, worker| {
            let fixed_range = |of: usize| {
                // The first to note the job's number has the range.
                if fixed > 0 && self.claims[of].swap(job, Ordering::Relaxed) != job {
                    f(worker, range(of * fixed..(of + 1) * fixed));
                }
            };
            fixed_range(worker);
            loop {
                let next = self.tail.0.fetch_add(1, Ordering::Relaxed);
                if next >= grains {
                    break;
                }
                f(worker, range(next..next + 1));
            }
            // What a thread has not begun by now, since the machine runs something else on its core.
            (0..self.threads).for_each(fixed_range);
        });
    }

    /// Cuts the matrix `data`, rows of `width`, into bands of whole rows and runs `f(worker, band)` on all of them.
    pub fn rows<T: Send + Sync>(&self, data: &mut [T], width: usize, f: impl Fn(usize, Block<'_, T>) + Sync) {
        let whole = Whole::new(data, width);
        // SAFETY: `split` gives each row to one call of its closure.
        self.split(whole.height(), 1, &|worker, rows| f(worker, unsafe { whole.block(rows, 0..width) }));
    }

    /// Cuts the columns of the matrix `data`, rows of `width`, into ranges of whole grains and runs `f(worker, range)`.
    pub fn columns<T: Send + Sync>(
        &self,
        data: &mut [T],
        width: usize,
        grain: usize,
        f: impl Fn(usize, Block<'_, T>) + Sync,
    ) {
        let whole = Whole::new(data, width);
        // SAFETY: `split` gives each column to one call of its closure.
        self.split(width, grain, &|worker, columns| f(worker, unsafe { whole.block(0..whole.height(), columns) }));
    }

    /// Cuts the matrix `data`, rows of `width`, into blocks of `size` (rows, columns) and runs `f(worker, block)` on all of
    /// them, the last rows first; the cost of a block may vary.
    pub fn blocks<T: Send + Sync>(
        &self,
        data: &mut [T],
        width: usize,
        size: (usize, usize),
        f: impl Fn(usize, Block<'_, T>) + Sync,
    ) {
        let whole = Whole::new(data, width);
        let (bands, across) = (whole.height().div_ceil(size.0), width.div_ceil(size.1));
        self.share(bands * across, &|worker, items| {
            for item in items {
                let (band, column) = (bands - 1 - item / across, item % across);
                let rows = band * size.0..whole.height().min((band + 1) * size.0);
                let columns = column * size.1..width.min((column + 1) * size.1);
                // SAFETY: `share` gives each item to one call of its closure, and items are different blocks of one grid.
                f(worker, unsafe { whole.block(rows, columns) });
            }
        });
    }
}

/// Closes the current job and waits for the workers inside, also when the leader unwinds.
struct Close<'a>(&'a Team);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.entered.0.fetch_or(CLOSED, Ordering::SeqCst);
        self.0.wait(|| self.0.entered.0.load(Ordering::SeqCst) == CLOSED);
    }
}
