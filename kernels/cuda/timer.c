// SPDX-License-Identifier: Apache-2.0
// See timer.h.
#include "kernels/cuda/timer.h"

#include <math.h>

#include "kernels/cuda/cuda.h"

enum { WARM_UP_MS = 300, ROUNDS = 4 };

enum status timer_open(struct timer *t)
{
    cudaError_t error = cudaEventCreate(&t->from);
    if (error == cudaSuccess) error = cudaEventCreate(&t->to);
    return cuda_status(error, "CUDA events");
}

void timer_close(struct timer *t)
{
    if (t->from) cudaEventDestroy(t->from);
    if (t->to) cudaEventDestroy(t->to);
}

// Measures the milliseconds of one round of a candidate. The result is infinity if the candidate cannot run.
static enum status round_time(const struct timer *t, const struct candidates *c, int which, float *ms_p)
{
    bool runs = true;
    float ms = INFINITY;
    cudaError_t error = cudaEventRecord(t->from, c->stream);
    for (int i = 0; i < c->runs && runs; i++)
        runs = c->run(c->context, which);
    if (error == cudaSuccess) error = cudaEventRecord(t->to, c->stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(t->to);
    if (error == cudaSuccess && runs) error = cudaEventElapsedTime(&ms, t->from, t->to);
    *ms_p = ms;
    return cuda_status(error, "timing on the device");
}

// Warms up with the first candidate that can run.
static enum status warm_up(struct timer *t, const struct candidates *c)
{
    float total_ms = 0, ms;
    for (int which = 0; which < c->n && total_ms < WARM_UP_MS;) {
        TRY(round_time(t, c, which, &ms));
        if (isinf(ms))
            which++;
        else
            total_ms += ms;
    }
    t->warm = total_ms >= WARM_UP_MS;
    return STATUS_OK;
}

enum status timer_compare(struct timer *t, const struct candidates *c, float *ms)
{
    for (int i = 0; i < c->n; i++)
        ms[i] = c->run(c->context, i) ? 0 : INFINITY; // the first run loads the kernel
    if (!t->warm) TRY(warm_up(t, c));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < c->n; i++) {
            float this_ms = INFINITY;
            if (!isinf(ms[i])) TRY(round_time(t, c, i, &this_ms));
            this_ms /= (float)c->runs;
            if (round == 0 || this_ms < ms[i]) ms[i] = this_ms;
        }
    return STATUS_OK;
}
