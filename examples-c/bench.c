/* Measures how fast a model reads a prompt and decodes, and how near that is to the machine's limits. See `bench --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json.h"
#include "limits.h"
#include "rie.h"
#include "sessions.h"

static const char help[] =
    "Usage: bench --model DIR|FILE [option]...\n"
    "\n"
    "Times prompt processing (pp) and decoding (tg), and in the same run the machine's limits: decoding cannot be\n"
    "faster than the weights and the KV cache can be read, a prompt not faster than fused multiply-adds can be done.\n"
    "\n"
    "  --model DIR|FILE    a Hugging Face model directory, or a .safetensors file\n"
    "  --weights FORMAT    as-is, int8 or int4: quantize the weights while loading (default as-is)\n"
    "  -p N                prompt tokens (default 512; 0: do not time the prompt)\n"
    "  -n N                tokens to decode (default 128; 0: do not time decoding)\n"
    "  -r N                repetitions (default 5); the medians are printed\n"
    "  --depth N           positions in the KV cache before either starts (default 0)\n"
    "  --batch N           sessions that decode together (default 1); a prompt is always one session's\n"
    "  --sessions          also what many sessions cost: shared prefixes, forks, a prompt beside others, speculation\n"
    "  --threads N, -t N   threads (default 0: one for each physical core)\n"
    "  --isa NAME          instruction set: auto, scalar (slow), avx2, avx512 or neon (default auto)\n"
    "  --json FILE         write samples, medians and limits as JSON; - is stdout, without the table\n"
    "  --help              print this text\n"
    "\n"
    "Tokens are made up. A prompt's time ends with the logits after its last token; decoding feeds one token and takes\n"
    "its logits, without sampling; a batch feeds each session the most probable token, and tokens/s count all sessions.\n"
    "The first repetition warms up and is not counted.\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line.\n";

struct settings {
    const char *model, *weights, *isa, *json;
    int64_t prompt, decode, repetitions, depth, batch, threads;
    int sessions;
};

/* What a model makes the machine do. */
struct work {
    double layer_elements, head_elements; /* weights of the layers' matrices, and of the one that gives the logits */
    double streamed_bytes;                /* of both: read once for each token decoded */
    double attention_flops;               /* for one query on one key, all layers and heads: scores and weighted sum */
    double kv_bytes;                      /* of one position */
};

/* The timings of a test, in tokens per second. */
struct result {
    const char *kind; /* "pp" or "tg" */
    int64_t tokens;
    double *samples;
    double median, limit_share;
};

struct bench {
    struct settings s;
    rie_error *error;
    rie_model *model;
    rie_session **sessions; /* the batch; the first serves alone where there is but one */
    rie_status *statuses;
    rie_token *next; /* the tokens that a step of the batch chose */
    int64_t vocab, threads;
    struct work work;
    float *logits;
    rie_token *tokens;
    double *read_gb_s, *fma_gflop_s; /* one sample per repetition */
    struct limits limits;            /* their medians */
    struct figure figures[MOST_FIGURES];
    int figure_count; /* of many sessions; 0 unless asked for */
};

