// SPDX-License-Identifier: Apache-2.0
// bench/: what a pass has to do is counted as by hand, however a prompt is cut; rounds report the middle and run
// contenders turn by turn; a probe answers in its own process. No speeds: those are what it measures.
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/memory.h"
#include "bench/passes.h"
#include "bench/report.h"
#include "bench/rounds.h"

// ---- work -----------------------------------------------------------------------------------------------------------

START_TEST(a_pass_is_counted_as_by_hand)
{
    // 2 layers of q [6 x 4], k and v [2 x 4], o [4 x 6], gate, up and down of 5; head 10 x 4.
    const struct model_config config = {
        .n_layers = 2, .hidden = 4, .intermediate = 5, .n_heads = 3, .n_kv_heads = 1, .head_size = 2, .vocab_size = 10};
    struct work_model model = work_model_of(&config, 2, 100);
    const double layers = 2 * (6 * 4 + 2 * 2 * 4 + 4 * 6 + 3 * 5 * 4), head = 40;
    ck_assert_double_eq(model.layer_weights, layers);
    // 3 rows of a new sequence, 2 rows after 7 entries; logits of one row.
    static const int32_t row_start[] = {0, 3, 5}, kv_len[] = {0, 7};
    struct ragged_batch batch = {.n_rows = 5, .n_seqs = 2, .row_start = row_start, .kv_len = kv_len, .n_logit_rows = 1};
    struct work work = work_of(&model, &batch);
    ck_assert_double_eq_tol(work.linear_gflop * 1e9, 2 * (layers * 5 + head), 1e-6);
    double pairs = (1 + 2 + 3) + (8 + 9); // each of q k and p v: 2 * D * H * layers
    ck_assert_double_eq_tol(work.attention_gflop * 1e9, pairs * 2 * (2 * 2 * 3) * 2, 1e-6);
    ck_assert_double_eq_tol(work.gbytes * 1e9, (layers + head) * 2 + 7 * 100, 1e-6);
    batch.n_logit_rows = 0; // the head is not even read
    work = work_of(&model, &batch);
    ck_assert_double_eq_tol(work.gbytes * 1e9, layers * 2 + 7 * 100, 1e-6);
}
END_TEST

// ---- passes ---------------------------------------------------------------------------------------------------------

static struct engine *open_engine(const struct passes_limits *limits, struct comm **comm_p)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *path = mem_format("%s/tests/data/shapes/tiny.json", source ? source : ".");
    const struct model_options options = {.dir = path,
                                          .dummy = true,
                                          .backend = "cpu",
                                          .dtype = "auto",
                                          .threads = 1,
                                          .max_rows = limits->rows,
                                          .max_seqs = limits->seqs,
                                          .max_context = limits->context,
                                          .n_kv_blocks = limits->kv_blocks};
    struct engine *engine;
    ck_assert_int_eq(comm_open_self(comm_p), STATUS_OK);
    ck_assert_msg(engine_open(&options, *comm_p, &engine) == STATUS_OK, "%s", status_message());
    free(path);
    return engine;
}

