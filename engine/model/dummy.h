// SPDX-License-Identifier: Apache-2.0
// Dummy weights for a model shape without a checkpoint, to measure models of any size. Matrices have pseudo-random
// values (mean 0, standard deviation 0.02, as models are initialised) in bf16, or in FP8 if the config says so. Norms
// are ones. A tensor of a given name has the same values on every rank and in every run. The generated text is noise.
//
// The matrices are views of one buffer of a few megabytes. Each row starts DUMMY_STRIDE elements after the previous
// row, so rows overlap but no two rows are equal. Only the backend's packed copy takes as much memory as real weights.
#pragma once

#include "kernels/backend.h"
#include "lib/text/config.h"

struct dummy;

// Creates dummy weights. If `zeros` is true, all elements of all tensors are zero, and no memory is needed.
struct dummy *dummy_create(const struct model_config *config, bool zeros);
void dummy_free(struct dummy *d); // NULL is fine; ends the validity of all views

// Returns the tensor `name` of shape [rows, columns], or [columns] if rows is 0. The sizes must fit the config. If
// `quantised` is true, the tensor is stored as the config says, with its kind of scales.
struct matrix_view dummy_view(const struct dummy *d, const char *name, int64_t rows, int64_t columns, bool quantised);
