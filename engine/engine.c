// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/batch_encoding.h"
#include "engine/model/stages.h"
#include "engine/roll_call.h"
#include "engine/wakeup.h"
#include "engine/watchdog.h"
#include "kernels/gpu_monitor.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"
#include "lib/base/version.h"

enum { CHECK_TIMEOUT_MS = 10000 };
enum { CLOSE_TIMEOUT_MS = 150000 }; // collectives of GPUs take up to 100 s to close (comm_nccl.c)

enum wakeup_kind { WAKEUP_PASS = 1, WAKEUP_CHECK, WAKEUP_CLOSE };

struct engine {
    struct comm *comm; // borrowed
    struct model *model;
    struct watchdog *watchdog;
    struct gpu_monitor *gpu; // NULL: this rank has no GPU, or its GPU is not watched
    int timeout_ms;          // longest time of a pass without progress; 0: no limit
    struct wakeup *wakeup;   // this and the later members are NULL or 0 in a group of one rank
    struct roll_call *roll_call;
    int32_t *encoded;     // the encoded batch, with room for the largest one
    int32_t *block_table; // followers: the padded block table of the batch
    size_t encoded_ints, table_ints;
};

// Adds rank and host to status_message(), because the failure of one rank ends the group.
static enum status name_rank(const struct comm *comm, enum status status)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return status_context(status, "rank %d on %s", comm->rank, host);
}

// ---- ranks that hang ----

// Returns the timeout of this rank. Followers time out later than the leader, so that one rank reports the hang.
static int timeout_of_rank(const struct engine *e, int timeout_ms)
{
    return timeout_ms && e->comm->rank ? timeout_ms + roll_call_timeout_for(timeout_ms) : timeout_ms;
}

// Called on every rank. A rank that waits for its GPU gives up first, so that it can report the GPU before the leader
// ends the group.
static void engine_apply_timeout(struct engine *e, int timeout_ms)
{
    if (e->timeout_ms == timeout_ms) return;
    e->timeout_ms = timeout_ms;
    e->comm->limit_ms = timeout_ms / 6 * 5;
    watchdog_set_timeout(e->watchdog, timeout_of_rank(e, timeout_ms));
}

// Tells the watchdog and the roll call that this rank's current work with the other ranks has ended. Called on the
// working thread.
static void group_work_end(struct engine *e)
{
    watchdog_leave(e->watchdog);
    atomic_fetch_add_explicit(&e->comm->progress, 1, memory_order_relaxed);
    if (e->roll_call) roll_call_leave(e->roll_call);
}

static void pass_begin(struct engine *e, int rows)
{
    if (e->roll_call) roll_call_enter(e->roll_call);
    watchdog_enter_pass(e->watchdog, rows);
}

static void check_begin(struct engine *e)
{
    int limit_ms = e->timeout_ms && e->timeout_ms < CHECK_TIMEOUT_MS ? e->timeout_ms : CHECK_TIMEOUT_MS;
    if (e->roll_call) roll_call_enter(e->roll_call);
    watchdog_enter_check(e->watchdog, timeout_of_rank(e, limit_ms));
}

static void open_begin(struct engine *e)
{
    if (e->roll_call) roll_call_enter(e->roll_call);
    watchdog_enter_open_ended(e->watchdog);
}

uint64_t engine_progress(const struct engine *e)
{
    return atomic_load_explicit(&e->comm->progress, memory_order_relaxed);
}

// ---- ranks that die ----

// Ends the process, on the leader's roll call thread. MPI_Abort is not possible: another thread may be inside MPI.
static void follower_lost(void *arg, int rank, const char *sentence)
{
    log_event(LOG_ERROR, "rank_lost", LOG_FIELD("rank", rank), LOG_FIELD("reason", sentence));
    log_flush();
    _exit(1);
}

