// SPDX-License-Identifier: Apache-2.0
// The evidence of a score, the choice of a keep rate for a quality, the fit of a calibration, and its file.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "speculator/calibration_fit.h"
#include "tests/suite.h"

// --- evidence

static struct evidence evidence_of(const float *const *steps, int n_steps, int n, bool ended)
{
    struct evidence_sums sums;
    struct evidence evidence;
    float *sum = mem_alloc_array((size_t)n, sizeof *sum);
    evidence_begin(&sums, n, 0, 0);
    for (int k = 0; k < n_steps; k++) {
        evidence_add_step(&sums, sum, steps[k]);
        for (int j = 0; j < n; j++)
            sum[j] += steps[k][j];
    }
    evidence_finish(&sums, sum, n, ended, &evidence);
    free(sum);
    return evidence;
}

START_TEST(evidence_tells_peaks_from_even_importance)
{
    enum { N = 400 };
    float even[N], peak[N], other[N];
    for (int j = 0; j < N; j++) {
        even[j] = 0.01F;
        peak[j] = j < 8 ? 1 : 0;
        other[j] = j >= 200 && j < 208 ? 1 : 0;
    }
    struct evidence flat = evidence_of((const float *[]){even, even}, 2, N, false);
    struct evidence sharp = evidence_of((const float *[]){peak, peak}, 2, N, true);
    struct evidence split = evidence_of((const float *[]){peak, other}, 2, N, true);
    ck_assert_double_eq_tol(flat.entropy, 1, 1e-6);
    for (int r = 0; r < QUALITY_RATES - 1; r++) {
        ck_assert_double_eq_tol(flat.floor[r], 0, 1e-6);
        ck_assert_double_eq_tol(sharp.floor[r], -20, 1e-6);
    }
    ck_assert_double_lt(sharp.entropy, 0.4);
    ck_assert_double_eq_tol(sharp.agreement, 1, 1e-6);
    ck_assert_double_eq_tol(split.agreement, 0, 1e-6);
    ck_assert(sharp.ended == 1);
    ck_assert(flat.ended == 0);
    ck_assert(!flat.has_margins);
}
END_TEST

START_TEST(evidence_leaves_out_the_tail_and_bos)
{
    enum { N = 100 };
    struct evidence_sums sums;
    struct evidence evidence;
    float importance[N];
    for (int j = 0; j < N; j++)
        importance[j] = j < 13 || j >= 75 ? 1000 : 0.5F;
    evidence_begin(&sums, N, 13, 25);
    evidence_add_margin(&sums, 3);
    evidence_add_margin(&sums, (double)INFINITY);
    evidence_finish(&sums, importance, N, false, &evidence);
    ck_assert_double_eq_tol(evidence.entropy, 1, 1e-6);
    ck_assert(evidence.has_margins);
    ck_assert(evidence.margin == 6.5);
    ck_assert(evidence.margin_least == 3);
    evidence_begin(&sums, 5, 13, 1); // shorter than the part that does not count
    evidence_finish(&sums, importance, 5, false, &evidence);
    ck_assert(evidence.floor[0] == 0);
    ck_assert(evidence.entropy == 0);
    ck_assert_int_eq(evidence.tokens, 5);
}
END_TEST

// --- the fit

enum { DOCUMENTS = 2400 };

// Documents of group 0 need few tokens, those of group 1 nearly all. The evidence shows the group, with noise.
static struct fit_document document_make(struct random_source *r, int number)
{
    struct fit_document d = {.group = number / 2 % 2, .counts = number % 17 != 0};
    double spread = (d.group ? 0.75 : 0.25) + 0.2 * (random_unit(r) - 0.5);
    double needed = (d.group ? 0.75 : 0.12) + 0.15 * (random_unit(r) - 0.5);
    d.evidence = (struct evidence){.tokens = 500 + random_below(r, 1000),
                                   .entropy = spread,
                                   .agreement = 1 - spread,
                                   .ended = 1,
                                   .has_margins = true,
                                   .margin = 10 * (1 - spread),
                                   .margin_least = 5 * (1 - spread)};
    for (int k = 0; k < QUALITY_RATES - 1; k++) {
        d.evidence.floor[k] = -10 * quality_rates[k] / spread;
        d.right[k] = quality_rates[k] >= needed;
    }
    return d;
}

