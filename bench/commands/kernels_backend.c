// SPDX-License-Identifier: Apache-2.0
// Reads the dtype by its name and the speed of a device, for both measurements of `forepack bench kernels`.
#include <string.h>

#include "bench/commands/kernels.h"

enum status kernels_dtype(const char *name, enum dtype *dtype_p)
{
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (strcmp(name, dtype_name((enum dtype)d)) == 0) {
            *dtype_p = (enum dtype)d;
            return STATUS_OK;
        }
    return status_fail(STATUS_UNSUPPORTED, "dtype %s: this build has no kernels for it", name);
}

enum status kernels_read_device(struct backend *backend, int ms, double gflop, double gbytes, struct measurement *m,
                                struct rounds_readings *readings)
{
    struct probe_reading *mean = &readings->mean;
    mean->instruction = "cuBLASLt bf16";
    enum status status = backend->ops->measure(backend, ms, &mean->gflops, &mean->gbytes_per_s);
    if (status != STATUS_OK) return status;
    double arithmetic = gflop / mean->gflops, memory = gbytes / mean->gbytes_per_s;
    m->memory_bound = memory > arithmetic;
    m->share = (m->memory_bound ? memory : arithmetic) / m->seconds;
    return STATUS_OK;
}
