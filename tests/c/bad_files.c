/* Damaged model files: each load gives an error that names the thing at fault, or a model that runs.
 *
 *     bad_files MODEL SCRATCH     (a small BF16 checkpoint with one weight file; an empty directory)
 */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "files.h"

static rie_error *error;
static rie_options *one_thread;
static const char *dir; /* the damaged model */
static struct file config, weights;

/* Takes a step with a model that loaded: it may fail for its numbers, but not otherwise. */
static rie_status take_step(const rie_model *model) {
    const rie_token prompt[] = {1, 2, 3};
    rie_session *session = NULL;
    rie_token token = -7;
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_session_append(session, prompt, 3, error), error);
    const rie_status status = rie_decode_step(session, NULL, &token, error);
    EXPECT(status >= 0 ? token >= 0 : token == -7 && rie_error_message(error)[0] != '\0');
    rie_free(session);
    return status;
}

/* Loads what is in `dir`; the status of the load, or of a step if it loaded. An error has a message. */
static rie_status try_model(void) {
    rie_model *model = NULL;
    rie_status status = rie_model_load(dir, one_thread, &model, error);
    if (status < 0) {
        EXPECT(model == NULL && strstr(rie_error_message(error), "rie_model_load: ") != NULL);
        EXPECT(strlen(rie_error_message(error)) > 30 && status != RIE_ERR_INTERNAL);
    } else {
        status = take_step(model);
        EXPECT(status >= 0 || status == RIE_ERR_NUMERIC);
    }
    rie_free(model);
    return status;
}

/* The same for rie_inspect, which must not mind what only a load minds. */
static void try_inspect(void) {
    size_t len = 0;
    rie_status status = rie_inspect(dir, NULL, NULL, 0, &len, error);
    EXPECT(status < 0 && rie_error_message(error)[0] != '\0' && status != RIE_ERR_INTERNAL);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) {
        char *text = allocate(len);
        NEED(rie_inspect(dir, NULL, text, len, &len, error), error);
        EXPECT(len > 2 && text[0] == '{' && text[len - 1] == '}');
        free(text);
    }
}

static void restore(void) {
    write_file(dir, "config.json", config);
    write_file(dir, "model.safetensors", weights);
}

/* ---- The weights ---- */

/* Writes the weights with the length and text of the header given. */
static void write_weights(uint64_t length, const char *header, size_t n) {
    const size_t data = 8 + (size_t)header_length(weights), rest = weights.size - data;
    struct file f = {allocate(8 + n + rest), 8 + n + rest};
    for (int i = 0; i < 8; i++) {
        f.bytes[i] = (unsigned char)(length >> 8 * i);
    }
    memcpy(f.bytes + 8, header, n);
    memcpy(f.bytes + 8 + n, weights.bytes + data, rest);
    write_file(dir, "model.safetensors", f);
    free(f.bytes);
}

static void header_lengths(void) {
    static const uint64_t lengths[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX, UINT64_C(100000001), UINT64_C(1) << 32};
    const char *header = (const char *)weights.bytes + 8;
    const size_t n = (size_t)header_length(weights);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_weights(lengths[i], header, n);
        EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "model.safetensors");
        try_inspect();
    }
    restore();
}

static void truncated_weights(void) {
    const size_t header_end = 8 + (size_t)header_length(weights);
    for (size_t n = 0; n < weights.size; n += n < 16 ? 1 : n < header_end + 4 ? 61 : 1999) {
        write_file(dir, "model.safetensors", (struct file){weights.bytes, n});
        EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "model.safetensors");
    }
    write_file(dir, "model.safetensors", (struct file){weights.bytes, weights.size - 1});
    EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "model.safetensors");
    struct file longer = {allocate(weights.size + 3), weights.size + 3};
    memset(longer.bytes, 0, longer.size);
    memcpy(longer.bytes, weights.bytes, weights.size);
    write_file(dir, "model.safetensors", longer);
    EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "model.safetensors");
    free(longer.bytes);
    restore();
}

/* Each byte of the header, changed in one bit, in case, and in all bits. */
static void flipped_header(void) {
    static const unsigned char masks[] = {0x01, 0x20, 0xFF};
    const size_t header_end = 8 + (size_t)header_length(weights);
    size_t loaded = 0;
    for (size_t at = 0; at < header_end; at++) {
        for (size_t i = 0; i < sizeof masks; i++) {
            weights.bytes[at] ^= masks[i];
            write_file(dir, "model.safetensors", weights);
            weights.bytes[at] ^= masks[i];
            loaded += try_model() >= 0;
            try_inspect();
        }
    }
    printf("%zu damaged headers: %zu loaded, the others were refused\n", header_end * sizeof masks, loaded);
    restore();
}

