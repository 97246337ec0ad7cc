/* Many threads, many loads: the same results, and nothing left behind.
 *
 *     crowd MODEL SMALL_MODEL
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "host.h"

static rie_model *model;

static void *one_of_many(void *result) {
    rie_error *error = rie_error_new();
    *(uint64_t *)result = generate(model, NULL, NULL, error);
    rie_free(error);
    return NULL;
}

static void many_threads_on_one_model(const char *path, rie_error *error) {
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    uint64_t results[THREADS] = {0};
    NEED(rie_model_load(path, NULL, &model, error), error);
    const uint64_t alone = generate(model, NULL, NULL, error);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, one_of_many, &results[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(results[i] == alone);
    }
    rie_free(model);
}

/* Far more threads than cores, in two teams at once. */
static void more_threads_than_cores(const char *path, rie_error *error) {
    const uint64_t alone = load_and_generate(path, NULL, error);
    for (int64_t threads = 16; threads <= 64; threads *= 4) {
        rie_options *options = rie_options_new();
        NEED(rie_options_set_int(options, RIE_OPT_THREADS, threads, error), error);
        EXPECT(load_and_generate(path, options, error) == alone);
        rie_free(options);
    }
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

static void many_loads_leave_nothing(const char *small, rie_error *error) {
    const int threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
    long pages = 0;
    for (int i = 0; i < 110; i++) {
        load_and_generate(small, NULL, error);
        EXPECT(entries("/proc/self/fd") == files);
        if (i == 9) {
            pages = resident_pages(); /* by now the allocator has what it keeps */
        }
    }
    EXPECT(threads_after_joining(threads) == threads);
    const long growth = resident_pages() - pages;
    if (growth * 4096 > 2 << 20) {
        printf("100 loads have left %ld pages\n", growth);
        failures++;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("crowd MODEL SMALL_MODEL");
        return 2;
    }
    const int threads = entries("/proc/self/task");
    rie_error *error = rie_error_new();
    many_threads_on_one_model(argv[1], error);
    EXPECT(threads_after_joining(threads) == threads);
    more_threads_than_cores(argv[1], error);
    EXPECT(threads_after_joining(threads) == threads);
    many_loads_leave_nothing(argv[2], error);
    rie_free(error);
    return result();
}
