// SPDX-License-Identifier: Apache-2.0
// Passes of few rows as CUDA graphs: decode rows, and the rows that verify draft tokens. Such a pass has a few hundred
// kernels of some microseconds each. Launching the kernels one by one takes longer than running them. Launching a
// captured graph takes less time. The kernels of a captured pass read the batch from staging memory, at addresses that
// depend only on its counts (schedule.h). So batches are padded to a few numbers of rows, and their block tables to a
// few widths. Padding rows write to a KV block that no caller has. If sequences have several rows, the work lists of
// attention are also padded, with tiles and single rows whose thread blocks end immediately. Every pass of one kind
// (rows, width, single rows) replays the same graph.
//
// A pass can be captured if it computes the logits of all rows and no row is an importance row. The first pass of a
// kind runs eagerly, because libraries load kernels at their first launch, which a capture forbids. The second pass is
// captured, and later passes replay the graph. A kind whose capture fails runs eagerly from then on. With
// FOREPACK_CUDA_GRAPHS=off in the environment, all kinds run eagerly. Eager passes are padded as well. In a group the
// capture may fail on one rank only, and all ranks must sum the same number of rows.
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/schedule.h"
#include "kernels/cuda/switches.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"

// Numbers of rows: 1, 2, 4, 8, 16, then every multiple of 8. Columns of block tables: powers of two times the columns
// of the shortest split.
enum { ROWS_MAX = 256, ROW_KINDS = 4 + 1 + (ROWS_MAX - 16) / 8 };
enum { COLUMNS_MIN = SPLIT_ENTRIES / KV_BLOCK_TOKENS, COLUMN_KINDS = 24 };
// Kinds by the number of single rows: passes in which every sequence has one row, and passes with at most 0, 4, 16, 64
// or 256 single rows.
enum { ALL_SINGLE, SINGLE_KINDS = 6 };

// LOADED: one pass of the kind has run, so its kernels are loaded. EAGER: the capture has failed.
enum state { NEW, LOADED, CAPTURED, EAGER };

struct kind {
    enum state state;
    cudaGraphExec_t exec;
    uint64_t last_use; // number of the last pass that captured or replayed it
};

// Limit of graphs that are kept. A graph uses device memory that no plan counts, so the least recently used graph is
// destroyed. Every rank of a group runs the same passes, so the ranks keep the same graphs unless a capture fails on
// one of them.
int graphs_kept_most = 128;

struct graphs {
    bool off; // capture nothing
    int n_kept;
    uint64_t passes; // number of passes captured or replayed
    int max_rows, max_seqs, max_columns;
    struct kind kinds[SINGLE_KINDS][ROW_KINDS][COLUMN_KINDS];
    struct kind *of_batch; // kind of the last batch given to graphs_begin; NULL if it cannot be captured
};

// ---- kinds ----------------------------------------------------------------------------------------------------------

static int row_kind(int rows)
{
    int kind = 0;
    while (kind < 4 && 1 << kind < rows)
        kind++;
    return rows <= 16 ? kind : 4 + (rows - 16 + 7) / 8;
}

static int row_kind_rows(int kind)
{
    return kind <= 4 ? 1 << kind : 16 + 8 * (kind - 4);
}

static int column_kind(int columns)
{
    int kind = 0;
    while (COLUMNS_MIN << kind < columns)
        kind++;
    return kind;
}

static int single_kind(const struct ragged_batch *batch)
{
    int n = 0;
    for (int s = 0; s < batch->n_seqs; s++)
        n += batch->row_start[s + 1] - batch->row_start[s] == 1;
    return n == batch->n_rows ? ALL_SINGLE : n == 0 ? 1 : n <= 4 ? 2 : n <= 16 ? 3 : n <= 64 ? 4 : 5;
}

