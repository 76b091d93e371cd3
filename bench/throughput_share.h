// SPDX-License-Identifier: Apache-2.0
// Whether a cluster keeps up with an open loop. If requests arrive faster than they end, each waits longer than the one
// before. So the throughput follows from the growth of the end-to-end time, and neither the start nor the end of the
// load distorts it.
#pragma once

// Returns the throughput as a share of the arrival rate, at most 1. Compares the medians of the first and the last
// quarter of the requests, in the order of arrival. `due_s` [n] are arrival times, `e2e_s` [n] times from arrival to
// end; NAN: failed. Fewer than 8 complete requests give their share alone.
double throughput_share(const double *due_s, const double *e2e_s, int n);
