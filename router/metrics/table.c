// SPDX-License-Identifier: Apache-2.0
// Every metric of the router. If vLLM has the same metric, name and meaning are vLLM's (docs/metrics.md). Each label
// takes few values: names of this program, ids of nodes, which are bounded (NODES_GONE_MAX), and tenants, of which the
// first have their own series (AGREEMENT_TENANTS, --metrics-tenants). No other label has a value that a client sends.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/version.h"
#include "router/metrics/exposition.h"

enum { OF_SPECULATORS = 1 << NODE_SPECULATOR, OF_WORKERS = 1 << NODE_WORKER, OF_ALL = OF_SPECULATORS | OF_WORKERS };

static const char *pool_name(enum node_role role)
{
    return role == NODE_WORKER ? "worker" : "speculator";
}

static struct labels label(const char *name, const char *value)
{
    struct labels labels = {.size = 0};
    labels_add(&labels, name, value);
    return labels;
}

static struct labels node_labels(enum node_role role, const char *node_id)
{
    struct labels labels = label("pool", pool_name(role));
    labels_add(&labels, "node", node_id);
    return labels;
}

static const void *value_at(const void *base, const struct metric *metric)
{
    return (const char *)base + metric->offset;
}

// --- one value: at `offset` of the snapshot

static void write_count(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_count(e, NULL, *(const uint64_t *)value_at(s, metric));
}

static void write_int64(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_number(e, NULL, (double)*(const int64_t *)value_at(s, metric));
}

static void write_real(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_number(e, NULL, *(const double *)value_at(s, metric));
}

static void write_bool(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_number(e, NULL, *(const bool *)value_at(s, metric));
}

// --- counts of requests and tokens: by tenant if tenants are counted (tenant_usage.h), otherwise one total

static void write_by_tenant(struct exposition *e, const struct metrics_snapshot *s, uint64_t total, size_t offset)
{
    if (!s->core.n_tenants) exposition_count(e, NULL, total);
    for (int i = 0; i < s->core.n_tenants; i++) {
        struct labels labels = label("tenant", s->core.tenants[i].name);
        exposition_count(e, &labels, *(const uint64_t *)((const char *)&s->core.tenants[i] + offset));
    }
}

static void write_prompt_tokens(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_by_tenant(e, s, s->core.status.totals.prompt_tokens, offsetof(struct tenant_usage, prompt_tokens));
}

static void write_kept_tokens(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_by_tenant(e, s, s->core.status.totals.kept_tokens, offsetof(struct tenant_usage, kept_tokens));
}

static void write_output_tokens(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_by_tenant(e, s, s->core.status.totals.completion_tokens, offsetof(struct tenant_usage, completion_tokens));
}

static void write_finished(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int reason = 0; reason < FINISH_REASON_COUNT; reason++) {
        struct labels labels = label("finished_reason", finish_reason_name((enum finish_reason)reason));
        if (!s->core.n_tenants) exposition_count(e, &labels, s->core.measures.finished[reason]);
        for (int i = 0; i < s->core.n_tenants; i++) {
            struct labels both = labels;
            labels_add(&both, "tenant", s->core.tenants[i].name);
            exposition_count(e, &both, s->core.tenants[i].finished[reason]);
        }
    }
}

// --- memory for peers

static const char *const budget_names[PEER_CLASSES] = {[PEER_UNPROVEN] = "keyless", [PEER_PROVEN] = "peers"};

static void write_peer_memory(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < PEER_CLASSES; i++) {
        struct labels labels = label("budget", budget_names[i]);
        exposition_number(e, &labels, (double)s->peers[i].held_bytes);
    }
}

static void write_peer_limits(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < PEER_CLASSES; i++) {
        struct labels labels = label("budget", budget_names[i]);
        exposition_number(e, &labels, (double)s->peers[i].max_bytes);
    }
}

static void write_peers_closed(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < PEER_CLASSES; i++) {
        struct labels labels = label("budget", budget_names[i]);
        exposition_count(e, &labels, s->peers[i].ended);
    }
}

// --- histograms of the snapshot

static void write_histogram(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_histogram(e, NULL, value_at(s, metric));
}

// --- one value for each node, including nodes that are gone: at `offset` of its measures

static bool has_role(const struct metric *metric, enum node_role role)
{
    return metric->roles & 1 << role;
}

static void write_node_count(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.n_nodes; i++) {
        const struct node_measures *node = &s->core.nodes[i];
        if (!has_role(metric, node->role)) continue;
        struct labels labels = node_labels(node->role, node->node_id);
        exposition_count(e, &labels, *(const uint64_t *)value_at(node, metric));
    }
}

static void write_node_histogram(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.n_nodes; i++) {
        const struct node_measures *node = &s->core.nodes[i];
        if (!has_role(metric, node->role)) continue;
        struct labels labels = node_labels(node->role, node->node_id);
        exposition_histogram(e, &labels, value_at(node, metric));
    }
}

// --- attached nodes

static void write_node_status(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s,
                              double (*value)(const struct node_status *node))
{
    for (int i = 0; i < s->core.status.n_nodes; i++) {
        const struct node_status *node = &s->core.status.nodes[i];
        if (!has_role(metric, node->hello.role)) continue;
        struct labels labels = node_labels(node->hello.role, node->hello.node_id);
        exposition_number(e, &labels, value(node));
    }
}

