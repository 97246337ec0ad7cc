//! The thread team: a private rayon pool, entered once per step, with a hand-over inside the step that needs no system
//! call while the workers are hot.
//!
//! [`Pool::step`] broadcasts one job to every thread. Thread 0 runs the step; the others wait for what it hands out
//! through [`Team`]: they spin briefly, then yield, then park, so an oversubscribed machine does not collapse. Two steps on
//! one pool take turns, since every thread takes the broadcasts in the same order. All arithmetic runs on the pool's own
//! threads, whose floating-point mode is the default one whatever mode the host's threads are in.

mod host;

pub use host::cores;

use crate::error::Result;
use crate::{bail, err, panic::quietly};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// Most threads a team can have.
pub const MAX_THREADS: usize = 1024;

/// Tries in each way of waiting: a pause of the core, then handing the core to others, then the condition variable.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 100;

/// Stack of a pool thread.
const STACK_BYTES: usize = 1 << 20;

/// A team of threads, shared by the models that ask for the same number, joined when the last lets go.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    /// The process that made the threads: they do not exist in a forked child.
    process: u32,
    rayon: Option<rayon::ThreadPool>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

static POOLS: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());

impl Pool {
    /// The process's pool of `threads` (0 = [`cores`]) threads.
    pub fn shared(threads: usize) -> Result<Arc<Pool>> {
        let threads = if threads == 0 { cores() } else { threads };
        if threads > MAX_THREADS {
            bail!(InvalidArgument, "threads: expected at most {MAX_THREADS}, found {threads}");
        }
        let process = std::process::id();
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        let fits = |pool: &Arc<Pool>| pool.threads == threads && pool.process == process;
        if let Some(pool) = pools.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::start(threads, process)?);
        pools.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    fn start(threads: usize, process: u32) -> Result<Pool> {
        let mut handles = Vec::with_capacity(threads);
        let rayon = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .spawn_handler(|thread| {
                let builder =
                    std::thread::Builder::new().name(format!("rie-{}", thread.index())).stack_size(STACK_BYTES);
                handles.push(builder.spawn(move || {
                    host::isolate_thread();
                    thread.run();
                })?);
                Ok(())
            })
            .build()
            .map_err(|e| err!(NoMemory, "starting {threads} threads: {e}"))?;
        Ok(Pool { threads, process, rayon: Some(rayon), handles: Mutex::new(handles) })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on the team and waits for it. A panic in `f` or in what it hands out is `Status::Internal`.
    pub fn step<R: Send>(&self, f: impl FnOnce(&Team) -> Result<R> + Send) -> Result<R> {
        if self.process != std::process::id() {
            bail!(State, "the model was loaded before fork(): its threads do not exist in this process; load it again");
        }
        let Some(rayon) = &self.rayon else { bail!(Internal, "the pool has no threads") };
        let team = Team::new(self.threads);
        let (leader, result) = (Mutex::new(Some(f)), Mutex::new(None));
        rayon.broadcast(|context| {
            if context.index() > 0 {
                return team.follow(context.index());
            }
            let _dismiss = Dismiss(&team);
            let f = leader.lock().unwrap_or_else(PoisonError::into_inner).take();
            let outcome = f.map(|f| quietly(|| f(&team)).and_then(|outcome| outcome));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        });
        if team.panicked.load(Ordering::Relaxed) {
            bail!(Internal, "a worker thread panicked");
        }
        let outcome = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.unwrap_or_else(|| Err(err!(Internal, "the step did not run")))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let handles = std::mem::take(self.handles.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.process != std::process::id() {
            // A forked child: the threads are the parent's, and touching their state could wait for ever.
            std::mem::forget((self.rayon.take(), handles));
            return;
        }
        drop(self.rayon.take());
        for handle in handles {
            let _ = handle.join();
        }
    }
}

/// A job as the leader hands it out: called with the index of the worker.
type Job<'a> = &'a (dyn Fn(usize) + Sync);

/// The threads of one step. Its methods hand work to all of them and return when it is done.
#[derive(Debug)]
pub struct Team {
    threads: usize,
    /// Counts the jobs; a worker runs the job when it sees the number change.
    generation: AtomicU32,
    job: UnsafeCell<Option<*const (dyn Fn(usize) + Sync)>>,
    /// Workers that have not finished the job.
    remaining: AtomicUsize,
    /// Next item of the shared tail of the job.
    tail: AtomicUsize,
    panicked: AtomicBool,
    /// Threads waiting at `wake`; they re-check their condition under the lock.
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written by the leader alone, before it raises `generation` (Release), and read by workers after
// they have seen that (Acquire); the leader does not write again before `remaining` is 0.
unsafe impl Sync for Team {}

/// Ends the followers' loops, also when the leader unwinds.
struct Dismiss<'a>(&'a Team);

impl Drop for Dismiss<'_> {
    fn drop(&mut self) {
        // SAFETY: no job is under way: `run` waits for its own.
        unsafe { *self.0.job.get() = None };
        self.0.announce();
    }
}

impl Team {
    /// The calling thread alone: for work too small to share.
    pub fn solo() -> Team {
        Team::new(1)
    }

