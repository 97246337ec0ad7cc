/* Threads: cancelling from another one, a second call at once, sessions side by side.
 *
 *     threads MODEL       (small, so that what is slow here is slow for its length alone)
 */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

static rie_model *model;
static size_t vocab;

enum { LONG = 40000 };

struct job {
    rie_session *session;
    atomic_int done;
    rie_status status;
};

static void *evaluate(void *argument) {
    struct job *job = argument;
    do { /* the other thread, which asks for facts, may have the session for a moment */
        job->status = rie_session_eval(job->session, 0, NULL);
    } while (job->status == RIE_ERR_BUSY);
    atomic_store(&job->done, 1);
    return NULL;
}

static rie_session *long_session(rie_error *error) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    rie_token *tokens = allocate(LONG * sizeof *tokens);
    for (size_t i = 0; i < LONG; i++) {
        tokens[i] = (rie_token)(i * 7 % vocab);
    }
    NEED(rie_options_set_int(options, RIE_OPT_CONTEXT, LONG + 10, error), error);
    NEED(rie_options_set_int(options, RIE_OPT_CHUNK, 64, error), error);
    NEED(rie_session_new(model, options, &session, error), error);
    NEED(rie_session_append(session, tokens, LONG, error), error);
    free(tokens);
    rie_free(options);
    return session;
}

/* What the session holds now is right: a fresh one gives the same bits. */
static void expect_sound(rie_session *session, rie_error *error) {
    enum { MOST = 200 };
    const int64_t evaluated = info(session, RIE_INFO_EVALUATED);
    const size_t keep = evaluated < MOST ? (size_t)evaluated : MOST;
    rie_token tokens[MOST], next = -1;
    size_t n = 0;
    rie_session *fresh = NULL;
    rie_options *options = rie_options_new();
    EXPECT(keep > 0);
    NEED(rie_session_truncate(session, keep, error), error);
    NEED(rie_session_tokens(session, tokens, MOST, &n, error), error);
    NEED(rie_options_set_int(options, RIE_OPT_SHARE_PREFIXES, 0, error), error); /* it computes everything itself */
    NEED(rie_session_new(model, options, &fresh, error), error);
    NEED(rie_session_append(fresh, tokens, n, error), error);
    float *a = logits(session, vocab, error), *b = logits(fresh, vocab, error);
    EXPECT(same_bits(a, b, vocab));
    EXPECT(rie_decode_step(session, NULL, &next, error) >= 0 && next >= 0);
    free(a);
    free(b);
    rie_free(options);
    rie_free(fresh);
}

/* While one thread evaluates, every other call on the session is refused, except to cancel; then all is well. */
static void busy_and_cancelled(rie_error *error) {
    struct job job = {long_session(error), 0, RIE_OK};
    rie_session *const session = job.session;
    const rie_token one = 1;
    rie_token token = -7;
    float *values = allocate(vocab * sizeof *values);
    int64_t number = -7;
    int busy = 0;
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, evaluate, &job) == 0);
    while (!busy && !atomic_load(&job.done)) {
        busy = rie_get_int(session, RIE_INFO_TOKENS, &number, error) == RIE_ERR_BUSY;
    }
    EXPECT(busy);
    if (busy) {
        EXPECT_STATUS(rie_session_append(session, &one, 1, error), RIE_ERR_BUSY, error, "session");
        EXPECT_STATUS(rie_session_eval(session, 1, error), RIE_ERR_BUSY, error, "session");
        EXPECT_STATUS(rie_session_logits(session, values, vocab, error), RIE_ERR_BUSY, error, "session");
        EXPECT_STATUS(rie_session_truncate(session, 0, error), RIE_ERR_BUSY, error, "session");
        EXPECT_STATUS(rie_decode_step(session, NULL, &token, error), RIE_ERR_BUSY, error, "session");
    }
    EXPECT_STATUS(rie_session_cancel(session, 1, error), RIE_OK, error, NULL);
    pthread_join(thread, NULL);
    EXPECT(job.status == RIE_ERR_CANCELLED && token == -7);
    EXPECT(info(session, RIE_INFO_TOKENS) == LONG && info(session, RIE_INFO_EVALUATED) < LONG);

    /* It stays cancelled until it is taken back. */
    EXPECT_STATUS(rie_session_eval(session, 1, error), RIE_ERR_CANCELLED, error, "");
    EXPECT_STATUS(rie_decode_step(session, NULL, &token, error), RIE_ERR_CANCELLED, error, "");
    EXPECT_STATUS(rie_session_cancel(session, 0, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_session_eval(session, 1, error), RIE_PENDING, error, NULL);
    expect_sound(session, error);
    free(values);
    rie_free(session);
}

/* A session that is freed while a call runs ends with the call. */
static void freed_during_a_call(rie_error *error) {
    struct job job = {long_session(error), 0, RIE_OK};
    rie_session *const session = job.session;
    int64_t number = -7;
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, evaluate, &job) == 0);
    while (rie_get_int(session, RIE_INFO_TOKENS, &number, error) != RIE_ERR_BUSY && !atomic_load(&job.done)) {
    }
    EXPECT_STATUS(rie_session_cancel(session, 1, error), RIE_OK, error, NULL);
    rie_free(session);
    EXPECT_STATUS(rie_session_eval(session, 1, error), RIE_ERR_HANDLE, error, "freed");
    pthread_join(thread, NULL);
    EXPECT(job.status == RIE_ERR_CANCELLED);
}

struct run {
    rie_token tokens[40];
    rie_token seed;
};

/* A session of its own, with an error object of its own. */
static void *generate(void *argument) {
    struct run *run = argument;
    rie_error *error = rie_error_new();
    rie_session *session = NULL;
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_session_append(session, &run->seed, 1, error), error);
    for (size_t i = 0; i < sizeof run->tokens / sizeof run->tokens[0]; i++) {
        if (rie_decode_step(session, NULL, &run->tokens[i], error) == RIE_END) {
            NEED(rie_session_append(session, &run->tokens[i], 1, error), error);
        }
    }
    rie_free(session);
    rie_free(error);
    return NULL;
}

static void sessions_side_by_side(void) {
    enum { THREADS = 4 };
    struct run alone[THREADS], together[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        alone[i].seed = together[i].seed = 10 + i;
        generate(&alone[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, generate, &together[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(memcmp(alone[i].tokens, together[i].tokens, sizeof alone[i].tokens) == 0);
    }
}

static int32_t cancel_load(void *userdata, uint64_t done, uint64_t total) {
    EXPECT(done <= total);
    return ++*(int *)userdata == 2;
}

static void cancelled_load(const char *path, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_model *none = NULL;
    int calls = 0;
    NEED(rie_options_set_progress(options, cancel_load, &calls, error), error);
    EXPECT_STATUS(rie_model_load(path, options, &none, error), RIE_ERR_CANCELLED, error, "");
    EXPECT(none == NULL && calls == 2);
    rie_free(options);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        puts("usage: threads MODEL");
        return 2;
    }
    rie_error *error = rie_error_new();
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    busy_and_cancelled(error);
    freed_during_a_call(error);
    sessions_side_by_side();
    cancelled_load(argv[1], error);
    rie_free(model);
    rie_free(error);
    return result();
}