// If this rank gave up waiting for other ranks, adds the names of these ranks to status_message().
static enum status name_missing(struct engine *e, enum status status, enum roll_call_result *result_p)
{
    *result_p = ROLL_CALL_COMPLETE;
    if (status == STATUS_OK || !e->wakeup || !comm_waits(e->comm)) return status;
    char why[ROLL_CALL_SENTENCE_MAX];
    *result_p = roll_call_ask(e->roll_call, ROLL_CALL_TIMEOUT_MS, why);
    return status_fail(status, "%s: %s", status_message(), why);
}

static enum status pass_failed(struct engine *e, enum status status)
{
    enum roll_call_result result;
    status = name_rank(e->comm, name_missing(e, status, &result));
    if (e->roll_call) roll_call_report(e->roll_call, status_message());
    return status;
}

// ---- opening ----

// Properties that must be equal on all ranks. Each host has its own copies of program, model and --config file, and
// resolves `auto` options by itself. Ranks that differ would compute wrong answers, hang, or end without naming the
// cause. Only the first difference is reported, because it usually causes the later ones.
enum {
    TRAIT_VERSION,
    TRAIT_MODEL,
    TRAIT_BACKEND,
    TRAIT_DTYPE,
    TRAIT_KV_DTYPE,
    TRAIT_ROWS,
    TRAIT_SEQS,
    TRAIT_CONTEXT,
    TRAIT_BLOCKS,
    TRAIT_SUMS,
    TRAIT_OVERLAP,
    TRAITS,
    TRAIT_BYTES = 32
};
#define SAME_OPTION "give all ranks the same value"

static const struct {
    const char *name, *remedy;
} traits[TRAITS] = {[TRAIT_VERSION] = {"program version", "install the same version on all hosts"},
                    [TRAIT_MODEL] = {"model fingerprint", "copy the same files to all hosts"},
                    [TRAIT_BACKEND] = {"backend", "choose one with --backend"},
                    [TRAIT_DTYPE] = {"dtype", "choose one with --dtype"},
                    [TRAIT_KV_DTYPE] = {"kv-cache-dtype", "choose one with --kv-cache-dtype"},
                    [TRAIT_ROWS] = {"max-num-batched-tokens", SAME_OPTION},
                    [TRAIT_SEQS] = {"max-num-seqs", SAME_OPTION},
                    [TRAIT_CONTEXT] = {"max-model-len", SAME_OPTION},
                    [TRAIT_BLOCKS] = {"kv-blocks", SAME_OPTION},
                    [TRAIT_SUMS] = {"allreduce-dtype", SAME_OPTION},
                    [TRAIT_OVERLAP] = {"overlap-rows", SAME_OPTION}};

static void traits_get(const struct model *model, const struct model_options *options, char values[TRAITS][TRAIT_BYTES])
{
    snprintf(values[TRAIT_VERSION], TRAIT_BYTES, "%s", FOREPACK_VERSION);
    snprintf(values[TRAIT_MODEL], TRAIT_BYTES, "%016" PRIx64, model_fingerprint(model));
    snprintf(values[TRAIT_BACKEND], TRAIT_BYTES, "%s", model_backend(model));
    snprintf(values[TRAIT_DTYPE], TRAIT_BYTES, "%s", dtype_name(model_dtype(model)));
    snprintf(values[TRAIT_KV_DTYPE], TRAIT_BYTES, "%s", dtype_name(model_kv_dtype(model)));
    snprintf(values[TRAIT_ROWS], TRAIT_BYTES, "%d", options->max_rows);
    snprintf(values[TRAIT_SEQS], TRAIT_BYTES, "%d", options->max_seqs);
    snprintf(values[TRAIT_CONTEXT], TRAIT_BYTES, "%d", options->max_context);
    snprintf(values[TRAIT_BLOCKS], TRAIT_BYTES, "%d", options->n_kv_blocks);
    snprintf(values[TRAIT_SUMS], TRAIT_BYTES, "%s", options->allreduce_dtype ?: "auto");
    snprintf(values[TRAIT_OVERLAP], TRAIT_BYTES, "%d", options->overlap_rows);
}