static double running_of(const struct node_status *node)
{
    return node->running;
}

static void write_running(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_node_status(e, metric, s, running_of);
}

static double kv_usage_of(const struct node_status *node)
{
    double blocks = node->hello.kv_blocks, used = blocks - node->kv_blocks_free;
    return blocks > 0 && used > 0 ? used / blocks : 0;
}

static void write_kv_usage(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_node_status(e, metric, s, kv_usage_of);
}

static double held_prompts_of(const struct node_status *node)
{
    return node->held_prompts;
}

static void write_held_prompts(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_node_status(e, metric, s, held_prompts_of);
}

static double held_kv_usage_of(const struct node_status *node)
{
    return node->hello.kv_blocks > 0 ? (double)node->held_kv_blocks / node->hello.kv_blocks : 0;
}

static void write_held_kv_usage(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_node_status(e, metric, s, held_kv_usage_of);
}

// --- GPUs of the ranks: gauges of attached nodes, counters also of nodes that are gone

// Reads a value of a GPU. Returns false if the value is unknown.
typedef bool gpu_value_fn(const struct node_gpu *gpu, double *value_p);

static struct labels gpu_labels(const struct node_measures *node, int rank)
{
    char text[16];
    struct labels labels = node_labels(node->role, node->node_id);
    snprintf(text, sizeof text, "%d", rank);
    labels_add(&labels, "rank", text);
    return labels;
}

static void write_gpu_gauge(struct exposition *e, const struct metrics_snapshot *s, gpu_value_fn *value)
{
    double number;
    for (int i = 0; i < s->core.n_nodes; i++) {
        const struct node_measures *node = &s->core.nodes[i];
        for (int rank = 0; node->attached && rank < node->gpus.n; rank++) {
            if (!node->gpus.gpus[rank].seen || !value(&node->gpus.gpus[rank], &number)) continue;
            struct labels labels = gpu_labels(node, rank);
            exposition_number(e, &labels, number);
        }
    }
}

static bool gpu_healthy(const struct node_gpu *gpu, double *value_p)
{
    *value_p = gpu->healthy;
    return gpu->reported;
}

static bool gpu_temperature(const struct node_gpu *gpu, double *value_p)
{
    *value_p = gpu->temperature_celsius;
    return gpu->known && gpu->has_temperature;
}

static bool gpu_memory_used(const struct node_gpu *gpu, double *value_p)
{
    *value_p = (double)gpu->memory_used_bytes;
    return gpu->known && gpu->memory_total_bytes;
}

static bool gpu_memory_total(const struct node_gpu *gpu, double *value_p)
{
    *value_p = (double)gpu->memory_total_bytes;
    return gpu->known && gpu->memory_total_bytes;
}

static bool gpu_last_xid(const struct node_gpu *gpu, double *value_p)
{
    *value_p = gpu->last_xid;
    return gpu->reported && gpu->last_xid;
}

static void write_gpu_healthy(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_gauge(e, s, gpu_healthy);
}

static void write_gpu_temperature(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_gauge(e, s, gpu_temperature);
}

static void write_gpu_memory_used(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_gauge(e, s, gpu_memory_used);
}

static void write_gpu_memory_total(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_gauge(e, s, gpu_memory_total);
}

static void write_gpu_last_xid(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_gauge(e, s, gpu_last_xid);
}

// Writes a count at `offset` of the GPU. with_ecc: only for GPUs that count memory errors.
static void write_gpu_counter(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s,
                              bool with_ecc)
{
    for (int i = 0; i < s->core.n_nodes; i++) {
        const struct node_measures *node = &s->core.nodes[i];
        for (int rank = 0; rank < node->gpus.n; rank++) {
            const struct node_gpu *gpu = &node->gpus.gpus[rank];
            if (!gpu->seen || (with_ecc && !gpu->has_ecc)) continue;
            struct labels labels = gpu_labels(node, rank);
            exposition_count(e, &labels, *(const uint64_t *)value_at(gpu, metric));
        }
    }
}

static void write_gpu_count(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_counter(e, metric, s, false);
}

static void write_gpu_ecc(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_gpu_counter(e, metric, s, true);
}

static void write_throttled(struct exposition *e, const struct node_measures *node, const struct node_gpu *gpu)
{
    for (int reason = 0; reason < GPU_THROTTLES; reason++) {
        struct labels labels = gpu_labels(node, gpu->rank);
        labels_add(&labels, "reason", gpu_throttle_name((enum gpu_throttle)reason));
        exposition_number(e, &labels, (double)gpu->throttled_us[reason] / 1e6);
    }
}

static void write_gpu_throttled(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.n_nodes; i++) {
        const struct node_measures *node = &s->core.nodes[i];
        for (int rank = 0; rank < node->gpus.n; rank++) {
            const struct node_gpu *gpu = &node->gpus.gpus[rank];
            if (gpu->seen && gpu->has_throttle) write_throttled(e, node, gpu);
        }
    }
}

static int count_nodes(const struct core_status *status, enum node_role role, const char *state)
{
    int n = 0;
    for (int i = 0; i < status->n_nodes; i++)
        n += status->nodes[i].hello.role == role && strcmp(status->nodes[i].state, state) == 0;
    return n;
}

