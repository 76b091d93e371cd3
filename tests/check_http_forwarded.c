// SPDX-License-Identifier: Apache-2.0
// Limits per address of requests that came through a proxy.
#include "lib/base/mem.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

static int begin_held(const char *client)
{
    int fd = client_connect(port());
    char *request = mem_format("GET /stream HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %s\r\n\r\n", client);
    client_send(fd, request);
    free(request);
    free(client_receive_until(fd, "\r\n\r\n").bytes);
    http_unref(await_held());
    return fd;
}

START_TEST(each_forwarded_address_has_its_own_limit)
{
    open_server((struct http_server_options){.trusted_proxies = "127.0.0.0/8", .max_connections_per_address = 2});
    int a = begin_held("1.1.1.1"), b = begin_held("1.1.1.1"), other = begin_held("2.2.2.2");
    static const char third[] =
        "GET /hello HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 9.9.9.9, 1.1.1.1\r\nConnection: close\r\n\r\n";
    expect_answer(third, "HTTP/1.1 429", "Retry-After: 1\r\n");
    close(a);
    AWAIT(server_status().exchanges == 2);
    expect_answer(third, "HTTP/1.1 200", "hello");
    close(b);
    close(other);
    close_server();
}
END_TEST

START_TEST(other_peers_cannot_name_an_address)
{
    open_server((struct http_server_options){.trusted_proxies = "10.0.0.0/8", .max_connections_per_address = 2});
    int a = begin_held("1.1.1.1"), b = begin_held("2.2.2.2");
    int fd = client_connect(port());
    struct client_text none = client_receive_all(fd);
    ck_assert_uint_eq(none.size, 0);
    ck_assert_uint_eq(server_status().refused, 1);
    free(none.bytes);
    close(fd);
    close(a);
    close(b);
    close_server();
}
END_TEST

SUITE("http_forwarded")
{
    TEST(each_forwarded_address_has_its_own_limit);
    TEST(other_peers_cannot_name_an_address);
}
