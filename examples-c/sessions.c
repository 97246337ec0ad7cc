#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "host.h"

enum { PREFIX = 1000, OWN = 8, FORKS = 1000, OTHERS = 8, LONG_PROMPT = 4000, REWIND = 100, DRAFT = 7, CONTINUED = 96 };

static const char repeating[] =
    "fn area(width: f64, height: f64) -> f64 {\n    let product = width * height;\n    product\n}\n\n"
    "fn main() {\n    let first = area(2.0, 3.5);\n    let second = area(4.0, 1.5);\n"
    "    println!(\"The areas are {first} and {second}.\");\n}\n";
static const char prose[] = "On a cold morning in the north of the country, an old man walked down to the harbour to see";

static rie_session *new_session(const rie_model *model, int share, int speculation, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    set_int(options, RIE_OPT_CONTEXT, "context", LONG_PROMPT + 200, error);
    set_int(options, RIE_OPT_SHARE_PREFIXES, "sharing prefixes", share, error);
    set_int(options, RIE_OPT_SPECULATION, "speculation", speculation, error);
    check(rie_session_new(model, options, &session, error), "making a session", error);
    rie_free(options);
    return session;
}

/* Made-up tokens, other ones for each `series` from position `from` on. */
static void append(rie_session *session, const rie_model *model, int series, size_t from, size_t count, rie_error *error) {
    const size_t vocab = (size_t)get_int(model, RIE_INFO_VOCAB_SIZE, error);
    rie_token *tokens = allocate(count * sizeof *tokens);
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (rie_token)(((from + i) * 7919 + (size_t)series * 104729 + 1) % vocab);
    }
    check(rie_session_append(session, tokens, count, error), "appending tokens", error);
    free(tokens);
}

/* Seconds of a decode step, past the end of a text too. */
static double step(rie_session *session, rie_sampler *sampler, rie_error *error) {
    rie_token token = 0;
    const double start = now();
    const rie_status status = rie_decode_step(session, sampler, &token, error);
    check(status, "decoding", error);
    if (status == RIE_END) {
        check(rie_session_append(session, &token, 1, error), "appending a token", error);
    }
    return now() - start;
}

/* Bytes of memory in use, 0 where the system does not say. */
static double resident(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long long total = 0, pages = 0;
    if (file == NULL) {
        return 0;
    }
    const int found = fscanf(file, "%lld %lld", &total, &pages);
    fclose(file);
    return found == 2 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : 0;
}

/* The first token of a prompt of PREFIX + OWN tokens, whose prefix another session has, against computing all of it. */
static double prefix_share(const rie_model *model, int repetitions, rie_error *error) {
    double *ratios = allocate((size_t)repetitions * sizeof *ratios);
    rie_session *living = new_session(model, 1, 0, error);
    append(living, model, 0, 0, PREFIX, error);
    append(living, model, 1, PREFIX, OWN, error);
    step(living, NULL, error);
    for (int i = 0; i < repetitions; i++) {
        double seconds[2];
        for (int share = 0; share < 2; share++) {
            rie_session *session = new_session(model, share, 0, error);
            append(session, model, 0, 0, PREFIX, error);
            append(session, model, 2, PREFIX, OWN, error);
            seconds[share] = step(session, NULL, error);
            rie_free(session);
        }
        ratios[i] = seconds[1] / seconds[0];
    }
    rie_free(living);
    const double result = median(ratios, (size_t)repetitions);
    free(ratios);
    return result;
}

/* Microseconds of a fork of PREFIX tokens, and megabytes that FORKS of them take. */
static void forks(const rie_model *model, double *microseconds, double *megabytes, rie_error *error) {
    static rie_session *made[FORKS];
    static double samples[FORKS];
    rie_session *session = new_session(model, 1, 0, error);
    append(session, model, 0, 0, PREFIX, error);
    step(session, NULL, error);
    const double before = resident();
    for (int i = 0; i < FORKS; i++) {
        const double start = now();
        check(rie_session_fork(session, &made[i], error), "forking", error);
        samples[i] = (now() - start) * 1e6;
    }
    *megabytes = (resident() - before) / 1e6;
    *microseconds = median(samples, FORKS);
    for (int i = 0; i < FORKS; i++) {
        rie_free(made[i]);
    }
    rie_free(session);
}

/* Durations of steps, as multiples of the median of those without a long prompt. */
struct durations {
    double median, p99, longest;
};

static struct durations durations(double *seconds, size_t count, double usual) {
    return (struct durations){median(seconds, count) / usual, percentile(seconds, count, 99) / usual,
                              percentile(seconds, count, 100) / usual};
}

/* How long steps of OTHERS sessions take while a long prompt is fed in beside them, and how long without it: of three steps
 * in turn two have it, so that both meet the same contexts and the same moods of the machine. */
