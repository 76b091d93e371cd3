// SPDX-License-Identifier: Apache-2.0
#include "router/front/live/live_snapshot.h"

#include <math.h>

#include "lib/base/version.h"

// --- fields of objects

static void add_name(struct bytes *out, const char *name)
{
    json_add_comma(out);
    json_add_string(out, name);
    JSON_ADD(out, ":");
}

static void add_integer(struct bytes *out, const char *name, int64_t value)
{
    add_name(out, name);
    json_add_integer(out, value);
}

static void add_string(struct bytes *out, const char *name, const char *value)
{
    add_name(out, name);
    json_add_string(out, value);
}

static void add_bool(struct bytes *out, const char *name, bool value)
{
    add_name(out, name);
    json_add(out, value ? "true" : "false");
}

// Adds a number, or null if the number is not finite, which means unknown.
static void add_known(struct bytes *out, double value)
{
    if (isfinite(value))
        json_add_real(out, value);
    else
        JSON_ADD(out, "null");
}

static void add_number(struct bytes *out, double value)
{
    json_add_comma(out);
    add_known(out, value);
}

static void add_real(struct bytes *out, const char *name, double value)
{
    add_name(out, name);
    add_known(out, value);
}

// --- history

static void histogram_merge(struct histogram *into, const struct histogram *from)
{
    if (!into->scale) into->scale = from->scale;
    for (int i = 0; i <= HISTOGRAM_EDGES_MAX; i++)
        into->counts[i] += from->counts[i];
    into->sum += from->sum;
}

static struct live_counts counts_of(const struct live_snapshot *snapshot)
{
    struct live_counts counts = {.at_us = snapshot->now_us, .kept = snapshot->core.measures.kept};
    counts.first_token.scale = &histogram_request_us;
    for (int i = 0; i < snapshot->core.n_nodes; i++) {
        const struct node_measures *node = &snapshot->core.nodes[i];
        if (node->role != NODE_WORKER) continue;
        counts.tokens_in += node->counts.tokens_in;
        counts.tokens_out += node->counts.tokens_out;
        histogram_merge(&counts.first_token, &node->first_token);
    }
    return counts;
}

