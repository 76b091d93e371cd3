// SPDX-License-Identifier: Apache-2.0
// router/metrics: the buckets of histograms and the text formats. Every count equals an independent count of what
// clients and nodes of a pseudo-random run saw.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/metrics/exposition.h"
#include "tests/core_case.h"
#include "tests/suite.h"

// --- reading the text

static char *text; // of the last write_text()

static void write_text(enum metrics_format format)
{
    struct metrics_snapshot snapshot = {.model_name = "a \"quoted\\ model\nin two lines"};
    size_t size;
    core_get_metrics(f.c, f.now_us, &snapshot.core);
    process_metrics_read(&snapshot.process);
    snapshot.refused[STATUS_NOT_FOUND] = 3;
    free(text);
    text = metrics_write(&snapshot, format, &size);
    ck_assert_uint_eq(size, strlen(text));
    core_metrics_fini(&snapshot.core);
}

static bool starts_with(const char *line, const char *start)
{
    return strncmp(line, start, strlen(start)) == 0;
}

// Returns the sum of all samples whose line starts with `start`, or -1 if there is none.
static double sample(const char *start)
{
    double sum = 0;
    int n = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (!starts_with(line, start)) continue;
        const char *end = strchr(line, '\n');
        while (end[-1] != ' ')
            end--;
        sum += strtod(end, NULL);
        n++;
    }
    return n ? sum : -1;
}

#define ck_sample(start, expected) ck_assert_double_eq_tol(sample(start), (double)(expected), 1e-6)

// --- buckets

START_TEST(a_value_lands_below_the_first_edge_that_is_not_less)
{
    const struct histogram_scale *scales[] = {&histogram_request_us, &histogram_token_us, &histogram_plan_us,
                                              &histogram_share_ppm, &histogram_deviation_ppm};
    for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
        const struct histogram_scale *scale = scales[k];
        ck_assert_int_eq(scale->n & (scale->n + 1), 0);
        for (int i = 0; i <= scale->n; i++) {
            struct histogram h;
            histogram_init(&h, scale);
            int64_t below = i ? scale->edges[i - 1] : -1, edge = i < scale->n ? scale->edges[i] : INT64_MAX / 4;
            ck_assert_int_lt(below, edge);
            histogram_add(&h, below + 1);
            histogram_add(&h, edge);
            ck_assert_uint_eq(h.counts[i], 2);
            ck_assert_int_eq(h.sum, below + 1 + edge);
            ck_assert_uint_eq(histogram_count(&h), 2);
        }
    }
    ck_assert_int_eq(histogram_request_us.edges[0], 1000); // down to 1 ms
    ck_assert_int_eq(histogram_token_us.edges[0], 1000);
}
END_TEST

// --- formats

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    ck_assert_ptr_nonnull(end);
    return end + 1;
}

// Checks the samples of one family up to the next comment: the name, and for histograms growing buckets, the last of
// which equals the count.
static const char *check_samples(const struct metric *metric, const char *line)
{
    double bucket = 0;
    while (*line && *line != '#') {
        const char *rest = line + strlen(metric->name), *value = strchr(line, '\n');
        ck_assert_msg(starts_with(line, metric->name), "%.60s", line);
        while (value[-1] != ' ')
            value--;
        double number = strtod(value, NULL);
        if (starts_with(rest, "_bucket{")) {
            ck_assert_int_eq(metric->type, METRIC_HISTOGRAM);
            ck_assert(number >= bucket);
            bucket = number;
        } else if (starts_with(rest, "_count")) {
            ck_assert_double_eq(number, bucket);
            bucket = 0;
        } else if (metric->type == METRIC_HISTOGRAM) {
            ck_assert(starts_with(rest, "_sum"));
        } else {
            ck_assert_msg(*rest == ' ' || *rest == '{', "%.60s", line);
        }
        line = next_line(line);
    }
    return line;
}

