/* What the tests of the host's process share: one run through the library whose every result is in one number, children that
 * must end in time, and facts about the process. */
#ifndef RIE_TEST_HOST_H
#define RIE_TEST_HOST_H

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { GENERATED = 12, HANGING_SECONDS = 120 };

/* FNV-1a. */
static inline uint64_t mix(uint64_t hash, const void *data, size_t n) {
    for (const unsigned char *byte = data; n > 0; n--, byte++) {
        hash = (hash ^ *byte) * 0x100000001b3u;
    }
    return hash;
}

static const rie_token prompt_of_host[] = {5, 17, 40, 2, 8, 33, 61, 7, 19};
enum { PROMPT_OF_HOST = sizeof prompt_of_host / sizeof prompt_of_host[0] };

/* Tokens and logits of a session of `model`, as one number. `checked` is called after each call to the library, or NULL. */
static inline uint64_t generate(const rie_model *model, rie_sampler *sampler, void (*checked)(void), rie_error *error) {
    const size_t vocab = (size_t)info(model, RIE_INFO_VOCAB_SIZE);
    rie_session *session = NULL;
    uint64_t hash = 1;
    NEED(rie_session_new(model, NULL, &session, error), error);
    if (checked != NULL) checked();
    NEED(rie_session_append(session, prompt_of_host, PROMPT_OF_HOST, error), error);
    if (checked != NULL) checked();
    float *values = logits(session, vocab, error);
    if (checked != NULL) checked();
    hash = mix(hash, values, vocab * sizeof *values);
    for (int i = 0; i < GENERATED; i++) {
        rie_token token = -1;
        const rie_status status = rie_decode_step(session, sampler, &token, error);
        if (checked != NULL) checked();
        NEED(status, error);
        hash = mix(hash, &token, sizeof token);
        if (status == RIE_END) {
            NEED(rie_session_append(session, &token, 1, error), error);
        }
    }
    NEED(rie_session_logits(session, values, vocab, error), error);
    hash = mix(hash, values, vocab * sizeof *values);
    free(values);
    rie_free(session);
    if (checked != NULL) checked();
    return hash;
}

/* Loads the model at `path` by itself. */
static inline uint64_t load_and_generate(const char *path, const rie_options *options, rie_error *error) {
    rie_model *model = NULL;
    NEED(rie_model_load(path, options, &model, error), error);
    const uint64_t hash = generate(model, NULL, NULL, error);
    rie_free(model);
    return hash;
}

/* The child must exit with 0, and in time. */
static inline void expect_exit(pid_t child, const char *what) {
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("%s: the child ended with %s %d\n", what, WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        failures++;
    }
}

/* A child that is killed if it hangs. Returns 0 in it. */
static inline pid_t fork_watched(void) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        failures = 0;
        alarm(HANGING_SECONDS);
    }
    return child;
}

/* Entries of a directory such as /proc/self/fd, without the one of looking. */
static inline int entries(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    EXPECT(dir != NULL);
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

/* The kernel may show a thread for a moment after it was joined. */
static inline int threads_after_joining(int expected) {
    int count = entries("/proc/self/task");
    for (int i = 0; i < 200 && count != expected; i++) {
        usleep(10000);
        count = entries("/proc/self/task");
    }
    return count;
}

#endif
