// SPDX-License-Identifier: Apache-2.0
// Lists of waiting requests, and of the requests on a node. Links are members of the requests, so no function can fail.
// Every function is O(1). A request is in at most one list. Lists do not own the requests. One thread.
#pragma once

struct sched_request;

struct request_list {
    struct sched_request *first, *last;
    int count;
};
void request_list_append(struct request_list *list, struct sched_request *r);
void request_list_prepend(struct request_list *list, struct sched_request *r);
void request_list_insert(struct request_list *list, struct sched_request *r,
                         struct sched_request *after); // NULL: inserts at the front
void request_list_remove(struct sched_request *r);     // no effect if the request is in no list