static const char *check_family(const struct metric *metric, const char *line, bool cut)
{
    char expected[512];
    int length = (int)strlen(metric->name) - (cut ? (int)strlen("_total") : 0);
    snprintf(expected, sizeof expected, "# HELP %.*s %s\n", length, metric->name, metric->help);
    ck_assert_msg(starts_with(line, expected), "%.80s", line);
    line = next_line(line);
    snprintf(expected, sizeof expected, "# TYPE %.*s %s\n", length, metric->name, metric_type_name(metric->type));
    ck_assert_msg(starts_with(line, expected), "%.80s", line);
    return check_samples(metric, next_line(line));
}

static void attach_two(struct fake_node **worker_p, struct fake_node **speculator_p)
{
    struct node_hello worker = fixture_hello(NODE_WORKER, "w\"0\\"), speculator = fixture_hello(NODE_SPECULATOR, "s0");
    *worker_p = fixture_attach(&f, &worker);
    *speculator_p = fixture_attach(&f, &speculator);
}

START_TEST(each_family_is_announced_once_and_its_samples_follow)
{
    struct fake_node *worker, *speculator;
    attach_two(&worker, &speculator);
    fake_node_step(&f, worker, fixture_send(&f, 100, 4), 0, 4, FINISH_REASON_LENGTH);
    for (int format = METRICS_TEXT; format <= METRICS_OPENMETRICS; format++) {
        write_text((enum metrics_format)format);
        const char *line = text;
        for (const struct metric *metric = metrics_table; metric->name; metric++)
            line = check_family(metric, line, format == METRICS_OPENMETRICS && metric->type == METRIC_COUNTER);
        ck_assert_str_eq(line, format == METRICS_OPENMETRICS ? "# EOF\n" : "");
    }
}
END_TEST

START_TEST(label_values_are_escaped)
{
    struct fake_node *worker, *speculator;
    attach_two(&worker, &speculator);
    write_text(METRICS_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "{pool=\"worker\",node=\"w\\\"0\\\\\"} "));
    ck_assert_ptr_nonnull(strstr(text, "{model_name=\"a \\\"quoted\\\\ model\\nin two lines\"} 1\n"));
}
END_TEST

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

// Checks the same as `promtool check metrics`.
START_TEST(names_follow_the_conventions)
{
    for (const struct metric *metric = metrics_table; metric->name; metric++) {
        ck_assert_int_eq(ends_with(metric->name, "_total"), metric->type == METRIC_COUNTER);
        ck_assert(starts_with(metric->name, "forepack:") || starts_with(metric->name, "process_"));
        ck_assert_uint_eq(strspn(metric->name, "abcdefghijklmnopqrstuvwxyz0123456789_:"), strlen(metric->name));
        ck_assert_ptr_null(strpbrk(metric->help, "\n\\\"|"));
        ck_assert(ends_with(metric->help, "."));
        ck_assert(!ends_with(metric->name, "_ms"));
        ck_assert(!ends_with(metric->name, "_us"));
        for (const char *suffix = "_bucket\0_sum\0_count\0"; *suffix; suffix += strlen(suffix) + 1)
            ck_assert(!ends_with(metric->name, suffix));
        for (const struct metric *other = metrics_table; other != metric; other++)
            ck_assert_str_ne(other->name, metric->name);
    }
}
END_TEST

START_TEST(the_format_is_what_the_scraper_accepts)
{
    ck_assert_int_eq(metrics_format_for(NULL), METRICS_TEXT);
    ck_assert_int_eq(metrics_format_for("text/plain;version=0.0.4"), METRICS_TEXT);
    ck_assert_int_eq(metrics_format_for("application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"),
                     METRICS_OPENMETRICS);
    write_text(METRICS_OPENMETRICS);
    ck_assert_ptr_nonnull(strstr(text, "le=\"1.0\"}"));
    write_text(METRICS_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "le=\"1\"}"));
    ck_assert_ptr_nonnull(strstr(text, "le=\"0.001\"}"));
}
END_TEST

