// SPDX-License-Identifier: Apache-2.0
// Chooses the addresses on which the leader of a group listens for the followers of other hosts.
#pragma once

#include <ifaddrs.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "kernels/comm.h"

enum { GROUP_ADDRESSES_MAX = 16 };

struct group_addresses {
    int n;
    struct sockaddr_storage address[GROUP_ADDRESSES_MAX]; // IPv4 or IPv6, port 0
};

// Of one rank, and summed over all ranks.
struct group_votes {
    float remote;                      // ranks on other hosts than the leader
    float shared[GROUP_ADDRESSES_MAX]; // remote ranks connected to the network of an address
};

// Called by all ranks. On the leader *chosen_p is empty if all ranks are on one host; else the leader's first address
// in a network that all hosts are connected to; else, if network routers connect the hosts, all its addresses. Empty on
// followers.
enum status group_network_choose(struct comm *comm, struct group_addresses *chosen_p);

// The choice for the leader's addresses and the sums of all ranks' votes.
void group_network_pick(const struct group_addresses *all, const struct group_votes *votes,
                        struct group_addresses *chosen_p);

// Whether a host with these interfaces is connected to the network of the leader's address. A network in which both
// have the same address (docker0) is not one network.
bool group_network_shared(const struct sockaddr *address, const struct ifaddrs *interfaces);

socklen_t group_address_size(const struct sockaddr_storage *address);
