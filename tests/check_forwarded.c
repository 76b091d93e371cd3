// SPDX-License-Identifier: Apache-2.0
// Addresses of clients that came through proxies, and lists of networks.
#include "lib/base/forwarded.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "tests/suite.h"

// Returns the client's address as text. `fields` are lines such as "x-forwarded-for: 1.2.3.4\n". The peer is 10.0.0.9.
static const char *client_of(const char *fields)
{
    static char text[INET6_ADDRSTRLEN];
    struct networks trusted;
    ck_assert_int_eq(networks_parse("10.0.0.0/8,fd00::/8,192.0.2.7", &trusted), STATUS_OK);
    struct forwarded forwarded = forwarded_begin(&trusted);
    char name[32], value[256];
    for (int n; sscanf(fields, "%31[^:]: %255[^\n]\n%n", name, value, &n) == 2; fields += n)
        forwarded_take(&forwarded, name, value);
    struct in6_addr peer, client;
    inet_pton(AF_INET6, "::ffff:10.0.0.9", &peer);
    client = forwarded_client(&forwarded, &peer);
    inet_ntop(AF_INET6, &client, text, sizeof text);
    return strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text;
}

START_TEST(the_last_untrusted_hop_is_the_client)
{
    static const struct {
        const char *fields, *client;
    } cases[] = {
        {"", "10.0.0.9"},
        {"x-forwarded-for: 1.2.3.4\n", "1.2.3.4"},
        {"x-forwarded-for: 9.9.9.9, 1.2.3.4\n", "1.2.3.4"}, // the client invented 9.9.9.9
        {"x-forwarded-for: 9.9.9.9, 1.2.3.4 , 10.1.1.1,192.0.2.7\n", "1.2.3.4"},
        {"x-forwarded-for: 9.9.9.9\nx-forwarded-for: 1.2.3.4\n", "1.2.3.4"},
        {"x-forwarded-for: 10.2.2.2, 10.3.3.3\n", "10.2.2.2"}, // a client inside
        {"x-forwarded-for: 1.2.3.4:55\n", "1.2.3.4"},
        {"x-forwarded-for: 2001:db8::5\n", "2001:db8::5"},
        {"x-forwarded-for: [2001:db8::5]:55\n", "2001:db8::5"},
        {"x-forwarded-for: 2001:db8::5, fd00::1\n", "2001:db8::5"},
        {"x-forwarded-for: ::ffff:1.2.3.4\n", "1.2.3.4"},
        {"x-forwarded-for: unknown\n", "10.0.0.9"},
        {"x-forwarded-for: 1.2.3.4, nonsense, 10.4.4.4\n", "10.4.4.4"},
        {"x-forwarded-for: 1.2.3.4, nonsense\n", "10.0.0.9"},
        {"x-forwarded-for: 1.2.3.4,\n", "10.0.0.9"},
        {"x-forwarded-for: \"9.9.9.9, 1.2.3.4\n", "1.2.3.4"}, // this header has no quotes
        {"forwarded: for=1.2.3.4\n", "1.2.3.4"},
        {"forwarded: proto=https;For=\"[2001:db8::5]:4711\";by=10.0.0.9\n", "2001:db8::5"},
        {"forwarded: for=9.9.9.9, for=1.2.3.4;host=\"a,b\", for=10.1.1.1\n", "1.2.3.4"},
        {"forwarded: for=_hidden\n", "10.0.0.9"},
        {"forwarded: proto=https\n", "10.0.0.9"},
        {"forwarded: for=9.9.9.9;a=\", for=1.2.3.4\n", "10.0.0.9"}, // an open quote hides what follows
        {"forwarded: for=9.9.9.9;a=\", for=\"[2001:db8::5]\"\n", "10.0.0.9"},
        {"forwarded: for=9.9.9.9;a=\"\nforwarded: for=1.2.3.4\n", "1.2.3.4"},
        {"x-forwarded-for: 1.2.3.4\nforwarded: for=1.2.3.4\n", "1.2.3.4"},
        {"x-forwarded-for: 1.2.3.4\nforwarded: for=9.9.9.9\n", "10.0.0.9"}, // one of them is the client's own
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *client = client_of(cases[i].fields);
        ck_assert_msg(strcmp(client, cases[i].client) == 0, "%s: %s", cases[i].fields, client);
    }
}
END_TEST

START_TEST(malformed_networks_are_refused)
{
    static const char *const bad[] = {"",         "10.0.0.0/33", "10.0.0/8",   "::/129",    "10.0.0.0/", "10.0.0.0/-1",
                                      "1.2.3.4,", "a.org",       "1.2.3.4/8x", "1.2.3.4/ 8"};
    struct networks networks;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(networks_parse(bad[i], &networks) == STATUS_INVALID, "%s", bad[i]);
    char many[8 * (NETWORKS_MAX + 1) + 1] = "1.1.1.1";
    for (int i = 0; i < NETWORKS_MAX; i++)
        strcat(many, ",1.1.1.1");
    ck_assert_int_eq(networks_parse(many, &networks), STATUS_INVALID);
    ck_assert_int_eq(networks_parse(NULL, &networks), STATUS_OK);
    ck_assert_int_eq(networks.n, 0);
}
END_TEST

START_TEST(a_network_has_the_addresses_of_its_prefix)
{
    static const struct {
        const char *network, *address;
        bool has;
    } cases[] = {
        {"10.0.0.0/8", "::ffff:10.255.0.1", true},
        {"10.0.0.0/8", "::ffff:11.0.0.1", false},
        {"10.0.0.0/9", "::ffff:10.127.0.1", true},
        {"10.0.0.0/9", "::ffff:10.128.0.1", false},
        {"0.0.0.0/0", "::ffff:1.2.3.4", true},
        {"0.0.0.0/0", "2001:db8::1", false},
        {"::/0", "2001:db8::1", true},
        {"::1", "::1", true},
        {"::1", "::2", false},
        {"2001:db8::/33", "2001:db8:7fff::1", true},
        {"2001:db8::/33", "2001:db8:8000::1", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct networks networks;
        struct in6_addr address;
        ck_assert_int_eq(networks_parse(cases[i].network, &networks), STATUS_OK);
        ck_assert_int_eq(inet_pton(AF_INET6, cases[i].address, &address), 1);
        ck_assert_msg(networks_have(&networks, &address) == cases[i].has, "%s %s", cases[i].network, cases[i].address);
    }
}
END_TEST

SUITE("forwarded")
{
    TEST(the_last_untrusted_hop_is_the_client);
    TEST(malformed_networks_are_refused);
    TEST(a_network_has_the_addresses_of_its_prefix);
}
