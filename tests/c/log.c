/* The log: who hears what, and when.
 *
 *     log MODEL WITHOUT FOLDER     (a model with a tokenizer, one of two layers without, an empty folder)
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "files.h"

static rie_error *error;
static const char *path;

enum { MOST = 32 };

/* What a log function has heard. */
struct heard {
    int count, levels[MOST];
    char messages[MOST][512];
    pthread_t thread;
};

static void listen(void *userdata, int32_t level, const char *message) {
    struct heard *heard = userdata;
    EXPECT(pthread_equal(pthread_self(), heard->thread));
    EXPECT(level >= RIE_LOG_DEBUG && level <= RIE_LOG_ERROR);
    EXPECT(message[0] != '\0' && strpbrk(message, "\r\n") == NULL);
    if (heard->count < MOST) {
        heard->levels[heard->count] = level;
        snprintf(heard->messages[heard->count], sizeof heard->messages[0], "%s", message);
    }
    heard->count++;
}

/* Whether a message of this level with both words was heard. */
static int has(const struct heard *heard, int level, const char *word, const char *other) {
    for (int i = 0; i < heard->count && i < MOST; i++) {
        const char *message = heard->messages[i];
        if (heard->levels[i] == level && strstr(message, word) != NULL && strstr(message, other) != NULL) {
            return 1;
        }
    }
    return 0;
}

static rie_model *load(const char *dir, int64_t threads) {
    rie_model *model = NULL;
    rie_options *options = rie_options_new();
    NEED(rie_options_set_int(options, RIE_OPT_THREADS, threads, error), error);
    NEED(rie_model_load(dir, options, &model, error), error);
    rie_free(options);
    return model;
}

static struct heard heard_by(int level, const char *dir, int64_t threads) {
    struct heard heard = {.thread = pthread_self()};
    NEED(rie_log_set(listen, &heard, level, error), error);
    rie_free(load(dir, threads));
    NEED(rie_log_set(NULL, NULL, RIE_LOG_DEBUG, error), error);
    return heard;
}

static void loads(const char *without, const char *folder) {
    char isa[32] = "";
    size_t length = 0;
    int64_t cores = 0;
    NEED(rie_get_str(NULL, RIE_INFO_ISA, isa, sizeof isa - 1, &length, error), error);
    NEED(rie_get_int(NULL, RIE_INFO_CORES, &cores, error), error);

    struct heard heard = heard_by(RIE_LOG_INFO, path, 1);
    EXPECT(heard.count >= 1 && has(&heard, RIE_LOG_INFO, path, "loaded: llama, "));
    EXPECT(has(&heard, RIE_LOG_INFO, " parameters, ", isa) && has(&heard, RIE_LOG_INFO, "(F32)", "1 threads"));
    heard = heard_by(RIE_LOG_ERROR, path, 1);
    EXPECT(heard.count == 0);

    heard = heard_by(RIE_LOG_WARN, without, cores + 1);
    EXPECT(heard.count == 2 && has(&heard, RIE_LOG_WARN, without, "no tokenizer.json"));
    EXPECT(has(&heard, RIE_LOG_WARN, without, " threads for the "));

    /* With one layer less than the files have, some tensors are left over. */
    struct file config = read_file(without, "config.json"), weights = read_file(without, "model.safetensors");
    unsigned char *layers = find_bytes(config, "\"num_hidden_layers\": 2");
    layers[strlen("\"num_hidden_layers\": ")] = '1';
    write_file(folder, "config.json", config);
    write_file(folder, "model.safetensors", weights);
    heard = heard_by(RIE_LOG_INFO, folder, 1);
    EXPECT(has(&heard, RIE_LOG_INFO, "no use for the tensor model.layers.1.", " more"));
    free(config.bytes);
    free(weights.bytes);
}

static void prefixes(void) {
    enum { TOKENS = 150 };
    rie_token tokens[TOKENS];
    rie_model *model = load(path, 1);
    struct heard heard = {.thread = pthread_self()};
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = i % 50;
    }
    NEED(rie_log_set(listen, &heard, RIE_LOG_DEBUG, error), error);
    rie_session *sessions[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        NEED(rie_session_new(model, NULL, &sessions[i], error), error);
        NEED(rie_session_append(sessions[i], tokens, TOKENS, error), error);
        NEED(rie_session_eval(sessions[i], 0, error), error);
        EXPECT(has(&heard, RIE_LOG_DEBUG, "computed by another session", "tokens 0 to ") == i);
    }
    NEED(rie_log_set(NULL, NULL, RIE_LOG_DEBUG, error), error);
    const int before = heard.count;
    rie_free(load(path, 1));
    EXPECT(heard.count == before);
    rie_free(sessions[0]);
    rie_free(sessions[1]);
    rie_free(model);
}

