// SPDX-License-Identifier: Apache-2.0
// engine/: messages that wake the followers of a group. Unidentified connections do not keep a group from opening, and
// its leader listens in one network only.
#include <arpa/inet.h>
#include <dirent.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/group_network.h"
#include "tests/group_ranks.h"
#include "tests/suite.h"

enum { STRANGERS = 40 };

static int strangers[STRANGERS], n_strangers;
static bool listens_by_tcp;

// Reads the name of the leader's UNIX socket, without the zero byte before it. Returns false while the leader does not
// listen.
static bool find_socket(char name[64])
{
    char line[512], format[64];
    bool found = false;
    FILE *file = fopen("/proc/net/unix", "r");
    ck_assert_ptr_nonnull(file);
    snprintf(format, sizeof format, "@forepack-%d-", (int)getpid());
    while (!found && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, format);
        found = at && sscanf(at + 1, "%63s", name) == 1;
    }
    fclose(file);
    return found;
}

static int stranger_connect(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    memcpy(address.sun_path + 1, name, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(
        !connect(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)));
    return fd;
}

static bool any_tcp_listener(void)
{
    DIR *folder = opendir("/proc/self/fd");
    bool found = false;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int fd = atoi(entry->d_name), domain = 0, listening = 0;
        socklen_t size = sizeof domain;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size)) continue;
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size);
        found |= listening && domain != AF_UNIX;
    }
    closedir(folder);
    return found;
}

// A comm whose broadcast first opens unidentified connections, once the leader listens.
struct late_comm {
    struct comm base;
    struct comm *inner;
};

static enum status late_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    struct comm *inner = ((struct late_comm *)c)->inner;
    enum status status = inner->ops->broadcast(inner, bytes, size_bytes);
    char name[64];
    if (n_strangers || !find_socket(name)) return status;
    for (; n_strangers < STRANGERS; n_strangers++) {
        strangers[n_strangers] = stranger_connect(name);
        ck_assert_int_eq(send(strangers[n_strangers], "x", (size_t)n_strangers % 2, MSG_NOSIGNAL), n_strangers % 2);
    }
    listens_by_tcp = any_tcp_listener();
    return status;
}

static enum status late_sum(struct comm *c, float *data, size_t count)
{
    struct comm *inner = ((struct late_comm *)c)->inner;
    return inner->ops->all_reduce_sum(inner, data, count);
}

static const struct comm_ops late_ops = {.broadcast = late_broadcast, .all_reduce_sum = late_sum};

static void *open_leader(void *comm)
{
    struct wakeup *wakeup = NULL;
    return wakeup_open(comm, &wakeup) == STATUS_OK ? wakeup : NULL;
}

START_TEST(strangers_do_not_keep_followers_out)
{
    struct comm *comms[2];
    struct wakeup *wakeup;
    void *leader;
    pthread_t thread;
    ck_assert_int_eq(comm_open_threads(2, comms), STATUS_OK);
    struct late_comm late = {{.rank = 1, .size = 2, .ops = &late_ops}, comms[1]};
    ck_assert_int_eq(pthread_create(&thread, NULL, open_leader, comms[0]), 0);
    ck_assert_msg(wakeup_open(&late.base, &wakeup) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(pthread_join(thread, &leader), 0);
    ck_assert_ptr_nonnull(leader);
    ck_assert_int_eq(n_strangers, STRANGERS);
    ck_assert(!listens_by_tcp); // all ranks are on one host
    wakeup_close(wakeup);
    wakeup_close(leader);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    for (int r = 0; r < 2; r++)
        comms[r]->ops->close(comms[r]);
}
END_TEST

// ---- messages ----

static void *send_and_die(void *arg)
{
    struct rank *r = arg;
    struct wakeup *wakeup;
    r->status = wakeup_open(r->comm, &wakeup);
    if (r->status != STATUS_OK) return NULL;
    r->status = wakeup_agree(wakeup, STATUS_OK);
    for (uint32_t i = 0; i < 1000 && r->status == STATUS_OK; i++)
        r->status = wakeup_send(wakeup, (struct wakeup_message){i, 2 * i, 0});
    wakeup_close(wakeup); // as when the process ends
    return NULL;
}

static void *count_rings(void *arg)
{
    struct rank *r = arg;
    struct wakeup *wakeup;
    r->status = wakeup_open(r->comm, &wakeup);
    if (r->status != STATUS_OK) return NULL;
    r->status = wakeup_agree(wakeup, STATUS_OK);
    struct wakeup_message message = {0};
    uint32_t n = 0;
    while (r->status == STATUS_OK && (r->status = wakeup_wait(wakeup, &message)) == STATUS_OK) {
        if (message.kind != n || message.size_bytes != 2 * n) break;
        n++;
    }
    keep_message(r);
    if (n != 1000) r->status = STATUS_DATA;
    wakeup_close(wakeup);
    return NULL;
}

START_TEST(every_ring_arrives_and_so_does_the_end)
{
    struct rank ranks[RANKS] = {0};
    start_ranks(ranks, RANKS, send_and_die, count_rings);
    join_ranks(ranks, RANKS);
    ck_assert_int_eq(ranks[0].status, STATUS_OK);
    for (int r = 1; r < RANKS; r++) {
        ck_assert_int_eq(ranks[r].status, STATUS_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(ranks[r].message, "leader is gone"));
    }
}
END_TEST

// ---- networks ----

struct interface {
    struct ifaddrs entry;
    struct sockaddr_in address, mask;
};

static struct sockaddr_in ipv4(const char *text)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    ck_assert_int_eq(inet_pton(AF_INET, text, &address.sin_addr), 1);
    return address;
}

