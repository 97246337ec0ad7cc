//! The C ABI from C: every program of tests/c and the examples, compiled against the header and the shared library.

mod common;

use common::parity::greedy;
use common::{Program, case, copy_dir, expect_success, run, scratch, text, tiny_model};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROMPT: &str = "Rust is a systems programming language that";

/// Runs a program of tests/c, which prints what is not as it should be. The library itself prints nothing.
fn expect_ok(command: &mut Command) {
    let output = run(command, "");
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && printed.ends_with("ok\n"), "{}\n{printed}\n{errors}", output.status);
    assert_eq!(errors, "", "something was printed to stderr");
}

#[test]
fn bad_handles() {
    expect_ok(Program::test("bad_handles").command().arg(case("padded_vocab")));
}

#[test]
fn bad_input() {
    expect_ok(Program::test("bad_input").command().arg(case("padded_vocab")));
}

#[test]
fn bad_files() {
    expect_ok(Program::test("bad_files").command().arg(case("bf16")).arg(scratch("bad-files")));
}

#[test]
fn chat() {
    let dir = scratch("chat");
    copy_dir(&case("padded_vocab"), &dir);
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect(name);
    write("chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
    let token = r#"{"content": "</s>", "special": true}"#;
    let list =
        r#"[{"name": "tool_use", "template": "tools: {{ tools|tojson }}"}, {"name": "default", "template": "old"}]"#;
    write(
        "tokenizer_config.json",
        &format!(r#"{{"bos_token": "<s>", "eos_token": {token}, "chat_template": {list}}}"#),
    );
    expect_ok(Program::test("chat").command().arg(&dir).arg(case("padded_vocab")));
}

#[test]
fn roundtrip() {
    expect_ok(Program::test("roundtrip").command().arg(case("padded_vocab")).arg(case("base")));
}

/// Programs that were compiled before the library grew go on working. Those of tests/c that need what is newer are left out.
#[test]
fn programs_of_the_first_header() {
    let roundtrip = Program::of_the_first_header("roundtrip");
    expect_ok(roundtrip.command().arg(case("padded_vocab")).arg(case("base")));
    expect_ok(Program::of_the_first_header("bad_handles").command().arg(case("padded_vocab")));
    expect_ok(Program::of_the_first_header("bad_input").command().arg(case("padded_vocab")));
}

#[test]
fn threads() {
    expect_ok(Program::test("threads").command().arg(case("base")));
}

#[test]
fn sessions() {
    expect_ok(Program::test("sessions").command().arg(case("base")).arg(case("gqa9_3")));
}

#[test]
fn quantized() {
    expect_ok(Program::test("quantized").command().arg(case("base")).arg(scratch("quantized")));
}

#[test]
fn sources() {
    let model = case("padded_vocab");
    expect_ok(Program::test("sources").command().arg(model).arg(case("sharded")).arg(scratch("sources")));
}

#[test]
fn log() {
    expect_ok(Program::test("log").command().arg(case("padded_vocab")).arg(case("base")).arg(scratch("log")));
}

#[test]
fn the_same_bits_with_all_threads_chunks_and_instruction_sets() {
    let long: Vec<u32> = (0..110).map(|i| i * 7 % 90).collect();
    let prompts = [&[3][..], &[5, 17, 40, 2, 8], &long];
    for name in ["base", "gqa9_3", "mlp_bias", "rope_yarn", "rope_llama3", "f16", "bf16", "unaligned"] {
        let run = |options: &str| greedy(&case(name), options, 10, &prompts);
        let kinds = ["--kv f32", "--kv f16", "--weights int8", "--weights int4 --kv f32"];
        let references = kinds.map(|kv| (kv, run(&format!("{kv} --isa scalar --threads 1"))));
        let different = (1..kinds.len()).all(|i| references[i].1 != references[i - 1].1);
        assert!(different, "{name}: the comparison sees no difference where there is one");
        for (kv, reference) in &references {
            for options in [
                "--isa auto --threads 1",
                "--isa scalar --threads 2 --chunk 7",
                "--threads 2 --chunk 1",
                "--threads 3 --chunk 7",
                "--threads 8 --chunk 64",
                "--threads 2 --chunk 4096",
            ] {
                assert!(run(&format!("{kv} {options}")) == *reference, "{name}, {kv}: '{options}' gives other bits");
            }
        }
    }
}

#[test]
fn minimal_prints_a_text() {
    let output = expect_success(Program::example("minimal").command().arg(tiny_model()), "");
    assert!(output.starts_with(PROMPT) && output.len() > PROMPT.len() + 60, "{output}");
}

#[test]
fn generate_streams_and_profiles() {
    let generate = Program::example("generate");
    let model = tiny_model();
    let command = || {
        let mut command = generate.command();
        command.arg("--model").arg(&model).args(["--prompt", PROMPT, "-n", "20"]);
        command
    };
    let plain = expect_success(&mut command(), "");
    assert!(plain.ends_with('\n') && plain.len() > 20, "{plain}");
    let echo = expect_success(command().arg("--echo"), "");
    assert_eq!(echo, format!("{PROMPT}{plain}"));
    assert_eq!(expect_success(command().args(["--isa", "scalar", "--threads", "3"]), ""), plain);
    assert_eq!(expect_success(command().args(["--temp", "0.9", "--top-k", "1"]), ""), plain);

    let profiled = run(command().arg("--profile"), "");
    let table = text(&profiled.stderr);
    assert!(profiled.status.success() && text(&profiled.stdout) == plain, "{table}");
    for row in ["prompt tokens", "generated tokens", "prefill latency", "decode latency", "tokens/s", "KiB per token"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    for row in ["matmul", "attention", "rms_norm", "rope", "sampling", "forward pass"] {
        let line = table.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{row}: {table}"));
        assert!(line.contains('%'), "{line}");
    }

    let seeded = |seed: &str| expect_success(command().args(["--temp", "1.3", "--seed", seed]), "");
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
}

#[test]
fn generate_says_what_is_wrong() {
    let generate = Program::example("generate");
    let model = tiny_model().display().to_string();
    let command = |arguments: &[&str]| {
        let output = run(generate.command().args(arguments), "");
        (output.status.code(), text(&output.stderr))
    };
    for (arguments, word) in [
        (&["--prompt", "x"][..], "--model"),
        (&["--model", &model], "--prompt"),
        (&["--model"], "--model"),
        (&["--model", &model, "--prompt", "x", "--frobnicate"], "--frobnicate"),
        (&["--model", &model, "--prompt", "x", "extra"], "extra"),
        (&["--model", &model, "--prompt", "x", "-n", "many"], "-n"),
        (&["--model", &model, "--prompt", "x", "-n", "-1"], "-n"),
        (&["--model", &model, "--prompt", "x", "--temp", "1.0x"], "--temp"),
        (&["--model", &model, "--prompt", "x", "--seed", ""], "--seed"),
        (&["--model", &model, "--prompt", "x", "--isa", "sse9"], "--isa"),
    ] {
        let (code, message) = command(arguments);
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(word), "{word}: {message}");
    }
    for (arguments, words) in [
        (&["--model", "/no/such", "--prompt", "x"][..], ["RIE_ERR_IO", "/no/such"]),
        (&["--model", &model, "--prompt", ""], ["RIE_ERR_STATE", "no tokens"]),
        (&["--model", &model, "--prompt", "x", "--top-p", "7"], ["RIE_ERR_INVALID_ARGUMENT", "--top-p"]),
        (&["--model", &model, "--prompt", "x", "--tokenizer", "/no"], ["RIE_ERR_IO", "/no"]),
    ] {
        let (code, message) = command(arguments);
        assert_eq!(code, Some(1), "{message}");
        assert!(words.iter().all(|w| message.contains(w)), "{words:?}: {message}");
    }
    let help = expect_success(generate.command().arg("--help"), "");
    assert!(help.starts_with("Usage: generate --model"), "{help}");
}

/// A model that never stops by itself: no end-of-generation token, and a context that no test fills.
fn endless_model() -> PathBuf {
    let dir = scratch("endless");
    copy_dir(&tiny_model(), &dir);
    std::fs::remove_file(dir.join("generation_config.json")).expect("a generation_config.json");
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["eos_token_id"] = serde_json::Value::Null;
    config["max_position_embeddings"] = 100_000.into();
    std::fs::write(&path, config.to_string()).expect("config.json");
    dir
}

#[test]
fn batch_gives_each_prompt_what_it_gets_alone() {
    let (batch, generate) = (Program::example("batch"), Program::example("generate"));
    let prompts = ["Rust is", "A trait", "The ownership of a value", "Cargo", "In Chapter 3"];
    let (model, lines) = (tiny_model(), prompts.join("\n\n"));
    let command = |arguments: &[&str]| {
        let mut command = batch.command();
        command.arg("--model").arg(&model).args(["--prompts", "-", "-n", "12"]).args(arguments);
        command
    };
    let output = run(&mut command(&["--at-once", "3"]), &lines);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let alone = prompts.map(|prompt| {
        let mut command = generate.command();
        command.arg("--model").arg(&model).args(["--prompt", prompt, "--echo", "-n", "12"]);
        expect_success(&mut command, "") + "\n"
    });
    assert_eq!(text(&output.stdout), alone.concat());
    let report = text(&output.stderr);
    for line in ["prompt 5: 12 tokens, ", "all: 60 tokens in "] {
        assert!(report.contains(line), "{report}");
    }
    let sampled =
        |at_once: &str| expect_success(&mut command(&["--temp", "1", "--seed", "3", "--at-once", at_once]), &lines);
    assert_eq!(sampled("1"), sampled("5"));
    let long = format!("{}\nRust is", "word ".repeat(3000));
    let output = run(&mut command(&[]), &long);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("prompt 1: RIE_ERR_CONTEXT_FULL"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("Rust is"), "the other prompt is continued");
    assert_eq!(run(&mut command(&["--at-once", "0"]), "").status.code(), Some(2));
    assert_eq!(run(&mut command(&[]), "\n").status.code(), Some(1));
}

#[test]
fn chat_forks_saves_and_goes_on() {
    let (chat, model, dir) = (Program::example("chat"), tiny_model(), scratch("chat"));
    let template = dir.join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
        .expect("a file");
    let saved = dir.join("saved").display().to_string();
    let talk = |lines: &[&str]| {
        let mut command = chat.command();
        command.arg("--model").arg(&model).arg("--template").arg(&template).args(["-n", "12", "--temp", "0"]);
        let output = run(command.args(["--speculate", "4"]), &(lines.join("\n") + "\n"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let answers = |lines: &[&str]| talk(lines).0.lines().map(str::to_string).collect::<Vec<_>>();
    let plain = answers(&["What is Rust?", "And Cargo?"]);
    assert!(plain.len() >= 2, "{plain:?}");
    let (out, err) =
        talk(&["What is Rust?", "/fork", &format!("/save {saved}"), "And a trait?", "/branch 1", "And Cargo?"]);
    assert_eq!(out.lines().last(), plain.last().map(String::as_str), "{out}");
    assert!(err.contains("branch 1 is kept") && err.contains("saved: "), "{err}");
    let (out, err) = talk(&[
        &format!("/load {saved}"),
        "And Cargo?",
        "/load /no/such/file",
        "/branch 7",
        "/frobnicate",
        "/quit",
        "x",
    ]);
    assert_eq!(out.lines().last(), plain.last().map(String::as_str), "{out}");
    for message in ["loaded: ", "cannot read /no/such/file", "the branches are 0 to 0", "no such command"] {
        assert!(err.contains(message), "{message}: {err}");
    }
}

#[test]
fn quantize_saves_what_generate_computes() {
    let (quantize, generate) = (Program::example("quantize"), Program::example("generate"));
    let continued = |model: &Path, weights: &str| {
        let mut command = generate.command();
        command.arg("--model").arg(model).args(["--prompt", PROMPT, "-n", "24", "--weights", weights]);
        expect_success(&mut command, "")
    };
    let saved = scratch("quantize").join("int4");
    let command = |arguments: &[&str]| {
        let mut command = quantize.command();
        command.arg("--model").arg(tiny_model()).arg("--out").arg(&saved).args(arguments);
        run(&mut command, "")
    };
    let output = command(&["--weights", "int4"]);
    let report = text(&output.stdout);
    assert!(output.status.success() && text(&output.stderr).is_empty(), "{}", text(&output.stderr));
    assert!(report.contains("2.6 M parameters, 5.1 MB to ") && report.contains("quantized in "), "{report}");
    assert_eq!(continued(&saved, "as-is"), continued(&tiny_model(), "int4"));
    assert_eq!(command(&["--weights", "int4"]).status.code(), Some(1), "the directory is not empty any more");
    for arguments in [&["--weights", "as-is"][..], &["--weights", "int5"], &[]] {
        assert_eq!(command(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn perplexity_compares_models() {
    let perplexity = Program::example("perplexity");
    let dir = scratch("perplexity");
    let file = dir.join("text");
    std::fs::write(&file, "Rust is a systems programming language that runs fast. ".repeat(60)).expect("a file");
    let ask = |arguments: &[&str]| {
        let mut command = perplexity.command();
        command.arg("--model").arg(tiny_model()).arg("--text").arg(&file).args(["--window", "64", "--windows", "3"]);
        let table = expect_success(command.args(arguments), "");
        move |name: &str| -> f64 {
            let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
            line[name.len()..].trim().trim_end_matches('%').trim().parse().expect("a number")
        }
    };
    let (model, plain) = (tiny_model().display().to_string(), ask(&[]));
    assert!(plain("tokens predicted") == 93.0 && plain("perplexity") > 1.0);
    let same = ask(&["--reference", &model]);
    assert_eq!((same("mean KL divergence"), same("same likeliest")), (0.0, 100.0));
    assert_eq!(same("perplexity"), same("... of the reference"));
    let divergence =
        ["int8", "int4"].map(|weights| ask(&["--reference", &model, "--weights", weights])("mean KL divergence"));
    assert!(divergence[0] > 0.0 && divergence[0] < divergence[1] && divergence[1] < 1.0, "{divergence:?}");
}

#[test]
fn generate_ends_cleanly_on_an_interrupt() {
    let generate = Program::example("generate");
    let mut child = generate
        .command()
        .arg("--model")
        .arg(endless_model())
        .args(["--prompt", PROMPT, "-n", "1000000", "--profile"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("generate");
    let mut first = [0; 1];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("text");
    expect_success(Command::new("kill").args(["-INT", &child.id().to_string()]), "");
    let output = child.wait_with_output().expect("the rest");
    let (printed, table) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{printed}\n{table}");
    assert!(printed.ends_with('\n') && table.contains("generated tokens"), "{printed}\n{table}");
}

#[test]
fn inspect_prints_a_table() {
    let inspect = Program::example("inspect");
    let table = expect_success(inspect.command().arg("--model").arg(case("bf16")), "");
    for words in [
        &["architecture", "LlamaForCausalLM"][..],
        &["parameters"],
        &["BF16", "tensors", "parameters", "kB"],
        &["hidden_size", "24"],
        &["rope.theta", "10000"],
        &["model.embed_tokens.weight", "BF16", "[97, 24]"],
        &["model.norm.weight", "BF16", "[24]"],
    ] {
        assert!(table.lines().any(|line| words.iter().all(|w| line.contains(w))), "{words:?}: {table}");
    }
    let column = |line: &str| line.find("BF16").unwrap_or_default();
    let mut rows = table.lines().filter(|line| line.starts_with("model.")).map(column);
    let first = rows.next().expect("tensors");
    assert!(rows.all(|c| c == first), "{table}");

    let json = expect_success(inspect.command().arg("--json").arg("--model").arg(case("sharded")), "");
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["files"].as_array().map(Vec::len), Some(2));
    assert_eq!(run(&mut inspect.command(), "").status.code(), Some(2));
    assert_eq!(run(inspect.command().args(["--model", "/no/such"]), "").status.code(), Some(1));
}

/// What `bench` reports of the tiny model; the speeds are what they are.
fn bench(arguments: &[&str]) -> serde_json::Value {
    let mut command = Program::example("bench").command();
    command.arg("--model").arg(tiny_model()).args(arguments).args(["--json", "-"]);
    serde_json::from_str(&expect_success(&mut command, "")).expect("JSON")
}

#[test]
fn bench_reports_samples_medians_and_limits() {
    let report = bench(&["-p", "9", "-n", "4", "-r", "3", "-t", "2", "--depth", "70", "--isa", "scalar"]);
    let results = report["results"].as_array().expect("results");
    assert_eq!(results.iter().map(|r| r["test"].as_str()).collect::<Vec<_>>(), [Some("pp9"), Some("tg4")]);
    for result in results {
        let samples: Vec<f64> = result["samples"].as_array().into_iter().flatten().filter_map(|s| s.as_f64()).collect();
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(samples.len() == 3 && sorted[0] > 0.0 && result["median"] == sorted[1], "{result}");
        assert_eq!((&result["threads"], &result["batch"], &result["depth"]), (&2.into(), &1.into(), &70.into()));
        assert!(result["weights"] == "as-is" && result["limit_share"].as_f64() > Some(0.0), "{result}");
    }
    for limit in ["read_gb_s", "fma_gflop_s"] {
        assert!(report["limits"][limit].as_f64() > Some(0.0), "{report}");
    }
    assert_eq!(report["library"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["library"]["isa"], "scalar");
    assert_eq!(report["model"]["architecture"], "LlamaForCausalLM");
    assert!(report["model"]["parameters"].as_u64() > Some(0) && report["model"]["weight_bytes"].as_u64() > Some(0));
    let one = bench(&["-p", "0", "-n", "2", "-r", "1"]);
    assert_eq!(one["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["results"][0]["test"], "tg2");
    let together = bench(&["-p", "4", "-n", "3", "-r", "1", "--batch", "5", "--depth", "3"]);
    let batches: Vec<_> = together["results"].as_array().into_iter().flatten().map(|r| r["batch"].as_u64()).collect();
    assert_eq!(batches, [Some(1), Some(5)], "a prompt is one session's");
}

#[test]
fn bench_prints_a_table_and_says_what_it_cannot_do() {
    let program = Program::example("bench");
    let table = expect_success(program.command().arg("--model").arg(tiny_model()).args(["-p", "8", "-n", "2"]), "");
    for word in ["share of limit", "pp8", "tg2", "GB/s read", "GFLOP/s"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    for (arguments, message) in [
        (&["--weights", "int3"][..], "--weights: 'int3' is not as-is, int8 or int4"),
        (&["--batch", "0"], "--batch: must be 1 to 4096"),
        (&["-r", "0"], "-r: must be"),
        (&["-p", "-1"], "-p, -n and --depth"),
        (&["--isa", "mmx"], "'mmx' is not auto, scalar, avx2, avx512 or neon"),
    ] {
        let output = run(program.command().arg("--model").arg(tiny_model()).args(arguments), "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    let lost = run(program.command().arg("--model").arg(tiny_model()).args(["--json", "/no/such/dir/x"]), "");
    assert_eq!(lost.status.code(), Some(1));
}

/// The header's own extent says how much a file of weights holds, so that a sparse one costs nothing to describe.
#[test]
fn inspect_reads_no_weights() {
    let dir = scratch("sparse");
    copy_dir(&case("bf16"), &dir);
    let huge = 1u64 << 40;
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let path = dir.join("model.safetensors");
    std::fs::write(&path, &bytes).expect("a header");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(bytes.len() as u64 + huge).expect("a sparse file");
    let table = expect_success(Program::example("inspect").command().arg("--model").arg(&dir), "");
    assert!(table.contains("1.1 TB"), "{table}");
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// What AddressSanitizer (`tests/sanitizers.sh`, which has more programs) does not see: memory that is read before it is written.
#[test]
#[ignore = "valgrind is slow; CI runs it"]
fn no_errors_and_no_leaks_under_valgrind() {
    let model = tiny_model();
    let prompt = ["--prompt", "Rust is", "-n", "3", "--threads", "2", "--profile", "--temp", "0.8"];
    expect_success(Program::example("minimal").valgrind().arg(&model), "");
    expect_success(Program::example("generate").valgrind().arg("--model").arg(&model).args(prompt), "");
    expect_success(Program::example("inspect").valgrind().arg("--model").arg(&model), "");
    expect_success(Program::test("roundtrip").valgrind().arg(case("padded_vocab")).arg(case("base")), "");
}
