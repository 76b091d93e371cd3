// SPDX-License-Identifier: Apache-2.0
// The front of the router: its gRPC services, its HTTP API (http/http_service.h) and its live page (live/live_pages.h).
// The front checks the messages of clients and nodes, tokenises prompts, posts events to the core's thread, and sends
// the core's answers. front includes core; core never includes front. Its other files:
//
//   intake.c          checks fields, tokenises prompts
//   intake_pool.c     the threads that read and tokenise long messages, and their queue
//   grpc_access.c     identifies callers by their API keys
//   request_trace.c   records traces of requests
//   parsed_message.c  table of the clients' messages that are not submitted to the core yet
//   grpc_intake.c     passes messages of clients to their readers, directly or through the pool
//   chat_answer.c     splits chat answers into sections: reasoning, content, tool calls
//   system_turns.c    finds out whether the chat template renders system turns between other turns
//   content_tokens.c  finds the tokens of a chat answer that are content
//   client_rules.c    finds the operator's rules for the requests of a client
//   compression.c     compresses the texts of a request by the importance of their tokens
//   compress_choice.c chooses the parts of these texts that are kept
//   compress_job.c    finishes compressions on the intake pool
//   answer.c          keeps the running requests of a client and the text of their answers
//   wire_request.c    converts GenerateRequest, ScoreRequest and CompressRequest to requests of the core
//   wire_response.c   sends chunks, completions, scores and compressions to a client
//   reply.c           sends on a client's call: limits unread bytes, sends errors
//   grpc_inference.c  Generate, GenerateMany, Abort, Score, Compress
//   grpc_info.c       Tokenize, Detokenize, GetModelInfo, GetClusterInfo
//   grpc_drain.c      DrainNode
//   grpc_diagnostics.c  GetDiagnostics
//   kserve_tensors.c  reads input tensors of KServe's protocol
//   kserve_request.c  converts ModelInferRequest to GenerateRequest
//   kserve_response.c  sends answers with output tensors
//   grpc_kserve.c     ModelInfer, ModelStreamInfer
//   grpc_kserve_info.c  ServerReady, ModelMetadata and the like
//   grpc_attach.c     Attach: the stream of a node
//   cluster_token.c   checks the secret of nodes that attach
//   node_link.c       converts messages of nodes to events of the core
//   node_bins.c       converts actions of the core to messages for nodes
//   metrics_reporter.c  the thread that formats metrics
//
// Threads: handlers run on the server's I/O threads and leave long messages to the intake pool. Nodes have a separate
// server with its own I/O thread. Prompts and answers reach the core as tokens, never as text. struct front is constant
// while the servers run, except for atomic fields and fields whose comment says so.
#pragma once

#include <stdatomic.h>

#include "lib/base/certificate_time.h"
#include "lib/grammar/cache.h"
#include "lib/grammar/grammar.h"
#include "lib/identity/identity.h"
#include "lib/net/rpc.h"
#include "lib/text/chat.h"
#include "lib/text/config.h"
#include "lib/text/tokenizer.h"
#include "lib/tracing/tracer.h"
#include "router/core/loop.h"
#include "router/front/nodes/cluster_token.h"
#include "router/front/request/chat_answer.h"

// Counts the requests that were refused before the core saw them.
struct refusals {
    atomic_ullong counts[STATUS_COUNT]; // by status
};

// Sums over all compressions that were sent.
struct compressed {
    atomic_ullong requests, tokens_before, tokens_after;
};

// The memory of all whole (not streamed) answers: the router collects each of them until its end.
struct whole_answers {
    size_t bytes;     // bytes of these answers together
    size_t max_bytes; // beyond it, an answer with more than an equal share (lib/base/equal_share.h) ends
    int sharing;      // number of answers that are not small (equal_share_is_small())
};

