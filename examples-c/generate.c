/* Generates text with a model, streaming it as it comes. See `generate --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "host.h"
#include "profile.h"
#include "rie.h"

static const char help[] =
    "Usage: generate --model DIR|FILE --prompt TEXT [option]...\n"
    "\n"
    "Continues TEXT and prints the continuation to stdout as it is generated.\n"
    "\n"
    "  --model DIR|FILE      a Hugging Face model directory, or a .safetensors file\n"
    "  --config FILE         config.json, if it does not lie beside the weights\n"
    "  --tokenizer FILE      tokenizer.json, if it does not lie beside the weights\n"
    "  --prompt TEXT         the text to continue; special tokens spelled in it count as such\n"
    "  -n N                  generate at most N tokens (default 128)\n"
    "  --echo                print the prompt as well\n"
    "\n"
    "Sampling:\n"
    "  --temp T              temperature; 0 always takes the likeliest token (default 0)\n"
    "  --top-k K             choose among the K likeliest tokens (default 0: all)\n"
    "  --top-p P             ... among the likeliest that reach probability P (default 1: all)\n"
    "  --min-p P             ... among those at least P times as likely as the likeliest (default 0: all)\n"
    "  --seed S              same seed, same text (default: random)\n"
    "  --repeat-penalty R    make tokens seen before less likely if R > 1 (default 1: off)\n"
    "--top-k, --top-p, --min-p and --seed matter only if T is above 0.\n"
    "\n"
    "Running:\n"
    "  --weights FORMAT      as-is, int8 or int4: quantize the weights while loading (default as-is)\n"
    "  --threads N           threads (default 0: one for each physical core)\n"
    "  --isa NAME            instruction set: auto, scalar (slow), avx2, avx512 or neon (default auto)\n"
    "  --profile             print a table of times to stderr at the end\n"
    "  --help                print this text\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line, 130 interrupted by Ctrl-C.\n"
    "On Ctrl-C the text so far stays printed; a second Ctrl-C ends the program at once.\n";

struct settings {
    const char *model, *config, *tokenizer, *prompt, *weights, *isa, *seed;
    int64_t max_tokens, top_k, threads;
    double temperature, top_p, min_p, repeat_penalty;
    int echo, profile;
};

/* ---- The command line ---- */

