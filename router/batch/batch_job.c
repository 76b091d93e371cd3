// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/hash.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

enum { STEP_LINES = 64, STEP_BYTES = 1 << 20, HASHES = 1 << 17, ANSWER_BYTES = 256 << 20 };
#define RETRY_US 1000000
#define SYNC_US  1000000

static const char *const suffixes[BATCH_RESULTS] = {".output", ".errors"};

// --- changes of the batch, which other threads read

static void set_state(struct batch_job *job, enum batch_state state)
{
    pthread_mutex_lock(&job->table->lock);
    batch_set_state(job->b, state);
    pthread_mutex_unlock(&job->table->lock);
    log_event(LOG_INFO, "batch_state", LOG_FIELD("batch", job->b->id), LOG_FIELD("state", batch_state_name(state)),
              LOG_FIELD("total", job->b->total), LOG_FIELD("completed", job->b->completed),
              LOG_FIELD("failed", job->b->failed));
}

static void set_counts(struct batch_job *job)
{
    pthread_mutex_lock(&job->table->lock);
    job->b->completed = job->results.lines[BATCH_OUTPUT];
    job->b->failed = job->results.lines[BATCH_ERRORS];
    pthread_mutex_unlock(&job->table->lock);
}

static void add_error(struct batch_job *job, const struct batch_error *error)
{
    pthread_mutex_lock(&job->table->lock);
    batch_add_error(job->b, error);
    pthread_mutex_unlock(&job->table->lock);
}

static void remove_file(const struct batch_job *job, const char *suffix)
{
    char *path = batch_table_path(job->table, job->b->id, suffix);
    unlink(path);
    free(path);
}

// --- the end of a phase

static void close_input(struct batch_job *job)
{
    line_reader_close(&job->reader);
    job->line = job->index = 0;
}

static void set_ending(struct batch_job *job, enum batch_phase phase, enum batch_state ending)
{
    job->b->ending = ending;
    job->phase = phase;
    close_input(job);
}

// Ends the batch because its results cannot be stored. Frees the room that was kept for the end of the batch.
static void give_up(struct batch_job *job, enum status status)
{
    struct batch_error error;
    batch_error_set(&error, status == STATUS_EXHAUSTED ? "storage_full" : "storage_error", "", status_message());
    log_event(LOG_ERROR, "batch_gave_up", LOG_FIELD("batch", job->b->id), LOG_REASON);
    add_error(job, &error);
    remove_file(job, ".reserve");
    set_ending(job, PHASE_SEAL, BATCH_FAILED);
}

bool batch_job_gave_up(const struct batch_job *job)
{
    return job->phase > PHASE_RUN && job->b->ending == BATCH_FAILED;
}

// A step failed that is tried again later.
static void retry_later(struct batch_job *job)
{
    log_event_limited(LOG_ERROR, "batch_not_saved", LOG_FIELD("batch", job->b->id), LOG_REASON);
    job->retry_us = clock_now_us() + RETRY_US;
}

static bool save(struct batch_job *job)
{
    if (batch_table_save(job->table, job->b) == STATUS_OK) return true;
    retry_later(job);
    return false;
}

// --- results

// Continues in the phase that the batch's state shows.
static bool open_step(struct batch_job *job)
{
    const struct batch *b = job->b;
    if (batch_results_open(&job->results, job->table->folder, b->id) != STATUS_OK) {
        retry_later(job);
        return false;
    }
    set_counts(job);
    file_store_note(job->store, b->tenant, job->results.bytes[BATCH_OUTPUT] + job->results.bytes[BATCH_ERRORS]);
    bool ends_early = b->ending == BATCH_CANCELLED || b->ending == BATCH_EXPIRED;
    job->phase = b->state == BATCH_IN_PROGRESS ? PHASE_RUN : ends_early && b->total ? PHASE_REST : PHASE_SEAL;
    return true;
}

static enum status store_line(struct batch_job *job, enum batch_result which, int index, const struct bytes *line)
{
    TRY(file_store_charge(job->store, job->b->tenant, line->n));
    enum status status = batch_results_add(&job->results, which, index, line->data, line->n);
    if (status != STATUS_OK) file_store_refund(job->store, job->b->tenant, line->n);
    return status;
}

