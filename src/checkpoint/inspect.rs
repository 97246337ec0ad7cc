//! A model's description as JSON, from headers alone.

use super::SourcePaths;
use crate::error::Result;

/// Describes the model at `path` as JSON: architecture, parameters, bytes per dtype, and each tensor's name, dtype,
/// shape and file. Reads headers only; no weight is mapped or read.
pub fn inspect(path: &str, paths: &SourcePaths) -> Result<String> {
    todo!("{path} {paths:?}")
}
