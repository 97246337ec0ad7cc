/* The table that `generate --profile` prints. */
#ifndef RIE_EXAMPLES_PROFILE_H
#define RIE_EXAMPLES_PROFILE_H

#include <stddef.h>
#include <stdio.h>

#include "rie.h"

struct times {
    size_t prompt_tokens, generated_tokens;
    double prefill;      /* seconds until the first token was there */
    double decode;       /* seconds in the steps after that */
    size_t decode_steps; /* how many those were */
};

/* `sampler` NULL: greedy, without a seed to speak of. */
void print_profile(FILE *out, const rie_session *session, const rie_sampler *sampler, const struct times *times,
                   rie_error *error);

#endif