static struct fit_document *documents_make(uint64_t seed)
{
    struct fit_document *documents = mem_alloc_array(DOCUMENTS, sizeof *documents);
    struct random_source r = random_stream(seed, 0);
    for (int i = 0; i < DOCUMENTS; i++)
        documents[i] = document_make(&r, i);
    return documents;
}

static struct fit_outcome measure(const struct calibration *c, const struct fit_document *documents, int n,
                                  int n_groups, int group, double quality)
{
    struct predicted_losses *predicted = mem_alloc_array((size_t)n, sizeof *predicted);
    for (int i = 0; i < n; i++)
        calibration_losses(c, &documents[i].evidence, predicted[i].at);
    struct fit_outcome outcome = calibration_measure(c, documents, predicted, n, n_groups, group, quality);
    free(predicted);
    return outcome;
}

static enum status fit(const struct fit_document *documents, int n, struct calibration *c)
{
    struct predicted_losses *predicted = mem_alloc_array((size_t)n, sizeof *predicted);
    enum status status = calibration_fit(documents, n, 2, c, predicted);
    free(predicted);
    return status;
}

static struct calibration made; // a fit takes a second under sanitizers: a fixture makes one, before tests fork

static void fit_once(void)
{
    struct fit_document *documents = documents_make(1);
    made = (struct calibration){.main = {1, 2},
                                .speculator = {3, 2},
                                .look_ahead = 8,
                                .chunk_tokens = 32,
                                .pool_window = 13,
                                .tail_tokens = 128};
    ck_assert_int_eq(fit(documents, DOCUMENTS, &made), STATUS_OK);
    free(documents);
}

START_TEST(the_fit_reaches_the_quality_in_every_group_and_prunes_what_can_be)
{
    struct calibration calibration = made;
    struct fit_document *unseen = documents_make(2);
    for (int margins = 0; margins < 2; margins++) {
        for (int i = 0; i < DOCUMENTS; i++)
            unseen[i].evidence.has_margins = margins;
        for (int t = 0; t < QUALITY_TARGETS; t++) {
            const double q = quality_targets[t];
            struct fit_outcome all = measure(&calibration, unseen, DOCUMENTS, 2, -1, q);
            ck_assert_msg(all.loss <= 1.2 * (1 - q) + 0.01, "quality %g: loss %g", q, all.loss);
            ck_assert_msg(all.loss_worst <= 1.2 * GROUP_LOSS * (1 - q) + 0.01, "quality %g: loss %g in a group", q,
                          all.loss_worst);
        }
        struct fit_outcome easy = measure(&calibration, unseen, DOCUMENTS, 2, 0, 0.98);
        struct fit_outcome hard = measure(&calibration, unseen, DOCUMENTS, 2, 1, 0.98);
        ck_assert_double_lt(easy.kept, 0.35);
        ck_assert_double_gt(hard.kept, 0.9);
    }
    free(unseen);
}
END_TEST

START_TEST(an_answer_that_is_gained_makes_up_for_one_that_is_lost)
{
    struct fit_document documents[12], easy;
    struct random_source r = random_stream(1, 0);
    easy = document_make(&r, 0);
    for (int i = 0; i < 12; i++) { // every second one is right with the full prompt only, the others when pruned
        documents[i] = (struct fit_document){.evidence = easy.evidence, .counts = i % 2};
        for (int k = 0; k < QUALITY_RATES - 1; k++)
            documents[i].right[k] = !documents[i].counts;
    }
    struct fit_outcome outcome = measure(&made, documents, 12, 1, -1, 0.5);
    ck_assert_double_lt(outcome.kept, 1);
    ck_assert(outcome.loss == 0);
    ck_assert(outcome.loss_worst == 0);
}
END_TEST