START_TEST(process_metrics_are_read)
{
    struct process_metrics process;
    process_metrics_read(&process);
    ck_assert(process.cpu_s >= 0);
    ck_assert(process.start_s > 1.5e9);
    ck_assert(process.resident_bytes > 1e5);
    ck_assert(process.virtual_bytes >= process.resident_bytes);
    ck_assert(process.open_fds >= 3);
    ck_assert(process.max_fds >= process.open_fds);
}
END_TEST

START_TEST(tenants_have_their_own_series_up_to_a_bound)
{
    static const char *const tenants[] = {"a", "b", "a", "c", "d"};
    f.options.tenant_series = 2;
    restart();
    struct fake_node *worker = attach_worker("w");
    for (size_t i = 0; i < sizeof tenants / sizeof *tenants; i++) {
        struct client *client = fixture_request(&f, 100, 4);
        free(client->r->spec.tenant);
        client->r->spec.tenant = mem_string(tenants[i]);
        fixture_submit(&f, client);
        fixture_advance(&f, 0);
        fake_node_step(&f, worker, client, 0, 4, FINISH_REASON_LENGTH);
    }
    write_text(METRICS_TEXT);
    ck_sample("forepack:prompt_tokens_total{tenant=\"a\"}", 200);
    ck_sample("forepack:kept_tokens_total{tenant=\"b\"}", 100);
    ck_sample("forepack:generation_tokens_total{tenant=\"(others)\"}", 8);
    ck_sample("forepack:request_success_total{finished_reason=\"length\",tenant=\"a\"}", 2);
    ck_sample("forepack:request_success_total{finished_reason=\"length\",tenant=\"(others)\"}", 2);
    ck_sample("forepack:request_success_total{finished_reason=\"stop\",tenant=\"b\"}", 0);
    ck_sample("forepack:prompt_tokens_total", 500);
    ck_sample("forepack:request_success_total", 5);
    ck_assert_ptr_null(strstr(text, "tenant=\"c\""));
}
END_TEST

// --- counts

static uint64_t random_state;
static int random_below(int n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)n);
}

static struct expected {
    int gaps, tokens, ttft, finished[FINISH_REASON_COUNT], refused[STATUS_COUNT], errors[STATUS_COUNT], answered, means;
    int speculated, skipped[SKIP_COUNT], scores, replays, bins;
    int64_t gap_us, ttft_us, queue_us, pack_wait_us, end_to_end_us, prompt_tokens, score_us, mean_us;
} expected;

enum { NODES = 5, CLIENTS_MAX = 4000 };
static struct fake_node *nodes[NODES];
static struct node_hello hellos[NODES];
static int64_t token_us[CLIENTS_MAX]; // by number
static bool refused[CLIENTS_MAX];
static int bins_of[NODES]; // includes nodes that were lost since

static int number_of(const struct client *client)
{
    return (int)(client->number - f.first_number);
}

static struct client *random_request(struct fake_node *node)
{
    return node->node && node->n_requests ? fixture_find(&f, node->requests[random_below(node->n_requests)]) : NULL;
}

static void do_submit(void)
{
    struct client *client = fixture_request(&f, 1 + random_below(random_below(20) ? 400 : 5000), 1 + random_below(12));
    struct request_spec *spec = &client->r->spec;
    spec->prefill.mode = random_below(2) ? PREFILL_ON : PREFILL_OFF;
    spec->prefill.keep_rate = random_below(8) ? 0.3 : 1;
    spec->prefill.look_ahead = 1;
    spec->priority = random_below(3) - 1;
    if (!random_below(10))
        spec->ttft_deadline_us = f.now_us + random_below(SECOND);
    else
        spec->ttft_deadline_us = INT64_MAX;
    if (!random_below(8)) client->stop_after = 1 + random_below(4);
    ck_assert_int_lt(number_of(client), CLIENTS_MAX);
    fixture_submit(&f, client);
    if (client->ends) {
        refused[number_of(client)] = true;
        expected.refused[client->status]++;
    }
    fixture_advance(&f, 0);
}

