//! Saving a model as a directory that loads again without any conversion.

use super::{Model, ProgressFn};
use crate::checkpoint::{Content, LAYOUT_KEY, packing_key};
use crate::error::Result;
use crate::memory;
use crate::tensor::quant::{LAYOUT_VERSION, PANEL_ROWS};
use crate::{bail, err, log};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

impl Model {
    /// Writes the model to the new directory `path`: `model.safetensors` with the weights as they are in memory, and copies of
    /// the small files. Everything is written under a temporary name beside it and renamed at the end, so there is never half
    /// a model at `path`.
    pub fn save(&self, path: &str, progress: Option<ProgressFn<'_>>) -> Result<()> {
        let target = Path::new(path);
        if let Ok(mut entries) = fs::read_dir(target) {
            if entries.next().is_some() {
                bail!(Io, "{path}: expected a new or empty directory to save to, found files in it");
            }
        } else if fs::symlink_metadata(target).is_ok() {
            bail!(Io, "{path}: expected a new or empty directory to save to, found something else");
        }
        let temporary = temporary_beside(target)?;
        fs::create_dir(&temporary).map_err(|e| err!(Io, "{}: cannot be created: {e}", temporary.display()))?;
        let mut ignore = |_, _| false;
        let written = self.write(&temporary, progress.unwrap_or(&mut ignore)).and_then(|()| {
            fs::rename(&temporary, target).map_err(|e| err!(Io, "{path}: the directory cannot be renamed to it: {e}"))
        });
        match &written {
            Ok(()) => log!(Info, "{}: saved to {path}, {} bytes of weights", self.name, self.weight_bytes()),
            Err(_) => drop(fs::remove_dir_all(&temporary)), // the first error is the one to report
        }
        written
    }

    /// Writes all files into `directory`.
    fn write(&self, directory: &Path, progress: ProgressFn<'_>) -> Result<()> {
        for file in &self.companions {
            file.copy_into(directory)?;
        }
        let path = directory.join("model.safetensors");
        let mut file = File::create(&path).map_err(|e| unwritten(&path, e))?;
        let contents = self.contents();
        file.write_all(&header(&contents)?).map_err(|e| unwritten(&path, e))?;
        let total = contents.iter().map(|content| content.bytes.len() as u64).sum();
        let mut done = 0;
        for piece in contents.iter().flat_map(|content| content.bytes.chunks(1 << 20)) {
            if progress(done, total) {
                bail!(Cancelled, "saving was cancelled after {done} of {total} bytes");
            }
            file.write_all(piece).map_err(|e| unwritten(&path, e))?;
            done += piece.len() as u64;
        }
        file.sync_all().map_err(|e| unwritten(&path, e))?;
        progress(done, total);
        Ok(())
    }
}

fn unwritten(path: &Path, e: std::io::Error) -> crate::error::Error {
    err!(Io, "{}: cannot be written: {e}", path.display())
}

/// A free name in the directory of `target`.
fn temporary_beside(target: &Path) -> Result<PathBuf> {
    static SAVES: AtomicU32 = AtomicU32::new(0);
    let Some(name) = target.file_name() else {
        bail!(InvalidArgument, "{}: expected a path that ends with a directory's name", target.display());
    };
    let save = SAVES.fetch_add(1, Ordering::Relaxed);
    Ok(target.with_file_name(format!(".{}.{}-{save}.tmp", name.display(), std::process::id())))
}

/// The header of a SafeTensors file of `contents` in their order. Equal contents give equal bytes.
fn header(contents: &[Content<'_>]) -> Result<Vec<u8>> {
    memory::expect_room(contents.len() * 1024, "the header of the saved model")?;
    let mut metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let mut header: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    let json = |value: serde_json::Result<_>| value.map_err(|e| err!(Internal, "the header of a saved model: {e}"));
    let mut end = 0;
    for content in contents {
        let data_offsets = (end, end + content.bytes.len());
        end = data_offsets.1;
        let (dtype, shape) = match content.packing {
            None => (content.dtype, content.shape.to_vec()),
            Some(packing) => {
                metadata.insert(LAYOUT_KEY.to_string(), LAYOUT_VERSION.to_string());
                metadata.insert(packing_key(content.name), packing.value());
                let panels = packing.shape[0].div_ceil(PANEL_ROWS);
                (Dtype::U8, vec![panels, content.bytes.len() / panels])
            }
        };
        let tensor = TensorInfo { dtype, shape, data_offsets };
        header.insert(content.name, json(serde_json::to_value(tensor))?);
    }
    header.insert("__metadata__", json(serde_json::to_value(metadata))?);
    let mut text = serde_json::to_vec(&header).map_err(|e| err!(Internal, "the header of a saved model: {e}"))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}
