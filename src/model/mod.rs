//! A loaded model: weights, tokenizer and the forward pass.

mod decoder;
mod family;
mod layer;
mod loader;
mod profile;
mod save;

pub use decoder::{Decoder, Pass, Tap, Workspace};
pub use profile::{Operator, Profile};

use crate::checkpoint::{Access, Checkpoint, Config, Content, ModelFile, Panels, Source, SourcePaths, TokenizerConfig};
use crate::error::Result;
use crate::kernels::{self, Kernels};
use crate::memory;
use crate::ops::pages::PagePool;
use crate::ops::{Exec, Scratch};
use crate::pool::{self, Pool, Team};
use crate::tensor::Quant;
use crate::text::Tokenizer;
use crate::{bail, err, log};
use loader::Loader;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use twox_hash::{XxHash3_128, xxhash3_128};

/// Called during a load with (done, total) bytes; returning `true` cancels.
pub type ProgressFn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Threads of the team; 0 = physical cores this process may use.
    pub threads: usize,
    /// Most bytes of KV cache of all sessions together; 0 = no limit.
    pub kv_limit: usize,
    /// Most prompt tokens of a step of many sessions while some of them decode; 0 = the default.
    pub prompt_tokens: usize,
    /// Instruction set by name ("scalar", "avx2", "avx512", "neon"); `None` = the best this CPU has.
    pub isa: Option<&'static str>,
    /// The format to quantize the weights to; `None` = as they are stored.
    pub weights: Option<Quant>,
    /// How weights come into memory.
    pub access: Access,
    /// Files in other places.
    pub paths: SourcePaths,
}

/// A model ready to run. Shared freely between threads; steps of sessions take turns.
#[derive(Debug)]
pub struct Model {
    config: Config,
    decoder: Decoder,
    tokenizer: Option<Arc<Tokenizer>>,
    tokenizer_config: TokenizerConfig,
    /// Where the model came from, for messages.
    name: String,
    checkpoint: Checkpoint,
    /// What was quantized or repacked at load.
    quantized: Vec<Panels>,
    /// The small files that a saved model needs.
    companions: Vec<ModelFile>,
    /// XXH3-128 of config.json.
    config_hash: u128,
    /// What [`fingerprint`](Self::fingerprint) found.
    fingerprint: OnceLock<u128>,
    pages: Arc<PagePool>,
    prompt_tokens: usize,
    kernels: &'static Kernels,
    pool: Arc<Pool>,
    /// The pool's leader alone.
    solo: Team,
    /// Taken inside a step only, and steps take turns: never contended.
    workspace: Mutex<Workspace>,
    scratch: Vec<Mutex<Scratch>>,
}

impl Model {
    /// Loads the model at `path` (a directory or a `.safetensors` file).
    pub fn load(path: &str, options: &LoadOptions, progress: Option<ProgressFn<'_>>) -> Result<Model> {
        Model::of(Source::open(path, &options.paths)?, options, progress)
    }

    /// Loads the model that `source` has found.
    pub fn of(source: Source, options: &LoadOptions, progress: Option<ProgressFn<'_>>) -> Result<Model> {
        memory::expect_room(0, &source.name)?;
        let began = Instant::now();
        let kernels = choose_tier(options.isa)?;
        let mut config = Config::parse(&source.config, source.generation_config.as_ref())?;
        let architecture = family::architecture(&config).map_err(|e| e.at(&source.config.name))?;
        let mut checkpoint = Checkpoint::open(&source, options.access)?;
        let (_, bytes) = checkpoint.totals(&[]);
        let pool = Pool::shared(options.threads)?;
        let loader = Loader::new(&checkpoint, &config, kernels, &pool, options.weights);
        let mut ignore = |_, _| false;
        let progress = progress.unwrap_or(&mut ignore);
        let mut by_layer = |done: usize, of: usize| progress(bytes * done as u64 / of as u64, bytes);
        let decoder = Decoder::load(&config, &architecture, &loader, &mut by_layer)?;
        let quantized = loader.made();
        log_unused(&checkpoint.unused(), &source.name);
        checkpoint.settle(&quantized)?;
        if config.experts.is_none() && quantized.is_empty() {
            checkpoint.will_need(); // experts that are not chosen are not read
        }
        let tokenizer = match &source.tokenizer {
            Some(file) => Some(Arc::new(Tokenizer::parse(&file.name, &file.bytes)?)),
            None => None,
        };
        let end_of_turn = source.tokenizer_config.special_tokens.get("eos_token");
        if let Some(id) = tokenizer.as_ref().zip(end_of_turn).and_then(|(tokenizer, token)| tokenizer.token_id(token)) {
            config.add_eos(id);
        }
        let scratch = (0..pool.threads()).map(|_| Mutex::default()).collect();
        let model = Model {
            config,
            decoder,
            tokenizer,
            tokenizer_config: source.tokenizer_config,
            name: source.name,
            checkpoint,
            quantized,
            companions: source.companions,
            config_hash: XxHash3_128::oneshot(&source.config.bytes),
            fingerprint: OnceLock::new(),
            pages: Arc::new(PagePool::new(options.kv_limit)),
            prompt_tokens: options.prompt_tokens,
            kernels,
            pool,
            solo: Team::solo(),
            workspace: Mutex::default(),
            scratch,
        };
        model.log_loaded(options.access, began);
        Ok(model)
    }