// The backend refuses rows, entries and blocks that do not fit, so that every pass runs is half of the test.
START_TEST(prompts_are_packed_and_cut_to_the_budget)
{
    enum { PROMPTS = 3, TOKENS = 50, STEPS = 4 };
    static const int budgets[] = {1024, 150, 64, 7};
    struct work whole = {0};
    for (int i = 0; i < 4; i++) {
        const struct passes_limits limits = {budgets[i], PROMPTS, TOKENS + STEPS, PROMPTS * 4};
        struct comm *comm;
        struct engine *engine = open_engine(&limits, &comm);
        const struct work_model model = work_model_of(model_get_config(engine_model(engine)), 2, 256);
        struct passes *passes = passes_create(engine, &limits, &model);
        passes_set_entries(passes, TOKENS + STEPS);
        struct work work = {0}, decode = {0};
        double seconds = 0;
        ck_assert_msg(passes_prefill(passes, 0, PROMPTS, TOKENS, &work, &seconds) == STATUS_OK, "%s", status_message());
        ck_assert(seconds > 0);
        if (i == 0) whole = work;
        // Chunks attend to what is cached: the same pairs. Only the weights are read more often.
        ck_assert_double_eq_tol(work.linear_gflop, whole.linear_gflop, 1e-12);
        ck_assert_double_eq_tol(work.attention_gflop, whole.attention_gflop, 1e-12);
        int passes_needed = (PROMPTS * TOKENS + budgets[i] - 1) / budgets[i];
        ck_assert_double_ge(work.gbytes, passes_needed * model.layer_weights * 2 / 1e9);
        ck_assert_msg(passes_decode(passes, PROMPTS, TOKENS, STEPS, &decode, NULL) == STATUS_OK, "%s",
                      status_message());
        double weights = model.layer_weights + model.head_weights;
        ck_assert_double_eq_tol(decode.linear_gflop * 1e9, 2 * weights * PROMPTS * STEPS, 1e-3);
        double pairs = PROMPTS * (51 + 52 + 53 + 54);
        ck_assert_double_eq_tol(decode.attention_gflop * 1e9, pairs * model.attention_flop, 1e-3);
        passes_free(passes);
        engine_close(engine);
        comm->ops->close(comm);
    }
}
END_TEST

// ---- rounds ---------------------------------------------------------------------------------------------------------

struct script {
    const double *seconds;
    int n, at;
    int *order, *n_order, mark; // who ran when
};

static enum status play(struct contender *self, double *seconds_p)
{
    struct script *s = self->context;
    s->order[(*s->n_order)++] = s->mark;
    if (s->at == s->n) return status_fail(STATUS_UNAVAILABLE, "the script is over");
    *seconds_p = s->seconds[s->at++];
    self->gflop = 1;
    return STATUS_OK;
}

