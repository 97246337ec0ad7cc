#include "limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { STREAMS = 4, LINE = 64, ACCUMULATORS = 12, MAX_THREADS = 1024 };

static const double seconds_each = 0.1;
static const size_t buffer_bytes = (size_t)256 << 20; /* many times any cache that matters here */

/* Any address, any type below it: GCC's and Clang's vector extension, two registers where one has 16 bytes. */
typedef uint64_t chunk __attribute__((vector_size(32), aligned(8), may_alias));

/* ---- Work: each function does a piece of it and says how much that was. ---- */

struct job {
    pthread_t thread;
    const unsigned char *bytes;
    size_t length;
    double (*work)(const struct job *job);
    double amount, seconds;
    atomic_int *start;
    double warm_up;
};

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#else
#define WIDE
#endif

/* Reads all of the job's bytes, four streams side by side. */
#define READ_STREAMS                                                                                     \
    const size_t part = job->length / STREAMS / LINE * LINE;                                             \
    const chunk *p0 = (const chunk *)(const void *)job->bytes, *p1 = p0 + part / sizeof(chunk);          \
    const chunk *p2 = p1 + part / sizeof(chunk), *p3 = p2 + part / sizeof(chunk);                        \
    chunk s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                                                        \
    for (size_t i = 0; i < part / sizeof(chunk); i += 2) {                                               \
        s0 |= p0[i] | p0[i + 1], s1 |= p1[i] | p1[i + 1], s2 |= p2[i] | p2[i + 1], s3 |= p3[i] | p3[i + 1]; \
    }                                                                                                    \
    const chunk all = s0 | s1 | s2 | s3;                                                                 \
    return (double)(part * STREAMS) + ((all[0] | all[1] | all[2] | all[3]) == 1 ? 1 : 0)

WIDE static double read_wide(const struct job *job) {
    READ_STREAMS;
}

#if defined(__x86_64__)
static double read_plain(const struct job *job) {
    READ_STREAMS;
}

WIDE static double multiply_add_wide(const struct job *job) {
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps((float)job->length);
    __m256 c[ACCUMULATORS];
    for (int i = 0; i < ACCUMULATORS; i++) {
        c[i] = _mm256_set1_ps((float)i);
    }
    const int rounds = 100000;
    for (int r = 0; r < rounds; r++) {
        /* Written out, so that every compiler keeps the twelve in registers. */
        c[0] = _mm256_fmadd_ps(c[0], a, b), c[1] = _mm256_fmadd_ps(c[1], a, b), c[2] = _mm256_fmadd_ps(c[2], a, b);
        c[3] = _mm256_fmadd_ps(c[3], a, b), c[4] = _mm256_fmadd_ps(c[4], a, b), c[5] = _mm256_fmadd_ps(c[5], a, b);
        c[6] = _mm256_fmadd_ps(c[6], a, b), c[7] = _mm256_fmadd_ps(c[7], a, b), c[8] = _mm256_fmadd_ps(c[8], a, b);
        c[9] = _mm256_fmadd_ps(c[9], a, b), c[10] = _mm256_fmadd_ps(c[10], a, b), c[11] = _mm256_fmadd_ps(c[11], a, b);
    }
    __m256 sum = c[0];
    for (int i = 1; i < ACCUMULATORS; i++) {
        sum = _mm256_add_ps(sum, c[i]);
    }
    return 2.0 * 8 * ACCUMULATORS * rounds + (_mm256_cvtss_f32(sum) == 1 ? 1 : 0);
}
#endif

/* Products and sums in separate steps: what plain code can do where this file knows no fused instruction. */
static double multiply_add_plain(const struct job *job) {
    typedef float lanes __attribute__((vector_size(16)));
    const float start = (float)job->length;
    const lanes a = {0.5f, 0.5f, 0.5f, 0.5f}, b = {start, start, start, start};
    lanes c0 = b, c1 = b + 1, c2 = b + 2, c3 = b + 3, c4 = b + 4, c5 = b + 5, c6 = b + 6, c7 = b + 7;
    const int rounds = 100000;
    for (int r = 0; r < rounds; r++) {
        c0 = c0 * a + b, c1 = c1 * a + b, c2 = c2 * a + b, c3 = c3 * a + b;
        c4 = c4 * a + b, c5 = c5 * a + b, c6 = c6 * a + b, c7 = c7 * a + b;
    }
    const lanes sum = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7;
    return 2.0 * 4 * 8 * rounds + (sum[0] == 1 ? 1 : 0);
}

/* ---- Threads: all start together and work until the time is over; their rates add up. ---- */

static void *run_job(void *argument) {
    struct job *job = argument;
    job->warm_up = job->work(job);
    atomic_fetch_sub(job->start, 1);
    while (atomic_load(job->start) > 0) {
    }
    const double start = now();
    double elapsed = 0;
    while (elapsed < seconds_each) {
        job->amount += job->work(job);
        elapsed = now() - start;
    }
    job->seconds = elapsed;
    return NULL;
}

/* The work done per second by all threads, each on its share of the buffer. */
static double rate(int threads, const unsigned char *buffer, double (*work)(const struct job *job)) {
    struct job *jobs = allocate((size_t)threads * sizeof *jobs);
    atomic_int start = threads;
    const size_t share = buffer_bytes / (size_t)threads / LINE * LINE;
    for (int t = 0; t < threads; t++) {
        jobs[t] = (struct job){.bytes = buffer + share * (size_t)t, .length = share, .work = work, .start = &start};
        if (pthread_create(&jobs[t].thread, NULL, run_job, &jobs[t]) != 0) {
            fail("cannot start thread %d of %d", t + 1, threads);
        }
    }
    double sum = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(jobs[t].thread, NULL);
        sum += jobs[t].amount / jobs[t].seconds;
    }
    free(jobs);
    return sum;
}

struct limits measure_limits(int threads) {
    if (threads < 1 || threads > MAX_THREADS) {
        fail("the limits are measured with 1 to %d threads, not %d", MAX_THREADS, threads);
    }
    unsigned char *buffer = allocate(buffer_bytes);
    memset(buffer, 2, buffer_bytes); /* pages that exist */
    struct limits limits;
#if defined(__x86_64__)
    const int wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    limits.read_gb_s = rate(threads, buffer, wide ? read_wide : read_plain) * 1e-9;
    limits.fma_gflop_s = rate(threads, buffer, wide ? multiply_add_wide : multiply_add_plain) * 1e-9;
#else
    limits.read_gb_s = rate(threads, buffer, read_wide) * 1e-9;
    limits.fma_gflop_s = rate(threads, buffer, multiply_add_plain) * 1e-9;
#endif
    free(buffer);
    return limits;
}
