// SPDX-License-Identifier: Apache-2.0
#include "engine/mailbox.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

void node_event_free(struct node_event *event)
{
    if (event->message) forepack__cluster__v1__router_message__free_unpacked(event->message, NULL);
    *event = (struct node_event){.kind = NODE_NOTHING};
}

void mailbox_post(struct mailbox *box, const struct node_event *event, uint64_t stream)
{
    if (box->first && box->first + box->n == box->capacity) {
        memmove(box->mails, box->mails + box->first, (size_t)box->n * sizeof *box->mails);
        box->first = 0;
    }
    int at = box->first + box->n;
    MEM_GROW(box->mails, at, box->capacity);
    box->mails[at] = (struct mail){*event, stream};
    box->n++;
}

struct mail mailbox_take(struct mailbox *box)
{
    struct mail mail = box->mails[box->first];
    box->first = --box->n ? box->first + 1 : 0;
    return mail;
}

void mailbox_drop_messages(struct mailbox *box, uint64_t stream)
{
    int kept = 0;
    for (int i = 0; i < box->n; i++) {
        struct mail *mail = &box->mails[box->first + i];
        if (mail->event.kind == NODE_MESSAGE && mail->stream == stream) {
            node_event_free(&mail->event);
        } else {
            box->mails[box->first + kept++] = *mail;
        }
    }
    box->n = kept;
}

void mailbox_fini(struct mailbox *box)
{
    while (box->n)
        node_event_free(&box->mails[box->first + --box->n].event);
    free(box->mails);
}
