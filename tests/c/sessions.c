/* Many sessions: batches, forks, saved states, what they share and what they must not.
 *
 *     sessions MODEL OTHER_MODEL
 */
#include "check.h"

enum { SESSIONS = 5, STEPS = 12, PROMPT = 70 };

static rie_model *model;
static size_t vocab;

static rie_session *new_session(const rie_model *of, int32_t key, int64_t value, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_session *session = NULL;
    NEED(rie_options_set_int(options, key, value, error), error);
    NEED(rie_session_new(of, options, &session, error), error);
    rie_free(options);
    return session;
}

/* A session of `count` tokens that differ from those of another `series`. It shares nothing. */
static rie_session *prompted(int series, size_t count, rie_error *error) {
    rie_session *session = new_session(model, RIE_OPT_SHARE_PREFIXES, 0, error);
    for (size_t i = 0; i < count; i++) {
        const rie_token token = (rie_token)((i * 7 + (size_t)series * 11 + i * i) % vocab);
        NEED(rie_session_append(session, &token, 1, error), error);
    }
    return session;
}

static rie_sampler *new_sampler(int64_t seed, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_sampler *sampler = NULL;
    NEED(rie_options_set_int(options, RIE_OPT_SEED, seed, error), error);
    NEED(rie_sampler_new(options, &sampler, error), error);
    rie_free(options);
    return sampler;
}

/* Prompts of several lengths, every other session with a sampler: the same tokens and bits together as alone. */
static void together_as_alone(rie_error *error) {
    rie_session *sessions[SESSIONS];
    rie_sampler *samplers[SESSIONS];
    rie_token expected[SESSIONS][STEPS], found[SESSIONS][STEPS], out[SESSIONS];
    float *expected_logits[SESSIONS];
    rie_status statuses[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        rie_session *alone = prompted(i, 55 * (size_t)i + 1, error);
        rie_sampler *sampler = i % 2 == 0 ? NULL : new_sampler(i, error);
        for (int step = 0; step < STEPS; step++) {
            if (rie_decode_step(alone, sampler, &expected[i][step], error) == RIE_END) {
                NEED(rie_session_append(alone, &expected[i][step], 1, error), error);
            }
        }
        expected_logits[i] = logits(alone, vocab, error);
        rie_free(sampler);
        rie_free(alone);
        sessions[i] = prompted(i, 55 * (size_t)i + 1, error);
        samplers[i] = i % 2 == 0 ? NULL : new_sampler(i, error);
    }
    int steps[SESSIONS] = {0}, pending = 0, left = SESSIONS;
    while (left > 0) {
        /* A session leaves the batch when it has its tokens. */
        rie_session *now[SESSIONS];
        rie_sampler *with[SESSIONS];
        int which[SESSIONS];
        size_t n = 0;
        for (int i = 0; i < SESSIONS; i++) {
            if (steps[i] < STEPS) {
                which[n] = i;
                with[n] = samplers[i];
                now[n++] = sessions[i];
            }
        }
        EXPECT_STATUS(rie_decode_batch(now, with, n, out, statuses, error), RIE_OK, error, NULL);
        for (size_t k = 0; k < n; k++) {
            const int i = which[k];
            if (statuses[k] == RIE_PENDING) {
                EXPECT(out[k] == -1);
                pending++;
                continue;
            }
            EXPECT(statuses[k] == RIE_OK || statuses[k] == RIE_END);
            found[i][steps[i]++] = out[k];
            left -= steps[i] == STEPS;
            if (statuses[k] == RIE_END) {
                NEED(rie_session_append(now[k], &out[k], 1, error), error);
            }
        }
    }
    EXPECT(pending > 3);
    for (int i = 0; i < SESSIONS; i++) {
        float *values = logits(sessions[i], vocab, error);
        EXPECT(memcmp(found[i], expected[i], sizeof found[i]) == 0);
        EXPECT(same_bits(values, expected_logits[i], vocab));
        free(values);
        free(expected_logits[i]);
        rie_free(samplers[i]);
        rie_free(sessions[i]);
    }
}