static void stalls(const rie_model *model, struct durations *beside, struct durations *without, rie_error *error) {
    rie_session *sessions[OTHERS + 1];
    rie_token tokens[OTHERS + 1];
    rie_status statuses[OTHERS + 1];
    static double normal[LONG_PROMPT], fed[LONG_PROMPT];
    for (int i = 0; i <= OTHERS; i++) {
        sessions[i] = new_session(model, 0, 0, error);
    }
    for (int i = 0; i < OTHERS; i++) {
        append(sessions[i], model, i + 1, 0, OWN, error);
    }
    append(sessions[OTHERS], model, 99, 0, LONG_PROMPT, error);
    check(rie_decode_batch(sessions, NULL, OTHERS, tokens, statuses, error), "decoding", error); /* the prompts */
    size_t fed_count = 0, normal_count = 0;
    statuses[OTHERS] = RIE_PENDING;
    for (int i = 1; statuses[OTHERS] == RIE_PENDING; i++) {
        const int with = i % 3 > 0;
        const double start = now();
        check(rie_decode_batch(sessions, NULL, OTHERS + with, tokens, statuses, error), "decoding", error);
        const double seconds = now() - start;
        for (int k = 0; k < OTHERS; k++) {
            check(statuses[k], "decoding", error);
            if (i % REWIND == 0) { /* their contexts stay short */
                check(rie_session_truncate(sessions[k], OWN, error), "truncating a session", error);
            } else if (statuses[k] == RIE_END) { /* measured on, past the end of the text */
                check(rie_session_append(sessions[k], &tokens[k], 1, error), "appending a token", error);
            }
        }
        check(statuses[OTHERS], "the long prompt", error);
        if (with) {
            fed[fed_count++] = seconds;
        } else {
            normal[normal_count++] = seconds;
        }
    }
    const double usual = median(normal, normal_count);
    *beside = durations(fed, fed_count, usual);
    *without = durations(normal, normal_count, usual);
    for (int i = 0; i <= OTHERS; i++) {
        rie_free(sessions[i]);
    }
}

/* A sampler that draws from the model's own distribution, the same each time. */
static rie_sampler *new_sampler(rie_error *error) {
    rie_options *options = rie_options_new();
    rie_sampler *sampler = NULL;
    set_int(options, RIE_OPT_SEED, "seed", 7, error);
    check(rie_sampler_new(options, &sampler, error), "making a sampler", error);
    rie_free(options);
    return sampler;
}

/* Tokens per second with speculation, as a multiple of those without, for what continues the text `times` times over: the
 * likeliest tokens, or drawn ones, which do not fall into repetitions as those of a small model do. */
static double speculation(const rie_model *model, const char *text, int times, int drawn, int repetitions,
                          rie_error *error) {
    double *ratios = allocate((size_t)repetitions * sizeof *ratios);
    size_t count = 0;
    rie_token *tokens = tokenize(model, text, strlen(text), RIE_TEXT_ADD_SPECIAL, &count, error);
    for (int i = 0; i < repetitions; i++) {
        double seconds[2] = {0, 0};
        for (int with = 0; with < 2; with++) {
            rie_session *session = new_session(model, 0, with ? DRAFT : 0, error);
            rie_sampler *sampler = drawn ? new_sampler(error) : NULL;
            for (int t = 0; t < times; t++) {
                check(rie_session_append(session, tokens, count, error), "appending tokens", error);
            }
            step(session, sampler, error);
            for (int k = 0; k < CONTINUED; k++) {
                seconds[with] += step(session, sampler, error);
            }
            rie_free(sampler);
            rie_free(session);
        }
        ratios[i] = seconds[0] / seconds[1];
    }
    free(tokens);
    const double result = median(ratios, (size_t)repetitions);
    free(ratios);
    return result;
}

int measure_sessions(const rie_model *model, int repetitions, struct figure *figures, rie_error *error) {
    double microseconds = 0, megabytes = 0;
    struct durations beside, without;
    int n = 0;
    figures[n++] = (struct figure){"prefix_share", "first token after a shared prefix of 1000, of computing it",
                                   prefix_share(model, repetitions, error)};
    forks(model, &microseconds, &megabytes, error);
    figures[n++] = (struct figure){"fork_us", "fork of 1000 tokens, microseconds", microseconds};
    figures[n++] = (struct figure){"forks_mb", "1000 forks of it, MB", megabytes};
    stalls(model, &beside, &without, error);
    figures[n++] = (struct figure){"stall_median", "8 sessions beside a prompt of 4000, median step / normal", beside.median};
    figures[n++] = (struct figure){"stall_p99", "... of 100 steps the second longest / normal", beside.p99};
    figures[n++] = (struct figure){"stall_longest", "... longest step / normal", beside.longest};
    figures[n++] = (struct figure){"normal_p99", "... without the prompt, of 100 the second longest / normal", without.p99};
    figures[n++] = (struct figure){"normal_longest", "... without the prompt, the longest / normal", without.longest};
    figures[n++] = (struct figure){"speculation_repeating", "speculation on a text that repeats itself, times as fast",
                                   speculation(model, repeating, 3, 0, repetitions, error)};
    figures[n++] = (struct figure){"speculation_prose", "... on plain prose",
                                   speculation(model, prose, 1, 1, repetitions, error)};
    return n;
}
