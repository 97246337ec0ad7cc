//! Where a model's files are: a directory, one `.safetensors` file with its companions, or what the host has named.

use super::TokenizerConfig;
use super::file::{Document, ModelFile, exists};
use super::header::Shown;
use crate::error::Result;
use crate::memory;
use crate::{bail, err};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
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

/// Paths that replace the ones beside the weights.
#[derive(Clone, Debug, Default)]
pub struct SourcePaths {
    /// `config.json`.
    pub config: Option<String>,
    /// `tokenizer.json`.
    pub tokenizer: Option<String>,
}

/// The files that a host has named one by one, instead of a directory.
#[derive(Clone, Debug, Default)]
pub struct FileSet(BTreeMap<String, ModelFile>);

impl FileSet {
    /// What messages call it.
    const NAME: &str = "source";

    /// Adds a file. On failure nothing has changed.
    pub fn add(&mut self, file: ModelFile) -> Result<()> {
        let name = &file.file_name[..];
        if !is_plain(name) {
            let name = Shown(name);
            bail!(InvalidArgument, "name: expected a file's name, such as config.json, found \"{name}\"");
        }
        if self.0.contains_key(name) {
            bail!(InvalidArgument, "name: the source has a {} already", Shown(name));
        }
        self.0.insert(name.to_owned(), file);
        Ok(())
    }
}

/// Where files are found by their names.
enum Folder {
    Directory(PathBuf),
    Set(FileSet),
}

impl Folder {
    /// The file `name`, if there is one.
    fn find(&self, name: &str) -> Result<Option<ModelFile>> {
        match self {
            Folder::Directory(directory) => {
                let path = directory.join(name);
                Ok(exists(&path)?.then(|| ModelFile::at(path)))
            }
            Folder::Set(set) => Ok(set.0.get(name).cloned()),
        }
    }

    /// The file `name`, which must be there; `what` it should be. A directory's is looked for when it is opened.
    fn get(&self, name: &str, what: &str) -> Result<ModelFile> {
        match self {
            Folder::Directory(directory) => Ok(ModelFile::at(directory.join(name))),
            Folder::Set(set) => {
                set.0.get(name).cloned().ok_or_else(|| err!(Io, "{name}: expected {what}, found no such file"))
            }
        }
    }

    /// Reads the file `name`, if there is one.
    fn read(&self, name: &str, what: &str, limit: u64) -> Result<Option<Document>> {
        self.find(name)?.map(|file| file.read(what, limit)).transpose()
    }

    /// What messages call it.
    fn name(&self) -> String {
        match self {
            Folder::Directory(directory) => directory.display().to_string(),
            Folder::Set(_) => FileSet::NAME.to_owned(),
        }
    }
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
    pub weights: Vec<ModelFile>,
    /// The files there are besides weights and index, by their names in a model directory.
    pub companions: Vec<ModelFile>,
}

