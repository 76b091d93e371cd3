// SPDX-License-Identifier: Apache-2.0
// Divides the layers of a model over the stages of a pipeline. The engine and the planner use this division, so a plan
// has the memory of each stage. The first stage also has the embedding, the last one the final norm and the head.
#pragma once

#include "kernels/backend.h"
#include "lib/base/number_list.h"
#include "lib/text/config.h"

enum { STAGES_MAX = NUMBER_LIST_MAX };

struct stage_layers {
    int first, n; // consecutive layers; n >= 1
};

// Returns the cost of the head in layers: the ratio of the bytes that a pass reads. Arithmetic has the same ratio, if
// all rows have logits. `dtype` is that of the layers; matrices that a quantised checkpoint excludes have 16 bits.
double stages_head_layers(const struct model_config *config, enum dtype dtype, enum dtype head_dtype);

// Divides the layers so that the longest stage is as short as possible. The head counts as `head_layers` layers of the
// last stage. Earlier stages differ by at most one layer. A `list` such as "64,62" (--pp-layers) gives the numbers of
// layers instead; NULL or "": no list. Fails if a stage would have no layer, or if the list does not fit.
enum status stages_divide(int n_layers, int n_stages, double head_layers, const char *list,
                          struct stage_layers stages[STAGES_MAX]);
