// SPDX-License-Identifier: Apache-2.0
// router/front/live_snapshot: the numbers are the core's, texts of the cluster are escaped, the size of a snapshot is
// bounded, and rates and quantiles cover the last seconds.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/live/live_snapshot.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static struct live_snapshot snapshot_of(const struct fixture *fixture)
{
    struct live_snapshot snapshot = {.model_name = "m", .unix_s = fixture->now_us / SECOND, .now_us = fixture->now_us};
    core_get_metrics(fixture->c, fixture->now_us, &snapshot.core);
    memcpy(snapshot.bins, core_get_recent_bins(fixture->c), sizeof snapshot.bins);
    return snapshot;
}

static json_t *parse(const struct bytes *text)
{
    json_error_t error;
    json_t *root = json_loadb(text->data, text->n, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s: %.*s", error.text, (int)text->n, text->data);
    return root;
}

// Returns the present snapshot, parsed.
static json_t *written(void)
{
    struct live_snapshot snapshot = snapshot_of(&f);
    struct live_point point = {.ttft_p50_ms = 1.5};
    struct bytes text = {0};
    live_snapshot_write(&snapshot, &point, &text);
    ck_assert_ptr_null(memchr(text.data, '\n', text.n)); // it is one line of an event
    json_t *root = parse(&text);
    bytes_free(&text);
    core_metrics_fini(&snapshot.core);
    return root;
}

// Returns the number at a path such as "queue.waiting" or "nodes.0.running".
static double number(const json_t *root, const char *path)
{
    char copy[128], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", path);
    while ((part = strsep(&rest, ".")))
        root = json_is_array(root) ? json_array_get(root, strtoul(part, NULL, 10)) : json_object_get(root, part);
    ck_assert_msg(json_is_number(root), "%s", path);
    return json_number_value(root);
}

static void start(void)
{
    fixture_init(&f);
    fixture_start(&f);
}

static struct fake_node *attach(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    return fixture_attach(&f, &hello);
}

START_TEST(numbers_are_those_of_the_core)
{
    struct fake_node *worker = attach(NODE_WORKER, "w0");
    attach(NODE_SPECULATOR, "s0");
    fake_node_step(&f, worker, fixture_send(&f, 100, 4), 0, 4, FINISH_REASON_LENGTH);
    fixture_send(&f, 60, 4);
    for (int i = 0; i < 5; i++)
        fixture_put(&f, NULL, 30, i - 2);
    struct core_status status = fixture_status(&f);
    json_t *root = written();
    ck_assert_int_gt(status.waiting, 0);
    ck_assert_double_eq(number(root, "queue.waiting"), status.waiting);
    ck_assert_double_eq(number(root, "queue.running"), status.running);
    ck_assert_double_eq(number(root, "queue.capacity_requests"), status.classes[QUEUE_HIGH].max_requests);
    ck_assert_double_eq(number(root, "queue.classes.high.waiting"), status.classes[QUEUE_HIGH].waiting);
    ck_assert_double_eq(number(root, "queue.classes.low.waiting_tokens"),
                        (double)status.classes[QUEUE_LOW].waiting_tokens);
    ck_assert_double_eq(number(root, "totals.requests"), (double)status.totals.requests);
    ck_assert_double_eq(number(root, "totals.done"), 1);
    ck_assert_double_eq(number(root, "prefill_bins.bins"), (double)status.prefill_bins.bins);
    ck_assert_double_eq(number(root, "pools.worker.waiting"), 5);
    ck_assert_double_eq(number(root, "n_nodes"), 2);
    ck_assert_double_eq(number(root, "nodes.0.running"), status.nodes[0].running);
    ck_assert_double_eq(number(root, "nodes.0.tokens_in"), 160);
    ck_assert_double_eq(number(root, "point.1"), 1.5);
    json_decref(root);
    core_status_fini(&status);
}
END_TEST

START_TEST(texts_are_escaped)
{
    attach(NODE_WORKER, "</script>\"\\<b>");
    json_t *root = written(), *node = json_array_get(json_object_get(root, "nodes"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(node, "node_id")), "</script>\"\\<b>");
    json_decref(root);
}
END_TEST

START_TEST(an_empty_cluster_has_empty_lists)
{
    json_t *root = written();
    ck_assert_uint_eq(json_array_size(json_object_get(root, "nodes")), 0);
    ck_assert(json_is_false(json_object_get(root, "ready")));
    ck_assert_double_eq(number(root, "pools.worker.queue_s"), 0);
    ck_assert_double_eq(number(root, "score_bins.bins"), 0);
    json_decref(root);
}
END_TEST

START_TEST(a_bin_lists_its_prompts_in_order)
{
    struct fake_node *worker = attach(NODE_WORKER, "w0"), *speculator = attach(NODE_SPECULATOR, "s0");
    struct client *pruned = fixture_request(&f, 400, 4);
    pruned->r->spec.prefill.mode = PREFILL_ON;
    fixture_submit(&f, pruned);
    fixture_advance(&f, 0);
    json_t *root = written();
    ck_assert_double_eq(number(root, "score_bins.recent.0.prompts.0.0"), 400);
    ck_assert_double_eq(number(root, "score_bins.recent.0.prompts.0.1"), 0); // unknown so far
    ck_assert_double_eq(number(root, "score_bins.recent.0.prompts.0.2"), 400);
    json_decref(root);
    fake_node_score(&f, speculator, pruned, 300, 399);
    fake_node_step(&f, worker, pruned, 0, 4, FINISH_REASON_LENGTH);
    for (int i = 0; i < RECENT_BINS + 2; i++)
        fake_node_step(&f, worker, fixture_send(&f, 10 + i, 4), 0, 4, FINISH_REASON_LENGTH);
    fixture_put(&f, NULL, 20, 0);
    fixture_put(&f, NULL, 90, 0);
    fixture_advance(&f, 0);
    root = written();
    const json_t *recent = json_object_get(json_object_get(root, "prefill_bins"), "recent");
    ck_assert_uint_eq(json_array_size(recent), RECENT_BINS);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.n"), 2);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.rows"), 110);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.prompts.0.0"), 90); // the longest first
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.prompts.1.0"), 20);
    ck_assert_double_eq(number(root, "prefill_bins.recent.1.prompts.0.0"), 10 + RECENT_BINS + 1);
    json_decref(root);
}
END_TEST