START_TEST(the_fit_is_the_same_each_time)
{
    struct fit_document *documents = documents_make(1);
    struct calibration first = {.look_ahead = 8}, again = {.look_ahead = 8};
    ck_assert_int_eq(fit(documents, 200, &first), STATUS_OK);
    ck_assert_int_eq(fit(documents, 200, &again), STATUS_OK);
    free(documents);
    ck_assert_uint_eq(calibration_fingerprint(&first), calibration_fingerprint(&again));
    again.fits[1].weights[3] += 1e-6;
    ck_assert_uint_ne(calibration_fingerprint(&first), calibration_fingerprint(&again));
}
END_TEST

START_TEST(too_few_documents_are_refused_and_keep_everything_at_a_high_quality)
{
    struct calibration calibration = {.look_ahead = 8};
    struct fit_document *documents = documents_make(1);
    ck_assert_int_eq(fit(documents, 19, &calibration), STATUS_INVALID);
    ck_assert(strstr(status_message(), "at least 20 are needed"));
    ck_assert_int_eq(fit(documents, 60, &calibration), STATUS_OK);
    struct rate_choice choice = calibration_choose(&calibration, &documents[0].evidence, 0.99);
    ck_assert(choice.rate == 1);
    ck_assert_int_eq(choice.reason, RATE_UNSURE);
    free(documents);
}
END_TEST

// --- the choice

// Pruning loses no answer of these documents, and still a small sample promises little.
START_TEST(a_small_sample_promises_little)
{
    static const struct {
        int n;
        double highest;
    } samples[] = {{49, 0.8}, {50, 0.9}, {100, 0.95}, {300, 0.98}, {499, 0.98}, {500, 0.99}};
    struct fit_document *documents = documents_make(5);
    for (int i = 0; i < 500; i++) {
        documents[i].group = 0;
        documents[i].counts = true;
        for (int r = 0; r < QUALITY_RATES - 1; r++)
            documents[i].right[r] = true;
    }
    for (int k = 0; k < (int)(sizeof samples / sizeof *samples); k++) {
        struct calibration calibration = {.look_ahead = 8};
        ck_assert_int_eq(fit(documents, samples[k].n, &calibration), STATUS_OK);
        ck_assert_double_eq(calibration_highest_quality(&calibration), samples[k].highest);
    }
    ck_assert_int_eq(calibration_documents_for(0.9), 50);
    ck_assert_int_eq(calibration_documents_for(0.99), 500);
    free(documents);
}
END_TEST

START_TEST(a_rate_is_chosen_by_what_it_keeps_and_what_it_may_lose)
{
    const double losses[QUALITY_RATES - 1] = {0.5, 0.3, 0.2, 0.16, 0.15, 0.15, 0.04, 0.02};
    ck_assert_double_eq(rate_at_price(losses, 0).rate, 0.05);
    ck_assert_double_eq(rate_at_price(losses, 0.6).rate, 0.15);
    ck_assert_double_eq(rate_at_price(losses, 2).rate, 0.4);
    ck_assert_double_eq(rate_at_price(losses, 15).rate, 0.6);
    ck_assert_double_eq(rate_at_price(losses, 30).rate, 1);
    ck_assert_double_eq(rate_at_price(losses, (double)INFINITY).rate, 1);
    ck_assert_int_eq(rate_at_price(losses, 15).reason, RATE_QUALITY);
    ck_assert_int_eq(rate_at_price(losses, 30).reason, RATE_UNSURE);
}
END_TEST

