// SPDX-License-Identifier: Apache-2.0
// Chooses among the instruction sets that kernels.c was compiled for.
#include "kernels/cpu/isa.h"

extern const struct cpu_isa cpu_isa_portable;
#ifdef FOREPACK_X86
extern const struct cpu_isa cpu_isa_avx2, cpu_isa_avx512, cpu_isa_avx512_bf16;
#endif

static enum cpu_isa_level limit = CPU_ISA_COUNT - 1;

void cpu_isa_limit(enum cpu_isa_level level)
{
    limit = level;
}

const struct cpu_isa *cpu_isa_at(enum cpu_isa_level level)
{
#ifdef FOREPACK_X86
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool dots = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (level == CPU_ISA_AVX512_BF16 && avx512 && dots) return &cpu_isa_avx512_bf16;
    if (level == CPU_ISA_AVX512 && avx512) return &cpu_isa_avx512;
    if (level == CPU_ISA_AVX2 && avx2) return &cpu_isa_avx2;
#endif
    return level == CPU_ISA_PORTABLE ? &cpu_isa_portable : NULL;
}

const struct cpu_isa *cpu_isa_best(void)
{
    for (int level = limit; level > CPU_ISA_PORTABLE; level--)
        if (cpu_isa_at((enum cpu_isa_level)level)) return cpu_isa_at((enum cpu_isa_level)level);
    return &cpu_isa_portable;
}
