// SPDX-License-Identifier: Apache-2.0
// Files and batches of the HTTP API: the folder, its threads, and the requests of batches. The requests run through the
// handlers of their endpoints, with the checks and limits of their API key, as requests of clients do.
#pragma once

#include "router/batch/batch_runner.h"
#include "router/batch/disk_pool.h"
#include "router/batch/file_store.h"
#include "router/front/http/http_call.h"
#include "router/metrics/metrics.h"

struct http_service;

struct http_batching {
    struct http_service *service; // borrowed
    struct file_store *store;
    struct batch_runner *runner;
    struct disk_pool *disk;
    int window; // most requests of batches in flight
    // The load that the core's thread measured last. The window follows it.
    atomic_int places, others; // sequences that the worker groups can run; requests that are not of batches
    atomic_llong measured_us;
};

struct http_batching_options {
    struct file_store_options store; // folder NULL: no files and batches
    int window;
};

// `service` has its server open.
enum status http_batching_open(struct http_service *service, const struct http_batching_options *options,
                               struct http_batching **batching_p);
// Ends the requests of batches, which continue after the next start. Call it before the server is closed. May be called
// again. NULL is allowed here and in the next function.
void http_batching_stop(struct http_batching *batching);
void http_batching_close(struct http_batching *batching); // after the server is closed

struct batch_metrics http_batching_metrics(struct http_batching *batching); // zeros for NULL

// Returns the batching of an exchange's service. Returns NULL and answers with 501 if the router has no folder, or with
// the refusal of the key's limits.
struct http_batching *http_batching_of(struct http_exchange *x);

// Answers with the error of status_message(). EXHAUSTED of a store is 507: the disk or a bound of bytes or files is
// full.
void http_batching_refuse(struct http_exchange *x, enum status status);