    fn new(threads: usize) -> Team {
        Team {
            threads,
            generation: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            remaining: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `job(worker)` once on every thread of the team.
    fn run(&self, job: Job<'_>) {
        if self.threads == 1 {
            return job(0);
        }
        let job: *const (dyn Fn(usize) + Sync + '_) = job;
        // SAFETY: only the lifetime changes; no worker uses the job after `remaining` reaches 0, which is waited for
        // below, also when the leader's own part unwinds.
        let job: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(job) };
        self.remaining.store(self.threads - 1, Ordering::Relaxed);
        // SAFETY: see `Sync`: no worker reads before the announcement.
        unsafe { *self.job.get() = Some(job) };
        self.announce();
        let _wait = WaitForWorkers(self);
        // SAFETY: the reference that was passed in.
        unsafe { (*job)(0) };
    }

    fn announce(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.wake_parked();
    }

    /// A worker's part of a step: runs each job until dismissed.
    fn follow(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.wait(|| self.generation.load(Ordering::SeqCst) != seen);
            seen = seen.wrapping_add(1);
            // SAFETY: see `Sync`: the announcement was seen, and the leader waits before it writes again.
            let Some(job) = (unsafe { *self.job.get() }) else { return };
            // SAFETY: the leader keeps the job alive until `remaining` is 0.
            if quietly(|| unsafe { (*job)(worker) }).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if self.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.wake_parked();
            }
        }
    }

    fn wait(&self, done: impl Fn() -> bool) {
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
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while !done() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_parked(&self) {
        // A waiter counts itself before it re-checks, both sequentially consistent: it sees the change or is seen here.
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Cuts `items` into ranges of whole grains and runs `f(worker, range)` for all of them: nine tenths as one fixed
    /// range per worker, the same each time, and the rest by whoever is free.
    fn split(&self, items: usize, grain: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let grains = items.div_ceil(grain);
        let fixed = if grains > 8 * self.threads { grains * 9 / 10 / self.threads } else { grains / self.threads };
        self.cut(items, grain, fixed, f);
    }

    /// [`split`](Self::split) without a fixed part: for items of unequal cost.
    fn share(&self, items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.cut(items, 1, 0, f);
    }

    fn cut(&self, items: usize, grain: usize, fixed: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let grains = items.div_ceil(grain);
        if grains <= 1 {
            return if items > 0 {
                f(0, 0..items)
            };
        }
        let range = |grains: Range<usize>| grains.start * grain..items.min(grains.end * grain);
        self.tail.store(fixed * self.threads, Ordering::Relaxed);
        self.run(&|worker| {
            if fixed > 0 {
                f(worker, range(worker * fixed..(worker + 1) * fixed));
            }
            loop {
                let next = self.tail.fetch_add(1, Ordering::Relaxed);
                if next >= grains {
                    return;
                }
                f(worker, range(next..next + 1));
            }
        });
    }

    /// Cuts the matrix `data`, rows of `width`, into bands of whole rows and runs `f(worker, band)` on all of them.
    pub fn rows<T: Send + Sync>(&self, data: &mut [T], width: usize, f: impl Fn(usize, Block<'_, T>) + Sync) {
        let whole = Whole::new(data, width);
        self.split(whole.height, 1, &|worker, rows| f(worker, whole.block(rows, 0..width)));
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
        self.split(width, grain, &|worker, columns| f(worker, whole.block(0..whole.height, columns)));
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
        let (bands, across) = (whole.height.div_ceil(size.0), width.div_ceil(size.1));
        self.share(bands * across, &|worker, items| {
            for item in items {
                let (band, column) = (bands - 1 - item / across, item % across);
                let rows = band * size.0..whole.height.min((band + 1) * size.0);
                let columns = column * size.1..width.min((column + 1) * size.1);
                f(worker, whole.block(rows, columns));
            }
        });
    }
}

/// Waits for the workers of the current job, also when the leader unwinds.
struct WaitForWorkers<'a>(&'a Team);

impl Drop for WaitForWorkers<'_> {
    fn drop(&mut self) {
        self.0.wait(|| self.0.remaining.load(Ordering::SeqCst) == 0);
    }
}

/// A matrix that is about to be cut.
struct Whole<'a, T> {
    data: *mut T,
    width: usize,
    height: usize,
    _owner: PhantomData<&'a mut [T]>,
}

// SAFETY: shared only to cut disjoint blocks from it, each used by one thread.
unsafe impl<T: Send> Sync for Whole<'_, T> {}

impl<'a, T> Whole<'a, T> {
    fn new(data: &'a mut [T], width: usize) -> Self {
        assert!(data.len().is_multiple_of(width), "a matrix of {} elements has no rows of {width}", data.len());
        Whole { data: data.as_mut_ptr(), width, height: data.len() / width, _owner: PhantomData }
    }

