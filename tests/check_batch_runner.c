// SPDX-License-Identifier: Apache-2.0
// router/batch: batches from their creation to their results, with restarts in between.
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/base/clock.h"
#include "router/batch/batch_runner.h"
#include "tests/batch_folder.h"

#define CHAT "/v1/chat/completions"
enum { LINES = 5, WAIT_S = 60, CALLS_MAX = 64 };

// --- the owner of the runner: answers requests, or keeps them

struct call {
    struct batch_start start;
    bool open;
};
static struct call calls[CALLS_MAX];
static int n_calls;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int answers_left; // further requests are kept
static atomic_int refusals_left;
static atomic_int window, end_above;
static int http_status;
static size_t answer_bytes;

static void answer(const struct batch_start *start)
{
    static const char usage[] = "{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
                                "\"prompt_tokens_details\":{\"cached_tokens\":1}}";
    char *body = mem_format("{\"to\":%s,\"pad\":\"%0*d\",\"model\":\"m\",\"usage\":%s}", start->body, (int)answer_bytes,
                            0, usage);
    start->respond(start->arg, http_status, body, strlen(body));
    free(body);
}

static void *start_call(void *user, const struct batch_start *start, char request_id[BATCH_REQUEST_ID_ROOM])
{
    snprintf(request_id, BATCH_REQUEST_ID_ROOM, "req-1");
    pthread_mutex_lock(&calls_lock);
    struct call *call = &calls[n_calls++ % CALLS_MAX];
    *call = (struct call){*start, true};
    pthread_mutex_unlock(&calls_lock);
    if (atomic_fetch_sub(&refusals_left, 1) > 0) {
        start->respond(start->arg, 429, "{}", 2);
    } else if (atomic_fetch_sub(&answers_left, 1) > 0) {
        answer(start);
    }
    return call;
}

static void close_call(void *user, void *handle)
{
    struct call *call = handle;
    free(call->start.body);
    call->open = false;
}

static struct batch_window get_window(void *user)
{
    return (struct batch_window){atomic_load(&window), atomic_load(&end_above)};
}

static const struct batch_ops ops = {start_call, close_call, get_window, NULL};

// --- the runner

static struct batch_runner *runner;
static char input_id[BATCH_ID_ROOM], batch_id[BATCH_ID_ROOM];

static void runner_open(void)
{
    ck_assert_msg(batch_runner_open(store, &ops, &runner) == STATUS_OK, "%s", status_message());
}

static void restart(void)
{
    batch_runner_close(runner);
    store_reopen();
    runner_open();
}

static void setup(void)
{
    folder_create();
    n_calls = 0;
    atomic_store(&answers_left, 1000);
    atomic_store(&refusals_left, 0);
    atomic_store(&window, 2);
    atomic_store(&end_above, 1000);
    http_status = 200;
    answer_bytes = 1;
    runner_open();
}

static void teardown(void)
{
    batch_runner_close(runner);
    folder_remove();
}

struct reply {
    atomic_bool done;
    enum status status;
    json_t *object;
};

static void note_reply(void *arg, enum status status, json_t *object)
{
    struct reply *reply = arg;
    reply->status = status;
    reply->object = object;
    atomic_store(&reply->done, true);
}

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        int64_t end_us = clock_now_us() + WAIT_S * 1000000LL;                                                          \
        while (!(condition) && clock_now_us() < end_us)                                                                \
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);                                                   \
        ck_assert_msg(condition, "%s", #condition);                                                                    \
    } while (0)

static enum status reply_take(struct reply *reply)
{
    AWAIT(atomic_load(&reply->done));
    const char *id = json_string_value(json_object_get(reply->object, "id"));
    if (id) snprintf(batch_id, sizeof batch_id, "%s", id);
    json_decref(reply->object);
    return reply->status;
}

static enum status create_for(const char *tenant)
{
    struct reply reply = {.done = false};
    const struct batch_params params = {tenant, "", CHAT, input_id, NULL, 0};
    batch_runner_create(runner, &params, note_reply, &reply);
    return reply_take(&reply);
}

