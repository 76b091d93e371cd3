// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process (kernels/comm.h), for tests of groups.
#pragma once

#include "kernels/comm.h"

// Opens `size` comms, one per thread. The last close frees their shared memory.
enum status comm_open_threads(int size, struct comm **comms);
