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

enum { STREAMS = 4, LINE = 64, MAX_THREADS = 1024 };

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

/* Multiply-adds of registers of BITS. Written out, so that every compiler keeps the twelve in registers. */
#define MULTIPLY_ADD(BITS)                                                                               \
    typedef __m##BITS vector;                                                                            \
    const vector a = _mm##BITS##_set1_ps(0.5f), b = _mm##BITS##_set1_ps((float)job->length);             \
    vector c0 = b, c1 = b + 1, c2 = b + 2, c3 = b + 3, c4 = b + 4, c5 = b + 5;                           \
    vector c6 = b + 6, c7 = b + 7, c8 = b + 8, c9 = b + 9, c10 = b + 10, c11 = b + 11;                   \
    const int rounds = 100000;                                                                           \
    for (int r = 0; r < rounds; r++) {                                                                   \
        c0 = _mm##BITS##_fmadd_ps(c0, a, b), c1 = _mm##BITS##_fmadd_ps(c1, a, b);                        \
        c2 = _mm##BITS##_fmadd_ps(c2, a, b), c3 = _mm##BITS##_fmadd_ps(c3, a, b);                        \
        c4 = _mm##BITS##_fmadd_ps(c4, a, b), c5 = _mm##BITS##_fmadd_ps(c5, a, b);                        \
        c6 = _mm##BITS##_fmadd_ps(c6, a, b), c7 = _mm##BITS##_fmadd_ps(c7, a, b);                        \
        c8 = _mm##BITS##_fmadd_ps(c8, a, b), c9 = _mm##BITS##_fmadd_ps(c9, a, b);                        \
        c10 = _mm##BITS##_fmadd_ps(c10, a, b), c11 = _mm##BITS##_fmadd_ps(c11, a, b);                    \
    }                                                                                                    \
    const vector sum = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;                      \
    return 2.0 * (sizeof sum / sizeof(float)) * 12 * rounds + (sum[0] == 1 ? 1 : 0)

__attribute__((target("avx512f"))) static double multiply_add_512(const struct job *job) {
    MULTIPLY_ADD(512);
}

WIDE static double multiply_add_256(const struct job *job) {
    MULTIPLY_ADD(256);
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
    double (*multiply_add)(const struct job *) = wide ? multiply_add_256 : multiply_add_plain;
    if (__builtin_cpu_supports("avx512f")) {
        multiply_add = multiply_add_512;
    }
    limits.fma_gflop_s = rate(threads, buffer, multiply_add) * 1e-9;
#else
    limits.read_gb_s = rate(threads, buffer, read_wide) * 1e-9;
    limits.fma_gflop_s = rate(threads, buffer, multiply_add_plain) * 1e-9;
#endif
    free(buffer);
    return limits;
}