START_TEST(a_pruned_prompt_has_its_kept_tokens)
{
    attach(NODE_WORKER, "w0");
    struct fake_node *speculator = attach(NODE_SPECULATOR, "s0");
    struct client *pruned = fixture_request(&f, 400, 4);
    pruned->r->spec.prefill.mode = PREFILL_ON;
    fixture_submit(&f, pruned);
    fixture_advance(&f, 0);
    fake_node_score(&f, speculator, pruned, 300, 399);
    json_t *root = written();
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.prompts.0.0"), 400);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.prompts.0.1"), 100);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.prompts.0.2"), 100);
    json_decref(root);
}
END_TEST

START_TEST(bins_and_nodes_are_listed_up_to_a_bound)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w0");
    hello.max_seqs = 2 * RECENT_BIN_PROMPTS;
    hello.token_budget = 4000;
    fixture_attach(&f, &hello);
    for (int i = 0; i < RECENT_BIN_PROMPTS + 9; i++)
        fixture_put(&f, NULL, 10, 0);
    fixture_advance(&f, 0);
    struct live_snapshot snapshot = snapshot_of(&f);
    snapshot.core.status.n_nodes = LIVE_NODES_MAX + 50;
    snapshot.core.status.nodes =
        mem_resize(snapshot.core.status.nodes, LIVE_NODES_MAX + 50, sizeof *snapshot.core.status.nodes);
    for (int i = 1; i < LIVE_NODES_MAX + 50; i++)
        snapshot.core.status.nodes[i] = snapshot.core.status.nodes[0];
    struct bytes text = {0};
    live_snapshot_write(&snapshot, &(struct live_point){0}, &text);
    json_t *root = parse(&text);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "nodes")), LIVE_NODES_MAX);
    ck_assert_double_eq(number(root, "n_nodes"), LIVE_NODES_MAX + 50);
    ck_assert_double_eq(number(root, "prefill_bins.recent.0.n"), RECENT_BIN_PROMPTS + 9);
    const json_t *bin = json_array_get(json_object_get(json_object_get(root, "prefill_bins"), "recent"), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(bin, "prompts")), RECENT_BIN_PROMPTS);
    json_decref(root);
    bytes_free(&text);
    core_metrics_fini(&snapshot.core);
}
END_TEST

