// SPDX-License-Identifier: Apache-2.0
// Environment variables that switch features off or on. FOREPACK_CUDA_GRAPHS=off (graphs.c) and
// FOREPACK_CUDA_EARLY_LAUNCH=off (dependent.h) help to find the cause of a failure, or to run if the driver or GPU does
// not support the feature. FOREPACK_CUDA_STREAM_GEMM=on (gemm_stream.cu) switches on a kernel that is off by default.
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool cuda_switched(const char *name, const char *state)
{
    const char *value = getenv(name);
    return value && strcmp(value, state) == 0;
}

static inline bool cuda_switched_off(const char *name)
{
    return cuda_switched(name, "off");
}

static inline bool cuda_switched_on(const char *name)
{
    return cuda_switched(name, "on");
}
