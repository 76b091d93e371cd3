// SPDX-License-Identifier: Apache-2.0
// Cost models (router/sched/cost.h) learn random passes, sometimes after a pause of about ten minutes. Every number
// must follow from the list of all passes, and the fit must be the best fit.
#pragma once

#include "lib/base/random.h"

const char *oracle_cost_model(struct random_source *random); // returns NULL, or the violation
