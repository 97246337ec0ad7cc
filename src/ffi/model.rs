//! Models: load and look.

use super::error::rie_error;
use super::options::{self, Options, rie_options};
use super::raw::{self, Out, SizedBuffer};
use super::source::{self, rie_source};
use super::{guard, handle, rie_status};
use crate::checkpoint::{Source, inspect};
use crate::error::Result;
use crate::model::{Model, ProgressFn};
use std::ffi::c_char;

/// A loaded model: its weights, its tokenizer, and the threads that compute.
///
/// Owner: the host, from `rie_model_load` or `rie_model_load_source` to `rie_free`; sessions and text streams keep what
/// they need of it alive. Threads: shared freely. Sessions of one model may be used by different threads; their
/// computations take turns.
pub struct rie_model {
    _private: (),
}

/// Loads the model at `path`: a directory as Hugging Face lays it out (`config.json`, `*.safetensors`, and optionally
/// `generation_config.json`, `tokenizer.json` and beside it `tokenizer_config.json` and `chat_template.jinja`), or one
/// `.safetensors` file with the others beside it or given by option. `path` is NUL-terminated UTF-8. The weight files
/// are mapped, unless `RIE_OPT_MAP` says otherwise, and must then not change while the model lives. Without
/// `tokenizer.json` the model works by token ids, and the functions of text fail with `RIE_ERR_TOKENIZER`. Generation
/// ends with the `eos_token_id` of `generation_config.json` (a number or a list), else of `config.json`, and with the
/// `eos_token` of `tokenizer_config.json`.
///
/// Reads `RIE_OPT_THREADS`, `RIE_OPT_ISA`, `RIE_OPT_WEIGHTS`, `RIE_OPT_MAP`, `RIE_OPT_KV_LIMIT`,
/// `RIE_OPT_PROMPT_TOKENS`, `RIE_OPT_CONFIG_PATH`, `RIE_OPT_TOKENIZER_PATH` and the progress function.
///
/// Ownership: `*out` is the host's; release it with `rie_free`. It is written only on success. Threads: any; the
/// progress function is called in this one. Errors: `RIE_ERR_IO`, `RIE_ERR_FORMAT`, `RIE_ERR_CONFIG`, `RIE_ERR_TENSOR`,
/// `RIE_ERR_UNSUPPORTED`, `RIE_ERR_TOKENIZER`, `RIE_ERR_UTF8`, `RIE_ERR_CANCELLED`; the message names the file and the
/// key or tensor. `options` NULL means the defaults; `path` and `out` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_model_load(
    path: *const c_char,
    options: *const rie_options,
    out: *mut *mut rie_model,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_model_load", err, || {
        // SAFETY: the host vouches for a NUL-terminated `path` and a writable `out`.
        let (path, out) = unsafe { (raw::path(path, "path")?, Out::new(out, "out")?) };
        let options = options::copy(options)?;
        out.write(load(Source::open(path, &options.paths())?, &options)?);
        Ok(())
    })
}

/// Loads the model whose files `source` has, as `rie_model_load` loads those of a directory: the same rules, options,
/// results and errors, and messages that name a file by its name or path. The source is not changed and may be used
/// again, added to or freed; the model keeps what it needs of the files.
///
/// Ownership, threads, errors and NULL: as for `rie_model_load`; `source` must not be NULL. A load from a source takes
/// its files at its beginning: meanwhile another call with it is `RIE_ERR_BUSY`, later not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_model_load_source(
    source: *const rie_source,
    options: *const rie_options,
    out: *mut *mut rie_model,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_model_load_source", err, || {
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        let (files, options) = (source::files(source)?, options::copy(options)?);
        out.write(load(Source::of(&files, &options.paths())?, &options)?);
        Ok(())
    })
}

fn load(source: Source, options: &Options) -> Result<*mut rie_model> {
    let mut report = options.progress.map(|p| move |done, total| p.report(done, total));
    let progress = report.as_mut().map(|f| f as ProgressFn<'_>);
    handle::publish(Model::of(source, &options.load(), progress)?)
}

/// Saves `model` to the new directory `path` (NUL-terminated UTF-8), which `rie_model_load` loads again: `model.safetensors` with
/// the weights as they are in memory, and copies of `config.json` and the tokenizer's files. So a model that was quantized at
/// load is mapped the next time, without being quantized again, and gives the same bits. Quantized matrices are tensors of
/// bytes, described in the file's `__metadata__`; only this library reads them.
///
/// Everything is written under a temporary name beside `path` and renamed at the end: there is never half a model at
/// `path`, whatever stops the program. Nothing may be at `path` but an empty directory, and the directory above it must
/// exist: else `RIE_ERR_IO`. The progress function of `options` hears of the bytes written, and can cancel.
///
/// Threads: any; the progress function is called in this one. Errors: `RIE_ERR_IO`, `RIE_ERR_CANCELLED`; then nothing is left
/// behind. `options` NULL means the defaults; `model` and `path` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_model_save(
    model: *const rie_model,
    path: *const c_char,
    options: *const rie_options,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_model_save", err, || {
        // SAFETY: the host vouches for a NUL-terminated `path`.
        let path = unsafe { raw::path(path, "path")? };
        let model = handle::get::<Model>(model, "model")?;
        let options = options::copy(options)?;
        let mut report = options.progress.map(|p| move |done, total| p.report(done, total));
        model.save(path, report.as_mut().map(|f| f as ProgressFn<'_>))
    })
}

/// Describes the model at `path` (as for `rie_model_load`) as JSON: architecture, number of parameters, bytes per
/// element type, and each tensor's name, element type, shape and file. Reads the headers of the files only: no weight
/// is read or mapped and nothing is executed, so it is quick, and safe on files that nobody trusts.
///
/// Reads `RIE_OPT_CONFIG_PATH` and `RIE_OPT_TOKENIZER_PATH`.
///
/// Writes the text, UTF-8 without NUL, to `buf`, which holds `cap` bytes, and its length in bytes to `*len`; if it does
/// not fit, the length alone and `RIE_ERR_BUFFER_TOO_SMALL`. Threads: any. Errors: otherwise as for `rie_model_load`.
/// `options` NULL means the defaults; `buf` may be NULL if `cap` is 0; `path` and `len` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_inspect(
    path: *const c_char,
    options: *const rie_options,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_inspect", err, || {
        // SAFETY: the host vouches for a NUL-terminated `path`, `cap` writable bytes at `buf` and a writable `len`.
        let (path, buf) = unsafe { (raw::path(path, "path")?, SizedBuffer::new(buf.cast(), cap, len)?) };
        let source = Source::open(path, &options::copy(options)?.paths())?;
        buf.fill(inspect(&source)?.as_bytes())
    })
}

/// Describes the model whose files `source` has, as `rie_inspect` describes that of a directory; `path` in the text is
/// `source`.
///
/// Buffer, threads, errors and NULL: as for `rie_inspect`; `source` must not be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_inspect_source(
    source: *const rie_source,
    options: *const rie_options,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_inspect_source", err, || {
        // SAFETY: the host vouches for `cap` writable bytes at `buf` and a writable `len`.
        let buf = unsafe { SizedBuffer::new(buf.cast(), cap, len) }?;
        let source = Source::of(&source::files(source)?, &options::copy(options)?.paths())?;
        buf.fill(inspect(&source)?.as_bytes())
    })
}
