// SPDX-License-Identifier: Apache-2.0
#include "engine/group_network.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

// Message that the leader broadcasts, in native byte order, which is the same on all ranks of a group.
struct leader_host {
    char network[128];
    struct group_addresses addresses;
};

// Writes a unique name of the network namespace of this process: the boot id of the machine, then the namespace. Two
// ranks can connect by UNIX sockets only if these names are equal. Host names are not enough: two hosts or containers
// may have the same name.
static void network_name(char *name, size_t room)
{
    memset(name, 0, room);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, name, room / 2) : 0;
    if (fd >= 0) close(fd);
    // unknown: counts as another host
    if (n <= 0 || readlink("/proc/self/ns/net", name + n, room / 2 - 1) <= 0) *name = 0;
}

socklen_t group_address_size(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

// Returns the bytes [*size_p] of an IP address, or NULL if `address` is not an IP address.
static const uint8_t *ip_bytes(const struct sockaddr *address, size_t *size_p)
{
    *size_p = address && address->sa_family == AF_INET ? 4 : 16;
    if (address && address->sa_family == AF_INET)
        return (const uint8_t *)&((const struct sockaddr_in *)address)->sin_addr;
    if (address && address->sa_family == AF_INET6)
        return (const uint8_t *)&((const struct sockaddr_in6 *)address)->sin6_addr;
    return NULL;
}

// Returns true if other hosts may reach the address. Excludes interfaces that are down or loopback, and IPv6 link-local
// addresses.
static bool is_usable(const struct ifaddrs *i)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) return false;
    if (i->ifa_addr->sa_family == AF_INET) return true;
    return i->ifa_addr->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
}

static void addresses_list(const struct ifaddrs *all, struct group_addresses *list)
{
    for (const struct ifaddrs *i = all; i && list->n < GROUP_ADDRESSES_MAX; i = i->ifa_next) {
        if (!is_usable(i)) continue;
        struct sockaddr_storage *address = &list->address[list->n++];
        if (i->ifa_addr->sa_family == AF_INET)
            memcpy(address, i->ifa_addr, sizeof(struct sockaddr_in));
        else
            memcpy(address, i->ifa_addr, sizeof(struct sockaddr_in6));
    }
}

bool group_network_shared(const struct sockaddr *address, const struct ifaddrs *interfaces)
{
    size_t size, own_size, mask_size;
    const uint8_t *theirs = ip_bytes(address, &size);
    bool shared = false;
    for (const struct ifaddrs *i = interfaces; i; i = i->ifa_next) {
        const uint8_t *own = ip_bytes(i->ifa_addr, &own_size), *mask = ip_bytes(i->ifa_netmask, &mask_size);
        if (!own || !mask || own_size != size || mask_size != size || !is_usable(i)) continue;
        if (memcmp(own, theirs, size) == 0) return false;
        bool same = true;
        for (size_t b = 0; b < size; b++)
            same &= ((own[b] ^ theirs[b]) & mask[b]) == 0;
        shared |= same;
    }
    return shared;
}

static struct group_votes votes_of(const struct leader_host *leader, const char *own_network,
                                   const struct ifaddrs *interfaces)
{
    struct group_votes votes = {0};
    if (*own_network && strcmp(own_network, leader->network) == 0) return votes;
    votes.remote = 1;
    for (int i = 0; i < leader->addresses.n; i++)
        votes.shared[i] = group_network_shared((const struct sockaddr *)&leader->addresses.address[i], interfaces);
    return votes;
}

void group_network_pick(const struct group_addresses *all, const struct group_votes *votes,
                        struct group_addresses *chosen_p)
{
    *chosen_p = (struct group_addresses){0};
    if (votes->remote == 0) return;
    *chosen_p = *all;
    for (int i = 0; i < all->n; i++) {
        if (votes->shared[i] != votes->remote) continue;
        chosen_p->n = 1;
        chosen_p->address[0] = all->address[i];
        return;
    }
}

enum status group_network_choose(struct comm *comm, struct group_addresses *chosen_p)
{
    struct leader_host *leader = mem_alloc(sizeof *leader);
    struct ifaddrs *interfaces = NULL;
    char network[sizeof leader->network];
    network_name(network, sizeof network);
    memcpy(leader->network, network, sizeof network);
    if (getifaddrs(&interfaces) != 0) interfaces = NULL;
    addresses_list(interfaces, &leader->addresses);
    enum status status = comm->ops->broadcast(comm, leader, sizeof *leader);
    struct group_votes votes = votes_of(leader, network, interfaces);
    freeifaddrs(interfaces);
    if (status == STATUS_OK) status = comm->ops->all_reduce_sum(comm, (float *)&votes, sizeof votes / sizeof(float));
    if (status == STATUS_OK) group_network_pick(&leader->addresses, &votes, chosen_p);
    if (comm->rank != 0) chosen_p->n = 0;
    free(leader);
    return status;
}