struct front {
    char **model_names; // [n_model_names] names that clients may ask for; answers contain the first name
    int n_model_names;
    struct model_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat;           // NULL: there is no usable template
    char *chat_problem;                   // error message that says why `chat` is NULL
    struct chat_syntax chat_syntax;       // markers of sections that were found in `chat`
    bool system_turns;                    // `chat` renders turns of the role system between others (system_turns.h)
    const char *image_text;               // text that replaces images in conversations; NULL: images are refused
    char *tokenizer_info;                 // the answer of GET /tokenizer_info
    struct grammar_library *grammars;     // NULL: structured output is refused
    struct grammar_cache *valid_grammars; // grammars that were compiled lately; NULL if `grammars` is NULL
    bool close_schemas;                   // close the objects of every JSON schema (schema_close.h)
    struct identity *identity;            // NULL: no API keys are used, every caller may do everything
    struct quota_keeper *quotas;          // keeps daily quotas over a restart; NULL: they are not kept
    bool share_prefix_cache;              // true: tenants share the prefix cache
    int64_t heartbeat_ms;
    uint64_t instance; // random number of this process, not 0: two addresses of it are one router for nodes
    atomic_int max_queue_requests;
    int tail_tokens;
    int pinned_turn_tokens;    // argument `turn_tokens` of chat_render()
    struct prefill prefill;    // prefill options of requests without options
    struct client_rules rules; // each applies to requests whose API key has no such rule
    int64_t started_us;
    struct loop *loop;
    struct intake_pool *pool;
    struct parsed_message_table *parsed_messages; // messages between their arrival and the core
    struct cluster_token *cluster_token;          // NULL: nodes need no token
    atomic_bool leaving;                          // the router will shut down: not ready, but serves new requests
    atomic_bool draining;                         // new prompts are refused
    // The clients' server; atomic. NULL until it is open. The core's thread may start earlier.
    struct rpc_server *server;
    struct http_service *http;             // atomic; NULL until it is open, or without an HTTP API
    char *settings;                        // text of options_format(), or NULL; core's thread only
    bool ready;                            // the core could serve a request; core's thread only
    struct whole_answers whole;            // core's thread only
    atomic_size_t aborts_waiting;          // bytes charged for the Aborts that wait for the core's thread
    atomic_bool serving;                   // clients should send requests here: `ready`, not `leaving`, not `draining`
    bool metrics_open;                     // GET /metrics needs no API key
    struct tracer *tracer;                 // NULL: requests are not traced
    atomic_int expected_nodes[NODE_ROLES]; // --expect-speculators and --expect-workers
    // [n_certificates] configured files with certificates; only the thread that writes metrics updates them
    struct certificate_time *certificates;
    int n_certificates;
    struct refusals *refusals;     // any thread; NULL: they are not counted
    struct compressed *compressed; // any thread; NULL: they are not counted
};

static inline void front_refused(const struct front *front, enum status status)
{
    if (front->refusals) atomic_fetch_add_explicit(&front->refusals->counts[status], 1, memory_order_relaxed);
}

// grpc_inference
extern const struct rpc_method front_generate, front_generate_many, front_abort, front_score, front_compress;
extern const struct rpc_method front_tokenize, front_detokenize, front_model_info, front_cluster_info; // grpc_info
extern const struct rpc_method front_drain_node;                                                       // grpc_drain
extern const struct rpc_method front_diagnostics;                           // grpc_diagnostics
extern const struct rpc_method front_model_infer, front_model_stream_infer; // grpc_kserve
extern const struct rpc_method front_kserve_info[]; // grpc_kserve_info; ends with a `path` of NULL
extern const struct rpc_method front_attach;        // grpc_attach

// rpc_server_options.authorise of the nodes' server: a node must present the cluster token before any of its messages
// is read.
enum status front_authorise_node(struct rpc_call *call);

// Sets the functions of core_ops. Their `user` is the front.
void front_core_ops_init(struct front *front, struct core_ops *ops);

// Sets front->serving and the state of the health service, from front->ready and front->draining. Core's thread.
void front_publish_ready(struct front *front);