    /// Tells the log what was loaded, and what of it the host may not have wanted.
    fn log_loaded(&self, access: Access, began: Instant) {
        if !log::wanted(log::Level::Warn) {
            return; // the formats take a look at every tensor
        }
        let (name, threads, cores) = (&self.name, self.threads(), pool::cores());
        let mut formats: Vec<_> = self.contents().iter().map(Content::type_name).collect();
        formats.sort();
        formats.dedup();
        log!(
            Info,
            "{name}: loaded: {}, {} parameters, {} bytes of weights ({}{}), {threads} threads, {}, {:.3} s",
            self.config.model_type,
            self.parameters(),
            self.weight_bytes(),
            formats.join(", "),
            if access == Access::Read { ", read" } else { "" },
            self.isa(),
            began.elapsed().as_secs_f64()
        );
        if threads > cores {
            log!(
                Warn,
                "{name}: {threads} threads for the {cores} cores that this process may use: they get in each other's way"
            );
        }
        if self.tokenizer.is_none() {
            log!(Warn, "{name}: no tokenizer.json: the model works by token ids, the functions of text fail");
        } else if self.config.eos_token_ids.is_empty() {
            log!(Warn, "{name}: no token ends generation: neither the configs nor the tokenizer name one");
        }
    }

    /// The checkpoint's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The tokenizer; an error says that the directory has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| {
            err!(Tokenizer, "{}: the model was loaded without tokenizer.json, so it works by token ids only", self.name)
        })
    }

    /// The chat templates and special tokens.
    pub fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.checkpoint.totals(&self.quantized).0
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.checkpoint.totals(&self.quantized).1
    }

    /// The format of its layers' weights; `None` = floating point.
    pub fn quant(&self) -> Option<Quant> {
        let contents = self.contents();
        let formats = || contents.iter().filter_map(|content| content.packing).map(|packing| packing.quant);
        // INT4 has INT8 beside it.
        formats().find(|quant| *quant != Quant::Int8).or(formats().next())
    }

    /// All weights as they are in memory, in the order of their names.
    fn contents(&self) -> Vec<Content<'_>> {
        self.checkpoint.contents(&self.quantized)
    }

    /// The pages of its sessions' KV caches.
    pub fn pages(&self) -> &Arc<PagePool> {
        &self.pages
    }

    /// Most prompt tokens of a step of many sessions while some of them decode; 0 = the default.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// A number that two models share only if their config and weights are the same: XXH3-128 of both. The first call reads
    /// all weights.
    pub fn fingerprint(&self) -> Result<u128> {
        const PIECE_BYTES: usize = 1 << 20;
        if let Some(&known) = self.fingerprint.get() {
            return Ok(known);
        }
        let contents = self.contents();
        let pieces = memory::collected(contents.iter().flat_map(|content| content.bytes.chunks(PIECE_BYTES)))?;
        let mut hashes = memory::filled(0u128, pieces.len())?;
        self.pool.step(|team| {
            team.rows(&mut hashes, 1, |_, mut block| {
                for i in block.rows() {
                    block.row(i)[0] = XxHash3_128::oneshot(pieces[i]);
                }
            });
            Ok(())
        })?;
        let mut all = xxhash3_128::Hasher::new();
        all.write(&self.config_hash.to_le_bytes());
        for content in &contents {
            all.write(format!("{} {} {:?}", content.name, content.type_name(), content.shape).as_bytes());
        }
        hashes.iter().for_each(|hash| all.write(&hash.to_le_bytes()));
        Ok(*self.fingerprint.get_or_init(|| all.finish_128()))
    }

    /// As [`Pool::check_process`].
    pub fn check_process(&self) -> Result<()> {
        self.pool.check_process()
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Name of the instruction set in use ("scalar", "avx2", "avx512", "neon").
    pub fn isa(&self) -> &'static str {
        self.kernels.name()
    }

    /// Runs `f` on the model's team with its buffers. Steps take turns.
    pub fn step<R: Send>(&self, f: impl FnOnce(&Exec<'_>, &mut Workspace) -> Result<R> + Send) -> Result<R> {
        self.pool.step(|team| {
            let exec = Exec { kernels: self.kernels, team, solo: &self.solo, scratch: &self.scratch };
            f(&exec, &mut self.workspace.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

/// Tells the log which tensors of the files the model has no use for.
fn log_unused(names: &[&str], model: &str) {
    if let [first, rest @ ..] = names {
        let others = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        log!(Info, "{model}: the model has no use for the tensor {first}{others}");
    }
}

fn choose_tier(isa: Option<&str>) -> Result<&'static Kernels> {
    let tiers = kernels::supported();
    let Some(name) = isa else { return Ok(tiers[0]) };
    match tiers.iter().find(|tier| tier.name() == name) {
        Some(tier) => Ok(tier),
        None => {
            let names: Vec<_> = tiers.iter().map(|tier| tier.name()).collect();
            bail!(Unsupported, "instruction set {name}: this CPU supports {}", names.join(", "))
        }
    }
}
