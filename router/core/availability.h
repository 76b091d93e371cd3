// SPDX-License-Identifier: Apache-2.0
// Says what the attached nodes can be used for: whether a role takes work, and whether a quality applies. Reads the
// core and changes nothing. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Fails with UNAVAILABLE, because no node of the role takes work. The message says whether one is attached.
enum status core_fail_no_node(const struct core *c, enum node_role role);

// Returns true if the speculators are calibrated for the worker groups' model and these options. They then choose the
// keep rate for a quality.
bool core_quality_applies(const struct core *c, const struct prefill *prefill);

// Returns false if the keep rate was chosen for a quality by a calibration that no longer applies. That calibration may
// be for another main model, or may have come with a speculator that attached later.
bool core_rate_holds(const struct core *c, const struct prefill *prefill);

// Returns why a quality applies to no options although a speculator is calibrated. NULL: no speculator is calibrated,
// or a quality applies to some options.
const char *core_calibration_problem(const struct core *c);