impl Source {
    /// Finds and reads the small files of the model at `path`, a directory or a `.safetensors` file.
    ///
    /// In a directory, `model.safetensors` is used if it is there, else the shards that
    /// `model.safetensors.index.json` names, as transformers does.
    pub fn open(path: &str, paths: &SourcePaths) -> Result<Source> {
        memory::expect_room(0, path)?;
        let given = Path::new(path);
        let found = match fs::metadata(given) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                bail!(Io, "{path}: expected a model directory or a .safetensors file, found nothing there")
            }
            Err(e) => bail!(Io, "{path}: expected a model directory or a .safetensors file: {e}"),
        };
        let (folder, index, weights) = if found.is_dir() {
            let folder = Folder::Directory(given.to_path_buf());
            let (index, weights) = weights_in(&folder)?;
            (folder, index, weights)
        } else if given.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")) {
            let directory = given.parent().unwrap_or(Path::new("")).to_path_buf();
            (Folder::Directory(directory), None, vec![ModelFile::at(given.to_path_buf())])
        } else {
            bail!(Format, "{path}: expected a model directory or a .safetensors file, found another kind of file");
        };
        Source::read(path, &folder, (index, weights), paths)
    }

    /// The same for the files of `set`, as if they lay in a directory.
    pub fn of(set: &FileSet, paths: &SourcePaths) -> Result<Source> {
        memory::expect_room(0, FileSet::NAME)?;
        let folder = Folder::Set(set.clone());
        let weights = weights_in(&folder)?;
        Source::read(FileSet::NAME, &folder, weights, paths)
    }

    /// Reads the small files of `folder`.
    fn read(
        name: &str,
        folder: &Folder,
        (index, weights): (Option<Document>, Vec<ModelFile>),
        paths: &SourcePaths,
    ) -> Result<Source> {
        const CONFIG: &str = "the model's config.json";
        let elsewhere = |path: &Option<String>, name| path.as_ref().map(|path| ModelFile::at(path.into()).called(name));
        let config_file = match elsewhere(&paths.config, "config.json") {
            Some(file) => file,
            None => folder.get("config.json", CONFIG)?,
        };
        let config = config_file.read(CONFIG, MAX_CONFIG)?;
        let mut companions = vec![config_file];
        let mut read = |file: Option<ModelFile>, what: &str, limit| -> Result<Option<Document>> {
            let Some(file) = file else { return Ok(None) };
            let document = file.read(what, limit)?;
            companions.push(file);
            Ok(Some(document))
        };
        let generation_config = read(folder.find("generation_config.json")?, "generation_config.json", MAX_CONFIG)?;
        let tokenizer = match elsewhere(&paths.tokenizer, "tokenizer.json") {
            Some(file) => read(Some(file), "the model's tokenizer.json", MAX_TOKENIZER)?,
            None => read(folder.find("tokenizer.json")?, "tokenizer.json", MAX_TOKENIZER)?,
        };
        let directory = |path: &String| Folder::Directory(Path::new(path).parent().unwrap_or(Path::new("")).into());
        let elsewhere = paths.tokenizer.as_ref().map(directory);
        let beside_tokenizer = elsewhere.as_ref().unwrap_or(folder);
        let mut beside = |name: &str| read(beside_tokenizer.find(name)?, name, MAX_CONFIG);
        let [config_name, special_tokens_map, template] = BESIDE_TOKENIZER;
        let tokenizer_config = TokenizerConfig::parse(
            &beside_tokenizer.name(),
            beside(config_name)?.as_ref(),
            beside(special_tokens_map)?.as_ref(),
            beside(template)?.as_ref(),
        )?;
        // The host may change its working directory before it saves the model.
        let companions = companions.into_iter().map(ModelFile::absolute).collect::<Result<_>>()?;
        let name = name.to_owned();
        Ok(Source { name, config, generation_config, tokenizer, tokenizer_config, index, weights, companions })
    }
}

/// The weight files of a folder, and the index if they are shards.
fn weights_in(folder: &Folder) -> Result<(Option<Document>, Vec<ModelFile>)> {
    if let Some(single) = folder.find(WEIGHTS)? {
        return Ok((None, vec![single]));
    }
    if let Some(index) = folder.read(INDEX, "an index of shards", MAX_INDEX)? {
        let mut shards: Vec<String> = weight_map(&index)?.into_values().collect();
        shards.sort_unstable();
        shards.dedup();
        let shards = shards.iter().map(|shard| folder.get(shard, "a shard of the weights")).collect::<Result<_>>()?;
        return Ok((Some(index), shards));
    }
    let instead =
        ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "adapter_config.json"]
            .into_iter()
            .find(|file| folder.find(file).is_ok_and(|found| found.is_some()))
            .map_or(String::from("neither"), |file| {
                format!("neither (there is a {file}, which this library does not read)")
            });
    bail!(Io, "{}: expected {WEIGHTS} or {INDEX} in it, found {instead}", folder.name())
}

/// Whether `name` can be that of a file in a directory, and cannot lead out of it.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// Which shard each tensor is in, by an index. Shards are plain names: an index cannot reach outside its directory.
pub(super) fn weight_map(index: &Document) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let name = &index.name;
    memory::expect_room(index.bytes.len().saturating_mul(8), name)?; // two strings and their place, for each line
    let Index { weight_map } = serde_json::from_slice(&index.bytes)
        .map_err(|e| err!(Format, "{name}: expected an object with a weight_map of tensor names to file names: {e}"))?;
    if weight_map.is_empty() {
        bail!(Format, "{name}: weight_map: expected tensors, found none");
    }
    for (tensor, shard) in &weight_map {
        if !is_plain(shard) {
            let (tensor, shard) = (Shown(tensor), Shown(shard));
            bail!(
                Format,
                "{name}: weight_map: {tensor}: expected the name of a file in this directory, found \"{shard}\""
            );
        }
    }
    Ok(weight_map)
}