// Records what the client will see of the tokens that the node is about to send.
static void expect_tokens(const struct client *client, int n)
{
    int used =
        client->stop_after && client->n_tokens + n > client->stop_after ? client->stop_after - client->n_tokens : n;
    int64_t *last_us = &token_us[number_of(client)];
    expected.tokens += used;
    expected.gaps += client->n_tokens ? used : used - 1;
    if (client->n_tokens) expected.gap_us += f.now_us - *last_us;
    *last_us = f.now_us;
    if (client->n_tokens) return;
    expected.queue_us += client->r->timing.queue_us + client->r->timing.pack_wait_us;
    expected.pack_wait_us += client->r->timing.pack_wait_us;
}

static void do_step(struct fake_node *node)
{
    struct client *client = random_request(node);
    if (!client) return;
    int left = client->r->spec.sampling.max_tokens - client->r->usage.completion_tokens;
    int n = 1 + random_below(left < 3 ? left : 3);
    bool stops = client->stop_after && client->n_tokens + n >= client->stop_after;
    expect_tokens(client, n);
    int finish = n == left ? FINISH_REASON_LENGTH : -1;
    if (!stops && finish < 0 && !random_below(30)) finish = FINISH_REASON_ERROR;
    fake_node_step(&f, node, client, client->n_tokens, n, finish);
}

static void do_score(struct fake_node *node)
{
    struct client *client = random_request(node);
    if (!client) return;
    expected.scores++;
    expected.score_us += f.now_us - client->r->account.charged_us;
    fake_node_score(&f, node, client, 0, random_below(client->r->spec.n_tokens));
}

static void do_lose(int i)
{
    struct fake_node *node = nodes[i];
    if (node->node && random_below(2)) {
        for (int k = 0; k < node->n_requests && hellos[i].role == NODE_WORKER; k++)
            expected.replays++;
        fixture_detach(&f, node);
    } else if (!node->node) {
        bins_of[i] += node->bins;
        nodes[i] = fixture_attach(&f, &hellos[i]);
    }
}

static void do_event(void)
{
    int i = random_below(NODES);
    switch (random_below(12)) {
    case 0:
    case 1: do_submit(); break;
    case 2: fixture_advance(&f, random_below(30000)); break;
    case 3:
        if (!random_below(20) && nodes[i]->node) {
            struct client *client = random_request(nodes[i]);
            if (client) core_cancel(f.c, client->number, f.now_us);
        }
        break;
    case 4:
        if (!random_below(40) && f.n_nodes < 60) do_lose(i);
        break;
    default:
        if (hellos[i].role == NODE_WORKER)
            do_step(nodes[i]);
        else
            do_score(nodes[i]);
    }
}

// Counts what the clients saw.
static void count_clients(void)
{
    for (const struct client *client = f.clients; client; client = client->next) {
        if (refused[number_of(client)]) continue;
        const struct request_timing *t = &client->timing;
        bool answered = client->reason == FINISH_REASON_STOP || client->reason == FINISH_REASON_LENGTH;
        int later = client->usage.completion_tokens - 1;
        expected.prompt_tokens += client->usage.prompt_tokens;
        expected.finished[client->reason]++;
        if (client->reason == FINISH_REASON_ERROR) expected.errors[client->status]++;
        if (client->usage.completion_tokens) {
            expected.ttft++;
            expected.ttft_us += t->ttft_us;
        }
        if (!answered) continue;
        expected.answered++;
        expected.end_to_end_us += t->total_us;
        if (later < 1) continue;
        expected.means++;
        expected.mean_us += (t->total_us - t->ttft_us) / later;
    }
}