void batch_job_answer(struct batch_job *job, const struct batch_next *next, int http_status, const char *request_id,
                      const char *body, size_t body_bytes)
{
    struct bytes line = {0};
    char line_id[BATCH_LINE_ID_ROOM];
    bool succeeded = http_status >= 200 && http_status < 300;
    job->in_flight--;
    if (job->phase != PHASE_RUN) return;
    batch_line_id(job->b->id, next->index, line_id);
    batch_line_add_answer(&line, line_id, next->request.custom_id, http_status, request_id, body, body_bytes);
    enum status status = store_line(job, succeeded ? BATCH_OUTPUT : BATCH_ERRORS, next->index, &line);
    bytes_free(&line);
    set_counts(job);
    if (status != STATUS_OK) give_up(job, status);
}

// --- the input

static bool is_blank(const char *line, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t') return false;
    return true;
}

// Reads the next line that is not blank. Opens the input at the first call.
static enum line_result input_next(struct batch_job *job, const char **line_p, size_t *size_p)
{
    char *path = batch_table_path(job->table, job->b->id, ".input");
    bool opened = job->reader.bytes || line_reader_open(&job->reader, path, BATCH_LINE_BYTES) == 0;
    enum line_result result = opened ? LINE_READ : LINE_FAILED;
    free(path);
    while (result == LINE_READ) {
        result = line_reader_next(&job->reader, line_p, size_p);
        job->line++;
        if (result != LINE_READ || !is_blank(*line_p, *size_p)) break;
    }
    return result;
}

// --- validating

static void refuse_line(struct batch_job *job, const struct batch_error *error)
{
    struct batch_error numbered = *error;
    numbered.line = job->line;
    add_error(job, &numbered);
}

static void refuse_input(struct batch_job *job, const char *code, const char *message, int line)
{
    struct batch_error error;
    batch_error_set(&error, code, line ? "" : "input_file_id", message);
    error.line = line;
    add_error(job, &error);
}

// Notes a custom_id. Returns false if an earlier line has it.
static bool note_custom_id(struct batch_job *job, const char *custom_id)
{
    uint64_t hash = hash_text(job->key, custom_id) | 1; // 0 marks a free slot
    size_t at = hash >> 32 & (HASHES - 1);
    for (; job->id_hashes[at]; at = (at + 1) & (HASHES - 1))
        if (job->id_hashes[at] == hash) return false;
    job->id_hashes[at] = hash;
    return true;
}

static void check_line(struct batch_job *job, const char *line, size_t size)
{
    struct batch_request request;
    struct batch_error error;
    job->index++;
    if (batch_line_read(line, size, job->b->endpoint, &request, &error) != STATUS_OK) {
        refuse_line(job, &error);
        return;
    }
    if (!note_custom_id(job, request.custom_id)) {
        batch_error_set(&error, "duplicate_custom_id", "custom_id", "custom_id: an earlier line has the same");
        refuse_line(job, &error);
    }
    batch_request_fini(&request);
}

static void validate_end(struct batch_job *job, enum line_result result)
{
    if (result == LINE_FAILED) refuse_input(job, "storage_error", strerror(errno), 0);
    if (result == LINE_END && !job->index) refuse_input(job, "empty_file", "the input file has no request", 0);
    free(job->id_hashes);
    free(job->key);
    job->id_hashes = NULL;
    job->key = NULL;
    pthread_mutex_lock(&job->table->lock);
    job->b->total = job->index;
    pthread_mutex_unlock(&job->table->lock);
    close_input(job);
    if (job->b->n_errors) {
        set_ending(job, PHASE_SEAL, BATCH_FAILED);
        return;
    }
    set_state(job, BATCH_IN_PROGRESS);
    job->phase = PHASE_OPEN;
    save(job); // after a failure the input is validated again after a restart
    job->retry_us = 0;
}

static bool validate_step(struct batch_job *job)
{
    size_t bytes = 0;
    if (!job->id_hashes) {
        job->id_hashes = mem_alloc_array(HASHES, sizeof *job->id_hashes);
        job->key = mem_alloc(sizeof *job->key);
        *job->key = hash_key_random();
    }
    for (int i = 0; i < STEP_LINES && bytes < STEP_BYTES; i++) {
        const char *line;
        size_t size;
        enum line_result result = input_next(job, &line, &size);
        bool many = result == LINE_READ && job->index == BATCH_LINES_MAX;
        if (result == LINE_TOO_LONG) refuse_input(job, "line_too_long", "the line has more than 16 MiB", job->line);
        if (many) refuse_input(job, "too_many_requests", "the input file has more than 50000 requests", job->line);
        if (result == LINE_END || result == LINE_FAILED || many || job->b->n_errors == BATCH_ERRORS_MAX) {
            validate_end(job, result);
            return true;
        }
        if (result == LINE_READ) check_line(job, line, size);
        bytes += size;
    }
    return true;
}

