// SPDX-License-Identifier: Apache-2.0
#include "engine/join_leader.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/join_agent.h"
#include "engine/join_mpirun.h"
#include "engine/join_peer.h"
#include "engine/join_process.h"
#include "lib/base/address.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_server.h"

enum {
    PEERS_MAX = 256 + 64, // followers, and connections that have not proved anything
    END_US = 6000000      // time for mpirun to end by itself, and then again after SIGTERM
};

struct leader {
    const struct join_options *options;
    char **argv;
    int followers; // that the group needs
    int signals, listeners[ADDRESS_SOCKETS_MAX], n_listeners, agents;
    struct tls_server *tls; // NULL: plain text
    struct join_peer *peers[PEERS_MAX];
    int n_peers, n_joined;
    struct join_mpirun mpirun;
    int64_t begun_us, end_us; // end_us: when mpirun gets end_signal; 0: never
    int end_signal;
    bool lost, ended;
    int code;
};

// --- followers

static void peer_remove(struct leader *l, int i)
{
    join_peer_free(l->peers[i]);
    l->peers[i] = l->peers[--l->n_peers];
}

// A follower of a running group is lost: its ranks are gone, so the group ends. mpirun notices it too, and would crash
// if it got a signal meanwhile.
static void group_lost(struct leader *l, const struct join_peer *peer)
{
    log_event(LOG_ERROR, "follower_lost", LOG_FIELD("host", join_peer_host(peer)), LOG_REASON,
              LOG_FIELD("effect", l->mpirun.pid ? "the group ends" : "the group waits for another host"));
    if (!l->mpirun.pid || l->lost) return;
    l->lost = true;
    l->end_us = clock_now_us() + END_US;
}

static void peer_failed(struct leader *l, int i)
{
    struct join_peer *peer = l->peers[i];
    if (peer->number) {
        l->n_joined--;
        if (!peer->done) group_lost(l, peer);
    } else {
        log_event_limited(LOG_WARN, "follower_refused", LOG_FIELD("address", (const char *)peer->address), LOG_REASON);
    }
    peer_remove(l, i);
}

// Returns the lowest number that no follower has, from 1.
static int number_next(const struct leader *l)
{
    for (int number = 1;; number++) {
        bool used = false;
        for (int i = 0; i < l->n_peers; i++)
            used |= l->peers[i]->number == number;
        if (!used) return number;
    }
}

static void peer_joined(struct leader *l, struct join_peer *peer)
{
    peer->number = number_next(l);
    l->n_joined++;
    log_event(LOG_INFO, "follower_joined", LOG_FIELD("host", join_peer_host(peer)),
              LOG_FIELD("address", (const char *)peer->address), LOG_FIELD("followers", l->n_joined),
              LOG_FIELD("needed", l->followers));
}

static enum status peer_attend(struct leader *l, struct join_peer *peer)
{
    const bool was_joined = peer->number != 0, full = l->n_joined == l->followers;
    bool proved = false;
    TRY(join_peer_attend(peer, l->options->token_file, full, &proved));
    if (proved && !was_joined) peer_joined(l, peer);
    return STATUS_OK;
}

static void peers_accept(struct leader *l, int listener)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    const int fd = accept4(listener, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    SSL *ssl = NULL;
    if (l->n_peers == PEERS_MAX || (l->tls && !(ssl = tls_server_accept(l->tls)))) {
        close(fd);
        return;
    }
    l->peers[l->n_peers++] = join_peer_create(fd, ssl, &address, size);
}

// --- the launch agent

static void agent_serve(struct leader *l)
{
    static char message[JOIN_AGENT_BYTES_MAX];
    size_t n;
    int fd;
    if (join_agent_accept(l->agents, message, &n, &fd) != STATUS_OK) {
        log_event(LOG_WARN, "launch_refused", LOG_REASON);
        return;
    }
    const size_t name_bytes = strlen(message) + 1;
    for (int i = 0; i < l->n_peers; i++) {
        char name[JOIN_HOST_NAME_BYTES];
        join_host_name(l->peers[i]->number, name);
        if (!l->peers[i]->number || strcmp(name, message) != 0) continue;
        if (join_peer_start(l->peers[i], fd, (const uint8_t *)message + name_bytes, n - name_bytes) != STATUS_OK)
            peer_failed(l, i);
        return;
    }
    join_agent_answer(fd, "the host has left the group");
}

// --- signals

static void child_ended(struct leader *l, pid_t pid, int code)
{
    if (pid != l->mpirun.pid) return;
    l->mpirun.pid = 0;
    l->ended = true;
    l->code = l->lost ? 1 : code;
    log_event(code || l->lost ? LOG_ERROR : LOG_INFO, "group_ended", LOG_FIELD("exit_code", l->code));
}

// mpirun passes SIGUSR1 on to the ranks, which drain. SIGTERM would kill them after a second, and SIGHUP too.
static void signals_read(struct leader *l)
{
    struct signalfd_siginfo info;
    pid_t pid;
    int code;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (info.ssi_signo == SIGHUP) {
            if (l->mpirun.pid) join_process_signal_children(l->mpirun.pid, SIGHUP);
        } else if (l->mpirun.pid) {
            kill(l->mpirun.pid, SIGUSR1);
        } else {
            l->ended = true;
        }
    }
    while (join_process_reap(&pid, &code))
        child_ended(l, pid, code);
}

