// SPDX-License-Identifier: Apache-2.0
// Checks every backend makes of what it is handed: cheap beside a forward pass, and a wrong block number would
// otherwise overwrite another sequence's cache. A failure is the caller's bug; the sentence says which.
#pragma once

#include "kernels/backend.h"

enum status backend_shape_check(const struct backend_shape *shape, enum dtype dtype);
enum status ragged_batch_check(const struct ragged_batch *batch, const struct backend_shape *shape);
