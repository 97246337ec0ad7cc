//! Every number of the ABI. Numbers are never reused and never change.

use crate::error::Status;

/// The version of the ABI that this header describes; compare with `rie_abi_version`.
pub const RIE_ABI_VERSION: u32 = 1;

/// Status: success.
pub const RIE_OK: i32 = 0;
/// Status: `rie_decode_step`, or a session of `rie_decode_batch`, sampled an end-of-generation token. Not an error.
pub const RIE_END: i32 = 1;
/// Status: `rie_session_eval`, or a session of `rie_decode_batch`, has queued tokens left to evaluate. Not an error.
pub const RIE_PENDING: i32 = 2;
/// Status: a NULL pointer, or a size or a value outside its documented range.
pub const RIE_ERR_INVALID_ARGUMENT: i32 = -1;
/// Status: a handle that was freed, is not of this library, or is of another kind than the call expects.
pub const RIE_ERR_HANDLE: i32 = -2;
/// Status: the object is in use by a call in another thread; nothing was done.
pub const RIE_ERR_BUSY: i32 = -3;
/// Status: a file cannot be opened or read.
pub const RIE_ERR_IO: i32 = -4;
/// Status: a file is not what it should be: malformed SafeTensors, JSON or tokenizer.
pub const RIE_ERR_FORMAT: i32 = -5;
/// Status: `config.json` lacks a key or holds an impossible value.
pub const RIE_ERR_CONFIG: i32 = -6;
/// Status: a tensor is missing, misshapen or of a type that cannot be used.
pub const RIE_ERR_TENSOR: i32 = -7;
/// Status: well-formed, but outside what this version does: an architecture, a RoPE type, an unknown key.
pub const RIE_ERR_UNSUPPORTED: i32 = -8;
/// Status: the model has no tokenizer, or the tokenizer refused the text.
pub const RIE_ERR_TOKENIZER: i32 = -9;
/// Status: text or a path that is not valid UTF-8; the message gives the byte offset.
pub const RIE_ERR_UTF8: i32 = -10;
/// Status: a token id outside the vocabulary; the message gives index, id and vocabulary size.
pub const RIE_ERR_TOKEN: i32 = -11;
/// Status: the buffer is too small; the needed size was reported and nothing was consumed.
pub const RIE_ERR_BUFFER_TOO_SMALL: i32 = -12;
/// Status: the session's context is full; nothing was changed.
pub const RIE_ERR_CONTEXT_FULL: i32 = -13;
/// Status: an allocation failed.
pub const RIE_ERR_NO_MEMORY: i32 = -14;
/// Status: cancelled by the host (`rie_session_cancel`, or the progress function of a load).
pub const RIE_ERR_CANCELLED: i32 = -15;
/// Status: NaN among the logits, or no token left to choose.
pub const RIE_ERR_NUMERIC: i32 = -16;
/// Status: a defect of this library, with its text in the message. The object it hit answers `RIE_ERR_STATE` from
/// then on and can only be freed; all others go on working.
pub const RIE_ERR_INTERNAL: i32 = -17;
/// Status: the call does not fit the object's state, such as the logits of an empty session.
pub const RIE_ERR_STATE: i32 = -18;
/// Status: a session saved with another model, KV cache type or version of the format.
pub const RIE_ERR_MISMATCH: i32 = -19;
/// Status: the model has no chat template, or the template failed: it is malformed, raised an error of its own, or did
/// too much. The message names the template, the line and what was wrong.
pub const RIE_ERR_TEMPLATE: i32 = -20;

