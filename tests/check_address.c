// SPDX-License-Identifier: Apache-2.0
// lib/base/address.h: which addresses other machines can reach, and where a server listens.
// lib/base/address_counts.h: addresses that broke limits again and again.
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/address_counts.h"
#include "tests/suite.h"

static const struct {
    const char *address;
    enum status status;
    bool loopback;
} addresses[] = {
    {"127.0.0.1:50051", STATUS_OK, true},
    {"127.9.8.7:0", STATUS_OK, true},
    {"localhost:50051", STATUS_OK, true},
    {"[::1]:50051", STATUS_OK, true},
    {"[::ffff:127.0.0.1]:1", STATUS_OK, true},
    {"[::ffff:10.0.0.1]:1", STATUS_OK, false},
    {"0.0.0.0:50051", STATUS_OK, false},
    {"[::]:50051", STATUS_OK, false},
    {":50051", STATUS_OK, false},
    {"10.1.2.3:50051", STATUS_OK, false},
    {"128.0.0.1:50051", STATUS_OK, false},
    {"[fe80::1]:50051", STATUS_OK, false},
    {"127.0.0.1", STATUS_INVALID, false},
    {"127.0.0.1:port", STATUS_INVALID, false},
    {"127.0.0.1:65536", STATUS_INVALID, false},
    {"no such host:1", STATUS_UNAVAILABLE, false},
};

START_TEST(loopback_addresses_are_those_that_no_other_machine_reaches)
{
    bool loopback = false;
    ck_assert_msg(address_is_loopback(addresses[_i].address, &loopback) == addresses[_i].status, "%s: %s",
                  addresses[_i].address, status_message());
    ck_assert_msg(loopback == addresses[_i].loopback, "%s", addresses[_i].address);
}
END_TEST

static bool reaches(int family, int port)
{
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = v4.sin_port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(family, SOCK_STREAM, 0);
    bool reached = fd >= 0 && (family == AF_INET ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                                                 : connect(fd, (struct sockaddr *)&v6, sizeof v6)) == 0;
    if (fd >= 0) close(fd);
    return reached;
}

static bool has_ipv6(void)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof any) == 0;
    if (fd >= 0) close(fd);
    return has;
}

static const struct {
    const char *address;
    bool v4, v6; // whether IPv4 or IPv6 loopback reaches it
} listeners[] = {
    {"127.0.0.1:0", true, false}, {"0.0.0.0:0", true, false}, {"[::1]:0", false, true},
    {"[::]:0", true, true},       {":0", true, true},
};

START_TEST(a_server_listens_on_every_address_of_its_host)
{
    int sockets[ADDRESS_SOCKETS_MAX], n, port;
    if (listeners[_i].v6 && !has_ipv6()) return;
    ck_assert_msg(address_listen(listeners[_i].address, sockets, &n, &port) == STATUS_OK, "%s", status_message());
    ck_assert_msg(reaches(AF_INET, port) == listeners[_i].v4, "%s by IPv4", listeners[_i].address);
    ck_assert_msg(reaches(AF_INET6, port) == listeners[_i].v6, "%s by IPv6", listeners[_i].address);
    while (n)
        close(sockets[--n]);
}
END_TEST

// --- offenders

static struct in6_addr address_of(uint32_t host)
{
    struct in6_addr address = {.s6_addr = {[10] = 255, [11] = 255}};
    host = htonl(host);
    memcpy(address.s6_addr + 12, &host, sizeof host);
    return address;
}

// Opens a connection of the address, which offends, and closes it.
static void offend(struct address_counts *a, uint32_t host, int64_t now_us)
{
    struct in6_addr address = address_of(host);
    ck_assert(address_counts_add(a, &address));
    address_counts_offend(a, &address, now_us);
    address_counts_remove(a, &address);
}

static bool is_barred(struct address_counts *a, uint32_t host, int64_t now_us)
{
    struct in6_addr address = address_of(host);
    return address_counts_is_barred(a, &address, now_us);
}

START_TEST(an_address_that_offends_too_often_is_barred_for_a_time)
{
    const int64_t now_us = 1000000000;
    struct address_counts *a = address_counts_open(1);
    for (int i = 0; i < OFFENCES_MAX; i++)
        offend(a, 1, now_us);
    ck_assert(!is_barred(a, 1, now_us));
    offend(a, 1, now_us + 1000000); // a second forgives one offence
    ck_assert(!is_barred(a, 1, now_us + 1000000));
    offend(a, 1, now_us + 1000000);
    ck_assert(is_barred(a, 1, now_us + 1000000));
    ck_assert(!is_barred(a, 2, now_us + 1000000));
    ck_assert(is_barred(a, 1, now_us + 1000000 + BARRED_US - 1));
    ck_assert(!is_barred(a, 1, now_us + 1000000 + BARRED_US));
    address_counts_close(a);
}
END_TEST

START_TEST(only_so_many_offenders_are_remembered)
{
    struct address_counts *a = address_counts_open(2);
    struct in6_addr connected = address_of(2);
    for (int i = 0; i <= OFFENCES_MAX; i++) {
        offend(a, 1, 1);
        offend(a, 2, 1);
    }
    ck_assert(address_counts_add(a, &connected));
    for (uint32_t i = 0; i < OFFENDERS_MAX - 1; i++)
        offend(a, 1000 + i, 1);
    ck_assert(is_barred(a, 1, 2));
    offend(a, 999, 1);
    ck_assert(!is_barred(a, 1, 2));
    ck_assert(is_barred(a, 2, 2)); // it has a connection
    address_counts_close(a);
}
END_TEST

SUITE("address")
{
    TEST(an_address_that_offends_too_often_is_barred_for_a_time);
    TEST(only_so_many_offenders_are_remembered);
    EACH(loopback_addresses_are_those_that_no_other_machine_reaches, addresses);
    EACH(a_server_listens_on_every_address_of_its_host, listeners);
}
