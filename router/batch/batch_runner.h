// SPDX-License-Identifier: Apache-2.0
// A thread that runs the batches stored in the folder of --batch-dir.
//
//   batch_id.c       ids of files and batches
//   disk_file.c      writes to the disk, and tells a full disk apart
//   file_store.c     files of tenants
//   batch_line.c     lines of a batch's input and of its answers
//   batch_results.c  answers of a running batch, which are its journal
//   batch.c          a batch and its record
//   batch_usage.c    tokens of all answers of a batch
//   batch_table.c    all batches
//   batch_job.c      the work on one batch
//   batch_runner.c   the thread, and the requests in flight
//   disk_pool.c      threads for other work on the disk
//
// The runner starts requests of all unfinished batches in turn, through functions of its owner. It keeps up to a window
// of requests in flight, and counts the bytes of their bodies, so its memory is bounded. A request that the router
// refuses for now (429, 503), or that is ended because the window has become smaller, is started again after a pause
// that grows, until the batch expires.
#pragma once

#include "router/batch/batch_table.h"
#include "router/batch/file_store.h"

struct batch_runner;

// A request that the runner starts. `respond` is called once, from any thread, unless the request is closed before.
struct batch_start {
    const char *tenant, *key_id; // key_id "": no API key
    const char *endpoint;
    char *body; // [body_bytes] NUL-terminated; the function takes ownership
    size_t body_bytes;
    void (*respond)(void *arg, int http_status, const char *body, size_t size);
    void *arg;
};
enum { BATCH_REQUEST_ID_ROOM = 40 };

// Bounds of the requests in flight at present. No request is started while `most` requests are in flight. If more than
// `end_above` are in flight, the requests started last are ended, and start again later.
struct batch_window {
    int most, end_above;
};

struct batch_ops {
    // Starts a request. Writes its id. Returns its handle, which close() frees. `respond` may be called before it
    // returns.
    void *(*start)(void *user, const struct batch_start *start, char request_id[BATCH_REQUEST_ID_ROOM]);
    void (*close)(void *user, void *handle); // ends the request if it runs
    struct batch_window (*window)(void *user);
    void *user;
};

struct batch_params {
    const char *tenant, *key_id, *endpoint, *input_id;
    json_t *metadata;         // borrowed; NULL: none
    int64_t result_expires_s; // as in struct batch
};

// Receives the batch as the API shows it, and owns `object`; NULL after a failure, which status_message() describes. On
// the runner's thread; must not block.
typedef void batch_done_fn(void *arg, enum status status, json_t *object);

// Loads the batches and continues unfinished ones. `store` is borrowed.
enum status batch_runner_open(struct file_store *store, const struct batch_ops *ops, struct batch_runner **runner_p);
// Ends the requests in flight, whose batches continue after the next start. Batches are still shown, but not created or
// cancelled. May be called again.
void batch_runner_stop(struct batch_runner *runner);
// Stops and frees the runner. NULL is allowed.
void batch_runner_close(struct batch_runner *runner);
struct batch_table *batch_runner_table(struct batch_runner *runner);

// --- any thread
// Copies the parameters. Fails with NOT_FOUND for an unknown input, INVALID for a wrong one, EXHAUSTED at a bound.
void batch_runner_create(struct batch_runner *runner, const struct batch_params *params, batch_done_fn *done,
                         void *arg);
void batch_runner_cancel(struct batch_runner *runner, const char *tenant, const char *id, batch_done_fn *done,
                         void *arg);

struct batch_runner_counts {
    int in_flight;
    uint64_t completed, failed; // requests since the start, by their result
    uint64_t retried;           // starts that the router refused for now
};
struct batch_runner_counts batch_runner_count(struct batch_runner *runner);
