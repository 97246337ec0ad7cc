/* What the example programs share: the end on an error, command line options, and answers of any length. */
#ifndef RIE_EXAMPLES_COMMON_H
#define RIE_EXAMPLES_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include "rie.h"

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* Returns if `status` is no error. Otherwise prints "program: what: STATUS: message" to stderr and exits with 1. */
void check(rie_status status, const char *what, const rie_error *error);

/* Prints the message and exits: with 1 for what failed while running, with 2 for a wrong command line. */
_Noreturn void fail(const char *format, ...);
_Noreturn void fail_usage(const char *format, ...);

/* One option of a command line. `value` points to what it sets: const char *, int64_t, double, or int (ARG_FLAG). */
enum arg_kind { ARG_STR, ARG_INT, ARG_FLOAT, ARG_FLAG };
struct arg {
    const char *name;
    enum arg_kind kind;
    void *value;
};

/* Reads the whole command line by the table `args`, which ends with a NULL name. "--help" prints `help` and exits
 * with 0; anything that the table does not know, or a value that does not parse, is a usage error that names it. */
void parse_args(int argc, char **argv, const struct arg *args, const char *help);

/* `text` as a number; if it is none, a usage error that names the option. */
int64_t parse_int(const char *name, const char *text);

/* `text` as RIE_ISA_* or RIE_WEIGHTS_*; if it is none, a usage error. */
int32_t parse_isa(const char *text);
int32_t parse_weights(const char *text);

/* Memory or the end of the program. */
void *allocate(size_t size);

/* rie_get_str for a value of any length: NUL-terminated, to be freed. */
char *get_text(const void *handle, int32_t key, size_t *length, rie_error *error);

/* rie_inspect's description of a model, JSON: NUL-terminated, to be freed. `options` may be NULL. */
char *inspect_model(const char *path, const rie_options *options, size_t *length, rie_error *error);

/* rie_options_set_int and _set_float, where failing is an error that names `what`. */
void set_int(rie_options *options, int32_t key, const char *what, int64_t value, rie_error *error);
void set_float(rie_options *options, int32_t key, const char *what, double value, rie_error *error);

/* rie_get_int, where failing is an error. */
int64_t get_int(const void *handle, int32_t key, rie_error *error);

/* The median of the samples, and the one that `percent` of 100 do not exceed. */
double median(const double *samples, size_t count);
double percentile(const double *samples, size_t count, size_t percent);

/* Seconds on a clock that never jumps. */
double now(void);

/* "269.0 MB" in `buf`, which is returned. */
const char *human_bytes(double bytes, char *buf, size_t cap);

#endif
