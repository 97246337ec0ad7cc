//! The golden fixtures (`tests/golden/cases`), which transformers wrote.

use super::*;

/// The cases; none where the crate was packaged without them.
fn cases() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if !golden.exists() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(golden.join("cases")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!cases.is_empty(), "{} is empty", golden.display());
    cases
}

#[test]
fn every_case_is_reported_as_it_is() {
    for case in cases() {
        let name = case.to_str().unwrap();
        let source = Source::open(name, &SourcePaths::default()).unwrap();
        let c = Config::parse(&source.config, source.generation_config.as_ref()).unwrap();
        let checkpoint = Checkpoint::open(&source, Access::Map).unwrap();
        checkpoint.tensor("model.norm.weight", &[c.hidden_size]).unwrap();
        let json = super::super::inspect(&source).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let (parameters, bytes) = checkpoint.totals(&[]);
        assert_eq!((json["parameters"].as_u64(), json["bytes"].as_u64()), (Some(parameters), Some(bytes)), "{name}");
    }
}

#[test]
fn the_spellings_of_transformers_4_and_5_mean_the_same() {
    let mut pairs = 0;
    for case in cases() {
        let read = |file: &str| {
            let bytes = std::fs::read(case.join(file)).ok()?;
            Config::parse(&Document { name: case.join(file).display().to_string(), bytes }, None).map(Some).unwrap()
        };
        if let Some(v5) = read("config_v5.json") {
            assert_eq!(read("config.json").unwrap(), v5);
            pairs += 1;
        }
    }
    assert!(pairs >= 5 || cases().is_empty(), "{pairs} pairs");
}