static int count_loading(const struct core_status *status, enum node_role role)
{
    int n = 0;
    for (int i = 0; i < status->n_loading; i++)
        n += status->loading[i].report.role == role;
    return n;
}

static void write_nodes(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    static const char *const states[] = {"ready", "probing", "ejected", "draining"}; // core_health_state()
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        for (size_t k = 0; k < sizeof states / sizeof *states; k++) {
            struct labels labels = label("role", pool_name(role));
            labels_add(&labels, "state", states[k]);
            exposition_number(e, &labels, count_nodes(&s->core.status, role, states[k]));
        }
        struct labels labels = label("role", pool_name(role));
        labels_add(&labels, "state", "loading");
        exposition_number(e, &labels, count_loading(&s->core.status, role));
    }
}

static void write_expected_nodes(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("role", pool_name(role));
        exposition_number(e, &labels, s->expected_nodes[role]);
    }
}

static void write_certificates(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->n_certificates; i++) {
        struct labels labels = label("option", s->certificates[i].option);
        if (s->certificates[i].expires_s) exposition_number(e, &labels, (double)s->certificates[i].expires_s);
    }
}

// --- pools

static void write_waiting(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("pool", pool_name(role));
        exposition_number(e, &labels, s->core.pools[role].waiting);
    }
}

// Writes no value while no node of the pool takes work, or while no node's costs are known.
static void write_work(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("pool", pool_name(role));
        if (isfinite(s->core.pools[role].work_us)) exposition_number(e, &labels, s->core.pools[role].work_us / 1e6);
    }
}

// Writes no value while the time is unknown.
static void write_queue_seconds(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("pool", pool_name(role));
        if (isfinite(s->core.pools[role].queue_us)) exposition_number(e, &labels, s->core.pools[role].queue_us / 1e6);
    }
}

// Writes seconds from microseconds at `offset` of the pool.
static void write_pool_seconds(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("pool", pool_name(role));
        exposition_number(e, &labels, (double)*(const uint64_t *)value_at(&s->core.pools[role], metric) / 1e6);
    }
}

static void write_plan(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct labels labels = label("pool", pool_name(role));
        exposition_histogram(e, &labels, &s->core.measures.plan[role]);
    }
}

// --- classes of the queue

static void write_classes(struct exposition *e, const struct metrics_snapshot *s,
                          double (*value)(const struct class_status *status))
{
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        struct labels labels = label("class", queue_class_name((enum queue_class)k));
        exposition_number(e, &labels, value(&s->core.status.classes[k]));
    }
}

static double class_requests(const struct class_status *status)
{
    return status->waiting;
}

static double class_tokens(const struct class_status *status)
{
    return (double)status->waiting_tokens;
}

static double class_max_requests(const struct class_status *status)
{
    return status->max_requests;
}

static double class_max_tokens(const struct class_status *status)
{
    return (double)status->max_tokens;
}

static void write_queue_requests(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_classes(e, s, class_requests);
}

static void write_queue_tokens(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_classes(e, s, class_tokens);
}

static void write_capacity_requests(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_classes(e, s, class_max_requests);
}

static void write_capacity_tokens(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    write_classes(e, s, class_max_tokens);
}

// --- reasons

static void write_errors(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int status = STATUS_OK + 1; status < STATUS_COUNT; status++) {
        struct labels labels = label("reason", status_name((enum status)status));
        exposition_count(e, &labels, s->core.measures.errors[status]);
    }
}

static void write_refused(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int status = STATUS_OK + 1; status < STATUS_COUNT; status++) {
        struct labels labels = label("reason", status_name((enum status)status));
        exposition_count(e, &labels, s->core.measures.refused[status] + s->refused[status]);
    }
}

static void write_skipped(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int reason = SKIP_NONE + 1; reason < SKIP_COUNT; reason++) {
        struct labels labels = label("reason", skip_reason_name((enum skip_reason)reason));
        exposition_count(e, &labels, s->core.status.totals.skipped[reason]);
    }
}

static void write_limited(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (enum prune_kind kind = PRUNE_NEVER; kind < PRUNE_KINDS; kind++) {
        struct labels labels = label("rule", prune_kind_name(kind));
        exposition_count(e, &labels, s->core.status.totals.limited[kind]);
    }
}

static void write_replays(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int loss = 0; loss < LOSS_COUNT; loss++) {
        struct labels labels = label("reason", node_loss_name((enum node_loss)loss));
        exposition_count(e, &labels, s->core.measures.replays[loss]);
    }
}

static void write_spans_dropped(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int drop = 0; drop < TRACE_DROPS; drop++) {
        struct labels labels = label("reason", trace_drop_name((enum trace_drop)drop));
        exposition_count(e, &labels, s->trace.dropped[drop]);
    }
}

// --- shadows. A tenant is a tenant whose answers were compared; without shadows there is none.

static void write_shadow_drops(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int drop = 0; drop < SHADOW_DROPS; drop++) {
        struct labels labels = label("reason", shadow_drop_name((enum shadow_drop)drop));
        exposition_count(e, &labels, s->core.status.shadow.totals.dropped[drop]);
    }
}

static void write_shadow_skips(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int skip = 0; skip < SHADOW_SKIPS; skip++) {
        struct labels labels = label("reason", shadow_skip_name((enum shadow_skip)skip));
        exposition_count(e, &labels, s->core.status.shadow.totals.skipped[skip]);
    }
}