// Called by all ranks; fails on the ranks that differ from the leader.
static enum status check_traits(const struct model *model, const struct model_options *options, struct comm *comm)
{
    char mine[TRAITS][TRAIT_BYTES], leader[TRAITS][TRAIT_BYTES] = {0};
    traits_get(model, options, mine);
    if (comm->rank == 0) traits_get(model, options, leader);
    TRY(comm->ops->broadcast(comm, leader, sizeof leader));
    for (int t = 0; t < TRAITS; t++)
        if (strcmp(mine[t], leader[t]) != 0)
            return status_fail(STATUS_INVALID, "%s %s, but %s on rank 0: %s", traits[t].name, mine[t], leader[t],
                               traits[t].remedy);
    return STATUS_OK;
}

enum { STAGES_BYTES = 1024 };

// Checks the division into pipeline stages before the ranks are divided: ranks that disagree would wait for each other.
// Called by all ranks; fails on the ranks that differ from the leader.
static enum status check_stages(const struct model_options *options, struct comm *comm)
{
    char mine[STAGES_BYTES], leader[STAGES_BYTES];
    const int stages = options->stages > 1 ? options->stages : 1;
    const char *layers = options->stage_layers ?: "not given";
    snprintf(mine, sizeof mine, "pp %d, pp-layers %.900s", stages, layers);
    memcpy(leader, mine, sizeof leader);
    TRY(comm->ops->broadcast(comm, leader, sizeof leader));
    leader[sizeof leader - 1] = 0;
    if (strcmp(mine, leader) != 0)
        return status_fail(STATUS_INVALID, "%s, but %s on rank 0: " SAME_OPTION, mine, leader);
    int index;
    return stage_of_rank(comm->rank, comm->size, stages, &index);
}

// Divides the ranks into stages, which stay for a later engine on the same comm.
static enum status split_into_stages(const struct model_options *options, struct comm *comm)
{
    const struct comm *part = comm->part;
    if (!part) return comm->ops->split(comm, options->stages);
    if (part->size * options->stages == comm->size) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "pp %d: the ranks form %d stages already", options->stages,
                       comm->size / part->size);
}

// Ends the group. status_message() has the reason.
static _Noreturn void rank_abort(struct engine *e)
{
    log_event(LOG_ERROR, "group_lost", LOG_FIELD("rank", e->comm->rank), LOG_REASON);
    group_abort(e->comm, 1);
}

// Returns the status on which all ranks agree. Ends the process if a rank is missing, because the other ranks cannot
// agree without it.
static enum status ranks_agree(struct engine *e, enum status mine)
{
    if (!e->wakeup) return mine;
    enum roll_call_result result;
    mine = name_missing(e, mine, &result);
    if (mine != STATUS_OK) name_rank(e->comm, mine);
    if (result != ROLL_CALL_COMPLETE) rank_abort(e);
    e->comm->waits = true;
    enum status status = wakeup_agree(e->wakeup, mine);
    e->comm->waits = false;
    return status;
}

// Opens the model in stages. After each stage, all ranks agree on its status before the next stage uses collectives.
// Otherwise the other ranks would wait for a rank that failed alone.
static enum status open_model(struct engine *e, struct model_options *options)
{
    TRY(ranks_agree(e, check_stages(options, e->comm)));
    if (options->stages > 1) TRY(ranks_agree(e, split_into_stages(options, e->comm)));
    if (e->wakeup) TRY(ranks_agree(e, gpu_place_agree(e->comm, options->backend, &options->gpu)));
    TRY(ranks_agree(e, model_open(options, e->comm, &e->model)));
    if (e->wakeup) TRY(ranks_agree(e, check_traits(e->model, options, e->comm)));
    TRY(ranks_agree(e, model_join(e->model)));
    return ranks_agree(e, model_warm_up(e->model));
}

// Opens the wake-up sockets and the roll call of a group of several ranks. Ends the process if this rank cannot
// connect: the connected ranks are already in the next collective, and MPI_Finalize would wait for them for ever.
static enum status open_links(struct engine *e)
{
    if (e->comm->size == 1) return STATUS_OK;
    if (wakeup_open(e->comm, &e->wakeup) != STATUS_OK) rank_abort(e);
    return wakeup_agree(e->wakeup, roll_call_open(e->comm, &e->roll_call));
}