/* Several bytes at once, by a fixed sequence of random numbers. */
static void random_header(void) {
    static const char pieces[] = "{}[]\",:0123456789eE.-\\u\0\xFF";
    const size_t header_end = 8 + (size_t)header_length(weights);
    struct file f = {allocate(weights.size), weights.size};
    uint32_t state = 1;
    for (int round = 0; round < 1000; round++) {
        memcpy(f.bytes, weights.bytes, weights.size);
        for (uint32_t k = 0; k < 1 + state % 4; k++) {
            const size_t at = 8 + next_random(&state) % (header_end - 8);
            f.bytes[at] = (unsigned char)pieces[next_random(&state) % (sizeof pieces - 1)];
        }
        write_file(dir, "model.safetensors", f);
        try_model();
    }
    free(f.bytes);
    restore();
}

/* The header with what it says of the tensor replaced. */
static void write_entry(const char *name, const char *entry) {
    const size_t n = (size_t)header_length(weights);
    char *header = allocate(n + 1), *changed = allocate(n + 512);
    memcpy(header, weights.bytes + 8, n);
    header[n] = '\0';
    const char *at = strchr(strstr(header, name), '{'), *end = strchr(at, '}') + 1;
    const int written = snprintf(changed, n + 512, "%.*s%s%s", (int)(at - header), header, entry, end);
    write_weights((uint64_t)written, changed, (size_t)written);
    free(header);
    free(changed);
}

static void bad_entry(const char *dtype, const char *shape, int64_t first, int64_t last, rie_status status,
                      const char *word) {
    char entry[256];
    snprintf(entry, sizeof entry, "{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", dtype,
             shape, first, last);
    write_entry("\"model.norm.weight\"", entry);
    EXPECT_STATUS(try_model(), status, error, word);
    EXPECT(strstr(rie_error_message(error), "norm") != NULL);
    try_inspect();
}