static void write_shadow_waiting(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    exposition_number(e, NULL, s->core.status.shadow.waiting);
}

static struct labels tenant_labels(const struct metrics_snapshot *s, const struct tenant_agreement *tenant)
{
    struct labels labels = label("tenant", tenant->tenant);
    labels_add(&labels, "model_name", s->model_name);
    return labels;
}

// Writes a count at `offset` of the tenant's counts.
static void write_agreement_count(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.status.shadow.n_tenants; i++) {
        const struct tenant_agreement *tenant = &s->core.status.shadow.tenants[i];
        struct labels labels = tenant_labels(s, tenant);
        exposition_count(e, &labels, *(const uint64_t *)value_at(&tenant->counts, metric));
    }
}

static void write_surprise(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.status.shadow.n_tenants; i++) {
        const struct tenant_agreement *tenant = &s->core.status.shadow.tenants[i];
        struct labels labels = tenant_labels(s, tenant);
        exposition_number(e, &labels, tenant->counts.surprise);
    }
}

static void write_lower_bound(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.status.shadow.n_tenants; i++) {
        const struct tenant_agreement *tenant = &s->core.status.shadow.tenants[i];
        struct labels labels = tenant_labels(s, tenant);
        double least = INFINITY;
        for (int k = 0; k < tenant->n_windows; k++)
            if (tenant->windows[k].n) least = fmin(least, tenant->windows[k].lower);
        if (isfinite(least)) exposition_number(e, &labels, least);
    }
}

static void write_fallbacks(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    for (int i = 0; i < s->core.status.shadow.n_tenants; i++) {
        const struct tenant_agreement *tenant = &s->core.status.shadow.tenants[i];
        struct labels labels = tenant_labels(s, tenant);
        int n = 0;
        for (int k = 0; k < tenant->n_windows; k++)
            n += tenant->windows[k].falls_back;
        exposition_number(e, &labels, n);
    }
}

// --- the HTTP server

static void write_responses(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    static const char *const classes[HTTP_STATUS_CLASSES] = {NULL, "1xx", "2xx", "3xx", "4xx", "5xx"};
    for (int i = 2; i < HTTP_STATUS_CLASSES; i++) {
        struct labels labels = label("status", classes[i]);
        exposition_count(e, &labels, s->http.responses[i]);
    }
}

// --- batches

static void write_batches(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    static const char *const states[METRICS_BATCH_STATES] = {"validating", "failed",  "in_progress", "finalizing",
                                                             "completed",  "expired", "cancelling",  "cancelled"};
    for (int i = 0; i < METRICS_BATCH_STATES; i++) {
        struct labels labels = label("state", states[i]);
        exposition_number(e, &labels, (double)s->batch.batches[i]);
    }
}

static void write_batch_requests(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    const struct labels completed = label("result", "completed"), failed = label("result", "failed");
    const struct labels retried = label("result", "retried");
    exposition_count(e, &completed, s->batch.completed);
    exposition_count(e, &failed, s->batch.failed);
    exposition_count(e, &retried, s->batch.retried);
}

// --- constants

static void write_version(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    struct labels labels = label("version", FOREPACK_VERSION);
    labels_add(&labels, "commit", build_commit());
    exposition_number(e, &labels, 1);
}

static void write_model(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s)
{
    struct labels labels = label("model_name", s->model_name);
    exposition_number(e, &labels, 1);
}

// --- the table

#define IN_SNAPSHOT(field)  offsetof(struct metrics_snapshot, field)
#define IN_NODE(field)      offsetof(struct node_measures, field)
#define IN_GPU(field)       offsetof(struct node_gpu, field)
#define IN_POOL(field)      offsetof(struct pool_metrics, field)
#define IN_AGREEMENT(field) offsetof(struct agreement_counts, field)

