/* Wrong values through the ABI: each a clear status and message; a failed call leaves the session as it was.
 *
 *     bad_input MODEL         (a model with a byte-level tokenizer)
 */
#include <limits.h>
#include <math.h>

#include "check.h"

#define BAD RIE_ERR_INVALID_ARGUMENT

static rie_error *error;
static rie_model *model;
static size_t vocab;

static rie_session *new_session(int64_t context) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    NEED(rie_options_set_int(options, RIE_OPT_CONTEXT, context, error), error);
    NEED(rie_session_new(model, options, &session, error), error);
    rie_free(options);
    return session;
}

static void paths(const char *path) {
    char buf[8];
    size_t len = 0;
    rie_model *none = NULL;
    EXPECT_STATUS(rie_model_load("/no/such/model", NULL, &none, error), RIE_ERR_IO, error, "/no/such/model");
    EXPECT_STATUS(rie_model_load("bad\xFFpath", NULL, &none, error), RIE_ERR_UTF8, error, "path");
    EXPECT_STATUS(rie_model_load("", NULL, &none, error), RIE_ERR_INVALID_ARGUMENT, error, "an empty text");
    EXPECT_STATUS(rie_model_load("/dev/null", NULL, &none, error), RIE_ERR_FORMAT, error, "/dev/null");
    EXPECT_STATUS(rie_model_load("/usr", NULL, &none, error), RIE_ERR_IO, error, "/usr");
    EXPECT_STATUS(rie_inspect("/no/such/model", NULL, buf, sizeof buf, &len, error), RIE_ERR_IO, error, "/no/such/model");
    EXPECT_STATUS(rie_inspect("bad\xFFpath", NULL, buf, sizeof buf, &len, error), RIE_ERR_UTF8, error, "path");
    EXPECT_STATUS(rie_inspect("", NULL, buf, sizeof buf, &len, error), RIE_ERR_INVALID_ARGUMENT, error, "an empty text");

    rie_options *options = rie_options_new();
    NEED(rie_options_set_str(options, RIE_OPT_TOKENIZER_PATH, "/no/such/tokenizer.json", error), error);
    EXPECT_STATUS(rie_model_load(path, options, &none, error), RIE_ERR_IO, error, "/no/such/tokenizer.json");
    rie_free(options);
    options = rie_options_new();
    NEED(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, "/no/such/config.json", error), error);
    EXPECT_STATUS(rie_model_load(path, options, &none, error), RIE_ERR_IO, error, "/no/such/config.json");
    rie_free(options);
    EXPECT(none == NULL);
}

/* An int option's value is refused when it is set or when it is used. */
static void int_option(int32_t key, int64_t value, rie_status status, const char *word) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    rie_sampler *sampler = NULL;
    rie_status found = rie_options_set_int(options, key, value, error);
    if (found == RIE_OK) {
        found = key == RIE_OPT_TOP_K ? rie_sampler_new(options, &sampler, error)
                                     : rie_session_new(model, options, &session, error);
    }
    EXPECT_STATUS(found, status, error, word);
    EXPECT(session == NULL && sampler == NULL);
    rie_free(options);
}

static void float_option(int32_t key, double value, const char *word) {
    rie_options *options = rie_options_new();
    rie_sampler *sampler = NULL;
    rie_status found = rie_options_set_float(options, key, value, error);
    if (found == RIE_OK) {
        found = rie_sampler_new(options, &sampler, error);
    }
    EXPECT_STATUS(found, BAD, error, word);
    EXPECT(sampler == NULL);
    rie_free(options);
}