static void bad_entries(void) {
    static const char name[] = "model.norm.weight";
    const struct entry e = find_entry(weights, "\"model.norm.weight\"");
    EXPECT(strcmp(e.dtype, "BF16") == 0 && e.last > e.first && e.first > 0);
    const int64_t size = e.last - e.first, n = size / 2;
    char shape[64];
    bad_entry("BF16", e.shape, e.first - 2, e.last - 2, RIE_ERR_FORMAT, name);
    bad_entry("BF16", e.shape, e.first + 2, e.last + 2, RIE_ERR_FORMAT, "");
    bad_entry("BF16", e.shape, 0, size, RIE_ERR_FORMAT, "");
    bad_entry("BF16", e.shape, e.first, INT64_C(1) << 40, RIE_ERR_FORMAT, name);
    bad_entry("BF16", e.shape, INT64_MAX - size, INT64_MAX, RIE_ERR_FORMAT, name);
    bad_entry("BF16", e.shape, e.last, e.first, RIE_ERR_FORMAT, name);
    bad_entry("BF16", e.shape, -size, 0, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "4294967296,4294967296,4294967296", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "9223372036854775807,2", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "18446744073709551616", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "-1", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "1.5", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("BF16", "0", e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("F64", e.shape, e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("Q99", e.shape, e.first, e.last, RIE_ERR_FORMAT, name);
    bad_entry("I16", e.shape, e.first, e.last, RIE_ERR_TENSOR, "I16");
    snprintf(shape, sizeof shape, "%" PRId64 ",1", n);
    bad_entry("BF16", shape, e.first, e.last, RIE_ERR_TENSOR, "shape");
    snprintf(shape, sizeof shape, "%" PRId64, size);
    bad_entry("U8", shape, e.first, e.last, RIE_ERR_TENSOR, "U8");
    write_entry("\"model.norm.weight\"", "7");
    EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, name);
    restore();
}

static void renamed_tensor(void) {
    char *at = (char *)find_bytes(weights, "model.norm.weight");
    at[11] = 'W';
    write_file(dir, "model.safetensors", weights);
    at[11] = 'w';
    EXPECT_STATUS(try_model(), RIE_ERR_TENSOR, error, "model.norm.weight");
    restore();
}

/* NaN among the weights loads, and a step says that no token can be chosen. */
static void nan_weights(void) {
    const struct entry e = find_entry(weights, "\"model.norm.weight\"");
    unsigned char *data = weights.bytes + 8 + header_length(weights) + e.first, saved[2] = {data[0], data[1]};
    data[0] = 0xC0;
    data[1] = 0x7F; /* little-endian BF16 */
    write_file(dir, "model.safetensors", weights);
    EXPECT_STATUS(try_model(), RIE_ERR_NUMERIC, error, "NaN");
    data[0] = 0x80; /* infinity */
    write_file(dir, "model.safetensors", weights);
    try_model();
    data[0] = saved[0];
    data[1] = saved[1];
    restore();
}

/* ---- config.json ---- */

/* Writes config.json with the value of `key` replaced; a NULL value takes the key away. */
static void write_config(const char *key, const char *value) {
    char *text = text_of(config), *changed = allocate(config.size + 512), quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    char *at = strstr(text, quoted);
    EXPECT(at != NULL);
    if (at != NULL) {
        char *end = at + strcspn(at, "\n");
        end -= end[-1] == ',';
        const int before = (int)(at - text);
        const int n = value != NULL ? snprintf(changed, config.size + 512, "%.*s%s%s%s", before, text, quoted, value, end)
                                    : snprintf(changed, config.size + 512, "%.*s\"x\": 0%s", before, text, end);
        write_file(dir, "config.json", (struct file){(unsigned char *)changed, (size_t)n});
    }
    free(text);
    free(changed);
}

static void bad_config(const char *key, const char *value, rie_status status) {
    write_config(key, value);
    EXPECT_STATUS(try_model(), status, error, key);
    EXPECT(strstr(rie_error_message(error), "config.json") != NULL);
}

static void bad_configs(void) {
    static const char *const sizes[] = {"hidden_size",         "intermediate_size", "num_hidden_layers",
                                        "num_attention_heads", "vocab_size"};
    static const char *const wrong[] = {"0",  "-1",   "1.5", "\"64\"",           "[64]",
                                        "{}", "true", "1e9", "9223372036854775808", "1000000000000000000000000"};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        bad_config(sizes[k], NULL, RIE_ERR_CONFIG);
        bad_config(sizes[k], "null", RIE_ERR_CONFIG);
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            bad_config(sizes[k], wrong[i], RIE_ERR_CONFIG);
        }
    }
    bad_config("num_key_value_heads", "0", RIE_ERR_CONFIG);
    bad_config("num_key_value_heads", "3", RIE_ERR_CONFIG); /* 2 heads */
    bad_config("num_key_value_heads", "\"1\"", RIE_ERR_CONFIG);
    bad_config("head_dim", "19", RIE_ERR_CONFIG);
    bad_config("head_dim", "0", RIE_ERR_CONFIG);
    bad_config("head_dim", "-20", RIE_ERR_CONFIG);
    bad_config("rms_norm_eps", "-1", RIE_ERR_CONFIG);
    bad_config("rms_norm_eps", "\"small\"", RIE_ERR_CONFIG);
    bad_config("rope_theta", "0", RIE_ERR_CONFIG);
    bad_config("rope_theta", "\"10000\"", RIE_ERR_CONFIG);
    bad_config("max_position_embeddings", "0", RIE_ERR_CONFIG);
    bad_config("tie_word_embeddings", "1", RIE_ERR_CONFIG);
    bad_config("eos_token_id", "1000000", RIE_ERR_CONFIG);
    bad_config("eos_token_id", "[2, \"x\"]", RIE_ERR_CONFIG);
    bad_config("bos_token_id", "-1", RIE_ERR_CONFIG);
    bad_config("model_type", NULL, RIE_ERR_CONFIG);
    bad_config("model_type", "7", RIE_ERR_CONFIG);
    bad_config("hidden_act", "\"gelu_new\"", RIE_ERR_UNSUPPORTED);
    bad_config("model_type", "\"no_such_family\"", RIE_ERR_UNSUPPORTED);
    EXPECT(strstr(rie_error_message(error), "no_such_family") != NULL);
    EXPECT(strstr(rie_error_message(error), "llama") != NULL); /* what is known */
    bad_config("rope_scaling", "{\"rope_type\": \"no_such_rope\", \"factor\": 2.0}", RIE_ERR_UNSUPPORTED);
    EXPECT(strstr(rie_error_message(error), "llama3") != NULL);
    bad_config("rope_scaling", "{\"rope_type\": \"linear\"}", RIE_ERR_CONFIG);
    bad_config("rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 0}", RIE_ERR_CONFIG);
    bad_config("rope_scaling", "7", RIE_ERR_CONFIG);
    write_config("num_hidden_layers", "3"); /* well-formed, but the weights have two */
    EXPECT_STATUS(try_model(), RIE_ERR_TENSOR, error, "layers.2.");
    write_config("vocab_size", "98");
    EXPECT_STATUS(try_model(), RIE_ERR_TENSOR, error, "98");
    restore();
}

