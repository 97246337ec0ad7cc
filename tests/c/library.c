/* dlopen and dlclose a hundred times, with a model loaded and run in between.
 *
 *     library LIBRARY MODEL     (not linked with the library)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rie.h"

static int failures;

static void expect(int ok, const char *what) {
    if (!ok) {
        printf("not so: %s\n", what);
        failures++;
    }
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static int threads(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static long resident_pages(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    EXPECT(statm != NULL && fscanf(statm, "%ld %ld", &total, &resident) == 2);
    if (statm != NULL) {
        fclose(statm);
    }
    return resident;
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("no %s\n", name);
        _exit(1);
    }
    return found;
}

/* Five greedy tokens by a library that was just opened. */
static void run(const char *path, const char *model_path, rie_token *tokens) {
    static const rie_token prompt[] = {3, 5, 7};
    rie_status (*load)(const char *, const rie_options *, rie_model **, rie_error *);
    rie_status (*new_session)(const rie_model *, const rie_options *, rie_session **, rie_error *);
    rie_status (*append)(rie_session *, const rie_token *, size_t, rie_error *);
    rie_status (*step)(rie_session *, rie_sampler *, rie_token *, rie_error *);
    void (*release)(void *);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        puts(dlerror());
        _exit(1);
    }
    *(void **)&load = find(library, "rie_model_load");
    *(void **)&new_session = find(library, "rie_session_new");
    *(void **)&append = find(library, "rie_session_append");
    *(void **)&step = find(library, "rie_decode_step");
    *(void **)&release = find(library, "rie_free");
    rie_model *model = NULL;
    rie_session *session = NULL;
    EXPECT(load(model_path, NULL, &model, NULL) == RIE_OK);
    EXPECT(new_session(model, NULL, &session, NULL) == RIE_OK);
    EXPECT(append(session, prompt, 3, NULL) == RIE_OK);
    for (int i = 0; i < 5; i++) {
        EXPECT(step(session, NULL, &tokens[i], NULL) >= 0);
    }
    release(session), release(model);
    EXPECT(dlclose(library) == 0);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("library LIBRARY MODEL");
        return 2;
    }
    rie_token first[5] = {0}, tokens[5] = {0};
    const int threads_before = threads();
    long pages = 0;
    for (int i = 0; i < 100; i++) {
        run(argv[1], argv[2], i == 0 ? first : tokens);
        EXPECT(i == 0 || memcmp(first, tokens, sizeof first) == 0);
        if (i == 9) {
            pages = resident_pages();
        }
    }
    for (int i = 0; i < 200 && threads() != threads_before; i++) {
        usleep(10000);
    }
    EXPECT(threads() == threads_before);
    const long growth = resident_pages() - pages;
    if (growth * 4096 > 1 << 20) {
        printf("90 rounds have left %ld pages\n", growth);
        failures++;
    }
    printf(failures == 0 ? "ok\n" : "%d failed\n", failures);
    return failures != 0;
}
