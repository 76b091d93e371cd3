// SPDX-License-Identifier: Apache-2.0
// The home of users that have none: arbitrary user ids of containers, and DynamicUser of systemd.
#pragma once

// Sets HOME to / if it is not set and the user has no entry in the password database. PMIx, which connects the ranks of
// Open MPI, looks for its settings there and crashes without a home. A folder for temporary files would be wrong: other
// users could put settings into it. Call it before other threads start.
void home_ensure(void);
