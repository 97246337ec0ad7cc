//! Where a model's files are: a directory, or one `.safetensors` file with its companions.

use super::TokenizerConfig;
use super::header::Shown;
use crate::error::Result;
use crate::{bail, err};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Bounds on the small files, so that a wrong path cannot fill the memory.
const MAX_CONFIG: u64 = 16 * MIB;
const MAX_INDEX: u64 = 64 * MIB;
const MAX_TOKENIZER: u64 = 256 * MIB;

const WEIGHTS: &str = "model.safetensors";
/// What goes with a tokenizer.json.
const BESIDE_TOKENIZER: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];
const INDEX: &str = "model.safetensors.index.json";

/// A small file read whole, with the name that messages use.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path as given to the library.
    pub name: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

impl Document {
    /// Reads the file at `path`, at most `limit` bytes of it.
    fn read(path: &Path, what: &str, limit: u64) -> Result<Document> {
        let name = path.display().to_string();
        let mut file = open_regular(path, &name, what)?;
        let length = file.metadata().map_err(|e| err!(Io, "{name}: cannot be examined: {e}"))?.len();
        let too_long = || err!(Format, "{name}: expected {what} of at most {limit} bytes, found more");
        if length > limit {
            return Err(too_long());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve(length as usize + 1)?;
        // The length may have changed since, or be 0 for a file of /proc.
        (&mut file).take(limit + 1).read_to_end(&mut bytes).map_err(|e| err!(Io, "{name}: cannot be read: {e}"))?;
        if bytes.len() as u64 > limit {
            return Err(too_long());
        }
        Ok(Document { name, bytes })
    }

    /// The contents as text.
    pub(super) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|e| {
            err!(Format, "{}: expected UTF-8, found something else at byte {}", self.name, e.valid_up_to())
        })
    }

    /// Like [`read`](Self::read), but a file that is not there is `None`.
    fn read_if_present(path: &Path, what: &str, limit: u64) -> Result<Option<Document>> {
        match exists(path)? {
            true => Document::read(path, what, limit).map(Some),
            false => Ok(None),
        }
    }
}

/// Opens `path` for reading if it is a regular file: opening a pipe could block for ever.
pub(super) fn open_regular(path: &Path, name: &str, what: &str) -> Result<File> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(Io, "{name}: expected {what}, found no such file"),
        Err(e) => bail!(Io, "{name}: expected {what}: {e}"),
    };
    if found.is_dir() {
        bail!(Io, "{name}: expected {what}, found a directory");
    }
    if !found.is_file() {
        bail!(Io, "{name}: expected {what}, found something that is not a regular file");
    }
    File::open(path).map_err(|e| err!(Io, "{name}: cannot be opened: {e}"))
}

/// Whether there is something at `path`; what hides it (a permission, a dangling link) is an error.
fn exists(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(false),
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(Io, "{}: is a link to no file", path.display()),
        Err(e) => bail!(Io, "{}: cannot be examined: {e}", path.display()),
    }
}

/// Paths that replace the ones beside the weights.
#[derive(Clone, Debug, Default)]
pub struct SourcePaths {
    /// `config.json`.
    pub config: Option<String>,
    /// `tokenizer.json`.
    pub tokenizer: Option<String>,
}

/// The files of one model.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path that was opened.
    pub name: String,
    /// `config.json`.
    pub config: Document,
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<Document>,
    /// `tokenizer.json`, if there is one.
    pub tokenizer: Option<Document>,
    /// `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja` beside `tokenizer.json`.
    pub tokenizer_config: TokenizerConfig,
    /// `model.safetensors.index.json`, if the weights are sharded.
    pub index: Option<Document>,
    /// The weight files: one, or each shard that the index names.
    pub weights: Vec<PathBuf>,
    /// The files there are besides weights and index: their names in a model directory, and where they are.
    pub companions: Vec<(&'static str, PathBuf)>,
}

