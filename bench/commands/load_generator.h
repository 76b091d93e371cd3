// SPDX-License-Identifier: Apache-2.0
// A load on a router: requests at times that were fixed before, or so many at once, over one GenerateMany call, and
// what became of each. One thread sends and keeps time, one reads; neither waits for the other.
//
// Latencies of an open load count from the time a request was due, not from the time it went out: a client that is
// held up must not hide what it holds up (coordinated omission).
#pragma once

#include "bench/quantiles.h"
#include "net/rpc.h"

struct load {
    const char *server;
    int n;
    const struct rpc_bytes *messages; // [n] packed GenerateRequests whose ids are load_id() of 0 .. n-1
    const char *run;                  // what their ids begin with
    const int64_t *due_us; // [n] ascending, after the start; NULL: `concurrency` at a time, each due when sent
    int concurrency;
    int64_t timeout_us; // an answer that is not complete so long after it was due is given up; 0: none is
    const char *label;  // of the progress bar; NULL: none
};

enum load_end { LOAD_COMPLETE, LOAD_ERROR, LOAD_TIMEOUT, LOAD_LOST };

struct load_record { // times after the start; -1: never
    int64_t due_us, sent_us, first_us, last_us, done_us;
    int tokens; // generated
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens;
    enum load_end end;
    int code; // gRPC's, of LOAD_ERROR and LOAD_LOST
};

struct load_result {
    struct load_record *records; // [n], in the order of `messages`
    int n;
    struct samples itl_ms; // between two chunks of one answer that brought tokens
    double seconds;        // from the start to the last end
    char error[200];       // the first sentence of an error, or empty
};

char *load_id(const char *run, int i); // caller frees

// Runs it to its end. Fails only when nothing could be asked at all; what fails later is in the records.
enum status load_run(const struct load *load, struct load_result *result);
void load_result_free(struct load_result *r);