static void finish_all(void)
{
    for (int i = 0; i < NODES; i++) {
        if (!nodes[i]->node) {
            bins_of[i] += nodes[i]->bins;
            nodes[i] = fixture_attach(&f, &hellos[i]);
        }
    }
    for (int n = 0; f.ended < f.submitted; n++) {
        ck_assert_int_lt(n, 1000000);
        for (int i = 0; i < NODES; i++) {
            if (hellos[i].role == NODE_WORKER)
                do_step(nodes[i]);
            else
                do_score(nodes[i]);
        }
        fixture_advance(&f, 1000);
    }
}

static void check_reason(const char *name, const char *label, const char *reason, int count)
{
    char start[128];
    snprintf(start, sizeof start, "%s{%s=\"%s\"}", name, label, reason);
    ck_sample(start, count);
}

static void check_reasons(void)
{
    for (int k = 0; k < FINISH_REASON_COUNT; k++)
        check_reason("forepack:request_success_total", "finished_reason", finish_reason_name((enum finish_reason)k),
                     expected.finished[k]);
    for (int k = STATUS_OK + 1; k < STATUS_COUNT; k++) {
        int front = k == STATUS_NOT_FOUND ? 3 : 0;
        check_reason("forepack:requests_refused_total", "reason", status_name((enum status)k),
                     expected.refused[k] + front);
        check_reason("forepack:request_errors_total", "reason", status_name((enum status)k), expected.errors[k]);
    }
    check_reason("forepack:replays_total", "reason", "stream_ended", expected.replays);
}

static int64_t fake_us;
static int64_t fake_clock(void)
{
    return fake_us += 25;
}

START_TEST(counts_equal_those_of_an_independent_observer)
{
    memset(&expected, 0, sizeof expected);
    memset(bins_of, 0, sizeof bins_of);
    memset(refused, 0, sizeof refused);
    random_state = (uint64_t)_i;
    f.options.max_queue_requests = 60;
    f.options.score_timeout_us = 100 * SECOND; // no score times out, so the test sees every request leave its node
    f.options.clock_us = fake_clock;
    restart();
    for (int i = 0; i < NODES; i++) {
        char id[32];
        snprintf(id, sizeof id, "node-%d", i);
        hellos[i] = fixture_hello(i < 3 ? NODE_WORKER : NODE_SPECULATOR, id);
        nodes[i] = fixture_attach(&f, &hellos[i]);
    }
    for (int n = 0; n < 8000; n++)
        do_event();
    finish_all();
    count_clients();
    write_text(METRICS_TEXT);
    ck_sample("forepack:generation_tokens_total ", expected.tokens);
    ck_sample("forepack:prompt_tokens_total ", expected.prompt_tokens);
    ck_sample("forepack:inter_token_latency_seconds_count{", expected.gaps);
    ck_sample("forepack:inter_token_latency_seconds_sum{", (double)expected.gap_us / 1e6);
    ck_sample("forepack:time_to_first_token_seconds_count{", expected.ttft);
    ck_sample("forepack:time_to_first_token_seconds_sum{", (double)expected.ttft_us / 1e6);
    ck_sample("forepack:request_queue_time_seconds_count", expected.ttft);
    ck_sample("forepack:request_queue_time_seconds_sum", (double)expected.queue_us / 1e6);
    ck_sample("forepack:pack_wait_seconds_sum", (double)expected.pack_wait_us / 1e6);
    ck_sample("forepack:e2e_request_latency_seconds_count", expected.answered);
    ck_sample("forepack:e2e_request_latency_seconds_sum", (double)expected.end_to_end_us / 1e6);
    ck_sample("forepack:request_time_per_output_token_seconds_count", expected.means);
    ck_sample("forepack:request_time_per_output_token_seconds_sum", (double)expected.mean_us / 1e6);
    ck_sample("forepack:speculator_score_seconds_count{", expected.scores);
    ck_sample("forepack:speculator_score_seconds_sum{", (double)expected.score_us / 1e6);
    for (int i = 0; i < NODES; i++) {
        char start[96];
        snprintf(start, sizeof start, "forepack:pack_bins_total{pool=\"%s\",node=\"node-%d\"}",
                 i < 3 ? "worker" : "speculator", i);
        ck_sample(start, bins_of[i] + nodes[i]->bins);
        expected.bins += bins_of[i] + nodes[i]->bins;
    }
    ck_sample("forepack:pack_fill_ratio_count{", expected.bins);
    ck_sample("forepack:pack_seconds_count{", expected.bins);
    ck_sample("forepack:pack_seconds_sum{", expected.bins * 25e-6);
    ck_sample("forepack:num_requests_running{", 0);
    ck_sample("forepack:num_requests_waiting{", 0);
    check_reasons();
    ck_assert_int_gt(expected.gaps, 1000);
    ck_assert_int_gt(expected.replays, 5);
    ck_assert_int_gt(expected.scores, 100);
    ck_assert(expected.refused[STATUS_EXHAUSTED]);
    ck_assert(expected.refused[STATUS_OUT_OF_RANGE]);
    ck_assert(expected.finished[2]);
}
END_TEST

