// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of every backend. The checks are cheap compared with a forward pass, and a wrong block number
// would overwrite the KV entries of another sequence. The message names the wrong value. A wrong batch is a bug of the
// caller, a wrong shape may come from options.
#pragma once

#include "kernels/backend.h"

enum status backend_shape_check(const struct backend_shape *shape, enum dtype dtype);
enum status ragged_batch_check(const struct ragged_batch *batch, const struct backend_shape *shape);
