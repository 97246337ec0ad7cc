/* The tour that every language makes, in plain C: what it prints is what the others must print.
 *
 *     tour MODEL_DIRECTORY
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rie.h"

enum { GENERATED = 32, MOST_TOKENS = 512 };

static rie_error *error;

static void check(rie_status status) {
    if (status < 0) {
        fprintf(stderr, "tour: %s: %s\n", rie_status_name(status), rie_error_message(error));
        exit(1);
    }
}

static void print_ids(const char *name, const rie_token *ids, size_t count) {
    printf("%s:", name);
    for (size_t i = 0; i < count; i++) {
        printf(" %d", (int)ids[i]);
    }
    printf("\n");
}

static int64_t get(const void *handle, int32_t key) {
    int64_t value = 0;
    check(rie_get_int(handle, key, &value, error));
    return value;
}

static rie_session *new_session(const rie_model *model, const rie_token *prompt, size_t count) {
    rie_session *session = NULL;
    check(rie_session_new(model, NULL, &session, error));
    check(rie_session_append(session, prompt, count, error));
    return session;
}

/* Takes `count` greedy tokens and prints them under `name`. */
static void generate(const char *name, rie_session *session, rie_token *ids, size_t count) {
    for (size_t i = 0; i < count; i++) {
        check(rie_decode_step(session, NULL, &ids[i], error));
    }
    print_ids(name, ids, count);
}

static void print_text(const rie_model *model, const rie_token *prompt, size_t count, const rie_token *ids) {
    rie_text_stream *stream = NULL;
    char text[1024];
    size_t length = 0;
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &stream, error));
    for (size_t i = 0; i < count; i++) { /* a token's text can depend on those before */
        check(rie_text_stream_push(stream, prompt[i], text, sizeof text, &length, error));
    }
    printf("text:");
    for (size_t i = 0; i <= GENERATED; i++) {
        check(rie_text_stream_push(stream, i < GENERATED ? ids[i] : -1, text, sizeof text, &length, error));
        printf("%.*s", (int)length, text);
    }
    printf("\n");
    rie_free(stream);
}

static void *cancel_soon(void *session) {
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    rie_session_cancel(session, 1, NULL);
    return NULL;
}

/* A prompt that takes a while, stopped by another thread in the middle of the call. */
static void interrupt(const char *path) {
    rie_options *options = rie_options_new();
    rie_model *model = NULL;
    rie_token prompt[MOST_TOKENS - 1];
    pthread_t thread;
    check(rie_options_set_int(options, RIE_OPT_ISA, RIE_ISA_SCALAR, error));
    check(rie_options_set_int(options, RIE_OPT_THREADS, 1, error));
    check(rie_model_load(path, options, &model, error));
    for (int i = 0; i < MOST_TOKENS - 1; i++) {
        prompt[i] = 1 + i;
    }
    rie_session *session = new_session(model, prompt, MOST_TOKENS - 1);
    pthread_create(&thread, NULL, cancel_soon, session);
    rie_status status = rie_session_eval(session, 0, error);
    pthread_join(thread, NULL);
    printf("interrupted: %s\n", rie_status_name(status));
    rie_free(session);
    rie_free(model);
    rie_free(options);
}

int main(int argc, char **argv) {
    const char *const greeting = "na\xc3\xafve \xf0\x9f\xa6\x80"; /* naïve and a crab */
    const char *const start = "Rust is a systems programming language that";
    rie_model *model = NULL;
    rie_token prompt[64], ids[GENERATED];
    char architecture[64];
    size_t count = 0, length = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: tour MODEL_DIRECTORY\n");
        return 2;
    }
    error = rie_error_new();

    rie_status status = rie_inspect(argv[1], NULL, NULL, 0, &length, error);
    check(status == RIE_ERR_BUFFER_TOO_SMALL ? RIE_OK : status);
    printf("inspect: %zu bytes of JSON\n", length);
    check(rie_model_load(argv[1], NULL, &model, error));
    check(rie_get_str(model, RIE_INFO_ARCHITECTURE, architecture, sizeof architecture, &length, error));
    printf("model: %.*s, %d layers, %d ids\n", (int)length, architecture, (int)get(model, RIE_INFO_LAYERS),
           (int)get(model, RIE_INFO_VOCAB_SIZE));

    check(rie_tokenize(model, greeting, strlen(greeting), 0, prompt, 64, &count, error));
    print_ids("greeting", prompt, count);
    check(rie_detokenize(model, prompt, count, 0, architecture, sizeof architecture, &length, error));
    printf("again: %.*s\n", (int)length, architecture);

    check(rie_tokenize(model, start, strlen(start), RIE_TEXT_ADD_SPECIAL, prompt, 64, &count, error));
    print_ids("prompt", prompt, count);
    rie_session *session = new_session(model, prompt, count);
    generate("ids", session, ids, GENERATED);
    print_text(model, prompt, count, ids);

    rie_session *branch = new_session(model, prompt, count), *fork = NULL, *loaded = NULL;
    generate("before", branch, ids, 5);
    check(rie_session_cancel(branch, 1, error));
    printf("cancelled: %s\n", rie_status_name(rie_decode_step(branch, NULL, ids, error)));
    check(rie_session_cancel(branch, 0, error));
    generate("resumed", branch, ids, 3);
    interrupt(argv[1]);

    static uint8_t saved[1 << 20];
    check(rie_session_save(branch, saved, sizeof saved, &length, error));
    check(rie_session_fork(branch, &fork, error));
    generate("fork", fork, ids, 4);
    check(rie_session_new(model, NULL, &loaded, error));
    check(rie_session_load(loaded, saved, length, error));
    generate("loaded", loaded, ids, 4);

    rie_model *none = NULL;
    status = rie_model_load("/no/such/mod\xc3\xa8le", NULL, &none, error);
    printf("error: %s: %s\n", rie_status_name(status), rie_error_message(error));

    rie_free(loaded);
    rie_free(fork);
    rie_free(branch);
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return 0;
}