static void options(void) {
    const double nan_value = (double)NAN, infinite = (double)INFINITY;
    int_option(9999, 1, RIE_ERR_UNSUPPORTED, "9999");
    int_option(RIE_OPT_TOP_P, 1, BAD, "rie_options_set_float");
    int_option(RIE_OPT_THREADS, -1, BAD, "-1");
    int_option(RIE_OPT_ISA, 77, BAD, "77");
    int_option(RIE_OPT_CONTEXT, -1, BAD, "-1");
    int_option(RIE_OPT_KV_TYPE, 99, BAD, "99");
    int_option(RIE_OPT_CHUNK, -5, BAD, "-5");
    int_option(RIE_OPT_CHUNK, INT64_MAX, BAD, "9223372036854775807");
    int_option(RIE_OPT_PROFILE, 2, BAD, "2");
    int_option(RIE_OPT_TOP_K, -1, BAD, "-1");
    float_option(RIE_OPT_TEMPERATURE, -0.5, "-0.5");
    float_option(RIE_OPT_TEMPERATURE, nan_value, "NaN");
    float_option(RIE_OPT_TEMPERATURE, infinite, "inf");
    float_option(RIE_OPT_TOP_P, 0, "0");
    float_option(RIE_OPT_TOP_P, 1.5, "1.5");
    float_option(RIE_OPT_MIN_P, -1, "-1");
    float_option(RIE_OPT_MIN_P, 2, "2");
    float_option(RIE_OPT_REPETITION_PENALTY, 0, "0");
    float_option(RIE_OPT_PRESENCE_PENALTY, nan_value, "NaN");
    float_option(RIE_OPT_FREQUENCY_PENALTY, infinite, "inf");
    rie_options *o = rie_options_new();
    EXPECT_STATUS(rie_options_set_float(o, 9999, 1, error), RIE_ERR_UNSUPPORTED, error, "9999");
    EXPECT_STATUS(rie_options_set_str(o, 9999, "x", error), RIE_ERR_UNSUPPORTED, error, "9999");
    EXPECT_STATUS(rie_options_set_str(o, RIE_OPT_CONFIG_PATH, "\xC3(", error), RIE_ERR_UTF8, error, "value");
    rie_free(o);
}

static void info_keys(rie_session *session) {
    int64_t value = 7;
    size_t len = 7;
    char buf[64];
    EXPECT_STATUS(rie_get_int(model, 9999, &value, error), RIE_ERR_UNSUPPORTED, error, "key");
    EXPECT_STATUS(rie_get_int(session, RIE_INFO_SEED, &value, error), RIE_ERR_UNSUPPORTED, error, "session");
    EXPECT_STATUS(rie_get_int(NULL, RIE_INFO_LAYERS, &value, error), RIE_ERR_UNSUPPORTED, error, "key");
    EXPECT_STATUS(rie_get_str(session, RIE_INFO_LAYERS, buf, sizeof buf, &len, error), RIE_ERR_UNSUPPORTED, error, "session");
    EXPECT_STATUS(rie_get_int(model, RIE_INFO_MODEL_TYPE, &value, error), RIE_ERR_UNSUPPORTED, error, "key");
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_LAYERS, buf, sizeof buf, &len, error), RIE_ERR_UNSUPPORTED, error, "key");
    EXPECT(value == 7 && len == 7);
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_MODEL_TYPE, NULL, 0, &len, error), RIE_ERR_BUFFER_TOO_SMALL, error, "5");
    EXPECT(len == 5);
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_MODEL_TYPE, buf, 4, &len, error), RIE_ERR_BUFFER_TOO_SMALL, error, "5");
    EXPECT(len == 5);
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_MODEL_TYPE, buf, 5, &len, error), RIE_OK, error, NULL);
    EXPECT(len == 5 && memcmp(buf, "llama", 5) == 0);
    memset(buf, 0, sizeof buf);
    EXPECT_STATUS(rie_get_str(session, RIE_INFO_MODEL_TYPE, buf, sizeof buf, &len, error), RIE_OK, error, NULL);
    EXPECT(len == 5 && memcmp(buf, "llama", 5) == 0); /* of its model */
}

static void invalid_utf8(void) {
    static const struct {
        const char *text;
        const char *at;
    } cases[] = {{"\xFF", "byte 0"},          {"ab\x80", "byte 2"},     {"\xC3", "byte 0"},
                 {"x\xE2\x82", "byte 1"},     {"\xC0\xAF", "byte 0"},   {"\xED\xA0\x80", "byte 0"},
                 {"\xF5\x80\x80\x80", "byte 0"}};
    rie_token tokens[16];
    size_t n = 7;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text;
        EXPECT_STATUS(rie_tokenize(model, text, strlen(text), 0, tokens, 16, &n, error), RIE_ERR_UTF8, error,
                      cases[i].at);
    }
    EXPECT(n == 7);
    EXPECT_STATUS(rie_tokenize(model, "a", 1, 0x80000000u, tokens, 16, &n, error), BAD, error, "flags");
    EXPECT_STATUS(rie_detokenize(model, tokens, 0, 0x80000000u, NULL, 0, &n, error), BAD, error, "flags");
}

/* Text is counted: a NUL inside is a character like any other, and comes back. */
static void nul_inside_text(void) {
    static const char text[] = "a\0b";
    rie_token tokens[8];
    char back[8];
    size_t n = 0, len = 0;
    EXPECT_STATUS(rie_tokenize(model, text, 3, 0, tokens, 8, &n, error), RIE_OK, error, NULL);
    EXPECT(n == 3);
    EXPECT_STATUS(rie_detokenize(model, tokens, n, 0, back, sizeof back, &len, error), RIE_OK, error, NULL);
    EXPECT(len == 3 && memcmp(back, text, 3) == 0);
}