START_TEST(a_higher_quality_never_keeps_less)
{
    struct calibration calibration = made;
    struct fit_document *documents = documents_make(3);
    for (int i = 0; i < DOCUMENTS; i += 7) {
        double before = 0;
        for (double quality = 0.01; quality < 1.005; quality += 0.01) {
            struct rate_choice choice = calibration_choose(&calibration, &documents[i].evidence, fmin(quality, 1));
            ck_assert_double_ge(choice.rate, before);
            before = choice.rate;
        }
        ck_assert_double_eq(before, 1);
    }
    free(documents);
}
END_TEST

START_TEST(evidence_out_of_range_keeps_everything)
{
    struct calibration calibration = made;
    struct fit_document *documents = documents_make(1);
    struct evidence known = documents[0].evidence, longer = known, nothing = known;
    ck_assert_double_lt(calibration_choose(&calibration, &known, 0.5).rate, 1);
    longer.tokens = 100000;
    nothing.entropy = (double)NAN;
    const struct rate_choice far = calibration_choose(&calibration, &longer, 0.5);
    const struct rate_choice odd = calibration_choose(&calibration, &nothing, 0.5);
    ck_assert(far.rate == 1);
    ck_assert_int_eq(far.reason, RATE_UNSURE);
    ck_assert(odd.rate == 1);
    ck_assert_int_eq(odd.reason, RATE_UNSURE);
    ck_assert(calibration_choose(&calibration, &known, 1).rate == 1);
    free(documents);
}
END_TEST

START_TEST(only_the_options_of_the_calibration_are_covered)
{
    struct calibration calibration = made;
    struct prefill prefill = {.look_ahead = 8, .chunk_tokens = 32, .pool_window = 13};
    ck_assert(calibration_covers(&calibration, &prefill, 1000, 128));
    ck_assert(calibration_covers(&calibration, &prefill, 100, 25));
    ck_assert(!calibration_covers(&calibration, &prefill, 1000, 64));
    prefill.look_ahead = 4;
    ck_assert(!calibration_covers(&calibration, &prefill, 1000, 128));
    prefill = (struct prefill){.look_ahead = 8, .chunk_tokens = 32, .pool_window = 13, .paper_exact = true};
    ck_assert(!calibration_covers(&calibration, &prefill, 1000, 128));
}
END_TEST

// --- the file

START_TEST(the_file_gives_the_same_calibration)
{
    struct calibration calibration = made, read;
    json_t *object = calibration_to_json(&calibration);
    char *text = json_dumps(object, JSON_REAL_PRECISION(17));
    json_t *again = json_loads(text, 0, NULL);
    ck_assert_msg(calibration_from_json("file", again, &read) == STATUS_OK, "%s", status_message());
    ck_assert_uint_eq(calibration_fingerprint(&read), calibration_fingerprint(&calibration));
    json_decref(object);
    json_decref(again);
    free(text);
}
END_TEST

// With a corpus of an older version the reader would stop at the version number, and the fuzz target would test
// nothing.
START_TEST(the_fuzz_corpus_has_a_file_that_is_read)
{
    struct calibration calibration;
    char path[4096];
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_calibration/usable", getenv("FOREPACK_SOURCE"));
    json_t *object = json_load_file(path, 0, NULL);
    ck_assert_msg(calibration_from_json(path, object, &calibration) == STATUS_OK, "%s", status_message());
    json_decref(object);
}
END_TEST

static const struct wrong_case {
    const char *key, *value, *sentence;
} wrong_cases[] = {
    {"version", "1", "version 1: this program reads version 3"},
    {"version", "\"1\"", "version is a string"},
    {"main", "null", "main is missing"},
    {"main", "{\"model\":\"12\",\"tokenizer\":\"0000000000000002\"}", "16 hexadecimal digits"},
    {"speculator", "[]", "speculator is an array"},
    {"options", "{\"look_ahead\":0}", "look_ahead is 0"},
    {"rates", "[0.1]", "rates has 1 numbers: must be 9"},
    {"targets", "[0.5,0.7,0.8,0.9,0.95,0.97,0.98,0.99,0.999]", "targets[8] is 0.999"},
    {"low", "[0,0,0,0,0,0,1e300]", "low[6]: must be a number of at most"},
    {"high", "[0,0,0,0,0,0,null]", "high[6]"},
    {"fits", "[{}]", "must be a list of two"},
    {"mean", "[0,0,0,0,0,0]", "mean has 6 numbers: must be 7"},
    {"deviation", "[0,0,0,0,0,0,-1e300]", "deviation[6]: must be a number of at most"},
};

