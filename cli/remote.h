// SPDX-License-Identifier: Apache-2.0
// Calls to a router, for the commands. They block; call rpc_init() first. One thread.
#pragma once

#include "cli/answer.h"
#include "cli/request.h"

// Called with each new piece of text of an answer.
typedef void (*text_fn)(void *user, const char *text, size_t size_bytes);

// One Generate call. `answer` is initialised. `on_text` may be NULL. If id_p is not NULL, *id_p must be NULL and
// becomes the id of the request; free() it.
enum status remote_generate(const char *server, int64_t timeout_ms, const struct request_spec *spec, text_fn on_text,
                            void *user, struct answer *answer, char **id_p);

// One unary call: packs `request` and unpacks the answer with `descriptor`. The caller frees *answer_p with
// protobuf_c_message_free_unpacked().
enum status remote_call(const char *server, const char *method, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p);
