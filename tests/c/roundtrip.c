/* What goes together must agree: text and tokens, whole and in pieces, fresh and continued, one thread and two.
 *
 *     roundtrip MODEL NO_TOKENIZER     (a model with a byte-level tokenizer, and one without a tokenizer)
 */
#include <math.h>

#include "check.h"

static rie_error *error;
static rie_model *model;
static size_t vocab;

static const rie_token prompt[] = {72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100, 33, 10, 65, 66, 67, 68, 69, 70};
enum { PROMPT = sizeof prompt / sizeof prompt[0], STEPS = 30 };

static rie_session *new_session(const rie_model *m, const rie_token *tokens, size_t n) {
    rie_session *session = NULL;
    NEED(rie_session_new(m, NULL, &session, error), error);
    NEED(rie_session_append(session, tokens, n, error), error);
    return session;
}

static rie_sampler *new_sampler(double temperature, int64_t seed) {
    rie_options *options = rie_options_new();
    rie_sampler *sampler = NULL;
    NEED(rie_options_set_float(options, RIE_OPT_TEMPERATURE, temperature, error), error);
    if (seed != 0) {
        NEED(rie_options_set_int(options, RIE_OPT_SEED, seed, error), error);
    }
    NEED(rie_sampler_new(options, &sampler, error), error);
    rie_free(options);
    return sampler;
}

/* `n` steps, going on through an end-of-generation token. */
static void generate(rie_session *session, rie_sampler *sampler, rie_token *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const rie_status status = rie_decode_step(session, sampler, &out[i], error);
        NEED(status, error);
        if (status == RIE_END) {
            NEED(rie_session_append(session, &out[i], 1, error), error);
        }
    }
}

/* ---- Text ---- */

/* Whether no character is cut: every lead byte has its followers. */
static int whole_characters(const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)text[i];
        size_t length = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        if ((c >= 0x80 && c < 0xC2) || c > 0xF4 || length > n - i) {
            return 0;
        }
        for (i++; length > 1; length--, i++) {
            if (((unsigned char)text[i] & 0xC0) != 0x80) {
                return 0;
            }
        }
    }
    return 1;
}

/* The pieces of a stream concatenate to the whole text; the stream is then as new. */
static void stream_equals_whole(rie_text_stream *stream, const rie_token *tokens, size_t n, const char *whole, size_t len) {
    char joined[256];
    size_t at = 0, piece = 0;
    for (size_t i = 0; i <= n; i++) {
        const rie_token token = i < n ? tokens[i] : -1;
        NEED(rie_text_stream_push(stream, token, joined + at, sizeof joined - at, &piece, error), error);
        EXPECT(whole_characters(joined + at, piece));
        at += piece;
    }
    EXPECT(at == len && memcmp(joined, whole, len) == 0);
}

static void text_round_trip(void) {
    static const char *const texts[] = {"", " ", "Hello, world", "  two  spaces ", "line\nline\r\n\ttab", "naïve café",
                                        "日本語のテキスト", "हिन्दी", "👩‍👩‍👧‍👦 🇨🇭 👍🏽", "mixed ✓ 𝄞 e\xCC\x81", "</s> <s>"};
    rie_text_stream *stream = NULL;
    NEED(rie_text_stream_new(model, 0, &stream, error), error);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        rie_token tokens[256];
        char back[256];
        size_t n = 0, len = 0;
        NEED(rie_tokenize(model, texts[i], strlen(texts[i]), 0, tokens, 256, &n, error), error);
        NEED(rie_detokenize(model, tokens, n, 0, back, sizeof back, &len, error), error);
        EXPECT(len == strlen(texts[i]) && memcmp(back, texts[i], len) == 0);
        stream_equals_whole(stream, tokens, n, back, len);
    }
    rie_free(stream);
}

/* Bytes that form no character, also at the end: the stream says what the whole decode says. */
static void broken_characters(void) {
    rie_token tokens[16];
    char whole[64];
    size_t n = 0, len = 0;
    rie_text_stream *stream = NULL;
    NEED(rie_text_stream_new(model, 0, &stream, error), error);
    NEED(rie_tokenize(model, "a😀b", 6, 0, tokens, 16, &n, error), error);
    EXPECT(n == 6);
    for (size_t first = 0; first < n; first++) {
        for (size_t last = first; last <= n; last++) {
            NEED(rie_detokenize(model, tokens + first, last - first, 0, whole, sizeof whole, &len, error), error);
            EXPECT(whole_characters(whole, len));
            stream_equals_whole(stream, tokens + first, last - first, whole, len);
        }
    }
    rie_free(stream);
}

