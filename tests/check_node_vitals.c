// SPDX-License-Identifier: Apache-2.0
// What a node tells its service manager and its probe port, with a made-up service manager.
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/node_probe.h"
#include "engine/node_vitals.h"
#include "lib/base/service_manager.h"
#include "tests/suite.h"

enum { BOUND_MS = 200000 };

static int manager;
static struct node_vitals *vitals;

static void setup(void)
{
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    const int n = snprintf(own.sun_path, sizeof own.sun_path, "@forepack-vitals-%d", (int)getpid());
    setenv("NOTIFY_SOCKET", own.sun_path, 1);
    setenv("WATCHDOG_USEC", "200000", 1);
    own.sun_path[0] = 0;
    manager = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(
        bind(manager, (struct sockaddr *)&own, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)), 0);
    service_manager_open();
    vitals = node_vitals_create("router:1");
    node_vitals_watch(vitals);
}

static void teardown(void)
{
    node_vitals_free(vitals);
    close(manager);
}

// Reads messages until one begins with `start`, and returns it. Counts the messages before it that begin with
// `counted`.
static const char *await(const char *start, const char *counted, int *count_p)
{
    static char text[1024];
    struct pollfd in = {.fd = manager, .events = POLLIN};
    for (*count_p = 0;;) {
        ck_assert_int_eq(poll(&in, 1, BOUND_MS), 1);
        ssize_t n = recv(manager, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = 0;
        if (strncmp(text, start, strlen(start)) == 0) return text;
        *count_p += strncmp(text, counted, strlen(counted)) == 0;
    }
}

static const char *next(const char *start)
{
    int unused;
    return await(start, "none", &unused);
}

START_TEST(a_long_start_is_extended_until_the_node_is_attached)
{
    struct node_picture picture;
    ck_assert_str_eq(next("EXTEND_TIMEOUT_USEC"), "EXTEND_TIMEOUT_USEC=60000000");
    ck_assert_str_eq(next("STATUS"), "STATUS=Loads the model: 0 %");
    node_vitals_read(vitals, &picture);
    ck_assert_int_eq(picture.phase, NODE_PHASE_LOADING);
    ck_assert(picture.live);
    node_vitals_set_routers(vitals, 1, 1);
    next("READY=1");
}
END_TEST

START_TEST(a_refused_reload_is_shown_until_one_succeeds)
{
    node_vitals_set_routers(vitals, 1, 1);
    next("READY=1");
    node_vitals_reload_begin(vitals);
    next("RELOADING=1");
    node_vitals_reload_end(vitals, "line 3 is wrong");
    next("READY=1");
    ck_assert_ptr_nonnull(strstr(next("STATUS"), "The last reload was refused: line 3 is wrong"));
    node_vitals_reload_end(vitals, NULL);
    ck_assert_ptr_null(strstr(next("STATUS"), "refused"));
}
END_TEST

START_TEST(a_reload_does_not_end_the_start)
{
    int ready;
    node_vitals_reload_begin(vitals);
    node_vitals_reload_end(vitals, NULL);
    node_vitals_set_draining(vitals);
    await("STOPPING=1", "READY=1", &ready);
    ck_assert_int_eq(ready, 0);
}
END_TEST

// Each new load is a new sentence, so the thread has looked once more.
static int watchdogs_in_looks(int looks)
{
    int sum = 0;
    for (int i = 0; i < looks; i++) {
        int count;
        node_vitals_set_load(vitals, 100 + i, 0, 0, 0);
        await("STATUS=", "WATCHDOG=1", &count);
        sum += count;
    }
    return sum;
}

START_TEST(the_watchdog_hears_only_of_progress)
{
    node_vitals_set_draining(vitals); // a phase with work
    node_vitals_set_idle(vitals, true);
    next("WATCHDOG=1");
    node_vitals_set_idle(vitals, false);
    node_vitals_set_load(vitals, 7, 0, 0, 0);
    ck_assert_ptr_nonnull(strstr(next("STATUS=Drains from the router router:1: 7"), "7 requests running, 0 waiting"));
    watchdogs_in_looks(2); // the first looks may have seen the last change
    ck_assert_int_eq(watchdogs_in_looks(10), 0);
    node_vitals_set_idle(vitals, true);
    next("WATCHDOG=1");
}
END_TEST

static const struct {
    const char *address;
    bool insecure;
    enum status status;
} addresses[] = {
    {"127.0.0.1:9100", false, STATUS_OK}, {"9100", false, STATUS_OK},          {"[::1]:0", false, STATUS_OK},
    {"0.0.0.0:0", false, STATUS_INVALID}, {"0.0.0.0:0", true, STATUS_OK},      {":9100", false, STATUS_INVALID},
    {"99999", false, STATUS_INVALID},     {"127.0.0.1", true, STATUS_INVALID}, {"", true, STATUS_INVALID},
};

START_TEST(the_probe_port_is_exposed_only_on_request)
{
    ck_assert_int_eq(node_probe_check(addresses[_i].address, addresses[_i].insecure), addresses[_i].status);
}
END_TEST

SUITE("node_vitals")
{
    FIXTURE(setup, teardown);
    TEST(a_long_start_is_extended_until_the_node_is_attached);
    TEST(a_refused_reload_is_shown_until_one_succeeds);
    TEST(a_reload_does_not_end_the_start);
    TEST(the_watchdog_hears_only_of_progress);
    TCASE("probe");
    EACH(the_probe_port_is_exposed_only_on_request, addresses);
}