static struct settings read_settings(int argc, char **argv) {
    struct settings s = {.weights = "as-is", .isa = "auto", .prompt = 512, .decode = 128, .repetitions = 5, .batch = 1};
    const struct arg args[] = {
        {"--model", ARG_STR, &s.model},     {"--weights", ARG_STR, &s.weights}, {"-p", ARG_INT, &s.prompt},
        {"-n", ARG_INT, &s.decode},         {"-r", ARG_INT, &s.repetitions},    {"--depth", ARG_INT, &s.depth},
        {"--batch", ARG_INT, &s.batch},     {"--threads", ARG_INT, &s.threads}, {"-t", ARG_INT, &s.threads},
        {"--isa", ARG_STR, &s.isa},         {"--json", ARG_STR, &s.json},       {"--sessions", ARG_FLAG, &s.sessions},
        {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (s.model == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    if (s.batch < 1 || s.batch > 4096) {
        fail_usage("--batch: must be 1 to 4096");
    }
    const int64_t most = 1 << 24;
    if (s.prompt < 0 || s.decode < 0 || s.depth < 0 || s.prompt > most || s.decode > most || s.depth > most) {
        fail_usage("-p, -n and --depth: must be 0 to %" PRId64, most);
    }
    if (s.repetitions < 1 || s.repetitions > 10000) {
        fail_usage("-r: must be 1 to 10000");
    }
    return s;
}

/* ---- What the model makes the machine do, from the tensors of its files ---- */

struct matrix {
    const char *name;
    double elements, bytes;
    int dimensions;
};

static struct matrix read_matrix(struct json *j) {
    struct matrix m = {"", 1, 0, 0};
    json_enter(j, '{');
    while (json_next(j)) {
        const char *key = json_key(j);
        if (strcmp(key, "name") == 0) {
            m.name = json_string(j);
        } else if (strcmp(key, "bytes") == 0) {
            m.bytes = (double)json_int(j);
        } else if (strcmp(key, "shape") == 0) {
            json_enter(j, '[');
            while (json_next(j)) {
                m.elements *= (double)json_int(j);
                m.dimensions++;
            }
        } else {
            json_skip(j);
        }
    }
    return m;
}

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The bytes of a matrix, `bits` for each weight if it was quantized at load. */
static double streamed(const struct matrix *m, double bits) {
    return bits > 0 ? m->elements * bits / 8 : m->bytes;
}

static struct work measure_work(struct bench *b) {
    size_t length = 0;
    char *text = inspect_model(b->s.model, NULL, &length, b->error);
    const int32_t weights = parse_weights(b->s.weights);
    const double layer_bits = weights == RIE_WEIGHTS_INT4 ? 4.5 : weights == RIE_WEIGHTS_INT8 ? 8.5 : 0;
    const double head_bits = weights == RIE_WEIGHTS_AS_IS ? 0 : 8.5;
    struct work work = {0};
    struct matrix embedding = {0}, head = {0};
    struct json j = json_open(text, length);
    json_enter(&j, '{');
    while (json_next(&j)) {
        if (strcmp(json_key(&j), "tensors") != 0) {
            json_skip(&j);
            continue;
        }
        json_enter(&j, '[');
        while (json_next(&j)) {
            const struct matrix m = read_matrix(&j);
            if (ends_with(m.name, "embed_tokens.weight")) {
                embedding = m;
            } else if (ends_with(m.name, "lm_head.weight")) {
                head = m;
            } else if (m.dimensions == 2) {
                work.layer_elements += m.elements;
                work.streamed_bytes += streamed(&m, layer_bits);
            }
        }
    }
    if (j.failed) {
        fail("the library's description of the model is not the JSON that this program knows");
    }
    const struct matrix *logits = head.bytes > 0 ? &head : &embedding; /* one serves for both where there is one */
    work.head_elements = logits->elements;
    work.streamed_bytes += streamed(logits, head_bits);
    work.attention_flops = 4.0 * (double)get_int(b->model, RIE_INFO_LAYERS, b->error) *
                           (double)get_int(b->model, RIE_INFO_HEADS, b->error) *
                           (double)get_int(b->model, RIE_INFO_HEAD_DIM, b->error);
    work.kv_bytes = (double)get_int(b->sessions[0], RIE_INFO_KV_BYTES_PER_TOKEN, b->error);
    free(text);
    return work;
}

/* Operations for a prompt of n tokens after `depth` positions: token i attends to depth + i + 1 keys. */
static double prompt_flops(const struct work *w, double n, double depth) {
    const double pairs = n * depth + n * (n + 1) / 2;
    return 2 * w->layer_elements * n + 2 * w->head_elements + w->attention_flops * pairs;
}

/* The seconds that a step of `batch` sessions takes at least, decoding n tokens after `depth` positions: the weights are read
 * once for all, each session's cache for itself, and the arithmetic is every session's own. */
static double step_seconds(const struct work *w, double n, double depth, double batch, const struct limits *limits) {
    const double keys = depth + (n + 1) / 2;
    const double reading = (w->streamed_bytes + batch * w->kv_bytes * keys) / (limits->read_gb_s * 1e9);
    const double flops = batch * (2 * (w->layer_elements + w->head_elements) + w->attention_flops * keys);
    const double computing = flops / (limits->fma_gflop_s * 1e9);
    return reading > computing ? reading : computing;
}

/* ---- Timing ---- */

/* Session i's tokens begin with the i-th of all, so that no two sessions are alike. */
static void append(struct bench *b, int64_t session, size_t count) {
    check(rie_session_append(b->sessions[session], b->tokens + session, count, b->error), "appending tokens", b->error);
}

static void get_logits(struct bench *b) {
    check(rie_session_logits(b->sessions[0], b->logits, (size_t)b->vocab, b->error), "computing logits", b->error);
}

/* Back to `depth` evaluated positions. */
static void rewind_sessions(struct bench *b) {
    for (int64_t i = 0; i < b->s.batch; i++) {
        check(rie_session_truncate(b->sessions[i], (size_t)b->s.depth, b->error), "truncating a session", b->error);
    }
}

static double time_prompt(struct bench *b) {
    rewind_sessions(b);
    const double start = now();
    append(b, 0, (size_t)b->s.prompt);
    get_logits(b);
    return (double)b->s.prompt / (now() - start);
}

/* Each session's next token in one pass. */
static void step(struct bench *b) {
    const size_t n = (size_t)b->s.batch;
    check(rie_decode_batch(b->sessions, NULL, n, b->next, b->statuses, b->error), "decoding", b->error);
    for (size_t i = 0; i < n; i++) {
        check(b->statuses[i], "decoding", b->error);
        if (b->statuses[i] == RIE_END) { /* measured on, past the end of the text */
            check(rie_session_append(b->sessions[i], &b->next[i], 1, b->error), "appending a token", b->error);
        }
    }
}

static double time_decode(struct bench *b) {
    rewind_sessions(b);
    for (int64_t i = 0; b->s.batch > 1 && i < b->s.batch; i++) {
        append(b, i, 1);
    }
    const double start = now();
    for (int64_t i = 0; i < b->s.decode; i++) {
        if (b->s.batch > 1) {
            step(b);
        } else {
            append(b, 0, 1);
            get_logits(b);
        }
    }
    return (double)(b->s.decode * b->s.batch) / (now() - start);
}

/* Runs all tests and measures the limits in turn, `repetitions` times after a round that does not count. */
static void measure(struct bench *b, struct result *results, size_t count) {
    const size_t repetitions = (size_t)b->s.repetitions;
    for (size_t i = 0; i <= repetitions; i++) {
        const size_t at = i > 0 ? i - 1 : 0;
        const struct limits limits = measure_limits((int)b->threads);
        b->read_gb_s[at] = limits.read_gb_s;
        b->fma_gflop_s[at] = limits.fma_gflop_s;
        for (size_t r = 0; r < count; r++) {
            results[r].samples[at] = strcmp(results[r].kind, "pp") == 0 ? time_prompt(b) : time_decode(b);
        }
    }
    b->limits.read_gb_s = median(b->read_gb_s, repetitions);
    b->limits.fma_gflop_s = median(b->fma_gflop_s, repetitions);
    for (size_t r = 0; r < count; r++) {
        struct result *result = &results[r];
        const double n = (double)result->tokens, depth = (double)b->s.depth, batch = (double)b->s.batch;
        result->median = median(result->samples, repetitions);
        result->limit_share =
            strcmp(result->kind, "pp") == 0
                ? result->median * prompt_flops(&b->work, n, depth) / n / (b->limits.fma_gflop_s * 1e9)
                : result->median / batch * step_seconds(&b->work, n, depth, batch, &b->limits);
    }
}

/* ---- Output ---- */

/* How many sessions a test has. */
static int64_t sessions_of(const struct bench *b, const struct result *result) {
    return strcmp(result->kind, "pp") == 0 ? 1 : b->s.batch;
}

static void print_table(const struct bench *b, const struct result *results, size_t count) {
    printf("%-8s %8s %8s %8s %12s %16s\n", "test", "threads", "depth", "batch", "tokens/s", "share of limit");
    for (size_t r = 0; r < count; r++) {
        char name[32];
        snprintf(name, sizeof name, "%s%" PRId64, results[r].kind, results[r].tokens);
        printf("%-8s %8" PRId64 " %8" PRId64 " %8" PRId64 " %12.1f %14.0f %%\n", name, b->threads, b->s.depth,
               sessions_of(b, &results[r]), results[r].median, 100 * results[r].limit_share);
    }
    printf("limits: %.1f GB/s read (tg), %.0f GFLOP/s fused multiply-add (pp), by as many threads\n",
           b->limits.read_gb_s, b->limits.fma_gflop_s);
    for (int i = 0; i < b->figure_count; i++) {
        printf("%-64s %8.3f\n", b->figures[i].what, b->figures[i].value);
    }
}

static void write_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c < 0x20 || *c == '"' || *c == '\\') {
            fprintf(out, "\\u%04x", *c);
        } else {
            fputc(*c, out);
        }
    }
    fputc('"', out);
}