/* Too small a buffer: the size is reported, nothing is written beyond it, and the call can be made again. */
static void small_buffers(rie_session *session) {
    rie_token tokens[8] = {-9, -9, -9, -9}, all[8];
    char buf[8] = "........";
    size_t n = 0, len = 0;
    for (size_t cap = 0; cap < 5; cap++) {
        n = 0;
        EXPECT_STATUS(rie_tokenize(model, "hello", 5, 0, cap > 0 ? tokens : NULL, cap, &n, error),
                      RIE_ERR_BUFFER_TOO_SMALL, error, "5");
        EXPECT(n == 5 && tokens[cap] == (cap < 4 ? -9 : 0));
    }
    EXPECT_STATUS(rie_tokenize(model, "hello", 5, 0, all, 8, &n, error), RIE_OK, error, NULL);
    for (size_t cap = 0; cap < 5; cap++) {
        len = 0;
        EXPECT_STATUS(rie_detokenize(model, all, 5, 0, cap > 0 ? buf : NULL, cap, &len, error),
                      RIE_ERR_BUFFER_TOO_SMALL, error, "5");
        EXPECT(len == 5 && buf[cap] == '.');
    }
    rie_text_stream *stream = NULL;
    NEED(rie_text_stream_new(model, 0, &stream, error), error);
    EXPECT_STATUS(rie_text_stream_push(stream, all[0], NULL, 0, &len, error), RIE_ERR_BUFFER_TOO_SMALL, error, "1");
    EXPECT(len == 1);
    EXPECT_STATUS(rie_text_stream_push(stream, all[0], buf, 1, &len, error), RIE_OK, error, NULL);
    EXPECT(len == 1 && buf[0] == 'h' && buf[1] == '.');
    rie_free(stream);

    float one = 7;
    EXPECT_STATUS(rie_session_logits(session, NULL, 0, error), RIE_ERR_BUFFER_TOO_SMALL, error, "");
    EXPECT_STATUS(rie_session_logits(session, &one, 1, error), RIE_ERR_BUFFER_TOO_SMALL, error, "");
    EXPECT(one == 7);
    EXPECT_STATUS(rie_session_tokens(session, tokens, 1, &n, error), RIE_ERR_BUFFER_TOO_SMALL, error, "");
    EXPECT(n == (size_t)info(session, RIE_INFO_TOKENS));
}

static void token_ids(rie_session *session) {
    const rie_token size = (rie_token)vocab, bad[] = {-1, -2, INT32_MIN, size, size + 1, INT32_MAX};
    float logprobs[3] = {7, 7, 7};
    char buf[64];
    size_t len = 7;
    rie_text_stream *stream = NULL;
    rie_sampler *sampler = NULL;
    NEED(rie_text_stream_new(model, 0, &stream, error), error);
    NEED(rie_sampler_new(NULL, &sampler, error), error);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const rie_token tokens[] = {72, 101, bad[i]};
        char word[16];
        snprintf(word, sizeof word, "%d", (int)bad[i]);
        EXPECT_STATUS(rie_session_append(session, tokens, 3, error), RIE_ERR_TOKEN, error, word);
        EXPECT_STATUS(rie_session_score(session, tokens, 3, logprobs, error), RIE_ERR_TOKEN, error, word);
        EXPECT_STATUS(rie_detokenize(model, tokens, 3, 0, buf, sizeof buf, &len, error), RIE_ERR_TOKEN, error, word);
        if (bad[i] != -1) { /* -1 flushes */
            EXPECT_STATUS(rie_text_stream_push(stream, bad[i], buf, sizeof buf, &len, error), RIE_ERR_TOKEN, error, word);
        }
        /* A sampler knows no vocabulary until it is used; a negative id can never be one. */
        if (bad[i] < 0) {
            EXPECT_STATUS(rie_sampler_set_bias(sampler, bad[i], 1, error), RIE_ERR_TOKEN, error, word);
        }
    }
    EXPECT(len == 7 && logprobs[0] == 7);
    EXPECT_STATUS(rie_sampler_set_bias(sampler, 1, NAN, error), BAD, error, "NaN");
    rie_free(sampler);
    rie_free(stream);
}

