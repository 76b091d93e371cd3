// SPDX-License-Identifier: Apache-2.0
// The simulated network: streams between nodes and the router. Within one direction of a stream, messages arrive in
// order and once; messages of other streams or directions may overtake them. If a stream ends, it delivers what was
// sent before, then tells its other end. If a stream breaks, it loses the messages in transit.
//
// Streams live until the network is freed. The router and the nodes set the callbacks below.
#pragma once

#include "sim/world.h"

struct stream;
enum stream_end { STREAM_NODE, STREAM_ROUTER, STREAM_ENDS };

struct network *network_create(struct world *w);
void network_free(struct network *network);

// Opens a stream from the node to the router.
struct stream *network_open(struct network *network, struct sim_node *node);

void *stream_owner(const struct stream *s, enum stream_end end); // NULL for the router until it sets an owner
void stream_set_owner(struct stream *s, enum stream_end end, void *owner);
// Returns true until this end closes the stream, or learns that the stream has ended.
bool stream_is_open(const struct stream *s, enum stream_end end);

void stream_send(struct stream *s, enum stream_end from, uint8_t *bytes, size_t n); // takes ownership of the bytes
// Closes this end. `told`: the other end learns of this after all messages; otherwise the other end waits for ever.
void stream_close(struct stream *s, enum stream_end from, bool told);
void stream_break(struct stream *s);                  // tells both ends; messages in transit are lost
void network_break(struct network *network);          // breaks all streams
void stream_hold(struct stream *s, int64_t until_us); // delivers nothing before `until_us`

// Marks a stream on which a lie was sent: lies may arrive long after the node has become honest.
void stream_suspect(struct stream *s);
bool stream_is_suspect(const struct stream *s);

// Callbacks of one end. `message`: a message of the other end has arrived. `closed`: the stream has ended or broken;
// called at most once, and never after this end has called stream_close().
struct stream_events {
    void (*message)(struct world *w, struct stream *s, const uint8_t *bytes, size_t n);
    void (*closed)(struct world *w, struct stream *s);
};
void network_set_events(struct network *network, enum stream_end end, struct stream_events events);