static void write_result(FILE *out, const struct bench *b, const struct result *result) {
    fprintf(out, "{\"test\": \"%s%" PRId64 "\", \"threads\": %" PRId64 ", \"batch\": %" PRId64 ", \"depth\": %" PRId64,
            result->kind, result->tokens, b->threads, sessions_of(b, result), b->s.depth);
    fprintf(out, ", \"weights\": \"%s\", \"samples\": [", b->s.weights);
    for (int64_t i = 0; i < b->s.repetitions; i++) {
        fprintf(out, "%s%.3f", i > 0 ? ", " : "", result->samples[i]);
    }
    fprintf(out, "], \"median\": %.3f, \"limit_share\": %.4f}", result->median, result->limit_share);
}

static void write_json(const struct bench *b, const struct result *results, size_t count) {
    const int to_stdout = strcmp(b->s.json, "-") == 0;
    FILE *out = to_stdout ? stdout : fopen(b->s.json, "w");
    if (out == NULL) {
        fail("--json: cannot write %s", b->s.json);
    }
    size_t length = 0;
    char *isa = get_text(b->model, RIE_INFO_ISA, &length, b->error);
    char *architecture = get_text(b->model, RIE_INFO_ARCHITECTURE, &length, b->error);
    fprintf(out, "{\"results\": [");
    for (size_t r = 0; r < count; r++) {
        fputs(r > 0 ? ", " : "", out);
        write_result(out, b, &results[r]);
    }
    fprintf(out, "], \"sessions\": {");
    for (int i = 0; i < b->figure_count; i++) {
        fprintf(out, "%s\"%s\": %.4f", i > 0 ? ", " : "", b->figures[i].name, b->figures[i].value);
    }
    fprintf(out, "}, \"limits\": {\"read_gb_s\": %.3f, \"fma_gflop_s\": %.3f}", b->limits.read_gb_s,
            b->limits.fma_gflop_s);
    fprintf(out, ", \"library\": {\"version\": \"%s\", \"isa\": \"%s\"}, \"model\": {\"path\": ", rie_version(), isa);
    write_string(out, b->s.model);
    fprintf(out, ", \"architecture\": ");
    write_string(out, architecture);
    fprintf(out, ", \"parameters\": %" PRId64 ", \"weight_bytes\": %" PRId64 "}}\n",
            get_int(b->model, RIE_INFO_PARAMETERS, b->error), get_int(b->model, RIE_INFO_WEIGHT_BYTES, b->error));
    free(architecture);
    free(isa);
    if (ferror(out) || (to_stdout ? fflush(out) : fclose(out)) != 0) {
        fail("--json: cannot write %s", b->s.json);
    }
}