static void special_tokens(void) {
    rie_token plain[16], special[16];
    char text[64];
    size_t n_plain = 0, n_special = 0, len = 0;
    NEED(rie_tokenize(model, "a</s>", 5, 0, plain, 16, &n_plain, error), error);
    NEED(rie_tokenize(model, "a</s>", 5, RIE_TEXT_PARSE_SPECIAL, special, 16, &n_special, error), error);
    EXPECT(n_plain == 5 && n_special == 2 && special[1] == 2);
    NEED(rie_detokenize(model, special, 2, 0, text, sizeof text, &len, error), error);
    EXPECT(len == 5 && memcmp(text, "a</s>", 5) == 0);
    NEED(rie_detokenize(model, special, 2, RIE_TEXT_SKIP_SPECIAL, text, sizeof text, &len, error), error);
    EXPECT(len == 1 && text[0] == 'a');
}

/* Without tokenizer.json, ids work and calls that need text say what is missing. */
static void no_tokenizer(const char *path) {
    rie_model *m = NULL;
    rie_text_stream *stream = NULL;
    rie_token tokens[8] = {1, 2, 3};
    char buf[8];
    size_t n = 7;
    NEED(rie_model_load(path, NULL, &m, error), error);
    const rie_status missing = RIE_ERR_TOKENIZER;
    EXPECT_STATUS(rie_tokenize(m, "a", 1, 0, tokens, 8, &n, error), missing, error, "tokenizer.json");
    EXPECT_STATUS(rie_detokenize(m, tokens, 3, 0, buf, 8, &n, error), missing, error, "tokenizer.json");
    EXPECT_STATUS(rie_text_stream_new(m, 0, &stream, error), missing, error, "tokenizer.json");
    EXPECT(n == 7 && stream == NULL);
    rie_session *session = new_session(m, tokens, 3);
    generate(session, NULL, tokens, 8);
    EXPECT(info(session, RIE_INFO_TOKENS) == 11);
    rie_free(session);
    rie_free(m);
}

/* ---- Sessions ---- */

static void portions(void) {
    rie_session *at_once = new_session(model, prompt, PROMPT);
    EXPECT(info(at_once, RIE_INFO_VOCAB_SIZE) == (int64_t)vocab); /* of its model */
    float *whole = logits(at_once, vocab, error);
    for (size_t portion = 1; portion <= PROMPT; portion += 3) {
        rie_session *session = new_session(model, prompt, PROMPT);
        size_t calls = 1;
        rie_status status = rie_session_eval(session, portion, error);
        for (; status == RIE_PENDING; calls++) {
            EXPECT(info(session, RIE_INFO_EVALUATED) == (int64_t)(calls * portion));
            status = rie_session_eval(session, portion, error);
        }
        EXPECT(status == RIE_OK && calls == (PROMPT + portion - 1) / portion);
        float *pieces = logits(session, vocab, error);
        EXPECT(same_bits(whole, pieces, vocab));
        free(pieces);
        rie_free(session);
    }
    free(whole);
    rie_free(at_once);
}

static void truncate_and_continue(void) {
    rie_session *session = new_session(model, prompt, PROMPT);
    rie_token first[STEPS], again[STEPS], all[PROMPT + STEPS];
    size_t n = 0;
    generate(session, NULL, first, STEPS);
    float *end = logits(session, vocab, error);
    NEED(rie_session_tokens(session, all, PROMPT + STEPS, &n, error), error);
    EXPECT(n == PROMPT + STEPS && memcmp(all, prompt, sizeof prompt) == 0);
    EXPECT(memcmp(all + PROMPT, first, sizeof first) == 0);
    for (size_t keep = 0; keep <= PROMPT; keep += 5) {
        NEED(rie_session_truncate(session, keep, error), error);
        EXPECT(info(session, RIE_INFO_TOKENS) == (int64_t)keep && info(session, RIE_INFO_EVALUATED) <= (int64_t)keep);
        NEED(rie_session_append(session, prompt + keep, PROMPT - keep, error), error);
        generate(session, NULL, again, STEPS);
        float *values = logits(session, vocab, error);
        EXPECT(memcmp(first, again, sizeof first) == 0 && same_bits(end, values, vocab));
        free(values);
    }
    /* Truncation alone gives back the logits of that place. */
    NEED(rie_session_truncate(session, 7, error), error);
    rie_session *fresh = new_session(model, prompt, 7);
    float *a = logits(session, vocab, error), *b = logits(fresh, vocab, error);
    EXPECT(same_bits(a, b, vocab));
    free(a);
    free(b);
    free(end);
    rie_free(fresh);
    rie_free(session);
}