static void create(const char *input)
{
    ck_assert_int_eq(store_text("a", "in.jsonl", input, input_id), STATUS_OK);
    ck_assert_int_eq(create_for("a"), STATUS_OK);
}

static enum status cancel(const char *tenant)
{
    struct reply reply = {.done = false};
    batch_runner_cancel(runner, tenant, batch_id, note_reply, &reply);
    return reply_take(&reply);
}

static json_t *get(void)
{
    json_t *object;
    ck_assert_int_eq(batch_table_get(batch_runner_table(runner), "a", batch_id, &object), STATUS_OK);
    return object;
}

static bool state_is(const char *state)
{
    json_t *object = get();
    bool equal = strcmp(json_string_value(json_object_get(object, "status")), state) == 0;
    json_decref(object);
    return equal;
}

static int count(const char *name)
{
    json_t *object = get();
    int n = (int)json_integer_value(json_object_get(json_object_get(object, "request_counts"), name));
    json_decref(object);
    return n;
}

// Returns the text of a result, or NULL if the batch has none. The caller frees it.
static char *result_text(const char *name)
{
    json_t *object = get();
    const char *id = json_string_value(json_object_get(object, name));
    char *text = id ? stored_text("a", id) : NULL;
    ck_assert_int_eq(text != NULL, id != NULL);
    json_decref(object);
    return text;
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (; text && (text = strstr(text, part)); text++)
        n++;
    return n;
}

// Each request has one line in the results, and the output has `n` of them.
static void expect_results(int n)
{
    char *output = result_text("output_file_id"), *errors = result_text("error_file_id");
    for (int i = 0; i < LINES; i++) {
        char id[32];
        snprintf(id, sizeof id, "\"custom_id\":\"r%d\"", i);
        ck_assert_int_eq(occurrences(output, id) + occurrences(errors, id), 1);
    }
    ck_assert_int_eq(occurrences(output, "\n"), n);
    ck_assert_int_eq(occurrences(errors, "\n"), LINES - n);
    ck_assert_int_eq(count("completed"), n);
    ck_assert_int_eq(count("failed"), LINES - n);
    free(output);
    free(errors);
}

#define LINE_OF(id) "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"" CHAT "\",\"body\":{\"n\":1}}\n"
static const char input[] =
    LINE_OF("r0") LINE_OF("r1") "\n" LINE_OF("r2") LINE_OF("r3") LINE_OF("r4"); // a blank line is no request

static char *file_path(const char *folder, const char *id, const char *suffix)
{
    return mem_format("%s/%s/%s%s", batch_folder, folder, id, suffix);
}

// Replaces `from` by `to` in the record of the batch.
static void edit_record(const char *from, const char *to)
{
    char *path = file_path("batches", batch_id, ".json"), text[8192] = "";
    FILE *file = fopen(path, "r");
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    char *at = strstr(text, from);
    ck_assert_ptr_nonnull(at);
    file = fopen(path, "w");
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    free(path);
}

// --- tests

START_TEST(a_batch_is_completed)
{
    create(input);
    AWAIT(state_is("completed"));
    expect_results(LINES);
    ck_assert_int_eq(count("total"), LINES);
    ck_assert_int_eq(file_store_delete(store, "a", input_id), STATUS_OK);
    restart();
    ck_assert(state_is("completed"));
    expect_results(LINES);
}
END_TEST

START_TEST(an_input_may_be_deleted_while_its_batch_runs)
{
    atomic_store(&answers_left, 0);
    create(input);
    AWAIT(state_is("in_progress"));
    ck_assert_int_eq(file_store_delete(store, "a", input_id), STATUS_OK);
    atomic_store(&answers_left, 1000);
    restart();
    AWAIT(state_is("completed"));
    expect_results(LINES);
}
END_TEST

