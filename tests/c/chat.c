/* Chat templates through the ABI: rendering, tokenizing, and what goes wrong.
 *
 *     chat MODEL MODEL-WITHOUT-TEMPLATE     (models with a byte-level tokenizer, <s> 1 and </s> 2)
 */
#include "check.h"

static rie_error *error;
static rie_model *model, *bare;

static const char HELLO[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi</s>\"}]}";

static rie_status render(const rie_model *m, const char *json, char *buf, size_t cap, size_t *len) {
    return rie_chat_render(m, json, strlen(json), buf, cap, len, error);
}

/* A request with a template of its own. */
static rie_status own(const char *template, char *buf, size_t cap, size_t *len) {
    char json[4096];
    snprintf(json, sizeof json, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template\": \"%s\"}",
             template);
    return render(bare, json, buf, cap, len);
}

static void renders(void) {
    char buf[64] = "................";
    size_t len = 0;
    EXPECT_STATUS(render(model, HELLO, NULL, 0, &len), RIE_ERR_BUFFER_TOO_SMALL, error, "13");
    EXPECT(len == 13);
    len = 0;
    EXPECT_STATUS(render(model, HELLO, buf, 12, &len), RIE_ERR_BUFFER_TOO_SMALL, error, "13");
    EXPECT(len == 13 && buf[0] == '.');
    EXPECT_STATUS(render(model, HELLO, buf, 13, &len), RIE_OK, error, NULL);
    EXPECT(len == 13 && memcmp(buf, "<s>Hi</s></s>.", 14) == 0);
    const char *tools = "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"b\": 1, \"a\": \"\\u00e9<\"}], \"chat_template\": "
                        "\"tool_use\"}";
    EXPECT_STATUS(render(model, tools, buf, sizeof buf, &len), RIE_OK, error, NULL);
    static const char written[] = "tools: [{\"b\": 1, \"a\": \"\xC3\xA9<\"}]";
    EXPECT(len == sizeof written - 1 && memcmp(buf, written, len) == 0);
    EXPECT_STATUS(own("{{ messages[0].role }}", buf, sizeof buf, &len), RIE_OK, error, NULL);
    EXPECT(len == 4 && memcmp(buf, "user", 4) == 0);
}

static void tokenizes(void) {
    rie_token ids[16] = {-9, -9}, plain[8];
    size_t n = 0, plain_n = 0;
    EXPECT_STATUS(rie_chat_tokenize(model, HELLO, strlen(HELLO), 0, ids, 1, &n, error), RIE_ERR_BUFFER_TOO_SMALL, error,
                  "8");
    EXPECT(n == 8 && ids[0] == -9);
    /* <s>, "Hi</s>" byte by byte, </s> */
    EXPECT_STATUS(rie_chat_tokenize(model, HELLO, strlen(HELLO), 0, ids, 16, &n, error), RIE_OK, error, NULL);
    EXPECT_STATUS(rie_tokenize(model, "Hi</s>", 6, 0, plain, 8, &plain_n, error), RIE_OK, error, NULL);
    EXPECT(n == 8 && plain_n == 6 && ids[0] == 1 && ids[7] == 2 && memcmp(ids + 1, plain, 6 * sizeof *ids) == 0);
    EXPECT_STATUS(rie_chat_tokenize(model, HELLO, strlen(HELLO), RIE_TEXT_PARSE_SPECIAL, ids, 16, &n, error), RIE_OK,
                  error, NULL);
    EXPECT(n == 5 && ids[0] == 1 && ids[3] == 2 && ids[4] == 2);
    EXPECT_STATUS(rie_chat_tokenize(model, HELLO, strlen(HELLO), RIE_TEXT_ADD_SPECIAL, ids, 16, &n, error),
                  RIE_ERR_INVALID_ARGUMENT, error, "flags");
}

static void bad_requests(void) {
    char buf[64];
    size_t len = 7;
    EXPECT_STATUS(render(bare, HELLO, buf, sizeof buf, &len), RIE_ERR_TEMPLATE, error, "no chat template");
    EXPECT_STATUS(render(model, "{\"messages\": [}", buf, sizeof buf, &len), RIE_ERR_INVALID_ARGUMENT, error, "column 15");
    EXPECT_STATUS(render(model, "", buf, sizeof buf, &len), RIE_ERR_INVALID_ARGUMENT, error, "json");
    EXPECT_STATUS(render(model, "{}", buf, sizeof buf, &len), RIE_ERR_INVALID_ARGUMENT, error, "messages");
    EXPECT_STATUS(render(model, "\xFF", buf, sizeof buf, &len), RIE_ERR_UTF8, error, "byte 0");
    EXPECT_STATUS(rie_chat_render(NULL, HELLO, 1, buf, sizeof buf, &len, error), RIE_ERR_INVALID_ARGUMENT, error, "model");
    EXPECT_STATUS(rie_chat_render(model, NULL, 5, buf, sizeof buf, &len, error), RIE_ERR_INVALID_ARGUMENT, error, "json");
    EXPECT_STATUS(rie_chat_render(model, HELLO, strlen(HELLO), NULL, 5, &len, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "buf");
    EXPECT_STATUS(rie_chat_render(model, HELLO, strlen(HELLO), buf, 5, NULL, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "len");
    EXPECT_CODE(rie_chat_render(model, "{}", 2, buf, sizeof buf, &len, NULL), RIE_ERR_INVALID_ARGUMENT);
    EXPECT_STATUS(rie_chat_tokenize(model, NULL, 5, 0, NULL, 0, &len, error), RIE_ERR_INVALID_ARGUMENT, error, "json");
    EXPECT_STATUS(rie_chat_tokenize(NULL, HELLO, 5, 0, NULL, 0, &len, error), RIE_ERR_INVALID_ARGUMENT, error, "model");
    EXPECT(len == 7);
}

static void failing_templates(void) {
    static const struct {
        const char *template, *word;
    } cases[] = {
        {"{{ raise_exception('Roles must alternate') }}", "line 1: raise_exception: Roles must alternate"},
        {"a\\n{% if %}", "line 2: syntax error"},
        {"{{ a.b }}", "undefined"},
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too much work"},
        {"{% set ns = namespace(x='abcdefgh') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
         "too much work"},
        {"{% set ns = namespace() %}{% set ns.a = ns %}{{ '' ~ ns }}", "namespace"},
        {"{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}", "too deep"},
        {"{% macro m(x) %}{{ m([x, x]) }}{% endmacro %}{{ m(1) }}", ""},
        {"{{ 'a' * 1000000000 }}", ""},
        {"{{ range(1000000000) | list }}", ""},
    };
    char buf[64];
    size_t len = 7;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        EXPECT_STATUS(own(cases[i].template, buf, sizeof buf, &len), RIE_ERR_TEMPLATE, error, cases[i].word);
    }
    EXPECT(len == 7);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        puts("usage: chat MODEL MODEL-WITHOUT-TEMPLATE");
        return 2;
    }
    error = rie_error_new();
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    NEED(rie_model_load(argv[2], NULL, &bare, error), error);
    if (argc == 3) {
        renders();
        tokenizes();
        bad_requests();
        EXPECT(info(model, RIE_INFO_EOS_TOKEN) == 2);
    }
    failing_templates();
    rie_free(model);
    rie_free(bare);
    rie_free(error);
    return result();
}
