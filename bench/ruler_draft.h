// SPDX-License-Identifier: Apache-2.0
// A document of RULER under construction. A task writes the prompt with a number of units, such as sentences or
// passages, and ruler_make() searches for the largest number that fits.
#pragma once

#include <stdio.h>

#include "bench/ruler.h"
#include "lib/base/random.h"

enum { RULER_KEY_BYTES = 48, RULER_UUID_BYTES = 37 };

struct ruler_draft {
    const struct ruler_request *request;
    struct random_source random;
    int units;
    FILE *out; // the prompt
    struct ruler_document *document;
};

struct ruler_rules {
    const char *name;
    void (*write)(struct ruler_draft *d);
    int units_min;     // with fewer units the task cannot be written
    int answer_tokens; // limit of the answer, as published
    bool any;
};

// Adds a string that a right answer contains.
void ruler_add_answer(struct ruler_draft *d, const char *text);
// Writes the beginning of the answer, the end of the prompt.
void ruler_write_prefix(struct ruler_draft *d, const char *text);
// Returns the largest number of units that the request's passages allow.
int ruler_units_max(const struct ruler_request *request);

// Words. Each index has another word or key; the stream of the document shuffles them.
int ruler_n_words(void);
const char *ruler_word(int index);                                      // index below ruler_n_words()
void ruler_key(uint64_t shuffle, int index, char key[RULER_KEY_BYTES]); // "amber-lantern", different for each index
void ruler_uuid(struct random_source *r, char uuid[RULER_UUID_BYTES]);
int *ruler_order(struct random_source *r, int n); // the numbers below n in random order; the caller frees them

void ruler_write_needles(struct ruler_draft *d);
void ruler_write_variables(struct ruler_draft *d);
void ruler_write_common_words(struct ruler_draft *d);
void ruler_write_frequent_words(struct ruler_draft *d);
void ruler_write_questions(struct ruler_draft *d);
