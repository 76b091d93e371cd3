// SPDX-License-Identifier: Apache-2.0
#include "kernels/emulator/fibers.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

static const size_t STACK_BYTES = 256 * 1024; // only touched pages take memory
static const size_t page = (size_t)sysconf(_SC_PAGESIZE);
static const size_t OUTER_BYTES = 4096; // more than the frames of an ended thread: its kernel has returned

#if defined __x86_64__
// Switches contexts. Saves the callee-saved registers on the stack; a context is the stack pointer. swapcontext makes a
// system call for the signal mask at every switch, which would dominate kernels with many shuffles.
extern "C" void emulated_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emulated_switch\n"
        ".type emulated_switch, @function\n"
        "emulated_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulated_switch, . - emulated_switch\n");

static void context_prepare(struct fiber *fiber, char *stack, void (*enter)(void))
{
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof *top);          // six registers, the return address, and no caller:
    top[6] = reinterpret_cast<void *>(enter); // enter() starts as after a call, 8 bytes below a multiple of 16
    fiber->context = top;
}

static void context_switch(struct fiber *from, struct fiber *to)
{
    emulated_switch(&from->context, to->context);
}

static void context_adopt(struct fiber *thread)
{
    thread->context = NULL;
}
#else
#include <ucontext.h>

static void context_adopt(struct fiber *thread)
{
    if (!thread->context) thread->context = calloc(1, sizeof(ucontext_t));
}

static void context_prepare(struct fiber *fiber, char *stack, void (*enter)(void))
{
    context_adopt(fiber);
    ucontext_t *context = static_cast<ucontext_t *>(fiber->context);
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, enter, 0);
}

static void context_switch(struct fiber *from, struct fiber *to)
{
    swapcontext(static_cast<ucontext_t *>(from->context), static_cast<ucontext_t *>(to->context));
}
#endif

void fiber_adopt(struct fiber *thread)
{
    context_adopt(thread);
}

void fiber_prepare(struct fiber *fiber, void (*enter)(void))
{
    if (!fiber->stack) {
        fiber->stack = mmap(NULL, page + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fiber->stack == MAP_FAILED || mprotect(fiber->stack, page, PROT_NONE) != 0) {
            fprintf(stderr, "cuda emulator: no memory for the stacks of threads\n");
            abort();
        }
    }
    char *stack = static_cast<char *>(fiber->stack) + page;
#ifdef __SANITIZE_ADDRESS__
    // Unpoison frames of the last thread on this stack. The frames of the kernel were unpoisoned when it returned, and
    // unpoisoning the whole stack takes longer than most kernels.
    __asan_unpoison_memory_region(stack + STACK_BYTES - OUTER_BYTES, OUTER_BYTES);
#endif
    fiber->fake_stack = NULL;
    context_prepare(fiber, stack, enter);
}

#ifdef __SANITIZE_ADDRESS__
// Stack of the thread itself: AddressSanitizer must be told about it on a switch back.
static thread_local const void *thread_stack;
static thread_local size_t thread_stack_bytes;

void fiber_entered(void)
{
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    // The first switch of a block comes from the thread's stack.
    if (!thread_stack) thread_stack = bottom, thread_stack_bytes = bytes;
}

void fiber_switch(struct fiber *from, struct fiber *to, bool last)
{
    const void *bottom = to->stack ? static_cast<char *>(to->stack) + page : thread_stack;
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake_stack, bottom,
                                   to->stack ? STACK_BYTES : thread_stack_bytes);
    context_switch(from, to);
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
}
#else
void fiber_entered(void)
{
}

void fiber_switch(struct fiber *from, struct fiber *to, bool)
{
    context_switch(from, to);
}
#endif
