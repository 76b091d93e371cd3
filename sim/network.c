// SPDX-License-Identifier: Apache-2.0
#include "sim/network.h"

#include <stdlib.h>

#include "lib/base/mem.h"

struct stream {
    struct network *network;
    void *owner[STREAM_ENDS];
    bool open[STREAM_ENDS];
    bool broken, suspect;
    int64_t last_us[STREAM_ENDS]; // arrival of the last message sent from this end
    int64_t hold_us;
    struct random_source random; // draws delays
    struct stream *next;
};

struct network {
    struct world *w;
    struct stream *streams;
    uint64_t n_streams;
    struct stream_events events[STREAM_ENDS];
};

struct network *network_create(struct world *w)
{
    struct network *network = mem_alloc(sizeof *network);
    network->w = w;
    return network;
}

void network_free(struct network *network)
{
    for (struct stream *s = network->streams, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(network);
}

void network_set_events(struct network *network, enum stream_end end, struct stream_events events)
{
    network->events[end] = events;
}

struct stream *network_open(struct network *network, struct sim_node *node)
{
    struct stream *s = mem_alloc(sizeof *s);
    *s = (struct stream){.network = network, .owner = {node, NULL}, .open = {true, true}, .next = network->streams};
    s->random =
        random_stream((uint64_t)network->w->scenario->options.noise_seed, UINT64_C(1) << 32 | ++network->n_streams);
    network->streams = s;
    return s;
}

void *stream_owner(const struct stream *s, enum stream_end end)
{
    return s->owner[end];
}

void stream_set_owner(struct stream *s, enum stream_end end, void *owner)
{
    s->owner[end] = owner;
}

bool stream_is_open(const struct stream *s, enum stream_end end)
{
    return s->open[end];
}

void stream_suspect(struct stream *s)
{
    s->suspect = true;
}

bool stream_is_suspect(const struct stream *s)
{
    return s->suspect;
}

// Returns the arrival time of a message sent from this end now. A message never overtakes an earlier message.
static int64_t arrival_us(struct stream *s, enum stream_end from)
{
    const struct scenario_options *options = &s->network->w->scenario->options;
    int64_t at_us = s->network->w->now_us + options->delay_us;
    if (options->jitter_us) {
        double jitter = random_unit(&s->random);
        at_us += (int64_t)(jitter * jitter * jitter * (double)options->jitter_us); // mostly short, at times long
    }
    if (at_us < s->hold_us) at_us = s->hold_us;
    if (at_us < s->last_us[from]) at_us = s->last_us[from];
    return s->last_us[from] = at_us;
}

static enum stream_end other_end(enum stream_end end)
{
    return end == STREAM_NODE ? STREAM_ROUTER : STREAM_NODE;
}

static void deliver(struct world *w, const struct event *event)
{
    struct stream *s = event->object;
    enum stream_end to = (enum stream_end)event->tag;
    if (s->broken || !s->open[to]) return;
    world_digest_bytes(w, event->bytes, event->n_bytes);
    s->network->events[to].message(w, s, event->bytes, event->n_bytes);
}

static void deliver_end(struct world *w, const struct event *event)
{
    struct stream *s = event->object;
    enum stream_end to = (enum stream_end)event->tag;
    if (!s->open[to]) return;
    s->open[to] = false;
    s->network->events[to].closed(w, s);
}

void stream_send(struct stream *s, enum stream_end from, uint8_t *bytes, size_t n)
{
    if (!s->open[from] || s->broken) {
        free(bytes);
        return;
    }
    world_at(s->network->w, arrival_us(s, from), deliver, s, (uint64_t)other_end(from), bytes, n);
}

void stream_close(struct stream *s, enum stream_end from, bool told)
{
    if (!s->open[from]) return;
    s->open[from] = false;
    if (told) world_at(s->network->w, arrival_us(s, from), deliver_end, s, (uint64_t)other_end(from), NULL, 0);
}

void stream_break(struct stream *s)
{
    s->broken = true;
    for (enum stream_end from = STREAM_NODE; from < STREAM_ENDS; from++)
        world_at(s->network->w, arrival_us(s, from), deliver_end, s, (uint64_t)other_end(from), NULL, 0);
}

void network_break(struct network *network)
{
    for (struct stream *s = network->streams; s; s = s->next)
        if (!s->broken) stream_break(s);
}

void stream_hold(struct stream *s, int64_t until_us)
{
    if (until_us > s->hold_us) s->hold_us = until_us;
}
