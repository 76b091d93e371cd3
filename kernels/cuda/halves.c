// SPDX-License-Identifier: Apache-2.0
// Passes in two halves, so that the links between GPUs and their multiprocessors work at the same time: while one
// half's residual is summed over the ranks in a stream of its own, the other half's steps go on in the stream of all
// steps. The order of all sums, and what each step comes behind, follow from the batch alone: what happens to run
// beside what changes no bit.
//
// The stream of steps waits for every sum before a pass ends. So who waits for that stream waits for both.
#include <assert.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/schedule.h"

// The second half's rows begin at multiples of 256 bytes then, as the first one's do: what algorithms of products are
// chosen for.
enum { CUT_STEP = 64 };

enum status halves_open(struct cuda *cuda)
{
    int least, greatest = 0; // the greatest priority is the least number
    cuda->half = -1;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    // A sum is to begin when it can, not behind all blocks of a product that came before it.
    if (error == cudaSuccess) error = cudaStreamCreateWithPriority(&cuda->beside, cudaStreamNonBlocking, greatest);
    cudaEvent_t *events[] = {&cuda->ready, &cuda->summed[0], &cuda->summed[1]};
    for (int i = 0; i < 3 && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
    return cuda_status(error, "the stream of sums");
}

void halves_close(struct cuda *cuda)
{
    cudaEvent_t events[] = {cuda->ready, cuda->summed[0], cuda->summed[1]};
    for (int i = 0; i < 3; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    if (cuda->beside) cudaStreamDestroy(cuda->beside);
}

int halves_cut(const struct cuda *cuda, const struct ragged_batch *batch)
{
    const int least = cuda->shape.overlap_rows;
    if (!cuda->comm || !least || batch->n_rows < 2 * (int64_t)least) return 0;
    const int cut = (batch->n_rows / 2 + CUT_STEP - 1) / CUT_STEP * CUT_STEP;
    return cut < batch->n_rows ? cut : 0;
}

int cuda_halve(struct backend *b)
{
    return cuda_of(b)->as_given.cut;
}

enum status cuda_half(struct backend *b, int first, int rows)
{
    struct cuda *cuda = cuda_of(b);
    const bool whole = rows == cuda->as_given.n_rows;
    assert(whole || rows == (first ? cuda->as_given.n_rows - cuda->as_given.cut : cuda->as_given.cut));
    cuda->half = whole ? -1 : first > 0;
    cuda->on_device = whole ? cuda->as_given : schedule_half(&cuda->as_given, first > 0);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        if (whole || i == cuda->half) error = cudaStreamWaitEvent(cuda->stream, cuda->summed[i], 0);
    return cuda_status(error, "half a pass");
}

enum status halves_sum_begin(struct cuda *cuda, cudaStream_t *stream_p)
{
    *stream_p = cuda->half < 0 ? cuda->stream : cuda->beside;
    if (cuda->half < 0) return STATUS_OK;
    cudaError_t error = cudaEventRecord(cuda->ready, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->beside, cuda->ready, 0);
    return cuda_status(error, "a sum over ranks");
}

enum status halves_sum_end(struct cuda *cuda)
{
    if (cuda->half < 0) return STATUS_OK;
    return cuda_status(cudaEventRecord(cuda->summed[cuda->half], cuda->beside), "a sum over ranks");
}
