#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

volatile sig_atomic_t interrupted = 0;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void catch_interrupt(int restart) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)(SA_RESETHAND | (restart ? SA_RESTART : 0)); /* the second one has its usual effect */
    sigaction(SIGINT, &action, NULL);
}

void show_progress(const char *what, uint64_t done, uint64_t total) {
    if (isatty(STDERR_FILENO) && total > 0) {
        fprintf(stderr, "\r%s %3.0f %%\033[K", what, 100.0 * (double)done / (double)total);
        fflush(stderr);
    }
}

void clear_progress(void) {
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

static int32_t on_progress(void *what, uint64_t done, uint64_t total) {
    show_progress(what, done, total);
    return interrupted; /* nonzero cancels */
}

/* The end of what was shown by on_progress. */
static void finish(rie_status status, const char *what, const rie_error *error) {
    clear_progress();
    if (status == RIE_ERR_CANCELLED) {
        exit(EXIT_INTERRUPTED);
    }
    check(status, what, error);
}

rie_model *load_model(const char *path, rie_options *options, rie_error *error) {
    rie_model *model = NULL;
    check(rie_options_set_progress(options, on_progress, "loading", error), "progress", error);
    finish(rie_model_load(path, options, &model, error), "loading the model", error);
    return model;
}

void save_model(const rie_model *model, const char *path, rie_options *options, rie_error *error) {
    check(rie_options_set_progress(options, on_progress, "saving", error), "progress", error);
    finish(rie_model_save(model, path, options, error), "saving the model", error);
}

rie_token *tokenize(const rie_model *model, const char *text, size_t length, uint32_t flags, size_t *count,
                    rie_error *error) {
    const size_t cap = length + 16; /* nearly always enough; the library says if not */
    rie_token *tokens = allocate(cap * sizeof *tokens);
    rie_status status = rie_tokenize(model, text, length, flags, tokens, cap, count, error);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) {
        free(tokens);
        tokens = allocate(*count * sizeof *tokens);
        status = rie_tokenize(model, text, length, flags, tokens, *count, count, error);
    }
    check(status, "tokenizing the prompt", error);
    return tokens;
}

char *push_token(rie_text_stream *stream, rie_token token, size_t *length, rie_error *error) {
    size_t cap = 256;
    char *text = allocate(cap);
    rie_status status = rie_text_stream_push(stream, token, text, cap, length, error);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) { /* nothing was consumed: again, with room enough */
        free(text);
        cap = *length;
        text = allocate(cap);
        status = rie_text_stream_push(stream, token, text, cap, length, error);
    }
    check(status, "decoding text", error);
    return text;
}
