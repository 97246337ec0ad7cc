/* Models whose files are in memory, in open files or at paths of any name, and weights that are read instead of mapped.
 *
 *     sources MODEL SHARDED FOLDER     (a model with a tokenizer, one of two shards, an empty folder)
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "files.h"

static rie_error *error;
static const char *folder;
static const rie_token prompt[] = {3, 17, 40, 2, 8, 11, 5};
enum { PROMPT = sizeof prompt / sizeof prompt[0], MOST_FILES = 4 };

/* The files of a model directory. */
struct model_files {
    const char *dir, *names[MOST_FILES + 1];
};

/* Memory that the library has borrowed. It is freed when it comes back, so that a later use is seen. */
struct lent {
    unsigned char *bytes;
    int returned;
};

static void take_back(void *userdata) {
    struct lent *lent = userdata;
    lent->returned++;
    free(lent->bytes);
    lent->bytes = NULL;
    rie_free(rie_error_new()); /* the library can be called from here */
}

static rie_status add_memory(rie_source *source, const char *name, struct file file, struct lent *lent) {
    *lent = (struct lent){file.bytes, 0};
    return rie_source_add_memory(source, name, file.bytes, file.size, take_back, lent, error);
}

/* The ways in which a file can be given. */
enum { BY_PATH, BY_MEMORY, BY_FD, BY_PART, WAYS };

static int open_fd(const char *dir, const char *name, int flags) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const int fd = open(path, flags);
    EXPECT(fd >= 0);
    return fd;
}

static void add(rie_source *source, const char *dir, const char *name, int way, struct lent *lent) {
    char path[1024], package[64];
    int fd;
    *lent = (struct lent){NULL, 0};
    switch (way) {
    case BY_PATH:
        snprintf(path, sizeof path, "%s/%s", dir, name);
        NEED(rie_source_add_path(source, name, path, error), error);
        break;
    case BY_MEMORY:
        NEED(add_memory(source, name, read_file(dir, name), lent), error);
        break;
    case BY_FD:
        fd = open_fd(dir, name, O_RDONLY);
        EXPECT(lseek(fd, 3, SEEK_SET) == 3); /* where the host reads does not matter */
        NEED(rie_source_add_fd(source, name, fd, 0, 0, error), error);
        EXPECT(lseek(fd, 0, SEEK_CUR) == 3);
        close(fd);
        break;
    default: { /* in the middle of a file, as an asset is in its package, at no particular alignment */
        struct file file = read_file(dir, name), whole = {allocate(file.size + 20), file.size + 20};
        memset(whole.bytes, 'x', whole.size);
        memcpy(whole.bytes + 13, file.bytes, file.size);
        snprintf(package, sizeof package, "package-%s", name);
        write_file(folder, package, whole);
        fd = open_fd(folder, package, O_RDONLY);
        NEED(rie_source_add_fd(source, name, fd, 13, file.size, error), error);
        close(fd);
        remove_file(folder, package); /* its contents stay while somebody has them */
        free(file.bytes);
        free(whole.bytes);
    }
    }
}

static rie_options *options_for(int map, int64_t weights) {
    rie_options *options = rie_options_new();
    NEED(rie_options_set_int(options, RIE_OPT_MAP, map, error), error);
    NEED(rie_options_set_int(options, RIE_OPT_WEIGHTS, weights, error), error);
    NEED(rie_options_set_int(options, RIE_OPT_THREADS, 2, error), error);
    return options;
}

static rie_session *evaluated(const rie_model *model) {
    rie_session *session = NULL;
    NEED(rie_session_new(model, NULL, &session, error), error);
    NEED(rie_session_append(session, prompt, PROMPT, error), error);
    return session;
}

/* The same logits, to the bit, and a session of one can be loaded with the other: their weights are the same. */
static void expect_same(const rie_model *a, const rie_model *b) {
    const size_t vocab = (size_t)info(a, RIE_INFO_VOCAB_SIZE);
    rie_session *x = evaluated(a), *y = evaluated(b);
    float *first = logits(x, vocab, error), *second = logits(y, vocab, error);
    EXPECT(same_bits(first, second, vocab));
    unsigned char state[1 << 16];
    size_t length = 0;
    NEED(rie_session_save(x, state, sizeof state, &length, error), error);
    EXPECT_STATUS(rie_session_load(y, state, length, error), RIE_OK, error, NULL);
    free(first);
    free(second);
    rie_free(x);
    rie_free(y);
}

