// SPDX-License-Identifier: Apache-2.0
// Prepares requests that continue an answer whose stream broke (message Resume of inference.proto). One thread.
#pragma once

#include "cli/answer.h"
#include "cli/request.h"

// Makes `spec` continue `answer` after the tokens that have come. A running request with its id ends.
void resume_prepare(struct request_spec *spec, struct answer *answer);
// Makes `spec` a plain request again.
void resume_clear(struct request_spec *spec);