static void bad_json(const char *file, const char *text, size_t n) {
    write_file(dir, file, (struct file){(unsigned char *)(uintptr_t)text, n});
    EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, file);
    try_inspect();
}

static void no_json(const char *file) {
    static const char *const texts[] = {"", "{", "[]", "7", "null", "\"text\"", "{\"a\": }", "\xFF\xFE{}", "{} x"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bad_json(file, texts[i], strlen(texts[i]));
    }
    bad_json(file, "\0\0\0\0", 4);
    char *deep = allocate(1000000);
    memset(deep, '[', 1000000);
    bad_json(file, deep, 1000000);
    free(deep);
}

static void damaged_config(void) {
    for (size_t at = 0; at < config.size; at++) {
        for (unsigned mask = 1; mask < 256; mask = mask * 4 + 1) {
            config.bytes[at] ^= (unsigned char)mask;
            write_file(dir, "config.json", config);
            config.bytes[at] ^= (unsigned char)mask;
            try_model();
        }
    }
    for (size_t n = 0; n + 2 < config.size; n += 7) {
        write_file(dir, "config.json", (struct file){config.bytes, n});
        EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "config.json");
    }
    restore();
}

/* JSON, but no tokenizer. */
static void no_tokenizer(void) {
    static const char *const texts[] = {"{}", "{\"model\": {}}", "{\"model\": {\"type\": \"BPE\", \"vocab\": 7}}",
                                        "{\"model\": {\"type\": \"NoSuchModel\", \"vocab\": {}, \"merges\": []}}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_text(dir, "tokenizer.json", texts[i]);
        EXPECT(try_model() < 0 && strstr(rie_error_message(error), "tokenizer.json") != NULL);
    }
}

/* ---- Files that are not there, or something else ---- */

static void missing_files(void) {
    static const char index[] = "{\"weight_map\": {\"model.norm.weight\": \"%s\"}}";
    char text[128];
    remove_file(dir, "config.json");
    EXPECT_STATUS(try_model(), RIE_ERR_IO, error, "config.json");
    restore();
    remove_file(dir, "model.safetensors");
    EXPECT_STATUS(try_model(), RIE_ERR_IO, error, "model.safetensors");
    snprintf(text, sizeof text, index, "shard.safetensors");
    write_text(dir, "model.safetensors.index.json", text);
    EXPECT_STATUS(try_model(), RIE_ERR_IO, error, "shard.safetensors");
    snprintf(text, sizeof text, index, "../shard.safetensors");
    write_text(dir, "model.safetensors.index.json", text);
    EXPECT_STATUS(try_model(), RIE_ERR_FORMAT, error, "../shard.safetensors");
    no_json("model.safetensors.index.json");
    remove_file(dir, "model.safetensors.index.json");
    char path[1024];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    EXPECT(mkdir(path, 0700) == 0);
    EXPECT_STATUS(try_model(), RIE_ERR_IO, error, "model.safetensors");
    EXPECT(rmdir(path) == 0);
    restore();
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("usage: bad_files MODEL SCRATCH");
        return 2;
    }
    error = rie_error_new();
    one_thread = rie_options_new();
    NEED(rie_options_set_int(one_thread, RIE_OPT_THREADS, 1, error), error);
    dir = argv[2];
    config = read_file(argv[1], "config.json");
    weights = read_file(argv[1], "model.safetensors");
    restore();
    EXPECT(try_model() >= 0);

    header_lengths();
    truncated_weights();
    flipped_header();
    random_header();
    bad_entries();
    renamed_tensor();
    nan_weights();
    bad_configs();
    no_json("config.json");
    restore();
    no_json("generation_config.json");
    remove_file(dir, "generation_config.json");
    no_json("tokenizer.json");
    no_tokenizer();
    remove_file(dir, "tokenizer.json");
    damaged_config();
    missing_files();
    EXPECT(try_model() >= 0);

    free(config.bytes);
    free(weights.bytes);
    rie_free(one_thread);
    rie_free(error);
    return result();
}
