// SPDX-License-Identifier: Apache-2.0
// See node_main.h. What fails before serving fails here, with one line on stderr and the exit code that says whose
// fault it was: 2 the caller's (an option, a checkpoint that is not there or not known), 1 the machine's.
#include "engine/node_main.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "model/tokenizer.h"

static bool made_up(const struct node_options *options)
{
    return options->shape || strcmp(options->load, "dummy") == 0;
}

struct model_options node_model_options(const struct node_options *options)
{
    return (struct model_options){.dir = options->shape ? options->shape : options->model,
                                  .dummy = made_up(options),
                                  .backend = options->backend,
                                  .dtype = options->dtype,
                                  .kv_dtype = options->kv_dtype,
                                  .packed_cache = options->packed_cache,
                                  .threads = group_threads((int)options->threads),
                                  .max_rows = (int)options->token_budget,
                                  .max_seqs = (int)options->max_seqs,
                                  .max_context = (int)options->max_context,
                                  .n_kv_blocks = (int)options->kv_blocks,
                                  .gpu_memory_utilization = options->gpu_memory_utilization,
                                  .overlap_rows = (int)options->overlap_rows};
}

struct node_limits node_limits_get(const struct node_options *options, const struct model *model)
{
    const struct model_config *config = model_get_config(model);
    int64_t context = config->max_context, kv_tokens = (int64_t)model_kv_blocks(model) * KV_BLOCK_TOKENS;
    if (options->max_context && options->max_context < context) context = options->max_context;
    if (config->sliding_window && config->sliding_window < context) context = config->sliding_window;
    if (kv_tokens < context) context = kv_tokens;
    return (struct node_limits){.context_tokens = (int)context,
                                .token_budget = (int)options->token_budget,
                                .max_seqs = (int)options->max_seqs,
                                .kv_blocks = model_kv_blocks(model),
                                .prefix_cache = options->prefix_cache};
}

enum status node_hello_fill(Forepack__Cluster__V1__Hello *hello, const struct node_options *options,
                            const struct model *model, const struct comm *comm, Forepack__Cluster__V1__Role role)
{
    static char host[HOST_NAME_MAX + 1];
    static uint32_t eos[MODEL_MAX_EOS];
    struct tokenizer *tokenizer;
    uint64_t model_print;
    enum status status = made_up(options) ? model_dummy_fingerprint(node_model_options(options).dir, &model_print)
                                          : model_fingerprint(options->model, &model_print);
    if (status == STATUS_OK) status = tokenizer_open(options->model, &tokenizer);
    if (status != STATUS_OK) return status;
    uint64_t tokenizer_print = tokenizer_fingerprint(tokenizer);
    tokenizer_free(tokenizer);

    const struct model_config *config = model_get_config(model);
    struct node_limits limits = node_limits_get(options, model);
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < config->n_eos; i++)
        eos[i] = (uint32_t)config->eos_id[i];
    forepack__cluster__v1__hello__init(hello);
    if (options->node_id) hello->node_id = options->node_id;
    hello->role = role;
    hello->version = (char *)FOREPACK_VERSION;
    hello->host = host;
    hello->ranks = (uint32_t)comm->size;
    hello->dtype = (char *)dtype_name(model_dtype(model));
    hello->model_fingerprint = model_print;
    hello->tokenizer_fingerprint = tokenizer_print;
    hello->vocab_size = (uint32_t)config->vocab_size;
    hello->context_tokens = (uint32_t)limits.context_tokens;
    hello->token_budget = (uint32_t)limits.token_budget;
    hello->block_tokens = KV_BLOCK_TOKENS;
    hello->kv_blocks = (uint32_t)limits.kv_blocks;
    hello->max_seqs = (uint32_t)limits.max_seqs;
    hello->prefix_cache = limits.prefix_cache;
    hello->eos_token_ids = eos;
    hello->n_eos_token_ids = (size_t)config->n_eos;
    return STATUS_OK;
}

// --- the life of the process

static int exit_code(enum status status)
{
    switch (status) {
    case STATUS_INVALID:
    case STATUS_NOT_FOUND:
    case STATUS_OUT_OF_RANGE:
    case STATUS_UNSUPPORTED: return 2;
    default: return 1;
    }
}

