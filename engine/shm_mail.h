// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of one host, through shared memory. Every rank has a ring of pieces that it fills and one
// other rank empties. So a rank can send a short message while the receiver computes. A longer message waits for the
// receiver after the ring is full. Waiting ranks sleep in the kernel.
#pragma once

#include "kernels/comm.h"

struct shm_mail;

// Opens the rings. Called by all ranks of `over`, which the mail borrows: over->waits is true while this rank waits.
enum status shm_mail_open(struct comm *over, struct shm_mail **mail_p);
void shm_mail_close(struct shm_mail *mail); // `mail` may be NULL

// Send `count` floats to the only rank that receives from this one, and receive them from `rank`. Receiving fails with
// STATUS_INTERNAL if the sender sends another count, which is a bug of the caller.
void shm_mail_send(struct shm_mail *mail, const float *data, size_t count);
enum status shm_mail_receive(struct shm_mail *mail, int rank, float *data, size_t count);