START_TEST(wrong_files_are_refused_with_a_sentence)
{
    const struct wrong_case *c = &wrong_cases[_i];
    struct calibration calibration = made, read;
    json_t *object = calibration_to_json(&calibration);
    json_object_set_new(object, c->key, json_loads(c->value, JSON_DECODE_ANY, NULL));
    ck_assert_int_eq(calibration_from_json("file", object, &read), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), c->sentence) != NULL, "%s", status_message());
    ck_assert_msg(strstr(status_message(), "file") != NULL, "%s", status_message());
    json_decref(object);
}
END_TEST

START_TEST(prices_that_fall_are_refused)
{
    struct calibration calibration = made, read;
    calibration.fits[1].prices[3] = 0.9 * calibration.fits[1].prices[2];
    json_t *object = calibration_to_json(&calibration);
    ck_assert_int_eq(calibration_from_json("file", object, &read), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "file: prices[3]: must not be below the price before it"), "%s",
                  status_message());
    json_decref(object);
    calibration.fits[1].prices[0] = -1;
    object = calibration_to_json(&calibration);
    ck_assert_int_eq(calibration_from_json("file", object, &read), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "file: prices[0]: must not be below 0"), "%s", status_message());
    json_decref(object);
}
END_TEST

START_TEST(a_calibration_of_another_speculator_is_refused)
{
    struct calibration calibration = made;
    ck_assert_int_eq(calibration_check(&calibration, "dir", &(struct calibration_model){3, 2}), STATUS_OK);
    ck_assert_int_eq(calibration_check(&calibration, "dir", &(struct calibration_model){4, 2}), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "dir/calibration.json: made for a speculator with fingerprint "
                                           "0000000000000003, this one has 0000000000000004"),
                  "%s", status_message());
    ck_assert_int_eq(calibration_check(&calibration, "dir", &(struct calibration_model){3, 5}), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "tokenizer fingerprint 000000000000000"), "%s", status_message());
    ck_assert_msg(strstr(status_message(), "this one has 0000000000000005"), "%s", status_message());
    ck_assert_int_eq(calibration_read("/nowhere", &calibration), STATUS_NOT_FOUND);
}
END_TEST

SUITE("calibration")
{
    TIMEOUT(60);
    FIXTURE_ONCE(fit_once, NULL);
    TEST(evidence_tells_peaks_from_even_importance);
    TEST(evidence_leaves_out_the_tail_and_bos);
    TEST(the_fit_reaches_the_quality_in_every_group_and_prunes_what_can_be);
    TEST(an_answer_that_is_gained_makes_up_for_one_that_is_lost);
    TEST(the_fit_is_the_same_each_time);
    TEST(too_few_documents_are_refused_and_keep_everything_at_a_high_quality);
    TEST(a_small_sample_promises_little);
    TEST(a_rate_is_chosen_by_what_it_keeps_and_what_it_may_lose);
    TEST(a_higher_quality_never_keeps_less);
    TEST(evidence_out_of_range_keeps_everything);
    TEST(only_the_options_of_the_calibration_are_covered);
    TEST(the_file_gives_the_same_calibration);
    TEST(the_fuzz_corpus_has_a_file_that_is_read);
    EACH(wrong_files_are_refused_with_a_sentence, wrong_cases);
    TEST(prices_that_fall_are_refused);
    TEST(a_calibration_of_another_speculator_is_refused);
}
