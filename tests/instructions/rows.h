// SPDX-License-Identifier: Apache-2.0
// The rows of the gate against slower code: short pieces of work whose instructions valgrind counts.
// tests/instructions.py runs each in a separate process and compares the counts with expected.txt.
//
//   main.c     runs the row that the command line names
//   text.c     the tokenizer, the selection of kept tokens
//   queue.c    the router's queue: requests that arrive, and the packing of all of them
//   worker.c   steps of a worker's scheduler
//   service.c  requests over HTTP and gRPC, from their bytes to the bytes of the answers
#pragma once

// Counting starts with a call of counting_begin() and ends with a call of counting_end(), on all threads. A row calls
// each function once.
void counting_begin(void);
void counting_end(void);
// Calls the function without counting its instructions, for a stand-in for a client or a node.
void not_counted(void (*function)(void *), void *arg);

// Runs a row. Returns the units of work by which its count is divided.
long row_encode(void);
long row_decode(void);
long row_select_spans(void);
long row_select_chunks(void);
long row_queue_submit(void);
long row_queue_pack(void);
long row_scheduler_step(void);
long row_http_request(void);
long row_grpc_request(void);