START_TEST(a_wrong_input_fails_with_the_numbers_of_its_lines)
{
    create(LINE_OF("r0") "\nno JSON\n" LINE_OF("r0") "{}\n");
    AWAIT(state_is("failed"));
    json_t *object = get(), *errors = json_object_get(json_object_get(object, "errors"), "data");
    static const struct {
        int line;
        const char *code;
    } expected[] = {{3, "invalid_json_line"}, {4, "duplicate_custom_id"}, {5, "missing_required_parameter"}};
    ck_assert_uint_eq(json_array_size(errors), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *error = json_array_get(errors, i);
        ck_assert_int_eq(json_integer_value(json_object_get(error, "line")), expected[i].line);
        ck_assert_str_eq(json_string_value(json_object_get(error, "code")), expected[i].code);
    }
    ck_assert(json_is_null(json_object_get(object, "output_file_id")));
    json_decref(object);
    ck_assert_int_eq(n_calls, 0);
    restart();
    ck_assert(state_is("failed"));
}
END_TEST

START_TEST(an_empty_input_fails)
{
    create("\n\n");
    AWAIT(state_is("failed"));
}
END_TEST

START_TEST(a_refused_request_is_an_error_of_its_line)
{
    http_status = 400;
    create(input);
    AWAIT(state_is("completed"));
    expect_results(0);
}
END_TEST

START_TEST(a_request_that_the_router_cannot_take_now_is_sent_again)
{
    atomic_store(&refusals_left, 3);
    create(input);
    AWAIT(state_is("completed"));
    expect_results(LINES);
    ck_assert_uint_ge(batch_runner_count(runner).retried, 3);
}
END_TEST

START_TEST(no_more_requests_than_the_window_are_in_flight)
{
    atomic_store(&answers_left, 0);
    create(input);
    AWAIT(batch_runner_count(runner).in_flight == 2);
    restart(); // a step of the runner has passed
    AWAIT(batch_runner_count(runner).in_flight == 2);
    ck_assert_int_eq(n_calls, 4);
}
END_TEST

START_TEST(requests_end_and_start_again_with_the_window)
{
    atomic_store(&answers_left, 0);
    atomic_store(&window, 4);
    create(input);
    AWAIT(batch_runner_count(runner).in_flight == 4);
    atomic_store(&window, 1);
    atomic_store(&end_above, 1);
    AWAIT(batch_runner_count(runner).in_flight == 1);
    ck_assert(calls[0].open); // the one that was started first
    atomic_store(&answers_left, 1000);
    atomic_store(&window, 4);
    answer(&calls[0].start);
    AWAIT(state_is("completed"));
    expect_results(LINES);
}
END_TEST

// Stops after any number of answers, and continues.
START_TEST(a_restart_loses_no_answer_and_repeats_none)
{
    atomic_store(&answers_left, _i);
    create(input);
    AWAIT(state_is("in_progress") && count("completed") == _i);
    atomic_store(&answers_left, 1000);
    restart();
    AWAIT(state_is("completed"));
    expect_results(LINES);
}
END_TEST

static int usage_of(const char *name)
{
    json_t *object = get();
    int n = (int)json_integer_value(json_object_get(json_object_get(object, "usage"), name));
    json_decref(object);
    return n;
}

START_TEST(a_finished_batch_has_the_usage_of_all_answers)
{
    atomic_store(&answers_left, 2);
    create(input);
    AWAIT(count("completed") == 2);
    json_t *object = get();
    ck_assert_ptr_null(json_object_get(object, "usage"));
    json_decref(object);
    atomic_store(&answers_left, 1000);
    restart();
    AWAIT(state_is("completed"));
    restart();
    ck_assert_int_eq(usage_of("input_tokens"), 3 * LINES);
    ck_assert_int_eq(usage_of("output_tokens"), 2 * LINES);
    ck_assert_int_eq(usage_of("total_tokens"), 5 * LINES);
    object = get();
    const json_t *details = json_object_get(json_object_get(object, "usage"), "input_tokens_details");
    ck_assert_int_eq(json_integer_value(json_object_get(details, "cached_tokens")), LINES);
    ck_assert_str_eq(json_string_value(json_object_get(object, "model")), "m");
    json_decref(object);
}
END_TEST

