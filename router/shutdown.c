// SPDX-License-Identifier: Apache-2.0
#include "router/shutdown.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/service_manager.h"
#include "router/front/http/http_service.h"
#include "router/front/request/intake_pool.h"

enum { POLL_US = 20000 };

struct idle_query {
    int answer; // atomic; -1: not answered yet
};

static void event_drain(struct core *c, void *arg, int64_t now_us)
{
    core_drain(c); // the health service becomes NOT_SERVING through ready_changed
}

static void event_publish_ready(struct core *c, void *arg, int64_t now_us)
{
    front_publish_ready(arg);
}

static void event_query_idle(struct core *c, void *arg, int64_t now_us)
{
    struct idle_query *query = arg;
    __atomic_store_n(&query->answer, core_idle(c), __ATOMIC_RELEASE);
}

static void event_release_nodes(struct core *c, void *arg, int64_t now_us)
{
    core_release_nodes(c, now_us);
}

// Waits up to limit_us. Returns true if a second signal has come.
static bool signal_comes(const struct shutdown *s, int64_t limit_us)
{
    const int64_t end_us = clock_now_us() + limit_us;
    for (int64_t left_us = limit_us; left_us > 0; left_us = end_us - clock_now_us()) {
        const int signal = service_state_wait(s->state, s->signals, left_us);
        if (signal > 0 && signal != SIGHUP) return true;
    }
    return false;
}

// Load balancers send requests until they have seen that the router is not ready. Returns true if a second signal has
// come.
static bool leave(const struct shutdown *s)
{
    log_event(LOG_INFO, "shutdown_announced", LOG_FIELD("delay_ms", s->delay_ms));
    atomic_store(&s->front->leaving, true);
    loop_post(s->front->loop, event_publish_ready, s->front);
    return signal_comes(s, s->delay_ms * 1000);
}

// Returns true if the core became idle within the limit.
static bool drain(const struct shutdown *s, int64_t limit_ms)
{
    log_event(LOG_INFO, "shutdown_started", LOG_FIELD("drain_limit_ms", limit_ms));
    int64_t end_us = clock_now_us() + limit_ms * 1000;
    atomic_store(&s->front->draining, true);
    loop_post(s->front->loop, event_publish_ready, s->front);
    while (!intake_pool_idle(s->front->pool) && clock_now_us() < end_us) { // the core still accepts these prompts
        if (signal_comes(s, POLL_US)) end_us = 0;
    }
    loop_post(s->front->loop, event_drain, NULL);
    // Asks at least once: once the answer is there, the core has handled event_drain and no longer calls the server, so
    // the server may be closed.
    do {
        struct idle_query query = {-1};
        loop_post(s->front->loop, event_query_idle, &query);
        do {
            if (signal_comes(s, POLL_US)) end_us = 0;
        } while (__atomic_load_n(&query.answer, __ATOMIC_ACQUIRE) < 0);
        if (query.answer && intake_pool_idle(s->front->pool)) return true; // the pool finishes compressions
    } while (clock_now_us() < end_us);
    return false;
}

bool router_shut_down(const struct shutdown *s)
{
    service_manager_stopping();
    const bool at_once = s->delay_ms && leave(s);
    http_service_drain(s->http);
    const bool idle = drain(s, at_once ? 0 : s->drain_ms);
    if (idle) loop_post(s->front->loop, event_release_nodes, NULL);
    return idle;
}
