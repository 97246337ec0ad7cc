/* How well a model predicts a text, and how far it is from another model. See `perplexity --help`. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "host.h"
#include "rie.h"

static const char help[] =
    "Usage: perplexity --model DIR|FILE --text FILE [option]...\n"
    "\n"
    "Cuts the text into windows and predicts the tokens of the second half of each. Prints the perplexity,\n"
    "e to the mean of -ln p, and with --reference how far the distribution P of the model is from the reference's Q:\n"
    "the mean of the Kullback-Leibler divergence sum Q ln (Q / P), and how often both find the same token likeliest.\n"
    "\n"
    "  --model DIR|FILE              a Hugging Face model directory, or a .safetensors file\n"
    "  --weights FORMAT              as-is, int8 or int4: quantize the weights while loading (default as-is)\n"
    "  --reference DIR|FILE          the other model, used as it is stored; must have the same vocabulary\n"
    "  --text FILE                   the text, UTF-8\n"
    "  --window N                    tokens of a window (default 512)\n"
    "  --windows N                   windows at most (default 0: the whole text)\n"
    "  --threads N                   threads (default 0: one for each physical core)\n"
    "  --help                        print this text\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line, 130 interrupted by Ctrl-C.\n";

struct settings {
    const char *model, *weights, *reference, *text;
    int64_t window, windows, threads;
};

struct evaluated {
    rie_model *model;
    rie_session *session;
    float *logits;
    double log_sum;       /* ln of the sum of e^logit */
    double surprise;      /* sum of -ln p over the tokens predicted so far */
};

struct sums {
    size_t tokens, same_best;
    double divergence;
};

static struct settings read_settings(int argc, char **argv) {
    struct settings s = {.weights = "as-is", .window = 512};
    const struct arg args[] = {{"--model", ARG_STR, &s.model},
                               {"--weights", ARG_STR, &s.weights},
                               {"--reference", ARG_STR, &s.reference},
                               {"--text", ARG_STR, &s.text},
                               {"--window", ARG_INT, &s.window},
                               {"--windows", ARG_INT, &s.windows},
                               {"--threads", ARG_INT, &s.threads},
                               {NULL, ARG_FLAG, NULL}};
    parse_args(argc, argv, args, help);
    if (s.model == NULL || s.text == NULL) {
        fail_usage("--model and --text are needed");
    }
    if (s.window < 4 || s.window > 1 << 24 || s.windows < 0) {
        fail_usage("--window: must be 4 to %d; --windows: not negative", 1 << 24);
    }
    return s;
}

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail("--text: cannot open %s", path);
    }
    size_t cap = 1 << 16;
    char *text = allocate(cap);
    *length = 0;
    for (size_t n; (n = fread(text + *length, 1, cap - *length, file)) > 0;) {
        *length += n;
        if (*length == cap) {
            char *larger = realloc(text, cap *= 2);
            if (larger == NULL) {
                fail("out of memory (%zu bytes)", cap);
            }
            text = larger;
        }
    }
    if (ferror(file)) {
        fail("--text: cannot read %s", path);
    }
    fclose(file);
    return text;
}

static struct evaluated open_model(const char *path, const char *weights, const struct settings *s, rie_error *error) {
    struct evaluated e = {0};
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", s->threads, error);
    set_int(options, RIE_OPT_WEIGHTS, "--weights", parse_weights(weights), error);
    set_int(options, RIE_OPT_CONTEXT, "--window", s->window, error);
    e.model = load_model(path, options, error);
    check(rie_session_new(e.model, options, &e.session, error), "opening a session", error);
    e.logits = allocate((size_t)get_int(e.model, RIE_INFO_VOCAB_SIZE, error) * sizeof *e.logits);
    rie_free(options);
    return e;
}

static void close_model(struct evaluated *e) {
    free(e->logits);
    rie_free(e->session);
    rie_free(e->model);
}

