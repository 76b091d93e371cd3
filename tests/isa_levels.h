// SPDX-License-Identifier: Apache-2.0
// The instruction set levels that a kernel test runs with. The CUDA backend, on a GPU or emulated, counts as one more
// level.
#pragma once

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "tests/cuda_here.h"
#include "tests/kernel_fixture.h"

// linked into these tests only
extern const struct cpu_isa cpu_isa_amx_emulated;
extern const struct cpu_isa cpu_isa_amx_emulated_avx512 __attribute__((weak)); // in builds for x86

static const struct cpu_isa cuda_level = {.name = "cuda"};

enum { ISAS_MAX = CPU_ISA_COUNT + 3 };
static const struct cpu_isa *isas[ISAS_MAX];
static int n_isas;

// Returns a level of the CPU. Numbers after these are emulated levels. Returns NULL if the build or the machine lacks
// it.
static inline const struct cpu_isa *isa_at(int level)
{
    if (level < CPU_ISA_COUNT) return cpu_isa_at((enum cpu_isa_level)level);
    if (level == CPU_ISA_COUNT) return &cpu_isa_amx_emulated;
    return cpu_isa_at(CPU_ISA_AVX512_BF16) ? &cpu_isa_amx_emulated_avx512 : NULL;
}

// Selects the level named on the command line, or all levels of this machine. Returns their number. Selects only the
// best level with the thread sanitizer.
static inline int choose_isas(int argc, char **argv)
{
    for (int level = 0; level <= CPU_ISA_COUNT + 1; level++) {
        const struct cpu_isa *isa = isa_at(level);
        if (!isa || (QUICK && isa != cpu_isa_best())) continue;
        if (argc < 2 || !strcmp(isa->name, argv[1])) isas[n_isas++] = isa;
    }
    if ((argc < 2 || !strcmp(cuda_level.name, argv[1])) && cuda_is_here()) isas[n_isas++] = &cuda_level;
    for (int i = 0; i < n_isas; i++)
        printf("testing %s\n", isas[i]->name);
    if (!n_isas) printf("skipped: this machine or build has no %s\n", argc > 1 ? argv[1] : "level");
    fflush(stdout); // Check forks for each test
    return n_isas;
}
