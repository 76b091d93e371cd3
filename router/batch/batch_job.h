// SPDX-License-Identifier: Apache-2.0
// The work on one unfinished batch, in steps that each take a short time:
//
//   VALIDATE  reads and checks every line of the input
//   OPEN      opens the results and finds out which requests are done
//   RUN       starts the requests of the input that have no answer yet, and stores their answers
//   REST      writes an error for each request without an answer (cancelled and expired batches)
//   SEAL      syncs the results, sums up their usage, and saves that they are complete
//   ADOPT     makes them files of the tenant, and saves the final state
//   DONE      the job may be freed
//
// A restart continues at the phase that the record and the results show. Each phase may run again after a crash. If the
// disk is full in RUN or REST, the batch fails with its answers so far. In other phases the step is tried again later.
//
// Owned by the thread of the batches.
#pragma once

#include "lib/base/line_reader.h"
#include "router/batch/batch_results.h"
#include "router/batch/batch_table.h"
#include "router/batch/file_store.h"

enum batch_phase { PHASE_VALIDATE, PHASE_OPEN, PHASE_RUN, PHASE_REST, PHASE_SEAL, PHASE_ADOPT, PHASE_DONE };

struct batch_job {
    struct batch_job *next;
    struct batch *b;           // borrowed
    struct batch_table *table; // borrowed
    struct file_store *store;  // borrowed
    enum batch_phase phase;
    struct line_reader reader;
    int line, index;      // number of the line read last; index of the next request
    uint64_t *id_hashes;  // hashes of the custom_ids, with open addressing; only in VALIDATE
    struct hash_key *key; // of these hashes
    struct batch_results results;
    bool read_all;     // RUN: no request is left to start
    bool counted;      // SEAL: the usage of all answers has been added
    int in_flight;     // requests that were started and have no stored answer
    int64_t retry_us;  // a step that failed is tried again at this time; 0: none failed
    int64_t synced_us; // time of the last sync
};

// A request to start.
struct batch_next {
    int index;
    struct batch_request request;
};

struct batch_job *batch_job_create(struct batch_table *table, struct file_store *store, struct batch *b);
void batch_job_free(struct batch_job *job);

// Does the next piece of work, except starting requests. Returns false if there is nothing to do now.
bool batch_job_step(struct batch_job *job);
// RUN: reads the next request to start. Returns false if there is none. The caller owns it, and calls
// batch_job_answer() once for it, unless the job ends before.
bool batch_job_next(struct batch_job *job, struct batch_next *next_p);
// Stores the answer of a request that batch_job_next() returned.
void batch_job_answer(struct batch_job *job, const struct batch_next *next, int http_status, const char *request_id,
                      const char *body, size_t body_bytes);
// Ends RUN or VALIDATE: the requests without an answer are not run. The caller has ended the requests in flight.
// `ending` is BATCH_CANCELLED or BATCH_EXPIRED.
void batch_job_end(struct batch_job *job, enum batch_state ending);
// Returns true if the requests in flight are no longer needed, because the batch has failed.
bool batch_job_gave_up(const struct batch_job *job);
