// SPDX-License-Identifier: Apache-2.0
// Finds out if the prompts of a calibration are too much alike to stand for other prompts.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "cli/engine/calibrate_rows.h"

// Returns a list of sentences, empty if the sample is varied: nearly equal lengths, copies, or one answer for most
// prompts. answers [rows->n] are hashes of the answers from the full prompts.
json_t *calibrate_sample_warnings(const struct calibrate_rows *rows, const uint64_t *answers);
