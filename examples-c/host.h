/* What the generating programs share: Ctrl-C, progress on a terminal, loading, text to tokens and back. */
#ifndef RIE_EXAMPLES_HOST_H
#define RIE_EXAMPLES_HOST_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "rie.h"

/* Raised by Ctrl-C after catch_interrupt; looked at between steps, all of them short. A second Ctrl-C ends the program.
 * If `restart`, input and output that was interrupted goes on; a program that waits for input says 0.
 * (rie_session_cancel ends a step that is running, but is for other threads, not for signal handlers.) */
extern volatile sig_atomic_t interrupted;
void catch_interrupt(int restart);

/* One line on a terminal that is overwritten and at last cleared; nothing if stderr is none. */
void show_progress(const char *what, uint64_t done, uint64_t total);
void clear_progress(void);

/* Loads the model with its progress shown; ends the program on an error or Ctrl-C. */
rie_model *load_model(const char *path, rie_options *options, rie_error *error);

/* Saves it likewise. */
void save_model(const rie_model *model, const char *path, rie_options *options, rie_error *error);

/* The text's tokens, to be freed. `flags` as rie_tokenize. */
rie_token *tokenize(const rie_model *model, const char *text, size_t length, uint32_t flags, size_t *count,
                    rie_error *error);

/* Pushes a token (-1: the end) through the stream; returns the text that it settles, to be freed. */
char *push_token(rie_text_stream *stream, rie_token token, size_t *length, rie_error *error);

#endif