static enum status open_watched(struct engine *e, struct model_options *options)
{
    e->watchdog = watchdog_start(e->roll_call, &e->comm->progress, options->stages > 1);
    engine_apply_timeout(e, atoi(ENGINE_STEP_TIMEOUT_S) * 1000);
    open_begin(e);
    enum status status = open_model(e, options);
    group_work_end(e);
    return status;
}

static void engine_free(struct engine *e)
{
    if (e->watchdog) watchdog_enter_close(e->watchdog, CLOSE_TIMEOUT_MS); // freeing the device's memory may hang
    if (e->model) model_close(e->model);
    if (e->watchdog) watchdog_stop(e->watchdog);
    if (e->roll_call) roll_call_close(e->roll_call);
    gpu_monitor_stop(e->gpu);
    if (e->wakeup) wakeup_close(e->wakeup);
    free(e->encoded);
    free(e->block_table);
    free(e);
}

static void allocate_encoded(struct engine *e, const struct model_options *options)
{
    int context = options->max_context ? options->max_context : model_get_config(e->model)->max_context;
    int blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    e->encoded_ints = batch_encoded_ints_max(options->max_rows, options->max_seqs, blocks);
    e->encoded = mem_alloc_array(e->encoded_ints, sizeof *e->encoded);
    if (e->comm->rank == 0) return;
    e->table_ints = (size_t)options->max_seqs * (size_t)blocks;
    e->block_table = mem_alloc_array(e->table_ints, sizeof *e->block_table);
}

enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p)
{
    struct model_options mine = *options;
    mine.threads = group_threads(options->threads); // the ranks of one host share its cores
    struct engine *e = mem_alloc(sizeof *e);
    e->comm = comm;
    enum status status = open_links(e);
    if (status == STATUS_OK) status = open_watched(e, &mine);
    if (status != STATUS_OK) {
        engine_free(e);
        return status;
    }
    if (e->wakeup) allocate_encoded(e, options);
    if (e->roll_call && comm->rank == 0) roll_call_on_loss(e->roll_call, follower_lost, e);
    *engine_p = e;
    return STATUS_OK;
}

// ---- GPUs ----

static void gpu_read(void *arg, struct gpu_report *report)
{
    struct engine *e = arg;
    gpu_monitor_read(e->gpu, report);
}

void engine_watch_gpu(struct engine *e, const struct gpu_limits *limits)
{
    const char *address = model_gpu_address(e->model);
    if (!address) return;
    e->gpu = gpu_monitor_start(address, limits, GPU_MONITOR_INTERVAL_MS);
    if (e->comm->rank) roll_call_serve_gpu(e->roll_call, gpu_read, e);
}

void engine_read_gpus(struct engine *e, struct gpu_report *reports)
{
    memset(reports, 0, (size_t)e->comm->size * sizeof *reports);
    if (e->roll_call) roll_call_read_gpus(e->roll_call, reports);
    if (e->gpu) gpu_monitor_read(e->gpu, &reports[0]);
}

bool engine_gpu_trouble(const struct engine *e, const struct gpu_report *reports, char sentence[ENGINE_TROUBLE_MAX])
{
    int rank = 0;
    while (rank < e->comm->size && !*reports[rank].trouble)
        rank++;
    if (rank == e->comm->size) return false;
    char name[WAKEUP_NAME_MAX] = "rank 0";
    if (e->wakeup) wakeup_name(e->wakeup, rank, name);
    snprintf(sentence, ENGINE_TROUBLE_MAX, "%s, GPU %s: %s", name, reports[rank].address, reports[rank].trouble);
    return true;
}

// ---- passes ----

struct model *engine_model(const struct engine *e)
{
    return e->model;
}

void engine_set_step_timeout(struct engine *e, int timeout_ms)
{
    engine_apply_timeout(e, timeout_ms);
}

static enum status check_encoded_size(const struct engine *e, size_t n_ints)
{
    if (n_ints >= 1 && n_ints <= e->encoded_ints) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "encoded batch of %zu integers: must be 1 to %zu", n_ints, e->encoded_ints);
}

