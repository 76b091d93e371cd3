// SPDX-License-Identifier: Apache-2.0
// Fibers: stacks of their own that run in turn on one thread. AddressSanitizer is told of each change.
#pragma once

#include <stddef.h>

struct fiber {
    void *stack; // with a page below that may not be touched
    void *context;
    void *fake_stack; // AddressSanitizer's
};

// The calling thread itself as a fiber.
void fiber_adopt(struct fiber *thread);
// Makes a fiber that begins with enter() when it is first switched to; it must never return. Its stack is kept from
// call to call.
void fiber_prepare(struct fiber *fiber, void (*enter)(void));
// Goes on with `to`; comes back when something switches to `from`. `last`: from never runs again as it is.
void fiber_switch(struct fiber *from, struct fiber *to, bool last);
// What a fiber calls before anything else.
void fiber_entered(void);
