// SPDX-License-Identifier: Apache-2.0
// Messages to the service manager, read from the socket of a made-up manager.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/service_manager.h"
#include "tests/suite.h"

static int manager;
static char name[64], path[108];

// Listens at `address` and names it in the environment.
static void manager_listen(const char *address)
{
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    memcpy(own.sun_path, address, strlen(address));
    if (*address == '@') own.sun_path[0] = 0;
    manager = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(
        bind(manager, (struct sockaddr *)&own, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address))),
        0);
    setenv("NOTIFY_SOCKET", address, 1);
}

static void setup(void)
{
    snprintf(name, sizeof name, "@forepack-test-%d", (int)getpid());
    snprintf(path, sizeof path, "/tmp/forepack-notify-%d", (int)getpid());
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static void watchdog_set(const char *us, long long pid)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", pid);
    setenv("WATCHDOG_USEC", us, 1);
    setenv("WATCHDOG_PID", text, 1);
}

// Returns the next message, or "" if there is none.
static const char *message(void)
{
    static char text[1024];
    ssize_t n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    return text;
}

START_TEST(states_are_sent)
{
    manager_listen(name);
    service_manager_open();
    ck_assert(service_manager_listens());
    service_manager_ready();
    ck_assert_str_eq(message(), "READY=1");
    service_manager_stopping();
    ck_assert_str_eq(message(), "STOPPING=1");
    service_manager_extend_start(5000000);
    ck_assert_str_eq(message(), "EXTEND_TIMEOUT_USEC=5000000");
    service_manager_reloading();
    ck_assert_int_eq(strncmp(message(), "RELOADING=1\nMONOTONIC_USEC=", 27), 0);
}
END_TEST

START_TEST(a_socket_may_be_a_file)
{
    manager_listen(path);
    service_manager_open();
    unlink(path);
    service_manager_ready();
    ck_assert_str_eq(message(), "READY=1");
}
END_TEST

START_TEST(a_sentence_is_sent_once_and_on_one_line)
{
    manager_listen(name);
    service_manager_open();
    service_manager_set_status("%d requests,\n%s", 3, "none waits");
    ck_assert_str_eq(message(), "STATUS=3 requests, none waits");
    service_manager_set_status("3 requests,\nnone waits");
    ck_assert_str_eq(message(), "");
    service_manager_set_status("4 requests");
    ck_assert_str_eq(message(), "STATUS=4 requests");
}
END_TEST

START_TEST(the_watchdog_hears_twice_in_its_time)
{
    manager_listen(name);
    watchdog_set("4000000", getpid());
    service_manager_open();
    ck_assert_int_eq(service_manager_interval_us(9000000), 1000000);
    ck_assert_int_eq(service_manager_interval_us(500000), 500000);
    service_manager_alive(10000000);
    ck_assert_str_eq(message(), "WATCHDOG=1");
    service_manager_alive(11999999);
    ck_assert_str_eq(message(), "");
    service_manager_alive(12000000);
    ck_assert_str_eq(message(), "WATCHDOG=1");
}
END_TEST

START_TEST(the_watchdog_of_mpirun_is_that_of_its_rank)
{
    manager_listen(name);
    watchdog_set("4000000", getppid());
    service_manager_open();
    service_manager_alive(10000000);
    ck_assert_str_eq(message(), "WATCHDOG=1");
}
END_TEST

START_TEST(the_watchdog_of_another_process_hears_nothing)
{
    manager_listen(name);
    watchdog_set("4000000", getppid() + 100000000LL);
    service_manager_open();
    service_manager_alive(10000000);
    ck_assert_str_eq(message(), "");
}
END_TEST

START_TEST(children_do_not_inherit_the_manager)
{
    manager_listen(name);
    watchdog_set("4000000", getpid());
    service_manager_open();
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
    ck_assert_ptr_null(getenv("WATCHDOG_USEC"));
    ck_assert_ptr_null(getenv("WATCHDOG_PID"));
}
END_TEST

static const char *const useless[] = {"", "@", "/", "relative", "/nowhere/at/all"};

START_TEST(an_address_that_cannot_be_used_means_no_manager)
{
    setenv("NOTIFY_SOCKET", useless[_i], 1);
    service_manager_open();
    ck_assert(!service_manager_listens());
    service_manager_ready();
    service_manager_set_status("nothing");
    service_manager_alive(1);
}
END_TEST

SUITE("service_manager")
{
    FIXTURE(setup, NULL);
    TEST(states_are_sent);
    TEST(a_socket_may_be_a_file);
    TEST(a_sentence_is_sent_once_and_on_one_line);
    TEST(the_watchdog_hears_twice_in_its_time);
    TEST(the_watchdog_of_mpirun_is_that_of_its_rank);
    TEST(the_watchdog_of_another_process_hears_nothing);
    TEST(children_do_not_inherit_the_manager);
    EACH(an_address_that_cannot_be_used_means_no_manager, useless);
}
