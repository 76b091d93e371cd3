// SPDX-License-Identifier: Apache-2.0
// Which instruction sets a test of the CPU's kernels runs with.
#pragma once

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/isa.h"

extern const struct cpu_isa cpu_isa_amx_emulated; // linked into these tests alone

enum { MOST_ISAS = CPU_ISA_COUNT + 1 };
static const struct cpu_isa *isas[MOST_ISAS];
static int n_isas;

// The one named on the command line, or all that this machine has; returns how many.
static inline int choose_isas(int argc, char **argv)
{
    for (int level = 0; level <= CPU_ISA_COUNT; level++) {
        const struct cpu_isa *isa =
            level < CPU_ISA_COUNT ? cpu_isa_at((enum cpu_isa_level)level) : &cpu_isa_amx_emulated;
        if (isa && (argc < 2 || !strcmp(isa->name, argv[1]))) isas[n_isas++] = isa;
    }
    for (int i = 0; i < n_isas; i++)
        printf("testing %s\n", isas[i]->name);
    if (!n_isas) printf("skipped: this machine has no %s\n", argv[1]);
    fflush(stdout); // tests fork
    return n_isas;
}

enum { EXIT_SKIPPED = 77 };