static int calls_back;

/* Loads a model, which says nothing from in here, and tries to replace itself. */
static void call_back(void *userdata, int32_t level, const char *message) {
    rie_error *mine = rie_error_new();
    (void)userdata, (void)level, (void)message;
    calls_back++;
    rie_model *model = NULL;
    EXPECT_STATUS(rie_model_load(path, NULL, &model, mine), RIE_OK, mine, NULL);
    EXPECT(info(model, RIE_INFO_VOCAB_SIZE) > 0);
    EXPECT_STATUS(rie_log_set(NULL, NULL, RIE_LOG_INFO, mine), RIE_ERR_STATE, mine, "by the log function itself");
    rie_free(model);
    rie_free(mine);
}

static void calls_from_within(void) {
    NEED(rie_log_set(call_back, NULL, RIE_LOG_INFO, error), error);
    rie_free(load(path, 1));
    const int once = calls_back;
    EXPECT(once >= 1);
    EXPECT_STATUS(rie_log_set(NULL, NULL, 0, error), RIE_ERR_INVALID_ARGUMENT, error, "min_level: expected 1 to 4");
    EXPECT_STATUS(rie_log_set(NULL, NULL, 5, error), RIE_ERR_INVALID_ARGUMENT, error, "min_level: expected 1 to 4");
    rie_free(load(path, 1)); /* a failed call has changed nothing */
    EXPECT(calls_back == 2 * once);
    EXPECT_CODE(rie_log_set(NULL, NULL, RIE_LOG_ERROR, NULL), RIE_OK);
}

/* A listener that must not be called once it was replaced. */
struct listener {
    atomic_int replaced, calls;
};

static atomic_int stop, late;

static void count(void *userdata, int32_t level, const char *message) {
    struct listener *listener = userdata;
    (void)level, (void)message;
    for (int i = 0; i < 50000; i++) { /* long enough to be in here while it is replaced */
        if (atomic_load(&listener->replaced)) {
            atomic_store(&late, 1);
        }
    }
    atomic_fetch_add(&listener->calls, 1);
}

static void *load_again_and_again(void *unused) {
    while (!atomic_load(&stop)) {
        rie_model *model = NULL;
        EXPECT_CODE(rie_model_load(path, NULL, &model, NULL), RIE_OK);
        rie_free(model);
    }
    return unused;
}

static void replaced_while_in_use(void) {
    enum { THREADS = 3, ROUNDS = 300 };
    static struct listener listeners[ROUNDS];
    pthread_t threads[THREADS];
    rie_model *kept = load(path, 0); /* so that the threads need not be made anew for each load */
    int calls = 0;
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, load_again_and_again, NULL) == 0);
    }
    for (int i = 0; i < ROUNDS || (calls == 0 && i < 100 * ROUNDS); i++) {
        const int now = i % ROUNDS, before = (i + ROUNDS - 1) % ROUNDS;
        atomic_store(&listeners[now].replaced, 0);
        NEED(rie_log_set(count, &listeners[now], RIE_LOG_INFO, error), error);
        atomic_store(&listeners[before].replaced, 1);
        calls += atomic_load(&listeners[before].calls);
        if (i % 10 == 0) {
            const struct timespec moment = {0, 1000000};
            nanosleep(&moment, NULL);
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    EXPECT(calls > 0 && !atomic_load(&late));
    NEED(rie_log_set(NULL, NULL, RIE_LOG_INFO, error), error);
    rie_free(kept);
}

int main(int argc, char **argv) {
    EXPECT(argc == 4);
    error = rie_error_new();
    path = argv[1];
    rie_free(load(path, 1)); /* silent by default: c_abi.rs looks at what is printed */
    loads(argv[2], argv[3]);
    prefixes();
    calls_from_within();
    replaced_while_in_use();
    rie_free(error);
    return result();
}
