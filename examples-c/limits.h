/* What the machine can do at most: read bandwidth and fused multiply-adds, measured by threads of our own. */
#ifndef RIE_EXAMPLES_LIMITS_H
#define RIE_EXAMPLES_LIMITS_H

struct limits {
    double read_gb_s;    /* 10^9 bytes per second read from memory, four sequential streams per thread */
    double fma_gflop_s;  /* 10^9 float32 operations per second from the widest registers; a multiply-add is two */
};

/* Measures for about a tenth of a second each with `threads` threads (1 to 1024). Takes 256 MiB while it runs, and
 * ends the program if they, or the threads, cannot be had. */
struct limits measure_limits(int threads);

#endif
