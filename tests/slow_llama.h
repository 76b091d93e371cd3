// SPDX-License-Identifier: Apache-2.0
// An independent implementation: the whole forward pass of a tiny model in double precision, one sequence at a time,
// with a full attention matrix and no cache, batch or ranks. It shares no code with engine/model/ or kernels/: weights
// come from the checkpoint's seed, the formulas from Hugging Face's modeling files.
#pragma once

#include <stdint.h>

#include "tests/tiny_model.h"

struct slow_llama;

struct slow_llama *slow_llama_create(const struct tiny_model *spec); // never NULL
void slow_llama_free(struct slow_llama *slow);

// Computes logits [n][vocab_size] of every row. `scores` (may be NULL): q.k / sqrt(D) of every layer and query head,
// [n_layers][n_heads][n][n], row i with key j <= i, 0 beyond.
void slow_llama_run(const struct slow_llama *slow, const int32_t *token, const int32_t *position, int n, double *logits,
                    double *scores);
