// SPDX-License-Identifier: Apache-2.0
#include "router/sched/request_list.h"

#include <assert.h>
#include <stddef.h>

#include "router/sched/sched_request.h"

static void list_link(struct request_list *list, struct sched_request *r, struct sched_request *prev,
                      struct sched_request *next)
{
    assert(!r->list);
    r->list = list;
    r->prev = prev;
    r->next = next;
    *(prev ? &prev->next : &list->first) = r;
    *(next ? &next->prev : &list->last) = r;
    list->count++;
}

void request_list_append(struct request_list *list, struct sched_request *r)
{
    list_link(list, r, list->last, NULL);
}

void request_list_prepend(struct request_list *list, struct sched_request *r)
{
    list_link(list, r, NULL, list->first);
}

void request_list_insert(struct request_list *list, struct sched_request *r, struct sched_request *after)
{
    list_link(list, r, after, after ? after->next : list->first);
}

void request_list_remove(struct sched_request *r)
{
    struct request_list *list = r->list;
    if (!list) return;
    *(r->prev ? &r->prev->next : &list->first) = r->next;
    *(r->next ? &r->next->prev : &list->last) = r->prev;
    list->count--;
    r->list = NULL;
    r->prev = r->next = NULL;
}