// --- running

bool batch_job_next(struct batch_job *job, struct batch_next *next_p)
{
    struct batch_error error;
    while (job->phase == PHASE_RUN && !job->read_all) {
        const char *line;
        size_t size;
        enum line_result result = input_next(job, &line, &size);
        int index = job->index;
        if (result != LINE_READ || index >= job->b->total) {
            job->read_all = true;
            break;
        }
        job->index++;
        if (batch_results_is_done(&job->results, index)) continue;
        if (batch_line_read(line, size, job->b->endpoint, &next_p->request, &error) != STATUS_OK) {
            give_up(job,
                    status_fail(STATUS_DATA, "the stored input has changed: line %d: %s", job->line, error.message));
            break;
        }
        next_p->index = index;
        job->in_flight++;
        return true;
    }
    return false;
}

static bool run_step(struct batch_job *job)
{
    int64_t now_us = clock_now_us();
    bool ends = job->read_all && !job->in_flight;
    if (ends && job->results.lines[BATCH_OUTPUT] + job->results.lines[BATCH_ERRORS] < job->b->total) {
        give_up(job, status_fail(STATUS_DATA, "the stored input has fewer requests than it had"));
        return true;
    }
    if (!ends && now_us - job->synced_us < SYNC_US) return false;
    job->synced_us = now_us;
    enum status status = batch_results_sync(&job->results);
    if (status != STATUS_OK) {
        give_up(job, status);
        return true;
    }
    if (!ends) return false;
    set_state(job, BATCH_FINALIZING);
    set_ending(job, PHASE_SEAL, BATCH_COMPLETED);
    return true;
}

// --- cancelled and expired

void batch_job_end(struct batch_job *job, enum batch_state ending)
{
    bool validated = job->phase == PHASE_OPEN || job->phase == PHASE_RUN;
    job->in_flight = 0;
    free(job->id_hashes);
    free(job->key);
    job->id_hashes = NULL;
    job->key = NULL;
    set_state(job, ending == BATCH_CANCELLED ? BATCH_CANCELLING : BATCH_FINALIZING);
    set_ending(job, job->results.done ? PHASE_REST : validated ? PHASE_OPEN : PHASE_SEAL, ending);
    save(job);
}

static enum status rest_line(struct batch_job *job, const char *line, size_t size)
{
    struct batch_request request;
    struct batch_error error;
    char line_id[BATCH_LINE_ID_ROOM];
    bool cancelled = job->b->ending == BATCH_CANCELLED;
    int index = job->index++;
    if (batch_results_is_done(&job->results, index)) return STATUS_OK;
    TRY(batch_line_read(line, size, job->b->endpoint, &request, &error));
    struct bytes out = {0};
    batch_line_id(job->b->id, index, line_id);
    batch_line_add_error(&out, line_id, request.custom_id, cancelled ? "batch_cancelled" : "batch_expired",
                         cancelled ? "The batch was cancelled before this request was executed."
                                   : "The completion window expired before this request was executed.");
    batch_request_fini(&request);
    enum status status = store_line(job, BATCH_ERRORS, index, &out);
    bytes_free(&out);
    return status;
}

static bool rest_step(struct batch_job *job)
{
    size_t bytes = 0;
    for (int i = 0; i < STEP_LINES && bytes < STEP_BYTES; i++) {
        const char *line;
        size_t size;
        if (input_next(job, &line, &size) != LINE_READ || job->index >= job->b->total) {
            set_counts(job);
            set_ending(job, PHASE_SEAL, job->b->ending);
            return true;
        }
        bytes += size;
        enum status status = rest_line(job, line, size);
        if (status == STATUS_OK) continue;
        set_counts(job);
        give_up(job, status);
        return true;
    }
    set_counts(job);
    return true;
}

// --- the end

