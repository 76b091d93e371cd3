// SPDX-License-Identifier: Apache-2.0
// forepack top: shows the state of a cluster in a terminal, and redraws it each interval. Makes the same call as
// `forepack status`. Rates are computed from two answers. With --once or without a terminal, prints one frame as text.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/plain_text.h"
#include "cli/remote.h"
#include "lib/base/clock.h"

enum { CALL_TIMEOUT_MS = 5000 }; // short, because signals are handled only after the current call

static struct {
    struct remote remote;
    double interval_s;
    bool once;
} o;

static const struct option options[] = {
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "interval",
     .type = OPTION_REAL,
     .value = &o.interval_s,
     .default_text = "1",
     .min = 0.1,
     .max = 3600,
     .unit = "s",
     .help = "time between two frames"},
    {.name = "once", .type = OPTION_BOOL, .value = &o.once, .help = "print one frame and end, as without a terminal"},
    {0},
};

// --- a frame: lines that fit the screen

enum { COLUMNS = 80, ROWS = 24, BAR = 8, NAME_MAX_WIDTH = 24 };

struct frame {
    FILE *out;
    bool terminal;
    int columns, rows_left;
};

struct reading {
    Forepack__V1__ClusterInfo *info; // owned; NULL: none
    int64_t at_us;
};

static const char *style(const struct frame *f, const char *code)
{
    return f->terminal ? code : "";
}
#define BOLD(f)  style(f, "\033[1m")
#define DIM(f)   style(f, "\033[2m")
#define PLAIN(f) style(f, "\033[0m")

static void line_end(struct frame *f)
{
    fputs(f->terminal ? "\033[K\n" : "\n", f->out);
    f->rows_left--;
}

// Prints at most `width` bytes.
static void put_text(struct frame *f, const char *text, int width)
{
    plain_text_print(f->out, text, width, width);
}

static void put_bar(struct frame *f, double share)
{
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    int full = (int)(share * BAR + 0.5);
    for (int i = 0; i < BAR; i++)
        fputc(i < full ? '#' : '.', f->out);
    fprintf(f->out, " %3.0f%%", 100 * share);
}

static double per_second(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 && now > before ? (double)(now - before) / seconds : 0;
}

static void put_head(struct frame *f, const Forepack__V1__ClusterInfo *m)
{
    long long s = (long long)m->uptime_s;
    fprintf(f->out, "%sforepack%s  %s%s  up %lld d %02lld:%02lld:%02lld  version ", BOLD(f), PLAIN(f),
            m->ready ? "ready" : "not ready", m->draining ? ", draining" : "", s / 86400, s / 3600 % 24, s / 60 % 60,
            s % 60);
    put_text(f, m->version, (int)strnlen(m->version, 20));
    line_end(f);
    line_end(f);
}

static void put_rates(struct frame *f, const Forepack__V1__ClusterInfo *m, const Forepack__V1__ClusterInfo *before,
                      double seconds)
{
    double prompt = 0, output = 0;
    for (size_t i = 0; i < m->n_nodes; i++) {
        for (size_t k = 0; k < before->n_nodes; k++) {
            const Forepack__V1__NodeInfo *now = m->nodes[i], *old = before->nodes[k];
            if (strcmp(now->role, "worker") != 0 || strcmp(now->node_id, old->node_id) != 0) continue;
            prompt += per_second(now->tokens_in, old->tokens_in, seconds);
            output += per_second(now->tokens_out, old->tokens_out, seconds);
        }
    }
    fprintf(f->out, "requests %8u running %8u waiting %10.1f/s done", m->queue->running, m->queue->waiting,
            per_second(m->totals->done, before->totals->done, seconds));
    line_end(f);
    fprintf(f->out, "tokens   %8.0f/s prompt %7.0f/s output", prompt, output);
    line_end(f);
}

static void put_queue(struct frame *f, const Forepack__V1__QueueInfo *q)
{
    fputs("queue  ", f->out);
    for (size_t i = q->n_classes; i--;) {
        const Forepack__V1__QueueClass *k = q->classes[i];
        fprintf(f->out, "   %s %u ", k->name, k->waiting);
        put_bar(f, k->capacity_requests ? (double)k->waiting / k->capacity_requests : 0);
    }
    line_end(f);
}

// Prints the expected time until the requests that wait for the pool are dispatched.
static void put_queue_time(struct frame *f, const Forepack__V1__ClusterInfo *m, const char *role)
{
    for (size_t i = 0; i < m->n_pools; i++) {
        const Forepack__V1__PoolInfo *pool = m->pools[i];
        bool known = pool->queue_s_known_case == FOREPACK__V1__POOL_INFO__QUEUE_S_KNOWN_QUEUE_S;
        if (strcmp(pool->role, role) == 0 && known) fprintf(f->out, "   queue %.1f s", pool->queue_s);
    }
}