static rie_model *load(const char *dir, int map, int64_t weights) {
    rie_model *model = NULL;
    rie_options *options = options_for(map, weights);
    NEED(rie_model_load(dir, options, &model, error), error);
    rie_free(options);
    return model;
}

/* What rie_inspect or rie_inspect_source say, from the key behind the path on; to be freed. */
static char *description(const char *dir, const rie_source *source) {
    size_t length = 0;
    const rie_status small = dir != NULL ? rie_inspect(dir, NULL, NULL, 0, &length, error)
                                         : rie_inspect_source(source, NULL, NULL, 0, &length, error);
    EXPECT(small == RIE_ERR_BUFFER_TOO_SMALL && length > 100);
    char *text = allocate(length + 1);
    NEED(dir != NULL ? rie_inspect(dir, NULL, text, length, &length, error)
                     : rie_inspect_source(source, NULL, text, length, &length, error),
         error);
    text[length] = '\0';
    EXPECT(dir != NULL || strncmp(text, "{\"path\":\"source\",", 17) == 0);
    char *rest = strstr(text, "\"architecture\"");
    EXPECT(rest != NULL);
    memmove(text, rest, strlen(rest) + 1);
    return text;
}

/* Every file in every way, the others in other ways; mapped and read; as stored and quantized. */
static void same_as_the_directory(const struct model_files *files) {
    for (int64_t weights = RIE_WEIGHTS_AS_IS; weights <= RIE_WEIGHTS_INT8; weights++) {
        rie_model *expected = load(files->dir, 1, weights);
        for (int round = 0; round < WAYS * 2 * 2; round++) {
            const int way = round % WAYS, step = round / WAYS % 2, map = round / WAYS / 2;
            struct lent lent[MOST_FILES] = {0};
            rie_source *source = rie_source_new();
            rie_options *options = options_for(map, weights);
            rie_model *model = NULL;
            int count = 0, in_memory = 0, returned = 0;
            for (; files->names[count] != NULL; count++) {
                const int this_way = (way + step * count) % WAYS;
                add(source, files->dir, files->names[count], this_way, &lent[count]);
                in_memory += this_way == BY_MEMORY;
            }
            NEED(rie_model_load_source(source, options, &model, error), error);
            char *plain = description(files->dir, NULL), *mine = description(NULL, source);
            EXPECT(strcmp(plain, mine) == 0);
            free(plain);
            free(mine);
            rie_free(source);
            expect_same(model, expected);
            EXPECT(info(model, RIE_INFO_WEIGHT_BYTES) == info(expected, RIE_INFO_WEIGHT_BYTES));
            for (int i = 0; i < count; i++) {
                const int needed = strcmp(files->names[i], "model.safetensors.index.json") != 0;
                EXPECT(lent[i].returned == 0 || !needed);
            }
            rie_session *session = evaluated(model);
            rie_free(model);
            EXPECT(rie_session_eval(session, 0, error) == RIE_OK); /* it keeps the model and its memory */
            rie_free(session);
            for (int i = 0; i < count; i++) {
                EXPECT(lent[i].returned <= 1);
                returned += lent[i].returned;
            }
            EXPECT(returned == in_memory);
            rie_free(options);
        }
        rie_free(expected);
    }
}

static rie_source *source_of(const struct model_files *files, int way, struct lent *lent) {
    rie_source *source = rie_source_new();
    for (int i = 0; files->names[i] != NULL; i++) {
        add(source, files->dir, files->names[i], way, &lent[i]);
    }
    return source;
}

static void *free_it(void *handle) {
    rie_free(handle);
    return NULL;
}

/* One source for two models, freed in any order, at last in another thread. */
static void a_source_is_used_again(const struct model_files *files) {
    struct lent lent[MOST_FILES] = {0};
    rie_source *source = source_of(files, BY_MEMORY, lent);
    rie_model *first = NULL, *second = NULL;
    pthread_t thread;
    NEED(rie_model_load_source(source, NULL, &first, error), error);
    NEED(rie_model_load_source(source, NULL, &second, error), error);
    expect_same(first, second);
    rie_free(first);
    EXPECT(lent[0].returned == 0);
    rie_free(source);
    EXPECT_STATUS(rie_model_load_source(source, NULL, &first, error), RIE_ERR_HANDLE, error, "source");
    EXPECT(lent[0].returned == 0);
    EXPECT(pthread_create(&thread, NULL, free_it, second) == 0 && pthread_join(thread, NULL) == 0);
    for (int i = 0; files->names[i] != NULL; i++) {
        EXPECT(lent[i].returned == 1);
    }
}

