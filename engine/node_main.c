// SPDX-License-Identifier: Apache-2.0
// A failure before serving is printed as one line on stderr, and status_exit_code() determines the exit code.
#include "engine/node_main.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kept_costs.h"
#include "engine/loading_report.h"
#include "engine/node_check.h"
#include "engine/node_probe.h"
#include "engine/router_list.h"
#include "engine/start_costs.h"
#include "engine/start_signals.h"
#include "lib/base/clock.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/descriptors.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/service_manager.h"
#include "lib/base/version.h"

static struct node_vitals *vitals; // of rank 0; set before other threads start

enum { MEASURING_US = 40000 }; // least time for the passes that are measured at the start

bool node_has_random_weights(const struct node_options *options)
{
    return options->shape || strcmp(options->load, "dummy") == 0;
}

struct model_options node_model_options(const struct node_options *options)
{
    return (struct model_options){.dir = options->shape ? options->shape : options->model,
                                  .dummy = node_has_random_weights(options),
                                  .backend = options->backend,
                                  .dtype = options->dtype,
                                  .kv_dtype = options->kv_dtype,
                                  .packed_cache = options->packed_cache,
                                  .threads = group_threads((int)options->threads),
                                  .max_rows = (int)options->token_budget,
                                  .max_seqs = (int)options->max_seqs,
                                  .max_context = (int)options->max_context,
                                  .n_kv_blocks = (int)options->kv_blocks,
                                  .memory_bytes = group_memory_bytes(),
                                  .gpu_memory_utilization = options->gpu_memory_utilization,
                                  .overlap_rows = (int)options->overlap_rows,
                                  .allreduce_dtype = options->allreduce_dtype,
                                  .stages = (int)options->stages,
                                  .stage_layers = options->stage_layers,
                                  .fp8_fast_accum = options->fp8_fast_accum};
}

static struct node_limits node_limits_get(const struct node_options *options, const struct model *model)
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

void node_hello_fill(Forepack__Cluster__V1__Hello *hello, const struct node_options *options, const struct model *model,
                     const struct tokenizer *tokenizer, const struct comm *comm, Forepack__Cluster__V1__Role role)
{
    static char host[HOST_NAME_MAX + 1];
    static uint32_t eos[MODEL_MAX_EOS];
    const struct model_config *config = model_get_config(model);
    const struct host_cores cores = model_host_cores(model);
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
    hello->stages = options->stages > 1 ? (uint32_t)options->stages : 1;
    hello->backend = (char *)model_backend(model);
    hello->dtype = (char *)dtype_name(model_dtype(model));
    hello->kv_dtype = (char *)dtype_name(model_kv_dtype(model));
    hello->model_fingerprint = model_fingerprint(model);
    hello->tokenizer_fingerprint = tokenizer_fingerprint(tokenizer);
    hello->vocab_size = (uint32_t)config->vocab_size;
    hello->context_tokens = (uint32_t)limits.context_tokens;
    hello->token_budget = (uint32_t)limits.token_budget;
    hello->block_tokens = KV_BLOCK_TOKENS;
    hello->kv_blocks = (uint32_t)limits.kv_blocks;
    hello->max_seqs = (uint32_t)limits.max_seqs;
    hello->prefix_cache = limits.prefix_cache;
    hello->cores = (char *)cores.list;
    hello->cores_decided_by = (char *)cores.decided_by;
    hello->eos_token_ids = eos;
    hello->n_eos_token_ids = (size_t)config->n_eos;
}

// --- the life of the process

// Prints the failure and returns the exit code. The message is empty if another rank failed; that rank prints it.
static int report_failure(const struct node_program *program, enum status status)
{
    log_flush(); // so that the message on stderr follows the log lines of its causes
    if (*status_message()) fprintf(stderr, "forepack-%s: %s\n", program->name, status_message());
    return status_exit_code(status);
}

static enum status gpu_limits_read(const struct node_options *options, struct gpu_limits *limits)
{
    limits->throttle_us = options->gpu_throttle_limit_s * 1000000;
    enum status status = gpu_fatal_xids_parse(options->gpu_fatal_xids, limits);
    return status == STATUS_OK ? status : status_context(status, "--gpu-fatal-xids");
}