// Ranks that only echo another's failure have an empty message.
static int fail(const struct node_program *program, enum status status)
{
    if (*status_message()) fprintf(stderr, "forepack-%s: %s\n", program->name, status_message());
    return exit_code(status);
}

static enum status check_options(const struct node_program *program)
{
    if (!program->common->model) return status_fail(STATUS_INVALID, "--model: a checkpoint directory is required");
    if (!program->common->router) return status_fail(STATUS_INVALID, "--router: HOST:PORT of the router is required");
    return program->check ? program->check() : STATUS_OK;
}

// Every rank gets the same arguments; the first alone speaks of them.
static bool parse(const struct node_program *program, int argc, char **argv)
{
    if (group_rank_hint() == 0) {
        options_main(program->options, program->usage, argc, argv, NULL);
        enum status status = check_options(program);
        if (status != STATUS_OK) fail(program, status);
        return status == STATUS_OK;
    }
    return options_parse(program->options, argc, argv, NULL, NULL) == STATUS_OK && check_options(program) == STATUS_OK;
}

// One row through all ranks: a node that cannot compute says so before it takes work.
static enum status warm_up(struct engine *engine)
{
    const struct ragged_batch batch = ragged_warm_up_batch();
    struct forward_result result;
    return engine_forward(engine, &batch, &result);
}

static int lead(const struct node_program *program, struct engine *engine, struct comm *comm)
{
    Forepack__Cluster__V1__Hello hello;
    struct node *node;
    const bool device_collectives = model_capabilities(engine_model(engine))->device_collectives;
    if (strcmp(program->common->allreduce_dtype, "bf16") == 0 && comm->size > 1 && device_collectives)
        log_event(LOG_WARN, "allreduce_dtype_ignored", LOG_FIELD("allreduce_dtype", "bf16"),
                  LOG_FIELD("reason", "the devices reduce in f32"));
    enum status status = warm_up(engine);
    if (status != STATUS_OK) {
        fail(program, status);
        group_abort(comm, 1);
    }
    status = node_hello_fill(&hello, program->common, engine_model(engine), comm, program->role);
    if (status == STATUS_OK) status = node_start(program->common->router, &hello, &node);
    if (status != STATUS_OK) return fail(program, status);
    struct node_limits limits = node_limits_get(program->common, engine_model(engine));
    log_info("ready model=%s router=%s ranks=%d backend=%s dtype=%s kv_dtype=%s token_budget=%d max_seqs=%d context=%d "
             "kv_blocks=%d",
             program->common->model, program->common->router, comm->size, model_backend(engine_model(engine)),
             hello.dtype, dtype_name(model_kv_dtype(engine_model(engine))), limits.token_budget, limits.max_seqs,
             limits.context_tokens, limits.kv_blocks);
    enum node_end end = program->serve(engine, node, &limits);
    if (end == NODE_END_BROKEN) group_abort(comm, 1);
    node_stop(node);
    log_info("done");
    return end == NODE_END_REFUSED ? 2 : 0;
}

static int follow(const struct node_program *program, struct engine *engine, struct comm *comm)
{
    enum status status = engine_follow(engine);
    if (status == STATUS_OK) return 0;
    log_error("rank %d: %s", comm->rank, status_message());
    group_abort(comm, 1);
}

int node_main(const struct node_program *program, int argc, char **argv)
{
    node_block_signals();
    if (!parse(program, argc, argv)) {
        options_free(program->options);
        return 2;
    }
    enum log_level level = LOG_INFO;
    log_level_parse(program->common->log_level, &level);
    log_setup(program->name, level);
    struct comm *comm;
    struct engine *engine;
    enum status status = group_open(&argc, &argv, &comm);
    if (status != STATUS_OK) {
        int code = fail(program, status);
        options_free(program->options);
        return code;
    }
    char *who = comm->size > 1 ? mem_format("%s[%d]", program->name, comm->rank) : mem_string(program->name);
    log_setup(who, level);
    free(who);
    if (strcmp(program->common->allreduce_dtype, "bf16") == 0) group_set_allreduce_bf16(comm);
    struct model_options model = node_model_options(program->common);
    int code;
    status = engine_open(&model, comm, &engine);
    if (status == STATUS_OK) {
        code = comm->rank ? follow(program, engine, comm) : lead(program, engine, comm);
        engine_close(engine);
    } else {
        code = fail(program, status);
    }
    group_close(comm);
    options_free(program->options);
    return code;
}
