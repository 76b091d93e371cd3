// SPDX-License-Identifier: Apache-2.0
// Owns the mailbox of the working thread, and sends messages to the routers.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/link_messages.h"
#include "engine/node_state.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

// --- events; the mailbox is used with the mutex held

void node_mail_post(struct router_link *link, struct node_event event)
{
    struct node *node = link->node;
    event.link = link->index;
    mailbox_post(&node->mails, &event, link->stream_number);
    node_vitals_set_idle(node->callbacks.vitals, false);
    pthread_cond_broadcast(&node->changed);
}

bool node_wait_until(struct node *node, int64_t until_us)
{
    return monotonic_cond_wait(&node->changed, &node->mutex, until_us);
}

// Waits for an event of the working thread, see node_wait_until().
static bool wait_idle(struct node *node, int64_t until_us)
{
    node_vitals_set_idle(node->callbacks.vitals, true);
    bool in_time = node_wait_until(node, until_us);
    node_vitals_set_idle(node->callbacks.vitals, false);
    return in_time;
}

bool node_is_attached(const struct node *node, const struct router_link *link)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        const struct router_link *other = &node->links[i];
        if (other != link && other->welcomed) return true;
    }
    return false;
}

void node_count_routers(struct node *node)
{
    int attached = 0, known = 0;
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        attached += node->links[i].welcomed;
        known += node->links[i].used && !node->links[i].retired && !node->links[i].is_duplicate;
    }
    node_vitals_set_routers(node->callbacks.vitals, attached, known);
}

// Runs the check if a link waits for it. The caller holds the mutex, which is released during the check.
static void run_check(struct node *node)
{
    bool due[NODE_LINKS_MAX], any = false;
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        any |= due[i] = node->links[i].check_due;
    if (!any) return;
    pthread_mutex_unlock(&node->mutex);
    node->callbacks.check(node->callbacks.arg);
    pthread_mutex_lock(&node->mutex);
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (due[i]) node->links[i].check_due = false;
    pthread_cond_broadcast(&node->changed);
}

// Returns the number of the bin, or 0 if the message is not a bin.
static uint64_t bin_of(const router_message *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN: return message->score_bin->bin_id;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN: return message->prefill_bin->bin_id;
    default: return 0;
    }
}

static void mail_note(struct node *node, const struct mail *mail)
{
    struct router_link *link = &node->links[mail->event.link];
    if (mail->event.kind == NODE_ATTACHED) {
        link->working_number = mail->stream;
        link->last_bin = 0;
    } else if (mail->event.kind == NODE_MESSAGE && bin_of(mail->event.message)) {
        link->last_bin = bin_of(mail->event.message);
    }
}

void node_next(struct node *node, int timeout_ms, struct node_event *event)
{
    int64_t until_us = timeout_ms < 0 ? INT64_MAX : clock_now_us() + (int64_t)timeout_ms * 1000;
    *event = (struct node_event){.kind = NODE_NOTHING};
    node_vitals_turn(node->callbacks.vitals);
    pthread_mutex_lock(&node->mutex);
    do {
        run_check(node);
    } while (!node->mails.n && !node->woken && timeout_ms && wait_idle(node, until_us));
    if (node->mails.n) {
        const struct mail mail = mailbox_take(&node->mails);
        *event = mail.event;
        mail_note(node, &mail);
    } else {
        node->woken = false;
    }
    pthread_mutex_unlock(&node->mutex);
}

void node_wake(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->woken = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
}

// --- sending

static uint8_t *message_pack(const node_message *message, size_t *size_p)
{
    *size_p = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = mem_alloc(*size_p);
    forepack__cluster__v1__node_message__pack(message, bytes);
    return bytes;
}

void node_link_send(struct router_link *link, const node_message *message)
{
    size_t size;
    uint8_t *bytes = message_pack(message, &size);
    rpc_stream_send(link->stream, bytes, size);
    free(bytes);
}

void node_send_draining(struct router_link *link)
{
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    if (link->node->drain_reason) draining.reason = link->node->drain_reason;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING;
    message.draining = &draining;
    node_link_send(link, &message);
}

// Results go only to the stream from which the work came. The working thread may still do work of an earlier stream,
// while NODE_DETACHED and the next NODE_ATTACHED wait in the mailbox. Called with the mutex held.
static bool link_takes_results(const struct router_link *link)
{
    return link->welcomed && link->working_number == link->stream_number;
}

void node_send(struct node *node, const node_message *message)
{
    pthread_mutex_lock(&node->mutex);
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        struct router_link *link = &node->links[i];
        struct link_part part;
        if (!link_takes_results(link)) continue;
        if (link_part_make(i, message, &part)) node_link_send(link, &part.message);
        link_part_free(&part);
    }
    pthread_mutex_unlock(&node->mutex);
}

void node_set_load(struct node *node, const struct node_load *load)
{
    pthread_mutex_lock(&node->mutex);
    node->load.kv_blocks_free = load->kv_blocks_free;
    node->load.total_running = load->running;
    node->load.total_waiting = load->waiting;
    node->load.preemptions = load->preemptions;
    node->load.held_prompts = load->held_prompts;
    node->load.held_kv_blocks = load->held_kv_blocks;
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        struct router_link *link = &node->links[i];
        link->load = load->links ? load->links[i] : (struct link_load){load->running, load->waiting};
        link->reported_bin = link->working_number == link->stream_number ? link->last_bin : 0;
    }
    pthread_mutex_unlock(&node->mutex);
    node_vitals_set_load(node->callbacks.vitals, load->running, load->waiting, load->kv_blocks_free, load->preemptions);
}

// --- drain and heartbeats

void node_drain_start(struct node *node, const char *source, const char *reason)
{
    if (node->draining) return;
    if (reason)
        log_event(LOG_ERROR, "drain_started", LOG_FIELD("by", source), LOG_FIELD("reason", reason));
    else
        log_event(LOG_INFO, "drain_started", LOG_FIELD("by", source));
    node->drain_reason = reason ? mem_string(reason) : NULL;
    node->draining = true;
    node_vitals_set_draining(node->callbacks.vitals);
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].welcomed) node_send_draining(&node->links[i]);
    node_mail_post(&node->links[0], (struct node_event){.kind = NODE_DRAIN});
}

void node_send_heartbeat(struct router_link *link)
{
    struct node *node = link->node;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    struct gpu_list gpus = {0};
    if (node->callbacks.progress) node->load.progress = node->callbacks.progress(node->callbacks.arg);
    if (node->callbacks.gpus) gpus = node->callbacks.gpus(node->callbacks.arg);
    Forepack__Cluster__V1__Heartbeat load = node->load;
    load.running = link->load.running;
    load.waiting = link->load.waiting;
    load.last_bin = link->reported_bin;
    load.gpus = gpus.gpus;
    load.n_gpus = gpus.n;
    message.heartbeat = &load;
    node_link_send(link, &message);
    if (gpus.trouble) node_drain_start(node, "gpu", gpus.trouble);
}

void node_heartbeat_wake(struct node *node)
{
    uint64_t one = 1;
    while (write(node->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}
