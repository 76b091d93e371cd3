// SPDX-License-Identifier: Apache-2.0
// Weights for a shape that has no checkpoint, to time any size of model: matrices of pseudo-random bf16 values (mean 0,
// standard deviation 0.02, as models are initialised), norms of ones. The same name always gets the same values, on
// every rank and in every run. The text that comes out is noise.
//
// All matrices are views of one buffer of a few megabytes: each row starts DUMMY_STRIDE elements after the row above
// it, so rows overlap in what they hold but none equals another. A backend packs its own copy, so what it computes
// with is as large as real weights are, and only that takes memory.
#pragma once

#include "kernels/backend.h"
#include "model/config.h"

struct dummy;

struct dummy *dummy_create(const struct model_config *config);
void dummy_free(struct dummy *d); // NULL is fine; views are good until then

// The tensor `name` of [rows, columns], or [columns] where rows is 0; sizes are those the config calls for.
struct matrix_view dummy_view(const struct dummy *d, const char *name, int64_t rows, int64_t columns);
