// SPDX-License-Identifier: Apache-2.0
// Decode passes kept as CUDA graphs. A pass of a few rows is a few hundred kernels of some microseconds each: putting
// them into the stream one by one would take longer than they do. What a captured pass reads of the batch lies in the
// staging memory, at places that follow from its counts alone (schedule.h). So batches are filled up to a few numbers
// of rows, by rows that are sequences of their own in a block of the cache that no caller has, and their block tables
// to a few widths; passes that are then alike replay one graph.
//
// Kept are passes in which every sequence has one row whose logits are wanted, without probes. The first pass of a kind
// runs as it is (libraries load kernels when they first use them, which a capture forbids), the second is captured, the
// third and all after replay it. What cannot be captured runs as it is from then on.
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/schedule.h"

// Rows: 1, 2, 4, 8, 16, then every eighth. Columns of block tables: powers of two times what a stretch covers.
enum { MOST_ROWS = 256, ROW_KINDS = 4 + 1 + (MOST_ROWS - 16) / 8 };
enum { LEAST_COLUMNS = SPLIT_ENTRIES / KV_BLOCK_TOKENS, COLUMN_KINDS = 24 };

enum state { NEW, SEEN, KEPT, REFUSED };

struct kind {
    enum state state;
    cudaGraphExec_t exec;
};

struct graphs {
    int most_rows, most_columns;
    struct kind kinds[ROW_KINDS][COLUMN_KINDS];
    struct kind *of_batch; // that of the batch begun last; NULL: it is not of any
    struct kind *open;     // pass_end is to come for it
    bool capturing;
    int splits;           // of rows whose blocks fill the columns of this kind
    cudaError_t launched; // how the replay began
};

// ---- kinds ----------------------------------------------------------------------------------------------------------

static int row_kind(int rows)
{
    int kind = 0;
    while (kind < 4 && 1 << kind < rows)
        kind++;
    return rows <= 16 ? kind : 4 + (rows - 16 + 7) / 8;
}

static int rows_of(int kind)
{
    return kind <= 4 ? 1 << kind : 16 + 8 * (kind - 4);
}

static int column_kind(int columns)
{
    int kind = 0;
    while (LEAST_COLUMNS << kind < columns)
        kind++;
    return kind;
}

static int splits_of(int column_kind)
{
    return 1 << column_kind < SPLITS_MAX ? 1 << column_kind : SPLITS_MAX;
}

int graphs_splits(int entries)
{
    return splits_of(column_kind((entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS));
}

static bool is_decode(const struct ragged_batch *batch)
{
    return batch->n_seqs == batch->n_rows && batch->n_logit_rows == batch->n_rows && !batch->n_importance_rows;
}

struct graphs *graphs_open(const struct backend_shape *shape)
{
    struct graphs *g = mem_alloc(sizeof *g);
    g->most_rows = shape->max_rows < shape->max_seqs ? shape->max_rows : shape->max_seqs;
    if (g->most_rows > MOST_ROWS) g->most_rows = MOST_ROWS;
    g->most_columns = (shape->max_context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return g;
}

void graphs_close(struct graphs *g)
{
    if (!g) return;
    for (int r = 0; r < ROW_KINDS; r++)
        for (int c = 0; c < COLUMN_KINDS; c++)
            if (g->kinds[r][c].exec) cudaGraphExecDestroy(g->kinds[r][c].exec);
    free(g);
}

bool graphs_begin(struct graphs *g, const struct ragged_batch *batch, struct schedule_options *options)
{
    g->of_batch = g->open = NULL;
    if (!is_decode(batch) || batch->n_rows > g->most_rows) return false;
    const int rows = row_kind(batch->n_rows), columns = column_kind(schedule_table_columns(batch));
    if (columns >= COLUMN_KINDS) return false;
    const int filled_up = rows_of(rows) < g->most_rows ? rows_of(rows) : g->most_rows;
    const int width = LEAST_COLUMNS << columns;
    options->padding_rows = filled_up - batch->n_rows;
    options->table_columns = width < g->most_columns ? width : g->most_columns;
    g->of_batch = &g->kinds[rows][columns];
    g->splits = splits_of(columns);
    return true;
}

// ---- a pass ---------------------------------------------------------------------------------------------------------

static void refuse(struct kind *kind, const struct cuda *cuda, const char *why)
{
    kind->state = REFUSED;
    log_warn("graph_refused rows=%d columns=%d reason=\"%s\": such passes are put together anew each time",
             cuda->filled_up.n_rows, cuda->filled_up.max_blocks, why);
}

bool cuda_replay(struct backend *b, int *rows_p)
{
    struct cuda *cuda = cuda_of(b);
    struct graphs *g = cuda->graphs;
    struct kind *kind = g->of_batch;
    const int room = *rows_p;
    cuda->on_device = cuda->as_given;
    *rows_p = cuda->batch.n_rows;
    if (!kind || kind->state == REFUSED || cuda->filled_up.n_rows > room) return false;

    cuda->on_device = cuda->filled_up;
    cuda->on_device.max_splits = g->splits;
    *rows_p = cuda->filled_up.n_rows;
    if (kind->state == NEW) {
        kind->state = SEEN;
        return false;
    }
    int suspended = no_alloc_suspend();
    if (kind->state == KEPT) {
        g->launched = cudaGraphLaunch(kind->exec, cuda->stream);
    } else {
        // Relaxed: what else the process does with the device at this time is not ours to forbid.
        cudaError_t error = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
        g->capturing = error == cudaSuccess;
        if (!g->capturing) {
            cudaGetLastError();
            refuse(kind, cuda, cudaGetErrorString(error));
        }
    }
    no_alloc_resume(suspended);
    if (kind->state != REFUSED) g->open = kind;
    return kind->state == KEPT;
}

// Ends the capture of steps that ended with `steps`, and puts what was captured into the stream; or says why not.
static const char *keep(struct cuda *cuda, struct kind *kind, enum status steps)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);
    if (steps == STATUS_OK && error == cudaSuccess) error = cudaGraphInstantiate(&kind->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (steps == STATUS_OK && error == cudaSuccess) error = cudaGraphLaunch(kind->exec, cuda->stream);
    if (error != cudaSuccess) cudaGetLastError();
    return steps != STATUS_OK ? status_message() : error != cudaSuccess ? cudaGetErrorString(error) : NULL;
}

enum status cuda_pass_end(struct backend *b, enum status steps, bool *again_p)
{
    struct cuda *cuda = cuda_of(b);
    struct graphs *g = cuda->graphs;
    struct kind *kind = g->open;
    *again_p = false;
    g->open = NULL;
    if (!kind) return steps;
    if (!g->capturing) return steps != STATUS_OK ? steps : cuda_status(g->launched, "a kept pass");
    g->capturing = false;
    int suspended = no_alloc_suspend();
    const char *why_not = keep(cuda, kind, steps);
    if (why_not) refuse(kind, cuda, why_not);
    no_alloc_resume(suspended);
    *again_p = why_not != NULL;
    if (!why_not) kind->state = KEPT;
    return STATUS_OK;
}
