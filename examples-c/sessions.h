/* What many sessions of one model cost: shared prefixes, forks, a prompt fed in beside others, speculation. */
#ifndef RIE_EXAMPLES_SESSIONS_H
#define RIE_EXAMPLES_SESSIONS_H

#include "rie.h"

struct figure {
    const char *name; /* a key for scripts */
    const char *what; /* for people */
    double value;
};

enum { MOST_FIGURES = 16 };

/* Measures with `repetitions` rounds and fills `figures`; returns how many. Ends the program on an error. */
int measure_sessions(const rie_model *model, int repetitions, struct figure *figures, rie_error *error);

#endif
