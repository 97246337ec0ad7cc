//! A decode step allocates nothing: counted by an allocator of the test's own, on all threads.
#![expect(unsafe_code, reason = "a global allocator")]

use rie::model::{LoadOptions, Model};
use rie::sampler::{Sampler, SamplerOptions};
use rie::session::{Session, SessionOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, and a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The fewest allocations of three times 20 decode steps inside the second page of the cache. A thread's buffers grow when
/// it first takes part, which on a busy machine may be late, but only once.
fn allocations(model: &str, threads: usize, mut sampler: Option<Sampler>) -> usize {
    let path = format!("{}/tests/golden/{model}", env!("CARGO_MANIFEST_DIR"));
    let model = Model::load(&path, &LoadOptions { threads, ..Default::default() }, None).expect("the model");
    let mut session = Session::new(Arc::new(model), &SessionOptions::default()).expect("a session");
    let prompt: Vec<u32> = (1..=64).collect();
    session.append(&prompt).expect("tokens");
    let mut step = || {
        session.decode_step(sampler.as_mut()).expect("a step");
    };
    step();
    step();
    let mut twenty = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..20).for_each(|_| step());
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..3).map(|_| twenty()).min().unwrap_or(usize::MAX)
}

#[test]
fn decode_steps_allocate_nothing() {
    for threads in [1, 2, 3] {
        for model in ["tiny_model/model", "prequantized/gptq_v2_act_order", "prequantized/gptq_some"] {
            assert_eq!(allocations(model, threads, None), 0, "{model}, greedy, {threads} threads");
        }
        let options = SamplerOptions { temperature: 0.8, top_k: 40, seed: Some(1), ..Default::default() };
        let sampler = Sampler::new(&options).expect("a sampler");
        assert_eq!(allocations("tiny_model/model", threads, Some(sampler)), 0, "sampled, {threads} threads");
    }
}
