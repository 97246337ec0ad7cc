#include "common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *program = "rie";

static void print_message(const char *format, va_list values) {
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
}

void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    print_message(format, values);
    va_end(values);
    exit(EXIT_ERROR);
}

void fail_usage(const char *format, ...) {
    va_list values;
    va_start(values, format);
    print_message(format, values);
    va_end(values);
    fprintf(stderr, "Try '%s --help'.\n", program);
    exit(EXIT_USAGE);
}

void check(rie_status status, const char *what, const rie_error *error) {
    if (status < 0) {
        fail("%s: %s: %s", what, rie_status_name(status), rie_error_message(error));
    }
}

int64_t parse_int(const char *name, const char *text) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0) {
        fail_usage("%s: '%s' is not a 64-bit integer", name, text);
    }
    return value;
}

static double parse_float(const char *name, const char *text) {
    char *end = NULL;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0) {
        fail_usage("%s: '%s' is not a number", name, text);
    }
    return value;
}

/* Sets the option that `arg` describes from `text`. */
static void set_value(const struct arg *arg, const char *text) {
    if (arg->kind == ARG_STR) {
        *(const char **)arg->value = text;
    } else if (arg->kind == ARG_INT) {
        *(int64_t *)arg->value = parse_int(arg->name, text);
    } else {
        *(double *)arg->value = parse_float(arg->name, text);
    }
}

static const struct arg *find_arg(const struct arg *args, const char *name) {
    for (; args->name != NULL; args++) {
        if (strcmp(args->name, name) == 0) {
            return args;
        }
    }
    return NULL;
}

void parse_args(int argc, char **argv, const struct arg *args, const char *help) {
    if (argc > 0) {
        const char *slash = strrchr(argv[0], '/');
        program = slash != NULL ? slash + 1 : argv[0];
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            exit(EXIT_SUCCESS);
        }
        const struct arg *arg = find_arg(args, argv[i]);
        if (arg == NULL) {
            fail_usage(argv[i][0] == '-' ? "%s: unknown option" : "'%s': unexpected argument", argv[i]);
        } else if (arg->kind == ARG_FLAG) {
            *(int *)arg->value = 1;
        } else if (++i == argc) {
            fail_usage("%s: a value is missing", arg->name);
        } else {
            set_value(arg, argv[i]);
        }
    }
}

struct named {
    const char *name;
    int32_t value;
};

/* The value of the name `text` in the table `known`, which ends with a NULL name. */
static int32_t parse_name(const char *option, const char *text, const struct named *known, const char *names) {
    for (; known->name != NULL; known++) {
        if (strcmp(text, known->name) == 0) {
            return known->value;
        }
    }
    fail_usage("%s: '%s' is not %s", option, text, names);
}

int32_t parse_isa(const char *text) {
    static const struct named known[] = {{"auto", RIE_ISA_AUTO},
                                         {"scalar", RIE_ISA_SCALAR},
                                         {"avx2", RIE_ISA_AVX2},
                                         {"avx512", RIE_ISA_AVX512},
                                         {"neon", RIE_ISA_NEON},
                                         {NULL, 0}};
    return parse_name("--isa", text, known, "auto, scalar, avx2, avx512 or neon");
}

int32_t parse_weights(const char *text) {
    static const struct named known[] = {
        {"as-is", RIE_WEIGHTS_AS_IS}, {"int8", RIE_WEIGHTS_INT8}, {"int4", RIE_WEIGHTS_INT4}, {NULL, 0}};
    return parse_name("--weights", text, known, "as-is, int8 or int4");
}

void *allocate(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL) {
        fail("out of memory (%zu bytes)", size);
    }
    return memory;
}

char *get_text(const void *handle, int32_t key, size_t *length, rie_error *error) {
    rie_status status = rie_get_str(handle, key, NULL, 0, length, error); /* asks for the size */
    if (status != RIE_ERR_BUFFER_TOO_SMALL) {
        check(status, "asking the library", error);
    }
    char *text = allocate(*length + 1);
    check(rie_get_str(handle, key, text, *length, length, error), "asking the library", error);
    text[*length] = '\0';
    return text;
}

char *inspect_model(const char *path, const rie_options *options, size_t *length, rie_error *error) {
    rie_status status = rie_inspect(path, options, NULL, 0, length, error); /* asks for the size */
    if (status != RIE_ERR_BUFFER_TOO_SMALL) {
        check(status, "inspecting the model", error);
    }
    char *text = allocate(*length + 1);
    check(rie_inspect(path, options, text, *length, length, error), "inspecting the model", error);
    text[*length] = '\0';
    return text;
}

void set_int(rie_options *options, int32_t key, const char *what, int64_t value, rie_error *error) {
    check(rie_options_set_int(options, key, value, error), what, error);
}

void set_float(rie_options *options, int32_t key, const char *what, double value, rie_error *error) {
    check(rie_options_set_float(options, key, value, error), what, error);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted(const double *samples, size_t count) {
    double *copy = allocate(count * sizeof *copy);
    memcpy(copy, samples, count * sizeof *copy);
    qsort(copy, count, sizeof *copy, ascending);
    return copy;
}

double median(const double *samples, size_t count) {
    double *in_order = sorted(samples, count);
    const double middle = (in_order[(count - 1) / 2] + in_order[count / 2]) / 2;
    free(in_order);
    return middle;
}

double percentile(const double *samples, size_t count, size_t percent) {
    double *in_order = sorted(samples, count);
    const size_t at = count * percent / 100;
    const double value = in_order[at < count ? at : count - 1];
    free(in_order);
    return value;
}

int64_t get_int(const void *handle, int32_t key, rie_error *error) {
    int64_t value = 0;
    check(rie_get_int(handle, key, &value, error), "asking the library", error);
    return value;
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *human_bytes(double bytes, char *buf, size_t cap) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000;
        unit++;
    }
    snprintf(buf, cap, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return buf;
}
