/* What the C tests share: checks that count what fails and say where, and small helpers. */
#ifndef RIE_TEST_CHECK_H
#define RIE_TEST_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rie.h"

static int failures = 0;

/* Everything goes on after a failed EXPECT; the program's exit status tells. */
#define EXPECT(condition) expect((condition) != 0, #condition, __FILE__, __LINE__)

/* The call must give this status; an error's message must hold `word`, the name of the thing at fault. */
#define EXPECT_STATUS(call, status, error, word) expect_status((call), (status), (error), (word), #call, __FILE__, __LINE__)

/* For calls that are given no error object. */
#define EXPECT_CODE(call, status) expect_status((call), (status), NULL, NULL, #call, __FILE__, __LINE__)

/* The call must give no error, or the test cannot go on. */
#define NEED(call, error) need((call), (error), #call, __FILE__, __LINE__)

static inline void expect(int ok, const char *what, const char *file, int line) {
    if (!ok) {
        printf("%s:%d: not so: %s\n", file, line, what);
        failures++;
    }
}

static inline void expect_status(rie_status found, rie_status wanted, const rie_error *error, const char *word,
                                 const char *call, const char *file, int line) {
    const char *message = error != NULL && found < 0 ? rie_error_message(error) : "";
    if (found != wanted) {
        printf("%s:%d: %s gave %s, not %s: %s\n", file, line, call, rie_status_name(found), rie_status_name(wanted),
               message);
        failures++;
    } else if (word != NULL && (message[0] == '\0' || strstr(message, word) == NULL)) {
        printf("%s:%d: %s: the message does not say '%s': %s\n", file, line, call, word, message);
        failures++;
    }
}

static inline void need(rie_status found, const rie_error *error, const char *call, const char *file, int line) {
    if (found < 0) {
        printf("%s:%d: %s gave %s: %s\n", file, line, call, rie_status_name(found), rie_error_message(error));
        exit(1);
    }
}

static inline void *allocate(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL) {
        puts("out of memory");
        exit(1);
    }
    return memory;
}

static inline int64_t info(const void *handle, int32_t key) {
    int64_t value = -1;
    EXPECT(rie_get_int(handle, key, &value, NULL) == RIE_OK);
    return value;
}

/* The logits after the session's last token, to be freed. */
static inline float *logits(rie_session *session, size_t vocab, rie_error *error) {
    float *values = allocate(vocab * sizeof *values);
    NEED(rie_session_logits(session, values, vocab, error), error);
    return values;
}

static inline int same_bits(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* Ends a test's main. */
static inline int result(void) {
    printf(failures == 0 ? "ok\n" : "%d failed\n", failures);
    return failures == 0 ? 0 : 1;
}

#endif
