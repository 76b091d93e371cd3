// SPDX-License-Identifier: Apache-2.0
// The normalizer of tokenizer.json as a list of steps: NFC, Prepend, Replace. Immutable once built.
#pragma once

#include "lib/text/pattern.h"
#include "lib/text/text_span.h"

enum normalizer_kind { NORMALIZER_NFC, NORMALIZER_PREPEND, NORMALIZER_REPLACE };

struct normalizer_step {
    enum normalizer_kind kind;
    struct pattern *pattern; // REPLACE: owned
    char *text;              // PREPEND: the prefix; REPLACE: the replacement; owned
    size_t n;
};

#define NORMALIZER_STEPS_LIMIT 16

struct normalizer {
    struct normalizer_step steps[NORMALIZER_STEPS_LIMIT];
    int n_steps;
};

void normalizer_fini(struct normalizer *normalizer);

// Normalizes `span`, which is not empty. `*out_p` points into `buffers` [2], which the caller owns, frees and may
// reuse. If nothing changed, `*out_p` is `span` itself.
enum status normalizer_run(const struct normalizer *normalizer, struct pattern_scratch *scratch, struct text_span span,
                           struct text_buffer buffers[2], struct text_span *out_p);
