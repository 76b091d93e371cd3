// SPDX-License-Identifier: Apache-2.0
// The front of the router: its gRPC services. The front checks and tokenises the messages of clients and nodes, posts
// them to the core's thread as events, and sends what the core answers. front includes core; core never includes front.
//
//   intake.c          checks of fields, prompts to tokens
//   intake_pool.c     the threads that read and tokenise long prompts, and the prompts that wait for them
//   grpc_intake.c     messages of clients to their readers, at once or through the pool
//   answer.c          running requests of a client and the text of their answers
//   wire_request.c    GenerateRequest and ScoreRequest to a request of the core
//   wire_response.c   chunks, completions and scores to a client
//   reply.c           sending on a client's call: bounds on unread bytes, errors
//   grpc_inference.c  Generate, GenerateMany, Abort, Score
//   grpc_info.c       Tokenize, Detokenize, GetModelInfo, GetClusterInfo
//   grpc_attach.c     Attach: the stream of a node
//   node_link.c       what nodes send, as events of the core
//   node_bins.c       what the core sends to nodes
//
// Threads: handlers run on the server's I/O threads and leave long messages to the intake pool. Streams of nodes have
// an I/O thread of their own (rpc_method.dedicated). The core's thread never sees text. struct front is constant while
// the server runs, except for the fields that say otherwise.
#pragma once

#include <stdatomic.h>

#include "model/chat.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "net/rpc.h"
#include "router/core/loop.h"

struct front {
    const char *model_name; // the name that clients ask for
    struct model_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat; // NULL: no known template, `chat_problem` says why
    char *chat_problem;
    int64_t heartbeat_ms;
    int64_t max_queue_requests, max_queue_tokens;
    int tail_tokens;
    int pinned_turn_tokens; // see chat_render()
    struct prefill prefill; // for clients that give no prefill options
    int64_t started_us;
    struct loop *loop;
    struct intake_pool *pool;
    atomic_bool draining;      // no new prompts are taken
    struct rpc_server *server; // atomic; NULL until the server is open, while the core's thread already runs
    bool ready;                // core's thread only
};

extern const struct rpc_method front_generate, front_generate_many, front_abort, front_score;          // grpc_inference
extern const struct rpc_method front_tokenize, front_detokenize, front_model_info, front_cluster_info; // grpc_info
extern const struct rpc_method front_attach;                                                           // grpc_attach

// Fills in the core's actions towards nodes and clients; their `user` is the front.
void front_core_ops_init(struct front *front, struct core_ops *ops);

// Sets the state of the health service from `front->ready`. Core's thread.
void front_publish_ready(struct front *front);