static void interface_init(struct interface *i, const char *address, const char *mask, unsigned flags)
{
    *i = (struct interface){.address = ipv4(address), .mask = ipv4(mask)};
    i->entry = (struct ifaddrs){
        .ifa_flags = flags, .ifa_addr = (struct sockaddr *)&i->address, .ifa_netmask = (struct sockaddr *)&i->mask};
}

static bool shared(const char *leader, const struct interface *first)
{
    struct sockaddr_in address = ipv4(leader);
    return group_network_shared((struct sockaddr *)&address, &first->entry);
}

START_TEST(hosts_share_the_networks_of_their_interfaces)
{
    struct interface bridge, fabric, down;
    struct ifaddrs other = {.ifa_flags = IFF_UP}; // an interface without addresses
    interface_init(&bridge, "172.17.0.1", "255.255.0.0", IFF_UP);
    interface_init(&fabric, "10.1.2.3", "255.255.255.0", IFF_UP);
    interface_init(&down, "10.9.0.1", "255.255.0.0", 0);
    bridge.entry.ifa_next = &other;
    other.ifa_next = &fabric.entry;
    fabric.entry.ifa_next = &down.entry;
    ck_assert(shared("10.1.2.200", &bridge));
    ck_assert(!shared("10.1.3.200", &bridge));
    ck_assert(!shared("172.17.0.1", &bridge)); // the same address: another network like docker0
    ck_assert(shared("172.17.0.2", &bridge));
    ck_assert(!shared("10.9.0.2", &bridge));
    ck_assert(!group_network_shared((struct sockaddr *)&fabric.address, NULL));
}
END_TEST

START_TEST(a_leader_listens_in_one_network_of_all_hosts)
{
    struct group_addresses all = {.n = 3}, chosen;
    for (int i = 0; i < all.n; i++)
        ((struct sockaddr_in *)&all.address[i])->sin_port = (in_port_t)(i + 1);
    struct group_votes votes = {.remote = 0, .shared = {3, 3, 3}};
    group_network_pick(&all, &votes, &chosen);
    ck_assert_int_eq(chosen.n, 0); // one host
    votes = (struct group_votes){.remote = 3, .shared = {2, 3, 3}};
    group_network_pick(&all, &votes, &chosen);
    ck_assert_int_eq(chosen.n, 1);
    ck_assert_int_eq(((struct sockaddr_in *)&chosen.address[0])->sin_port, 2);
    votes.shared[1] = votes.shared[2] = 0; // the hosts are in different networks, which routers connect
    group_network_pick(&all, &votes, &chosen);
    ck_assert_int_eq(chosen.n, 3);
}
END_TEST

SUITE("wakeup")
{
    TIMEOUT(60);
    TEST(strangers_do_not_keep_followers_out);
    TEST(every_ring_arrives_and_so_does_the_end);
    TEST(hosts_share_the_networks_of_their_interfaces);
    TEST(a_leader_listens_in_one_network_of_all_hosts);
}
