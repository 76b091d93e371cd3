// SPDX-License-Identifier: Apache-2.0
// Environment variables that switch off what a driver or GPU may not support, to find the cause of a failure or to run
// in spite of it: FOREPACK_CUDA_GRAPHS=off (graphs.c), FOREPACK_CUDA_EARLY_LAUNCH=off (dependent.h). And one that
// switches on what has not been measured: FOREPACK_CUDA_STREAM_GEMM=on (gemm_stream.cu).
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