// Adds the usage of the next answers. They are read again from the disk, since a restart may have come between. Returns
// false if they cannot be read now: all are counted again later.
static bool count_step(struct batch_job *job)
{
    char *path = batch_table_path(job->table, job->b->id, suffixes[BATCH_OUTPUT]);
    bool opened = job->reader.bytes || line_reader_open(&job->reader, path, ANSWER_BYTES) == 0;
    enum line_result result = opened ? LINE_READ : LINE_FAILED;
    size_t bytes = 0;
    free(path);
    for (int i = 0; i < STEP_LINES && bytes < STEP_BYTES && result != LINE_END && result != LINE_FAILED; i++) {
        const char *line;
        size_t size = 0;
        result = line_reader_next(&job->reader, &line, &size);
        bytes += size;
        if (result == LINE_READ) batch_usage_add(&job->b->usage, line, size);
    }
    if (result != LINE_END && result != LINE_FAILED) return true;
    close_input(job);
    job->counted = result == LINE_END || job->results.lines[BATCH_OUTPUT] == 0;
    if (job->counted) return true;
    batch_usage_fini(&job->b->usage);
    job->b->usage = (struct batch_usage){0};
    status_fail(STATUS_INTERNAL, "the answers cannot be read to count their tokens");
    retry_later(job);
    return false;
}

static bool seal_step(struct batch_job *job)
{
    struct batch *b = job->b;
    if (job->results.done && batch_results_sync(&job->results) != STATUS_OK) {
        retry_later(job);
        return false;
    }
    if (job->results.done && !job->counted) return count_step(job);
    pthread_mutex_lock(&job->table->lock);
    for (int i = 0; i < BATCH_RESULTS; i++)
        b->has_result[i] = job->results.done && job->results.lines[i] > 0;
    b->sealed = true;
    pthread_mutex_unlock(&job->table->lock);
    remove_file(job, ".reserve");
    if (!save(job)) return false;
    batch_results_close(&job->results);
    job->phase = PHASE_ADOPT;
    return true;
}

static enum status adopt(struct batch_job *job, enum batch_result which)
{
    struct batch *b = job->b;
    char *path = batch_table_path(job->table, b->id, suffixes[which]), *name;
    struct file_info info = {.tenant = b->tenant, .purpose = "batch_output"};
    int64_t created_us = 1000000 * b->reached_s[b->state];
    enum status status = STATUS_OK;
    info.name = name = mem_format("%s%s.jsonl", b->id, which == BATCH_OUTPUT ? "_output" : "_error");
    info.created_us = created_us;
    if (b->result_expires_s) info.expires_s = created_us / 1000000 + b->result_expires_s;
    memcpy(info.id, b->result_ids[which], sizeof info.id);
    if (b->has_result[which])
        status = file_store_adopt(job->store, path, &info);
    else
        unlink(path);
    free(name);
    free(path);
    return status;
}

static bool adopt_step(struct batch_job *job)
{
    for (int i = 0; i < BATCH_RESULTS; i++) {
        if (adopt(job, (enum batch_result)i) == STATUS_OK) continue;
        retry_later(job);
        return false;
    }
    enum batch_state before = job->b->state;
    set_state(job, job->b->ending);
    if (!save(job)) {
        pthread_mutex_lock(&job->table->lock);
        job->b->state = before;
        pthread_mutex_unlock(&job->table->lock);
        return false;
    }
    remove_file(job, ".input");
    job->phase = PHASE_DONE;
    return true;
}

bool batch_job_step(struct batch_job *job)
{
    static bool (*const steps[])(struct batch_job *) = {
        [PHASE_VALIDATE] = validate_step, [PHASE_OPEN] = open_step, [PHASE_RUN] = run_step,
        [PHASE_REST] = rest_step,         [PHASE_SEAL] = seal_step, [PHASE_ADOPT] = adopt_step,
    };
    if (job->phase == PHASE_DONE || job->retry_us > clock_now_us()) return false;
    job->retry_us = 0;
    return steps[job->phase](job);
}

// --- life

struct batch_job *batch_job_create(struct batch_table *table, struct file_store *store, struct batch *b)
{
    struct batch_job *job = mem_alloc(sizeof *job);
    job->b = b;
    job->table = table;
    job->store = store;
    job->reader.fd = -1;
    job->results = (struct batch_results){.fds = {-1, -1}};
    job->phase = b->sealed ? PHASE_ADOPT : b->state == BATCH_VALIDATING ? PHASE_VALIDATE : PHASE_OPEN;
    return job;
}

void batch_job_free(struct batch_job *job)
{
    if (job->results.done) batch_results_sync(&job->results);
    batch_results_close(&job->results);
    line_reader_close(&job->reader);
    free(job->id_hashes);
    free(job->key);
    free(job);
}
