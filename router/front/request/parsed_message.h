// SPDX-License-Identifier: Apache-2.0
// A table of the clients' messages that have arrived but are not yet submitted to the core or refused: they wait, or
// are being parsed and tokenised. An abort finds messages by request id. When a client disconnects, its messages are
// found by its list.
//
// Threads: any thread may call parsed_message_begin(); only the core's thread calls the other functions. So a message
// that the core's thread has found stays valid until the core's thread ends it.
#pragma once

#include <stdatomic.h>

#include "router/front/request/intake_pool.h"

struct client;
struct message_group;
struct parsed_message_table;

struct parsed_message {
    struct client *client;
    struct intake_owner waiting; // the message's job while it waits in the intake pool
    atomic_bool aborted;         // only the core's thread writes it
    // Members of the table:
    char *id;
    uint64_t owner;
    struct message_group *group; // group of messages with this id and owner; NULL: the message has no id or was aborted
    struct parsed_message *group_previous, *group_next, *client_previous, *client_next;
};

struct parsed_message_table *parsed_message_table_create(void);
void parsed_message_table_free(struct parsed_message_table *table); // the table must be empty; NULL is allowed

// Adds a message to the table and to the client's `list`, which the table's lock guards. `id` is the request id; if it
// is empty, no abort finds the message. `owner` is as in struct request_spec.
struct parsed_message *parsed_message_begin(struct parsed_message_table *table, struct client *client,
                                            struct parsed_message **list, const char *id, uint64_t owner);
void parsed_message_end(struct parsed_message_table *table, struct parsed_message **list,
                        struct parsed_message *parsed); // removes the message and frees it
// Returns true if the list has a message.
bool parsed_message_any(struct parsed_message_table *table, struct parsed_message *const *list);

// Marks the messages of `owner` (0: all owners) with this request id as aborted. Drops the messages that wait in the
// pool, so that they end immediately. Returns false if there is no such message, or if all were aborted before. At most
// one abort visits a message, so a repeated abort costs no more than an unknown id.
bool parsed_message_abort(struct parsed_message_table *table, struct intake_pool *pool, const char *id, uint64_t owner);
// Drops the messages of the list that wait in the pool.
void parsed_message_drop(struct parsed_message_table *table, struct intake_pool *pool,
                         struct parsed_message *const *list);
