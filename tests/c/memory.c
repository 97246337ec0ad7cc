/* The process's peak memory: the mapped weights, what they are quantized to, the KV cache and 64 MiB at most, after a prompt and
 * some steps. Weights that are read and quantized take one matrix of the source instead of all.
 *
 *     memory MODEL [as-is|int8|int4 [read]]     (F32 weights, to be quantized)
 */
#include "check.h"

static const int64_t most_besides = (int64_t)64 << 20;

/* Peak of the resident memory in bytes, from the kernel. */
static int64_t peak_memory(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long long kilobytes = -1;
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        if (sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1) {
            break;
        }
    }
    if (status != NULL) {
        fclose(status);
    }
    EXPECT(kilobytes > 0);
    return (int64_t)kilobytes * 1024;
}

static int64_t get(const void *handle, int32_t key, rie_error *error) {
    int64_t value = 0;
    NEED(rie_get_int(handle, key, &value, error), error);
    return value;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) {
        puts("memory MODEL [as-is|int8|int4 [read]]");
        return 2;
    }
    const char *format = argc > 2 ? argv[2] : "as-is";
    const int quantized = strcmp(format, "as-is") != 0, read = argc > 3;
    rie_error *error = rie_error_new();
    rie_model *model = NULL;
    rie_session *session = NULL;
    rie_options *options = rie_options_new();
    int64_t source = 0; /* bytes in memory of what is quantized */
    NEED(rie_options_set_int(options, RIE_OPT_MAP, !read, error), error);
    if (quantized) {
        const int32_t weights = strcmp(format, "int4") == 0 ? RIE_WEIGHTS_INT4 : RIE_WEIGHTS_INT8;
        NEED(rie_options_set_int(options, RIE_OPT_WEIGHTS, weights, error), error);
        NEED(rie_model_load(argv[1], NULL, &model, error), error);
        const int64_t embedding = get(model, RIE_INFO_VOCAB_SIZE, error) * get(model, RIE_INFO_HIDDEN_SIZE, error) * 4;
        source = read ? embedding : get(model, RIE_INFO_WEIGHT_BYTES, error);
        rie_free(model);
    }
    NEED(rie_model_load(argv[1], options, &model, error), error);
    NEED(rie_session_new(model, NULL, &session, error), error);
    enum { PROMPT = 600, STEPS = 20 };
    rie_token tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = 1 + i * 61 % 40000;
    }
    NEED(rie_session_append(session, tokens, PROMPT, error), error);
    for (int i = 0; i < STEPS; i++) {
        rie_token token = 0;
        NEED(rie_decode_step(session, NULL, &token, error), error);
    }
    const int64_t weights = get(model, RIE_INFO_WEIGHT_BYTES, error), kv = get(session, RIE_INFO_KV_BYTES, error);
    const int64_t besides = peak_memory() - source - weights - kv;
    if (besides > most_besides) {
        printf("peak memory: %lld MiB besides %lld of weights, %lld of their source, and %lld of KV cache\n",
               (long long)besides >> 20, (long long)weights >> 20, (long long)source >> 20, (long long)kv >> 20);
        failures++;
    }
    rie_free(session);
    rie_free(model);
    rie_free(options);
    rie_free(error);
    return result();
}
