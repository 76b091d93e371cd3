// SPDX-License-Identifier: Apache-2.0
#include "router/core/loading.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/node_hello.h"

// Takes the node out of the list and frees it. Returns its link.
static void *loading_remove(struct core *c, struct loading_node *node)
{
    void *link = node->link;
    struct loading_node **at = &c->loading;
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    c->n_loading--;
    free(node);
    return link;
}

// Returns the loading node, or NULL.
static struct loading_node *find_by_id(const struct core *c, const char *node_id)
{
    struct loading_node *node = c->loading;
    while (node && strcmp(node->report.node_id, node_id) != 0)
        node = node->next;
    return node;
}

static void silence_note(struct core *c, int64_t heard_us)
{
    const int64_t silent_us = heard_us + 3 * c->options.heartbeat_us;
    if (silent_us < c->silence_us) c->silence_us = silent_us;
}

static void gone_log(const struct loading_node *node, const char *reason)
{
    log_event(LOG_WARN, "loading_node_gone", LOG_FIELD("node", node->report.node_id),
              LOG_FIELD("role", role_name(node->report.role)), LOG_FIELD("percent", node->report.percent),
              LOG_FIELD("reason", reason));
}

// --- functions of core.h

enum status core_loading(struct core *c, const struct node_loading *report, void *link, int64_t now_us,
                         struct loading_node **node_p)
{
    struct loading_node *node = find_by_id(c, report->node_id);
    if (*node_p && *node_p != node)
        return status_fail(STATUS_INVALID, "node %s: its stream is that of node %s", report->node_id,
                           (*node_p)->report.node_id);
    TRY(node_loading_check(c, report, node ? &node->report : NULL));
    if (node && node->link != link) { // the same process has lost its stream
        c->ops.node_lost(loading_remove(c, node), "the same process reports on another stream");
        node = NULL;
    }
    if (!node) {
        node = mem_alloc(sizeof *node);
        *node = (struct loading_node){.link = link, .begun_us = now_us, .next = c->loading};
        c->loading = node;
        c->n_loading++;
        log_event(LOG_INFO, "node_loading", LOG_FIELD("node", report->node_id),
                  LOG_FIELD("role", role_name(report->role)), LOG_FIELD("host", report->host),
                  LOG_FIELD("ranks", report->ranks));
    }
    node->report = *report;
    node->heard_us = now_us;
    silence_note(c, now_us);
    *node_p = node;
    return STATUS_OK;
}

void core_loading_end(struct core *c, struct loading_node *node, const char *reason)
{
    if (node->report.percent < 100)
        gone_log(node, reason);
    else // it attaches next, by another stream
        log_event(LOG_INFO, "node_loaded", LOG_FIELD("node", node->report.node_id),
                  LOG_FIELD("role", role_name(node->report.role)));
    loading_remove(c, node);
}

// --- functions for other files of the core

void loading_attached(struct core *c, const struct node_hello *hello, const void *link)
{
    for (struct loading_node *node = c->loading, *next; node; node = next) {
        next = node->next;
        const bool same = node->report.instance == hello->instance && strcmp(node->report.node_id, hello->node_id) == 0;
        if (node->link == link)
            loading_remove(c, node);
        else if (same)
            c->ops.node_lost(loading_remove(c, node), NULL);
    }
}

void loading_check_silence(struct core *c, int64_t absent_us, int64_t now_us)
{
    for (struct loading_node *node = c->loading, *next; node; node = next) {
        next = node->next;
        if (absent_us > 0) node->heard_us = node->heard_us + absent_us < now_us ? node->heard_us + absent_us : now_us;
        if (now_us < node->heard_us + 3 * c->options.heartbeat_us) {
            silence_note(c, node->heard_us);
            continue;
        }
        char *reason = mem_format("no message from it for %.1f s", (double)(now_us - node->heard_us) / 1e6);
        gone_log(node, reason);
        c->ops.node_lost(loading_remove(c, node), reason);
        free(reason);
    }
}

void loading_release(struct core *c)
{
    while (c->loading)
        c->ops.node_lost(loading_remove(c, c->loading), NULL);
}

void loading_free(struct core *c)
{
    while (c->loading)
        loading_remove(c, c->loading);
}

const struct loading_node *loading_find(const struct core *c, const char *node_id)
{
    return find_by_id(c, node_id);
}

int loading_percent(const struct core *c, enum node_role role)
{
    int percent = -1;
    for (const struct loading_node *node = c->loading; node; node = node->next)
        if (node->report.role == role && node->report.percent > percent) percent = node->report.percent;
    return percent;
}