// A folder stands where the answers should be, so that they cannot be read. The batch does not end without its usage.
START_TEST(answers_that_cannot_be_read_are_counted_later)
{
    atomic_store(&answers_left, LINES - 1);
    create(input);
    AWAIT(count("completed") == LINES - 1);
    AWAIT(batch_runner_count(runner).in_flight == 1);
    char *results = file_path("batches", batch_id, ".output"), *aside = file_path("batches", batch_id, ".aside");
    ck_assert_int_eq(rename(results, aside), 0);
    ck_assert_int_eq(mkdir(results, 0700), 0);
    atomic_store(&answers_left, 1000);
    answer(&calls[LINES - 1].start);
    AWAIT(state_is("finalizing"));
    batch_runner_close(runner);
    ck_assert_int_eq(rmdir(results), 0);
    ck_assert_int_eq(rename(aside, results), 0);
    store_reopen();
    runner_open();
    AWAIT(state_is("completed"));
    expect_results(LINES);
    ck_assert_int_eq(usage_of("input_tokens"), 3 * LINES);
    free(results);
    free(aside);
}
END_TEST

// The record says that the results are complete, but the crash came before the batch's end: 0 to 2 of the steps that
// make the output a file had happened.
START_TEST(a_crash_at_the_end_of_a_batch_is_repaired)
{
    create(input);
    AWAIT(state_is("completed"));
    json_t *object = get();
    const char *output = json_string_value(json_object_get(object, "output_file_id"));
    char *content = file_path("files", output, ""), *record = file_path("files", output, ".json");
    char *results = file_path("batches", batch_id, ".output");
    batch_runner_close(runner);
    edit_record("\"status\":\"completed\"", "\"status\":\"finalizing\"");
    if (_i < 2) ck_assert_int_eq(rename(content, results), 0);
    if (_i < 1) ck_assert_int_eq(unlink(record), 0);
    store_reopen();
    runner_open();
    AWAIT(state_is("completed"));
    expect_results(LINES);
    ck_assert_int_eq(access(results, F_OK), -1);
    json_decref(object);
    free(content);
    free(record);
    free(results);
}
END_TEST

START_TEST(a_cancelled_batch_keeps_its_answers)
{
    atomic_store(&answers_left, 2);
    create(input);
    AWAIT(state_is("in_progress") && count("completed") == 2);
    ck_assert_int_eq(cancel("b"), STATUS_NOT_FOUND);
    ck_assert_int_eq(cancel("a"), STATUS_OK);
    if (_i) restart();
    AWAIT(state_is("cancelled"));
    expect_results(2);
    char *errors = result_text("error_file_id");
    ck_assert_int_eq(occurrences(errors, "\"code\":\"batch_cancelled\""), LINES - 2);
    free(errors);
    ck_assert_int_eq(cancel("a"), STATUS_OK);
}
END_TEST

START_TEST(a_finished_batch_cannot_be_cancelled)
{
    create(input);
    AWAIT(state_is("completed"));
    ck_assert_int_eq(cancel("a"), STATUS_EXISTS);
}
END_TEST

START_TEST(an_expired_batch_keeps_its_answers)
{
    atomic_store(&answers_left, 2);
    create(input);
    AWAIT(state_is("in_progress") && count("completed") == 2);
    json_t *object = get();
    char *now = mem_format("\"expires_at\":%lld", (long long)json_integer_value(json_object_get(object, "expires_at")));
    json_decref(object);
    batch_runner_close(runner);
    edit_record(now, "\"expires_at\":1234567890");
    store_reopen();
    runner_open();
    AWAIT(state_is("expired"));
    expect_results(2);
    char *errors = result_text("error_file_id");
    ck_assert_int_eq(occurrences(errors, "\"code\":\"batch_expired\""), LINES - 2);
    free(errors);
    free(now);
}
END_TEST

