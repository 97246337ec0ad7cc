/* Two Rust libraries in one program, and ours still works and fails as it should: both MODEL_DIRECTORY */
#include <stdio.h>
#include <string.h>

#include "rie.h"

unsigned other_caught(unsigned n);

int main(int argc, char **argv) {
    rie_error *error = rie_error_new();
    rie_model *model = NULL, *none = NULL;
    rie_session *session = NULL;
    rie_token ids[16], token = 0;
    size_t count = 0;
    if (argc != 2 || other_caught(3) != 3) {
        return 2;
    }
    const int generated = rie_model_load(argv[1], NULL, &model, error) == RIE_OK &&
                          rie_session_new(model, NULL, &session, error) == RIE_OK &&
                          rie_tokenize(model, "Rust is", 7, 0, ids, 16, &count, error) == RIE_OK &&
                          rie_session_append(session, ids, count, error) == RIE_OK &&
                          rie_decode_step(session, NULL, &token, error) == RIE_OK;
    if (!generated || other_caught(3) != 3) {
        printf("%s\n", rie_error_message(error));
        return 1;
    }
    const int failed = rie_model_load("/no/such", NULL, &none, error) == RIE_ERR_IO &&
                       strstr(rie_error_message(error), "/no/such") != NULL;
    rie_free(session);
    rie_free(model);
    rie_free(error);
    return failed ? 0 : 3;
}