static enum status check_stages(const struct node_program *program)
{
    const struct node_options *common = program->common;
    if (program->role == FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR && (common->stages > 1 || common->stage_layers))
        return status_fail(STATUS_INVALID,
                           "--%s: a speculator has one stage, because the importance of a token is a "
                           "maximum over all layers",
                           common->stages > 1 ? "pp" : "pp-layers");
    return stages_parse(common->stage_layers, (int)common->stages, NULL);
}

// Returns true if the process only serves a leader, which has the other options.
static bool follows(const struct node_program *program)
{
    return program->join && program->join->join && group_is_single();
}

// Checks the options, and applies --cpus, which must precede the first thread.
static enum status check_options(const struct node_program *program)
{
    if (program->join && group_is_single()) TRY(join_check(program->join));
    if (!program->common->model && !follows(program))
        return status_fail(STATUS_INVALID, "--model: a checkpoint directory is required");
    const struct node_options *common = program->common;
    if ((common->tls_cert || common->tls_key) && !common->tls_ca)
        return status_fail(STATUS_INVALID, "--node-tls-ca: required with --node-tls-cert and --node-tls-key");
    if (common->node_id && strlen(common->node_id) >= sizeof((struct node_identity *)0)->node_id)
        return status_fail(STATUS_INVALID, "--node-id: must have fewer than %zu bytes",
                           sizeof((struct node_identity *)0)->node_id);
    TRY(check_stages(program));
    struct gpu_limits limits = {0};
    struct router_list routers;
    TRY(gpu_limits_read(common, &limits));
    TRY(router_list_parse(common->router, &routers));
    if (common->probe_listen) TRY(node_probe_check(common->probe_listen, common->insecure));
    if (common->cpus) TRY(cpu_limits_restrict(common->cpus));
    return program->check ? program->check() : STATUS_OK;
}

// Parses the options. Every rank has the same arguments, so only rank 0 reports wrong arguments.
static bool parse_options(const struct node_program *program, int argc, char **argv)
{
    options_use_environment();
    if (group_rank_hint() == 0) {
        options_main(program->options, program->usage, argc, argv, NULL);
        enum status status = check_options(program);
        if (status != STATUS_OK) report_failure(program, status);
        return status == STATUS_OK;
    }
    return options_parse(program->options, argc, argv, NULL, NULL) == STATUS_OK && check_options(program) == STATUS_OK;
}

static bool wants_bf16_sums(const struct node_options *options)
{
    return strcmp(options->allreduce_dtype, "bf16") == 0;
}

// Returns the path of the file that keeps the costs of this node, or NULL if no packed weights are kept. *node_p gets
// the node's description. The caller frees both.
static char *costs_path(const struct node_program *program, const struct model *model,
                        const struct start_limits *limits, char **node_p)
{
    const char *packed = model_packed_path(model);
    if (!packed) return NULL;
    *node_p = mem_format("%s %s, machine %016" PRIx64 ", %s weights, %s KV cache, %d rows, %d entries", program->name,
                         FOREPACK_VERSION, model_machine(model), dtype_name(model_dtype(model)),
                         dtype_name(model_kv_dtype(model)), limits->rows, limits->entries);
    return mem_format("%s-%s.costs", packed, program->name);
}

// Gets the costs from the file of an earlier start, or measures and keeps them.
static enum status costs_get(const struct node_program *program, struct engine *engine,
                             const struct start_limits *limits, struct start_costs *costs_p)
{
    char *node = NULL, *path = costs_path(program, engine_model(engine), limits, &node);
    const int64_t begun_us = clock_now_us();
    const bool kept = path && kept_costs_read(path, node, costs_p);
    enum status status = kept ? start_costs_skip(engine, limits) : start_costs_measure(engine, limits, costs_p);
    if (status == STATUS_OK) {
        const struct start_pass *longest = &costs_p->passes[costs_p->n - 1];
        log_event(LOG_INFO, kept ? "costs_found" : "costs_measured", LOG_FIELD("passes", costs_p->n),
                  LOG_FIELD("longest_rows", longest->rows), LOG_MS("longest_ms", longest->us),
                  LOG_MS("ms", clock_now_us() - begun_us));
        if (path && !kept) kept_costs_write(path, node, costs_p);
    }
    free(path);
    free(node);
    return status;
}

