/* A conversation with a model on a terminal. See `chat --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "host.h"
#include "rie.h"

static const char help[] =
    "Usage: chat --model DIR|FILE [option]...\n"
    "\n"
    "Reads a message a line from stdin and answers each. The model's own chat template makes the prompt; what an\n"
    "earlier turn has computed is kept, so that a turn costs its own tokens only.\n"
    "\n"
    "  --model DIR|FILE    a Hugging Face model directory, or a .safetensors file\n"
    "  --system TEXT       a message that tells the model how to behave\n"
    "  --template FILE     a chat template (Jinja) in place of the model's\n"
    "  -n N                at most N tokens an answer (default 512)\n"
    "  --temp T            temperature; 0 always takes the likeliest token (default 0.7)\n"
    "  --top-p P           choose among the likeliest that reach probability P (default 0.9)\n"
    "  --seed S            same seed, same answers (default: random)\n"
    "  --speculate N       draft up to N tokens from what was said before (default 0: off)\n"
    "  --threads N         threads (default 0: one for each physical core)\n"
    "  --help              print this text\n"
    "\n"
    "Lines that begin with a slash are commands:\n"
    "  /save FILE          write the conversation and all that is computed of it\n"
    "  /load FILE          go on with a conversation that was saved\n"
    "  /fork               keep the conversation as it is as another branch, and go on with this one\n"
    "  /branch N           go to branch N\n"
    "  /reset              begin anew\n"
    "  /quit               end, as the end of the input does\n"
    "\n"
    "Ctrl-C ends the program. Exit status: 0 done, 1 the library reported an error, 2 wrong command line, 130 Ctrl-C.\n";

enum { MOST_BRANCHES = 64 };

/* Text that grows. */
struct text {
    char *bytes;
    size_t length, room;
};

/* A conversation: its messages as JSON objects with commas between, and the session that has computed them. */
struct branch {
    struct text messages;
    rie_session *session;
};

struct chat {
    const char *system;
    char *template; /* NULL: the model's */
    int64_t max_tokens, speculate;
    rie_error *error;
    rie_model *model;
    rie_sampler *sampler;
    struct branch branches[MOST_BRANCHES];
    size_t count, now;
};

/* ---- Text and JSON ---- */

static void add(struct text *t, const char *bytes, size_t length) {
    if (t->length + length + 1 > t->room) {
        t->room = 2 * (t->length + length + 1);
        t->bytes = realloc(t->bytes, t->room);
        if (t->bytes == NULL) {
            fail("out of memory (%zu bytes)", t->room);
        }
    }
    memcpy(t->bytes + t->length, bytes, length);
    t->length += length;
    t->bytes[t->length] = '\0';
}

static void add_literal(struct text *t, const char *literal) { add(t, literal, strlen(literal)); }

/* Adds UTF-8 text as a JSON string. */
static void add_string(struct text *t, const char *bytes, size_t length) {
    add_literal(t, "\"");
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c < 0x20 || c == '"' || c == '\\') {
            char escaped[8];
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            add_literal(t, escaped);
        } else {
            add(t, bytes + i, 1);
        }
    }
    add_literal(t, "\"");
}

static void add_message(struct text *messages, const char *role, const char *content, size_t length) {
    add_literal(messages, messages->length > 0 ? ", {\"role\": " : "{\"role\": ");
    add_string(messages, role, strlen(role));
    add_literal(messages, ", \"content\": ");
    add_string(messages, content, length);
    add_literal(messages, "}");
}

/* The whole file, to be freed; NULL, with a message, if it cannot be read. */
static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    struct text t = {0};
    char piece[65536];
    size_t n;
    if (file == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        return NULL;
    }
    add(&t, "", 0);
    while ((n = fread(piece, 1, sizeof piece, file)) > 0) {
        add(&t, piece, n);
    }
    const int failed = ferror(file);
    fclose(file);
    if (failed) {
        fprintf(stderr, "cannot read %s\n", path);
        free(t.bytes);
        return NULL;
    }
    *length = t.length;
    return t.bytes;
}

/* ---- Branches ---- */

static struct branch *current(struct chat *c) { return &c->branches[c->now]; }

static void begin(struct chat *c, struct branch *b) {
    b->messages.length = 0;
    add(&b->messages, "", 0); /* so that there are bytes, if only none */
    if (c->system != NULL) {
        add_message(&b->messages, "system", c->system, strlen(c->system));
    }
    check(rie_session_truncate(b->session, 0, c->error), "emptying the session", c->error);
}

static rie_session *new_session(struct chat *c) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    set_int(options, RIE_OPT_SPECULATION, "--speculate", c->speculate, c->error);
    check(rie_session_new(c->model, options, &session, c->error), "making a session", c->error);
    rie_free(options);
    return session;
}