static double log_softmax(const float *values, rie_token token) {
    double highest = (double)values[0], sum = 0;
    for (size_t i = 0; i < vocab; i++) {
        highest = fmax(highest, (double)values[i]);
    }
    for (size_t i = 0; i < vocab; i++) {
        sum += exp((double)values[i] - highest);
    }
    return (double)values[token] - highest - log(sum);
}

static void score_equals_logits(void) {
    enum { START = 4, REST = PROMPT - START };
    rie_session *session = new_session(model, prompt, START), *other = new_session(model, prompt, START);
    float scores[REST], again[REST];
    float *before = logits(session, vocab, error);
    NEED(rie_session_score(session, prompt + START, REST, scores, error), error);
    float *after = logits(session, vocab, error);
    EXPECT(same_bits(before, after, vocab) && info(session, RIE_INFO_TOKENS) == START);
    NEED(rie_session_score(session, prompt + START, REST, again, error), error);
    EXPECT(same_bits(scores, again, REST));
    for (size_t i = 0; i < REST; i++) {
        float *values = logits(other, vocab, error);
        EXPECT(fabs(log_softmax(values, prompt[START + i]) - (double)scores[i]) < 1e-5);
        NEED(rie_session_append(other, &prompt[START + i], 1, error), error);
        free(values);
    }
    NEED(rie_session_score(session, NULL, 0, NULL, error), error);
    free(before);
    free(after);
    rie_free(other);
    rie_free(session);
}

static void seeds(void) {
    rie_token first[STEPS], second[STEPS];
    rie_sampler *random = new_sampler(1.5, 0), *fixed = new_sampler(1, -12345);
    const int64_t seed = info(random, RIE_INFO_SEED);
    EXPECT(info(fixed, RIE_INFO_SEED) == -12345);
    rie_sampler *same = new_sampler(1.5, seed), *other = new_sampler(1.5, 0);
    EXPECT(info(same, RIE_INFO_SEED) == seed && info(other, RIE_INFO_SEED) != seed);
    rie_session *a = new_session(model, prompt, PROMPT), *b = new_session(model, prompt, PROMPT);
    rie_session *c = new_session(model, prompt, PROMPT);
    generate(a, random, first, STEPS);
    generate(b, same, second, STEPS);
    EXPECT(memcmp(first, second, sizeof first) == 0);
    generate(c, other, second, STEPS);
    EXPECT(memcmp(first, second, sizeof first) != 0);
    rie_free(a);
    rie_free(b);
    rie_free(c);
    rie_free(random);
    rie_free(fixed);
    rie_free(same);
    rie_free(other);
}

static void temperature_zero_is_greedy(void) {
    rie_token first[STEPS], second[STEPS];
    rie_sampler *greedy = new_sampler(0, 1);
    rie_session *a = new_session(model, prompt, PROMPT), *b = new_session(model, prompt, PROMPT);
    generate(a, NULL, first, STEPS);
    generate(b, greedy, second, STEPS);
    EXPECT(memcmp(first, second, sizeof first) == 0);
    rie_free(a);
    rie_free(b);
    rie_free(greedy);
}

/* An end-of-generation token is returned and not appended; the session can go on. */
static void end_of_generation(void) {
    const rie_token eos = (rie_token)info(model, RIE_INFO_EOS_TOKEN);
    rie_sampler *sampler = new_sampler(0, 1);
    rie_session *session = new_session(model, prompt, PROMPT);
    rie_token token = -1;
    EXPECT(eos >= 0);
    NEED(rie_sampler_set_bias(sampler, eos, 1000, error), error);
    for (int i = 0; i < 3; i++) {
        EXPECT_STATUS(rie_decode_step(session, sampler, &token, error), RIE_END, error, NULL);
        EXPECT(token == eos && info(session, RIE_INFO_TOKENS) == PROMPT);
    }
    NEED(rie_sampler_set_bias(sampler, eos, -INFINITY, error), error);
    EXPECT_STATUS(rie_decode_step(session, sampler, &token, error), RIE_OK, error, NULL);
    EXPECT(token != eos && info(session, RIE_INFO_TOKENS) == PROMPT + 1);
    EXPECT_STATUS(rie_session_append(session, &eos, 1, error), RIE_OK, error, NULL);
    rie_free(sampler);
    rie_free(session);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("usage: roundtrip MODEL NO_TOKENIZER");
        return 2;
    }
    error = rie_error_new();
    NEED(rie_model_load(argv[1], NULL, &model, error), error);
    vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);

    text_round_trip();
    broken_characters();
    special_tokens();
    no_tokenizer(argv[2]);
    portions();
    truncate_and_continue();
    score_equals_logits();
    seeds();
    temperature_zero_is_greedy();
    end_of_generation();

    rie_free(model);
    rie_free(error);
    return result();
}