static int single_kind_rows(int kind, int rows)
{
    const int most = kind == ALL_SINGLE ? rows : kind == 1 ? 0 : 1 << 2 * (kind - 1);
    return most < rows ? most : rows;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

struct graphs *graphs_open(const struct backend_shape *shape)
{
    struct graphs *g = mem_alloc(sizeof *g);
    g->off = cuda_switched_off("FOREPACK_CUDA_GRAPHS");
    g->max_rows = least(shape->max_rows, ROWS_MAX);
    g->max_seqs = shape->max_seqs;
    g->max_columns = (shape->max_context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return g;
}

void graphs_destroy(struct graphs *g)
{
    struct kind *kind = g ? &g->kinds[0][0][0] : NULL;
    for (int i = 0; g && i < SINGLE_KINDS * ROW_KINDS * COLUMN_KINDS; i++, kind++) {
        if (kind->exec) cudaGraphExecDestroy(kind->exec);
        *kind = (struct kind){.state = EAGER};
    }
}

void graphs_close(struct graphs *g)
{
    graphs_destroy(g);
    free(g);
}

bool graphs_begin(struct graphs *g, const struct ragged_batch *batch, struct schedule_options *options)
{
    g->of_batch = NULL;
    if (batch->n_logit_rows != batch->n_rows || batch->n_importance_rows || batch->n_rows > g->max_rows) return false;
    const int rows = row_kind(batch->n_rows), columns = column_kind(schedule_table_columns(batch));
    if (columns >= COLUMN_KINDS) return false;
    const int singles = single_kind(batch), width = COLUMNS_MIN << columns;
    struct schedule_counts *c = &options->captured;
    c->rows = least(row_kind_rows(rows), singles == ALL_SINGLE ? least(g->max_rows, g->max_seqs) : g->max_rows);
    c->seqs = least(c->rows, g->max_seqs);
    c->table_columns = least(width, g->max_columns);
    c->singles = single_kind_rows(singles, c->seqs);
    c->max_splits = memory_max_splits(width * KV_BLOCK_TOKENS);
    c->spans = singles == ALL_SINGLE ? 0 : schedule_spans_most(options, c->table_columns * KV_BLOCK_TOKENS);
    c->tiles = singles == ALL_SINGLE ? 0 : schedule_tiles_most(options, c->rows, c->seqs) + c->spans;
    g->of_batch = &g->kinds[singles][rows][columns];
    return true;
}

// ---- a pass ---------------------------------------------------------------------------------------------------------

static void capture_failed(struct kind *kind, const struct cuda *cuda, const char *reason)
{
    kind->state = EAGER;
    log_event(LOG_WARN, "graph_capture_failed", LOG_FIELD("rows", cuda->padded.n_rows),
              LOG_FIELD("table_columns", cuda->padded.max_blocks), LOG_FIELD("reason", reason),
              LOG_FIELD("action", "falling back to eager launch"));
}

static enum status issue_padded(struct cuda *cuda, const struct pass *pass)
{
    cuda->on_device = cuda->padded;
    return pass_issue(pass, cuda->padded.n_rows, cuda->padded.n_logit_rows);
}

static enum status issue_unpadded(struct cuda *cuda, const struct pass *pass)
{
    cuda->on_device = cuda->unpadded;
    return pass_issue(pass, pass->batch->n_rows, pass->batch->n_logit_rows);
}

static const char *capture_begin(struct cuda *cuda)
{
    // Relaxed: other threads may use the device during the capture.
    cudaError_t error = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) cudaGetLastError();
    return error != cudaSuccess ? cudaGetErrorString(error) : NULL;
}

// Destroys the least recently used graph. Its kind is captured again at its next pass. No pass is running: callers wait
// for each pass.
static void graphs_evict(struct graphs *g)
{
    struct kind *oldest = NULL, *kind = &g->kinds[0][0][0];
    for (int i = 0; i < SINGLE_KINDS * ROW_KINDS * COLUMN_KINDS; i++, kind++)
        if (kind->state == CAPTURED && (!oldest || kind->last_use < oldest->last_use)) oldest = kind;
    if (!oldest) return;
    cudaGraphExecDestroy(oldest->exec);
    *oldest = (struct kind){.state = LOADED};
    g->n_kept--;
}

static void graph_kept(struct cuda *cuda, struct kind *kind, size_t free_before)
{
    size_t available = 0, total = 0;
    kind->state = CAPTURED;
    kind->last_use = ++cuda->graphs->passes;
    cuda->graphs->n_kept++;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) cudaGetLastError();
    log_event(LOG_DEBUG, "graph_captured", LOG_FIELD("rows", cuda->padded.n_rows),
              LOG_FIELD("table_columns", cuda->padded.max_blocks), LOG_FIELD("kept", cuda->graphs->n_kept),
              LOG_FIELD("kib", (free_before > available ? free_before - available : 0) >> 10));
}

// Ends the capture of steps that returned the status `steps`, makes an executable graph and launches it. Returns NULL
// on success, else the reason of the failure.
static const char *capture_end(struct cuda *cuda, struct kind *kind, enum status steps)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);
    if (steps == STATUS_OK && error == cudaSuccess) error = cudaGraphInstantiate(&kind->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (steps == STATUS_OK && error == cudaSuccess) error = cudaGraphLaunch(kind->exec, cuda->stream);
    if (error != cudaSuccess) cudaGetLastError();
    return steps != STATUS_OK ? status_message() : error != cudaSuccess ? cudaGetErrorString(error) : NULL;
}

// Captures the pass and launches it. If that fails, runs it eagerly.
static enum status capture_run(struct cuda *cuda, const struct pass *pass, struct kind *kind)
{
    size_t free_before = 0, total;
    int suspended = no_alloc_suspend();
    while (cuda->graphs->n_kept >= graphs_kept_most)
        graphs_evict(cuda->graphs);
    if (cudaMemGetInfo(&free_before, &total) != cudaSuccess) cudaGetLastError();
    const char *why_not = capture_begin(cuda);
    no_alloc_resume(suspended);
    if (!why_not) {
        cuda->capturing = true;
        enum status status = issue_padded(cuda, pass);
        cuda->capturing = false;
        suspended = no_alloc_suspend();
        why_not = capture_end(cuda, kind, status);
        no_alloc_resume(suspended);
    }
    suspended = no_alloc_suspend();
    if (why_not)
        capture_failed(kind, cuda, why_not);
    else
        graph_kept(cuda, kind, free_before);
    no_alloc_resume(suspended);
    return !why_not ? STATUS_OK : issue_padded(cuda, pass);
}

static enum status replay_run(struct cuda *cuda, struct kind *kind)
{
    cuda->on_device = cuda->padded;
    kind->last_use = ++cuda->graphs->passes;
    int suspended = no_alloc_suspend();
    cudaError_t error = cudaGraphLaunch(kind->exec, cuda->stream);
    no_alloc_resume(suspended);
    return cuda_status(error, "a captured pass");
}

enum status graphs_run(struct cuda *cuda, const struct pass *pass)
{
    struct kind *kind = cuda->graphs->of_batch;
    if (cuda->padded.n_rows > pass->max_logit_rows) return issue_unpadded(cuda, pass); // the same on all ranks
    if (cuda->graphs->off || kind->state == EAGER) return issue_padded(cuda, pass);
    if (kind->state == CAPTURED) return replay_run(cuda, kind);
    if (kind->state == LOADED) return capture_run(cuda, pass, kind);
    kind->state = LOADED;
    return issue_padded(cuda, pass);
}
