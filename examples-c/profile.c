#include "profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json.h"

struct operator_time {
    const char *name;
    int64_t ns, calls;
};

/* What RIE_INFO_PROFILE says; the names point into the JSON text. */
struct operator_times {
    int64_t steps, tokens, forward_ns;
    struct operator_time items[32];
    size_t count;
};

static struct operator_time read_operator(struct json *j) {
    struct operator_time item = {"?", 0, 0};
    json_enter(j, '{');
    while (json_next(j)) {
        const char *key = json_key(j);
        if (strcmp(key, "name") == 0) {
            item.name = json_string(j);
        } else if (strcmp(key, "ns") == 0) {
            item.ns = json_int(j);
        } else if (strcmp(key, "calls") == 0) {
            item.calls = json_int(j);
        } else {
            json_skip(j);
        }
    }
    return item;
}

static struct operator_times read_operators(char *text, size_t length) {
    struct operator_times times = {0};
    struct json j = json_open(text, length);
    json_enter(&j, '{');
    while (json_next(&j)) {
        const char *key = json_key(&j);
        if (strcmp(key, "steps") == 0) {
            times.steps = json_int(&j);
        } else if (strcmp(key, "tokens") == 0) {
            times.tokens = json_int(&j);
        } else if (strcmp(key, "forward_ns") == 0) {
            times.forward_ns = json_int(&j);
        } else if (strcmp(key, "operators") == 0) {
            json_enter(&j, '[');
            while (json_next(&j) && times.count < sizeof times.items / sizeof times.items[0]) {
                times.items[times.count++] = read_operator(&j);
            }
        } else {
            json_skip(&j);
        }
    }
    if (j.failed) {
        fail("the library's profile is not the JSON that this program knows");
    }
    return times;
}

static int by_time(const void *a, const void *b) {
    const struct operator_time *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void print_row(FILE *out, const char *name, int64_t ns, int64_t calls, int64_t forward_ns) {
    const double share = forward_ns > 0 ? 100.0 * (double)ns / (double)forward_ns : 0;
    fprintf(out, "%-16s %12.3f %8.1f %% %10" PRId64 "\n", name, (double)ns * 1e-6, share, calls);
}

static void print_operators(FILE *out, const rie_session *session, rie_error *error) {
    size_t length = 0;
    char *text = get_text(session, RIE_INFO_PROFILE, &length, error);
    struct operator_times times = read_operators(text, length);
    qsort(times.items, times.count, sizeof times.items[0], by_time);
    fprintf(out, "\n%-16s %12s %10s %10s\n", "operator", "ms", "share", "calls");
    for (size_t i = 0; i < times.count; i++) {
        const struct operator_time *item = &times.items[i];
        print_row(out, item->name, item->ns, item->calls, times.forward_ns);
    }
    print_row(out, "forward pass", times.forward_ns, times.steps, times.forward_ns);
    free(text);
}

void print_profile(FILE *out, const rie_session *session, const rie_sampler *sampler, const struct times *times,
                   rie_error *error) {
    const int64_t per_token = get_int(session, RIE_INFO_KV_BYTES_PER_TOKEN, error);
    const int64_t kv_bytes = get_int(session, RIE_INFO_KV_BYTES, error);
    fprintf(out, "\n%-18s %10zu\n", "prompt tokens", times->prompt_tokens);
    fprintf(out, "%-18s %10zu\n", "generated tokens", times->generated_tokens);
    if (sampler != NULL) {
        fprintf(out, "%-18s %" PRId64 "\n", "seed", get_int(sampler, RIE_INFO_SEED, error));
    }
    fprintf(out, "%-18s %10.2f ms to the first token\n", "prefill latency", times->prefill * 1e3);
    if (times->decode_steps > 0) {
        fprintf(out, "%-18s %10.2f ms per token\n", "decode latency", times->decode * 1e3 / (double)times->decode_steps);
        fprintf(out, "%-18s %10.1f tokens/s\n", "decode speed", (double)times->decode_steps / times->decode);
    }
    fprintf(out, "%-18s %10.2f KiB per token\n", "KV cache", (double)per_token / 1024);
    fprintf(out, "%-18s %10.2f KiB in total\n", "", (double)kv_bytes / 1024);
    print_operators(out, session, error);
}