static void errors_of_a_batch(const rie_model *other, rie_error *error) {
    rie_session *good = prompted(0, 3, error), *empty = prompted(0, 0, error);
    rie_session *foreign = new_session(other, RIE_OPT_CONTEXT, 0, error), *freed = prompted(0, 1, error);
    rie_session *cancelled = prompted(1, 3, error), *full = new_session(model, RIE_OPT_CONTEXT, 1, error);
    rie_sampler *sampler = new_sampler(1, error);
    const rie_token one = 1;
    NEED(rie_session_append(foreign, &one, 1, error), error);
    NEED(rie_session_append(full, &one, 1, error), error);
    NEED(rie_session_cancel(cancelled, 1, error), error);
    rie_free(freed);

    rie_session *twins[] = {good, empty, good};
    rie_sampler *twin_samplers[] = {sampler, NULL, sampler};
    rie_session *sessions[] = {good, empty, foreign, freed, cancelled, full, NULL};
    const rie_status expected[] = {RIE_OK,
                                   RIE_ERR_STATE,
                                   RIE_ERR_INVALID_ARGUMENT,
                                   RIE_ERR_HANDLE,
                                   RIE_ERR_CANCELLED,
                                   RIE_ERR_CONTEXT_FULL,
                                   RIE_ERR_INVALID_ARGUMENT};
    enum { N = sizeof expected / sizeof expected[0] };
    rie_token out[N] = {-7, -7, -7};
    rie_status statuses[N] = {99, 99, 99};
    EXPECT_STATUS(rie_decode_batch(NULL, NULL, 1, out, statuses, error), RIE_ERR_INVALID_ARGUMENT, error, "sessions");
    EXPECT_STATUS(rie_decode_batch(twins, NULL, 2, NULL, statuses, error), RIE_ERR_INVALID_ARGUMENT, error, "out");
    EXPECT_STATUS(rie_decode_batch(twins, NULL, 2, out, NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "out_status");
    EXPECT_STATUS(rie_decode_batch(twins, NULL, 3, out, statuses, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "sessions[2]");
    EXPECT_STATUS(rie_decode_batch(sessions, twin_samplers, 3, out, statuses, error), RIE_ERR_INVALID_ARGUMENT, error,
                  "samplers[2]");
    EXPECT(out[0] == -7 && statuses[0] == 99 && info(good, RIE_INFO_TOKENS) == 3);
    EXPECT_STATUS(rie_decode_batch(NULL, NULL, 0, NULL, NULL, error), RIE_OK, error, NULL);

    EXPECT_STATUS(rie_decode_batch(sessions, NULL, N, out, statuses, error), RIE_OK, error, NULL);
    for (int i = 0; i < N; i++) {
        EXPECT(statuses[i] == expected[i]);
        EXPECT((out[i] >= 0) == (statuses[i] == RIE_OK));
    }
    EXPECT(rie_error_status(error) == RIE_ERR_STATE && strstr(rie_error_message(error), "sessions[1]") != NULL);
    rie_token token = -1;
    rie_session *again = prompted(0, 3, error);
    NEED(rie_decode_step(again, NULL, &token, error), error);
    EXPECT(token == out[0]);

    rie_free(again);
    rie_free(good);
    rie_free(empty);
    rie_free(foreign);
    rie_free(cancelled);
    rie_free(full);
    rie_free(sampler);
}

static void forks(rie_error *error) {
    rie_session *first = prompted(0, PROMPT, error), *fork = NULL;
    rie_token a = -1, b = -1, other = 5;
    float *before = logits(first, vocab, error);
    EXPECT_STATUS(rie_session_fork(NULL, &fork, error), RIE_ERR_INVALID_ARGUMENT, error, "session");
    EXPECT_STATUS(rie_session_fork(first, NULL, error), RIE_ERR_INVALID_ARGUMENT, error, "out");
    NEED(rie_session_fork(first, &fork, error), error);
    EXPECT(info(fork, RIE_INFO_TOKENS) == PROMPT && info(fork, RIE_INFO_EVALUATED) == PROMPT);
    EXPECT(info(model, RIE_INFO_KV_PAGES) == 2 && info(fork, RIE_INFO_KV_PAGES) == 2);
    EXPECT(info(fork, RIE_INFO_KV_SHARED_BYTES) == info(fork, RIE_INFO_KV_BYTES));
    EXPECT(info(model, RIE_INFO_KV_BYTES) == info(fork, RIE_INFO_KV_BYTES));

    NEED(rie_session_append(fork, &other, 1, error), error);
    NEED(rie_decode_step(fork, NULL, &b, error), error);
    EXPECT(info(model, RIE_INFO_KV_PAGES) == 3);
    EXPECT(info(first, RIE_INFO_KV_SHARED_BYTES) * 2 == info(first, RIE_INFO_KV_BYTES));
    float *after = logits(first, vocab, error);
    EXPECT(same_bits(before, after, vocab));
    rie_free(first);

    /* The fork goes on as a session that was never one. */
    rie_session *fresh = prompted(0, PROMPT, error);
    NEED(rie_session_append(fresh, &other, 1, error), error);
    NEED(rie_decode_step(fresh, NULL, &a, error), error);
    EXPECT(a == b);
    free(before);
    free(after);
    rie_free(fresh);
    rie_free(fork);
    EXPECT(info(model, RIE_INFO_KV_PAGES) == 0);
}

static void saved_states(const rie_model *other, rie_error *error) {
    rie_session *first = prompted(0, PROMPT, error), *second = prompted(3, 4, error);
    rie_session *foreign = new_session(other, RIE_OPT_CONTEXT, 0, error);
    rie_token a = -1, b = -1;
    size_t size = 0, again = 0;
    NEED(rie_decode_step(first, NULL, &a, error), error);
    EXPECT_STATUS(rie_session_save(first, NULL, 0, &size, error), RIE_ERR_BUFFER_TOO_SMALL, error, "buf");
    EXPECT(size > (size_t)info(first, RIE_INFO_KV_BYTES));
    uint8_t *bytes = allocate(size);
    EXPECT_STATUS(rie_session_save(first, bytes, size - 1, &again, error), RIE_ERR_BUFFER_TOO_SMALL, error, "buf");
    EXPECT(again == size);
    NEED(rie_session_save(first, bytes, size, &again, error), error);

    EXPECT_STATUS(rie_session_load(second, NULL, size, error), RIE_ERR_INVALID_ARGUMENT, error, "data");
    EXPECT_STATUS(rie_session_load(second, bytes, 0, error), RIE_ERR_FORMAT, error, "RIESTATE");
    EXPECT_STATUS(rie_session_load(second, bytes, size - 1, error), RIE_ERR_FORMAT, error, "damaged");
    EXPECT_STATUS(rie_session_load(foreign, bytes, size, error), RIE_ERR_MISMATCH, error, "another model");
    bytes[size / 2] ^= 1;
    EXPECT_STATUS(rie_session_load(second, bytes, size, error), RIE_ERR_FORMAT, error, "damaged");
    bytes[size / 2] ^= 1;
    EXPECT(info(second, RIE_INFO_TOKENS) == 4 && info(foreign, RIE_INFO_TOKENS) == 0);
    NEED(rie_session_load(second, bytes, size, error), error);
    EXPECT(info(second, RIE_INFO_TOKENS) == PROMPT + 1 && info(second, RIE_INFO_EVALUATED) == PROMPT);
    for (int step = 0; step < STEPS; step++) {
        const rie_status one = rie_decode_step(first, NULL, &a, error);
        EXPECT_STATUS(rie_decode_step(second, NULL, &b, error), one, error, NULL);
        EXPECT(a == b);
    }
    free(bytes);
    rie_free(first);
    rie_free(second);
    rie_free(foreign);
}

static void shared_prefixes(rie_error *error) {
    rie_session *first = new_session(model, RIE_OPT_SHARE_PREFIXES, 1, error);
    rie_session *second = new_session(model, RIE_OPT_CONTEXT, 0, error); /* sharing is the default */
    rie_token tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (rie_token)((size_t)i * 5 % vocab);
    }
    NEED(rie_session_append(first, tokens, PROMPT, error), error);
    float *a = logits(first, vocab, error);
    NEED(rie_session_append(second, tokens, PROMPT, error), error);
    float *b = logits(second, vocab, error);
    EXPECT(same_bits(a, b, vocab));
    EXPECT(info(first, RIE_INFO_REUSED_TOKENS) == 0 && info(second, RIE_INFO_REUSED_TOKENS) == PROMPT - 1);
    free(a);
    free(b);
    rie_free(first);
    rie_free(second);
}

static void limited_memory(const char *path, rie_error *error) {
    rie_options *options = rie_options_new();
    rie_model *small = NULL;
    NEED(rie_options_set_int(options, RIE_OPT_KV_LIMIT, 1000, error), error);
    NEED(rie_model_load(path, options, &small, error), error);
    rie_session *session = new_session(small, RIE_OPT_CONTEXT, 0, error);
    const rie_token one = 1;
    rie_token out = -7;
    NEED(rie_session_append(session, &one, 1, error), error);
    EXPECT_STATUS(rie_decode_step(session, NULL, &out, error), RIE_ERR_NO_MEMORY, error, "limit of 1000 bytes");
    EXPECT(out == -7 && info(session, RIE_INFO_TOKENS) == 1 && info(session, RIE_INFO_EVALUATED) == 0);
    rie_free(session);
    rie_free(small);
    rie_free(options);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("usage: sessions MODEL OTHER_MODEL");
        return 2;
    }
    rie_error *error = rie_error_new();
    rie_model *other = NULL;
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    NEED(rie_model_load(argv[2], NULL, &other, error), error);
    vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    together_as_alone(error);
    errors_of_a_batch(other, error);
    forks(error);
    saved_states(other, error);
    shared_prefixes(error);
    limited_memory(argv[1], error);
    EXPECT(info(model, RIE_INFO_KV_PAGES) == 0 && info(model, RIE_INFO_KV_BYTES) == 0);
    rie_free(other);
    rie_free(model);
    rie_free(error);
    return result();
}