// Returns the growth of a counter, or 0 if it fell: counters fall when a node that left long ago is forgotten.
static uint64_t growth(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

static double per_second(uint64_t now, uint64_t before, int64_t us)
{
    return us > 0 ? (double)growth(now, before) * 1e6 / (double)us : 0;
}

// Returns the quantile `share` (0 to 1) of the values that were counted since `before`, in the unit of the histogram.
// Returns the last edge if the quantile is above it, and NAN if there are no values.
static double quantile_since(const struct histogram *now, const struct histogram *before, double share)
{
    uint64_t total = 0, below = 0;
    for (int i = 0; i <= now->scale->n; i++)
        total += growth(now->counts[i], before->counts[i]);
    double rank = share * (double)total;
    for (int i = 0; total && i < now->scale->n; i++) {
        uint64_t here = growth(now->counts[i], before->counts[i]);
        double from = i ? (double)now->scale->edges[i - 1] : 0, to = (double)now->scale->edges[i];
        if (here && (double)(below + here) >= rank) return from + (to - from) * (rank - (double)below) / (double)here;
        below += here;
    }
    return total ? (double)now->scale->edges[now->scale->n - 1] : NAN;
}

static double mean_since(const struct histogram *now, const struct histogram *before)
{
    uint64_t n = histogram_count(now) - (before->scale ? histogram_count(before) : 0);
    return n ? (double)(now->sum - before->sum) / (double)n : NAN;
}

static struct live_point point_of(const struct live_snapshot *snapshot, const struct live_counts *now,
                                  const struct live_counts *before)
{
    int64_t us = now->at_us - before->at_us;
    return (struct live_point){
        .unix_s = snapshot->unix_s,
        .ttft_p50_ms = quantile_since(&now->first_token, &before->first_token, 0.5) / 1000,
        .ttft_p99_ms = quantile_since(&now->first_token, &before->first_token, 0.99) / 1000,
        .prompt_tokens_per_s = per_second(now->tokens_in, before->tokens_in, us),
        .output_tokens_per_s = per_second(now->tokens_out, before->tokens_out, us),
        .kept_share = mean_since(&now->kept, &before->kept) * now->kept.scale->unit,
        .waiting = snapshot->core.status.waiting,
    };
}

void live_history_add(struct live_history *history, const struct live_snapshot *snapshot)
{
    enum { N = LIVE_WINDOW + 1 };
    struct live_counts now = counts_of(snapshot);
    uint64_t n = history->n, oldest = n < LIVE_WINDOW ? 0 : n - LIVE_WINDOW;
    const struct live_counts *before = n ? &history->counts[oldest % N] : &now;
    history->points[n % LIVE_POINTS] = point_of(snapshot, &now, before);
    history->counts[n % N] = now;
    history->n++;
}

struct live_point live_history_last(const struct live_history *history)
{
    return history->points[(history->n + LIVE_POINTS - 1) % LIVE_POINTS];
}

static void point_write(const struct live_point *p, struct bytes *out)
{
    JSON_ADD(out, "[");
    json_add_integer(out, p->unix_s);
    add_number(out, p->ttft_p50_ms);
    add_number(out, p->ttft_p99_ms);
    add_number(out, p->prompt_tokens_per_s);
    add_number(out, p->output_tokens_per_s);
    add_number(out, p->kept_share);
    add_number(out, p->waiting);
    JSON_ADD(out, "]");
}

void live_history_write(const struct live_history *history, struct bytes *out)
{
    uint64_t first = history->n > LIVE_POINTS ? history->n - LIVE_POINTS : 0;
    JSON_ADD(out, "{\"fields\":[\"unix_s\",\"ttft_p50_ms\",\"ttft_p99_ms\",\"prompt_tokens_per_s\","
                  "\"output_tokens_per_s\",\"kept_share\",\"waiting\"],\"points\":[");
    for (uint64_t i = first; i < history->n; i++) {
        json_add_comma(out);
        point_write(&history->points[i % LIVE_POINTS], out);
    }
    JSON_ADD(out, "]}");
}

// --- snapshot

static void node_write(const struct node_status *node, struct bytes *out)
{
    json_add_comma(out);
    JSON_ADD(out, "{");
    add_string(out, "node_id", node->hello.node_id);
    add_string(out, "role", role_name(node->hello.role));
    add_string(out, "state", node->state);
    add_string(out, "host", node->hello.host);
    add_integer(out, "ranks", node->hello.ranks);
    add_integer(out, "stages", node->hello.stages);
    add_integer(out, "max_seqs", node->hello.max_seqs);
    add_integer(out, "kv_blocks", node->hello.kv_blocks);
    add_integer(out, "kv_blocks_free", node->kv_blocks_free);
    add_integer(out, "held_prompts", node->held_prompts);
    add_integer(out, "held_kv_blocks", node->held_kv_blocks);
    add_integer(out, "running", node->running);
    add_integer(out, "tokens_in", (int64_t)node->tokens_in);
    add_integer(out, "tokens_out", (int64_t)node->tokens_out);
    add_integer(out, "pass_us", (int64_t)node->pass_us);
    JSON_ADD(out, "}");
}

static void nodes_write(const struct core_status *status, struct bytes *out)
{
    add_integer(out, "n_nodes", status->n_nodes);
    add_name(out, "nodes");
    JSON_ADD(out, "[");
    for (int i = 0; i < status->n_nodes && i < LIVE_NODES_MAX; i++)
        node_write(&status->nodes[i], out);
    JSON_ADD(out, "]");
}

static void loading_write(const struct core_status *status, struct bytes *out)
{
    add_integer(out, "n_loading", status->n_loading);
    add_name(out, "loading");
    JSON_ADD(out, "[");
    for (int i = 0; i < status->n_loading && i < LIVE_NODES_MAX; i++) {
        const struct node_loading *report = &status->loading[i].report;
        json_add_comma(out);
        JSON_ADD(out, "{");
        add_string(out, "node_id", report->node_id);
        add_string(out, "role", role_name(report->role));
        add_string(out, "host", report->host);
        add_integer(out, "ranks", report->ranks);
        add_integer(out, "percent", report->percent);
        JSON_ADD(out, "}");
    }
    JSON_ADD(out, "]");
}

static void pools_write(const struct core_metrics *core, struct bytes *out)
{
    add_name(out, "pools");
    JSON_ADD(out, "{");
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        const struct pool_metrics *pool = &core->pools[role];
        add_name(out, role_name(role));
        JSON_ADD(out, "{");
        add_integer(out, "nodes", pool->nodes);
        add_integer(out, "waiting", pool->waiting);
        add_integer(out, "queue_tokens", pool->waiting_rows);
        add_integer(out, "running", pool->running);
        add_real(out, "queue_s", pool->queue_us / 1e6);
        add_real(out, "busy_s", (double)pool->busy_us / 1e6);
        add_real(out, "attached_s", (double)pool->attached_us / 1e6);
        JSON_ADD(out, "}");
    }
    JSON_ADD(out, "}");
}