// --- the loop

static void earlier(int64_t *until_us, int64_t us)
{
    if (us && (!*until_us || us < *until_us)) *until_us = us;
}

static int64_t wait_limit(const struct leader *l)
{
    return l->options->wait_s && !l->mpirun.pid ? l->begun_us + l->options->wait_s * 1000000 : 0;
}

static void poll_all(struct leader *l)
{
    static struct pollfd fds[2 + ADDRESS_SOCKETS_MAX + PEERS_MAX];
    int n = 0;
    int64_t until_us = wait_limit(l);
    fds[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = l->agents, .events = POLLIN};
    for (int i = 0; i < l->n_listeners; i++)
        fds[n++] = (struct pollfd){.fd = l->listeners[i], .events = POLLIN};
    for (int i = 0; i < l->n_peers; i++) {
        fds[n++] = (struct pollfd){.fd = l->peers[i]->link.fd, .events = l->peers[i]->link.events};
        if (!l->peers[i]->number) earlier(&until_us, l->peers[i]->deadline_us);
    }
    earlier(&until_us, l->end_us);
    const int64_t left_us = until_us - clock_now_us();
    poll(fds, (nfds_t)n, !until_us ? -1 : left_us > 0 ? (int)(left_us / 1000) + 1 : 0);
    // Peers from the last one: a removed peer leaves its place to one that has had its turn.
    for (int i = l->n_peers - 1; i >= 0; i--) {
        struct join_peer *peer = l->peers[i];
        enum status status = STATUS_OK;
        if (fds[2 + l->n_listeners + i].revents) status = peer_attend(l, peer);
        if (status == STATUS_OK && !peer->number && clock_now_us() >= peer->deadline_us)
            status =
                status_fail(STATUS_DEADLINE, "it did not prove within ten seconds that it knows the cluster token");
        if (status != STATUS_OK) peer_failed(l, i);
    }
    for (int i = 0; i < l->n_listeners; i++)
        if (fds[2 + i].revents) peers_accept(l, l->listeners[i]);
    if (fds[1].revents) agent_serve(l);
    if (fds[0].revents) signals_read(l);
}

static enum status run(struct leader *l)
{
    l->begun_us = clock_now_us();
    if (l->followers)
        log_event(LOG_INFO, "followers_awaited", LOG_FIELD("needed", l->followers),
                  LOG_FIELD("tls", (bool)(l->tls != NULL)));
    while (!l->ended) {
        if (!l->mpirun.pid && l->n_joined == l->followers) {
            TRY(join_mpirun_start(&l->mpirun, l->options, l->argv));
            log_event(LOG_INFO, "group_starting", LOG_FIELD("hosts", l->options->hosts),
                      LOG_FIELD("ranks", l->options->hosts * l->options->ranks_per_host));
        }
        const int64_t limit_us = wait_limit(l);
        if (limit_us && clock_now_us() >= limit_us)
            return status_fail(STATUS_DEADLINE, "%d of %d other hosts joined within --hosts-wait-s %lld", l->n_joined,
                               l->followers, (long long)l->options->wait_s);
        if (l->end_us && clock_now_us() >= l->end_us && l->mpirun.pid) {
            kill(l->mpirun.pid, l->end_signal);
            l->end_us += END_US;
            l->end_signal = SIGKILL;
        }
        poll_all(l);
    }
    return STATUS_OK;
}

// --- start and end

static enum status leader_open(struct leader *l)
{
    const struct join_options *o = l->options;
    char *token;
    int port;
    TRY(join_program_check("mpirun"));
    TRY(join_signals_open(&l->signals));
    TRY(join_mpirun_prepare(&l->mpirun));
    TRY(join_agent_listen(l->mpirun.socket, &l->agents));
    if (!l->followers) return STATUS_OK;
    TRY(secret_file_read(o->token_file, &token));
    explicit_bzero(token, strlen(token));
    free(token);
    const struct tls_server_options tls = {.cert = o->tls_cert,
                                           .key = o->tls_key,
                                           .client_ca = o->tls_ca,
                                           .protocol = "\x0d"
                                                       "forepack-join",
                                           .check_us = 1000000};
    if (o->tls_ca) TRY(tls_server_open(&tls, &l->tls));
    enum status status = address_listen(o->lead, l->listeners, &l->n_listeners, &port);
    return status == STATUS_OK ? status : status_context(status, "--lead");
}

static void leader_close(struct leader *l)
{
    while (l->n_peers)
        peer_remove(l, l->n_peers - 1);
    for (int i = 0; i < l->n_listeners; i++)
        close(l->listeners[i]);
    if (l->agents >= 0) close(l->agents);
    join_process_end_all();
    join_mpirun_finish(&l->mpirun);
    tls_server_free(l->tls);
}

enum status join_lead(const struct join_options *options, char **argv, int *code_p)
{
    struct leader *l = mem_alloc(sizeof *l);
    l->options = options;
    l->argv = argv;
    l->followers = (int)options->hosts - 1;
    l->agents = -1;
    l->end_signal = SIGTERM;
    enum status status = leader_open(l);
    if (status == STATUS_OK) status = run(l);
    leader_close(l);
    *code_p = l->code;
    free(l);
    return status;
}
