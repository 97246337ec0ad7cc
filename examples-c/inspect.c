/* Describes a model without running it: only the headers of its files are read. See `inspect --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json.h"
#include "rie.h"

static const char help[] =
    "Usage: inspect --model DIR|FILE [option]...\n"
    "\n"
    "Prints a model's architecture, its parameters, the bytes of each dtype, and each tensor's name, dtype and shape.\n"
    "DIR is a Hugging Face model directory, FILE a .safetensors file. No weight is read.\n"
    "\n"
    "  --config FILE       config.json, if it does not lie beside the weights\n"
    "  --tokenizer FILE    tokenizer.json, if it does not lie beside the weights\n"
    "  --json              print what the library says, as JSON\n"
    "  --help              print this text\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line.\n";

struct tensor {
    const char *name, *dtype;
    char shape[64];
};

struct tensors {
    struct tensor *items;
    size_t count, cap;
};

/* Names come out of files that may be anyone's: nothing in them shall steer the terminal. */
static const char *printable(char *text) {
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            *c = '?';
        }
    }
    return text;
}

struct paths {
    const char *model, *config, *tokenizer;
};

/* rie_inspect's answer, to be freed. */
static char *inspect(const struct paths *paths, size_t *length) {
    rie_error *error = rie_error_new();
    rie_options *options = rie_options_new();
    if (paths->config != NULL) {
        check(rie_options_set_str(options, RIE_OPT_CONFIG_PATH, paths->config, error), "--config", error);
    }
    if (paths->tokenizer != NULL) {
        check(rie_options_set_str(options, RIE_OPT_TOKENIZER_PATH, paths->tokenizer, error), "--tokenizer", error);
    }
    char *text = inspect_model(paths->model, options, length, error);
    rie_free(options);
    rie_free(error);
    return text;
}

/* A list of simple values as "[49152, 576]"; if it does not fit, its end is "...]". */
static const char *read_list(struct json *j, char *buf, size_t cap) {
    static const char more[] = ", ...";
    char item[32];
    size_t n = 0;
    int cut = 0;
    json_enter(j, '[');
    while (json_next(j)) {
        const size_t length = strlen(json_scalar(j, item, sizeof item)), room = cap - n;
        cut = cut || length + sizeof more + 3 > room;
        if (!cut) {
            n += (size_t)snprintf(buf + n, room, "%s%s", n > 0 ? ", " : "[", item);
        }
    }
    n += cut ? (size_t)snprintf(buf + n, cap - n, "%s", more) : 0;
    snprintf(buf + n, cap - n, n > 0 ? "]" : "[]");
    return buf;
}

static struct tensor read_tensor(struct json *j) {
    struct tensor tensor = {"?", "?", ""};
    json_enter(j, '{');
    while (json_next(j)) {
        const char *key = json_key(j);
        if (strcmp(key, "name") == 0) {
            tensor.name = printable(json_string(j));
        } else if (strcmp(key, "dtype") == 0) {
            tensor.dtype = printable(json_string(j));
        } else if (strcmp(key, "shape") == 0) {
            read_list(j, tensor.shape, sizeof tensor.shape);
        } else {
            json_skip(j);
        }
    }
    return tensor;
}

static void read_tensors(struct json *j, struct tensors *tensors) {
    json_enter(j, '[');
    while (json_next(j)) {
        if (tensors->count == tensors->cap) {
            tensors->cap = tensors->cap * 2 + 64;
            tensors->items = realloc(tensors->items, tensors->cap * sizeof *tensors->items);
            if (tensors->items == NULL) {
                fail("out of memory");
            }
        }
        tensors->items[tensors->count++] = read_tensor(j);
    }
}

