// SPDX-License-Identifier: Apache-2.0
// forepack status: shows the state of a cluster, as text or as one JSON object.
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/plain_text.h"
#include "cli/remote.h"
#include "cli/status.h"
#include "lib/base/version.h"

static struct {
    struct remote remote;
    bool json;
} o;

static const struct option options[] = {
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object"},
    {0},
};

static json_t *bins_json(const Forepack__V1__PackInfo *m)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:f}", "bins", (json_int_t)m->bins, "items", (json_int_t)m->items, "tokens",
                     (json_int_t)m->tokens, "capacity_tokens", (json_int_t)m->capacity_tokens, "fill_ratio",
                     m->capacity_tokens ? (double)m->tokens / (double)m->capacity_tokens : 0.0);
}

// Adds the calibration of a speculator. The fingerprint is text, because many JSON readers cannot represent 64-bit
// numbers exactly.
static void calibration_add(const Forepack__V1__NodeInfo *m, json_t *node)
{
    char fingerprint[24];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, m->calibrated_for);
    json_object_set_new(node, "calibrated_for", m->calibrated_for ? json_string(fingerprint) : json_null());
    json_object_set_new(node, "calibration_unused",
                        *m->calibration_unused ? json_string(m->calibration_unused) : json_null());
    json_object_set_new(node, "quality_scores", json_integer((json_int_t)m->quality_scores));
    json_object_set_new(node, "quality_keep_rate", m->quality_scores ? json_real(m->quality_keep_rate) : json_null());
}

static json_t *pass_classes_json(const Forepack__V1__NodeInfo *m)
{
    json_t *classes = json_array();
    for (size_t i = 0; i < m->n_pass_classes; i++) {
        const Forepack__V1__PassClass *class = m->pass_classes[i];
        json_t *deviations = json_array();
        for (size_t k = 0; k < class->n_deviations; k++)
            json_array_append_new(deviations, json_integer((json_int_t) class->deviations[k]));
        json_array_append_new(classes,
                              json_pack("{s:b,s:I,s:I,s:I,s:f,s:o}", "prompts", class->prompts, "passes",
                                        (json_int_t) class->passes, "rows", (json_int_t) class->rows, "pairs",
                                        (json_int_t) class->pairs, "s", class->seconds, "deviations", deviations));
    }
    return classes;
}

static json_t *node_json(const Forepack__V1__NodeInfo *m)
{
    json_t *node = json_pack(
        "{s:s,s:s,s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:f,s:I,s:f,s:o}",
        "node_id", m->node_id, "role", m->role, "state", m->state, "host", m->host, "ranks", (json_int_t)m->ranks,
        "dtype", m->dtype, "token_budget", (json_int_t)m->token_budget, "kv_blocks", (json_int_t)m->kv_blocks,
        "kv_blocks_free", (json_int_t)m->kv_blocks_free, "running", (json_int_t)m->running, "tokens_in",
        (json_int_t)m->tokens_in, "cached_tokens", (json_int_t)m->cached_tokens, "tokens_out",
        (json_int_t)m->tokens_out, "attached_s", m->attached_s, "pass_fixed_us", m->pass_fixed_us, "pass_row_us",
        m->pass_row_us, "pass_pair_us", m->pass_pair_us, "pass_noise", m->pass_noise, "passes", (json_int_t)m->passes,
        "pass_rows", (json_int_t)m->pass_rows, "pass_pairs", (json_int_t)m->pass_pairs, "pass_s", m->pass_s,
        "pass_gap_count", (json_int_t)m->pass_gap_count, "pass_gap_s", m->pass_gap_s, "pass_classes",
        pass_classes_json(m));
    json_object_set_new(node, "stages", json_integer(m->stages ? m->stages : 1)); // 0: from an older router
    json_object_set_new(node, "cores", *m->cores ? json_string(m->cores) : json_null());
    json_object_set_new(node, "cores_decided_by", *m->cores ? json_string(m->cores_decided_by) : json_null());
    if (strcmp(m->role, "speculator") != 0) return node;
    json_object_set_new(node, "held_prompts", json_integer((json_int_t)m->held_prompts));
    json_object_set_new(node, "held_kv_blocks", json_integer((json_int_t)m->held_kv_blocks));
    calibration_add(m, node);
    return node;
}