static void put_bins(struct frame *f, const Forepack__V1__ClusterInfo *info, const char *role, const char *name,
                     const Forepack__V1__PackInfo *m, const Forepack__V1__PackInfo *before, double seconds)
{
    uint64_t tokens = m->tokens - before->tokens, capacity = m->capacity_tokens - before->capacity_tokens;
    uint64_t bins = m->bins - before->bins, items = m->items - before->items;
    fprintf(f->out, "%-8s  %7.1f bins/s  %6.1f prompts each  ", name, per_second(m->bins, before->bins, seconds),
            bins ? (double)items / (double)bins : 0);
    if (capacity)
        put_bar(f, (double)tokens / (double)capacity);
    else
        fputs("no bin", f->out);
    fputs(capacity ? " full" : "", f->out);
    put_queue_time(f, info, role);
    line_end(f);
}

static const Forepack__V1__NodeInfo *node_find(const Forepack__V1__ClusterInfo *m, const Forepack__V1__NodeInfo *node)
{
    for (size_t i = 0; i < m->n_nodes; i++)
        if (strcmp(m->nodes[i]->node_id, node->node_id) == 0 && strcmp(m->nodes[i]->role, node->role) == 0)
            return m->nodes[i];
    return node;
}

static void put_node(struct frame *f, const Forepack__V1__NodeInfo *n, const Forepack__V1__NodeInfo *old, int width,
                     double seconds)
{
    put_text(f, n->node_id, width);
    fprintf(f->out, " %-10s ", n->role);
    put_text(f, n->state, 8);
    fputc(' ', f->out);
    put_bar(f, seconds > 0 ? (n->pass_s - old->pass_s) / seconds : 0);
    fprintf(f->out, " %5u ", n->running);
    put_bar(f, n->kv_blocks ? 1 - (double)n->kv_blocks_free / n->kv_blocks : 0);
    fprintf(f->out, " %8.0f", per_second(n->tokens_in, old->tokens_in, seconds));
    if (f->columns >= COLUMNS + 9) fprintf(f->out, " %8.0f", per_second(n->tokens_out, old->tokens_out, seconds));
    line_end(f);
}

// Returns the width of the name column: at most the width that the other columns leave.
static int name_width(const struct frame *f, const Forepack__V1__ClusterInfo *m)
{
    int width = 4, most = f->columns - 63 - (f->columns >= COLUMNS + 9 ? 9 : 0);
    for (size_t i = 0; i < m->n_nodes; i++)
        if ((int)strlen(m->nodes[i]->node_id) > width) width = (int)strlen(m->nodes[i]->node_id);
    most = most < 4 ? 4 : most > NAME_MAX_WIDTH ? NAME_MAX_WIDTH : most;
    return width < most ? width : most;
}

// Prints the prompts that speculators hold to draft answers.
static void put_held(struct frame *f, const Forepack__V1__ClusterInfo *m)
{
    uint64_t speculators = 0, prompts = 0, held = 0, blocks = 0;
    for (size_t i = 0; i < m->n_nodes; i++) {
        const Forepack__V1__NodeInfo *n = m->nodes[i];
        if (strcmp(n->role, "speculator") != 0) continue;
        speculators++;
        prompts += n->held_prompts;
        held += n->held_kv_blocks;
        blocks += n->kv_blocks;
    }
    if (!speculators) return;
    fprintf(f->out, "held for drafts: %llu prompts in %.0f %% of the speculators' KV blocks",
            (unsigned long long)prompts, blocks ? 100.0 * (double)held / (double)blocks : 0.0);
    line_end(f);
}

static void put_nodes(struct frame *f, const Forepack__V1__ClusterInfo *m, const Forepack__V1__ClusterInfo *before,
                      double seconds)
{
    line_end(f);
    if (!m->n_nodes) {
        fputs("No node is attached yet: start forepack-worker --model DIR --router HOST:PORT", f->out);
        line_end(f);
        return;
    }
    int width = name_width(f, m);
    fprintf(f->out, "%s%-*s %-10s %-8s %-13s %5s %-13s %8s", DIM(f), width, "node", "pool", "state", "busy", "reqs",
            "KV in use", "prompt/s");
    fprintf(f->out, "%s%s", f->columns >= COLUMNS + 9 ? " output/s" : "", PLAIN(f));
    line_end(f);
    for (size_t i = 0; i < m->n_nodes; i++) {
        if (f->rows_left == 1 && i + 1 < m->n_nodes) {
            fprintf(f->out, "%s%zu more%s", DIM(f), m->n_nodes - i, PLAIN(f));
            line_end(f);
            return;
        }
        put_node(f, m->nodes[i], node_find(before, m->nodes[i]), width, seconds);
    }
}

static void frame_put(struct frame *f, const struct reading *now, const struct reading *before)
{
    const Forepack__V1__ClusterInfo *m = now->info;
    // a restarted router begins its counters again
    bool same_router = before->info && before->info->uptime_s <= m->uptime_s;
    const Forepack__V1__ClusterInfo *old = same_router ? before->info : m;
    double seconds = same_router ? (double)(now->at_us - before->at_us) / 1e6 : 0;
    put_head(f, m);
    put_rates(f, m, old, seconds);
    put_queue(f, m->queue);
    put_bins(f, m, "speculator", "score", m->score_bins, old->score_bins, seconds);
    put_bins(f, m, "worker", "prefill", m->prefill_bins, old->prefill_bins, seconds);
    put_held(f, m);
    put_nodes(f, m, old, seconds);
}

