// SPDX-License-Identifier: Apache-2.0
// Applies an operator's rules (lib/base/prune_rule.h) to the prefill options of a request. Plain data; any thread.
#pragma once

#include "lib/base/prune_rule.h"
#include "lib/text/generation.h"

// Limits the options of a request that is not score-only. `defaults` are the router's options for requests that give
// none. Returns true if the rule changed what the request may prune:
//
//   never             mode off
//   quality-at-least  at least this quality in place of a lower one or of a keep rate; all tokens without calibration
//   keep-at-least     at least this keep rate, also where the speculator chooses the rate for a quality
//   required          mode required. A request that would keep all tokens gets the router's keep rate or quality. The
//                     keep rate without calibration is the default keep rate.
//
// Options that prune nothing change only with `required`.
bool prefill_limit_prune(const struct prune_rule *rule, const struct prefill *defaults, struct prefill *p);

// Returns true if the options let a speculator prune the prompt.
bool prefill_prunes(const struct prefill *p);