static json_t *loading_json(const Forepack__V1__ClusterInfo *m)
{
    json_t *loading = json_array();
    for (size_t i = 0; i < m->n_loading; i++) {
        const Forepack__V1__LoadingNode *n = m->loading[i];
        json_array_append_new(loading, json_pack("{s:s,s:s,s:s,s:I,s:I,s:f}", "node_id", n->node_id, "role", n->role,
                                                 "host", n->host, "ranks", (json_int_t)n->ranks, "percent",
                                                 (json_int_t)n->percent, "loading_s", n->loading_s));
    }
    return loading;
}

// Returns null if the time is not known.
static json_t *seconds_json(bool known, double seconds)
{
    return known ? json_real(seconds) : json_null();
}

static json_t *pools_json(const Forepack__V1__ClusterInfo *m)
{
    json_t *pools = json_object();
    for (size_t i = 0; i < m->n_pools; i++) {
        const Forepack__V1__PoolInfo *p = m->pools[i];
        json_object_set_new(
            pools, p->role,
            json_pack("{s:I,s:I,s:I,s:I,s:o,s:o,s:f,s:f}", "nodes", (json_int_t)p->nodes, "waiting",
                      (json_int_t)p->waiting, "running", (json_int_t)p->running, "queue_tokens",
                      (json_int_t)p->queue_tokens, "queue_s", seconds_json(p->queue_s_known_case, p->queue_s), "work_s",
                      seconds_json(p->work_s_known_case, p->work_s), "busy_s", p->busy_s, "attached_s", p->attached_s));
    }
    return pools;
}

static json_t *classes_json(const Forepack__V1__QueueInfo *m)
{
    json_t *classes = json_object();
    for (size_t i = 0; i < m->n_classes; i++) {
        const Forepack__V1__QueueClass *k = m->classes[i];
        json_object_set_new(classes, k->name,
                            json_pack("{s:I,s:I,s:I,s:I}", "waiting", (json_int_t)k->waiting, "waiting_tokens",
                                      (json_int_t)k->waiting_tokens, "capacity_requests",
                                      (json_int_t)k->capacity_requests, "capacity_tokens",
                                      (json_int_t)k->capacity_tokens));
    }
    return classes;
}

static json_t *skipped_json(const Forepack__V1__Totals *m)
{
    json_t *skipped = json_object();
    for (size_t i = 0; i < m->n_prefill_skipped; i++)
        json_object_set_new(skipped, m->prefill_skipped[i]->reason,
                            json_integer((json_int_t)m->prefill_skipped[i]->requests));
    return skipped;
}

static json_t *agreements_json(const Forepack__V1__ClusterInfo *m)
{
    json_t *agreements = json_array();
    for (size_t i = 0; i < m->n_agreements; i++) {
        const Forepack__V1__AgreementInfo *a = m->agreements[i];
        json_array_append_new(agreements, json_pack("{s:s,s:f,s:f,s:I,s:I,s:I,s:f,s:f,s:b}", "tenant", a->tenant,
                                                    "quality", a->quality, "keep_rate", a->keep_rate, "compared",
                                                    (json_int_t)a->compared, "first_token", (json_int_t)a->first_token,
                                                    "answer", (json_int_t)a->answer, "lower_bound", a->lower_bound,
                                                    "promise", a->promise, "falls_back", (int)a->falls_back));
    }
    return agreements;
}

