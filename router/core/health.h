// SPDX-License-Identifier: Apache-2.0
// Decides which attached nodes get work. A node that hangs or is far slower than its peers is ejected: it keeps its
// stream, gets no new work, and is admitted again gradually (as in outlier detection of Envoy).
//
// - Progress is a reported pass, a result, or a Heartbeat.progress that has grown. A heartbeat alone is no progress,
//   because it comes from another thread than the work.
// - A node hangs if it has work and makes no progress for `stall_us` and for several times the expected time of its
//   longest pass. A hung speculator is ejected and its requests go on without it. A hung worker group is lost, and
//   ejected when it attaches again.
// - A node has lost requests if its heartbeat counts fewer requests than it has to answer. It counts as hung
// immediately.
// - A worker group also hangs, even if it reports progress, if it returns no result for ten times `stall_us` plus 10 ms
//   for each row, or no result of one of its requests for ten times that.
// - A speculator that answers a request too late (score timeout) is ejected. If it has made no progress since it got
//   the request, it counts as hung.
// - A node that is ten times slower than the median of its peers is ejected and finishes its requests. Peers are nodes
//   of one role with the same limits. At most half of the peers are ejected, and never the last node of the role that
//   takes work.
// - After `eject_us`, doubled with each ejection in a row, the node is admitted with one request at a time. Each
//   request that it answers doubles that number, up to the node's own limit.
//
// nodes.c, node_reports.c and requests.c note what happens (node_progressed() and similar functions in node.h).
// core_health_check() acts on these notes. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_health_check(struct core *c, int64_t now_us); // in every tick, before bins are dispatched

const char *core_health_state(const struct core_node *node); // "ready", "draining", "ejected" or "probing"
