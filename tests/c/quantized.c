/* Quantized weights through the ABI: asked for at load, saved, loaded again, refused.
 *
 *     quantized MODEL FOLDER     (a model of F32 weights, an empty folder)
 */
#include <stdint.h>

#include "check.h"

static rie_error *error;
static const rie_token prompt[] = {3, 17, 40, 2, 8, 71, 5};
enum { PROMPT = sizeof prompt / sizeof prompt[0] };

static rie_status load(const char *path, int64_t weights, rie_model **model) {
    rie_options *options = rie_options_new();
    NEED(rie_options_set_int(options, RIE_OPT_WEIGHTS, weights, error), error);
    const rie_status status = rie_model_load(path, options, model, error);
    rie_free(options);
    return status;
}

/* The logits after the prompt, to be freed. */
static float *evaluate(const rie_model *model, size_t *vocab) {
    rie_session *session = NULL;
    *vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_session_append(session, prompt, PROMPT, error), error);
    float *values = logits(session, *vocab, error);
    rie_free(session);
    return values;
}

static void expect_same(const rie_model *a, const rie_model *b, int same) {
    size_t vocab = 0;
    float *x = evaluate(a, &vocab), *y = evaluate(b, &vocab);
    EXPECT((memcmp(x, y, vocab * sizeof *x) == 0) == same);
    free(x);
    free(y);
}

struct heard {
    int calls, cancel_at;
    uint64_t done, total;
};

static int32_t on_progress(void *userdata, uint64_t done, uint64_t total) {
    struct heard *heard = userdata;
    EXPECT(done >= heard->done && done <= total);
    heard->done = done;
    heard->total = total;
    return ++heard->calls == heard->cancel_at;
}

static rie_status save(const rie_model *model, const char *path, struct heard *heard) {
    rie_options *options = rie_options_new();
    NEED(rie_options_set_progress(options, on_progress, heard, error), error);
    const rie_status status = rie_model_save(model, path, options, error);
    rie_free(options);
    return status;
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    error = rie_error_new();
    rie_options *options = rie_options_new();
    EXPECT_STATUS(rie_options_set_int(options, RIE_OPT_WEIGHTS, 3, error), RIE_ERR_INVALID_ARGUMENT, error, "0 to 2");
    EXPECT_STATUS(rie_options_set_int(options, RIE_OPT_WEIGHTS, -1, error), RIE_ERR_INVALID_ARGUMENT, error, "WEIGHTS");
    rie_free(options);

    rie_model *plain = NULL, *int8 = NULL, *int4 = NULL;
    NEED(load(argv[1], RIE_WEIGHTS_AS_IS, &plain), error);
    NEED(load(argv[1], RIE_WEIGHTS_INT8, &int8), error);
    NEED(load(argv[1], RIE_WEIGHTS_INT4, &int4), error);
    EXPECT(info(plain, RIE_INFO_WEIGHTS) == RIE_WEIGHTS_AS_IS);
    EXPECT(info(int8, RIE_INFO_WEIGHTS) == RIE_WEIGHTS_INT8 && info(int4, RIE_INFO_WEIGHTS) == RIE_WEIGHTS_INT4);
    EXPECT(info(int4, RIE_INFO_WEIGHT_BYTES) < info(int8, RIE_INFO_WEIGHT_BYTES));
    EXPECT(info(int8, RIE_INFO_WEIGHT_BYTES) < info(plain, RIE_INFO_WEIGHT_BYTES));
    EXPECT(info(int8, RIE_INFO_PARAMETERS) == info(plain, RIE_INFO_PARAMETERS));
    expect_same(plain, int8, 0);
    expect_same(int8, int4, 0);

    char path[4096];
    snprintf(path, sizeof path, "%s/saved", argv[2]);
    struct heard heard = {0, 1, 0, 0};
    EXPECT_STATUS(save(int4, path, &heard), RIE_ERR_CANCELLED, error, "cancelled");
    heard = (struct heard){0};
    EXPECT_STATUS(save(int4, path, &heard), RIE_OK, error, NULL);
    EXPECT(heard.calls > 1 && heard.done == heard.total && heard.total == (uint64_t)info(int4, RIE_INFO_WEIGHT_BYTES));
    EXPECT_STATUS(rie_model_save(int4, path, NULL, error), RIE_ERR_IO, error, "files in it");
    EXPECT_STATUS(rie_model_save(int4, NULL, NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "path");
    EXPECT_STATUS(rie_model_save(NULL, path, NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "model");
    EXPECT_STATUS(rie_model_save(int4, "/no/such/place/model", NULL, NULL), RIE_ERR_IO, NULL, NULL);

    rie_model *again = NULL, *refused = NULL;
    NEED(rie_model_load(path, NULL, &again, error), error);
    EXPECT(info(again, RIE_INFO_WEIGHTS) == RIE_WEIGHTS_INT4);
    EXPECT(info(again, RIE_INFO_WEIGHT_BYTES) == info(int4, RIE_INFO_WEIGHT_BYTES));
    expect_same(again, int4, 1);
    EXPECT_STATUS(load(path, RIE_WEIGHTS_INT8, &refused), RIE_ERR_UNSUPPORTED, error, "INT4 already");
    EXPECT(refused == NULL);
    rie_free(int4);
    EXPECT_STATUS(rie_model_save(int4, path, NULL, error), RIE_ERR_HANDLE, error, "model");

    rie_free(again);
    rie_free(int8);
    rie_free(plain);
    rie_free(error);
    return result();
}
