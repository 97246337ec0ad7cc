/* A small pull scanner for the JSON that librie writes. It reads the text in place, in order, and allocates nothing:
 *
 *     struct json j = json_open(text, length);
 *     json_enter(&j, '{');
 *     while (json_next(&j)) {
 *         const char *key = json_key(&j);
 *         if (strcmp(key, "steps") == 0) steps = json_int(&j); else json_skip(&j);
 *     }
 *     if (j.failed) ...
 *
 * After the first mistake in the text everything reads as empty or zero, json_next says no, and `failed` stays set;
 * so it is enough to look at `failed` once, at the end.
 */
#ifndef RIE_EXAMPLES_JSON_H
#define RIE_EXAMPLES_JSON_H

#include <stddef.h>
#include <stdint.h>

struct json {
    char *at;
    char *end;
    int failed;
};

/* Scans text[0..length]. Strings are unescaped where they lie, so the text is used up by the reading. */
struct json json_open(char *text, size_t length);

/* Steps into an object ('{') or an array ('['). */
void json_enter(struct json *j, char bracket);

/* Whether the object or array that was entered has another member; at its end, steps out of it. */
int json_next(struct json *j);

/* Reads a member's key and the colon. */
char *json_key(struct json *j);

/* Read a value. A string is NUL-terminated and lives as long as the text. */
char *json_string(struct json *j);
int64_t json_int(struct json *j);
void json_skip(struct json *j);

/* Like json_string, but any simple value (a number, true, false, null) as it is spelled, cut to fit `buf`. */
const char *json_scalar(struct json *j, char *buf, size_t cap);

/* The first character of the next value: '{', '[', '"', a digit, '-', 't', 'f' or 'n'; 0 at the end. */
char json_peek(struct json *j);

#endif
