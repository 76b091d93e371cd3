// SPDX-License-Identifier: Apache-2.0
// Runs passes in two micro-batches, so that the links between GPUs and the multiprocessors work at the same time. While
// the sums of one micro-batch are all-reduced in a stream for reductions, the steps of the other micro-batch run in the
// main stream. The order of all sums and the dependencies of each step follow from the batch alone, so the timing of
// the two streams changes no bit.
//
// The main stream waits for every all-reduce before a pass ends, so a wait for the main stream covers both streams.
#include <assert.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/schedule.h"

// The number of rows of the first micro-batch is a multiple of ROW_STEP. So the rows of the second micro-batch begin at
// a multiple of 256 bytes, for which gemm algorithms are selected.
enum { ROW_STEP = 64 };

enum status overlap_open(struct cuda *cuda)
{
    int least, greatest = 0; // the greatest priority is the smallest number
    cuda->micro_batch = ALL_ROWS;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    // With priority, an all-reduce starts as soon as it can. It would otherwise start after all blocks of a
    // gemm that was issued earlier.
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&cuda->reduce_stream, cudaStreamNonBlocking, greatest);
    cudaEvent_t *events[] = {&cuda->reduce_ready, &cuda->reduced[0], &cuda->reduced[1]};
    for (int i = 0; i < 3 && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
    return cuda_status(error, "the stream for reductions");
}

void overlap_close(struct cuda *cuda)
{
    cudaEvent_t events[] = {cuda->reduce_ready, cuda->reduced[0], cuda->reduced[1]};
    for (int i = 0; i < 3; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    if (cuda->reduce_stream) cudaStreamDestroy(cuda->reduce_stream);
}

int overlap_first_rows(const struct cuda *cuda, const struct ragged_batch *batch)
{
    const int overlap_rows = cuda->shape.overlap_rows;
    if (!cuda->comm || !overlap_rows || batch->n_rows < 2 * (int64_t)overlap_rows) return 0;
    const int rows = (batch->n_rows / 2 + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
    return rows < batch->n_rows ? rows : 0;
}

// Selects a micro-batch, or ALL_ROWS, for the next steps. These steps wait for the all-reduces of the same rows.
static enum status micro_batch_select(struct cuda *cuda, int which)
{
    cuda->micro_batch = which;
    cuda->on_device = which == ALL_ROWS ? cuda->unpadded : schedule_micro_batch(&cuda->unpadded, which == 1);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        if (which == ALL_ROWS || which == i) error = cudaStreamWaitEvent(cuda->stream, cuda->reduced[i], 0);
    return cuda_status(error, "a micro-batch");
}

static enum status stage_issue(struct cuda *cuda, const struct pass *pass, int stage)
{
    for (int which = 0; which < 2; which++) {
        enum status status = micro_batch_select(cuda, which);
        if (status == STATUS_OK)
            status = pass->stage(pass->context, stage, cuda->on_device.first_row, cuda->on_device.n_rows);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

enum status overlap_run(struct cuda *cuda, const struct pass *pass)
{
    assert(cuda->unpadded.first_rows > 0);
    for (int i = 0; i < pass->n_stages; i++) {
        enum status status = stage_issue(cuda, pass, i);
        if (status != STATUS_OK) return status;
    }
    enum status status = micro_batch_select(cuda, ALL_ROWS);
    const int logit_rows = pass->batch->n_logit_rows;
    return status != STATUS_OK || !logit_rows ? status : pass->logits(pass->context, logit_rows);
}

enum status overlap_sum_begin(struct cuda *cuda, cudaStream_t *stream_p)
{
    *stream_p = cuda->micro_batch == ALL_ROWS ? cuda->stream : cuda->reduce_stream;
    if (cuda->micro_batch == ALL_ROWS) return STATUS_OK;
    cudaError_t error = cudaEventRecord(cuda->reduce_ready, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->reduce_stream, cuda->reduce_ready, 0);
    return cuda_status(error, "a sum over ranks");
}

enum status overlap_sum_end(struct cuda *cuda)
{
    if (cuda->micro_batch == ALL_ROWS) return STATUS_OK;
    return cuda_status(cudaEventRecord(cuda->reduced[cuda->micro_batch], cuda->reduce_stream), "a sum over ranks");
}
