/* The smallest program: load a model, prompt it, print what it says.
 *
 *     minimal MODEL_DIRECTORY
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rie.h"

static void check(rie_status status, const rie_error *error) {
    if (status < 0) {
        fprintf(stderr, "minimal: %s: %s\n", rie_status_name(status), rie_error_message(error));
        exit(1);
    }
}

int main(int argc, char **argv) {
    const char *prompt = "Rust is a systems programming language that";
    const char *path = argc == 2 ? argv[1] : "";
    rie_error *error = rie_error_new();
    rie_model *model = NULL;
    rie_session *session = NULL;
    rie_text_stream *stream = NULL;
    rie_token tokens[256];
    size_t count = 0;

    check(rie_model_load(path, NULL, &model, error), error);
    check(rie_tokenize(model, prompt, strlen(prompt), RIE_TEXT_ADD_SPECIAL, tokens, 256, &count, error), error);
    check(rie_session_new(model, NULL, &session, error), error);
    check(rie_session_append(session, tokens, count, error), error);
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &stream, error), error);

    printf("%s", prompt);
    for (int i = 0; i < 60; i++) {
        rie_token token = 0;
        char text[1024];
        size_t length = 0;
        rie_status status = rie_decode_step(session, NULL, &token, error);
        check(status, error);
        if (status == RIE_END) {
            break;
        }
        check(rie_text_stream_push(stream, token, text, sizeof text, &length, error), error);
        fwrite(text, 1, length, stdout);
        fflush(stdout);
    }
    printf("\n");

    rie_free(stream);
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return 0;
}