static void queue_write(const struct core_status *status, struct bytes *out)
{
    add_name(out, "queue");
    JSON_ADD(out, "{");
    add_integer(out, "waiting", status->waiting);
    add_integer(out, "waiting_tokens", status->waiting_tokens);
    add_integer(out, "running", status->running);
    add_integer(out, "capacity_requests",
                status->classes[QUEUE_HIGH].max_requests); // the highest class may fill the whole queue
    add_integer(out, "capacity_tokens", status->classes[QUEUE_HIGH].max_tokens);
    add_name(out, "classes");
    JSON_ADD(out, "{");
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        const struct class_status *c = &status->classes[k];
        add_name(out, queue_class_name((enum queue_class)k));
        JSON_ADD(out, "{");
        add_integer(out, "waiting", c->waiting);
        add_integer(out, "waiting_tokens", c->waiting_tokens);
        add_integer(out, "capacity_requests", c->max_requests);
        add_integer(out, "capacity_tokens", c->max_tokens);
        JSON_ADD(out, "}");
    }
    JSON_ADD(out, "}}");
}

static void bin_write(const struct recent_bin *bin, int64_t now_us, struct bytes *out)
{
    json_add_comma(out);
    JSON_ADD(out, "{");
    add_integer(out, "id", (int64_t)bin->id);
    add_string(out, "node_id", bin->node_id);
    add_integer(out, "age_ms", (now_us - bin->sent_us) / 1000);
    add_integer(out, "token_budget", bin->token_budget);
    add_integer(out, "rows", bin->rows);
    add_integer(out, "n", bin->n);
    add_name(out, "prompts");
    JSON_ADD(out, "[");
    for (int i = 0; i < bin->n && i < RECENT_BIN_PROMPTS; i++) {
        const struct recent_prompt *p = &bin->prompts[i];
        json_add_comma(out);
        JSON_ADD(out, "[");
        json_add_integer(out, p->tokens);
        JSON_ADD(out, ",");
        json_add_integer(out, p->kept);
        JSON_ADD(out, ",");
        json_add_integer(out, p->rows);
        JSON_ADD(out, "]");
    }
    JSON_ADD(out, "]}");
}

static void bins_write(const char *name, const struct bin_totals *totals, const struct recent_bins *recent,
                       int64_t now_us, struct bytes *out)
{
    add_name(out, name);
    JSON_ADD(out, "{");
    add_integer(out, "bins", (int64_t)totals->bins);
    add_integer(out, "items", (int64_t)totals->items);
    add_integer(out, "tokens", (int64_t)totals->tokens);
    add_integer(out, "capacity_tokens", (int64_t)totals->capacity_tokens);
    add_name(out, "recent");
    JSON_ADD(out, "[");
    const struct recent_bin *bin;
    for (int i = 0; (bin = recent_bins_get(recent, i)); i++)
        bin_write(bin, now_us, out);
    JSON_ADD(out, "]}");
}

static void totals_write(const struct core_totals *totals, struct bytes *out)
{
    add_name(out, "totals");
    JSON_ADD(out, "{");
    add_integer(out, "requests", (int64_t)totals->requests);
    add_integer(out, "done", (int64_t)totals->done);
    add_integer(out, "failed", (int64_t)totals->failed);
    add_integer(out, "cancelled", (int64_t)totals->cancelled);
    add_integer(out, "refused", (int64_t)totals->refused);
    add_integer(out, "replays", (int64_t)totals->replays);
    add_integer(out, "degraded", (int64_t)totals->degraded);
    add_integer(out, "prompt_tokens", (int64_t)totals->prompt_tokens);
    add_integer(out, "kept_tokens", (int64_t)totals->kept_tokens);
    add_integer(out, "completion_tokens", (int64_t)totals->completion_tokens);
    JSON_ADD(out, "}");
}

void live_snapshot_write(const struct live_snapshot *snapshot, const struct live_point *point, struct bytes *out)
{
    const struct core_status *status = &snapshot->core.status;
    JSON_ADD(out, "{");
    add_string(out, "version", FOREPACK_VERSION);
    add_string(out, "model", snapshot->model_name);
    add_integer(out, "uptime_s", snapshot->uptime_s);
    add_bool(out, "ready", status->ready);
    add_bool(out, "draining", status->draining);
    add_name(out, "point");
    point_write(point, out);
    nodes_write(status, out);
    loading_write(status, out);
    pools_write(&snapshot->core, out);
    queue_write(status, out);
    bins_write("score_bins", &status->score_bins, &snapshot->bins[NODE_SPECULATOR], snapshot->now_us, out);
    bins_write("prefill_bins", &status->prefill_bins, &snapshot->bins[NODE_WORKER], snapshot->now_us, out);
    totals_write(&status->totals, out);
    JSON_ADD(out, "}");
}