START_TEST(the_middle_round_counts_and_contenders_take_turns)
{
    // The first run warms up; a round of contender b repeats until 10 ms.
    static const double a[] = {9, 3, 1, 2}, b[] = {9, 0.004, 0.008, 0.02, 0.02};
    static const int expected[] = {1, 2, 1, 2, 2, 1, 2, 1, 2};
    int order[32], n_order = 0;
    struct script first = {a, 4, 0, order, &n_order, 1}, second = {b, 5, 0, order, &n_order, 2};
    struct contender contenders[2] = {{.run = play, .context = &first}, {.run = play, .context = &second}};
    struct measurement m[2];
    struct rounds_readings readings;
    const struct rounds rounds = {.rounds = 3, .min_ms = 10};
    ck_assert_int_eq(rounds_run(&rounds, contenders, 2, m, &readings), STATUS_OK);
    ck_assert_double_eq_tol(m[0].seconds, 2, 1e-9);
    ck_assert_double_eq_tol(m[0].spread, (3 - 1) / 2., 1e-9);
    ck_assert_double_eq_tol(m[1].seconds, 0.02, 1e-9); // of 0.006, 0.02, 0.02
    ck_assert_int_eq(n_order, 9);
    ck_assert_mem_eq(order, expected, sizeof expected);
    ck_assert_int_eq(readings.n, 0);
    ck_assert(isnan(m[0].share) && isnan(readings.mean.gflops));
    // A contender that fails ends it.
    ck_assert_int_eq(rounds_run(&rounds, contenders, 2, m, &readings), STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(a_probe_reads_every_type_and_takes_no_memory_here)
{
    struct probe *probe;
    ck_assert_int_eq(probe_open(2, 5, &probe), STATUS_OK);
    double before = memory_peak_mb(getpid());
    for (int type = 0; type < PROBE_TYPES; type++) {
        struct probe_reading reading;
        ck_assert_msg(probe_read(probe, (enum probe_type)type, &reading) == STATUS_OK, "%s", status_message());
        ck_assert(reading.gflops > 0 && reading.gbytes_per_s > 0);
        printf("%s: %.3g GFLOP/s, %.3g GB/s\n", reading.instruction, reading.gflops, reading.gbytes_per_s);
    }
    ck_assert(before > 0);
    ck_assert_double_lt(memory_peak_mb(getpid()) - before, 100); // it streams through 256 MiB

    static const double seconds[] = {1, 1, 1, 1};
    int order[32], n_order = 0;
    struct script script = {seconds, 3, 0, order, &n_order, 1};
    struct contender contender = {.run = play, .context = &script};
    struct measurement m;
    struct rounds_readings readings;
    const struct rounds rounds = {.probe = probe, .rounds = 2};
    ck_assert_int_eq(rounds_run(&rounds, &contender, 1, &m, &readings), STATUS_OK);
    ck_assert_int_eq(readings.n, 3); // before, between and after
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += readings.all[i].gflops;
    ck_assert_double_eq_tol(readings.mean.gflops, sum / 3, 1e-9 * sum);
    // 10^9 operations in a second: the share is one over the reading, and between those of the extremes.
    ck_assert(!m.memory_bound && m.share > 0);
    probe_close(probe);
}
END_TEST

// ---- report ---------------------------------------------------------------------------------------------------------

// The whole file as a string, to be freed.
static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    ck_assert(file != NULL);
    char *text = mem_alloc(1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    text[size] = 0;
    fclose(file);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

START_TEST(a_page_has_its_tables_and_plots_and_needs_nothing_else)
{
    char path[] = "/tmp/forepack-report-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    struct report *report;
    ck_assert_int_eq(report_open(path, "A <b> & \"c\"", &report), STATUS_OK);
    report_heading(report, "Part");
    report_paragraph(report, "%d < %d", 1, 2);
    json_t *rows = json_pack("[{s:s,s:f,s:i},{s:s,s:n}]", "policy", "<none>", "ms", 1234.5, "rows", 7, "policy", "x", "ms");
    const char *const columns[] = {"policy=Policy", "ms=Time", "rows"};
    report_table(report, rows, columns, 3);
    // A point without a place on a log axis and one that is no number are left out: 3 of 5 are drawn.
    const double x[] = {1, 10, 100}, y[] = {0, 0.5, 20}, z[] = {NAN, 3, 1e6};
    const struct report_series series[] = {{"a", x, y, 3}, {"b", x, z, 2}};
    report_lines(report, &(struct report_chart){"t", "x", "y", true, true, series, 2});
    report_lines(report, &(struct report_chart){"nothing", "x", "y", false, false, NULL, 0});
    const char *const groups[] = {"4", "8"}, *const names[] = {"padded", "batch"};
    const double values[] = {3, 4, 1, NAN};
    report_bars(report, &(struct report_bars){"bars", "ms", groups, 2, names, 2, values});
    ck_assert_int_eq(report_close(report), STATUS_OK);
    char *page = read_file(path);
    ck_assert_ptr_nonnull(strstr(page, "<h1>A &lt;b&gt; &amp; &quot;c&quot;</h1>"));
    ck_assert_ptr_nonnull(strstr(page, "<p>1 &lt; 2</p>"));
    ck_assert_ptr_nonnull(strstr(page, "<td>&lt;none&gt;</td><td>1234</td><td>7</td>")); // 4 digits and more: whole
    ck_assert_ptr_nonnull(strstr(page, "<td>x</td><td></td><td></td>"));
    ck_assert_int_eq(count(page, "<svg "), 3);
    ck_assert_int_eq(count(page, "</svg>"), 3);
    ck_assert_int_eq(count(page, "<circle "), 3);
    ck_assert_int_eq(count(page, "</title></rect>"), 3);
    ck_assert_int_eq(count(page, "nan") + count(page, "inf"), 0);
    ck_assert_int_eq(count(page, "http") + count(page, "<script"), 0);
    ck_assert_int_eq(count(page, "</body></html>"), 1);
    free(page);
    json_decref(rows);
    unlink(path);
    ck_assert_int_eq(report_open("/no/such/place/page.html", "x", &report), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "/no/such/place/page.html"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench");
    TCase *tests = tcase_create("bench");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_pass_is_counted_as_by_hand);
    tcase_add_test(tests, prompts_are_packed_and_cut_to_the_budget);
    tcase_add_test(tests, the_middle_round_counts_and_contenders_take_turns);
    tcase_add_test(tests, a_probe_reads_every_type_and_takes_no_memory_here);
    tcase_add_test(tests, a_page_has_its_tables_and_plots_and_needs_nothing_else);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
