// SPDX-License-Identifier: Apache-2.0
// Fibers: execution contexts with their own stacks that take turns on one thread. AddressSanitizer is notified of every
// switch.
#pragma once

#include <stddef.h>

struct fiber {
    void *stack; // mapping: an inaccessible page and the stack above it; NULL: none yet, or a thread's own
    void *context;
    void *fake_stack; // for AddressSanitizer
};

// Makes the calling thread a fiber.
void fiber_adopt(struct fiber *thread);
// Prepares a fiber that starts with enter() at the first switch to it; enter() must not return. Zero the fiber before
// its first call; later calls reuse its stack.
void fiber_prepare(struct fiber *fiber, void (*enter)(void));
// Switches to `to`. `from` is the running fiber. Returns when another fiber switches to `from`. Set `last` if
// none does so until `from` is prepared again; then the call does not return.
void fiber_switch(struct fiber *from, struct fiber *to, bool last);
// Completes a fiber's first switch for AddressSanitizer. Must be the first call in enter().
void fiber_entered(void);