// --- nodes

START_TEST(counters_of_a_node_go_on_when_it_comes_back)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    struct fake_node *node = fixture_attach(&f, &hello);
    fake_node_step(&f, node, fixture_send(&f, 100, 4), 0, 4, FINISH_REASON_LENGTH);
    fixture_detach(&f, node);
    write_text(METRICS_TEXT);
    ck_sample("forepack:node_generation_tokens_total{pool=\"worker\",node=\"w\"}", 4);
    ck_sample("forepack:nodes{role=\"worker\",state=\"ready\"}", 0);
    ck_sample("forepack:kv_cache_usage_perc", -1); // only attached nodes have it
    node = fixture_attach(&f, &hello);
    fake_node_step(&f, node, fixture_send(&f, 100, 4), 0, 4, FINISH_REASON_LENGTH);
    write_text(METRICS_TEXT);
    ck_sample("forepack:node_generation_tokens_total{pool=\"worker\",node=\"w\"}", 8);
    ck_sample("forepack:time_to_first_token_seconds_count{pool=\"worker\",node=\"w\"}", 2);
    ck_sample("forepack:nodes{role=\"worker\",state=\"ready\"}", 1);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.nodes[0].tokens_out, 4); // since it attached
    core_status_fini(&status);
}
END_TEST

START_TEST(nodes_that_are_gone_are_forgotten_oldest_first)
{
    struct node_measures_list list = {.first = NULL};
    struct node_measures *stays = node_measures_acquire(&list, "stays", NODE_WORKER);
    char id[32];
    for (int i = 0; i < NODES_GONE_MAX + 10; i++) {
        snprintf(id, sizeof id, "n%d", i);
        node_measures_release(&list, node_measures_acquire(&list, id, NODE_WORKER));
    }
    int n = 0, first = 1 << 20;
    for (const struct node_measures *m = list.first; m; m = m->next, n++)
        if (m != stays && atoi(m->node_id + 1) < first) first = atoi(m->node_id + 1);
    ck_assert_int_eq(n, NODES_GONE_MAX + 1);
    ck_assert_int_eq(first, 10);
    ck_assert_ptr_eq(node_measures_acquire(&list, "stays", NODE_WORKER), stays);
    ck_assert_ptr_ne(node_measures_acquire(&list, "stays", NODE_SPECULATOR), stays);
    node_measures_fini(&list);
}
END_TEST

