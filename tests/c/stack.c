/* Everything runs on a host thread with a stack of 256 KiB, whatever the files say.
 *
 *     stack MODEL DIRECTORY HOSTILE...     (an empty directory; more models, which may fail to load)
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "host.h"

enum { STACK_BYTES = 256 << 10, PAINT = 0x5a };

static char **paths;
static const char *directory;

static void text(const rie_model *model, rie_error *error) {
    enum { LONG = 20000, ROOM = 4 * LONG };
    char *long_text = allocate(LONG), *out = allocate(ROOM * 4);
    rie_token *ids = allocate(ROOM * sizeof *ids);
    size_t n = 0, len = 0;
    /* Kinds of text that regular expressions go far ahead in. */
    static const char *const pieces[] = {"a", " ", "1", "\n", "'", "(", "Ab", "\xc3\xa4", "\xf0\x9f\x98\x80", "don't 12,3!\r\n"};
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        const size_t length = strlen(pieces[p]), whole = LONG / length * length;
        for (size_t i = 0; i < whole; i++) {
            long_text[i] = pieces[p][i % length];
        }
        const rie_status status = rie_tokenize(model, long_text, whole, 3, ids, ROOM, &n, error);
        EXPECT(status == RIE_OK || status == RIE_ERR_TOKENIZER);
        if (status == RIE_OK) {
            EXPECT_STATUS(rie_detokenize(model, ids, n, 0, out, ROOM * 4, &len, error), RIE_OK, error, NULL);
        }
    }
    free(long_text), free(ids), free(out);
}

/* `n` times `open`, then `n` times `close`, in `json` at "@". */
static char *nested(const char *json, const char *open, const char *close, int n) {
    char *text = allocate(strlen(json) + (size_t)n * (strlen(open) + strlen(close)) + 1);
    const char *at = strchr(json, '@');
    text[0] = '\0';
    strncat(text, json, (size_t)(at - json));
    for (int i = 0; i < n; i++) strcat(text, open);
    for (int i = 0; i < n; i++) strcat(text, close);
    return strcat(text, at + 1);
}

static void chat(const rie_model *model, rie_error *error) {
    static const char plain[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], ";
    static const struct { const char *json, *open, *close; } requests[] = {
        {"\"x\": @, \"chat_template\": \"{{ x }}{{ x|tojson }}\"}", "[", "]"},
        {"\"x\": @, \"chat_template\": \"{% for a in x recursive %}{{ loop(a) }}{% endfor %}\"}", "[", "]"},
        {"\"chat_template\": \"@\"}", "{% if x %}", "{% endif %}"},
        {"\"chat_template\": \"{{ @ }}\"}", "(", ")"},
        {"\"chat_template\": \"{{ @ }}\"}", "not ", ""},
        {"\"chat_template\": \"{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}@\"}", "", ""},
    };
    const int depths[] = {1, 100, 120, 1000, 10000};
    char *out = allocate(1 << 20);
    rie_token ids[64];
    for (size_t r = 0; r < sizeof requests / sizeof requests[0]; r++) {
        for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
            char *rest = nested(requests[r].json, requests[r].open, requests[r].close, depths[d]);
            char *json = allocate(sizeof plain + strlen(rest) + 1);
            size_t len = 0;
            strcat(strcpy(json, plain), rest);
            rie_chat_render(model, json, strlen(json), out, 1 << 20, &len, error);
            rie_chat_tokenize(model, json, strlen(json), 0, ids, 64, &len, error);
            free(json), free(rest);
        }
    }
    free(out);
}

static void *everything(void *unused) {
    (void)unused;
    rie_error *error = rie_error_new();
    for (char **path = paths; *path != NULL; path++) {
        rie_model *model = NULL;
        char *json = allocate(1 << 22), name[1024];
        size_t len = 0;
        rie_inspect(*path, NULL, json, 1 << 22, &len, error);
        free(json);
        const rie_status status = rie_model_load(*path, NULL, &model, error);
        EXPECT(path != paths || status == RIE_OK);
        if (status == RIE_OK) {
            rie_session *session = NULL;
            generate(model, NULL, NULL, error);
            text(model, error);
            chat(model, error);
            NEED(rie_session_new(model, NULL, &session, error), error);
            NEED(rie_session_append(session, prompt_of_host, PROMPT_OF_HOST, error), error);
            NEED(rie_session_eval(session, 0, error), error);
            EXPECT_CODE(rie_session_save(session, NULL, 0, &len, NULL), RIE_ERR_BUFFER_TOO_SMALL);
            uint8_t *saved = allocate(len);
            NEED(rie_session_save(session, saved, len, &len, error), error);
            NEED(rie_session_load(session, saved, len, error), error);
            free(saved);
            if (path == paths) {
                snprintf(name, sizeof name, "%s/copy", directory);
                EXPECT_STATUS(rie_model_save(model, name, NULL, error), RIE_OK, error, NULL);
            }
            rie_free(session);
        }
        rie_free(model);
    }
    rie_free(error);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        puts("stack MODEL DIRECTORY HOSTILE...");
        return 2;
    }
    directory = argv[2];
    argv[2] = argv[1];
    paths = argv + 2;
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE) * 16;
    unsigned char *memory = mmap(NULL, guard + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED && mprotect(memory, guard, PROT_NONE) == 0);
    memset(memory + guard, PAINT, STACK_BYTES);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    EXPECT(pthread_attr_setstack(&attributes, memory + guard, STACK_BYTES) == 0);
    EXPECT(pthread_create(&thread, &attributes, everything, NULL) == 0);
    pthread_join(thread, NULL);
    size_t untouched = 0;
    while (untouched < STACK_BYTES && memory[guard + untouched] == PAINT) {
        untouched++;
    }
    printf("%d KiB of stack used\n", (int)((STACK_BYTES - untouched) >> 10));
    return result();
}