/* The logits after what the session holds, and the likeliest token. */
static size_t evaluate(struct evaluated *e, size_t vocab, rie_error *error) {
    check(rie_session_logits(e->session, e->logits, vocab, error), "computing logits", error);
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++) {
        best = e->logits[i] > e->logits[best] ? i : best;
    }
    double sum = 0;
    for (size_t i = 0; i < vocab; i++) {
        sum += exp((double)e->logits[i] - (double)e->logits[best]);
    }
    e->log_sum = (double)e->logits[best] + log(sum);
    return best;
}

static double log_probability(const struct evaluated *e, size_t token) {
    return (double)e->logits[token] - e->log_sum;
}

/* Goes through one window; the models have the same tokens at every step. */
static void run_window(struct evaluated *models, size_t count, const rie_token *tokens, size_t window, size_t vocab,
                       struct sums *sums, rie_error *error) {
    const size_t half = window / 2;
    for (size_t m = 0; m < count; m++) {
        check(rie_session_truncate(models[m].session, 0, error), "emptying a session", error);
        check(rie_session_append(models[m].session, tokens, half + 1, error), "appending tokens", error);
    }
    for (size_t i = half + 1; i < window && !interrupted; i++) {
        size_t best[2] = {0};
        for (size_t m = 0; m < count; m++) {
            best[m] = evaluate(&models[m], vocab, error);
            models[m].surprise -= log_probability(&models[m], (size_t)tokens[i]);
            check(rie_session_append(models[m].session, &tokens[i], 1, error), "appending a token", error);
        }
        for (size_t token = 0; count == 2 && token < vocab; token++) {
            const double q = log_probability(&models[1], token);
            sums->divergence += exp(q) * (q - log_probability(&models[0], token));
        }
        sums->same_best += count == 2 && best[0] == best[1];
        sums->tokens++;
    }
}

int main(int argc, char **argv) {
    const struct settings s = read_settings(argc, argv);
    catch_interrupt(1);
    rie_error *error = rie_error_new();
    struct evaluated models[2] = {open_model(s.model, s.weights, &s, error)};
    const size_t count = s.reference != NULL ? 2 : 1;
    const size_t vocab = (size_t)get_int(models[0].model, RIE_INFO_VOCAB_SIZE, error);
    if (count == 2) {
        models[1] = open_model(s.reference, "as-is", &s, error);
        if ((size_t)get_int(models[1].model, RIE_INFO_VOCAB_SIZE, error) != vocab) {
            fail("--reference: its vocabulary is not that of the model");
        }
    }
    size_t length = 0, n = 0;
    char *text = read_file(s.text, &length);
    rie_token *tokens = tokenize(models[0].model, text, length, 0, &n, error);
    size_t windows = n / (size_t)s.window;
    if (windows == 0) {
        fail("--text: has %zu tokens, less than one window of %" PRId64, n, s.window);
    }
    if (s.windows > 0 && (size_t)s.windows < windows) {
        windows = (size_t)s.windows;
    }
    struct sums sums = {0};
    for (size_t w = 0; w < windows && !interrupted; w++) {
        show_progress("evaluating", w, windows);
        run_window(models, count, tokens + w * (size_t)s.window, (size_t)s.window, vocab, &sums, error);
    }
    clear_progress();
    if (interrupted) {
        exit(EXIT_INTERRUPTED);
    }
    const double predicted = (double)sums.tokens;
    printf("tokens predicted    %12zu\n", sums.tokens);
    printf("perplexity          %12.4f\n", exp(models[0].surprise / predicted));
    if (count == 2) {
        printf("... of the reference%12.4f\n", exp(models[1].surprise / predicted));
        printf("mean KL divergence  %12.6f\n", sums.divergence / predicted);
        printf("same likeliest      %11.2f %%\n", 100 * (double)sums.same_best / predicted);
    }
    for (size_t m = 0; m < count; m++) {
        close_model(&models[m]);
    }
    free(tokens);
    free(text);
    rie_free(error);
    return 0;
}
