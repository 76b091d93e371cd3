// SPDX-License-Identifier: Apache-2.0
// forepack status: one look at a cluster, for people or as JSON.
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/remote.h"

static struct {
    char *server;
    bool json;
} o;

static const struct option options[] = {
    {.name = "server",
     .type = OPTION_STRING,
     .value = &o.server,
     .default_text = SERVER_DEFAULT,
     .help = "host:port of the router"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object"},
    {0},
};

static json_t *bins_json(const Forepack__V1__PackInfo *m)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:f}", "bins", (json_int_t)m->bins, "items", (json_int_t)m->items, "tokens",
                     (json_int_t)m->tokens, "capacity_tokens", (json_int_t)m->capacity_tokens, "fill_ratio",
                     m->capacity_tokens ? (double)m->tokens / (double)m->capacity_tokens : 0.0);
}

static json_t *node_json(const Forepack__V1__NodeInfo *m)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f}", "node_id", m->node_id,
                     "role", m->role, "state", m->state, "host", m->host, "ranks", (json_int_t)m->ranks, "dtype",
                     m->dtype, "token_budget", (json_int_t)m->token_budget, "kv_blocks", (json_int_t)m->kv_blocks,
                     "kv_blocks_free", (json_int_t)m->kv_blocks_free, "running", (json_int_t)m->running, "tokens_in",
                     (json_int_t)m->tokens_in, "cached_tokens", (json_int_t)m->cached_tokens, "tokens_out",
                     (json_int_t)m->tokens_out, "attached_s", m->attached_s, "pass_fixed_us", m->pass_fixed_us,
                     "pass_row_us", m->pass_row_us, "pass_pair_us", m->pass_pair_us);
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

static void print_json(const Forepack__V1__ClusterInfo *m)
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
    json_t *totals = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "requests", (json_int_t)t->requests, "done",
        (json_int_t)t->done, "failed", (json_int_t)t->failed, "cancelled", (json_int_t)t->cancelled, "refused",
        (json_int_t)t->refused, "replays", (json_int_t)t->replays, "degraded", (json_int_t)t->degraded, "prompt_tokens",
        (json_int_t)t->prompt_tokens, "kept_tokens", (json_int_t)t->kept_tokens, "completion_tokens",
        (json_int_t)t->completion_tokens, "prefill_skipped", skipped_json(t));
    json_t *object =
        json_pack("{s:b,s:b,s:s,s:f,s:o,s:o,s:o,s:o,s:o}", "ready", (int)m->ready, "draining", (int)m->draining,
                  "version", m->version, "uptime_s", m->uptime_s, "nodes", nodes, "queue", queue, "score_bins",
                  bins_json(m->score_bins), "prefill_bins", bins_json(m->prefill_bins), "totals", totals);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(object);
}

static void print_bins(const char *name, const Forepack__V1__PackInfo *m)
{
    printf("%-14s %llu bins, %llu prompts, %.0f %% full\n", name, (unsigned long long)m->bins,
           (unsigned long long)m->items,
           m->capacity_tokens ? 100.0 * (double)m->tokens / (double)m->capacity_tokens : 0.0);
}

static void print_table(const Forepack__V1__ClusterInfo *m)
{
    printf("%s%s, version %s, up %.0f s\n\n", m->ready ? "ready" : "not ready", m->draining ? ", draining" : "",
           m->version, m->uptime_s);
    printf("%-28s %-10s %-9s %5s %5s %7s %13s %12s %12s %12s  %s\n", "node", "role", "state", "ranks", "dtype",
           "running", "kv free/all", "tokens in", "cached", "tokens out", "pass us = a + b rows + c pairs");
    for (size_t i = 0; i < m->n_nodes; i++) {
        const Forepack__V1__NodeInfo *n = m->nodes[i];
        char kv[32];
        snprintf(kv, sizeof kv, "%u/%u", n->kv_blocks_free, n->kv_blocks);
        char cost[64] = "not known yet";
        if (n->pass_fixed_us + n->pass_row_us + n->pass_pair_us > 0) {
            snprintf(cost, sizeof cost, "%.0f + %.3g + %.3g", n->pass_fixed_us, n->pass_row_us, n->pass_pair_us);
        }
        printf("%-28s %-10s %-9s %5u %5s %7u %13s %12llu %12llu %12llu  %s\n", n->node_id, n->role, n->state, n->ranks,
               n->dtype, n->running, kv, (unsigned long long)n->tokens_in, (unsigned long long)n->cached_tokens,
               (unsigned long long)n->tokens_out, cost);
    }
    printf("\n%-14s %u waiting (%llu tokens), %u running; room for %u\n", "queue", m->queue->waiting,
           (unsigned long long)m->queue->waiting_tokens, m->queue->running, m->queue->capacity_requests);
    for (size_t i = 0; i < m->queue->n_classes; i++) {
        const Forepack__V1__QueueClass *k = m->queue->classes[i];
        printf("  %-12s %u waiting (%llu tokens); room up to %u\n", k->name, k->waiting,
               (unsigned long long)k->waiting_tokens, k->capacity_requests);
    }
    print_bins("score bins", m->score_bins);
    print_bins("prefill bins", m->prefill_bins);
    const Forepack__V1__Totals *t = m->totals;
    printf("%-14s %llu taken, %llu done, %llu failed, %llu cancelled, %llu refused, %llu replayed, %llu degraded\n",
           "requests", (unsigned long long)t->requests, (unsigned long long)t->done, (unsigned long long)t->failed,
           (unsigned long long)t->cancelled, (unsigned long long)t->refused, (unsigned long long)t->replays,
           (unsigned long long)t->degraded);
    printf("%-14s %llu prompt, %llu of them kept, %llu generated\n", "tokens", (unsigned long long)t->prompt_tokens,
           (unsigned long long)t->kept_tokens, (unsigned long long)t->completion_tokens);
    printf("%-14s", "not speculated");
    for (size_t i = 0; i < t->n_prefill_skipped; i++)
        printf("%s %llu %s", i ? "," : "", (unsigned long long)t->prefill_skipped[i]->requests,
               t->prefill_skipped[i]->reason);
    printf("\n");
}

int command_status(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack status [--server H:P] [--json]\nNodes, pools, queue, bins and totals of a cluster.",
                 argc, argv, NULL);
    rpc_init();
    Forepack__V1__GetClusterInfoRequest request = FOREPACK__V1__GET_CLUSTER_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    enum status status = remote_call(o.server, "/forepack.v1.Inference/GetClusterInfo", &request.base,
                                     &forepack__v1__cluster_info__descriptor, &answer);
    if (status == STATUS_OK) {
        const Forepack__V1__ClusterInfo *info = (const void *)answer;
        if (info->queue && info->totals && info->score_bins && info->prefill_bins) {
            if (o.json) {
                print_json(info);
            } else {
                print_table(info);
            }
        } else {
            status = status_fail(STATUS_DATA, "%s sent an incomplete answer: is it another version?", o.server);
        }
        protobuf_c_message_free_unpacked(answer, NULL);
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    options_free(options);
    return code;
}