static void fork_branch(struct chat *c) {
    if (c->count == MOST_BRANCHES) {
        fprintf(stderr, "there are %d branches, and no more can be made\n", MOST_BRANCHES);
        return;
    }
    struct branch *b = &c->branches[c->count];
    if (rie_session_fork(current(c)->session, &b->session, c->error) < 0) {
        fprintf(stderr, "%s\n", rie_error_message(c->error));
        return;
    }
    b->messages = (struct text){0};
    add(&b->messages, current(c)->messages.bytes, current(c)->messages.length);
    fprintf(stderr, "branch %zu is kept as it is; this is branch %zu\n", c->count, c->now);
    c->count++;
}

/* ---- Saving: the messages' length in decimal and a newline, the messages, the session's bytes ---- */

static void save(struct chat *c, const char *path) {
    const struct branch *b = current(c);
    size_t size = 0;
    rie_status status = rie_session_save(b->session, NULL, 0, &size, c->error); /* asks for the size */
    if (status != RIE_ERR_BUFFER_TOO_SMALL) {
        check(status, "saving", c->error);
    }
    uint8_t *bytes = allocate(size);
    check(rie_session_save(b->session, bytes, size, &size, c->error), "saving", c->error);
    FILE *file = fopen(path, "wb");
    if (file != NULL) {
        fprintf(file, "%zu\n", b->messages.length);
        fwrite(b->messages.bytes, 1, b->messages.length, file);
        fwrite(bytes, 1, size, file);
    }
    if (file == NULL || ferror(file) || fclose(file) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
    } else {
        char readable[32];
        fprintf(stderr, "saved: %s\n", human_bytes((double)size, readable, sizeof readable));
    }
    free(bytes);
}

static void load(struct chat *c, const char *path) {
    struct branch *b = current(c);
    size_t length = 0;
    char *bytes = read_file(path, &length);
    if (bytes == NULL) {
        return;
    }
    char *end = NULL;
    const unsigned long long messages = strtoull(bytes, &end, 10);
    const size_t head = (size_t)(end - bytes) + 1;
    if (end == bytes || *end != '\n' || messages > length - head) {
        fprintf(stderr, "%s is no saved conversation\n", path);
    } else if (rie_session_load(b->session, (uint8_t *)bytes + head + messages, length - head - (size_t)messages,
                                c->error) < 0) {
        fprintf(stderr, "%s\n", rie_error_message(c->error));
    } else {
        b->messages.length = 0;
        add(&b->messages, bytes + head, (size_t)messages);
        fprintf(stderr, "loaded: %" PRId64 " tokens\n", get_int(b->session, RIE_INFO_TOKENS, c->error));
    }
    free(bytes);
}

/* ---- A turn ---- */

/* The tokens of the conversation with the beginning of an answer, to be freed; NULL if the template refuses it. */
static rie_token *render(struct chat *c, size_t *count) {
    struct text json = {0};
    add_literal(&json, "{\"add_generation_prompt\": true, \"messages\": [");
    add(&json, current(c)->messages.bytes, current(c)->messages.length);
    add_literal(&json, "]");
    if (c->template != NULL) {
        add_literal(&json, ", \"chat_template\": ");
        add_string(&json, c->template, strlen(c->template));
    }
    add_literal(&json, "}");
    rie_token *tokens = NULL;
    rie_status status = rie_chat_tokenize(c->model, json.bytes, json.length, 0, NULL, 0, count, c->error);
    if (status == RIE_ERR_BUFFER_TOO_SMALL) {
        tokens = allocate(*count * sizeof *tokens);
        status = rie_chat_tokenize(c->model, json.bytes, json.length, 0, tokens, *count, count, c->error);
    }
    free(json.bytes);
    check(status, "the chat template", c->error);
    return tokens;
}

/* Leaves in the session the tokens that it shares with `tokens`, from the first on, and queues the others. */
static int queue(struct chat *c, const rie_token *tokens, size_t count) {
    rie_session *session = current(c)->session;
    size_t had = (size_t)get_int(session, RIE_INFO_TOKENS, c->error), same = 0;
    rie_token *old = allocate(had * sizeof *old);
    check(rie_session_tokens(session, old, had, &had, c->error), "the session's tokens", c->error);
    while (same < had && same < count && old[same] == tokens[same]) {
        same++;
    }
    free(old);
    check(rie_session_truncate(session, same, c->error), "truncating the session", c->error);
    if (rie_session_append(session, tokens + same, count - same, c->error) < 0) {
        fprintf(stderr, "%s; /reset begins anew\n", rie_error_message(c->error));
        return 0;
    }
    return 1;
}