static void nothing_to_evaluate(void) {
    rie_session *session = new_session(0);
    const rie_token prompt[] = {72, 101};
    rie_token token = 7;
    float *values = allocate(vocab * sizeof *values), logprob = 7;
    EXPECT_STATUS(rie_decode_step(session, NULL, &token, error), RIE_ERR_STATE, error, "");
    EXPECT_STATUS(rie_session_logits(session, values, vocab, error), RIE_ERR_STATE, error, "");
    EXPECT_STATUS(rie_session_score(session, prompt, 1, &logprob, error), RIE_ERR_STATE, error, "");
    EXPECT_STATUS(rie_session_eval(session, 0, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_session_append(session, NULL, 0, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_session_truncate(session, 1, error), BAD, error, "1");
    EXPECT(token == 7 && logprob == 7 && info(session, RIE_INFO_TOKENS) == 0);
    EXPECT_STATUS(rie_session_append(session, prompt, 2, error), RIE_OK, error, NULL);
    EXPECT(rie_decode_step(session, NULL, &token, error) >= 0);
    free(values);
    rie_free(session);
}

static void context_exceeded(void) {
    rie_session *session = new_session(6);
    const rie_token prompt[] = {72, 101, 108, 108, 111, 32, 119};
    rie_token token = 7;
    rie_status status = RIE_OK;
    float logprobs[7] = {7};
    EXPECT(info(session, RIE_INFO_CONTEXT) == 6);
    EXPECT_STATUS(rie_session_append(session, prompt, 7, error), RIE_ERR_CONTEXT_FULL, error, "6");
    EXPECT(info(session, RIE_INFO_TOKENS) == 0);
    EXPECT_STATUS(rie_session_append(session, prompt, 5, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_session_append(session, prompt, 2, error), RIE_ERR_CONTEXT_FULL, error, "6");
    EXPECT(info(session, RIE_INFO_TOKENS) == 5);
    EXPECT_STATUS(rie_session_score(session, prompt, 7, logprobs, error), RIE_ERR_CONTEXT_FULL, error, "6");
    EXPECT_STATUS(rie_session_append(session, prompt, 1, error), RIE_OK, error, NULL);
    float *before = logits(session, vocab, error);
    status = rie_decode_step(session, NULL, &token, error);
    EXPECT_STATUS(status, RIE_ERR_CONTEXT_FULL, error, "6");
    float *after = logits(session, vocab, error);
    EXPECT(token == 7 && info(session, RIE_INFO_TOKENS) == 6 && same_bits(before, after, vocab));
    EXPECT_STATUS(rie_session_truncate(session, 5, error), RIE_OK, error, NULL);
    EXPECT(rie_decode_step(session, NULL, &token, error) >= 0 && token != 7);
    free(before);
    free(after);
    rie_free(session);
}

/* A huge context costs nothing until it is used. */
static void huge_context(void) {
    rie_session *session = new_session(INT32_MAX);
    const rie_token prompt[] = {72, 101};
    rie_token token = -7;
    EXPECT(info(session, RIE_INFO_CONTEXT) == INT32_MAX);
    EXPECT_STATUS(rie_session_append(session, prompt, 2, error), RIE_OK, error, NULL);
    EXPECT(rie_decode_step(session, NULL, &token, error) >= 0 && token >= 0);
    EXPECT(info(session, RIE_INFO_KV_BYTES) < 1000000);
    rie_free(session);
}

/* No token left to choose is an error, and the random stream stays where it was. */
static void everything_forbidden(rie_session *session) {
    rie_sampler *sampler = NULL;
    rie_token token = 7;
    NEED(rie_sampler_new(NULL, &sampler, error), error);
    for (size_t i = 0; i < vocab; i++) {
        NEED(rie_sampler_set_bias(sampler, (rie_token)i, -INFINITY, error), error);
    }
    EXPECT_STATUS(rie_decode_step(session, sampler, &token, error), RIE_ERR_NUMERIC, error, "");
    EXPECT(token == 7);
    rie_free(sampler);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        puts("usage: bad_input MODEL");
        return 2;
    }
    const rie_token prompt[] = {72, 101, 108};
    error = rie_error_new();
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    rie_session *session = new_session(0);
    NEED(rie_session_append(session, prompt, 3, error), error);
    float *before = logits(session, vocab, error);

    paths(argv[1]);
    options();
    info_keys(session);
    invalid_utf8();
    nul_inside_text();
    small_buffers(session);
    token_ids(session);
    nothing_to_evaluate();
    context_exceeded();
    huge_context();
    everything_forbidden(session);

    float *after = logits(session, vocab, error);
    EXPECT(same_bits(before, after, vocab));
    EXPECT(info(session, RIE_INFO_TOKENS) == 3 && info(session, RIE_INFO_EVALUATED) == 3);
    free(before);
    free(after);
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return result();
}
