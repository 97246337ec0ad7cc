/* fork() and exit() while the library works in other threads.
 *
 *     fork MODEL SMALL_MODEL
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "host.h"

static rie_model *model;
static atomic_int stop, steps;

/* Decodes until it is stopped. */
static void *decode(void *unused) {
    (void)unused;
    rie_session *session = NULL;
    rie_session_new(model, NULL, &session, NULL);
    while (!atomic_load(&stop)) {
        rie_token token = 1;
        rie_session_truncate(session, 0, NULL);
        rie_session_append(session, prompt_of_host, PROMPT_OF_HOST, NULL);
        rie_decode_step(session, NULL, &token, NULL);
        atomic_fetch_add(&steps, 1);
    }
    rie_free(session);
    return NULL;
}

/* Makes, asks and frees objects, and so takes every lock that threads share, most of the time. */
static void *churn(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        int64_t number = 0;
        rie_session *session = NULL;
        rie_free(rie_options_new());
        rie_get_int(model, RIE_INFO_VOCAB_SIZE, &number, NULL);
        rie_session_new(model, NULL, &session, NULL);
        rie_free(session);
    }
    return NULL;
}

static void start(pthread_t *threads, int n, void *(*work)(void *)) {
    atomic_store(&stop, 0);
    atomic_store(&steps, 0);
    for (int i = 0; i < n; i++) {
        EXPECT(pthread_create(&threads[i], NULL, work, NULL) == 0);
    }
    while (work == decode && atomic_load(&steps) < 2) {
        usleep(1000);
    }
}

static void end(pthread_t *threads, int n) {
    atomic_store(&stop, 1);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* The child loads and runs models of its own; the parent's model says what it is, and can be freed. */
static int child_of_a_busy_parent(const char *path, uint64_t reference, rie_session *session) {
    rie_error *error = rie_error_new();
    rie_session *mine = NULL, *fork = NULL;
    rie_token token = 1, ids[16];
    rie_status status = RIE_OK;
    size_t n = 0;
    EXPECT(load_and_generate(path, NULL, error) == reference);
    EXPECT(info(model, RIE_INFO_LAYERS) > 0);
    EXPECT_STATUS(rie_tokenize(model, "Rust is", 7, 0, ids, 16, &n, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_decode_step(session, NULL, &token, error), RIE_ERR_STATE, error, "fork()");
    EXPECT_STATUS(rie_session_append(session, prompt_of_host, 1, error), RIE_ERR_STATE, error, "fork()");
    EXPECT_STATUS(rie_session_fork(session, &fork, error), RIE_ERR_STATE, error, "fork()");
    EXPECT_STATUS(rie_decode_batch(&session, NULL, 1, &token, &status, error), RIE_OK, error, NULL);
    EXPECT(status == RIE_ERR_STATE);
    EXPECT_STATUS(rie_session_new(model, NULL, &mine, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_session_append(mine, prompt_of_host, 1, error), RIE_ERR_STATE, error, "fork()");
    rie_free(mine), rie_free(session), rie_free(model);
    EXPECT(load_and_generate(path, NULL, error) == reference);
    rie_free(error);
    return failures;
}

static void forks_of_a_busy_process(const char *path, rie_error *error) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    rie_session *session = NULL;
    const uint64_t reference = load_and_generate(path, NULL, error);
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_session_append(session, prompt_of_host, PROMPT_OF_HOST, error), error);
    NEED(rie_session_eval(session, 0, error), error);
    start(threads, THREADS, decode);
    for (int i = 0; i < 10; i++) {
        const pid_t child = fork_watched();
        if (child == 0) {
            const int failed = child_of_a_busy_parent(path, reference, session);
            fflush(stdout);
            _exit(failed);
        }
        expect_exit(child, "a child of a busy process");
    }
    end(threads, THREADS);
    rie_token token = -1;
    EXPECT_STATUS(rie_decode_step(session, NULL, &token, error), RIE_OK, error, NULL);
    EXPECT(generate(model, NULL, NULL, error) == reference);
    rie_free(session);
}

/* At whatever moment of the others the fork comes, the child finds no lock held. */
static void forks_at_any_moment(const char *small, rie_error *error) {
    enum { THREADS = 4, FORKS = 200 };
    pthread_t threads[THREADS];
    const uint64_t reference = load_and_generate(small, NULL, error);
    start(threads, THREADS, churn);
    for (int i = 0; i < FORKS; i++) {
        const pid_t child = fork_watched();
        if (child == 0) {
            rie_options *options = rie_options_new();
            int64_t number = 0;
            EXPECT(options != NULL && rie_get_int(model, RIE_INFO_LAYERS, &number, NULL) == RIE_OK);
            if (i % 10 == 0) {
                EXPECT(load_and_generate(small, NULL, NULL) == reference);
            }
            rie_free(options), rie_free(model);
            fflush(stdout);
            _exit(failures);
        }
        expect_exit(child, "a child at any moment");
    }
    end(threads, THREADS);
}

/* exit() and the end of main while other threads decode: no crash, no hang. */
static void exits_while_others_decode(const char *path) {
    enum { EXITS = 50, THREADS = 2 };
    for (int i = 0; i < EXITS; i++) {
        const pid_t child = fork_watched();
        if (child == 0) {
            pthread_t threads[THREADS];
            rie_error *error = rie_error_new();
            NEED(rie_model_load(path, NULL, &model, error), error);
            start(threads, THREADS, decode);
            usleep((useconds_t)(i * 131 % 5000));
            exit(failures);
        }
        expect_exit(child, "exit() during a decode");
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("fork MODEL SMALL_MODEL");
        return 2;
    }
    exits_while_others_decode(argv[1]); /* first: its children have nothing of the library's yet */
    rie_error *error = rie_error_new();
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    forks_of_a_busy_process(argv[1], error);
    forks_at_any_moment(argv[2], error);
    rie_free(model);
    rie_free(error);
    return result();
}