static json_t *full_json(const Forepack__V1__ClusterInfo *m)
{
    json_t *nodes = json_array();
    for (size_t i = 0; i < m->n_nodes; i++)
        json_array_append_new(nodes, node_json(m->nodes[i]));
    const Forepack__V1__QueueInfo *q = m->queue;
    const Forepack__V1__Totals *t = m->totals;
    json_t *queue = json_pack("{s:I,s:I,s:I,s:I,s:I,s:o}", "waiting", (json_int_t)q->waiting, "waiting_tokens",
                              (json_int_t)q->waiting_tokens, "running", (json_int_t)q->running, "capacity_requests",
                              (json_int_t)q->capacity_requests, "capacity_tokens", (json_int_t)q->capacity_tokens,
                              "classes", classes_json(q));
    json_t *totals =
        json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "requests",
                  (json_int_t)t->requests, "done", (json_int_t)t->done, "failed", (json_int_t)t->failed, "cancelled",
                  (json_int_t)t->cancelled, "refused", (json_int_t)t->refused, "replays", (json_int_t)t->replays,
                  "degraded", (json_int_t)t->degraded, "scores_reused", (json_int_t)t->scores_reused, "prompt_tokens",
                  (json_int_t)t->prompt_tokens, "kept_tokens", (json_int_t)t->kept_tokens, "completion_tokens",
                  (json_int_t)t->completion_tokens, "node_ejections", (json_int_t)t->node_ejections, "node_hangs",
                  (json_int_t)t->node_hangs, "draft_tokens", (json_int_t)t->draft_tokens, "draft_accepted_tokens",
                  (json_int_t)t->draft_accepted_tokens, "frozen_tokens", (json_int_t)t->frozen_tokens,
                  "recalled_tokens", (json_int_t)t->recalled_tokens, "prefill_skipped", skipped_json(t));
    return json_pack("{s:b,s:b,s:s,s:f,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "ready", (int)m->ready, "draining",
                     (int)m->draining, "version", m->version, "uptime_s", m->uptime_s, "nodes", nodes, "loading",
                     loading_json(m), "pools", pools_json(m), "queue", queue, "score_bins", bins_json(m->score_bins),
                     "prefill_bins", bins_json(m->prefill_bins), "totals", totals, "agreements", agreements_json(m));
}

// Returns the part of the state that keys other than an operator's may see.
static json_t *limited_json(const Forepack__V1__ClusterInfo *m)
{
    return json_pack("{s:b,s:b,s:s,s:b}", "ready", (int)m->ready, "draining", (int)m->draining, "version", m->version,
                     "limited", 1);
}

static enum status check_complete(const Forepack__V1__ClusterInfo *m, const char *server)
{
    if (m->limited || (m->queue && m->totals && m->score_bins && m->prefill_bins)) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "%s sent an incomplete answer: its version must be %s", server,
                       FOREPACK_VERSION);
}

enum status status_json(const Forepack__V1__ClusterInfo *m, const char *server, json_t **object_p)
{
    TRY(check_complete(m, server));
    *object_p = m->limited ? limited_json(m) : full_json(m);
    return STATUS_OK;
}

// --- text

enum { LABEL_WIDTH = 15, NUMBER_WIDTH = 13 };

static void print_number(const char *label, uint64_t number, const char *explanation)
{
    printf("  %-*s %*llu%s%s\n", LABEL_WIDTH, label, NUMBER_WIDTH, (unsigned long long)number, *explanation ? " " : "",
           explanation);
}