START_TEST(heartbeats_bring_the_prompts_that_speculators_hold)
{
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "s"), other = fixture_hello(NODE_WORKER, "w");
    struct fake_node *node = fixture_attach(&f, &hello);
    fixture_attach(&f, &other);
    const struct node_heartbeat heartbeat = {
        .kv_blocks_free = hello.kv_blocks, .held_prompts = 3, .held_kv_blocks = hello.kv_blocks / 4};
    core_heartbeat(f.c, node->node, &heartbeat, f.now_us);
    write_text(METRICS_TEXT);
    ck_sample("forepack:held_prompts{pool=\"speculator\",node=\"s\"}", 3);
    ck_sample("forepack:held_kv_usage_perc{pool=\"speculator\",node=\"s\"}", 0.25);
    ck_sample("forepack:held_prompts{pool=\"worker\",node=\"w\"}", -1);
}
END_TEST

START_TEST(heartbeats_bring_kv_use_and_preemptions)
{
    struct fake_node *node = attach_worker("w");
    const struct node_heartbeat heartbeat = {.kv_blocks_free = 256, .preemptions = 7};
    core_heartbeat(f.c, node->node, &heartbeat, f.now_us);
    write_text(METRICS_TEXT);
    ck_sample("forepack:kv_cache_usage_perc{pool=\"worker\",node=\"w\"}", 0.75);
    ck_sample("forepack:num_preemptions_total{pool=\"worker\",node=\"w\"}", 7);
}
END_TEST

#define GPU(rank) "{pool=\"worker\",node=\"w\",rank=\"" rank "\"}"

static void beat(struct fake_node *node, const struct node_gpu *gpus, int n)
{
    const struct node_heartbeat heartbeat = {.gpus = gpus, .n_gpus = n};
    core_heartbeat(f.c, node->node, &heartbeat, f.now_us);
    write_text(METRICS_TEXT);
}

START_TEST(heartbeats_bring_the_gpus_of_the_ranks)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.ranks = 3;
    struct fake_node *node = fixture_attach(&f, &hello);
    beat(node, NULL, 0);
    ck_sample("forepack:gpu_healthy", -1);
    struct node_gpu gpus[] = {{.rank = 2,
                               .known = true,
                               .has_temperature = true,
                               .has_ecc = true,
                               .has_throttle = true,
                               .temperature_celsius = 71,
                               .memory_used_bytes = 5ULL << 30,
                               .memory_total_bytes = 80ULL << 30,
                               .ecc_corrected = 6,
                               .ecc_uncorrected = 1,
                               .throttled_us = {[GPU_THROTTLE_HW_THERMAL] = 2500000},
                               .xid_errors = 2,
                               .last_xid = 94},
                              {.rank = 0, .known = true, .healthy = true},
                              {.rank = 3, .known = true, .healthy = true},
                              {.rank = -1, .known = true}};
    beat(node, gpus, 4);
    ck_sample("forepack:gpu_healthy" GPU("0"), 1);
    ck_sample("forepack:gpu_healthy" GPU("1"), -1); // not reported
    ck_sample("forepack:gpu_healthy" GPU("2"), 0);
    ck_sample("forepack:gpu_healthy", 1); // no rank beyond those of the node
    ck_sample("forepack:gpu_temperature_celsius", 71);
    ck_sample("forepack:gpu_memory_used_bytes" GPU("2"), 5.0 * (1 << 30));
    ck_sample("forepack:gpu_memory_total_bytes", 80.0 * (1 << 30));
    ck_sample("forepack:gpu_ecc_corrected_total", 6);
    ck_sample("forepack:gpu_ecc_uncorrected_total" GPU("2"), 1);
    ck_sample("forepack:gpu_throttled_seconds_total", 2.5);
    ck_sample("forepack:gpu_throttled_seconds_total{pool=\"worker\",node=\"w\",rank=\"2\",reason=\"hw_thermal\"}", 2.5);
    ck_sample("forepack:gpu_throttled_seconds_total{pool=\"worker\",node=\"w\",rank=\"2\",reason=\"sw_thermal\"}", 0);
    ck_sample("forepack:gpu_xid_errors_total" GPU("2"), 2);
    ck_sample("forepack:gpu_xid_errors_total" GPU("0"), 0);
    ck_sample("forepack:gpu_last_xid", 94);
    beat(node, &gpus[1], 1); // rank 2 is not reported
    ck_sample("forepack:gpu_temperature_celsius", -1);
    gpus[0].known = false; // NVML does not answer
    beat(node, gpus, 2);
    ck_sample("forepack:gpu_temperature_celsius", -1);
    ck_sample("forepack:gpu_memory_total_bytes", -1);
    ck_sample("forepack:gpu_xid_errors_total" GPU("2"), 2);
    ck_sample("forepack:gpu_healthy" GPU("2"), 0);
    ck_sample("forepack:gpu_drains_total", 0);
    core_draining(f.c, node->node, "rank 2: the GPU is lost", f.now_us);
    core_draining(f.c, node->node, "rank 2: the GPU is lost", f.now_us); // counts only once
    fixture_detach(&f, node);
    write_text(METRICS_TEXT);
    ck_sample("forepack:gpu_drains_total", 1);
    ck_sample("forepack:gpu_healthy", -1); // a node that is gone has no gauges
    ck_sample("forepack:gpu_last_xid", -1);
    ck_sample("forepack:gpu_xid_errors_total" GPU("2"), 2);
    ck_sample("forepack:gpu_ecc_corrected_total", 6);
    ck_sample("forepack:gpu_throttled_seconds_total", 2.5);
}
END_TEST

