// SPDX-License-Identifier: Apache-2.0
// The normalizer of tokenizer.json as a list of steps: NFC, Prepend, Replace. Immutable once built.
#pragma once

#include "model/pattern.h"
#include "model/span.h"

enum normalizer_kind { NORMALIZER_NFC, NORMALIZER_PREPEND, NORMALIZER_REPLACE };

struct normalizer_step {
    enum normalizer_kind kind;
    struct pattern *pattern; // REPLACE: owned
    char *text;              // PREPEND, REPLACE: what comes in, owned
    size_t n;
};

#define NORMALIZER_STEPS_LIMIT 16

struct normalizer {
    struct normalizer_step steps[NORMALIZER_STEPS_LIMIT];
    int n_steps;
};

void normalizer_fini(struct normalizer *normalizer);

// Rewrites `span`, not empty. `*out_p` points into `buffers` [2] (the caller's, reused and freed by it), or is `span`
// itself when there was nothing to do.
enum status normalizer_run(const struct normalizer *normalizer, struct pattern_scratch *scratch, struct span span,
                           struct span_buffer buffers[2], struct span *out_p);
