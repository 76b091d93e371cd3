// SPDX-License-Identifier: Apache-2.0
// Record of a request for its trace: its phases with their times, and its end. The record becomes a server span with a
// child span for each phase (otlp.h). It contains no text and no tokens of prompts and answers.
//
// Phases follow one another without gaps: a phase begins when the previous phase ends. A request that is replayed waits
// and is prefilled again, so a phase may occur several times.
//
// Owned by the router's front that received the request (gRPC or HTTP), which lends it to the router's core. Used by
// one thread at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/tracing/context.h"

enum trace_phase {
    TRACE_ADMIT,     // limits and fields are checked; the prompt waits for a thread that tokenises it
    TRACE_TOKENISE,  // chat template and tokenizer
    TRACE_QUEUE,     // waits for the core's thread, then for a speculator
    TRACE_SCORE,     // is scored on a speculator
    TRACE_PACK_WAIT, // its kept tokens wait for a place in a worker group's bin (the prompts of one pass)
    TRACE_PREFILL,   // runs on a worker group, which has not sent a token yet
    TRACE_DECODE,
    TRACE_PHASES
};
const char *trace_phase_name(enum trace_phase phase);

struct trace_part {
    enum trace_phase phase;
    int64_t end_us; // on clock_now_us()
    char *node;     // id of the node; owned; NULL if there is none
};

// Limit of parts. Beyond it the last part is extended. A request has about five parts for each replay.
enum { TRACE_PARTS_MAX = 64, TRACE_ID_ROOM = 2 * TRACE_ID_BYTES + 1 };

struct trace_usage {
    int input_tokens, output_tokens, cached_tokens, kept_tokens, scored_tokens, score_cached_tokens, replays;
    int frozen_tokens, recalled_tokens;
};

struct trace_request { // fields of the client's request
    int max_tokens, top_k, priority;
    double temperature, top_p, presence_penalty, frequency_penalty;
};

struct trace_record {
    struct trace_record *next; // next record of the tracer's list

    // Constant members.
    uint8_t trace_id[TRACE_ID_BYTES], parent_id[SPAN_ID_BYTES];
    uint64_t span_id;
    char trace_text[TRACE_ID_ROOM]; // the trace id in hexadecimal digits, for logs
    bool sampled;                   // false: only the trace id is used
    char *state;                    // tracestate; owned, or NULL
    int server_port;                // 0: not known
    int64_t start_us;               // on clock_now_us()

    struct trace_part *parts; // [n_parts] owned
    int n_parts, capacity;

    // Set by the front while it reads the request. Texts are constants, or live as long as the tracer.
    const char *operation; // "chat", "text_completion", "score"; NULL if refused before that was known
    const char *request_model;

    // Set by the front at the end.
    int64_t end_us;
    const char *response_model; // NULL if refused
    const char *finish;         // finish reason; NULL if refused
    const char *error;          // name of the status, or NULL
    uint64_t number;            // number of the request, "req" in logs; 0 if refused before it had one
    char *id, *tenant;          // owned, or NULL
    int64_t first_token_us;     // time since start_us; 0: no token
    const char *prefill;        // "speculated", "whole"; NULL if not decided
    const char *skip;           // why the prompt is prefilled whole, or NULL
    char prefill_limit[80];     // rules that changed the prefill options, as in answers; "": none
    struct trace_usage usage;
    struct trace_request request;
};

void trace_record_free(struct trace_record *record); // NULL is allowed

// Ends a phase of the record. During the phase the request was on `node` (NULL: on no node).
void trace_phase_end(struct trace_record *record, enum trace_phase phase, const char *node, int64_t now_us);

// --- fate of the spans

enum trace_drop {
    TRACE_DROP_QUEUE,       // the queue was full
    TRACE_DROP_UNREACHABLE, // the collector could not be reached, or failed, until the time limit
    TRACE_DROP_REFUSED,     // the collector refused them
    TRACE_DROPS
};
const char *trace_drop_name(enum trace_drop drop);

struct trace_counts { // numbers of spans
    uint64_t sent, dropped[TRACE_DROPS];
};
