// SPDX-License-Identifier: Apache-2.0
// Answers two questions about the attached nodes: does any node of a role take work, and can speculators choose the
// keep rate of a request that asks for a quality? Reads the core and changes nothing. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Fails with UNAVAILABLE, because no node of the role takes work. The message says whether a node of the role is
// attached.
enum status core_fail_no_node(const struct core *c, enum node_role role);

// Returns true if the speculators are calibrated for the worker groups' model and for these options.
bool core_quality_applies(const struct core *c, const struct prefill *prefill);

// Returns false if the keep rate was chosen for a quality by a calibration that no longer applies. The reason may be
// another main model, or a speculator that attached later with another calibration.
bool core_rate_holds(const struct core *c, const struct prefill *prefill);

// Returns why no request can have a quality although a speculator is calibrated. Returns NULL if no speculator is
// calibrated, or if the calibration covers at least some prefill options.
const char *core_calibration_problem(const struct core *c);