static enum status lead_pass(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    if (!e->wakeup) return model_forward(e->model, batch, result);
    size_t n_ints = batch_encoded_ints(batch), size_bytes = n_ints * sizeof *e->encoded;
    TRY(check_encoded_size(e, n_ints));
    batch_encode(batch, e->encoded);
    TRY(wakeup_send(e->wakeup, (struct wakeup_message){WAKEUP_PASS, (uint32_t)size_bytes, e->timeout_ms}));
    TRY(e->comm->ops->broadcast(e->comm, e->encoded, size_bytes));
    return model_forward(e->model, batch, result);
}

enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    no_alloc_begin("engine_forward");
    pass_begin(e, batch->n_rows);
    enum status status = lead_pass(e, batch, result);
    group_work_end(e);
    no_alloc_end();
    return status == STATUS_OK || !e->wakeup ? status : pass_failed(e, status);
}

void engine_sampling_begin(struct engine *e)
{
    watchdog_enter_sampling(e->watchdog);
}

void engine_sampling_end(struct engine *e)
{
    watchdog_leave(e->watchdog);
}

static enum status follow_pass(struct engine *e, uint32_t size_bytes)
{
    size_t n_ints = size_bytes / sizeof *e->encoded;
    struct ragged_batch batch;
    struct forward_result result;
    TRY(check_encoded_size(e, n_ints));
    TRY(e->comm->ops->broadcast(e->comm, e->encoded, size_bytes));
    TRY(batch_decode(e->encoded, n_ints, e->block_table, e->table_ints, &batch));
    return model_forward(e->model, &batch, &result);
}

// Sums 1 over all ranks and sends a number through the stages, with the same kinds of messages as a pass.
static enum status sum_over_ranks(struct engine *e)
{
    float ranks = 1;
    TRY(e->comm->ops->all_reduce_sum(e->comm, &ranks, 1));
    if (ranks == (float)e->comm->size) return model_check_stages(e->model);
    return status_fail(STATUS_INTERNAL, "a sum of 1 over %d ranks gave %g", e->comm->size, (double)ranks);
}

enum status engine_check(struct engine *e)
{
    if (!e->wakeup) return STATUS_OK;
    check_begin(e);
    enum status status =
        wakeup_send(e->wakeup, (struct wakeup_message){.kind = WAKEUP_CHECK, .timeout_ms = e->timeout_ms});
    if (status == STATUS_OK) status = sum_over_ranks(e);
    group_work_end(e);
    return status == STATUS_OK ? status : pass_failed(e, status);
}

static enum status follow_check(struct engine *e)
{
    check_begin(e);
    enum status status = sum_over_ranks(e);
    group_work_end(e);
    return status;
}

static enum status follow_timed_pass(struct engine *e, uint32_t size_bytes)
{
    no_alloc_begin("engine_follow");
    pass_begin(e, 1);
    enum status status = follow_pass(e, size_bytes);
    group_work_end(e);
    no_alloc_end();
    return status;
}

enum status engine_follow(struct engine *e)
{
    for (;;) {
        struct wakeup_message message;
        // needed because a leader that hangs between two passes sends no more wake-ups
        watchdog_enter_open_ended(e->watchdog);
        enum status status = wakeup_wait(e->wakeup, &message);
        watchdog_leave(e->watchdog);
        if (status != STATUS_OK) return status;
        if (message.kind == WAKEUP_CLOSE) return STATUS_OK;
        engine_apply_timeout(e, message.timeout_ms);
        status = message.kind == WAKEUP_CHECK ? follow_check(e) : follow_timed_pass(e, message.size_bytes);
        if (status != STATUS_OK) return pass_failed(e, status);
    }
}

void engine_close(struct engine *e)
{
    if (e->wakeup && e->comm->rank == 0) {
        roll_call_on_loss(e->roll_call, NULL, NULL); // from here on, followers end as planned
        wakeup_send(e->wakeup, (struct wakeup_message){.kind = WAKEUP_CLOSE});
    }
    engine_free(e);
}