impl Source {
    /// Finds and reads the small files of the model at `path`, a directory or a `.safetensors` file.
    ///
    /// In a directory, `model.safetensors` is used if it is there, else the shards that
    /// `model.safetensors.index.json` names, as transformers does.
    pub fn open(path: &str, paths: &SourcePaths) -> Result<Source> {
        let given = Path::new(path);
        let found = match fs::metadata(given) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                bail!(Io, "{path}: expected a model directory or a .safetensors file, found nothing there")
            }
            Err(e) => bail!(Io, "{path}: expected a model directory or a .safetensors file: {e}"),
        };
        let (directory, index, weights) = if found.is_dir() {
            let (index, weights) = weights_in(given)?;
            (given, index, weights)
        } else if given.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")) {
            (given.parent().unwrap_or(Path::new("")), None, vec![given.to_path_buf()])
        } else {
            bail!(Format, "{path}: expected a model directory or a .safetensors file, found another kind of file");
        };

        let beside = |explicit: &Option<String>, file: &str| match explicit {
            Some(explicit) => PathBuf::from(explicit),
            None => directory.join(file),
        };
        let config_path = beside(&paths.config, "config.json");
        let config = Document::read(&config_path, "the model's config.json", MAX_CONFIG)?;
        let generation = directory.join("generation_config.json");
        let generation_config = Document::read_if_present(&generation, "generation_config.json", MAX_CONFIG)?;
        let tokenizer_path = beside(&paths.tokenizer, "tokenizer.json");
        let tokenizer = match paths.tokenizer {
            Some(_) => Some(Document::read(&tokenizer_path, "the model's tokenizer.json", MAX_TOKENIZER)?),
            None => Document::read_if_present(&tokenizer_path, "tokenizer.json", MAX_TOKENIZER)?,
        };
        let tokenizer_directory = tokenizer_path.parent().unwrap_or(Path::new("")).to_path_buf();
        let tokenizer_config = read_tokenizer_config(&tokenizer_directory)?;
        let mut companions = vec![
            ("config.json", config_path),
            ("generation_config.json", generation),
            ("tokenizer.json", tokenizer_path),
        ];
        companions.extend(BESIDE_TOKENIZER.map(|file| (file, tokenizer_directory.join(file))));
        companions.retain(|(_, path)| path.is_file());
        let name = path.to_owned();
        Ok(Source { name, config, generation_config, tokenizer, tokenizer_config, index, weights, companions })
    }
}

/// What goes with the tokenizer of a directory.
fn read_tokenizer_config(directory: &Path) -> Result<TokenizerConfig> {
    let read = |file: &str| Document::read_if_present(&directory.join(file), file, MAX_CONFIG);
    let [config, special_tokens_map, template] = BESIDE_TOKENIZER;
    let (config, special_tokens_map, template) = (read(config)?, read(special_tokens_map)?, read(template)?);
    let place = directory.display().to_string();
    TokenizerConfig::parse(&place, config.as_ref(), special_tokens_map.as_ref(), template.as_ref())
}

/// The weight files of a directory, and the index if they are shards.
fn weights_in(directory: &Path) -> Result<(Option<Document>, Vec<PathBuf>)> {
    let single = directory.join(WEIGHTS);
    if exists(&single)? {
        return Ok((None, vec![single]));
    }
    if let Some(index) = Document::read_if_present(&directory.join(INDEX), "an index of shards", MAX_INDEX)? {
        let mut shards: Vec<String> = weight_map(&index)?.into_values().collect();
        shards.sort_unstable();
        shards.dedup();
        let shards: Vec<PathBuf> = shards.iter().map(|shard| directory.join(shard)).collect();
        return Ok((Some(index), shards));
    }
    let instead =
        ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "adapter_config.json"]
            .into_iter()
            .find(|file| directory.join(file).exists())
            .map_or(String::from("neither"), |file| {
                format!("neither (there is a {file}, which this library does not read)")
            });
    bail!(Io, "{}: expected {WEIGHTS} or {INDEX} in the directory, found {instead}", directory.display())
}

/// Which shard each tensor is in, by an index. Shards are plain names: an index cannot reach outside its directory.
pub(super) fn weight_map(index: &Document) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let name = &index.name;
    let Index { weight_map } = serde_json::from_slice(&index.bytes)
        .map_err(|e| err!(Format, "{name}: expected an object with a weight_map of tensor names to file names: {e}"))?;
    if weight_map.is_empty() {
        bail!(Format, "{name}: weight_map: expected tensors, found none");
    }
    for (tensor, shard) in &weight_map {
        let plain = !shard.is_empty() && shard != "." && shard != ".." && !shard.contains(['/', '\\', ':', '\0']);
        if !plain {
            let (tensor, shard) = (Shown(tensor), Shown(shard));
            bail!(
                Format,
                "{name}: weight_map: {tensor}: expected the name of a file in this directory, found \"{shard}\""
            );
        }
    }
    Ok(weight_map)
}