// --- history

static struct live_history history;

// Lets a second pass, in which `n` requests get their first token after `ms`, and four tokens each.
static void second_pass(struct fake_node *worker, int n, int ms)
{
    struct client *clients[16];
    for (int i = 0; i < n; i++)
        clients[i] = fixture_send(&f, 50, 4);
    fixture_advance(&f, ms * 1000);
    for (int i = 0; i < n; i++)
        fake_node_step(&f, worker, clients[i], 0, 4, FINISH_REASON_LENGTH);
    fixture_advance(&f, SECOND - ms * 1000);
    struct live_snapshot snapshot = snapshot_of(&f);
    live_history_add(&history, &snapshot);
    core_metrics_fini(&snapshot.core);
}

START_TEST(rates_and_quantiles_are_of_the_last_seconds)
{
    struct fake_node *worker = attach(NODE_WORKER, "w0");
    memset(&history, 0, sizeof history);
    second_pass(worker, 0, 0);
    ck_assert(isnan(live_history_last(&history).ttft_p50_ms));
    for (int i = 0; i < LIVE_WINDOW; i++)
        second_pass(worker, 9, 20);
    struct live_point point = live_history_last(&history);
    ck_assert_double_eq_tol(point.output_tokens_per_s, 36, 1e-6);
    ck_assert_double_eq_tol(point.prompt_tokens_per_s, 9 * 50, 1e-6);
    ck_assert(point.ttft_p50_ms > 15);
    ck_assert(point.ttft_p50_ms <= 25); // the edges of the bucket
    second_pass(worker, 1, 600);
    point = live_history_last(&history);
    ck_assert(point.ttft_p50_ms <= 25);
    ck_assert(point.ttft_p99_ms > 400);
    ck_assert(point.ttft_p99_ms <= 650);
    for (int i = 0; i < LIVE_WINDOW; i++)
        second_pass(worker, 0, 0);
    point = live_history_last(&history);
    ck_assert(isnan(point.ttft_p99_ms));
    ck_assert(isnan(point.kept_share));
    ck_assert_double_eq(point.output_tokens_per_s, 0);
}
END_TEST

START_TEST(the_history_keeps_its_last_points)
{
    attach(NODE_WORKER, "w0");
    memset(&history, 0, sizeof history);
    struct bytes text = {0};
    live_history_write(&history, &text);
    json_t *root = parse(&text);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "points")), 0);
    json_decref(root);
    struct live_snapshot snapshot = snapshot_of(&f);
    for (int i = 0; i < LIVE_POINTS + 5; i++) {
        snapshot.unix_s = 1000 + i;
        snapshot.now_us += SECOND;
        live_history_add(&history, &snapshot);
    }
    core_metrics_fini(&snapshot.core);
    text.n = 0;
    live_history_write(&history, &text);
    root = parse(&text);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "points")), LIVE_POINTS);
    ck_assert_double_eq(number(root, "points.0.0"), 1005);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "fields")),
                      json_array_size(json_array_get(json_object_get(root, "points"), 0)));
    json_decref(root);
    bytes_free(&text);
}
END_TEST

SUITE("live_snapshot")
{
    FIXTURE(start, teardown);
    TEST(numbers_are_those_of_the_core);
    TEST(texts_are_escaped);
    TEST(an_empty_cluster_has_empty_lists);
    TEST(a_bin_lists_its_prompts_in_order);
    TEST(a_pruned_prompt_has_its_kept_tokens);
    TEST(bins_and_nodes_are_listed_up_to_a_bound);
    TEST(rates_and_quantiles_are_of_the_last_seconds);
    TEST(the_history_keeps_its_last_points);
}