/* A model out of memory is saved as a directory with all its small files. */
static void saved(const struct model_files *files) {
    char path[512];
    for (int way = 0; way < WAYS; way++) {
        struct lent lent[MOST_FILES] = {0};
        rie_source *source = source_of(files, way, lent);
        rie_options *options = options_for(way % 2, RIE_WEIGHTS_INT8);
        rie_model *model = NULL;
        NEED(rie_model_load_source(source, options, &model, error), error);
        rie_free(source);
        rie_free(options);
        snprintf(path, sizeof path, "%s/saved-%d", folder, way);
        NEED(rie_model_save(model, path, NULL, error), error);
        rie_model *again = load(path, way / 2, RIE_WEIGHTS_AS_IS);
        expect_same(model, again);
        rie_token ids[2][16];
        size_t n[2] = {0, 0};
        NEED(rie_tokenize(model, "some text", 9, 0, ids[0], 16, &n[0], error), error);
        NEED(rie_tokenize(again, "some text", 9, 0, ids[1], 16, &n[1], error), error);
        EXPECT(n[0] > 0 && n[0] == n[1] && memcmp(ids[0], ids[1], n[0] * sizeof ids[0][0]) == 0);
        struct file original = read_file(files->dir, "config.json"), copy = read_file(path, "config.json");
        EXPECT(original.size == copy.size && memcmp(original.bytes, copy.bytes, copy.size) == 0);
        free(original.bytes);
        free(copy.bytes);
        rie_free(model);
        rie_free(again);
    }
}

static void decode(const rie_model *model, rie_token *tokens, int n) {
    rie_session *session = evaluated(model);
    for (int i = 0; i < n; i++) {
        tokens[i] = -1;
        EXPECT(rie_decode_step(session, NULL, &tokens[i], error) >= 0);
    }
    rie_free(session);
}

/* What was read stays as it is, whatever happens to the file. */
static void files_that_shrink(const struct model_files *files) {
    enum { STEPS = 10 };
    for (int64_t weights = RIE_WEIGHTS_AS_IS; weights <= RIE_WEIGHTS_INT4; weights++) {
        rie_token expected[STEPS], found[STEPS];
        char path[1024], saved_to[512];
        rie_model *plain = load(files->dir, 1, weights);
        for (int i = 0; files->names[i] != NULL; i++) {
            struct file file = read_file(files->dir, files->names[i]);
            write_file(folder, files->names[i], file);
            free(file.bytes);
        }
        rie_model *read = load(folder, 0, weights);
        snprintf(saved_to, sizeof saved_to, "%s/shrunk-%d", folder, (int)weights);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        EXPECT(truncate(path, 0) == 0);
        decode(plain, expected, STEPS);
        decode(read, found, STEPS);
        EXPECT(memcmp(expected, found, sizeof found) == 0);
        expect_same(plain, read);
        NEED(rie_model_save(read, saved_to, NULL, error), error);
        rie_model *again = load(saved_to, 1, RIE_WEIGHTS_AS_IS);
        expect_same(plain, again);
        rie_free(again);
        rie_free(read);
        rie_free(plain);
    }
}

