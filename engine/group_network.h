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

// Called by all ranks. Chooses the leader's addresses to listen on: none if all ranks are on one host, else its first
// address in a network that all hosts are connected to. If there is no such network (routers connect the hosts), it
// chooses all addresses. On followers *chosen_p is empty.
enum status group_network_choose(struct comm *comm, struct group_addresses *chosen_p);

// Makes the choice from the leader's addresses and the votes of all ranks, summed.
void group_network_pick(const struct group_addresses *all, const struct group_votes *votes,
                        struct group_addresses *chosen_p);

// Returns true if a host with these interfaces is connected to the network of the leader's address. If both have the
// same address (docker0), they are not in one network.
bool group_network_shared(const struct sockaddr *address, const struct ifaddrs *interfaces);

socklen_t group_address_size(const struct sockaddr_storage *address);
