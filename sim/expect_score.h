// SPDX-License-Identifier: Apache-2.0
// What any speculator must find in a request's prompt, computed from the request alone (answers.h). Pure; costly.
#pragma once

#include <stdbool.h>

#include "router/core/request.h"
#include "sim/scenario.h"
#include "speculator/evidence.h"

// Whether every speculator of the scenario has room for the whole look-ahead: fewer steps give another score.
bool expect_whole_look_ahead(const struct scenario *scenario, const struct request *r);

// The importance of the prompt's tokens, [n_tokens], and the evidence of the scoring.
void expect_score(const struct scenario *scenario, const struct request *r, float *importance,
                  struct evidence *evidence);

// Whether the scored request, which has a quality, got a keep rate and a reason that one of the speculators may have
// chosen: by its calibration, or all tokens where that is missing, for other options, not the only one, or for another
// main model.
bool expect_rate(const struct scenario *scenario, const struct request *r);
