/* Files for the tests of damaged ones: whole files in memory, and the headers of SafeTensors files. */
#ifndef RIE_TEST_FILES_H
#define RIE_TEST_FILES_H

#include <inttypes.h>
#include <unistd.h>

#include "check.h"

struct file {
    unsigned char *bytes;
    size_t size;
};

static inline FILE *open_file(const char *dir, const char *name, const char *mode) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, mode);
    if (f == NULL) {
        printf("%s cannot be opened\n", path);
        exit(1);
    }
    return f;
}

static inline struct file read_file(const char *dir, const char *name) {
    FILE *f = open_file(dir, name, "rb");
    fseek(f, 0, SEEK_END);
    struct file file = {NULL, (size_t)ftell(f)};
    rewind(f);
    file.bytes = allocate(file.size);
    if (fread(file.bytes, 1, file.size, f) != file.size) {
        printf("%s/%s cannot be read\n", dir, name);
        exit(1);
    }
    fclose(f);
    return file;
}

static inline void write_file(const char *dir, const char *name, struct file file) {
    FILE *f = open_file(dir, name, "wb");
    if (fwrite(file.bytes, 1, file.size, f) != file.size || fclose(f) != 0) {
        printf("%s/%s cannot be written\n", dir, name);
        exit(1);
    }
}

static inline void write_text(const char *dir, const char *name, const char *text) {
    write_file(dir, name, (struct file){(unsigned char *)(uintptr_t)text, strlen(text)});
}

static inline void remove_file(const char *dir, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    EXPECT(unlink(path) == 0);
}

/* The contents, NUL-terminated, to be freed. */
static inline char *text_of(struct file file) {
    char *text = allocate(file.size + 1);
    memcpy(text, file.bytes, file.size);
    text[file.size] = '\0';
    return text;
}

/* Where `text` is first found in the file. */
static inline unsigned char *find_bytes(struct file file, const char *text) {
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= file.size; i++) {
        if (memcmp(file.bytes + i, text, n) == 0) {
            return file.bytes + i;
        }
    }
    printf("%s is not in the file\n", text);
    exit(1);
}

/* The length that a SafeTensors file begins with. */
static inline uint64_t header_length(struct file file) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | file.bytes[i];
    }
    return length;
}

/* What a header says of a tensor. */
struct entry {
    char dtype[16], shape[64];
    int64_t first, last;
};

static inline struct entry find_entry(struct file file, const char *quoted_name) {
    struct entry e = {"", "", 0, 0};
    char text[256] = "";
    const unsigned char *at = find_bytes(file, quoted_name) + strlen(quoted_name) + 1;
    memcpy(text, at, sizeof text - 1);
    if (sscanf(text, "{\"dtype\":\"%15[^\"]\",\"shape\":[%63[^]]],\"data_offsets\":[%" SCNd64 ",%" SCNd64 "]}", e.dtype,
               e.shape, &e.first, &e.last) != 4) {
        printf("not the form of an entry: %s\n", text);
        exit(1);
    }
    return e;
}

/* A linear congruential generator: the same numbers everywhere. */
static inline uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif
