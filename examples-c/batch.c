/* Continues many prompts at once. See `batch --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "host.h"
#include "rie.h"

static const char help[] =
    "Usage: batch --model DIR|FILE --prompts FILE [option]...\n"
    "\n"
    "Continues each line of FILE and prints them with their continuations, in the order of the file. The prompts are\n"
    "decoded together: one pass over the weights gives each of them its next token, and when one has ended the next\n"
    "one joins. What a prompt becomes does not depend on the others.\n"
    "\n"
    "  --model DIR|FILE    a Hugging Face model directory, or a .safetensors file\n"
    "  --prompts FILE      one prompt a line, empty lines left out; - is stdin\n"
    "  -n N                generate at most N tokens for each (default 64)\n"
    "  --at-once N         sessions that decode together (default 16)\n"
    "  --temp T            temperature; 0 always takes the likeliest token (default 0)\n"
    "  --seed S            prompt i samples with seed S + i (default 0)\n"
    "  --threads N         threads (default 0: one for each physical core)\n"
    "  --help              print this text\n"
    "\n"
    "Tokens/s, in total and for each prompt, go to stderr. A prompt that fails is reported there and fails no other.\n"
    "Exit status: 0 done, 1 an error, also of a single prompt, 2 wrong command line, 130 interrupted by Ctrl-C.\n";

struct settings {
    const char *model, *prompts;
    int64_t max_tokens, at_once, seed, threads;
    double temperature;
};

/* One line of the file and what becomes of it. */
struct prompt {
    char *text;
    char *output;
    size_t output_length;
    int64_t generated;
    double started, ended; /* seconds; 0: not yet */
    int failed;
    rie_session *session;
    rie_sampler *sampler;
    rie_text_stream *stream;
};

static struct settings read_settings(int argc, char **argv) {
    struct settings s = {.max_tokens = 64, .at_once = 16};
    const struct arg args[] = {
        {"--model", ARG_STR, &s.model},     {"--prompts", ARG_STR, &s.prompts},  {"-n", ARG_INT, &s.max_tokens},
        {"--at-once", ARG_INT, &s.at_once}, {"--temp", ARG_FLOAT, &s.temperature}, {"--seed", ARG_INT, &s.seed},
        {"--threads", ARG_INT, &s.threads}, {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (s.model == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    if (s.prompts == NULL) {
        fail_usage("--prompts: a file with one prompt a line is needed");
    }
    if (s.max_tokens < 1) {
        fail_usage("-n: must be at least 1");
    }
    if (s.at_once < 1 || s.at_once > 4096) {
        fail_usage("--at-once: must be 1 to 4096");
    }
    return s;
}

/* The lines of the file that are not empty. */
static struct prompt *read_prompts(const char *path, size_t *count) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (file == NULL) {
        fail("--prompts: cannot read %s", path);
    }
    struct prompt *prompts = NULL;
    char *line = NULL;
    size_t cap = 0, room = 0;
    ssize_t length;
    *count = 0;
    while ((length = getline(&line, &cap, file)) >= 0) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r')) {
            line[--length] = '\0';
        }
        if (length == 0) {
            continue;
        }
        if (*count == room) {
            room = room > 0 ? 2 * room : 16;
            prompts = realloc(prompts, room * sizeof *prompts);
            if (prompts == NULL) {
                fail("out of memory (%zu prompts)", room);
            }
        }
        struct prompt *prompt = &prompts[(*count)++];
        memset(prompt, 0, sizeof *prompt);
        prompt->text = allocate((size_t)length + 1);
        memcpy(prompt->text, line, (size_t)length + 1);
    }
    free(line);
    if (file != stdin) {
        fclose(file);
    }
    if (*count == 0) {
        fail("--prompts: %s holds no prompt", path);
    }
    return prompts;
}

static void end(struct prompt *p) {
    p->ended = now();
    rie_free(p->session);
    rie_free(p->sampler);
    rie_free(p->stream);
}

static void report(struct prompt *p, size_t index, rie_status status, const char *message) {
    clear_progress();
    fprintf(stderr, "batch: prompt %zu: %s: %s\n", index + 1, rie_status_name(status), message);
    p->failed = 1;
    end(p);
}

/* Appends the text that a token settles to the prompt's output. */
static void take_text(struct prompt *p, rie_token token, rie_error *error) {
    size_t length = 0;
    char *text = push_token(p->stream, token, &length, error);
    char *longer = realloc(p->output, p->output_length + length + 1);
    if (longer == NULL) {
        fail("out of memory (%zu bytes)", p->output_length + length);
    }
    memcpy(longer + p->output_length, text, length);
    p->output = longer;
    p->output_length += length;
    free(text);
}

