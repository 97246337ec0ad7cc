//! Every number of the ABI. Numbers are never reused and never change.

/// The version of the ABI described by this header; see `rie_abi_version`.
pub const RIE_ABI_VERSION: u32 = 1;

/// Success.
pub const RIE_OK: i32 = 0;
/// `rie_decode_step` sampled an end-of-generation token.
pub const RIE_END: i32 = 1;
/// Queued tokens are left to evaluate.
pub const RIE_PENDING: i32 = 2;
// Errors -1..-18: the discriminants of `error::Status`, RIE_ERR_INVALID_ARGUMENT … RIE_ERR_STATE.

// Options, by type of value: int 100.., float 200.., str 300..
/// int: threads of the model's team; 0 (default) = the physical cores this process may use.
pub const RIE_OPT_THREADS: i32 = 100;
/// int: `RIE_ISA_…`; default `RIE_ISA_AUTO`.
pub const RIE_OPT_ISA: i32 = 101;
/// int: most tokens a session can hold; 0 (default) = the model's `max_position_embeddings`.
pub const RIE_OPT_CONTEXT: i32 = 102;
/// int: `RIE_DTYPE_F16` (default) or `RIE_DTYPE_F32`, the element type of the KV cache.
pub const RIE_OPT_KV_TYPE: i32 = 103;
/// int: most prompt tokens evaluated in one forward pass; 0 (default) = 256. Never changes a result.
pub const RIE_OPT_CHUNK: i32 = 104;
/// int: 1 = time the operators of a session; see `RIE_INFO_PROFILE`. Default 0.
pub const RIE_OPT_PROFILE: i32 = 105;
/// int: sampler seed, any 64-bit value; default random (readable by `RIE_INFO_SEED`).
pub const RIE_OPT_SEED: i32 = 106;
/// int: top-k; 0 (default) = off.
pub const RIE_OPT_TOP_K: i32 = 107;
/// float: temperature; default 1, 0 = greedy.
pub const RIE_OPT_TEMPERATURE: i32 = 200;
/// float: top-p in (0, 1]; default 1 = off.
pub const RIE_OPT_TOP_P: i32 = 201;
/// float: min-p in [0, 1]; default 0 = off.
pub const RIE_OPT_MIN_P: i32 = 202;
/// float: repetition penalty > 0; default 1 = off.
pub const RIE_OPT_REPETITION_PENALTY: i32 = 203;
/// float: presence penalty; default 0 = off.
pub const RIE_OPT_PRESENCE_PENALTY: i32 = 204;
/// float: frequency penalty; default 0 = off.
pub const RIE_OPT_FREQUENCY_PENALTY: i32 = 205;
/// str: path of `config.json`; default: beside the weights.
pub const RIE_OPT_CONFIG_PATH: i32 = 300;
/// str: path of `tokenizer.json`; default: beside the weights.
pub const RIE_OPT_TOKENIZER_PATH: i32 = 301;

/// The best instruction set this CPU has.
pub const RIE_ISA_AUTO: i32 = 0;
/// Portable scalar code, the reference; slow.
pub const RIE_ISA_SCALAR: i32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const RIE_ISA_AVX2: i32 = 2;

/// 32-bit float.
pub const RIE_DTYPE_F32: i32 = 1;
/// 16-bit float.
pub const RIE_DTYPE_F16: i32 = 2;

// rie_get_int on a model (400..), a session (500..), a sampler (600..), NULL = the library (700..).
pub const RIE_INFO_VOCAB_SIZE: i32 = 400;
pub const RIE_INFO_HIDDEN_SIZE: i32 = 401;
pub const RIE_INFO_LAYERS: i32 = 402;
pub const RIE_INFO_HEADS: i32 = 403;
pub const RIE_INFO_KV_HEADS: i32 = 404;
pub const RIE_INFO_HEAD_DIM: i32 = 405;
pub const RIE_INFO_MAX_CONTEXT: i32 = 406;
/// BOS id, or -1.
pub const RIE_INFO_BOS_TOKEN: i32 = 407;
/// First end-of-generation id, or -1.
pub const RIE_INFO_EOS_TOKEN: i32 = 408;
pub const RIE_INFO_PARAMETERS: i32 = 409;
pub const RIE_INFO_WEIGHT_BYTES: i32 = 410;
pub const RIE_INFO_THREADS: i32 = 411;
pub const RIE_INFO_TOKENS: i32 = 500;
pub const RIE_INFO_EVALUATED: i32 = 501;
pub const RIE_INFO_CONTEXT: i32 = 502;
pub const RIE_INFO_KV_BYTES_PER_TOKEN: i32 = 503;
pub const RIE_INFO_KV_BYTES: i32 = 504;
pub const RIE_INFO_SEED: i32 = 600;
/// Physical cores this process may use: the default number of threads.
pub const RIE_INFO_CORES: i32 = 700;
// rie_get_str
/// model: `architectures[0]`.
pub const RIE_INFO_ARCHITECTURE: i32 = 800;
/// model: `model_type`.
pub const RIE_INFO_MODEL_TYPE: i32 = 801;
/// model: the instruction set in use; NULL: the best this CPU has.
pub const RIE_INFO_ISA: i32 = 802;
/// session: operator times as JSON.
pub const RIE_INFO_PROFILE: i32 = 803;

/// Tokenize: add the special tokens that the tokenizer adds (such as BOS).
pub const RIE_TEXT_ADD_SPECIAL: u32 = 1;
/// Tokenize: read special tokens spelled in the text as those tokens.
pub const RIE_TEXT_PARSE_SPECIAL: u32 = 2;
/// Detokenize, text stream: leave special tokens out.
pub const RIE_TEXT_SKIP_SPECIAL: u32 = 4;