// Runs one or more passes through all ranks, so that a node that cannot compute fails before it receives work, and adds
// the node's costs to the Hello. loading_us: time that opening the model took.
static enum status measure_costs(const struct node_program *program, struct engine *engine, int64_t loading_us,
                                 Forepack__Cluster__V1__Hello *hello)
{
    static Forepack__Cluster__V1__MeasuredPass messages[START_PASSES_MAX], *list[START_PASSES_MAX];
    const struct node_limits node = node_limits_get(program->common, engine_model(engine));
    const struct start_limits limits = {
        .rows = node.token_budget,
        .entries = node.context_tokens,
        .importance = program->role == FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR,
        .us = loading_us / 50 > MEASURING_US ? loading_us / 50 : MEASURING_US,
    };
    struct start_costs costs;
    TRY(costs_get(program, engine, &limits, &costs));
    for (int i = 0; i < costs.n; i++) {
        const struct start_pass *pass = &costs.passes[i];
        list[i] = &messages[i];
        *list[i] = (Forepack__Cluster__V1__MeasuredPass)FOREPACK__CLUSTER__V1__MEASURED_PASS__INIT;
        list[i]->rows = (uint32_t)pass->rows;
        list[i]->pairs = (uint64_t)pass->pairs;
        list[i]->us = pass->us < UINT32_MAX ? (uint32_t)pass->us : UINT32_MAX;
        list[i]->latency_us = list[i]->us; // stages run one pass at a time
    }
    hello->measured = list;
    hello->n_measured = (size_t)costs.n;
    return STATUS_OK;
}

static void log_ready(const struct node_program *program, const struct model *model, const struct comm *comm,
                      const struct node_limits *limits)
{
    log_event(LOG_INFO, "node_ready", LOG_FIELD("model", program->common->model),
              LOG_FIELD("router", program->common->router), LOG_FIELD("ranks", comm->size),
              LOG_FIELD("backend", model_backend(model)), LOG_FIELD("dtype", dtype_name(model_dtype(model))),
              LOG_FIELD("kv_dtype", dtype_name(model_kv_dtype(model))), LOG_FIELD("token_budget", limits->token_budget),
              LOG_FIELD("max_seqs", limits->max_seqs), LOG_FIELD("context_tokens", limits->context_tokens),
              LOG_FIELD("kv_blocks", limits->kv_blocks));
}

// State for the functions that the link calls (struct node_callbacks).
struct group_of_node {
    const struct node_program *program;
    struct engine *engine;
    struct comm *comm;
    struct gpu_report *reports;        // [ranks]
    Forepack__Cluster__V1__Gpu *gpus;  // [ranks] messages made from the reports
    Forepack__Cluster__V1__Gpu **list; // [ranks]
    char trouble[ENGINE_TROUBLE_MAX];
};

static void group_check(void *arg)
{
    const struct group_of_node *group = arg;
    if (engine_check(group->engine) == STATUS_OK) return;
    log_event(LOG_ERROR, "group_check_failed", LOG_REASON);
    group_abort(group->comm, 1);
}

static uint64_t group_progress(void *arg)
{
    const struct group_of_node *group = arg;
    return engine_progress(group->engine);
}

static void gpu_fill(Forepack__Cluster__V1__Gpu *m, int rank, struct gpu_report *report)
{
    *m = (Forepack__Cluster__V1__Gpu)FOREPACK__CLUSTER__V1__GPU__INIT;
    m->rank = (uint32_t)rank;
    m->known = report->known;
    m->healthy = !*report->trouble;
    if (report->has_temperature) {
        m->temperature_given_case = FOREPACK__CLUSTER__V1__GPU__TEMPERATURE_GIVEN_TEMPERATURE_CELSIUS;
        m->temperature_celsius = report->temperature_celsius;
    }
    if (report->has_memory) {
        m->memory_used_bytes = report->memory_used_bytes;
        m->memory_total_bytes = report->memory_total_bytes;
    }
    if (report->has_ecc) {
        m->ecc_given_case = FOREPACK__CLUSTER__V1__GPU__ECC_GIVEN_ECC_CORRECTED;
        m->ecc_corrected = report->ecc_corrected;
        m->ecc_uncorrected = report->ecc_uncorrected;
    }
    if (report->has_throttle) {
        m->throttled_us = report->throttled_us;
        m->n_throttled_us = GPU_THROTTLES;
    }
    m->xid_errors = report->xid_errors;
    m->last_xid = report->last_xid;
}

