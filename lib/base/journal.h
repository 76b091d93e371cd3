// SPDX-License-Identifier: Apache-2.0
// Finds out if standard error is the journal of systemd, which adds the time to each line and reads its priority from
// a prefix such as <4>.
#pragma once

#include <stdbool.h>

// Returns true if JOURNAL_STREAM names the file of standard error. The ranks of mpirun write to a pipe of mpirun, whose
// standard error is compared instead.
bool journal_is_stderr(void);