/* ---- Set-up ---- */

static void load(struct bench *b) {
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", b->s.threads, b->error);
    set_int(options, RIE_OPT_WEIGHTS, "--weights", parse_weights(b->s.weights), b->error);
    set_int(options, RIE_OPT_ISA, "--isa", parse_isa(b->s.isa), b->error);
    check(rie_model_load(b->s.model, options, &b->model, b->error), "loading the model", b->error);
    rie_free(options);
    options = rie_options_new();
    const int64_t longest = b->s.prompt > b->s.decode ? b->s.prompt : b->s.decode;
    set_int(options, RIE_OPT_CONTEXT, "-p, -n, --depth", b->s.depth + longest + 1, b->error);
    set_int(options, RIE_OPT_SHARE_PREFIXES, "sharing prefixes", 0, b->error); /* everything is computed */
    const size_t batch = (size_t)b->s.batch;
    b->sessions = allocate(batch * sizeof *b->sessions);
    b->statuses = allocate(batch * sizeof *b->statuses);
    b->next = allocate(batch * sizeof *b->next);
    for (size_t i = 0; i < batch; i++) {
        check(rie_session_new(b->model, options, &b->sessions[i], b->error), "making a session", b->error);
    }
    rie_free(options);
    b->vocab = get_int(b->model, RIE_INFO_VOCAB_SIZE, b->error);
    b->threads = get_int(b->model, RIE_INFO_THREADS, b->error);
    b->work = measure_work(b);
    b->logits = allocate((size_t)b->vocab * sizeof *b->logits);
    const size_t most = (size_t)(longest > b->s.depth ? longest : b->s.depth) + 1 + batch;
    b->tokens = allocate(most * sizeof *b->tokens);
    for (size_t i = 0; i < most; i++) {
        b->tokens[i] = (rie_token)((i * 7919 + 1) % (size_t)b->vocab); /* far apart: no row is cached for the next */
    }
    for (int64_t i = 0; i < b->s.batch; i++) {
        append(b, i, (size_t)b->s.depth);
        check(rie_session_eval(b->sessions[i], 0, b->error), "filling the context", b->error);
    }
}