// Lists the GPUs of all ranks. Skips a rank without a report: it has no GPU, or its GPU is not watched.
static struct gpu_list group_gpus(void *arg)
{
    struct group_of_node *group = arg;
    struct gpu_list gpus = {.gpus = group->list};
    engine_read_gpus(group->engine, group->reports);
    for (int rank = 0; rank < group->comm->size; rank++) {
        if (!*group->reports[rank].address) continue;
        gpu_fill(&group->gpus[gpus.n], rank, &group->reports[rank]);
        group->list[gpus.n] = &group->gpus[gpus.n];
        gpus.n++;
    }
    const bool drains = strcmp(group->program->common->gpu_health, "drain") == 0;
    if (drains && engine_gpu_trouble(group->engine, group->reports, group->trouble)) gpus.trouble = group->trouble;
    return gpus;
}

static void group_of_node_init(struct group_of_node *group, const struct node_program *program, struct engine *engine,
                               struct comm *comm)
{
    const size_t n = (size_t)comm->size;
    *group = (struct group_of_node){.program = program, .engine = engine, .comm = comm};
    group->reports = mem_alloc_array(n, sizeof *group->reports);
    group->gpus = mem_alloc_array(n, sizeof *group->gpus);
    group->list = mem_alloc_array(n, sizeof *group->list);
}

static void group_of_node_fini(struct group_of_node *group)
{
    free(group->reports);
    free(group->gpus);
    free(group->list);
}

static enum status group_reload(void *arg)
{
    const struct group_of_node *group = arg;
    enum status status = options_reload(group->program->options);
    if (status != STATUS_OK)
        log_event(LOG_ERROR, "config_refused", LOG_REASON, LOG_FIELD("effect", "all options stay as they are"));
    log_options_apply_level(&group->program->common->log);
    return status;
}

// If a GPU is in trouble although the node leaves for another reason, ends the group immediately: closing the model
// could hang on that GPU.
static void leave_broken_gpus(struct group_of_node *group)
{
    char sentence[ENGINE_TROUBLE_MAX];
    struct gpu_report *reports = mem_alloc_array((size_t)group->comm->size, sizeof *reports);
    engine_read_gpus(group->engine, reports);
    const bool trouble = engine_gpu_trouble(group->engine, reports, sentence);
    free(reports);
    if (!trouble) return;
    log_event(LOG_WARN, "gpu_unhealthy", LOG_FIELD("reason", (const char *)sentence));
    group_abort(group->comm, 0);
}

static struct node_router node_router_of(const struct node_options *options)
{
    return (struct node_router){
        .address = options->router,
        .tls = {options->tls_cert, options->tls_key, options->tls_ca},
        .token_file = options->token_file,
    };
}

// Serves on the leader, from the first attempt to attach until the node leaves. Returns the exit code of the process.
static int serve_router(struct group_of_node *group, const struct tokenizer *tokenizer,
                        const Forepack__Cluster__V1__Hello *hello)
{
    const struct node_program *program = group->program;
    const struct model *model = engine_model(group->engine);
    const struct node_callbacks callbacks = {.check = group_check,
                                             .progress = group_progress,
                                             .gpus = group_gpus,
                                             .reload = group_reload,
                                             .arg = group,
                                             .vitals = vitals};
    const struct node_router router = node_router_of(program->common);
    struct node *node;
    enum status status = node_start(&router, hello, &callbacks, &node);
    if (status != STATUS_OK) return report_failure(program, status);
    struct node_limits limits = node_limits_get(program->common, model);
    log_ready(program, model, group->comm, &limits);
    enum node_end end = program->serve(group->engine, tokenizer, node, &limits);
    if (end == NODE_END_BROKEN) group_abort(group->comm, 1);
    char *trouble = node_trouble(node) ? mem_string(node_trouble(node)) : NULL;
    node_stop(node);
    log_event(LOG_INFO, "node_stopped", LOG_FIELD("router", program->common->router));
    if (!trouble) {
        leave_broken_gpus(group);
        return 0;
    }
    fprintf(stderr, "forepack-%s: the node has left because of a GPU: %s\n", program->name, trouble);
    free(trouble);
    group_abort(group->comm, 1); // closing the model could hang on the GPU
}

// The loading of a rank's weights, which the leader reports to the routers.
struct loading {
    struct node_identity identity;
    struct load_progress progress;
    struct loading_report *reports[NODE_LINKS_MAX]; // one for each router; NULL on other ranks and after the end
    int64_t us;                                     // time that opening the model took
};

