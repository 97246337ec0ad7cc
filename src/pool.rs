//! The process's thread teams.
//!
//! [`Pool::step`] gives a step to the pool's leader, a thread of its own like the workers: all arithmetic runs on the pool's
//! threads, whose floating-point mode is the default one whatever mode the host's threads are in. Inside the step the
//! leader hands work to the workers through [`Team`], without a system call while they are hot. Steps on one pool take turns.

mod block;
mod host;
mod team;

pub use block::Block;
pub use host::{BlockedSignals, DefaultFloats, cores};
pub use team::Team;

use crate::error::Result;
use crate::{bail, err, log, memory, panic::quietly};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// Most threads a team can have.
pub const MAX_THREADS: usize = 1024;

/// What a thread takes besides its stack, in small pieces.
const THREAD_BYTES: usize = 16 << 10;

/// Stack of a pool thread.
const STACK_BYTES: usize = 1 << 20;

/// A step as the leader finds it, without its lifetime.
type Posted = *const (dyn Fn(&Team) + Sync);

/// A team of threads, shared by the models that ask for the same number, joined when the last lets go.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    /// The process that made the threads: they do not exist in a forked child.
    process: u32,
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// Held during a step.
    turn: Mutex<()>,
}

/// What the pool's owner and its threads share.
#[derive(Debug)]
struct Shared {
    team: Team,
    /// Counts the steps; the leader runs one when it sees the number change.
    number: AtomicU32,
    step: UnsafeCell<Option<Posted>>,
    /// Number of the last step that is done.
    finished: Mutex<u32>,
    done: Condvar,
}

// SAFETY: `step` is written by who holds the pool's turn, before it raises `number` (SeqCst); the leader reads it after it
// has seen that, and the writer waits until the step is finished.
unsafe impl Sync for Shared {}
// SAFETY: as for `Sync`.
unsafe impl Send for Shared {}

static POOLS: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());

/// Keeps other threads from finding or making a pool until the result is dropped.
pub fn hold_pools() -> MutexGuard<'static, Vec<Weak<Pool>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// The process's pool of `threads` (0 = [`cores`]) threads.
    pub fn shared(threads: usize) -> Result<Arc<Pool>> {
        let threads = if threads == 0 { cores() } else { threads };
        if threads > MAX_THREADS {
            bail!(InvalidArgument, "threads: expected at most {MAX_THREADS}, found {threads}");
        }
        let process = std::process::id();
        let mut pools = hold_pools();
        pools.retain(|pool| pool.strong_count() > 0);
        let fits = |pool: &Arc<Pool>| pool.threads == threads && pool.process == process;
        if let Some(pool) = pools.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(pool);
        }
        memory::expect_room(threads * THREAD_BYTES, "threads")?;
        let pool = Arc::new(Pool::start(threads, process)?);
        pools.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    fn start(threads: usize, process: u32) -> Result<Pool> {
        let shared = Arc::new(Shared {
            team: Team::new(threads),
            number: AtomicU32::new(0),
            step: UnsafeCell::new(None),
            finished: Mutex::new(0),
            done: Condvar::new(),
        });
        let mut pool = Pool { threads, process, shared, handles: Vec::with_capacity(threads), turn: Mutex::new(()) };
        let _signals = BlockedSignals::set();
        for index in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("rie-{index}")).stack_size(STACK_BYTES);
            let handle = builder.spawn(move || {
                let _floats = DefaultFloats::set(); // whatever mode the host's thread has
                log::silence_thread();
                if index == 0 { shared.lead() } else { shared.team.follow(index) }
            });
            // On failure the pool is dropped, which ends the threads that did start.
            pool.handles.push(handle.map_err(|e| err!(NoMemory, "starting thread {index} of {threads}: {e}"))?);
        }
        Ok(pool)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// An error in a child of the process that made the pool: the threads are not there, and locks of theirs may be held.
    pub fn check_process(&self) -> Result<()> {
        if self.process != std::process::id() {
            bail!(State, "the model was loaded before fork(): its threads do not exist in this process; load it again");
        }
        Ok(())
    }

    /// Runs `f` on the team and waits for it. A panic in `f` or in what it hands out is `Status::Internal`.
    pub fn step<R: Send>(&self, f: impl FnOnce(&Team) -> Result<R> + Send) -> Result<R> {
        self.check_process()?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (f, result) = (Mutex::new(Some(f)), Mutex::new(None));
        self.shared.run(&|team| {
            let f = f.lock().unwrap_or_else(PoisonError::into_inner).take();
            let outcome = f.map(|f| quietly(|| f(team)).and_then(|outcome| outcome));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        });
        let outcome = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let outcome = outcome.unwrap_or_else(|| Err(err!(Internal, "the step did not run")));
        match (outcome, self.shared.team.take_failure()) {
            (outcome, None) => outcome,
            // Both at once: the leader's own part failed too.
            (Err(error), Some(failure)) => Err(failure.or_defect(error)),
            (Ok(_), Some(failure)) => Err(failure),
        }
    }
}

impl Shared {
    /// Has the leader run `step`, and waits for it. Called with the pool's turn only.
    fn run(&self, step: &(dyn Fn(&Team) + Sync)) {
        let step: *const (dyn Fn(&Team) + Sync + '_) = step;
        // SAFETY: only the lifetime changes; the step is finished before this function returns.
        let step: Posted = unsafe { std::mem::transmute(step) };
        // SAFETY: see `Sync`: the last step is finished.
        unsafe { *self.step.get() = Some(step) };
        let number = self.number.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.team.wake_parked();
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        while *finished != number {
            finished = self.done.wait(finished).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The leader's life: runs each step until the team is dismissed.
    fn lead(&self) {
        let mut number = 0;
        loop {
            self.team.wait(|| self.number.load(Ordering::SeqCst) != number || self.team.dismissed());
            if self.team.dismissed() {
                return;
            }
            number = number.wrapping_add(1);
            // SAFETY: see `Sync`: the number was seen.
            if let Some(step) = unsafe { *self.step.get() } {
                // SAFETY: `run` keeps the step alive until it is finished. It catches its panics itself.
                unsafe { (*step)(&self.team) };
            }
            *self.finished.lock().unwrap_or_else(PoisonError::into_inner) = number;
            self.done.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let handles = std::mem::take(&mut self.handles);
        if self.process != std::process::id() {
            // A forked child: the threads are the parent's, and touching their state could wait for ever.
            std::mem::forget((Arc::clone(&self.shared), handles));
            return;
        }
        self.shared.team.dismiss();
        for handle in handles {
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panic::give_up;

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
    fn nothing_follows_a_job_that_failed() {
        let pool = Pool::shared(3).unwrap();
        let (mut data, mut went_on) = ([0u8; 64], false);
        for culprit in 0..64 {
            let result = pool.step(|team| {
                team.rows(&mut data, 1, |_, block| {
                    if block.rows().contains(&culprit) {
                        give_up(err!(NoMemory, "row {culprit}"));
                    }
                });
                went_on = true;
                Ok(())
            });
            assert_eq!(result, Err(err!(NoMemory, "row {culprit}")), "the error arrives as it is");
        }
        assert!(!went_on);
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
