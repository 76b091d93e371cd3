// SPDX-License-Identifier: Apache-2.0
// Pipeline stages of a model: the ranks and the layers of each stage. The leader, rank 0, is in the last stage, so that
// logits, sampling and scheduling are in one process. Consecutive ranks form a stage, which is one node if the launcher
// fills nodes in order.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "lib/text/config.h"

enum { MODEL_STAGES_MAX = 128 };

// The stage of one rank. `first` and `last` are both true in a group without stages.
struct pipeline_stage {
    int index, count;          // stage `index` of `count`
    int first_layer, n_layers; // layers of the checkpoint that this stage computes
    bool first, last;          // the first stage has the embedding, the last stage the final norm and the head
};

// Parses numbers of layers such as "20,12", one for each stage. `text` may be NULL: nothing is parsed. Returns INVALID
// if they are not one number of at least 1 for each stage. `layers` may be NULL.
enum status stages_parse(const char *text, int n_stages, int *layers);

// Returns the head's bytes divided by those of a layer, as they are stored: a pass reads both.
double stages_head_layers(const struct model_config *config);

// Divides the layers of a model over the stages: as `text` says or, if it is NULL, so that the longest stage is as
// short as possible. The head counts as stages_head_layers() layers of the last stage. The planner divides the same
// way.
enum status stages_divide(const struct model_config *config, const char *text, int n_stages, int *layers);

// Returns the stage of rank `rank` of `size` ranks. Returns INVALID if the ranks cannot be divided.
enum status stage_of_rank(int rank, int size, int n_stages, int *index_p);
