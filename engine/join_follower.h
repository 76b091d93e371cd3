// SPDX-License-Identifier: Apache-2.0
// A follower of a group over several hosts (join.h): dials the leader, proves that it knows the cluster token, starts
// orted for it, and ends orted when the leader is lost. The main thread calls it.
#pragma once

#include "engine/join.h"

// Returns OK after SIGTERM, SIGINT or SIGUSR1, once the group has ended. Other results are failures before the first
// attempt to join.
enum status join_follow(const struct join_options *options);
