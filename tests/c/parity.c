/* Gives a test the library's results through the ABI, bit by bit.
 *
 *     parity MODEL [--threads N] [--isa auto|scalar] [--chunk N] [--kv f32|f16]
 *                  [--weights as-is|int8|int4]
 *
 * Requests come on stdin, one a line; each runs in a session of its own:
 *
 *     greedy STEPS ID...     greedy continuation, going on through an end-of-generation token. Answers three lines:
 *                            "ids ID...", "first HEX..." and "last HEX...": the logits before and after the steps
 *     score ID...            answers "logprobs HEX..." of all ids but the first
 *     text HEX               tokenizes these bytes; answers "ids ID..."
 *
 * A float is printed as the eight hex digits of its bits.
 */
#include <inttypes.h>

#include "check.h"

static rie_error *error;

struct request {
    rie_token *ids;
    size_t count;
};

static void print_bits(const char *name, const float *values, size_t n) {
    fputs(name, stdout);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        printf(" %08" PRIx32, bits);
    }
    putchar('\n');
}

static void print_ids(const rie_token *ids, size_t n) {
    fputs("ids", stdout);
    for (size_t i = 0; i < n; i++) {
        printf(" %" PRId32, ids[i]);
    }
    putchar('\n');
}

static struct request parse_ids(const char *text) {
    struct request r = {allocate((strlen(text) + 1) * sizeof(rie_token)), 0};
    char *end = NULL;
    for (long id = strtol(text, &end, 10); end != text; id = strtol(text, &end, 10)) {
        r.ids[r.count++] = (rie_token)id;
        text = end;
    }
    return r;
}

static void run_greedy(rie_session *session, size_t vocab, const char *text) {
    char *end = NULL;
    const size_t steps = (size_t)strtol(text, &end, 10);
    struct request prompt = parse_ids(end);
    rie_token *ids = allocate(steps * sizeof *ids);
    NEED(rie_session_append(session, prompt.ids, prompt.count, error), error);
    float *first = logits(session, vocab, error);
    for (size_t i = 0; i < steps; i++) {
        rie_status status = rie_decode_step(session, NULL, &ids[i], error);
        NEED(status, error);
        if (status == RIE_END) {
            NEED(rie_session_append(session, &ids[i], 1, error), error);
        }
    }
    float *last = logits(session, vocab, error);
    print_ids(ids, steps);
    print_bits("first", first, vocab);
    print_bits("last", last, vocab);
    free(first);
    free(last);
    free(ids);
    free(prompt.ids);
}

static void run_score(rie_session *session, const char *text) {
    struct request r = parse_ids(text);
    if (r.count > 0) {
        float *logprobs = allocate(r.count * sizeof *logprobs);
        NEED(rie_session_append(session, r.ids, 1, error), error);
        NEED(rie_session_score(session, r.ids + 1, r.count - 1, logprobs, error), error);
        print_bits("logprobs", logprobs, r.count - 1);
        free(logprobs);
    }
    free(r.ids);
}

static void run_text(const rie_model *model, const char *hex) {
    const size_t n = strlen(hex) / 2;
    char *text = allocate(n);
    for (size_t i = 0; i < n; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        text[i] = (char)strtol(digits, NULL, 16);
    }
    rie_token *ids = allocate((n + 16) * sizeof *ids);
    size_t count = 0;
    NEED(rie_tokenize(model, text, n, RIE_TEXT_PARSE_SPECIAL, ids, n + 16, &count, error), error);
    print_ids(ids, count);
    free(ids);
    free(text);
}

/* Sets one option of the command line on `options`. */
static void set_option(rie_options *options, const char *name, const char *value) {
    if (strcmp(name, "--threads") == 0) {
        NEED(rie_options_set_int(options, RIE_OPT_THREADS, atol(value), error), error);
    } else if (strcmp(name, "--chunk") == 0) {
        NEED(rie_options_set_int(options, RIE_OPT_CHUNK, atol(value), error), error);
    } else if (strcmp(name, "--kv") == 0) {
        const int32_t type = strcmp(value, "f16") == 0 ? RIE_DTYPE_F16 : RIE_DTYPE_F32;
        NEED(rie_options_set_int(options, RIE_OPT_KV_TYPE, type, error), error);
    } else if (strcmp(name, "--weights") == 0) {
        const int32_t weights = strcmp(value, "int4") == 0   ? RIE_WEIGHTS_INT4
                                : strcmp(value, "int8") == 0 ? RIE_WEIGHTS_INT8
                                                             : RIE_WEIGHTS_AS_IS;
        NEED(rie_options_set_int(options, RIE_OPT_WEIGHTS, weights, error), error);
    } else if (strcmp(name, "--isa") == 0) {
        const int32_t isa = strcmp(value, "scalar") == 0 ? RIE_ISA_SCALAR : RIE_ISA_AUTO;
        NEED(rie_options_set_int(options, RIE_OPT_ISA, isa, error), error);
    } else {
        printf("unknown option %s\n", name);
        exit(2);
    }
}

static void run_request(const rie_model *model, const rie_options *options, const char *line) {
    rie_session *session = NULL;
    NEED(rie_session_new(model, options, &session, error), error);
    const size_t vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    if (strncmp(line, "greedy ", 7) == 0) {
        run_greedy(session, vocab, line + 7);
    } else if (strncmp(line, "score ", 6) == 0) {
        run_score(session, line + 6);
    } else if (strncmp(line, "text ", 5) == 0) {
        run_text(model, line + 5);
    } else {
        printf("unknown request: %s\n", line);
        exit(2);
    }
    rie_free(session);
}

int main(int argc, char **argv) {
    if (argc % 2 != 0) {
        puts("usage: parity MODEL [--option value]... < requests");
        return 2;
    }
    error = rie_error_new();
    rie_options *options = rie_options_new();
    for (int i = 2; i < argc; i += 2) {
        set_option(options, argv[i], argv[i + 1]);
    }
    rie_model *model = NULL;
    NEED(rie_model_load(argv[1], options, &model, error), error);
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n = getline(&line, &cap, stdin); n > 0; n = getline(&line, &cap, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        run_request(model, options, line);
    }
    free(line);
    rie_free(model);
    rie_free(options);
    rie_free(error);
    return failures == 0 ? 0 : 1;
}
