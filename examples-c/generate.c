/* Generates text with a model, streaming it as it comes. See `generate --help`. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
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
    "  --threads N           threads (default 0: one for each physical core)\n"
    "  --isa NAME            instruction set: auto, scalar (slow), avx2 or neon (default auto)\n"
    "  --profile             print a table of times to stderr at the end\n"
    "  --help                print this text\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line, 130 interrupted by Ctrl-C.\n"
    "On Ctrl-C the text so far stays printed; a second Ctrl-C ends the program at once.\n";

struct settings {
    const char *model, *config, *tokenizer, *prompt, *isa, *seed;
    int64_t max_tokens, top_k, threads;
    double temperature, top_p, min_p, repeat_penalty;
    int echo, profile;
};

/* ---- Ctrl-C: the handler only raises a flag, which is looked at between steps, all of them short.
 * (rie_session_cancel ends a step that is running, but is for other threads, not for signal handlers.) ---- */

static volatile sig_atomic_t interrupted = 0;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

static void catch_interrupt(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)(SA_RESETHAND | SA_RESTART); /* the second one has its usual effect */
    sigaction(SIGINT, &action, NULL);
}

/* ---- Progress, on a terminal only: one line that is overwritten and at last cleared. ---- */

static void show_progress(const char *what, uint64_t done, uint64_t total) {
    if (isatty(STDERR_FILENO) && total > 0) {
        fprintf(stderr, "\r%s %3.0f %%\033[K", what, 100.0 * (double)done / (double)total);
        fflush(stderr);
    }
}

static void clear_progress(void) {
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

static int32_t on_load_progress(void *userdata, uint64_t done, uint64_t total) {
    (void)userdata;
    show_progress("loading", done, total);
    return interrupted; /* nonzero cancels the load */
}

/* ---- The command line ---- */

static struct settings read_settings(int argc, char **argv) {
    struct settings s = {.max_tokens = 128, .top_p = 1, .repeat_penalty = 1, .isa = "auto"};
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

static void set_float(rie_options *options, int32_t key, const char *what, double value, rie_error *error) {
    check(rie_options_set_float(options, key, value, error), what, error);
}

static rie_model *load_model(const struct settings *s, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_model *model = NULL;
    set_int(options, RIE_OPT_THREADS, "--threads", s->threads, error);
    set_int(options, RIE_OPT_ISA, "--isa", parse_isa(s->isa), error);
    if (s->config != NULL) {
        check(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, s->config, error), "--config", error);
    }
    if (s->tokenizer != NULL) {
        check(rie_options_set_str(options, RIE_OPT_TOKENIZER_PATH, s->tokenizer, error), "--tokenizer", error);
    }
    check(rie_options_set_progress(options, on_load_progress, NULL, error), "progress", error);
    rie_status status = rie_model_load(s->model, options, &model, error);
    clear_progress();
    if (status == RIE_ERR_CANCELLED) {
        exit(EXIT_INTERRUPTED);
    }
    check(status, "loading the model", error);
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

/* The prompt's tokens, to be freed. */
static rie_token *tokenize(const rie_model *model, const char *text, size_t *count, rie_error *error) {
    const uint32_t flags = RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL;
    const size_t cap = strlen(text) + 16; /* nearly always enough; the library says if not */
    rie_token *tokens = allocate(cap * sizeof *tokens);
    rie_status status = rie_tokenize(model, text, strlen(text), flags, tokens, cap, count, error);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) {
        free(tokens);
        tokens = allocate(*count * sizeof *tokens);
        status = rie_tokenize(model, text, strlen(text), flags, tokens, *count, count, error);
    }
    check(status, "tokenizing the prompt", error);
    return tokens;
}

/* Pushes a token (-1: the end) through the stream and prints the text that it settles, if `show`. */
static void emit(rie_text_stream *stream, rie_token token, int show, rie_error *error) {
    char small[256], *text = small;
    size_t length = 0;
    rie_status status = rie_text_stream_push(stream, token, text, sizeof small, &length, error);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) { /* nothing was consumed: again, with room enough */
        text = allocate(length);
        status = rie_text_stream_push(stream, token, text, length, &length, error);
    }
    check(status, "decoding text", error);
    if (show && (fwrite(text, 1, length, stdout) < length || fflush(stdout) != 0)) {
        fail("stdout: cannot write");
    }
    if (text != small) {
        free(text);
    }
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
    catch_interrupt();

    rie_error *error = rie_error_new();
    rie_model *model = load_model(&s, error);
    rie_session *session = new_session(model, &s, error);
    rie_sampler *sampler = new_sampler(&s, error);
    rie_text_stream *stream = NULL;
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &stream, error), "making a text stream", error);

    struct times times = {0};
    rie_token *prompt = tokenize(model, s.prompt, &times.prompt_tokens, error);
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