static struct settings read_settings(int argc, char **argv) {
    struct settings s = {.max_tokens = 128, .top_p = 1, .repeat_penalty = 1, .weights = "as-is", .isa = "auto"};
    const struct arg args[] = {
        {"--model", ARG_STR, &s.model},
        {"--config", ARG_STR, &s.config},
        {"--tokenizer", ARG_STR, &s.tokenizer},
        {"--prompt", ARG_STR, &s.prompt},
        {"-n", ARG_INT, &s.max_tokens},
        {"--echo", ARG_FLAG, &s.echo},
        {"--temp", ARG_FLOAT, &s.temperature},
        {"--top-k", ARG_INT, &s.top_k},
        {"--top-p", ARG_FLOAT, &s.top_p},
        {"--min-p", ARG_FLOAT, &s.min_p},
        {"--seed", ARG_STR, &s.seed},
        {"--repeat-penalty", ARG_FLOAT, &s.repeat_penalty},
        {"--threads", ARG_INT, &s.threads},
        {"--weights", ARG_STR, &s.weights},
        {"--isa", ARG_STR, &s.isa},
        {"--profile", ARG_FLAG, &s.profile},
        {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (s.model == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    if (s.prompt == NULL) {
        fail_usage("--prompt: a text to continue is needed");
    }
    if (s.max_tokens < 0) {
        fail_usage("-n: must not be negative");
    }
    return s;
}

/* ---- Load, tokenize, prefill, decode ---- */

static rie_model *load(const struct settings *s, rie_error *error) {
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", s->threads, error);
    set_int(options, RIE_OPT_WEIGHTS, "--weights", parse_weights(s->weights), error);
    set_int(options, RIE_OPT_ISA, "--isa", parse_isa(s->isa), error);
    if (s->config != NULL) {
        check(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, s->config, error), "--config", error);
    }
    if (s->tokenizer != NULL) {
        check(rie_options_set_str(options, RIE_OPT_TOKENIZER_PATH, s->tokenizer, error), "--tokenizer", error);
    }
    rie_model *model = load_model(s->model, options, error);
    rie_free(options);
    return model;
}

static rie_session *new_session(const rie_model *model, const struct settings *s, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    set_int(options, RIE_OPT_PROFILE, "--profile", s->profile, error);
    check(rie_session_new(model, options, &session, error), "making a session", error);
    rie_free(options);
    return session;
}

static rie_sampler *new_sampler(const struct settings *s, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_sampler *sampler = NULL;
    set_float(options, RIE_OPT_TEMPERATURE, "--temp", s->temperature, error);
    set_int(options, RIE_OPT_TOP_K, "--top-k", s->top_k, error);
    set_float(options, RIE_OPT_TOP_P, "--top-p", s->top_p, error);
    set_float(options, RIE_OPT_MIN_P, "--min-p", s->min_p, error);
    set_float(options, RIE_OPT_REPETITION_PENALTY, "--repeat-penalty", s->repeat_penalty, error);
    if (s->seed != NULL) {
        set_int(options, RIE_OPT_SEED, "--seed", parse_int("--seed", s->seed), error);
    }
    check(rie_sampler_new(options, &sampler, error), "making a sampler", error);
    rie_free(options);
    return sampler;
}

/* Pushes a token (-1: the end) through the stream and prints the text that it settles, if `show`. */
static void emit(rie_text_stream *stream, rie_token token, int show, rie_error *error) {
    size_t length = 0;
    char *text = push_token(stream, token, &length, error);
    if (show && (fwrite(text, 1, length, stdout) < length || fflush(stdout) != 0)) {
        fail("stdout: cannot write");
    }
    free(text);
}

/* Evaluates the prompt in portions that take a fraction of a second each, so that Ctrl-C is heard soon. */
static void prefill(rie_session *session, size_t total, rie_error *error) {
    size_t portion = 128;
    rie_status status = RIE_PENDING;
    while (status == RIE_PENDING && !interrupted) {
        const double start = now();
        status = rie_session_eval(session, portion, error);
        if (status < 0) {
            clear_progress();
        }
        check(status, "evaluating the prompt", error);
        show_progress("reading the prompt", (uint64_t)get_int(session, RIE_INFO_EVALUATED, error), total);
        if (now() - start < 0.25) {
            portion *= 2;
        }
    }
    clear_progress();
}

/* Generates, printing as it goes, until the end of text, `max_tokens`, a full context, or Ctrl-C. */
static void decode(rie_session *session, rie_sampler *sampler, rie_text_stream *stream, int64_t max_tokens,
                   struct times *times, rie_error *error) {
    for (int64_t i = 0; i < max_tokens && !interrupted; i++) {
        rie_token token = 0;
        const double start = now();
        rie_status status = rie_decode_step(session, sampler, &token, error);
        const double seconds = now() - start;
        if (status == RIE_ERR_CONTEXT_FULL) {
            fprintf(stderr, "\ngenerate: stopped: %s\n", rie_error_message(error));
            return;
        }
        check(status, "decoding", error);
        if (i == 0) {
            times->prefill += seconds; /* until the first token is there */
        } else {
            times->decode += seconds;
            times->decode_steps++;
        }
        if (status == RIE_END) {
            return;
        }
        times->generated_tokens++;
        emit(stream, token, 1, error);
    }
}

int main(int argc, char **argv) {
    const struct settings s = read_settings(argc, argv);
    catch_interrupt(1);

    rie_error *error = rie_error_new();
    rie_model *model = load(&s, error);
    rie_session *session = new_session(model, &s, error);
    rie_sampler *sampler = new_sampler(&s, error);
    rie_text_stream *stream = NULL;
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &stream, error), "making a text stream", error);

    struct times times = {0};
    const uint32_t flags = RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL;
    rie_token *prompt = tokenize(model, s.prompt, strlen(s.prompt), flags, &times.prompt_tokens, error);
    check(rie_session_append(session, prompt, times.prompt_tokens, error), "the prompt", error);
    for (size_t i = 0; i < times.prompt_tokens; i++) {
        emit(stream, prompt[i], s.echo, error); /* what a token's text is can depend on the tokens before */
    }
    free(prompt);

    const double start = now();
    prefill(session, times.prompt_tokens, error);
    times.prefill = now() - start;
    decode(session, sampler, stream, s.max_tokens, &times, error);
    emit(stream, -1, 1, error);
    putchar('\n');
    if (s.profile) {
        print_profile(stderr, session, s.temperature > 0 ? sampler : NULL, &times, error);
    }

    rie_free(stream);
    rie_free(sampler);
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return interrupted ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}