/* Answers the line, printing as the answer comes, and adds both to the conversation. */
static void answer(struct chat *c, const char *line, size_t length) {
    struct branch *b = current(c);
    const size_t before = b->messages.length;
    add_message(&b->messages, "user", line, length);
    size_t count = 0;
    rie_token *tokens = render(c, &count);
    const int queued = queue(c, tokens, count);
    free(tokens);
    if (!queued) {
        b->messages.length = before; /* as if it had not been said */
        return;
    }
    rie_text_stream *stream = NULL;
    check(rie_text_stream_new(c->model, RIE_TEXT_SKIP_SPECIAL, &stream, c->error), "making a text stream", c->error);
    struct text said = {0};
    add(&said, "", 0);
    for (int64_t i = 0, going = 1; going && !interrupted; i++) {
        rie_token token = -1; /* flushes the stream */
        going = i < c->max_tokens;
        if (going) {
            const rie_status status = rie_decode_step(b->session, c->sampler, &token, c->error);
            if (status == RIE_ERR_CONTEXT_FULL) {
                fprintf(stderr, "[the context is full]");
            } else {
                check(status, "decoding", c->error);
            }
            going = status == RIE_OK;
            token = going ? token : -1;
        }
        size_t n = 0;
        char *piece = push_token(stream, token, &n, c->error);
        add(&said, piece, n);
        fwrite(piece, 1, n, stdout);
        fflush(stdout);
        free(piece);
    }
    putchar('\n');
    add_message(&b->messages, "assistant", said.bytes, said.length);
    free(said.bytes);
    rie_free(stream);
}

/* ---- The loop ---- */

/* Obeys a line that begins with a slash; 0 if it was the last. */
static int obey(struct chat *c, const char *line) {
    char *end = NULL;
    if (strcmp(line, "/quit") == 0) {
        return 0;
    } else if (strncmp(line, "/save ", 6) == 0) {
        save(c, line + 6);
    } else if (strncmp(line, "/load ", 6) == 0) {
        load(c, line + 6);
    } else if (strcmp(line, "/fork") == 0) {
        fork_branch(c);
    } else if (strncmp(line, "/branch ", 8) == 0) {
        const unsigned long long n = strtoull(line + 8, &end, 10);
        if (end == line + 8 || *end != '\0' || n >= c->count) {
            fprintf(stderr, "the branches are 0 to %zu\n", c->count - 1);
        } else {
            c->now = (size_t)n;
        }
    } else if (strcmp(line, "/reset") == 0) {
        begin(c, current(c));
    } else {
        fprintf(stderr, "%s: no such command: /save FILE, /load FILE, /fork, /branch N, /reset, /quit\n", line);
    }
    return 1;
}

int main(int argc, char **argv) {
    const char *model = NULL, *template = NULL, *seed = NULL;
    int64_t threads = 0;
    double temperature = 0.7, top_p = 0.9;
    struct chat c = {.max_tokens = 512, .count = 1};
    const struct arg args[] = {
        {"--model", ARG_STR, &model},          {"--system", ARG_STR, &c.system},       {"--template", ARG_STR, &template},
        {"-n", ARG_INT, &c.max_tokens},        {"--temp", ARG_FLOAT, &temperature},    {"--top-p", ARG_FLOAT, &top_p},
        {"--speculate", ARG_INT, &c.speculate}, {"--seed", ARG_STR, &seed},            {"--threads", ARG_INT, &threads},
        {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (model == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    catch_interrupt(0);
    size_t length = 0;
    if (template != NULL && (c.template = read_file(template, &length)) == NULL) {
        exit(EXIT_ERROR);
    }
    c.error = rie_error_new();
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", threads, c.error);
    set_float(options, RIE_OPT_TEMPERATURE, "--temp", temperature, c.error);
    set_float(options, RIE_OPT_TOP_P, "--top-p", top_p, c.error);
    if (seed != NULL) {
        set_int(options, RIE_OPT_SEED, "--seed", parse_int("--seed", seed), c.error);
    }
    c.model = load_model(model, options, c.error);
    check(rie_sampler_new(options, &c.sampler, c.error), "making a sampler", c.error);
    rie_free(options);
    c.branches[0].session = new_session(&c);
    begin(&c, current(&c));

    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    const int terminal = isatty(STDIN_FILENO);
    while (!interrupted) {
        if (terminal) {
            printf("> ");
            fflush(stdout);
        }
        if ((n = getline(&line, &room, stdin)) < 0) {
            break;
        }
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
            line[--n] = '\0';
        }
        if (line[0] == '/') {
            if (!obey(&c, line)) {
                break;
            }
        } else if (n > 0) {
            answer(&c, line, (size_t)n);
        }
    }
    free(line);
    for (size_t i = 0; i < c.count; i++) {
        free(c.branches[i].messages.bytes);
        rie_free(c.branches[i].session);
    }
    free(c.template);
    rie_free(c.sampler);
    rie_free(c.model);
    rie_free(c.error);
    return interrupted ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}