// Starts a report for each router. Names and files are not looked up: their routers do not show the loading node.
static void reports_start(struct loading *loading, const struct node_program *program, const struct comm *comm)
{
    struct router_list list;
    if (router_list_parse(program->common->router, &list) != STATUS_OK) return; // was checked at the start
    for (int i = 0; i < list.n; i++) {
        if (list.entries[i].kind != ROUTER_ADDRESS) continue;
        struct node_router router = node_router_of(program->common);
        router.address = list.entries[i].address;
        loading->reports[i] =
            loading_report_start(&router, &loading->identity, program->role, comm->size, &loading->progress);
    }
}

static void loading_begin(struct loading *loading, const struct node_program *program, const struct comm *comm)
{
    *loading = (struct loading){0};
    if (comm->rank) return;
    node_identity_draw(program->role, program->common->node_id ?: "", &loading->identity);
    node_vitals_set_loading(vitals, &loading->progress);
    reports_start(loading, program, comm);
}

static void loading_end(struct loading *loading)
{
    node_vitals_set_loading(vitals, NULL);
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        if (loading->reports[i]) loading_report_stop(loading->reports[i]);
        loading->reports[i] = NULL;
    }
}

static int run_leader(const struct node_program *program, struct engine *engine, const struct tokenizer *tokenizer,
                      struct comm *comm, bool sends_bf16, struct loading *loading)
{
    Forepack__Cluster__V1__Hello hello;
    struct group_of_node group;
    const struct model *model = engine_model(engine);
    if (wants_bf16_sums(program->common) && !sends_bf16 && !model_capabilities(model)->device_collectives)
        log_event(LOG_INFO, "allreduce_dtype_ignored", LOG_FIELD("allreduce_dtype", "bf16"),
                  LOG_FIELD("reason", "all ranks run on one host and share memory"));
    node_hello_fill(&hello, program->common, model, tokenizer, comm, program->role);
    hello.instance = loading->identity.instance;
    hello.node_id = loading->identity.node_id;
    enum status status = measure_costs(program, engine, loading->us, &hello);
    loading_end(loading);
    if (status != STATUS_OK) {
        report_failure(program, status);
        group_abort(comm, 1);
    }
    if (program->describe) status = program->describe(&hello);
    if (status != STATUS_OK) return report_failure(program, status);
    group_of_node_init(&group, program, engine, comm);
    node_vitals_set_engine(vitals, engine);
    int code = serve_router(&group, tokenizer, &hello);
    node_vitals_set_engine(vitals, NULL);
    group_of_node_fini(&group);
    return code;
}

static int run_follower(struct engine *engine, struct comm *comm)
{
    if (engine_follow(engine) == STATUS_OK) return 0;
    log_event(LOG_ERROR, "group_lost", LOG_FIELD("rank", comm->rank), LOG_REASON);
    group_abort(comm, 1);
}

// Adds the rank to the process name.
static void name_process(const struct node_program *program, const struct comm *comm)
{
    char name[64];
    if (comm->size > 1)
        snprintf(name, sizeof name, "%s[%d]", program->name, comm->rank);
    else
        snprintf(name, sizeof name, "%s", program->name);
    log_options_apply(&program->common->log, name);
}

// Called by all ranks. Every rank fails if the leader's tokenizer cannot be opened. Followers need no tokenizer.
static enum status open_tokenizer(const struct node_program *program, struct comm *comm, struct tokenizer **tokenizer_p)
{
    enum status status = comm->rank ? STATUS_OK : tokenizer_open(program->common->model, tokenizer_p);
    int32_t leaders = status;
    TRY(comm->ops->broadcast(comm, &leaders, sizeof leaders));
    return comm->rank && leaders ? status_fail((enum status)leaders, "%s", "") : status;
}

static void watch_gpu(const struct node_options *options, struct engine *engine)
{
    struct gpu_limits limits = {0};
    if (strcmp(options->gpu_health, "off") == 0) return;
    // cannot fail: the options were checked at the start
    if (gpu_limits_read(options, &limits) == STATUS_OK) engine_watch_gpu(engine, &limits);
}

static struct model_options rank_model_options(const struct node_program *program)
{
    struct model_options model = node_model_options(program->common);
    if (program->logit_rows) model.max_logit_rows = program->logit_rows(model.max_seqs, model.max_rows);
    return model;
}

