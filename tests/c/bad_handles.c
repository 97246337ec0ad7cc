/* NULL for each pointer, and freed, foreign, and wrong handles: each a clear status and message, and nothing changes.
 *
 *     bad_handles MODEL       (a model with a tokenizer)
 */
#include "check.h"

#define BAD RIE_ERR_INVALID_ARGUMENT

static rie_error *error;
static rie_options *options;
static rie_model *model;
static rie_session *session;
static rie_sampler *sampler;
static rie_text_stream *stream;

enum kind { ERROR, OPTIONS, MODEL, SESSION, SAMPLER, STREAM, NONE };

static void setup(const char *path) {
    static const rie_token prompt[] = {72, 101, 108};
    error = rie_error_new();
    options = rie_options_new();
    EXPECT(error != NULL && options != NULL);
    NEED(rie_model_load(path, NULL, &model, error), error);
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_sampler_new(NULL, &sampler, error), error);
    NEED(rie_text_stream_new(model, 0, &stream, error), error);
    NEED(rie_session_append(session, prompt, 3, error), error);
    NEED(rie_session_eval(session, 0, error), error);
}

static void null_in_options(void) {
    EXPECT_STATUS(rie_options_set_int(NULL, RIE_OPT_THREADS, 1, error), BAD, error, "options: NULL");
    EXPECT_STATUS(rie_options_set_float(NULL, RIE_OPT_TOP_P, 1, error), BAD, error, "options: NULL");
    EXPECT_STATUS(rie_options_set_str(NULL, RIE_OPT_CONFIG_PATH, "x", error), BAD, error, "options: NULL");
    EXPECT_STATUS(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, NULL, error), BAD, error, "value: NULL");
    EXPECT_STATUS(rie_options_set_progress(NULL, NULL, NULL, error), BAD, error, "NULL");
}

static void null_in_model_calls(const char *path) {
    rie_model *other = NULL;
    char buf[8];
    size_t len = 7;
    int64_t number = 7;
    EXPECT_STATUS(rie_model_load(NULL, NULL, &other, error), BAD, error, "path: NULL");
    EXPECT_STATUS(rie_model_load(path, NULL, NULL, error), BAD, error, "out: NULL");
    EXPECT_STATUS(rie_inspect(NULL, NULL, buf, sizeof buf, &len, error), BAD, error, "path: NULL");
    EXPECT_STATUS(rie_inspect(path, NULL, NULL, 8, &len, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_inspect(path, NULL, buf, sizeof buf, NULL, error), BAD, error, "len: NULL");
    EXPECT_STATUS(rie_get_int(model, RIE_INFO_LAYERS, NULL, error), BAD, error, "NULL");
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_MODEL_TYPE, NULL, 8, &len, error), BAD, error, "NULL");
    EXPECT_STATUS(rie_get_str(model, RIE_INFO_MODEL_TYPE, buf, sizeof buf, NULL, error), BAD, error, "NULL");
    EXPECT(other == NULL && number == 7);
}

