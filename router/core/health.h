// SPDX-License-Identifier: Apache-2.0
// Which attached nodes are given work. A node that hangs or is far slower than its peers is ejected: it keeps its
// stream, gets no new work, and is admitted again gradually (as outlier detection in Envoy does).
//
// - Progress is a reported pass, a result, or a Heartbeat.progress that has grown. Heartbeats alone are not: they come
//   from another thread than the work.
// - A node that has work and makes no progress for `stall_us`, and for several times the expected time of its longest
//   pass, hangs. A hung speculator is ejected and its requests go on without it; a hung worker group is lost, and
//   ejected when it attaches again.
// - A node whose heartbeat counts fewer requests than it has to answer has lost some. It counts as hung at once.
// - A speculator that answers a request too late (score timeout) is ejected.
// - A node that is ten times slower than the median of its peers (nodes of its role with the same limits) is ejected
//   and finishes its requests; half of the pool at most, and never its last node.
// - After `eject_us`, doubled with each ejection in a row, the node is admitted with one request at a time. Each
//   request that it answers doubles that number, up to the node's own.
//
// nodes.c, node_reports.c and requests.c note what happens (node_progressed() and the like in node.h); the check draws
// the conclusions. The core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_health_check(struct core *c, int64_t now_us); // of every tick, before bins are dispatched

const char *core_health_state(const struct core_node *node); // "ready", "draining", "ejected" or "probing"
