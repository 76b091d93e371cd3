// SPDX-License-Identifier: Apache-2.0
// The state of a cluster as JSON, for `forepack status --json` and `forepack debug bundle`.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"
#include "proto/forepack/v1/inference.pb-c.h"

// Returns INTERNAL if the answer of `server` lacks parts. The caller releases *object_p.
enum status status_json(const Forepack__V1__ClusterInfo *m, const char *server, json_t **object_p);
