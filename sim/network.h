// SPDX-License-Identifier: Apache-2.0
// The simulated network: streams between nodes and the router. Within one direction of a stream messages arrive in
// order and once; between streams and directions they overtake each other. A stream that ends delivers what was sent
// before, then its other end learns of it; a stream that breaks loses what is under way.
//
// Streams live until the network is freed. The callbacks below are the router's and the nodes'.
#pragma once

#include "sim/world.h"

struct stream;
enum stream_end { STREAM_NODE, STREAM_ROUTER, STREAM_ENDS };

struct network *network_create(struct world *w);
void network_free(struct network *network);

struct stream *network_open(struct network *network, struct sim_node *node); // by a node that calls the router

void *stream_owner(const struct stream *s, enum stream_end end); // the router's is NULL until it sets one
void stream_set_owner(struct stream *s, enum stream_end end, void *owner);
bool stream_is_open(const struct stream *s, enum stream_end end); // this end has neither closed it nor seen its end

void stream_send(struct stream *s, enum stream_end from, uint8_t *bytes, size_t n); // takes over the bytes
// This end closes. `told`: the other end learns of it, after all messages; else it waits for ever.
void stream_close(struct stream *s, enum stream_end from, bool told);
void stream_break(struct stream *s);                  // both ends see it, messages under way are lost
void network_break(struct network *network);          // all streams
void stream_hold(struct stream *s, int64_t until_us); // nothing is delivered before

// Whether a lie was ever sent on it: lies may arrive long after the node has become honest.
void stream_suspect(struct stream *s);
bool stream_is_suspect(const struct stream *s);

// Called at the other end; closed: once, not after its own stream_close().
struct stream_events {
    void (*message)(struct world *w, struct stream *s, const uint8_t *bytes, size_t n);
    void (*closed)(struct world *w, struct stream *s);
};
void network_set_events(struct network *network, enum stream_end end, struct stream_events events);
