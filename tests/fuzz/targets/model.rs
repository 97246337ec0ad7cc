//! Small models for the targets, and directories to put them in.

use super::abi::{Handle, Library, Result};
use rie::ffi::constants::RIE_ERR_NUMERIC;
use rie::ffi::model::rie_model;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The sizes of all models here.
const HIDDEN: usize = 8;
const HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const INTERMEDIATE: usize = 12;
const EXPERTS: usize = 3;
/// Ids of the models' vocabularies.
pub const VOCAB: usize = 320;

/// The `config.json` of a Llama of these sizes.
pub const CONFIG: &str = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":8,
"intermediate_size":12,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":4,"vocab_size":320,
"max_position_embeddings":160,"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","tie_word_embeddings":true,
"bos_token_id":1,"eos_token_id":0}"#;

/// A tokenizer for them.
pub const TOKENIZER: &[u8] = include_bytes!("../../data/byte_level.json");

/// A directory of its own, in memory if the machine has a place for that; removed at the end.
pub struct Directory(PathBuf);

impl Directory {
    /// With these files.
    pub fn new(files: &[(&str, &[u8])]) -> Directory {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("rie-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let directory = Directory(root.join(unique));
        std::fs::create_dir(&directory.0).expect("a directory");
        files.iter().for_each(|(name, contents)| directory.put(name, contents));
        directory
    }

    /// Writes a file.
    pub fn put(&self, name: &str, contents: &[u8]) {
        std::fs::write(self.0.join(name), contents).expect(name);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tensor's name and shape.
pub type Named = (String, Vec<usize>);

/// The tensors of [`CONFIG`].
pub fn tensors() -> Vec<Named> {
    let (q, kv) = (HEADS * HEAD_DIM, HEAD_DIM);
    let matrix = |name: &str, rows, inputs| (format!("model.layers.0.{name}.weight"), vec![rows, inputs]);
    vec![
        ("model.embed_tokens.weight".into(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        ("model.layers.0.input_layernorm.weight".into(), vec![HIDDEN]),
        ("model.layers.0.post_attention_layernorm.weight".into(), vec![HIDDEN]),
        matrix("self_attn.q_proj", q, HIDDEN),
        matrix("self_attn.k_proj", kv, HIDDEN),
        matrix("self_attn.v_proj", kv, HIDDEN),
        matrix("self_attn.o_proj", HIDDEN, q),
        matrix("mlp.gate_proj", INTERMEDIATE, HIDDEN),
        matrix("mlp.up_proj", INTERMEDIATE, HIDDEN),
        matrix("mlp.down_proj", HIDDEN, INTERMEDIATE),
    ]
}

/// Tensors for two layers of every family, whose norms of queries and keys are those of a head or of all together.
pub fn tensors_of_all_families(norms_of_a_head: bool) -> Vec<Named> {
    let (q, kv) = (HEADS * HEAD_DIM, HEAD_DIM);
    let mut all = tensors();
    all.push(("lm_head.weight".into(), vec![VOCAB, HIDDEN]));
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            let name = format!("model.layers.{layer}.{name}");
            if all.iter().all(|(other, _)| *other != name) {
                all.push((name, shape.to_vec()));
            }
        };
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            add(&format!("{norm}_layernorm.weight"), &[HIDDEN]);
        }
        add("self_attn.q_norm.weight", &[if norms_of_a_head { HEAD_DIM } else { q }]);
        add("self_attn.k_norm.weight", &[if norms_of_a_head { HEAD_DIM } else { kv }]);
        add("self_attn.qkv_proj.weight", &[q + 2 * kv, HIDDEN]);
        add("mlp.gate_up_proj.weight", &[2 * INTERMEDIATE, HIDDEN]);
        for (name, rows, inputs) in [
            ("self_attn.q_proj", q, HIDDEN),
            ("self_attn.k_proj", kv, HIDDEN),
            ("self_attn.v_proj", kv, HIDDEN),
            ("self_attn.o_proj", HIDDEN, q),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
            ("mlp.up_proj", INTERMEDIATE, HIDDEN),
            ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ] {
            add(&format!("{name}.weight"), &[rows, inputs]);
            add(&format!("{name}.bias"), &[rows]);
        }
        for (block, [gate, up, down]) in
            [("mlp", ["gate_proj", "up_proj", "down_proj"]), ("block_sparse_moe", ["w1", "w3", "w2"])]
        {
            add(&format!("{block}.gate.weight"), &[EXPERTS, HIDDEN]);
            for expert in 0..EXPERTS {
                add(&format!("{block}.experts.{expert}.{gate}.weight"), &[INTERMEDIATE, HIDDEN]);
                add(&format!("{block}.experts.{expert}.{up}.weight"), &[INTERMEDIATE, HIDDEN]);
                add(&format!("{block}.experts.{expert}.{down}.weight"), &[HIDDEN, INTERMEDIATE]);
            }
        }
    }
    all
}

/// The header of a SafeTensors file of these F32 tensors.
pub fn header(tensors: &[Named]) -> String {
    let mut end = 0;
    let mut entries = Map::new();
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        entries.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
    }
    Value::Object(entries).to_string()
}

/// A SafeTensors file of this header and these data.
pub fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// A SafeTensors file of these tensors, with numbers in ±0.5 that are always the same.
pub fn weights(tensors: &[Named]) -> Vec<u8> {
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let elements = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let data: Vec<u8> = (0..elements).flat_map(|_: usize| number().to_le_bytes()).collect();
    file(header(tensors).as_bytes(), &data)
}

/// Calls `f` with the model of [`CONFIG`] and its tokenizer, which this thread loads once.
pub fn with_model<R>(f: impl FnOnce(&Library, &Handle<rie_model>) -> R) -> R {
    thread_local! {
        static MODEL: (Library, Handle<rie_model>) = {
            let library = Library::new();
            let directory = Directory::new(&[
                ("config.json", CONFIG.as_bytes()),
                ("tokenizer.json", TOKENIZER),
                ("model.safetensors", &weights(&tensors())),
            ]);
            let model = library.load(directory.path(), &[]).expect("a model"); // its files may go: they are mapped
            (library, model)
        };
    }
    MODEL.with(|(library, model)| f(library, model))
}

/// Evaluates a few tokens; what is not a number may come of strange weights. The tokens chosen.
pub fn try_out(library: &Library, model: &Handle<rie_model>, ints: &[(i32, i64)]) -> Vec<Result<i32>> {
    let session = library.session(model, ints).expect("a session");
    library.append(&session, &[1, 2, 3]).expect("tokens of the vocabulary");
    let steps: Vec<_> = (0..3).map(|_| library.step(&session)).collect();
    for step in steps.iter().flat_map(|step| step.as_ref().err()) {
        assert_eq!(*step, RIE_ERR_NUMERIC, "{}", library.message());
    }
    steps
}