static void print_tensors(const struct tensors *tensors) {
    int name_width = 6, dtype_width = 5;
    for (size_t i = 0; i < tensors->count; i++) {
        const struct tensor *t = &tensors->items[i];
        name_width = (int)strlen(t->name) > name_width ? (int)strlen(t->name) : name_width;
        dtype_width = (int)strlen(t->dtype) > dtype_width ? (int)strlen(t->dtype) : dtype_width;
    }
    printf("\n%-*s  %-*s  %s\n", name_width, "tensor", dtype_width, "dtype", "shape");
    for (size_t i = 0; i < tensors->count; i++) {
        const struct tensor *t = &tensors->items[i];
        printf("%-*s  %-*s  %s\n", name_width, t->name, dtype_width, t->dtype, t->shape);
    }
}

/* {"tensors": 30, "bytes": 512} or {"name": "model.safetensors", "bytes": 512}, on one line. */
static void print_totals(struct json *j) {
    char scalar[32], size[32];
    json_enter(j, '{');
    while (json_next(j)) {
        const char *key = json_key(j);
        if (json_peek(j) == '"') {
            printf("  %-24s", printable(json_string(j)));
        } else if (strcmp(key, "bytes") == 0) {
            printf("  %10s", human_bytes((double)json_int(j), size, sizeof size));
        } else {
            printf("  %12s %s", json_scalar(j, scalar, sizeof scalar), key);
        }
    }
    printf("\n");
}

static void print_dtypes(struct json *j) {
    printf("\ndtypes\n");
    json_enter(j, '{');
    while (json_next(j)) {
        printf("  %-8s", printable(json_key(j)));
        print_totals(j);
    }
}

static void print_files(struct json *j) {
    printf("\nfiles\n");
    json_enter(j, '[');
    while (json_next(j)) {
        print_totals(j);
    }
}

/* A value that is no object, as text. */
static const char *read_value(struct json *j, char *buf, size_t cap) {
    switch (json_peek(j)) {
    case '"':
        return printable(json_string(j));
    case '[':
        return read_list(j, buf, cap);
    default:
        return json_scalar(j, buf, cap);
    }
}

/* An object's members, each on a line of its own; those of an object in it are named "outer.inner". */
static void print_members(struct json *j, const char *outer) {
    char name[64], buf[64];
    json_enter(j, '{');
    while (json_next(j)) {
        snprintf(name, sizeof name, "%s%s%s", outer, outer[0] != '\0' ? "." : "", printable(json_key(j)));
        if (json_peek(j) == '{') {
            print_members(j, name);
        } else {
            printf("  %-40s %s\n", name, read_value(j, buf, sizeof buf));
        }
    }
}

static void print_model(char *text, size_t length) {
    struct tensors tensors = {0};
    char buf[64];
    struct json j = json_open(text, length);
    json_enter(&j, '{');
    while (json_next(&j)) {
        const char *key = json_key(&j);
        if (strcmp(key, "tensors") == 0) {
            read_tensors(&j, &tensors);
        } else if (strcmp(key, "files") == 0) {
            print_files(&j);
        } else if (strcmp(key, "dtypes") == 0) {
            print_dtypes(&j);
        } else if (json_peek(&j) == '{') {
            printf("\n%s\n", key);
            print_members(&j, "");
        } else if (strcmp(key, "bytes") == 0) {
            printf("%-14s %s\n", key, human_bytes((double)json_int(&j), buf, sizeof buf));
        } else {
            printf("%-14s %s\n", key, read_value(&j, buf, sizeof buf));
        }
    }
    if (j.failed) {
        fail("the library's description is not the JSON that this program knows");
    }
    print_tensors(&tensors);
    free(tensors.items);
}

int main(int argc, char **argv) {
    struct paths paths = {0};
    int json = 0;
    const struct arg args[] = {
        {"--model", ARG_STR, &paths.model},
        {"--config", ARG_STR, &paths.config},
        {"--tokenizer", ARG_STR, &paths.tokenizer},
        {"--json", ARG_FLAG, &json},
        {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (paths.model == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    size_t length = 0;
    char *text = inspect(&paths, &length);
    if (json) {
        fwrite(text, 1, length, stdout);
        putchar('\n');
    } else {
        print_model(text, length);
    }
    free(text);
    if (fflush(stdout) != 0) {
        fail("stdout: cannot write");
    }
    return 0;
}