// clang-format off
const struct metric metrics_table[] = {
    {"forepack:time_to_first_token_seconds", METRIC_HISTOGRAM, "pool, node",
     "Time from a request's arrival to its first token, by the worker group that computed the token.",
     write_node_histogram, IN_NODE(first_token), OF_WORKERS},
    {"forepack:inter_token_latency_seconds", METRIC_HISTOGRAM, "pool, node",
     "Time between two tokens of a request. For tokens delivered together, the first carries the interval and the rest count as 0.",
     write_node_histogram, IN_NODE(inter_token), OF_WORKERS},
    {"forepack:request_time_per_output_token_seconds", METRIC_HISTOGRAM, "",
     "Mean time per token after the first, of answered requests.",
     write_histogram, IN_SNAPSHOT(core.measures.token), 0},
    {"forepack:e2e_request_latency_seconds", METRIC_HISTOGRAM, "",
     "Time from arrival to the last token, of answered requests.",
     write_histogram, IN_SNAPSHOT(core.measures.end_to_end), 0},
    {"forepack:request_queue_time_seconds", METRIC_HISTOGRAM, "",
     "Time for which a request waited in the router for nodes of both pools before its first token.",
     write_histogram, IN_SNAPSHOT(core.measures.queue), 0},
    {"forepack:pack_wait_seconds", METRIC_HISTOGRAM, "",
     "Part of the queue time in which the kept tokens waited for a bin of a worker group.",
     write_histogram, IN_SNAPSHOT(core.measures.pack_wait), 0},
    {"forepack:request_prefill_time_seconds", METRIC_HISTOGRAM, "",
     "Time from dispatch to a worker group to the first token.",
     write_histogram, IN_SNAPSHOT(core.measures.prefill), 0},
    {"forepack:num_requests_running", METRIC_GAUGE, "pool, node",
     "Requests on the node.", write_running, 0, OF_ALL},
    {"forepack:num_requests_waiting", METRIC_GAUGE, "pool",
     "Requests that wait in the router for a node of the pool.", write_waiting, 0, 0},
    {"forepack:speculator_queue_tokens", METRIC_GAUGE, "",
     "Prompt tokens that wait for a speculator.",
     write_int64, IN_SNAPSHOT(core.pools[NODE_SPECULATOR].waiting_rows), 0},
    {"forepack:worker_queue_tokens", METRIC_GAUGE, "",
     "Kept tokens, and generated tokens of replayed requests, that wait for a worker group.",
     write_int64, IN_SNAPSHOT(core.pools[NODE_WORKER].waiting_rows), 0},
    {"forepack:pool_work_seconds", METRIC_GAUGE, "pool",
     "Predicted time until the pool has done the prompts that it holds and that wait for it. Absent while unknown.",
     write_work, 0, 0},
    {"forepack:pool_queue_seconds", METRIC_GAUGE, "pool",
     "Expected time until the requests that wait for the pool now are dispatched to its nodes. Absent while unknown.",
     write_queue_seconds, 0, 0},
    {"forepack:pool_busy_seconds_total", METRIC_COUNTER, "pool",
     "Time that nodes of the pool spent in forward passes, including nodes that are gone.",
     write_pool_seconds, IN_POOL(busy_us), 0},
    {"forepack:pool_attached_seconds_total", METRIC_COUNTER, "pool",
     "Time for which nodes of the pool were attached. The rate of busy seconds over this rate is the utilisation.",
     write_pool_seconds, IN_POOL(attached_us), 0},
    {"forepack:queue_requests", METRIC_GAUGE, "class",
     "Requests of the priority class that are on no worker group.", write_queue_requests, 0, 0},
    {"forepack:queue_tokens", METRIC_GAUGE, "class",
     "Prompt tokens of the requests that queue_requests counts; 4 bytes of a grammar, stop strings or texts to compress count as one.", write_queue_tokens, 0, 0},
    {"forepack:queue_capacity_requests", METRIC_GAUGE, "class",
     "Requests of all classes together at which a request of this class is refused.", write_capacity_requests, 0, 0},
    {"forepack:queue_capacity_tokens", METRIC_GAUGE, "class",
     "Prompt tokens of all classes together at which a request of this class is refused.", write_capacity_tokens, 0, 0},
    {"forepack:kv_cache_usage_perc", METRIC_GAUGE, "pool, node",
     "Share of the node's KV blocks in use, 0 to 1.", write_kv_usage, 0, OF_ALL},
    {"forepack:held_prompts", METRIC_GAUGE, "pool, node",
     "Prompts that the speculator holds to draft their answers.", write_held_prompts, 0, OF_SPECULATORS},
    {"forepack:held_kv_usage_perc", METRIC_GAUGE, "pool, node",
     "Share of the speculator's KV blocks that held prompts use, 0 to 1.", write_held_kv_usage, 0, OF_SPECULATORS},
    {"forepack:prompt_tokens_total", METRIC_COUNTER, "tenant",
     "Prompt tokens of admitted requests.", write_prompt_tokens, 0, 0},
    {"forepack:kept_tokens_total", METRIC_COUNTER, "tenant",
     "Prompt tokens that were kept for prefill.", write_kept_tokens, 0, 0},
    {"forepack:generation_tokens_total", METRIC_COUNTER, "tenant",
     "Tokens generated for clients.", write_output_tokens, 0, 0},
    {"forepack:node_generation_tokens_total", METRIC_COUNTER, "pool, node",
     "Tokens that the worker group sent.", write_node_count, IN_NODE(counts.tokens_out), OF_WORKERS},
    {"forepack:prefix_cache_queries_total", METRIC_COUNTER, "pool, node",
     "Prompt tokens dispatched to the node, which looks them up in its prefix cache.",
     write_node_count, IN_NODE(counts.tokens_in), OF_ALL},
    {"forepack:prefix_cache_hits_total", METRIC_COUNTER, "pool, node",
     "Dispatched prompt tokens that the node found in its prefix cache.", write_node_count, IN_NODE(counts.cached_tokens), OF_ALL},
    {"forepack:num_preemptions_total", METRIC_COUNTER, "pool, node",
     "Sequences whose KV blocks the worker group took away.", write_node_count, IN_NODE(counts.preemptions), OF_WORKERS},
    {"forepack:request_success_total", METRIC_COUNTER, "finished_reason, tenant",
     "Admitted requests that ended, by finish reason.", write_finished, 0, 0},
    {"forepack:request_errors_total", METRIC_COUNTER, "reason",
     "Admitted requests that ended with an error, by its status.", write_errors, 0, 0},
    {"forepack:requests_refused_total", METRIC_COUNTER, "reason",
     "Requests that were not admitted, by the status of the refusal: exhausted for lack of capacity, key_limit for a "
     "limit of the client's API key.", write_refused, 0, 0},
    {"forepack:replays_total", METRIC_COUNTER, "reason",
     "Requests that left a lost worker group, by the cause of the loss.", write_replays, 0, 0},
    {"forepack:preempted_requests_total", METRIC_COUNTER, "",
     "Times that a request left a worker group so that another request got its place.",
     write_count, IN_SNAPSHOT(core.status.totals.preemptions), 0},
    {"forepack:prefill_skipped_total", METRIC_COUNTER, "reason",
     "Requests whose whole prompt was kept.", write_skipped, 0, 0},
    {"forepack:prefill_limited_total", METRIC_COUNTER, "rule",
     "Requests whose prefill options were changed by the rule for pruning of their API key or of the router.",
     write_limited, 0, 0},
    {"forepack:shadow_scored_total", METRIC_COUNTER, "tenant, model_name",
     "Pruned answers of the tenant whose log-probability under the whole prompt was measured (--shadow).",
     write_agreement_count, IN_AGREEMENT(scored), 0},
    {"forepack:shadow_compared_total", METRIC_COUNTER, "tenant, model_name",
     "Scored answers that are greedy, so that they can be compared with the whole prompt's answer.",
     write_agreement_count, IN_AGREEMENT(compared), 0},
    {"forepack:shadow_first_token_agreed_total", METRIC_COUNTER, "tenant, model_name",
     "Compared answers whose first token is that of the whole prompt.",
     write_agreement_count, IN_AGREEMENT(first), 0},
    {"forepack:shadow_answer_agreed_total", METRIC_COUNTER, "tenant, model_name",
     "Compared answers that are those of the whole prompt.", write_agreement_count, IN_AGREEMENT(whole), 0},
    {"forepack:shadow_answer_tokens_total", METRIC_COUNTER, "tenant, model_name",
     "Tokens of the scored answers.", write_agreement_count, IN_AGREEMENT(tokens), 0},
    {"forepack:shadow_surprise_nats_total", METRIC_COUNTER, "tenant, model_name",
     "Negative log-probability of the scored answers under the whole prompt.", write_surprise, 0, 0},
    {"forepack:shadow_agreement_lower_bound", METRIC_GAUGE, "tenant, model_name",
     "Lower bound at 95 % of the share of latest answers that agree, by the measure of --shadow-fallback: the least over "
     "what the tenant's requests ask for. Absent while nothing was compared.", write_lower_bound, 0, 0},
    {"forepack:shadow_fallbacks", METRIC_GAUGE, "tenant, model_name",
     "Keep rates and qualities with which requests of the tenant fall back to the whole prompt now.",
     write_fallbacks, 0, 0},
    {"forepack:shadow_waiting", METRIC_GAUGE, "",
     "Answers that wait to be compared.", write_shadow_waiting, 0, 0},
    {"forepack:shadow_dropped_total", METRIC_COUNTER, "reason",
     "Answers that were chosen and not compared, for lack of idle time or because of a fault.", write_shadow_drops, 0, 0},
    {"forepack:shadow_skipped_total", METRIC_COUNTER, "reason",
     "Answers that were chosen and cannot be compared.", write_shadow_skips, 0, 0},
    {"forepack:scores_reused_total", METRIC_COUNTER, "",
     "Speculated requests whose prompt was not scored again, because its selection was known.",
     write_count, IN_SNAPSHOT(core.status.totals.scores_reused), 0},
    {"forepack:compressions_total", METRIC_COUNTER, "",
     "Requests of /v1/compress and Compress that were answered.", write_count, IN_SNAPSHOT(compressed.requests), 0},
    {"forepack:compress_tokens_before_total", METRIC_COUNTER, "",
     "Tokens of the texts of answered compressions.", write_count, IN_SNAPSHOT(compressed.tokens_before), 0},
    {"forepack:compress_tokens_after_total", METRIC_COUNTER, "",
     "Tokens that remained of the texts of answered compressions.", write_count, IN_SNAPSHOT(compressed.tokens_after), 0},
    {"forepack:draft_tokens_total", METRIC_COUNTER, "",
     "Draft tokens that worker groups verified.", write_count, IN_SNAPSHOT(core.status.totals.draft_tokens), 0},
    {"forepack:draft_accepted_tokens_total", METRIC_COUNTER, "",
     "Verified draft tokens that became tokens of an answer.", write_count, IN_SNAPSHOT(core.status.totals.draft_accepted_tokens), 0},
    {"forepack:frozen_tokens_total", METRIC_COUNTER, "",
     "Kept tokens that earlier turns of a conversation had, with their answers.",
     write_count, IN_SNAPSHOT(core.status.totals.frozen_tokens), 0},
    {"forepack:recalled_tokens_total", METRIC_COUNTER, "",
     "Kept tokens that earlier turns of a conversation pruned.",
     write_count, IN_SNAPSHOT(core.status.totals.recalled_tokens), 0},
    {"forepack:kept_ratio", METRIC_HISTOGRAM, "",
     "Share of its prompt tokens that a speculated request kept.", write_histogram, IN_SNAPSHOT(core.measures.kept), 0},
    {"forepack:keep_rate", METRIC_HISTOGRAM, "",
     "Keep rate that a speculator chose for a request with a quality, or for the request whose score it reuses; 1: all tokens.",
     write_histogram, IN_SNAPSHOT(core.measures.keep_rate), 0},
    {"forepack:speculator_score_seconds", METRIC_HISTOGRAM, "pool, node",
     "Time from dispatch to a speculator to its answer.", write_node_histogram, IN_NODE(score), OF_SPECULATORS},
    {"forepack:pack_bins_total", METRIC_COUNTER, "pool, node",
     "Bins dispatched to the node.", write_node_count, IN_NODE(counts.bins), OF_ALL},
    {"forepack:pack_fill_ratio", METRIC_HISTOGRAM, "pool, node",
     "Rows of a bin over the token budget of its node.", write_node_histogram, IN_NODE(fill), OF_ALL},
    {"forepack:pack_seconds", METRIC_HISTOGRAM, "pool",
     "Time that the router took to plan a bin.", write_plan, 0, 0},
    {"forepack:forward_pass_seconds", METRIC_HISTOGRAM, "pool, node",
     "Duration of the forward passes that the node reports, in one stage of a pipeline. The rate of its sum is the node's utilisation.",
     write_node_histogram, IN_NODE(pass), OF_ALL},
    {"forepack:forward_pass_latency_seconds", METRIC_HISTOGRAM, "pool, node",
     "Time from the start of a forward pass to its results, through all stages of a pipeline.",
     write_node_histogram, IN_NODE(latency), OF_WORKERS},
    {"forepack:gpu_healthy", METRIC_GAUGE, "pool, node, rank",
     "1, or 0 while the rank's GPU is in trouble, which makes the node leave.", write_gpu_healthy, 0, 0},
    {"forepack:gpu_temperature_celsius", METRIC_GAUGE, "pool, node, rank",
     "Temperature of the rank's GPU.", write_gpu_temperature, 0, 0},
    {"forepack:gpu_memory_used_bytes", METRIC_GAUGE, "pool, node, rank",
     "Memory of the rank's GPU in use by all processes.", write_gpu_memory_used, 0, 0},
    {"forepack:gpu_memory_total_bytes", METRIC_GAUGE, "pool, node, rank",
     "Memory of the rank's GPU.", write_gpu_memory_total, 0, 0},
    {"forepack:gpu_throttled_seconds_total", METRIC_COUNTER, "pool, node, rank, reason",
     "Time for which the GPU had lower clocks for this reason. Several reasons may apply at the same time.",
     write_gpu_throttled, 0, 0},
    {"forepack:gpu_ecc_corrected_total", METRIC_COUNTER, "pool, node, rank",
     "Memory errors that ECC corrected, since the driver was loaded.", write_gpu_ecc, IN_GPU(ecc_corrected), 0},
    {"forepack:gpu_ecc_uncorrected_total", METRIC_COUNTER, "pool, node, rank",
     "Memory errors that ECC could not correct, since the driver was loaded.",
     write_gpu_ecc, IN_GPU(ecc_uncorrected), 0},
    {"forepack:gpu_xid_errors_total", METRIC_COUNTER, "pool, node, rank",
     "Xids: errors of the GPU that the driver reported since the rank started.",
     write_gpu_count, IN_GPU(xid_errors), 0},
    {"forepack:gpu_last_xid", METRIC_GAUGE, "pool, node, rank",
     "Number of the last Xid of the rank's GPU. Absent while there was none.", write_gpu_last_xid, 0, 0},
    {"forepack:gpu_drains_total", METRIC_COUNTER, "",
     "Nodes that left because a GPU was in trouble.", write_count, IN_SNAPSHOT(core.measures.gpu_drains), 0},
    {"forepack:nodes", METRIC_GAUGE, "role, state",
     "Attached nodes, and nodes that load their weights.", write_nodes, 0, 0},
    {"forepack:nodes_expected", METRIC_GAUGE, "role",
     "Nodes that should be attached: --expect-workers and --expect-speculators. 0: no number is expected.",
     write_expected_nodes, 0, 0},
    {"forepack:certificate_expiry_time_seconds", METRIC_GAUGE, "option",
     "Time at which the first certificate of the file that the option names expires, in seconds since 1970.",
     write_certificates, 0, 0},
    {"forepack:node_ejections_total", METRIC_COUNTER, "",
     "Times that a node was ejected because it hung or was slow.",
     write_count, IN_SNAPSHOT(core.status.ejections), 0},
    {"forepack:node_hangs_total", METRIC_COUNTER, "",
     "Times that a node with work made no progress.", write_count, IN_SNAPSHOT(core.status.hangs), 0},
    {"forepack:ready", METRIC_GAUGE, "",
     "1 while a new request would be served.", write_bool, IN_SNAPSHOT(core.status.ready), 0},
    {"forepack:draining", METRIC_GAUGE, "",
     "1 while the router shuts down.", write_bool, IN_SNAPSHOT(core.status.draining), 0},
    {"forepack:event_backlog", METRIC_GAUGE, "",
     "Events that wait for the router's scheduling thread.", write_int64, IN_SNAPSHOT(event_backlog), 0},
    {"forepack:tokenise_waiting", METRIC_GAUGE, "",
     "Messages that wait to be tokenised.", write_int64, IN_SNAPSHOT(tokenise_waiting), 0},
    {"forepack:log_lines_dropped_total", METRIC_COUNTER, "",
     "Lines of the router's log that were dropped because standard error did not take them.",
     write_count, IN_SNAPSHOT(log_lines_dropped), 0},
    {"forepack:peer_memory_bytes", METRIC_GAUGE, "budget",
     "Memory held for connections: of peers that still have to show a key or token (keyless), and of all others (peers).",
     write_peer_memory, 0, 0},
    {"forepack:peer_memory_limit_bytes", METRIC_GAUGE, "budget",
     "Limits of the memory held for connections: --max-keyless-mb and --max-peers-mb.", write_peer_limits, 0, 0},
    {"forepack:peers_closed_total", METRIC_COUNTER, "budget",
     "Connections closed because a budget of memory was exceeded and they held most of it.", write_peers_closed, 0, 0},
    {"forepack:grpc_connections_delayed_total", METRIC_COUNTER, "",
     "Times that a gRPC connection without answers waited before it could open more calls.",
     write_count, IN_SNAPSHOT(connections_delayed), 0},
    {"forepack:trace_spans_total", METRIC_COUNTER, "",
     "Spans that the collector of --otlp-endpoint took.", write_count, IN_SNAPSHOT(trace.sent), 0},
    {"forepack:trace_spans_dropped_total", METRIC_COUNTER, "reason",
     "Spans that were dropped: the queue was full, or the collector was unreachable or refused them.",
     write_spans_dropped, 0, 0},
    {"forepack:http_connections", METRIC_GAUGE, "",
     "Open connections of HTTP clients.", write_int64, IN_SNAPSHOT(http.connections), 0},
    {"forepack:http_connections_accepted_total", METRIC_COUNTER, "",
     "Connections of HTTP clients that were accepted.", write_count, IN_SNAPSHOT(http.accepted), 0},
    {"forepack:http_connections_refused_total", METRIC_COUNTER, "",
     "New connections that were closed because a limit was reached.", write_count, IN_SNAPSHOT(http.refused), 0},
    {"forepack:http_tls_handshakes_failed_total", METRIC_COUNTER, "",
     "TLS handshakes of HTTP clients that failed or took too long.",
     write_count, IN_SNAPSHOT(http.handshakes_failed), 0},
    {"forepack:http_exchanges", METRIC_GAUGE, "",
     "HTTP requests whose response has not ended.", write_int64, IN_SNAPSHOT(http.exchanges), 0},
    {"forepack:http_responses_total", METRIC_COUNTER, "status",
     "HTTP responses that were begun, by the class of their status.", write_responses, 0, 0},
    {"forepack:http_received_bytes_total", METRIC_COUNTER, "",
     "Bytes of HTTP heads and bodies from clients, without TLS.", write_count, IN_SNAPSHOT(http.received_bytes), 0},
    {"forepack:http_sent_bytes_total", METRIC_COUNTER, "",
     "Bytes of HTTP heads and bodies to clients, without TLS.", write_count, IN_SNAPSHOT(http.sent_bytes), 0},
    {"forepack:batch_files", METRIC_GAUGE, "",
     "Files of --batch-dir.", write_int64, IN_SNAPSHOT(batch.files), 0},
    {"forepack:batch_bytes", METRIC_GAUGE, "",
     "Bytes of the files of --batch-dir, and of results of running batches.", write_int64, IN_SNAPSHOT(batch.bytes), 0},
    {"forepack:batches", METRIC_GAUGE, "state",
     "Batches of the last 30 days.", write_batches, 0, 0},
    {"forepack:batch_requests_in_flight", METRIC_GAUGE, "",
     "Requests of batches that were started and have no answer.", write_int64, IN_SNAPSHOT(batch.in_flight), 0},
    {"forepack:batch_requests_total", METRIC_COUNTER, "result",
     "Requests of batches that ended: with an answer, with an error, or refused for now and started again.",
     write_batch_requests, 0, 0},
    {"forepack:build_info", METRIC_GAUGE, "version, commit",
     "Always 1.", write_version, 0, 0},
    {"forepack:model_info", METRIC_GAUGE, "model_name",
     "Always 1.", write_model, 0, 0},
    {"process_cpu_seconds_total", METRIC_COUNTER, "",
     "CPU time of the router.", write_real, IN_SNAPSHOT(process.cpu_s), 0},
    {"process_resident_memory_bytes", METRIC_GAUGE, "",
     "Resident memory of the router.", write_real, IN_SNAPSHOT(process.resident_bytes), 0},
    {"process_virtual_memory_bytes", METRIC_GAUGE, "",
     "Virtual memory of the router.", write_real, IN_SNAPSHOT(process.virtual_bytes), 0},
    {"process_open_fds", METRIC_GAUGE, "",
     "Open file descriptors.", write_real, IN_SNAPSHOT(process.open_fds), 0},
    {"process_max_fds", METRIC_GAUGE, "",
     "File descriptors that may be open.", write_real, IN_SNAPSHOT(process.max_fds), 0},
    {"process_start_time_seconds", METRIC_GAUGE, "",
     "Start of the router, in seconds since 1970.", write_real, IN_SNAPSHOT(process.start_s), 0},
    {0},
};
// clang-format on