/* Memory that cannot be added is given back at once. */
static void refused_memory(rie_source *source) {
    unsigned char *const bytes = allocate(5);
    struct lent lent = {0};
    rie_source *stale = rie_source_new();
    rie_free(stale);
    const struct {
        rie_source *source;
        const char *name;
        const void *data;
        rie_status status;
        const char *word;
    } cases[] = {
        {NULL, "a", bytes, RIE_ERR_INVALID_ARGUMENT, "source: NULL"},
        {stale, "a", bytes, RIE_ERR_HANDLE, "source: the handle was freed"},
        {(rie_source *)error, "a", bytes, RIE_ERR_HANDLE, "expected a source, found an error"},
        {source, NULL, bytes, RIE_ERR_INVALID_ARGUMENT, "name: NULL"},
        {source, "", bytes, RIE_ERR_INVALID_ARGUMENT, "name: expected a file's name"},
        {source, "..", bytes, RIE_ERR_INVALID_ARGUMENT, "name: expected a file's name"},
        {source, "a/config.json", bytes, RIE_ERR_INVALID_ARGUMENT, "\"a/config.json\""},
        {source, "a\\b", bytes, RIE_ERR_INVALID_ARGUMENT, "name: expected a file's name"},
        {source, "\xff", bytes, RIE_ERR_UTF8, "name: invalid UTF-8"},
        {source, "config.json", bytes, RIE_ERR_INVALID_ARGUMENT, "has a config.json already"},
        {source, "a", NULL, RIE_ERR_INVALID_ARGUMENT, "data: NULL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lent = (struct lent){0};
        EXPECT_STATUS(
            rie_source_add_memory(cases[i].source, cases[i].name, cases[i].data, 5, take_back, &lent, error),
            cases[i].status, error, cases[i].word);
        EXPECT(lent.returned == 1);
    }
    lent = (struct lent){0};
    EXPECT_CODE(rie_source_add_memory(source, "a", bytes, 5, take_back, &lent, (rie_error *)source), RIE_ERR_HANDLE);
    EXPECT(lent.returned == 1);
    /* Without a function the host keeps it; without bytes it is an empty file. */
    EXPECT_CODE(rie_source_add_memory(source, "b", bytes, 5, NULL, NULL, NULL), RIE_OK);
    EXPECT_CODE(rie_source_add_memory(source, "empty", NULL, 0, NULL, NULL, NULL), RIE_OK);
    EXPECT_STATUS(rie_source_add_path(source, "c", NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "path: NULL");
    EXPECT_STATUS(rie_source_add_path(source, "c", "", error), RIE_ERR_INVALID_ARGUMENT, error, "path");
    EXPECT_STATUS(rie_source_add_path(source, "b", "x", error), RIE_ERR_INVALID_ARGUMENT, error, "has a b already");
    EXPECT_STATUS(rie_source_add_path(NULL, "c", "x", error), RIE_ERR_INVALID_ARGUMENT, error, "source");
    free(bytes); /* nothing reads a file of that name */
}

static void refused_descriptors(rie_source *source, const char *dir) {
    int ends[2];
    const int file = open_fd(dir, "config.json", O_RDONLY), directory = open_fd(dir, ".", O_RDONLY);
    const struct file config = read_file(dir, "config.json");
    EXPECT(pipe(ends) == 0);
    EXPECT_STATUS(rie_source_add_fd(source, "f", -1, 0, 0, error), RIE_ERR_INVALID_ARGUMENT, error, "fd: expected");
    EXPECT_STATUS(rie_source_add_fd(source, "f", 1234567, 0, 0, error), RIE_ERR_IO, error, "fd: 1234567");
    EXPECT_STATUS(rie_source_add_fd(source, "f", ends[0], 0, 0, error), RIE_ERR_IO, error, "f: expected a file");
    EXPECT_STATUS(rie_source_add_fd(source, "f", directory, 0, 0, error), RIE_ERR_IO, error, "found a directory");
    EXPECT_STATUS(rie_source_add_fd(source, "f", file, config.size + 1, 0, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "not within the file's");
    EXPECT_STATUS(rie_source_add_fd(source, "f", file, 1, config.size, error), RIE_ERR_INVALID_ARGUMENT, error, "f: ");
    EXPECT_STATUS(rie_source_add_fd(source, "f", file, UINT64_MAX, UINT64_MAX, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "f: ");
    EXPECT_STATUS(rie_source_add_fd(source, "config.json", file, 0, 0, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "has a config.json already");
    EXPECT_STATUS(rie_source_add_fd(source, "f/", file, 0, 0, error), RIE_ERR_INVALID_ARGUMENT, error, "\"f/\"");
    EXPECT_STATUS(rie_source_add_fd(NULL, "f", file, 0, 0, error), RIE_ERR_INVALID_ARGUMENT, error, "source: NULL");
    EXPECT_STATUS(rie_source_add_fd(source, NULL, file, 0, 0, error), RIE_ERR_INVALID_ARGUMENT, error, "name: NULL");
    free(config.bytes);
    close(file);
    close(directory);
    close(ends[0]);
    close(ends[1]);
}

/* A load from a source that is not as it should be names the file as the host did. */
static void refused_loads(const struct model_files *files) {
    rie_source *source = rie_source_new();
    rie_model *model = NULL;
    rie_options *options = rie_options_new();
    char path[1024], text[16];
    size_t length = 0;
    struct lent lent = {0};
    EXPECT_STATUS(rie_model_load_source(source, NULL, &model, error), RIE_ERR_IO, error, "source: expected model.safe");
    add(source, files->dir, "model.safetensors", BY_MEMORY, &lent);
    EXPECT_STATUS(rie_model_load_source(source, NULL, &model, error), RIE_ERR_IO, error, "config.json: expected");
    EXPECT_STATUS(rie_inspect_source(source, NULL, text, 16, &length, error), RIE_ERR_IO, error, "config.json: expected");
    NEED(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, "/no/such/config.json", error), error);
    EXPECT_STATUS(rie_model_load_source(source, options, &model, error), RIE_ERR_IO, error, "/no/such/config.json");
    snprintf(path, sizeof path, "%s/config.json", files->dir);
    NEED(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, path, error), error);
    NEED(rie_model_load_source(source, options, &model, error), error); /* a path in the options wins */
    rie_free(model);
    model = NULL;
    NEED(rie_source_add_path(source, "config.json", "/no/such/other.json", error), error);
    EXPECT_STATUS(rie_model_load_source(source, NULL, &model, error), RIE_ERR_IO, error, "/no/such/other.json");
    EXPECT_STATUS(rie_model_load_source(source, NULL, NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "out");
    EXPECT_STATUS(rie_model_load_source(NULL, NULL, &model, error), RIE_ERR_INVALID_ARGUMENT, error, "source");
    EXPECT_STATUS(rie_inspect_source(NULL, NULL, text, 16, &length, error), RIE_ERR_INVALID_ARGUMENT, error, "source");
    EXPECT_STATUS(rie_options_set_int(options, RIE_OPT_MAP, 2, error), RIE_ERR_INVALID_ARGUMENT, error, "0 to 1");
    EXPECT(lent.returned == 0);
    rie_free(source);
    EXPECT(lent.returned == 1);

    /* An empty file, one that cannot be read, and one that is no model. */
    source = rie_source_new();
    NEED(rie_source_add_memory(source, "model.safetensors", NULL, 0, take_back, &lent, error), error);
    add(source, files->dir, "config.json", BY_FD, &(struct lent){0});
    lent = (struct lent){0};
    EXPECT_STATUS(rie_model_load_source(source, NULL, &model, error), RIE_ERR_FORMAT, error, "model.safetensors: ");
    refused_memory(source);
    refused_descriptors(source, files->dir);
    rie_free(source);
    EXPECT(lent.returned == 1);
    source = rie_source_new();
    write_text(folder, "write-only", "{}");
    const int fd = open_fd(folder, "write-only", O_WRONLY);
    NEED(rie_source_add_fd(source, "config.json", fd, 0, 0, error), error);
    close(fd);
    add(source, files->dir, "model.safetensors", BY_PATH, &lent);
    EXPECT_STATUS(rie_model_load_source(source, NULL, &model, error), RIE_ERR_IO, error, "config.json: cannot be read");
    EXPECT(model == NULL);
    rie_free(source);
    rie_free(options);
}

static int32_t cancel(void *userdata, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    ++*(int *)userdata;
    return 1;
}

static void cancelled(const struct model_files *files) {
    struct lent lent[MOST_FILES] = {0};
    rie_source *source = source_of(files, BY_PART, lent);
    rie_options *options = options_for(0, RIE_WEIGHTS_AS_IS);
    rie_model *model = NULL;
    int calls = 0;
    NEED(rie_options_set_progress(options, cancel, &calls, error), error);
    EXPECT_STATUS(rie_model_load_source(source, options, &model, error), RIE_ERR_CANCELLED, error, "cancelled");
    EXPECT(calls == 1 && model == NULL);
    rie_free(options);
    rie_free(source);
}

int main(int argc, char **argv) {
    EXPECT(argc == 4);
    error = rie_error_new();
    folder = argv[3];
    const struct model_files single = {argv[1], {"config.json", "model.safetensors", "tokenizer.json", NULL}};
    const struct model_files sharded = {argv[2],
                                        {"config.json", "model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", NULL}};
    same_as_the_directory(&single);
    same_as_the_directory(&sharded);
    a_source_is_used_again(&single);
    a_source_is_used_again(&sharded);
    saved(&single);
    files_that_shrink(&single);
    refused_loads(&single);
    cancelled(&single);
    rie_free(error);
    return result();
}