    /// A block of it. The callers above cut each element into exactly one block.
    fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Block<'a, T> {
        debug_assert!(rows.end <= self.height && columns.end <= self.width);
        Block { data: self.data, width: self.width, rows, columns, _owner: PhantomData }
    }
}

/// A block of a matrix, for one thread to write.
pub struct Block<'a, T> {
    data: *mut T,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    _owner: PhantomData<&'a mut [T]>,
}

impl<T> Block<'_, T> {
    /// Which rows of the matrix.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Which columns of the matrix.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The block's part of the matrix's row `row`.
    ///
    /// # Panics
    /// If the row is not the block's.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of {:?}", self.rows);
        // SAFETY: the row and the columns lie in the matrix (`Whole::block`), and no other block has these elements.
        unsafe {
            let start = self.data.add(row * self.width + self.columns.start);
            std::slice::from_raw_parts_mut(start, self.columns.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_covers_each_element_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::shared(threads).unwrap();
            for (height, width) in [(1, 1), (3, 7), (40, 259), (257, 16)] {
                let mut data = vec![0u32; height * width];
                let count = |_: usize, mut block: Block<'_, u32>| {
                    for r in block.rows() {
                        block.row(r).iter_mut().for_each(|v| *v += 1);
                    }
                };
                let cuts = pool.step(|team| {
                    team.rows(&mut data, width, count);
                    team.columns(&mut data, width, 4, count);
                    team.blocks(&mut data, width, (2, 5), count);
                    Ok(3)
                });
                assert_eq!(cuts, Ok(3));
                assert!(data.iter().all(|&v| v == 3), "{threads} threads, {height} × {width}");
            }
        }
    }

    #[test]
    fn a_panic_anywhere_is_an_error_and_the_pool_goes_on() {
        let pool = Pool::shared(3).unwrap();
        let leader: Result<()> = pool.step(|_| panic!("leader"));
        assert_eq!(leader.unwrap_err().status, crate::error::Status::Internal);
        let mut data = [0u8; 64];
        for culprit in 0..64 {
            let result = pool.step(|team| {
                team.rows(&mut data, 1, |_, block| assert!(!block.rows().contains(&culprit)));
                Ok(())
            });
            assert_eq!(result.unwrap_err().status, crate::error::Status::Internal);
        }
        assert_eq!(pool.step(|team| Ok(team.threads())), Ok(3));
    }

    #[test]
    fn steps_of_many_host_threads_take_turns() {
        let pool = Pool::shared(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 1..50 {
                        let mut data = vec![0usize; n];
                        pool.step(|team| {
                            (0..20).for_each(|_| {
                                team.rows(&mut data, 1, |_, mut b| b.rows().for_each(|r| b.row(r)[0] += r))
                            });
                            Ok(())
                        })
                        .unwrap();
                        assert!(data.iter().enumerate().all(|(i, &v)| v == 20 * i));
                    }
                });
            }
        });
    }
}