/// Option, int, count, 0 to 1024. Threads that compute for the model; 0 (default) = the physical cores that this
/// process may use. Never changes a result. Read by `rie_model_load`.
pub const RIE_OPT_THREADS: i32 = 100;
/// Option, int, `RIE_ISA_*`, default `RIE_ISA_AUTO`. The instruction set to compute with; one that the CPU lacks is
/// `RIE_ERR_UNSUPPORTED` at load. Never changes a result. Read by `rie_model_load`.
pub const RIE_OPT_ISA: i32 = 101;
/// Option, int, tokens, 0 to 2^31 - 1. The most tokens that a session can hold; 0 (default) = the model's
/// `max_position_embeddings`. Read by `rie_session_new`.
pub const RIE_OPT_CONTEXT: i32 = 102;
/// Option, int, `RIE_DTYPE_F16` (default) or `RIE_DTYPE_F32`. The element type of the KV cache. Read by
/// `rie_session_new`.
pub const RIE_OPT_KV_TYPE: i32 = 103;
/// Option, int, tokens, 0 to 65536. The most queued tokens evaluated in one forward pass, which bounds memory and the
/// time until a cancellation is seen; 0 (default) = 512. Never changes a result. Read by `rie_session_new`.
pub const RIE_OPT_CHUNK: i32 = 104;
/// Option, int, 0 (default) or 1. 1 = measure the time of each operator; see `RIE_INFO_PROFILE`. Read by
/// `rie_session_new`.
pub const RIE_OPT_PROFILE: i32 = 105;
/// Option, int, any 64-bit pattern. The seed of a sampler; default: random, see `RIE_INFO_SEED`. Read by
/// `rie_sampler_new`.
pub const RIE_OPT_SEED: i32 = 106;
/// Option, int, tokens, 0 to 2^31 - 1. Sample among the k most probable tokens and what ties with the last of them;
/// 0 (default) = all. Read by `rie_sampler_new`.
pub const RIE_OPT_TOP_K: i32 = 107;
/// Option, int, bytes, 0 or more. The most memory that the KV caches of all sessions of the model take together; beyond
/// it a session gets `RIE_ERR_NO_MEMORY` and stays as it was; 0 (default) = no limit. Read by `rie_model_load`.
pub const RIE_OPT_KV_LIMIT: i32 = 108;
/// Option, int, tokens, 0 to 65536. The most prompt tokens that one `rie_decode_batch` evaluates while other sessions of the
/// batch generate, which bounds how long those wait; 0 (default) = 6, and fewer deep in a long context, where each costs more.
/// Never changes a result. Read by `rie_model_load`.
pub const RIE_OPT_PROMPT_TOKENS: i32 = 109;
/// Option, int, 0 or 1 (default). 1 = what living sessions of the model have computed of the same first tokens is shared
/// instead of computed again, both ways. Never changes a result. Read by `rie_session_new`.
pub const RIE_OPT_SHARE_PREFIXES: i32 = 110;
/// Option, int, tokens, 0 to 64, default 0. Speculation by prompt lookup: up to so many tokens that followed the last ones
/// earlier in the session are evaluated with the next token, and kept as far as they turn out right; pays where a text
/// repeats itself. 0 = off. Never changes a result. Read by `rie_session_new`.
pub const RIE_OPT_SPECULATION: i32 = 111;

/// Option, int, `RIE_WEIGHTS_*`, default `RIE_WEIGHTS_AS_IS`. The format that the weights are quantized to while they are loaded.
/// A model that is quantized already (by `rie_model_save`, GPTQ or AWQ) can only be loaded as it is or to as many bits;
/// `RIE_WEIGHTS_INT4` quantizes what a model of GPTQ or AWQ has in floating point. Another format is `RIE_ERR_UNSUPPORTED`.
/// Read by `rie_model_load`.
pub const RIE_OPT_WEIGHTS: i32 = 112;
/// Option, int, 0 or 1 (default). 1 = weight files are mapped, which takes no time and shares the system's cache; they
/// must not be truncated or overwritten while the model lives, or the process is killed. 0 = they are read into memory
/// by the thread that loads, each tensor when it is needed (so a model that is quantized on the way never lies in
/// memory whole), and may change once the load is over; one that shrinks meanwhile is `RIE_ERR_FORMAT`. Never changes a
/// result. Does not concern weights in memory of a `rie_source`. Read by `rie_model_load`.
pub const RIE_OPT_MAP: i32 = 113;

/// Option, float, 0 or more, default 1. Temperature: divides the logits; 0 = greedy. Read by `rie_sampler_new`.
pub const RIE_OPT_TEMPERATURE: i32 = 200;
/// Option, float, above 0, at most 1, default 1. Top-p: sample among the smallest set of most probable tokens whose
/// probabilities sum to at least this; 1 = all. Read by `rie_sampler_new`.
pub const RIE_OPT_TOP_P: i32 = 201;
/// Option, float, 0 to 1, default 0. Min-p: drop tokens less probable than this share of the most probable token's
/// probability; 0 = none. Read by `rie_sampler_new`.
pub const RIE_OPT_MIN_P: i32 = 202;
/// Option, float, above 0, default 1. Repetition penalty: for each distinct token of the session, divides its logit if
/// it is positive or zero and multiplies it if it is negative; 1 = off. Read by `rie_sampler_new`.
pub const RIE_OPT_REPETITION_PENALTY: i32 = 203;
/// Option, float, any finite number, default 0. Presence penalty: subtracted once from the logit of each distinct token
/// that `rie_decode_step` generated; 0 = off. Read by `rie_sampler_new`.
pub const RIE_OPT_PRESENCE_PENALTY: i32 = 204;
/// Option, float, any finite number, default 0. Frequency penalty: subtracted from the logit of each token that
/// `rie_decode_step` generated, once per occurrence; 0 = off. Read by `rie_sampler_new`.
pub const RIE_OPT_FREQUENCY_PENALTY: i32 = 205;