static void null_in_text_calls(void) {
    rie_text_stream *other = NULL;
    rie_token tokens[8] = {72, 101};
    char buf[8];
    size_t len = 7;
    EXPECT_STATUS(rie_tokenize(NULL, "a", 1, 0, tokens, 8, &len, error), BAD, error, "model: NULL");
    EXPECT_STATUS(rie_tokenize(model, NULL, 1, 0, tokens, 8, &len, error), BAD, error, "text: NULL");
    EXPECT_STATUS(rie_tokenize(model, "a", 1, 0, NULL, 8, &len, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_tokenize(model, "a", 1, 0, tokens, 8, NULL, error), BAD, error, "len: NULL");
    EXPECT_STATUS(rie_detokenize(NULL, tokens, 2, 0, buf, 8, &len, error), BAD, error, "model: NULL");
    EXPECT_STATUS(rie_detokenize(model, NULL, 2, 0, buf, 8, &len, error), BAD, error, "tokens: NULL");
    EXPECT_STATUS(rie_detokenize(model, tokens, 2, 0, NULL, 8, &len, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_detokenize(model, tokens, 2, 0, buf, 8, NULL, error), BAD, error, "len: NULL");
    EXPECT_STATUS(rie_text_stream_new(NULL, 0, &other, error), BAD, error, "model: NULL");
    EXPECT_STATUS(rie_text_stream_new(model, 0, NULL, error), BAD, error, "out: NULL");
    EXPECT_STATUS(rie_text_stream_push(NULL, 72, buf, 8, &len, error), BAD, error, "stream: NULL");
    EXPECT_STATUS(rie_text_stream_push(stream, 72, NULL, 8, &len, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_text_stream_push(stream, 72, buf, 8, NULL, error), BAD, error, "len: NULL");
    EXPECT(other == NULL && tokens[0] == 72);
}

static void null_in_session_calls(void) {
    rie_session *other = NULL;
    rie_token tokens[8] = {72, 101};
    float floats[8];
    size_t len = 7;
    EXPECT_STATUS(rie_session_new(NULL, NULL, &other, error), BAD, error, "model: NULL");
    EXPECT_STATUS(rie_session_new(model, NULL, NULL, error), BAD, error, "out: NULL");
    EXPECT_STATUS(rie_session_append(NULL, tokens, 2, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_append(session, NULL, 2, error), BAD, error, "tokens: NULL");
    EXPECT_STATUS(rie_session_eval(NULL, 0, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_logits(NULL, floats, 8, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_logits(session, NULL, 8, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_session_score(NULL, tokens, 2, floats, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_score(session, NULL, 2, floats, error), BAD, error, "tokens: NULL");
    EXPECT_STATUS(rie_session_score(session, tokens, 2, NULL, error), BAD, error, "logprobs: NULL");
    EXPECT_STATUS(rie_session_tokens(NULL, tokens, 8, &len, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_tokens(session, NULL, 8, &len, error), BAD, error, "buf: NULL");
    EXPECT_STATUS(rie_session_tokens(session, tokens, 8, NULL, error), BAD, error, "len: NULL");
    EXPECT_STATUS(rie_session_truncate(NULL, 0, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_session_cancel(NULL, 1, error), BAD, error, "session: NULL");
    EXPECT(other == NULL && tokens[0] == 72 && len == 7);
}

static void null_in_sampling_calls(void) {
    rie_token token = 7;
    EXPECT_STATUS(rie_sampler_new(NULL, NULL, error), BAD, error, "out: NULL");
    EXPECT_STATUS(rie_sampler_set_bias(NULL, 1, 1, error), BAD, error, "sampler: NULL");
    EXPECT_STATUS(rie_decode_step(NULL, NULL, &token, error), BAD, error, "session: NULL");
    EXPECT_STATUS(rie_decode_step(session, NULL, NULL, error), BAD, error, "out: NULL");
    EXPECT(token == 7);
}

/* Counts that no object can have, and pointers that their type cannot have: refused before anything is touched. */
static void impossible_arrays(void) {
    rie_token tokens[4] = {72, 101};
    float floats[4];
    char buf[8];
    size_t len = 7;
    const rie_token *crooked = (const rie_token *)(const void *)((const char *)tokens + 1);
    EXPECT_STATUS(rie_session_append(session, tokens, SIZE_MAX, error), BAD, error, "tokens");
    EXPECT_STATUS(rie_session_append(session, tokens, SIZE_MAX / 4, error), BAD, error, "tokens");
    EXPECT_STATUS(rie_session_append(session, crooked, 1, error), BAD, error, "tokens");
    EXPECT_STATUS(rie_session_score(session, tokens, SIZE_MAX, floats, error), BAD, error, "tokens");
    EXPECT_STATUS(rie_session_logits(session, floats, SIZE_MAX, error), BAD, error, "buf");
    EXPECT_STATUS(rie_tokenize(model, "a", SIZE_MAX, 0, tokens, 4, &len, error), BAD, error, "text");
    EXPECT_STATUS(rie_tokenize(model, "a", 1, 0, tokens, SIZE_MAX, &len, error), BAD, error, "buf");
    EXPECT_STATUS(rie_detokenize(model, tokens, SIZE_MAX, 0, buf, 8, &len, error), BAD, error, "tokens");
    EXPECT_STATUS(rie_text_stream_push(stream, 72, buf, SIZE_MAX, &len, error), BAD, error, "buf");
    EXPECT(len == 7 && tokens[0] == 72);
}

/* Where NULL is allowed, it is harmless. */
static void null_where_it_is_fine(void) {
    size_t len = 7;
    rie_free(NULL);
    EXPECT(strcmp(rie_error_message(NULL), "") == 0 && rie_error_status(NULL) == BAD);
    EXPECT_CODE(rie_session_append(session, NULL, 0, NULL), RIE_OK);
    EXPECT_CODE(rie_session_truncate(NULL, 0, NULL), BAD);
    EXPECT_CODE(rie_tokenize(model, NULL, 0, 0, NULL, 0, &len, NULL), RIE_OK);
    EXPECT(len == 0);
    EXPECT_CODE(rie_detokenize(model, NULL, 0, 0, NULL, 0, &len, NULL), RIE_OK);
    EXPECT(len == 0);
    EXPECT_STATUS(rie_options_set_progress(options, NULL, NULL, error), RIE_OK, error, NULL);
    EXPECT(info(NULL, RIE_INFO_CORES) > 0);
    EXPECT(rie_status_name(-12345) != NULL && rie_status_name(12345)[0] != '\0');
}

/* Every call with `handle`, which is of `kind`, where it expects another kind. */
static void sweep(void *handle, enum kind kind, const char *word) {
    const rie_status wrong = RIE_ERR_HANDLE;
    rie_token tokens[8] = {72, 101}, token = 7;
    char buf[8];
    float floats[8];
    size_t len = 7;
    int64_t number = 7;
    rie_session *new_session = NULL;
    rie_text_stream *new_stream = NULL;
    rie_sampler *new_sampler = NULL;
    rie_model *new_model = NULL;
    if (kind != OPTIONS) {
        EXPECT_STATUS(rie_options_set_int(handle, RIE_OPT_THREADS, 1, error), wrong, error, word);
        EXPECT_STATUS(rie_options_set_float(handle, RIE_OPT_TOP_P, 1, error), wrong, error, word);
        EXPECT_STATUS(rie_options_set_str(handle, RIE_OPT_CONFIG_PATH, "x", error), wrong, error, word);
        EXPECT_STATUS(rie_options_set_progress(handle, NULL, NULL, error), wrong, error, word);
        EXPECT_STATUS(rie_model_load("/", handle, &new_model, error), wrong, error, word);
        EXPECT_STATUS(rie_inspect("/", handle, buf, 8, &len, error), wrong, error, word);
        EXPECT_STATUS(rie_session_new(model, handle, &new_session, error), wrong, error, word);
        EXPECT_STATUS(rie_sampler_new(handle, &new_sampler, error), wrong, error, word);
    }
    if (kind != MODEL) {
        EXPECT_STATUS(rie_tokenize(handle, "a", 1, 0, tokens, 8, &len, error), wrong, error, word);
        EXPECT_STATUS(rie_detokenize(handle, tokens, 2, 0, buf, 8, &len, error), wrong, error, word);
        EXPECT_STATUS(rie_text_stream_new(handle, 0, &new_stream, error), wrong, error, word);
        EXPECT_STATUS(rie_session_new(handle, NULL, &new_session, error), wrong, error, word);
    }
    if (kind != STREAM) {
        EXPECT_STATUS(rie_text_stream_push(handle, 72, buf, 8, &len, error), wrong, error, word);
    }
    if (kind != SESSION) {
        EXPECT_STATUS(rie_session_append(handle, tokens, 2, error), wrong, error, word);
        EXPECT_STATUS(rie_session_eval(handle, 0, error), wrong, error, word);
        EXPECT_STATUS(rie_session_logits(handle, floats, 8, error), wrong, error, word);
        EXPECT_STATUS(rie_session_score(handle, tokens, 2, floats, error), wrong, error, word);
        EXPECT_STATUS(rie_session_tokens(handle, tokens, 8, &len, error), wrong, error, word);
        EXPECT_STATUS(rie_session_truncate(handle, 0, error), wrong, error, word);
        EXPECT_STATUS(rie_decode_step(handle, NULL, &token, error), wrong, error, word);
        EXPECT_STATUS(rie_session_cancel(handle, 1, error), wrong, error, word);
    }
    if (kind != SAMPLER) {
        EXPECT_STATUS(rie_sampler_set_bias(handle, 1, 1, error), wrong, error, word);
        EXPECT_STATUS(rie_decode_step(session, handle, &token, error), wrong, error, word);
    }
    if (kind != ERROR) {
        EXPECT(rie_error_message(handle)[0] != '\0');
        EXPECT(rie_error_status(handle) == wrong);
        EXPECT_CODE(rie_session_append(session, tokens, 2, handle), wrong);
        EXPECT_CODE(rie_decode_step(session, NULL, &token, handle), wrong);
    }
    if (kind == NONE) {
        EXPECT_STATUS(rie_get_int(handle, RIE_INFO_LAYERS, &number, error), wrong, error, word);
        EXPECT_STATUS(rie_get_str(handle, RIE_INFO_MODEL_TYPE, buf, 8, &len, error), wrong, error, word);
    }
    EXPECT(len == 7 && number == 7 && token == 7 && tokens[0] == 72);
    EXPECT(new_session == NULL && new_stream == NULL && new_sampler == NULL && new_model == NULL);
}

static void wrong_kinds(void) {
    sweep(error, ERROR, "");
    sweep(options, OPTIONS, "options");
    sweep(model, MODEL, "model");
    sweep(session, SESSION, "session");
    sweep(sampler, SAMPLER, "sampler");
    sweep(stream, STREAM, "stream");
}

static void foreign_handles(void) {
    int here = 0;
    void *memory = allocate(64);
    void *const foreign[] = {&here, memory, (void *)(uintptr_t)1, (void *)(uintptr_t)0xFFFF, (void *)UINTPTR_MAX,
                             (char *)model + ((size_t)1 << 40), (char *)model + 1000};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        sweep(foreign[i], NONE, "not a handle");
        rie_free(foreign[i]);
    }
    free(memory);
}

static void freed_handles(const char *path) {
    rie_options *o = rie_options_new();
    rie_error *e = rie_error_new();
    rie_model *m = NULL;
    rie_session *s = NULL;
    rie_sampler *p = NULL;
    rie_text_stream *t = NULL;
    NEED(rie_model_load(path, NULL, &m, error), error);
    NEED(rie_session_new(m, NULL, &s, error), error);
    NEED(rie_sampler_new(NULL, &p, error), error);
    NEED(rie_text_stream_new(m, 0, &t, error), error);
    void *const freed[] = {e, o, m, s, p, t};
    for (size_t i = 0; i < sizeof freed / sizeof freed[0]; i++) {
        rie_free(freed[i]);
        rie_free(freed[i]); /* twice does no harm */
        sweep(freed[i], NONE, "freed");
    }
    /* A new object in the old one's place is another handle, and freeing the old one leaves it alone. */
    rie_options *again = rie_options_new();
    for (size_t i = 0; i < sizeof freed / sizeof freed[0]; i++) {
        EXPECT((void *)again != freed[i]);
        rie_free(freed[i]);
    }
    EXPECT_STATUS(rie_options_set_int(again, RIE_OPT_THREADS, 1, error), RIE_OK, error, NULL);
    rie_free(again);
}

/* A model that is freed first lives on in its session and stream. */
static void any_order_of_freeing(const char *path) {
    rie_model *m = NULL;
    rie_session *s = NULL;
    rie_text_stream *t = NULL;
    const rie_token prompt[] = {72, 101};
    rie_token token = -1;
    char buf[64];
    size_t len = 0;
    NEED(rie_model_load(path, NULL, &m, error), error);
    NEED(rie_session_new(m, NULL, &s, error), error);
    NEED(rie_text_stream_new(m, 0, &t, error), error);
    rie_free(m);
    EXPECT_STATUS(rie_session_append(s, prompt, 2, error), RIE_OK, error, NULL);
    EXPECT(rie_decode_step(s, NULL, &token, error) >= 0 && token >= 0);
    EXPECT_STATUS(rie_text_stream_push(t, 72, buf, sizeof buf, &len, error), RIE_OK, error, NULL);
    rie_free(s);
    rie_free(t);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        puts("usage: bad_handles MODEL");
        return 2;
    }
    setup(argv[1]);
    const size_t vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    float *before = logits(session, vocab, error);

    null_in_options();
    null_in_model_calls(argv[1]);
    null_in_text_calls();
    null_in_session_calls();
    null_in_sampling_calls();
    impossible_arrays();
    null_where_it_is_fine();
    wrong_kinds();
    foreign_handles();
    freed_handles(argv[1]);
    any_order_of_freeing(argv[1]);

    float *after = logits(session, vocab, error);
    EXPECT(same_bits(before, after, vocab) && info(session, RIE_INFO_TOKENS) == 3);
    free(before);
    free(after);
    rie_free(stream);
    rie_free(sampler);
    rie_free(session);
    rie_free(model);
    rie_free(options);
    rie_free(error);
    return result();
}
