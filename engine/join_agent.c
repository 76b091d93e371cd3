// SPDX-License-Identifier: Apache-2.0
#include "engine/join_agent.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/join.h"

const char join_agent_flag[] = "--launch-agent";

static enum status socket_address(const char *path, struct sockaddr_un *address_p)
{
    *address_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address_p->sun_path)
        return status_fail(STATUS_INVALID, "%s: too long for a socket: set TMPDIR to a shorter folder", path);
    strcpy(address_p->sun_path, path);
    return STATUS_OK;
}

enum status join_agent_listen(const char *path, int *fd_p)
{
    struct sockaddr_un address;
    TRY(socket_address(path, &address));
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64)) {
        enum status status = status_fail(STATUS_INTERNAL, "%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    *fd_p = fd;
    return STATUS_OK;
}

enum status join_agent_accept(int listener, char message_p[JOIN_AGENT_BYTES_MAX], size_t *n_p, int *fd_p)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    const struct timeval limit = {.tv_sec = 5};
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return status_fail(STATUS_INVALID, "accept: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const bool own = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
    const ssize_t n = own ? recv(fd, message_p, JOIN_AGENT_BYTES_MAX, 0) : -1;
    if (n <= 0 || message_p[n - 1]) {
        close(fd);
        return status_fail(STATUS_INVALID, "the launch agent sends no command");
    }
    *n_p = (size_t)n;
    *fd_p = fd;
    return STATUS_OK;
}

void join_agent_answer(int fd, const char *reason)
{
    if (send(fd, reason, strlen(reason) + 1, MSG_NOSIGNAL) < 0) { /* the agent has ended: mpirun knows */
    }
    close(fd);
}

// --- the agent's own process

// Appends a word of mpirun, which is quoted for a shell, to the message. Returns false if it does not fit.
static bool word_append(const char *word, char message[JOIN_AGENT_BYTES_MAX], size_t *n)
{
    word += strspn(word, " ");
    size_t size = strlen(word);
    while (size && word[size - 1] == ' ')
        size--;
    if (size >= 2 && word[0] == '"' && word[size - 1] == '"') {
        word++;
        size -= 2;
    }
    if (size >= JOIN_AGENT_BYTES_MAX - *n) return false;
    memcpy(message + *n, word, size);
    message[*n + size] = 0;
    *n += size + 1;
    return true;
}

// Returns true for the name of the daemon, before which mpirun puts words for some shells.
static bool is_daemon(const char *word)
{
    return strcmp(word + strspn(word, " "), "orted") == 0;
}

// Makes the message of "HOST [words of a shell] orted ARGUMENT... [)]".
static bool message_make(int argc, char **argv, char message[JOIN_AGENT_BYTES_MAX], size_t *n_p)
{
    int first = 1;
    *n_p = 0;
    while (first < argc && !is_daemon(argv[first]))
        first++;
    if (first >= argc || !word_append(argv[0], message, n_p)) return false;
    for (int i = first; i < argc && strcmp(argv[i], ")") != 0; i++)
        if (!word_append(argv[i], message, n_p)) return false;
    return true;
}

static int agent_fail(const char *reason)
{
    fprintf(stderr, "forepack-worker: %s\n", reason);
    return 1;
}

int join_agent_run(int argc, char **argv)
{
    static char message[JOIN_AGENT_BYTES_MAX], answer[1024];
    struct sockaddr_un address;
    size_t n;
    if (argc < 2 || strcmp(argv[1], join_agent_flag) != 0) return -1;
    if (argc < 4 || !message_make(argc - 3, argv + 3, message, &n))
        return agent_fail("mpirun gives no command for its daemon");
    if (socket_address(argv[2], &address) != STATUS_OK) return agent_fail(status_message());
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) || send(fd, message, n, MSG_NOSIGNAL) < 0)
        return agent_fail("the leader of the group is gone");
    const ssize_t got = recv(fd, answer, sizeof answer - 1, 0);
    if (got <= 0) return agent_fail("the leader of the group is gone");
    return *answer ? agent_fail(answer) : 0;
}