static void print_requests(const char *label, uint64_t requests, uint64_t tokens)
{
    printf("  %-*s %*llu requests, %llu tokens\n", LABEL_WIDTH, label, NUMBER_WIDTH, (unsigned long long)requests,
           (unsigned long long)tokens);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void print_state(const Forepack__V1__ClusterInfo *m)
{
    long long s = (long long)m->uptime_s;
    printf("%s%s, version %s, up %lld d %02lld:%02lld:%02lld\n", m->ready ? "ready" : "not ready",
           m->draining ? ", draining" : "", m->version, s / 86400, s / 3600 % 24, s / 60 % 60, s % 60);
}

static int node_name_width(const Forepack__V1__ClusterInfo *m)
{
    int width = LABEL_WIDTH;
    for (size_t i = 0; i < m->n_nodes; i++) {
        int length = (int)strlen(m->nodes[i]->node_id);
        if (length > width) width = length;
    }
    return width;
}

static void print_text(const char *text, int width)
{
    plain_text_print(stdout, text, INT_MAX, width);
    putchar(' ');
}

// Begins a line about the node.
static void print_name(const Forepack__V1__NodeInfo *n, int width)
{
    printf("  ");
    print_text(n->node_id, width);
}

static void print_node(const Forepack__V1__NodeInfo *n, int name_width)
{
    char kv[32];
    snprintf(kv, sizeof kv, "%u of %u", n->kv_blocks_free, n->kv_blocks);
    print_name(n, name_width);
    print_text(n->role, 10);
    print_text(n->state, 8);
    printf("%5u %6u ", n->ranks, n->stages ? n->stages : 1);
    print_text(n->dtype, 5);
    printf("%7u %16s %13llu %13llu %13llu\n", n->running, kv, (unsigned long long)n->tokens_in,
           (unsigned long long)n->cached_tokens, (unsigned long long)n->tokens_out);
}

static void print_cost(const Forepack__V1__NodeInfo *n, int name_width)
{
    print_name(n, name_width);
    printf("%.0f us + %.3g us per row + %.3g us per attention pair\n", n->pass_fixed_us, n->pass_row_us,
           n->pass_pair_us);
}

// Prints the cores of the nodes that compute on the CPU.
static void print_cores(const Forepack__V1__ClusterInfo *m, int name_width)
{
    bool any = false;
    for (size_t i = 0; i < m->n_nodes; i++) {
        const Forepack__V1__NodeInfo *n = m->nodes[i];
        if (!*n->cores) continue;
        if (!any) printf("\ncores of the compute threads, and what decided\n");
        any = true;
        print_name(n, name_width);
        plain_text_print(stdout, n->cores, INT_MAX, 0);
        printf(" (");
        plain_text_print(stdout, n->cores_decided_by, INT_MAX, 0);
        printf(")\n");
    }
}

static void print_calibration(const Forepack__V1__NodeInfo *n, int name_width)
{
    print_name(n, name_width);
    if (!n->calibrated_for)
        printf("none: a quality keeps every token (forepack calibrate)\n");
    else if (*n->calibration_unused)
        printf("not used: %s; a quality keeps every token\n", n->calibration_unused);
    else if (!n->quality_scores)
        printf("for the main model %016" PRIx64 "; no keep rate chosen yet\n", n->calibrated_for);
    else
        printf("for the main model %016" PRIx64 "; mean keep rate %.2f of %llu prompts\n", n->calibrated_for,
               n->quality_keep_rate, (unsigned long long)n->quality_scores);
}

static void print_calibrations(const Forepack__V1__ClusterInfo *m, int name_width)
{
    bool any = false;
    for (size_t i = 0; i < m->n_nodes; i++) {
        if (strcmp(m->nodes[i]->role, "speculator") != 0) continue;
        if (!any) printf("\ncalibration of the speculators\n");
        any = true;
        print_calibration(m->nodes[i], name_width);
    }
}

static void print_held(const Forepack__V1__ClusterInfo *m, int name_width)
{
    bool any = false;
    for (size_t i = 0; i < m->n_nodes; i++) {
        const Forepack__V1__NodeInfo *n = m->nodes[i];
        if (strcmp(n->role, "speculator") != 0) continue;
        if (!any) printf("\nprompts that speculators hold for drafts\n");
        any = true;
        print_name(n, name_width);
        printf("%u in %u of %u KV blocks\n", n->held_prompts, n->held_kv_blocks, n->kv_blocks);
    }
}

static void print_loading(const Forepack__V1__ClusterInfo *m)
{
    if (m->n_loading) printf("\nnodes that load their weights and take no requests yet\n");
    for (size_t i = 0; i < m->n_loading; i++) {
        const Forepack__V1__LoadingNode *n = m->loading[i];
        printf("  ");
        print_text(n->node_id, LABEL_WIDTH);
        print_text(n->role, 10);
        printf("loading %u %% after %.0f s on ", n->percent, n->loading_s);
        plain_text_print(stdout, n->host, INT_MAX, 0);
        putchar('\n');
    }
}

static void print_nodes(const Forepack__V1__ClusterInfo *m)
{
    int name_width = node_name_width(m);
    printf("\nnodes\n");
    if (!m->n_nodes) {
        printf("  none attached\n");
        return;
    }
    printf("  %-*s %-10s %-8s %5s %6s %-5s %7s %16s %13s %13s %13s\n", name_width, "name", "role", "state", "ranks",
           "stages", "dtype", "running", "KV blocks free", "prompt tokens", "cached tokens", "output tokens");
    for (size_t i = 0; i < m->n_nodes; i++)
        print_node(m->nodes[i], name_width);
    printf("\nmeasured time of a forward pass\n");
    for (size_t i = 0; i < m->n_nodes; i++)
        print_cost(m->nodes[i], name_width);
    print_cores(m, name_width);
    print_calibrations(m, name_width);
    print_held(m, name_width);
}

static void print_seconds(bool known, double seconds)
{
    char text[32] = "?";
    if (known) snprintf(text, sizeof text, "%.1f s", seconds);
    printf(" %14s", text);
}

static void print_pools(const Forepack__V1__ClusterInfo *m)
{
    printf("\npools\n  %-*s %5s %7s %7s %13s %14s %14s %9s\n", LABEL_WIDTH, "role", "nodes", "running", "waiting",
           "queue tokens", "time of queue", "and on nodes", "busy");
    for (size_t i = 0; i < m->n_pools; i++) {
        const Forepack__V1__PoolInfo *p = m->pools[i];
        printf("  %-*s %5u %7u %7u %13llu", LABEL_WIDTH, p->role, p->nodes, p->running, p->waiting,
               (unsigned long long)p->queue_tokens);
        print_seconds(p->queue_s_known_case, p->queue_s);
        print_seconds(p->work_s_known_case, p->work_s);
        printf(" %7.1f %%\n", p->attached_s > 0 ? 100 * p->busy_s / p->attached_s : 0.0);
    }
}

static void print_queue(const Forepack__V1__QueueInfo *q)
{
    printf("\nqueue\n");
    print_requests("waiting", q->waiting, q->waiting_tokens);
    for (size_t i = 0; i < q->n_classes; i++) {
        char label[32];
        snprintf(label, sizeof label, "  %s", q->classes[i]->name);
        print_requests(label, q->classes[i]->waiting, q->classes[i]->waiting_tokens);
    }
    print_requests("capacity", q->capacity_requests, q->capacity_tokens);
    for (size_t i = 0; i < q->n_classes; i++) {
        char label[32];
        snprintf(label, sizeof label, "  %s", q->classes[i]->name);
        print_requests(label, q->classes[i]->capacity_requests, q->classes[i]->capacity_tokens);
    }
    print_number("running", q->running, "requests");
}

static void print_bins(const char *label, const Forepack__V1__PackInfo *m)
{
    printf("  %-*s %*llu bins, %llu prompts, %.0f %% full\n", LABEL_WIDTH, label, NUMBER_WIDTH,
           (unsigned long long)m->bins, (unsigned long long)m->items, percent(m->tokens, m->capacity_tokens));
}

static void print_totals(const Forepack__V1__Totals *t)
{
    printf("\nrequests since the router started\n");
    print_number("received", t->requests, "");
    print_number("done", t->done, "");
    print_number("failed", t->failed, "");
    print_number("cancelled", t->cancelled, "");
    print_number("refused", t->refused, "");
    print_number("replays", t->replays, "moved to another worker group");
    print_number("degraded", t->degraded, "prefilled whole because no speculator could score them");
    if (t->scores_reused) print_number("scores reused", t->scores_reused, "prompts that had been scored before");
    if (t->draft_tokens) {
        print_number("drafted", t->draft_tokens, "tokens that worker groups verified");
        print_number("accepted", t->draft_accepted_tokens, "of these, tokens of an answer");
    }
    if (t->frozen_tokens) {
        print_number("frozen", t->frozen_tokens, "kept tokens that earlier turns of a conversation had");
        print_number("recalled", t->recalled_tokens, "kept tokens that earlier turns of a conversation pruned");
    }
    if (t->node_hangs) print_number("node hangs", t->node_hangs, "a node with work made no progress");
    if (t->node_ejections)
        print_number("node ejections", t->node_ejections, "nodes that hung or were slow got no work");
    const char *label = "not speculated";
    for (size_t i = 0; i < t->n_prefill_skipped; i++) {
        if (!t->prefill_skipped[i]->requests) continue;
        print_number(label, t->prefill_skipped[i]->requests, t->prefill_skipped[i]->reason);
        label = "";
    }
    printf("\ntokens since the router started\n");
    print_number("prompt", t->prompt_tokens, "");
    print_number("kept", t->kept_tokens, "of the prompt tokens");
    print_number("output", t->completion_tokens, "");
}

static void print_agreements(const Forepack__V1__ClusterInfo *m)
{
    if (m->n_agreements) printf("\nagreement of the latest pruned answers with the whole prompt\n");
    for (size_t i = 0; i < m->n_agreements; i++) {
        const Forepack__V1__AgreementInfo *a = m->agreements[i];
        printf("  ");
        print_text(*a->tenant ? a->tenant : "no tenant", LABEL_WIDTH);
        printf("%s %g: %u answers, %.1f %% the same, %.1f %% the same first token",
               a->quality > 0 ? "quality" : "keep rate", a->quality > 0 ? a->quality : a->keep_rate, a->compared,
               percent(a->answer, a->compared), percent(a->first_token, a->compared));
        if (a->promise > 0) printf("; shown %.3f of %g", a->lower_bound, a->promise);
        printf("%s\n", a->falls_back ? "; falls back to the whole prompt" : "");
    }
}

static void status_print_text(const Forepack__V1__ClusterInfo *m)
{
    print_state(m);
    print_nodes(m);
    print_loading(m);
    print_pools(m);
    print_queue(m->queue);
    printf("\nbins since the router started\n");
    print_bins("score", m->score_bins);
    print_bins("prefill", m->prefill_bins);
    print_agreements(m);
    print_totals(m->totals);
}

static enum status status_print(const Forepack__V1__ClusterInfo *m)
{
    json_t *object;
    TRY(check_complete(m, o.remote.server));
    if (o.json && status_json(m, o.remote.server, &object) == STATUS_OK)
        report_json(object);
    else if (m->limited)
        printf("%s%s, version %s (more is shown to an operator's API key)\n", m->ready ? "ready" : "not ready",
               m->draining ? ", draining" : "", m->version);
    else
        status_print_text(m);
    return STATUS_OK;
}

int command_status(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack status [--server HOST:PORT] [--json]\nShows the nodes, queue, bins and totals of a cluster.",
        argc, argv, NULL);
    rpc_init();
    Forepack__V1__GetClusterInfoRequest request = FOREPACK__V1__GET_CLUSTER_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    enum status status = remote_call(&o.remote, "/forepack.v1.Inference/GetClusterInfo", &request.base,
                                     &forepack__v1__cluster_info__descriptor, &answer);
    if (status == STATUS_OK) {
        status = status_print((const void *)answer);
        protobuf_c_message_free_unpacked(answer, NULL);
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    options_free(options);
    return code;
}
