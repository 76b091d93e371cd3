// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { ANSWER_ROOM = 1 << 16 };

enum status http_client_open(int port, int *fd_p)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) {
        if (fd >= 0) close(fd);
        return status_fail(STATUS_UNAVAILABLE, "cannot connect to port %d: %s", port, strerror(errno));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *fd_p = fd;
    return STATUS_OK;
}

char *http_client_request(const char *path, const char *body)
{
    return mem_format("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                      "%zu\r\n\r\n%s",
                      path, strlen(body), body);
}

enum status http_client_send(int fd, const char *bytes, size_t size)
{
    while (size) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0) return status_fail(STATUS_UNAVAILABLE, "cannot send a request: %s", strerror(errno));
        bytes += n;
        size -= (size_t)n;
    }
    return STATUS_OK;
}

// Returns true if `text` is a whole answer.
static bool answer_complete(const char *text, size_t n)
{
    const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length: ");
    if (!body || !length || length > body) return false;
    return n >= (size_t)(body + 4 - text) + strtoul(length + 18, NULL, 10);
}

enum status http_client_call(int fd, const char *request, size_t size)
{
    char answer[ANSWER_ROOM];
    size_t n = 0;
    TRY(http_client_send(fd, request, size));
    do {
        ssize_t got = recv(fd, answer + n, sizeof answer - 1 - n, 0);
        if (got <= 0) return status_fail(STATUS_UNAVAILABLE, "the router closed the connection");
        n += (size_t)got;
        answer[n] = 0;
    } while (!answer_complete(answer, n));
    if (!strncmp(answer, "HTTP/1.1 200", 12)) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "%.200s", strstr(answer, "\r\n\r\n") + 4);
}