/// Option, str, a path. `config.json`; default: beside the weights. Wins over the one of a directory or a `rie_source`.
/// Read by `rie_model_load` and `rie_inspect`.
pub const RIE_OPT_CONFIG_PATH: i32 = 300;
/// Option, str, a path. `tokenizer.json`, with the files beside it that go with it; default: beside the weights. Wins
/// over those of a directory or a `rie_source`. Read by `rie_model_load` and `rie_inspect`.
pub const RIE_OPT_TOKENIZER_PATH: i32 = 301;

/// Level of a message: for who looks for the cause of something, such as how much of a prompt another session had
/// computed.
pub const RIE_LOG_DEBUG: i32 = 1;
/// Level of a message: the usual course, such as a model loaded, with what and how it computes.
pub const RIE_LOG_INFO: i32 = 2;
/// Level of a message: probably not what the host wants, such as more threads than cores.
pub const RIE_LOG_WARN: i32 = 3;
/// Level of a message: a defect of this library (`RIE_ERR_INTERNAL`), also where the call has no error object.
pub const RIE_LOG_ERROR: i32 = 4;

/// Instruction set: the best that this CPU has.
pub const RIE_ISA_AUTO: i32 = 0;
/// Instruction set: portable scalar code; the reference, and slow.
pub const RIE_ISA_SCALAR: i32 = 1;
/// Instruction set: x86-64 with AVX2, FMA and F16C.
pub const RIE_ISA_AVX2: i32 = 2;
/// Instruction set: AArch64 with NEON.
pub const RIE_ISA_NEON: i32 = 3;
/// Instruction set: x86-64 with AVX-512 (F, DQ, VL and VNNI) beside what `RIE_ISA_AVX2` needs.
pub const RIE_ISA_AVX512: i32 = 4;

/// Weights: as they are stored. Matrices of 4 bits as GPTQ and AWQ store them (`quantization_config` of config.json) are put into
/// the order that is computed in, which takes memory of its own and changes none of their values.
pub const RIE_WEIGHTS_AS_IS: i32 = 0;
/// Weights: 8-bit integers, each 32 along a row with a scale of 16 bits; 8.5 bits a weight. Norms, biases and the routers of
/// experts stay as they are.
pub const RIE_WEIGHTS_INT8: i32 = 1;
/// Weights: 4-bit integers, each 32 along a row with a scale of 16 bits; 4.5 bits a weight. Embedding and output matrix are INT8,
/// norms, biases and the routers of experts stay as they are.
pub const RIE_WEIGHTS_INT4: i32 = 2;

/// Element type: 32-bit IEEE 754 float, 4 bytes.
pub const RIE_DTYPE_F32: i32 = 1;
/// Element type: 16-bit IEEE 754 float, 2 bytes.
pub const RIE_DTYPE_F16: i32 = 2;