// Runs a rank from opening its model to its exit. `sends_bf16` is true if sums between hosts are sent as bf16, see
// group_set_allreduce_bf16().
static int run_engine(const struct node_program *program, const struct tokenizer *tokenizer, struct comm *comm,
                      bool sends_bf16)
{
    struct engine *engine;
    struct model_options model = rank_model_options(program);
    struct loading loading;
    loading_begin(&loading, program, comm);
    model.progress = &loading.progress;
    const int64_t begun_us = clock_now_us();
    enum status status = engine_open(&model, comm, &engine);
    loading.us = clock_now_us() - begun_us;
    if (status != STATUS_OK) {
        int code = report_failure(program, status); // before the message changes
        loading_end(&loading);
        return code;
    }
    watch_gpu(program->common, engine);
    int code =
        comm->rank ? run_follower(engine, comm) : run_leader(program, engine, tokenizer, comm, sends_bf16, &loading);
    engine_close(engine);
    return code;
}

// Opens the files of the tokenizer just before the files of the model, so that both come from one checkpoint: loading
// may take minutes, and the files may be replaced meanwhile.
static int run_rank(const struct node_program *program, struct comm *comm, bool sends_bf16)
{
    struct tokenizer *tokenizer = NULL;
    enum status status = open_tokenizer(program, comm, &tokenizer);
    int code = status == STATUS_OK ? run_engine(program, tokenizer, comm, sends_bf16) : report_failure(program, status);
    tokenizer_free(tokenizer);
    return code;
}

// Joins the MPI job and runs this rank. Returns the exit code of the process.
static int run_group(const struct node_program *program, int argc, char **argv)
{
    struct comm *comm;
    enum status status = group_open(&argc, &argv, (int)program->common->group_limit_s, &comm);
    if (status != STATUS_OK) return report_failure(program, status);
    name_process(program, comm);
    const bool sends_bf16 = wants_bf16_sums(program->common) && group_set_allreduce_bf16(comm);
    int code = run_rank(program, comm, sends_bf16);
    group_close(comm);
    return code;
}

// Opens what only rank 0 has: the vitals, with the probe port, and the watch of signals.
static enum status leader_begin(const struct node_program *program, struct node_probe **probe_p)
{
    const char *listen = program->common->probe_listen;
    service_manager_open();
    start_signals_watch();
    options_log(program->options);
    vitals = node_vitals_create(program->common->router);
    if (listen || service_manager_listens()) node_vitals_watch(vitals);
    return listen ? node_probe_open(listen, vitals, program->name, probe_p) : STATUS_OK;
}

static void leader_end(struct node_probe *probe)
{
    node_probe_close(probe);
    node_vitals_free(vitals);
    start_signals_release();
}

// Rank 0 alone checks the files and reports the result, because all ranks have the same arguments.
static int check_config(const struct node_program *program)
{
    const struct node_router router = node_router_of(program->common);
    const struct model_options model = rank_model_options(program);
    if (group_rank_hint() != 0) return 0;
    enum status status = follows(program) ? STATUS_OK : node_check_files(&model, program->common->model, &router);
    if (status == STATUS_OK && program->check_files) status = program->check_files();
    char *name = mem_format("forepack-%s", program->name);
    int code = options_check_report(name, status);
    free(name);
    return code;
}

// Leads or follows a group over several hosts if an option says so, and returns the exit code. Returns -1 if not.
static int run_join(const struct node_program *program, char **argv)
{
    const struct node_options *common = program->common;
    if (!program->join) return -1;
    program->join->token_file = common->token_file;
    program->join->tls_cert = common->tls_cert;
    program->join->tls_key = common->tls_key;
    program->join->tls_ca = common->tls_ca;
    return join_run(program->name, program->join, argv);
}

static int run_program(const struct node_program *program, int argc, char **argv)
{
    struct node_probe *probe = NULL;
    log_options_apply(&program->common->log, program->name);
    log_writer_start(log_tell_dropped);
    if (program->common->check_config) return check_config(program);
    int code = run_join(program, argv);
    if (code >= 0) return code;
    const bool leads = group_rank_hint() == 0;
    enum status status = leads ? leader_begin(program, &probe) : STATUS_OK;
    code = status == STATUS_OK ? run_group(program, argc, argv) : report_failure(program, status);
    if (leads) leader_end(probe);
    return code;
}

int node_main(const struct node_program *program, int argc, char **argv)
{
    const int agent = program->join ? join_agent_run(argc, argv) : -1;
    if (agent >= 0) return agent;
    node_block_signals();
    descriptors_raise();
    int code = parse_options(program, argc, argv) ? run_program(program, argc, argv) : 2;
    options_free(program->options);
    return code;
}
