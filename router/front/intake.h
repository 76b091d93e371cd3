// SPDX-License-Identifier: Apache-2.0
// What the router's gRPC handlers share: the served model as clients see it, and the way to the core. Constant after
// start, except `loop`, which exists while the server runs.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "model/chat.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "net/rpc.h"
#include "router/core/loop.h"

struct front {
    const char *model_name;
    struct model_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat; // NULL: the model has none that is known; `chat_problem` says why
    char *chat_problem;
    int64_t heartbeat_ms;
    int64_t max_queue_requests, max_queue_tokens;
    int tail_tokens;
    int64_t started_us;
    struct loop *loop;
    struct rpc_server *server; // atomic: the core's thread may run before the server is known
    bool ready;                // core's thread
};

extern const struct rpc_method front_generate, front_generate_many, front_abort, front_score;          // generate.c
extern const struct rpc_method front_tokenize, front_detokenize, front_model_info, front_cluster_info; // info.c
extern const struct rpc_method front_attach;                                                           // attach.c

// The core's actions towards nodes and clients; `user` is the front.
void attach_core_ops(struct front *front, struct core_ops *ops);

// Tells health checks what the core last said. Core's thread.
void front_publish_ready(struct front *front);

// A client's message, or NULL with the reason (INVALID): not of that kind, or of more fields than anyone needs. Release
// it with the kind's own function.
void *front_unpack(const ProtobufCMessageDescriptor *kind, const uint8_t *bytes, size_t size);

// Packs and queues a message on a call; returns the bytes now queued.
size_t front_send(struct rpc_call *call, const ProtobufCMessage *message);
// The same towards a client, whose call ends with EXHAUSTED when it reads too slowly: what follows is dropped, and the
// call's close event cancels its requests.
void front_stream(struct rpc_call *call, const ProtobufCMessage *message);
// Sends the one answer of a unary call and ends it.
void front_answer(struct rpc_call *call, const ProtobufCMessage *message);
// Ends a call; EXHAUSTED with the trailer that says when to try again.
void front_finish(struct rpc_call *call, enum status status, const char *message);
// The same with this thread's status_message().
void front_refuse(struct rpc_call *call, enum status status);

// EXHAUSTED when the core's thread is far behind: what is posted to it takes memory too.
enum status front_check_backlog(const struct front *front);
// NOT_FOUND unless `name` is empty or the served model's.
enum status front_check_model(const struct front *front, const char *name);
// INVALID unless a client's short string (an id, a name) is UTF-8 of at most 256 bytes.
enum status front_check_name(const char *field, const char *value);

// Text to token ids (the caller's), with TOKENIZER_ flags. One that is over the context whatever its tokens are is
// refused before the work, which would keep the I/O thread from hearing the nodes.
enum status front_encode(const struct front *front, const ProtobufCBinaryData *text, unsigned flags, int32_t **tokens_p,
                         int *n_tokens_p);

// A prompt given as exactly one of text, token ids, chat turns, to token ids, checked against vocabulary and context.
// `pinned` receives what the chat template says must be kept. Both arrays are the caller's.
struct Forepack__V1__Message;
enum status front_tokenise(const struct front *front, const ProtobufCBinaryData *text, const uint32_t *ids,
                           size_t n_ids, struct Forepack__V1__Message *const *messages, size_t n_messages,
                           int32_t **tokens_p, int *n_tokens_p, struct token_range **pinned_p, int *n_pinned_p);