/// `rie_get_int`, model: number of token ids (rows of the embedding, which may be padded beyond the tokenizer). Ids
/// run from 0 to this - 1, and this is the number of floats that `rie_session_logits` writes.
pub const RIE_INFO_VOCAB_SIZE: i32 = 400;
/// `rie_get_int`, model: width of the hidden state, in elements.
pub const RIE_INFO_HIDDEN_SIZE: i32 = 401;
/// `rie_get_int`, model: number of decoder layers.
pub const RIE_INFO_LAYERS: i32 = 402;
/// `rie_get_int`, model: number of query heads per layer.
pub const RIE_INFO_HEADS: i32 = 403;
/// `rie_get_int`, model: number of key/value heads per layer.
pub const RIE_INFO_KV_HEADS: i32 = 404;
/// `rie_get_int`, model: width of a head, in elements.
pub const RIE_INFO_HEAD_DIM: i32 = 405;
/// `rie_get_int`, model: longest context that the model states (`max_position_embeddings`), in tokens.
pub const RIE_INFO_MAX_CONTEXT: i32 = 406;
/// `rie_get_int`, model: id of the beginning-of-text token, or -1 if the model has none.
pub const RIE_INFO_BOS_TOKEN: i32 = 407;
/// `rie_get_int`, model: id of the first end-of-generation token, or -1 if the model has none.
pub const RIE_INFO_EOS_TOKEN: i32 = 408;
/// `rie_get_int`, model: number of weights used.
pub const RIE_INFO_PARAMETERS: i32 = 409;
/// `rie_get_int`, model: bytes of the weights used, as they are in memory or mapped.
pub const RIE_INFO_WEIGHT_BYTES: i32 = 410;
/// `rie_get_int`, model: number of threads that compute for it.
pub const RIE_INFO_THREADS: i32 = 411;
/// `rie_get_int`, model: the format of its layers' weights, `RIE_WEIGHTS_*`; `RIE_WEIGHTS_INT4` for 4 bits by GPTQ or AWQ too.
pub const RIE_INFO_WEIGHTS: i32 = 412;
/// `rie_get_int`, session: number of tokens, evaluated or queued.
pub const RIE_INFO_TOKENS: i32 = 500;
/// `rie_get_int`, session: number of tokens evaluated, at most `RIE_INFO_TOKENS`.
pub const RIE_INFO_EVALUATED: i32 = 501;
/// `rie_get_int`, session: the most tokens it can hold.
pub const RIE_INFO_CONTEXT: i32 = 502;
/// `rie_get_int`, session: bytes of KV cache that one token takes.
pub const RIE_INFO_KV_BYTES_PER_TOKEN: i32 = 503;
/// `rie_get_int`, session: bytes of the pages of its KV cache, shared ones included; model: bytes of KV cache of all its
/// sessions, shared pages counted once.
pub const RIE_INFO_KV_BYTES: i32 = 504;
/// `rie_get_int`, session or model: number of pages of KV cache, of 64 tokens each; counted as `RIE_INFO_KV_BYTES`.
pub const RIE_INFO_KV_PAGES: i32 = 505;
/// `rie_get_int`, session: bytes of those of its pages that other sessions hold as well.
pub const RIE_INFO_KV_SHARED_BYTES: i32 = 506;
/// `rie_get_int`, session: number of tokens so far that were not computed because another session had computed them.
pub const RIE_INFO_REUSED_TOKENS: i32 = 507;
/// `rie_get_int`, session: number of tokens so far that speculation drafted.
pub const RIE_INFO_DRAFTED_TOKENS: i32 = 508;
/// `rie_get_int`, session: number of drafted tokens so far that turned out right.
pub const RIE_INFO_ACCEPTED_TOKENS: i32 = 509;
/// `rie_get_int`, sampler: the seed in use; give it as `RIE_OPT_SEED` to get the same choices again.
pub const RIE_INFO_SEED: i32 = 600;
/// `rie_get_int`, NULL: physical cores that this process may use, the default of `RIE_OPT_THREADS`.
pub const RIE_INFO_CORES: i32 = 700;

/// `rie_get_str`, model: `architectures[0]` of `config.json`, such as `LlamaForCausalLM`; may be empty.
pub const RIE_INFO_ARCHITECTURE: i32 = 800;
/// `rie_get_str`, model: `model_type` of `config.json`, such as `llama`.
pub const RIE_INFO_MODEL_TYPE: i32 = 801;
/// `rie_get_str`, model: the instruction set in use (`scalar`, `avx2`, `avx512`, `neon`); NULL: the best that this CPU has.
pub const RIE_INFO_ISA: i32 = 802;
/// `rie_get_str`, session: times of the operators so far, all 0 without `RIE_OPT_PROFILE`, as JSON:
/// `{"steps", "tokens", "forward_ns", "operators": [{"name", "ns", "calls"}]}`. Steps are forward passes, tokens those
/// that they evaluated, times are nanoseconds; sampling is not part of `forward_ns`. Keys and operators may be added.
pub const RIE_INFO_PROFILE: i32 = 803;

