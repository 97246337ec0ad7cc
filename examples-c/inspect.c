/* Describes a model without running it: only the headers of its files are read. See `inspect --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json.h"
#include "rie.h"

static const char help[] =
    "Usage: inspect --model DIR|FILE\n"
    "\n"
    "Prints a model's architecture, its parameters, the bytes of each dtype, and each tensor's name, dtype and shape.\n"
    "DIR is a Hugging Face model directory, FILE a .safetensors file. No weight is read.\n"
    "\n"
    "  --json    print what the library says, as JSON\n"
    "  --help    print this text\n"
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

/* rie_inspect's answer, to be freed. */
static char *inspect(const char *path, size_t *length) {
    rie_error *error = rie_error_new();
    rie_status status = rie_inspect(path, NULL, 0, length, error); /* asks for the size */
    if (status != RIE_ERR_BUFFER_TOO_SMALL) {
        check(status, "inspecting the model", error);
    }
    char *text = allocate(*length);
    check(rie_inspect(path, text, *length, length, error), "inspecting the model", error);
    rie_free(error);
    return text;
}

/* "[49152, 576]" */
static void read_shape(struct json *j, char *buf, size_t cap) {
    size_t n = 0;
    json_enter(j, '[');
    while (json_next(j)) {
        const int64_t extent = json_int(j);
        const int written = snprintf(buf + n, cap - n, "%s%" PRId64, n > 0 ? ", " : "[", extent);
        n += (size_t)written < cap - n ? (size_t)written : cap - n - 1;
    }
    snprintf(buf + n, cap - n, n > 0 ? "]" : "[]");
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
            read_shape(j, tensor.shape, sizeof tensor.shape);
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

/* {"tensors": N, "parameters": N, "bytes": N} or {"name": "…", "bytes": N}, on one line. */
static void print_members(struct json *j) {
    char scalar[32], size[32];
    json_enter(j, '{');
    while (json_next(j)) {
        const char *key = json_key(j);
        if (json_peek(j) == '"') {
            printf("  %s", printable(json_string(j)));
        } else if (strcmp(key, "bytes") == 0) {
            printf("  %s", human_bytes((double)json_int(j), size, sizeof size));
        } else {
            printf("  %s %s", json_scalar(j, scalar, sizeof scalar), key);
        }
    }
    printf("\n");
}

/* An object's members, each on a line of its own under the heading. */
static void print_object(struct json *j, const char *heading) {
    char scalar[32];
    printf("\n%s\n", heading);
    json_enter(j, '{');
    while (json_next(j)) {
        printf("  %-26s", printable(json_key(j)));
        if (json_peek(j) == '{') {
            print_members(j);
        } else if (json_peek(j) == '"') {
            printf("%s\n", printable(json_string(j)));
        } else if (json_peek(j) == '[') {
            json_skip(j);
            printf("[...]\n");
        } else {
            printf("%s\n", json_scalar(j, scalar, sizeof scalar));
        }
    }
}

static void print_files(struct json *j) {
    printf("\nfiles\n");
    json_enter(j, '[');
    while (json_next(j)) {
        print_members(j);
    }
}

static void print_model(char *text, size_t length) {
    struct tensors tensors = {0};
    char scalar[32], size[32];
    struct json j = json_open(text, length);
    json_enter(&j, '{');
    while (json_next(&j)) {
        const char *key = json_key(&j);
        if (strcmp(key, "tensors") == 0) {
            read_tensors(&j, &tensors);
        } else if (strcmp(key, "files") == 0) {
            print_files(&j);
        } else if (json_peek(&j) == '{') {
            print_object(&j, key);
        } else if (json_peek(&j) == '"') {
            printf("%-14s %s\n", key, printable(json_string(&j)));
        } else if (strcmp(key, "bytes") == 0) {
            printf("%-14s %s\n", key, human_bytes((double)json_int(&j), size, sizeof size));
        } else {
            printf("%-14s %s\n", key, json_scalar(&j, scalar, sizeof scalar));
        }
    }
    if (j.failed) {
        fail("the library's description is not the JSON that this program knows");
    }
    print_tensors(&tensors);
    free(tensors.items);
}

int main(int argc, char **argv) {
    const char *path = NULL;
    int json = 0;
    const struct arg args[] = {
        {"--model", ARG_STR, &path},
        {"--json", ARG_FLAG, &json},
        {NULL, ARG_FLAG, NULL},
    };
    parse_args(argc, argv, args, help);
    if (path == NULL) {
        fail_usage("--model: a model directory or .safetensors file is needed");
    }
    size_t length = 0;
    char *text = inspect(path, &length);
    if (json) {
        fwrite(text, 1, length, stdout);
        putchar('\n');
    } else {
        print_model(text, length);
    }
    free(text);
    return 0;
}
