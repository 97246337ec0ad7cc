//! RIE, an inference engine for Llama-family language models behind a small, stable C ABI.
//!
//! A host program links one library, loads a Hugging Face model directory as it stands and decodes step by step.
//! The C header `include/rie.h` is the product; this crate's Rust API is its implementation and promises nothing.
//!
//! # Architecture
//!
//! Layers, top to bottom. A file imports only from its own room or from a lower layer; `tests/layers.rs` checks it.
//!
//! | layer | room | what it holds |
//! |---|---|---|
//! | 7 | `ffi/` | the C ABI: validate, call, translate; the registry of handles |
//! | 6 | `session/` | a session's tokens and KV pages; a pass over many; batches, speculation, saved states |
//! | 5 | `model/`, `text/`, `sampler.rs` | load, the forward pass, families as data; tokenizer, text stream and chat templates; sampling |
//! | 4 | `ops/` | RoPE, attention, linear layers, experts, embedding, paged KV cache on plain slices |
//! | 3 | `checkpoint/` | model directories and files that the host names, SafeTensors, `config.json`, `tokenizer_config.json` |
//! | 2 | `kernels/`, `pool.rs` | one table of kernels per instruction set; the thread team |
//! | 1 | `tensor/` | element types, quantized formats, strided views, aligned scratch memory |
//! | 0 | `error.rs`, `log.rs`, `panic.rs`, `memory.rs`, `faults.rs` | status codes; the host's log; panics caught; vectors for which there may be no room; forced panics |
//!
//! # Promises
//!
//! 1. The host is never taken down: bad input is an error that names the thing at fault, a panic never crosses the
//!    boundary, nothing is printed, no environment variable is read, no thread of the host keeps another floating-point mode.
//! 2. The same bits everywhere: a result does not depend on the threads, on the other sessions, on how a prompt was cut into
//!    chunks, or on the instruction set. [`kernels`] states the order of every sum.
//! 3. Weights are mapped, not copied (or read, or used in the host's memory, if it says so), and used as stored (F32, F16,
//!    BF16, and INT8 and INT4 as this library saves them); or they are quantized to INT8 or INT4 while they are loaded, or
//!    repacked if GPTQ or AWQ has quantized them.
//!
//! Adding an architecture touches `model/family.rs`, and `checkpoint/defaults.rs` for what its config means where it is
//! silent; a quantized format, `tensor/quant.rs` and a `Format` in `kernels/panels.rs`; an instruction set, one file in `kernels/`
//! and one line in `kernels::supported()`.

pub mod error;
pub mod faults;
pub mod log;
pub mod memory;
pub mod panic;

pub mod tensor;

#[expect(unsafe_code, reason = "SIMD intrinsics and weights read through byte pointers")]
pub mod kernels;
#[expect(unsafe_code, reason = "hands borrowed closures and disjoint slices to threads that outlive no step")]
pub mod pool;

pub mod checkpoint;

pub mod ops;

pub mod model;
pub mod sampler;
pub mod text;

pub mod session;

#[expect(unsafe_code, reason = "raw pointers of the C ABI")]
pub mod ffi;