// --- readings

static void reading_free(struct reading *reading)
{
    if (reading->info) forepack__v1__cluster_info__free_unpacked(reading->info, NULL);
    reading->info = NULL;
}

static enum status reading_check(const Forepack__V1__ClusterInfo *m)
{
    if (m->limited)
        return status_fail(STATUS_DENIED, "the state of the cluster is shown to an operator's API key only: give "
                                          "--api-key-file");
    if (!m->queue || !m->totals || !m->score_bins || !m->prefill_bins)
        return status_fail(STATUS_INTERNAL, "%s sent an incomplete answer", o.remote.server);
    return STATUS_OK;
}

static enum status reading_fetch(struct reading *reading)
{
    Forepack__V1__GetClusterInfoRequest request = FOREPACK__V1__GET_CLUSTER_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/GetClusterInfo", &request.base,
                    &forepack__v1__cluster_info__descriptor, &answer));
    reading->info = (void *)answer;
    reading->at_us = clock_now_us();
    enum status status = reading_check(reading->info);
    if (status != STATUS_OK) reading_free(reading);
    return status;
}

// --- the terminal

static volatile sig_atomic_t ended, suspended;
static bool entered;
static struct termios terminal_before;

static void on_signal(int signal)
{
    if (signal == SIGTSTP)
        suspended = 1;
    else if (signal != SIGWINCH)
        ended = 1;
}

static void terminal_enter(void)
{
    struct sigaction action = {.sa_handler = on_signal}; // without SA_RESTART, so that signals interrupt the wait
    for (const int *s = (const int[]){SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH, 0}; *s; s++)
        sigaction(*s, &action, NULL);
    if (!entered)
        // only once: later, the shell may have changed the settings for its own input
        tcgetattr(STDIN_FILENO, &terminal_before);
    entered = true;
    struct termios raw = terminal_before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l", stdout); // the alternate screen, without a cursor
}

static void terminal_leave(void)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

// Suspends the command on Ctrl-Z. Restores the terminal for the shell first.
static void terminal_suspend(void)
{
    suspended = 0;
    terminal_leave();
    raise(SIGSTOP);
    terminal_enter();
}

static struct frame frame_begin(bool terminal)
{
    struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
    if (terminal) ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    struct frame frame = {.out = stdout, .terminal = terminal, .columns = size.ws_col ? size.ws_col : COLUMNS};
    frame.rows_left = !terminal ? 1 << 30 : size.ws_row ? size.ws_row - 1 : ROWS - 1;
    if (terminal) fputs("\033[H", stdout);
    return frame;
}

// Waits for the next frame. Returns true if the user has ended the command.
static bool wait_for_key(double seconds)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&input, 1, (int)(seconds * 1000)) > 0 && read(STDIN_FILENO, &key, 1) != 1) return true;
    return ended || key == 'q' || key == 'Q';
}

// --- the command

static enum status top_print_once(void)
{
    struct reading before = {0}, now = {0};
    TRY(reading_fetch(&before));
    usleep((useconds_t)(o.interval_s * 1e6));
    enum status status = reading_fetch(&now);
    struct frame frame = frame_begin(false);
    if (status == STATUS_OK) frame_put(&frame, &now, &before);
    reading_free(&before);
    reading_free(&now);
    return status;
}

// Draws a frame. While the router does not answer, shows the last frame with the reason.
static void top_draw(struct reading *now, struct reading *before)
{
    struct reading next = {0};
    enum status status = reading_fetch(&next);
    if (status == STATUS_OK) {
        reading_free(before);
        *before = *now;
        *now = next;
    }
    struct frame frame = frame_begin(true);
    if (status != STATUS_OK) {
        put_text(&frame, status_message(), frame.columns);
        line_end(&frame);
    }
    if (now->info) frame_put(&frame, now, before);
    fputs("\033[J", stdout);
    fflush(stdout);
}

static enum status top_run(void)
{
    struct reading now = {0}, before = {0};
    TRY(reading_fetch(&now)); // a wrong address or key is an error before the first frame
    terminal_enter();
    do {
        if (suspended) terminal_suspend();
        top_draw(&now, &before);
    } while (!ended && !wait_for_key(o.interval_s));
    terminal_leave();
    reading_free(&now);
    reading_free(&before);
    return STATUS_OK;
}

int command_top(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack top [--server HOST:PORT] [--once]\n"
                 "Shows nodes, queue and bins of a cluster, and how they change. The key q ends it.",
                 argc, argv, NULL);
    o.remote.call_timeout_ms = CALL_TIMEOUT_MS;
    rpc_init();
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !o.once;
    enum status status = terminal ? top_run() : top_print_once();
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    options_free(options);
    return code;
}