START_TEST(a_full_disk_ends_a_batch_with_its_answers)
{
    struct rlimit before, small;
    atomic_store(&window, 1);
    atomic_store(&answers_left, 0);
    answer_bytes = 10000;
    create(input);
    AWAIT(state_is("in_progress"));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 25000;
    setrlimit(RLIMIT_FSIZE, &small);
    atomic_store(&answers_left, 1000);
    restart();
    AWAIT(state_is("failed"));
    setrlimit(RLIMIT_FSIZE, &before);
    char *output = result_text("output_file_id");
    ck_assert_int_eq(occurrences(output, "\n"), 2);
    ck_assert_int_eq(count("completed"), 2);
    json_t *object = get();
    const json_t *error = json_array_get(json_object_get(json_object_get(object, "errors"), "data"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(error, "code")), "storage_full");
    json_decref(object);
    free(output);
}
END_TEST

START_TEST(a_reached_bound_of_bytes_ends_a_batch_with_its_answers)
{
    answer_bytes = 900000;
    create(input);
    AWAIT(state_is("failed"));
    ck_assert_int_eq(count("completed"), 3); // of 3 MiB
}
END_TEST

START_TEST(another_tenant_can_neither_use_an_input_nor_see_a_batch)
{
    json_t *object;
    bool more;
    create(input);
    ck_assert_int_eq(create_for("b"), STATUS_NOT_FOUND);
    AWAIT(state_is("completed"));
    struct batch_table *table = batch_runner_table(runner);
    ck_assert_int_eq(batch_table_get(table, "b", batch_id, &object), STATUS_NOT_FOUND);
    ck_assert_int_eq(batch_table_list(table, "b", NULL, 10, &object, &more), STATUS_OK);
    ck_assert_uint_eq(json_array_size(object), 0);
    json_decref(object);
    ck_assert_int_eq(batch_table_list(table, "b", batch_id, 10, &object, &more), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(batches_are_listed_newest_first_in_pages)
{
    json_t *list;
    bool more;
    create(input);
    create(input);
    struct batch_table *table = batch_runner_table(runner);
    ck_assert_int_eq(batch_table_list(table, "a", NULL, 1, &list, &more), STATUS_OK);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "id")), batch_id);
    ck_assert(more);
    json_decref(list);
    ck_assert_int_eq(batch_table_list(table, "a", batch_id, 1, &list, &more), STATUS_OK);
    ck_assert_uint_eq(json_array_size(list), 1);
    ck_assert(!more);
    json_decref(list);
}
END_TEST

SUITE("batch_runner")
{
    FIXTURE(setup, teardown);
    TEST(a_batch_is_completed);
    TEST(an_input_may_be_deleted_while_its_batch_runs);
    TEST(a_wrong_input_fails_with_the_numbers_of_its_lines);
    TEST(an_empty_input_fails);
    TEST(a_refused_request_is_an_error_of_its_line);
    TEST(a_request_that_the_router_cannot_take_now_is_sent_again);
    TEST(no_more_requests_than_the_window_are_in_flight);
    TEST(requests_end_and_start_again_with_the_window);
    LOOP(a_restart_loses_no_answer_and_repeats_none, 0, LINES);
    TEST(a_finished_batch_has_the_usage_of_all_answers);
    TEST(answers_that_cannot_be_read_are_counted_later);
    LOOP(a_crash_at_the_end_of_a_batch_is_repaired, 0, 3);
    LOOP(a_cancelled_batch_keeps_its_answers, 0, 2);
    TEST(a_finished_batch_cannot_be_cancelled);
    TEST(an_expired_batch_keeps_its_answers);
    TEST(a_full_disk_ends_a_batch_with_its_answers);
    TEST(a_reached_bound_of_bytes_ends_a_batch_with_its_answers);
    TEST(another_tenant_can_neither_use_an_input_nor_see_a_batch);
    TEST(batches_are_listed_newest_first_in_pages);
}
