#include "json.h"

#include <string.h>

struct json json_open(char *text, size_t length) {
    struct json j = {text, text + length, 0};
    return j;
}

static void fail(struct json *j) {
    j->failed = 1;
    j->at = j->end;
}

char json_peek(struct json *j) {
    while (j->at < j->end && strchr(" \t\r\n", *j->at) != NULL && *j->at != '\0') {
        j->at++;
    }
    return j->at < j->end ? *j->at : '\0';
}

/* Steps over `c` if it comes next. */
static int take(struct json *j, char c) {
    if (json_peek(j) != c || j->at == j->end) {
        return 0;
    }
    j->at++;
    return 1;
}

void json_enter(struct json *j, char bracket) {
    if (!take(j, bracket)) {
        fail(j);
    }
}

int json_next(struct json *j) {
    if (take(j, '}') || take(j, ']')) {
        return 0;
    }
    take(j, ',');
    if (j->at == j->end) {
        fail(j);
    }
    return !j->failed;
}

char *json_key(struct json *j) {
    char *key = json_string(j);
    if (!take(j, ':')) {
        fail(j);
    }
    return key;
}

/* Four hex digits at `s`, or -1. */
static long hex4(const char *s, const char *end) {
    long value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF";
        const char *digit = s + i < end && s[i] != '\0' ? strchr(digits, s[i]) : NULL;
        if (digit == NULL) {
            return -1;
        }
        value = value * 16 + (digit - digits) % 16;
    }
    return value;
}

/* Writes code point `c` as UTF-8; never longer than the escape it came from. */
static char *put_utf8(char *out, long c) {
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    if (c >= 0x10000) {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
    } else if (c >= 0x800) {
        *out++ = (char)(0xE0 | c >> 12);
    } else {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3F));
        return out;
    }
    *out++ = (char)(0x80 | (c >> 6 & 0x3F));
    *out++ = (char)(0x80 | (c & 0x3F));
    return out;
}

/* Unescapes what follows a backslash at j->at. */
static char *unescape(struct json *j, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = j->at < j->end && *j->at != '\0' ? strchr(names, *j->at) : NULL;
    if (name != NULL) {
        j->at++;
        *out++ = values[name - names];
        return out;
    }
    long c = take(j, 'u') ? hex4(j->at, j->end) : -1;
    if (c < 0) {
        fail(j);
        return out;
    }
    j->at += 4;
    if (c >= 0xD800 && c < 0xDC00 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u') {
        long low = hex4(j->at + 2, j->end);
        if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            j->at += 6;
        }
    }
    return put_utf8(out, c);
}

char *json_string(struct json *j) {
    static char nothing[1];
    if (!take(j, '"')) {
        fail(j);
        return nothing;
    }
    char *start = j->at, *out = start;
    while (j->at < j->end && *j->at != '"') {
        char c = *j->at++;
        if (c == '\\') {
            out = unescape(j, out);
        } else {
            *out++ = c;
        }
    }
    if (j->at == j->end) {
        fail(j);
        return nothing;
    }
    j->at++; /* the closing quote: `out` is at it or before it, so the NUL fits */
    *out = '\0';
    return start;
}

const char *json_scalar(struct json *j, char *buf, size_t cap) {
    size_t n = 0;
    json_peek(j);
    while (j->at < j->end && strchr(",:]}[{\" \t\r\n", *j->at) == NULL) {
        if (n + 1 < cap) {
            buf[n++] = *j->at;
        }
        j->at++;
    }
    buf[n] = '\0';
    if (n == 0) {
        fail(j);
    }
    return buf;
}

int64_t json_int(struct json *j) {
    char text[24];
    const char *s = json_scalar(j, text, sizeof text);
    int negative = *s == '-';
    int64_t value = 0;
    for (s += negative; *s >= '0' && *s <= '9' && value <= (INT64_MAX - 9) / 10; s++) {
        value = value * 10 + (*s - '0');
    }
    if (*s != '\0') {
        fail(j);
        return 0;
    }
    return negative ? -value : value;
}

void json_skip(struct json *j) {
    size_t depth = 0;
    char scalar[2];
    do {
        char c = json_peek(j);
        if (c == '{' || c == '[') {
            depth++;
            j->at++;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
            j->at++;
        } else if (c == '"') {
            json_string(j);
        } else if (depth > 0 && (c == ',' || c == ':')) {
            j->at++;
        } else {
            json_scalar(j, scalar, sizeof scalar);
        }
    } while (depth > 0 && !j->failed);
}
