/* A process that may have only so much memory: a model loads and works, or a call says that there is no memory. No signal.
 *
 *     limits MODEL
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>

#include "host.h"

enum { WORKED = 0, REFUSED = 10, OTHER = 11 };

static long address_space(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages = 0;
    EXPECT(statm != NULL && fscanf(statm, "%ld", &pages) == 1);
    if (statm != NULL) {
        fclose(statm);
    }
    return pages * sysconf(_SC_PAGESIZE);
}

/* Whether the host can go on after `status`. */
static int outcome(rie_status status, const rie_error *error) {
    if (status >= 0) {
        return WORKED;
    }
    if (status == RIE_ERR_NO_MEMORY || status == RIE_ERR_IO) {
        return REFUSED;
    }
    printf("%s: %s\n", rie_status_name(status), rie_error_message(error));
    return OTHER;
}

static int work(const char *path) {
    static const char chat[] = "{\"messages\": [{\"content\": \"Hi\"}], \"chat_template\": \"{{ messages[0].content }}\"}";
    rie_error *error = rie_error_new();
    rie_model *model = NULL;
    rie_session *session = NULL, *fork = NULL;
    rie_token ids[64], token = 0;
    char text[64];
    size_t n = 0, len = 0;
    rie_status status = rie_model_load(path, NULL, &model, error);
    if (status >= 0) status = rie_tokenize(model, "Rust is a systems", 17, 0, ids, 64, &n, error);
    if (status >= 0) status = rie_session_new(model, NULL, &session, error);
    if (status >= 0) status = rie_session_append(session, ids, n, error);
    for (int i = 0; i < 8 && status >= 0; i++) {
        status = rie_decode_step(session, NULL, &token, error);
    }
    if (status >= 0) status = rie_session_fork(session, &fork, error);
    if (status >= 0) status = rie_chat_render(model, chat, sizeof chat - 1, text, sizeof text, &len, error);
    const int result = outcome(status, error);
    rie_free(fork), rie_free(session), rie_free(model), rie_free(error);
    return result;
}

/* The status with which a child ends that may have `extra` bytes more than it has at its start; -1 for a signal. */
static int child_with(const char *path, long extra) {
    const pid_t child = fork_watched();
    if (child == 0) {
        const rlim_t limit = (rlim_t)(address_space() + extra);
        const struct rlimit space = {limit, limit};
        setrlimit(RLIMIT_AS, &space);
        const int result = work(path);
        fflush(stdout);
        _exit(failures != 0 ? OTHER : result);
    }
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        puts("limits MODEL");
        return 2;
    }
    int worked = 0, refused = 0;
    /* In steps that grow, until everything fits. */
    for (long extra = 0; extra < 1 << 30 && worked < 3; extra += extra < 4 << 20 ? 64 << 10 : extra / 64) {
        const int result = child_with(argv[1], extra);
        worked += result == WORKED;
        refused += result == REFUSED;
        if (result != WORKED && result != REFUSED) {
            printf("%ld KiB: ended with %d\n", extra >> 10, result);
            failures++;
        }
    }
    EXPECT(worked > 0 && refused > 0);
    return result();
}