/// Flag of `rie_tokenize`: add the special tokens that the tokenizer adds by itself (such as one at the beginning).
/// Together with `RIE_TEXT_PARSE_SPECIAL`, a text that begins with them already, as prompts of many chat templates do,
/// gets them once.
pub const RIE_TEXT_ADD_SPECIAL: u32 = 1;
/// Flag of `rie_tokenize` and `rie_chat_tokenize`: read special tokens that are spelled in the text (of the messages)
/// as those tokens, not as plain text. Leave it out for text from users.
pub const RIE_TEXT_PARSE_SPECIAL: u32 = 2;
/// Flag of `rie_detokenize` and `rie_text_stream_new`: leave special tokens out of the text.
pub const RIE_TEXT_SKIP_SPECIAL: u32 = 4;

/// Each status with its name, for `rie_status_name`.
pub(super) const STATUS_NAMES: [(i32, &std::ffi::CStr); 23] = [
    (RIE_OK, c"RIE_OK"),
    (RIE_END, c"RIE_END"),
    (RIE_PENDING, c"RIE_PENDING"),
    (RIE_ERR_INVALID_ARGUMENT, c"RIE_ERR_INVALID_ARGUMENT"),
    (RIE_ERR_HANDLE, c"RIE_ERR_HANDLE"),
    (RIE_ERR_BUSY, c"RIE_ERR_BUSY"),
    (RIE_ERR_IO, c"RIE_ERR_IO"),
    (RIE_ERR_FORMAT, c"RIE_ERR_FORMAT"),
    (RIE_ERR_CONFIG, c"RIE_ERR_CONFIG"),
    (RIE_ERR_TENSOR, c"RIE_ERR_TENSOR"),
    (RIE_ERR_UNSUPPORTED, c"RIE_ERR_UNSUPPORTED"),
    (RIE_ERR_TOKENIZER, c"RIE_ERR_TOKENIZER"),
    (RIE_ERR_UTF8, c"RIE_ERR_UTF8"),
    (RIE_ERR_TOKEN, c"RIE_ERR_TOKEN"),
    (RIE_ERR_BUFFER_TOO_SMALL, c"RIE_ERR_BUFFER_TOO_SMALL"),
    (RIE_ERR_CONTEXT_FULL, c"RIE_ERR_CONTEXT_FULL"),
    (RIE_ERR_NO_MEMORY, c"RIE_ERR_NO_MEMORY"),
    (RIE_ERR_CANCELLED, c"RIE_ERR_CANCELLED"),
    (RIE_ERR_NUMERIC, c"RIE_ERR_NUMERIC"),
    (RIE_ERR_INTERNAL, c"RIE_ERR_INTERNAL"),
    (RIE_ERR_STATE, c"RIE_ERR_STATE"),
    (RIE_ERR_MISMATCH, c"RIE_ERR_MISMATCH"),
    (RIE_ERR_TEMPLATE, c"RIE_ERR_TEMPLATE"),
];

// The numbers of the header are the discriminants inside.
const _: () = {
    assert!(RIE_ERR_INVALID_ARGUMENT == Status::InvalidArgument as i32);
    assert!(RIE_ERR_HANDLE == Status::Handle as i32);
    assert!(RIE_ERR_BUSY == Status::Busy as i32);
    assert!(RIE_ERR_IO == Status::Io as i32);
    assert!(RIE_ERR_FORMAT == Status::Format as i32);
    assert!(RIE_ERR_CONFIG == Status::Config as i32);
    assert!(RIE_ERR_TENSOR == Status::Tensor as i32);
    assert!(RIE_ERR_UNSUPPORTED == Status::Unsupported as i32);
    assert!(RIE_ERR_TOKENIZER == Status::Tokenizer as i32);
    assert!(RIE_ERR_UTF8 == Status::Utf8 as i32);
    assert!(RIE_ERR_TOKEN == Status::Token as i32);
    assert!(RIE_ERR_BUFFER_TOO_SMALL == Status::BufferTooSmall as i32);
    assert!(RIE_ERR_CONTEXT_FULL == Status::ContextFull as i32);
    assert!(RIE_ERR_NO_MEMORY == Status::NoMemory as i32);
    assert!(RIE_ERR_CANCELLED == Status::Cancelled as i32);
    assert!(RIE_ERR_NUMERIC == Status::Numeric as i32);
    assert!(RIE_ERR_INTERNAL == Status::Internal as i32);
    assert!(RIE_ERR_STATE == Status::State as i32);
    assert!(RIE_ERR_MISMATCH == Status::Mismatch as i32);
    assert!(RIE_ERR_TEMPLATE == Status::Template as i32);
};