/* Gives the prompt a session with its tokens queued. A prompt that does not work is reported and left out. */
static void start(struct prompt *p, size_t index, const struct settings *s, const rie_model *model, rie_error *error) {
    rie_options *options = rie_options_new();
    set_float(options, RIE_OPT_TEMPERATURE, "--temp", s->temperature, error);
    set_int(options, RIE_OPT_SEED, "--seed", s->seed + (int64_t)index, error);
    check(rie_sampler_new(options, &p->sampler, error), "making a sampler", error);
    rie_free(options);
    check(rie_session_new(model, NULL, &p->session, error), "making a session", error);
    check(rie_text_stream_new(model, RIE_TEXT_SKIP_SPECIAL, &p->stream, error), "making a text stream", error);
    size_t count = 0;
    rie_token *tokens = tokenize(model, p->text, strlen(p->text), RIE_TEXT_ADD_SPECIAL, &count, error);
    p->started = now();
    const rie_status status = rie_session_append(p->session, tokens, count, error);
    for (size_t i = 0; i < count && status == RIE_OK; i++) {
        size_t length = 0;
        free(push_token(p->stream, tokens[i], &length, error)); /* a token's text can depend on those before */
    }
    free(tokens);
    if (status < 0) {
        report(p, index, status, rie_error_message(error));
    }
}

/* What a step came to for one prompt. */
static void advance(struct prompt *p, size_t index, rie_status status, rie_token token, int64_t most, rie_error *error) {
    if (status == RIE_PENDING) {
        return;
    }
    if (status < 0) {
        /* The batch's error object has the first failure only; the session says it again for itself. */
        rie_token none = 0;
        const rie_status again = rie_decode_step(p->session, NULL, &none, error);
        report(p, index, status, again < 0 ? rie_error_message(error) : "");
        return;
    }
    if (status == RIE_OK) {
        take_text(p, token, error);
        p->generated++;
    }
    if (status == RIE_END || p->generated == most) {
        take_text(p, -1, error);
        end(p);
    }
}

static void show(size_t done, size_t total, size_t running, int64_t tokens, double seconds) {
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%zu of %zu done, %zu decoding, %.1f tokens/s\033[K", done, total, running,
                seconds > 0 ? (double)tokens / seconds : 0.0);
        fflush(stderr);
    }
}

/* Decodes all prompts, `at_once` together; returns how many tokens were generated. */
static int64_t run(struct prompt *prompts, size_t count, const struct settings *s, const rie_model *model,
                   rie_error *error) {
    const size_t at_once = (size_t)s->at_once;
    size_t *running = allocate(at_once * sizeof *running); /* indices of prompts */
    rie_session **sessions = allocate(at_once * sizeof *sessions);
    rie_sampler **samplers = allocate(at_once * sizeof *samplers);
    rie_token *tokens = allocate(at_once * sizeof *tokens);
    rie_status *statuses = allocate(at_once * sizeof *statuses);
    const double begin = now();
    size_t n = 0, next = 0;
    int64_t generated = 0;
    while (!interrupted) {
        while (n < at_once && next < count) {
            start(&prompts[next], next, s, model, error);
            if (prompts[next].ended == 0) {
                running[n++] = next;
            }
            next++;
        }
        if (n == 0) {
            break;
        }
        for (size_t i = 0; i < n; i++) {
            sessions[i] = prompts[running[i]].session;
            samplers[i] = prompts[running[i]].sampler;
        }
        check(rie_decode_batch(sessions, samplers, n, tokens, statuses, error), "decoding", error);
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            struct prompt *p = &prompts[running[i]];
            generated -= p->generated;
            advance(p, running[i], statuses[i], tokens[i], s->max_tokens, error);
            generated += p->generated;
            if (p->ended == 0) {
                running[left++] = running[i];
            }
        }
        n = left;
        show(next - n, count, n, generated, now() - begin);
    }
    for (size_t i = 0; i < n; i++) {
        end(&prompts[running[i]]); /* interrupted */
    }
    clear_progress();
    free(statuses);
    free(tokens);
    free(samplers);
    free(sessions);
    free(running);
    return generated;
}

int main(int argc, char **argv) {
    const struct settings s = read_settings(argc, argv);
    catch_interrupt(1);
    size_t count = 0;
    struct prompt *prompts = read_prompts(s.prompts, &count);
    rie_error *error = rie_error_new();
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", s.threads, error);
    rie_model *model = load_model(s.model, options, error);
    rie_free(options);

    const double begin = now();
    const int64_t generated = run(prompts, count, &s, model, error);
    const double seconds = now() - begin;
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        struct prompt *p = &prompts[i];
        if (p->started > 0 && !p->failed) {
            printf("%s%.*s\n\n", p->text, (int)p->output_length, p->output != NULL ? p->output : "");
            fprintf(stderr, "prompt %zu: %" PRId64 " tokens, %.1f tokens/s\n", i + 1, p->generated,
                    (double)p->generated / (p->ended - p->started));
        }
        failed |= p->failed;
        free(p->text);
        free(p->output);
    }
    fprintf(stderr, "all: %" PRId64 " tokens in %.2f s, %.1f tokens/s\n", generated, seconds,
            (double)generated / seconds);
    free(prompts);
    rie_free(model);
    rie_free(error);
    if (fflush(stdout) != 0) {
        fail("stdout: cannot write");
    }
    return interrupted ? EXIT_INTERRUPTED : failed ? EXIT_ERROR : EXIT_SUCCESS;
}
