// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set level at run time.
#include "kernels/cpu/isa.h"

#ifdef FOREPACK_X86
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const struct cpu_isa cpu_isa_portable;

#ifdef FOREPACK_X86
extern const struct cpu_isa cpu_isa_avx2, cpu_isa_avx512, cpu_isa_avx512_vnni, cpu_isa_avx512_bf16, cpu_isa_amx;

// Requests permission for AMX: Linux (since 5.16) grants a process the large tile state only on request. One request
// covers all threads.
static bool amx_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

// Returns the highest level of this machine.
static enum cpu_isa_level isa_machine_level(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CPU_ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return CPU_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512vnni")) return CPU_ISA_AVX512;
    if (!__builtin_cpu_supports("avx512bf16")) return CPU_ISA_AVX512_VNNI;
    if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16") ||
        !__builtin_cpu_supports("amx-int8") || !amx_permitted())
        return CPU_ISA_AVX512_BF16;
    return CPU_ISA_AMX;
}

// Returns the fastest level of this machine. From Sapphire Rapids on, Intel's vdpbf16ps has half the rate of the
// multiply-adds that it replaces. So where a virtual machine hides AMX, the level below is faster.
static enum cpu_isa_level isa_fastest_level(void)
{
    const enum cpu_isa_level level = isa_machine_level();
    const bool slow = __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake");
    return level == CPU_ISA_AVX512_BF16 && slow ? CPU_ISA_AVX512_VNNI : level;
}
#else
static enum cpu_isa_level isa_machine_level(void)
{
    return CPU_ISA_PORTABLE;
}

static enum cpu_isa_level isa_fastest_level(void)
{
    return isa_machine_level();
}
#endif

static const struct cpu_isa *const isa_levels[CPU_ISA_COUNT] = {
    [CPU_ISA_PORTABLE] = &cpu_isa_portable,
#ifdef FOREPACK_X86
    [CPU_ISA_AVX2] = &cpu_isa_avx2,
    [CPU_ISA_AVX512] = &cpu_isa_avx512,
    [CPU_ISA_AVX512_VNNI] = &cpu_isa_avx512_vnni,
    [CPU_ISA_AVX512_BF16] = &cpu_isa_avx512_bf16,
    [CPU_ISA_AMX] = &cpu_isa_amx,
#endif
};

static const struct cpu_isa *isa_preferred;

void cpu_isa_prefer(const struct cpu_isa *isa)
{
    isa_preferred = isa;
}

const struct cpu_isa *cpu_isa_at(enum cpu_isa_level level)
{
    return level <= isa_machine_level() ? isa_levels[level] : NULL;
}

const struct cpu_isa *cpu_isa_best(void)
{
    return isa_preferred ? isa_preferred : isa_levels[isa_fastest_level()];
}