int main(int argc, char **argv) {
    struct bench b = {.s = read_settings(argc, argv), .error = rie_error_new()};
    load(&b);
    const size_t samples = (size_t)b.s.repetitions * sizeof(double);
    b.read_gb_s = allocate(samples);
    b.fma_gflop_s = allocate(samples);
    struct result results[2];
    size_t count = 0;
    if (b.s.prompt > 0) {
        results[count++] = (struct result){.kind = "pp", .tokens = b.s.prompt, .samples = allocate(samples)};
    }
    if (b.s.decode > 0) {
        results[count++] = (struct result){.kind = "tg", .tokens = b.s.decode, .samples = allocate(samples)};
    }
    measure(&b, results, count);
    if (b.s.sessions) {
        b.figure_count = measure_sessions(b.model, (int)b.s.repetitions, b.figures, b.error);
    }
    if (b.s.json == NULL || strcmp(b.s.json, "-") != 0) {
        print_table(&b, results, count);
    }
    if (b.s.json != NULL) {
        write_json(&b, results, count);
    }
    while (count > 0) {
        free(results[--count].samples);
    }
    free(b.fma_gflop_s);
    free(b.read_gb_s);
    free(b.tokens);
    free(b.logits);
    for (int64_t i = 0; i < b.s.batch; i++) {
        rie_free(b.sessions[i]);
    }
    free(b.sessions);
    free(b.statuses);
    free(b.next);
    rie_free(b.model);
    rie_free(b.error);
    return EXIT_SUCCESS;
}
