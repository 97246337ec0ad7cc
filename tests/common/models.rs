//! Models in tests: loaded, asked for logits, and their files changed.

use rie::checkpoint::Access;
use rie::model::{LoadOptions, Model};
use rie::session::{Progress, Session, SessionOptions, Turn, decode_batch};
use rie::tensor::quant::PANEL_ROWS;
use rie::tensor::{DType, Quant};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Two threads, and this format of the weights.
pub fn options(weights: Option<Quant>) -> LoadOptions {
    LoadOptions { threads: 2, weights, ..Default::default() }
}

/// The model in `dir`.
pub fn try_load(dir: &Path, options: &LoadOptions) -> rie::error::Result<Arc<Model>> {
    Model::load(dir.to_str().unwrap(), options, None).map(Arc::new)
}

/// The model in `dir`, which must load.
pub fn load(dir: &Path, options: &LoadOptions) -> Arc<Model> {
    try_load(dir, options).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

/// A session of its own with a cache in F32 that evaluates in chunks of `chunk` (0: at once).
pub fn session(model: &Arc<Model>, chunk: usize) -> Session {
    let options =
        SessionOptions { context: 256, kv_type: DType::F32, chunk, share_prefixes: false, ..Default::default() };
    Session::new(model.clone(), &options).unwrap()
}

/// The bits of floats.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The bits of the logits after `tokens`, evaluated in chunks of `chunk` (0: at once).
pub fn logits(model: &Arc<Model>, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let mut session = session(model, chunk);
    session.append(tokens).unwrap();
    bits(session.logits().unwrap())
}

/// Checks that any number of threads, chunks and a batch give the logits after `prompt` the bits that the scalar tier gives
/// them alone, and returns them.
pub fn expect_same_bits_everywhere(dir: &Path, options: &LoadOptions, prompt: &[u32]) -> Vec<u32> {
    let what = format!("{} {:?}", dir.display(), options.weights);
    let scalar = load(dir, &LoadOptions { isa: Some("scalar"), threads: 1, ..options.clone() });
    let expected = logits(&scalar, prompt, 0);
    assert!(expected.iter().all(|&v| f32::from_bits(v).is_finite()), "{what}");
    for (threads, access) in [(1, Access::Map), (3, Access::Read)] {
        let model = load(dir, &LoadOptions { threads, access, ..options.clone() });
        for chunk in [0, 1, 7] {
            assert_eq!(logits(&model, prompt, chunk), expected, "{what}: {threads} threads, chunks of {chunk}");
        }
        let mut others: Vec<Session> = (0..4).map(|_| session(&model, 0)).collect();
        let n = prompt.len();
        others.iter_mut().zip([1, 5, 9, n]).for_each(|(s, n)| s.append(&prompt[..n]).unwrap());
        let turns = others.iter_mut().map(|session| Turn { session, sampler: None }).collect();
        for progress in decode_batch(&model, turns).unwrap() {
            assert!(matches!(progress, Ok(Progress::Step(_) | Progress::Pending)), "{what}: {progress:?}");
        }
        others[3].truncate(n).unwrap();
        assert_eq!(bits(others[3].logits().unwrap()), expected, "{what}: in a batch");
    }
    expected
}

/// Tensors by name: type, shape, bytes.
pub type Tensors = HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>;
/// `__metadata__`.
pub type Metadata = HashMap<String, String>;

/// The tensors and metadata of a file.
pub fn read_tensors(path: &Path) -> (Tensors, Metadata) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = stored.iter().map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec())));
    (tensors.collect(), header.metadata().clone().unwrap_or_default())
}

/// Writes model.safetensors of `dir` anew after a change.
pub fn rewrite(dir: &Path, change: impl Fn(&mut Tensors, &mut Metadata)) {
    let path = dir.join("model.safetensors");
    let (mut tensors, mut metadata) = read_tensors(&path);
    change(&mut tensors, &mut metadata);
    let views =
        tensors.iter().map(|(n, (dtype, shape, data))| (n, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    std::fs::remove_file(&path).unwrap();
    safetensors::serialize_to_file(views, Some(metadata), &path).unwrap();
}

/// Puts F32 in the place of all quantized matrices of a saved model.
pub fn decode_saved(dir: &Path) {
    rewrite(dir, |tensors, metadata| {
        for name in tensors.keys().cloned().collect::<Vec<_>>() {
            let Some(packing) = metadata.remove(&format!("rie.{name}")) else { continue };
            let words: Vec<&str> = packing.split(' ').collect();
            let quant = Quant::ALL.into_iter().find(|quant| quant.name() == words[0]).unwrap();
            let [rows, inputs] = [1, 2].map(|i| words[i].parse::<usize>().unwrap());
            let order: Vec<i32> = match tensors.remove(&format!("{name}.order")) {
                Some((_, _, data)) => data.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect(),
                None => (0..inputs as i32).collect(),
            };
            let (dtype, shape, data) = tensors.get_mut(&name).unwrap();
            let (mut values, mut places) = (vec![f32::NAN; rows * inputs], vec![0.0; order.len()]);
            for (r, row) in values.chunks_exact_mut(inputs).enumerate() {
                quant.decode_row(&data[r / PANEL_ROWS * shape[1]..][..shape[1]], r % PANEL_ROWS, &mut places);
                order.iter().zip(&places).filter(|(i, _)| **i >= 0).for_each(|(&i, v)| row[i as usize] = *v);
            }
            (*dtype, *shape) = (Dtype::F32, vec![rows, inputs]);
            *data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        }
    });
}

/// How far `a` is from `b`, as a share of the length of `b`.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (error / b.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()).sqrt()
}
