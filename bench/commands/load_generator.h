// SPDX-License-Identifier: Apache-2.0
// A load on a router over one GenerateMany call, and the result of every request. An open loop sends requests at fixed
// arrival times; a closed loop keeps a fixed number of requests running. One thread sends, one reads and one aborts
// late requests. No thread waits for another.
//
// In an open loop, latencies count from a request's arrival time, not from the time when it was sent: otherwise a
// delayed client would hide the delay (coordinated omission).
#pragma once

#include "bench/quantiles.h"
#include "cli/remote.h"

struct load {
    const struct remote *remote;
    int n;
    const struct rpc_bytes *messages; // [n] packed GenerateRequests with the ids load_id(run, 0 .. n-1)
    const char *run;                  // prefix of the request ids
    const int64_t *due_us; // [n] ascending arrival times after the start; NULL: closed loop, a request is due when sent
    int concurrency;       // number of requests that a closed loop keeps running
    int64_t timeout_us;    // a request not complete this long after its arrival time is aborted; 0: no limit
    const char *label;     // label of the progress bar; NULL: no bar
};

enum load_end { LOAD_COMPLETE, LOAD_ERROR, LOAD_TIMEOUT, LOAD_LOST };

struct load_record { // times are after the start; -1: did not happen
    int64_t due_us, sent_us, first_us, last_us, done_us;
    int tokens; // number of generated tokens
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens;
    enum load_end end;
    int code; // gRPC code of LOAD_ERROR and LOAD_LOST
};

struct load_result {
    struct load_record *records; // [n], in the order of `messages`
    int n;
    struct samples itl_ms; // times between two chunks with tokens of one answer
    int resumed;           // requests continued at another server after their router was lost
    double seconds;        // from the start to the end of the last request
    char error[200];       // the first error message, or empty
};

char *load_id(const char *run, int i); // caller frees

// Runs the load to its end. Fails only if the call cannot be opened; later failures are in the records.
enum status load_run(const struct load *load, struct load_result *result);
void load_result_free(struct load_result *r);
