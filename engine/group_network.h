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

// Counts of one rank, or sums over all ranks.
struct group_votes {
    float remote;                      // number of ranks on other hosts than the leader
    float shared[GROUP_ADDRESSES_MAX]; // number of remote ranks connected to the network of each address
};

// Called by all ranks. Chooses the addresses on which the leader listens. If all ranks are on one host, chooses none.
// Otherwise chooses the leader's first address in a network to which all hosts are connected. If there is no such
// network (the hosts are connected by IP routers), chooses all addresses. On followers, *chosen_p is empty.
enum status group_network_choose(struct comm *comm, struct group_addresses *chosen_p);

// Makes this choice from the leader's addresses and the sums of the votes of all ranks.
void group_network_pick(const struct group_addresses *all, const struct group_votes *votes,
                        struct group_addresses *chosen_p);

// Returns true if a host with these interfaces is connected to the network of the leader's address. Returns false if
// the host has the same address as the leader (such as docker0).
bool group_network_shared(const struct sockaddr *address, const struct ifaddrs *interfaces);

socklen_t group_address_size(const struct sockaddr_storage *address);