START_TEST(the_work_of_a_pool_is_predicted_once_costs_are_known)
{
    struct fake_node *node = attach_worker("w");
    fixture_send(&f, 500, 4);
    write_text(METRICS_TEXT);
    ck_sample("forepack:pool_work_seconds", -1);
    for (int i = 1; i < 200; i++) { // 100 us a row
        const struct pass_cost pass = {1 + i % 512, 1 + i % 512, 100 * (1 + i % 512), false};
        core_passed(f.c, node->node, &pass, f.now_us);
    }
    write_text(METRICS_TEXT);
    double held_s = sample("forepack:pool_work_seconds{pool=\"worker\"}");
    ck_assert_double_eq_tol(held_s, 0.05, 0.02);
    for (int i = 0; i < 10; i++)
        fixture_put(&f, "t", 500, 0);
    write_text(METRICS_TEXT);
    ck_assert_double_eq_tol(sample("forepack:pool_work_seconds{pool=\"worker\"}"), 11 * held_s, held_s);
    ck_sample("forepack:worker_queue_tokens ", 5000);
    ck_sample("forepack:num_requests_waiting{pool=\"worker\"}", 10);
    ck_sample("forepack:queue_requests{class=\"normal\"}", 10);
    ck_sample("forepack:queue_tokens{class=\"normal\"}", 5000);
}
END_TEST

SUITE("metrics")
{
    FIXTURE(setup, teardown);
    TEST(a_value_lands_below_the_first_edge_that_is_not_less);
    TEST(each_family_is_announced_once_and_its_samples_follow);
    TEST(label_values_are_escaped);
    TEST(names_follow_the_conventions);
    TEST(the_format_is_what_the_scraper_accepts);
    TEST(process_metrics_are_read);
    TEST(tenants_have_their_own_series_up_to_a_bound);
    LOOP(counts_equal_those_of_an_independent_observer, 1, 5);
    TEST(counters_of_a_node_go_on_when_it_comes_back);
    TEST(nodes_that_are_gone_are_forgotten_oldest_first);
    TEST(heartbeats_bring_kv_use_and_preemptions);
    TEST(heartbeats_bring_the_prompts_that_speculators_hold);
    TEST(heartbeats_bring_the_gpus_of_the_ranks);
    TEST(the_work_of_a_pool_is_predicted_once_costs_are_known);
}
