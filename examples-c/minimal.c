/* The smallest program: load a model, prompt it, print what it says.
 *
 *     minimal MODEL_DIRECTORY
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rie.h"

static rie_error *error;

static void check(rie_status status) {
    if (status < 0) {
        fprintf(stderr, "minimal: %s: %s\n", rie_status_name(status), rie_error_message(error));
        exit(1);
    }
}

/* Prints the text that a token settles; -1 is the end. */
static void print(rie_text_stream *stream, rie_token token) {
    char text[1024];
    size_t length = 0;
    check(rie_text_stream_push(stream, token, text, sizeof text, &length, error));
    fwrite(text, 1, length, stdout);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *prompt = "Rust is a systems programming language that";
    rie_model *model = NULL;
    rie_session *session = NULL;
    rie_text_stream *stream = NULL;
    rie_token tokens[64], token = 0;
    size_t count = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: minimal MODEL_DIRECTORY\n");
        return 2;
    }

    error = rie_error_new();
    check(rie_model_load(argv[1], NULL, &model, error));
    check(rie_session_new(model, NULL, &session, error));
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &stream, error));

    check(rie_tokenize(model, prompt, strlen(prompt), RIE_TEXT_ADD_SPECIAL, tokens, 64, &count, error));
    check(rie_session_append(session, tokens, count, error));
    for (size_t i = 0; i < count; i++) {
        print(stream, tokens[i]);
    }
    for (int i = 0; i < 60; i++) {
        rie_status status = rie_decode_step(session, NULL, &token, error); /* NULL: always the likeliest token */
        check(status);
        if (status == RIE_END) {
            break;
        }
        print(stream, token);
    }
    print(stream, -1);
    printf("\n");

    rie_free(stream);
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return 0;
}
