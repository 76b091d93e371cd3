// SPDX-License-Identifier: Apache-2.0
// The score that any speculator must compute for a request's prompt, computed only from the request (answers.h). Pure
// functions; costly.
#pragma once

#include <stdbool.h>

#include "router/core/request.h"
#include "sim/scenario.h"
#include "speculator/evidence.h"

// Returns true if every speculator of the scenario has room for the whole look-ahead. Fewer steps give another score.
bool expect_whole_look_ahead(const struct scenario *scenario, const struct request *r);

// Computes the importance of the prompt's tokens, [n_tokens], and the evidence of the score.
void expect_score(const struct scenario *scenario, const struct request *r, float *importance,
                  struct evidence *evidence);

// Returns true if one of the speculators may have chosen the keep rate and its reason. The request must be scored and
// have a quality target. A speculator keeps all tokens if its calibration is missing, is for other options or another
// main model, or differs from the calibration of another speculator.
bool expect_rate(const struct scenario *scenario, const struct request *r);
