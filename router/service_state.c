// SPDX-License-Identifier: Apache-2.0
#include "router/service_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/service_manager.h"

enum { LOOK_US = 1000000 };

struct service_state {
    struct front *front;
    char *refused;     // reason why the last reload was refused, or NULL
    int64_t looked_us; // time of the last question to the core
    // The core has not answered the last question. Until it does, its thread owns the members below.
    atomic_bool asked;
    bool ready;
    int running, waiting, nodes[NODE_ROLES];
};

struct service_state *service_state_open(struct front *front)
{
    struct service_state *state = mem_alloc(sizeof *state);
    state->front = front;
    return state;
}

void service_state_close(struct service_state *state)
{
    free(state->refused);
    free(state);
}

void service_state_set_refused(struct service_state *state, const char *reason)
{
    char *copy = reason ? mem_string(reason) : NULL;
    free(state->refused);
    state->refused = copy;
}

static void event_answer(struct core *c, void *arg, int64_t now_us)
{
    struct service_state *state = arg;
    struct core_status status;
    core_get_status(c, &status);
    state->ready = status.ready;
    state->running = status.running;
    state->waiting = status.waiting;
    memset(state->nodes, 0, sizeof state->nodes);
    for (int i = 0; i < status.n_nodes; i++)
        state->nodes[status.nodes[i].hello.role]++;
    core_status_fini(&status);
    atomic_store_explicit(&state->asked, false, memory_order_release);
}

static const char *verb(const struct service_state *state)
{
    if (atomic_load(&state->front->draining)) return "Drains";
    if (atomic_load(&state->front->leaving)) return "Shuts down soon, still serves";
    return state->ready ? "Serves" : "Refuses requests, because no worker group is ready";
}

static void sentence_send(const struct service_state *state)
{
    const char *refused = state->refused;
    service_manager_set_status("%s: %d requests running, %d waiting; %d worker groups, %d speculators%s%s", verb(state),
                               state->running, state->waiting, state->nodes[NODE_WORKER], state->nodes[NODE_SPECULATOR],
                               refused ? ". The last reload was refused: " : "", refused ? refused : "");
}

// Reports the core's last answer and asks again. A core that does not answer is not reported alive.
static void state_look(struct service_state *state, int64_t now_us)
{
    if (atomic_load_explicit(&state->asked, memory_order_acquire)) return;
    if (state->looked_us) {
        service_manager_alive(now_us);
        sentence_send(state);
    }
    state->looked_us = now_us;
    atomic_store(&state->asked, true);
    loop_post(state->front->loop, event_answer, state);
}

int service_state_wait(struct service_state *state, const sigset_t *signals, int64_t limit_us)
{
    const int64_t interval_us = service_manager_interval_us(LOOK_US), begun_us = clock_now_us();
    int64_t left_us = limit_us;
    for (;;) {
        int64_t us = limit_us < 0 || left_us > interval_us ? interval_us : left_us;
        const int64_t now_us = clock_now_us();
        if (service_manager_listens() && now_us - state->looked_us >= interval_us) state_look(state, now_us);
        if (!service_manager_listens()) us = left_us;
        const struct timespec time = {us / 1000000, us % 1000000 * 1000};
        const int signal = us < 0 ? sigwaitinfo(signals, NULL) : sigtimedwait(signals, NULL, &time);
        if (signal > 0) return signal;
        left_us = limit_us < 0 ? -1 : begun_us + limit_us - clock_now_us();
        if (limit_us >= 0 && left_us <= 0) return 0;
    }
}
