#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of the CUDA kernels in the built module, without tools of the toolkit.

For each architecture: attention uses tensor cores, and no kernel exceeds its bounds on registers and on accesses to local
memory. On Hopper the kernels named wgmma use its asynchronous tensor cores (HGMMA) and copies (UTMALDG), with no access
to local memory, and the kernel for K and V in FP8 does not exceed its bound on instructions. Failures name the kernel.

Usage: check_cuda_code.py libforepack_cuda.so ARCHITECTURE...   (80 90 100)
"""
import collections
import struct
import sys

EM_CUDA = 190
REGISTERS = 0x2F  # attribute of .nv.info: symbol, registers a thread
# Low 12 bits of a 128-bit instruction: tensor cores, local memory; HGMMA with A in shared memory and in registers; TMA.
HMMA, LDL, STL = 0x23C, 0x983, 0x387
HGMMA, UTMALDG = (0x9F0, 0xDF0), 0x5B4
STS, BRA, ALWAYS = 0x388, 0x947, 7  # store to shared memory; branch, and the predicate of an unconditional one

# Registers per thread, and instructions that access local memory (spilled registers, dynamically indexed arrays), by a part of
# the kernel's name. Attention keeps its sums in registers and may use all of them; a few spills outside its loops do no harm.
# The streaming gemm may use all of them too, but must not spill: one thread block runs on a multiprocessor. All other kernels
# are bound by memory and need many threads.
BOUNDS = {"attend_": (255, 32), "gemm_stream": (255, 0), "": (128, 0)}
# A thread of a wgmma kernel starts with this many registers; its warp groups then divide those of the multiprocessor.
WGMMA_BOUNDS = (168, 0)

# The wgmma kernel for K and V in FP8 and heads of 128 dims converts bytes to bf16 while the tensor cores multiply, which takes
# 2,048 cycles per 128 entries. Each of the four schedulers hosts two warps that multiply and one that converts, and issues one
# instruction a cycle. ISSUES is the limit of a scheduler per 128 entries: with more instructions the tensor cores wait for
# them. Both kinds of warps process FP8_ENTRIES entries each time round their loops, which lie in FP8_BLOCKS KV blocks.
FP8_KERNEL, ISSUES = "wgmma_kernelI9tile_planILi128ELb1E", 2300
FP8_ENTRIES, FP8_BLOCKS = 64, 4

Kernel = collections.namedtuple("Kernel", "name registers tensor local hopper issues")


def text_at(data, at):
    return data[at : data.index(b"\0", at)].decode()


def sections(data, at):
    """{name: (offset, size)} of the ELF file at `at`, and its flags."""
    (flags,) = struct.unpack_from("<I", data, at + 48)
    (offset,) = struct.unpack_from("<Q", data, at + 40)
    size, count, names_index = struct.unpack_from("<HHH", data, at + 58)
    headers = [struct.unpack_from("<IIQQQQ", data, at + offset + i * size) for i in range(count)]
    names_at = at + headers[names_index][4]
    return {text_at(data, names_at + header[0]): (at + header[4], header[5]) for header in headers}, flags


def architecture(flags):
    """Returns the architecture. Since CUDA 13 it is in the second byte, and the first byte is a small number. Earlier it was
    in the first byte."""
    return flags & 0xFF if flags & 0xFF >= 50 else flags >> 8 & 0xFF


def branch_targets(instructions):
    """Returns {index of a branch: index of its target}. The distance is signed, in units of 4 bytes: its low 8 bits are bits
    16 to 23 of the instruction, and the others are bits 34 to 63."""
    targets = {}
    for i, word in enumerate(instructions):
        if word & 0xFFF == BRA:
            high = word >> 34
            distance = (high - (1 << 30) if high >> 29 else high) << 8 | word >> 16 & 0xFF
            targets[i] = i + 1 + distance * 4 // 16
    return targets


def smallest_loop(instructions, targets, *wanted):
    """Returns the first and last index of the smallest loop that has an instruction of each group wanted, or None."""
    loops = []
    for last, first in targets.items():
        if first < last and instructions[last] >> 12 & 7 != ALWAYS:
            codes = {word & 0xFFF for word in instructions[first : last + 1]}
            if all(codes.intersection(group) for group in wanted):
                loops.append((last - first, first, last))
    return min(loops)[1:] if loops else None


def issues_of_loop(instructions, targets, first, last, copying):
    """Returns how many instructions a warp issues each time round the loop. Takes forward branches, since the code that they
    skip runs rarely: the next work, masks, a new exponent, entries past the last, a NaN scale. Does not skip stores. A warp
    copies K or V, so only part number `copying` of the copying parts is counted. An inner loop runs once for each KV block."""
    at, issues, parts, part_end = first, 0, 0, 0
    while at <= last:
        issues += 1
        target = targets.get(at, at + 1)
        if target < at and at != last and target >= first:
            issues += (FP8_BLOCKS - 1) * (at + 1 - target)
        skipped = [word & 0xFFF for word in instructions[at + 1 : target]]
        skips = target <= last and STS not in skipped
        if UTMALDG in skipped:
            if skips and at >= part_end:
                skips = parts != copying
                parts += 1
                part_end = target
            else:
                skips = False
        at = target if skips and target > at else at + 1
    return issues


def issues_per_scheduler(instructions):
    """Returns how many instructions a scheduler issues per 128 entries, or None if the loops are not found."""
    targets = branch_targets(instructions)
    multiply = smallest_loop(instructions, targets, HGMMA[:1], HGMMA[1:])
    convert = smallest_loop(instructions, targets, (STS,), (UTMALDG,))
    if not multiply or not convert:
        return None
    of_multiply = issues_of_loop(instructions, targets, *multiply, None)
    of_convert = max(issues_of_loop(instructions, targets, *convert, copying) for copying in range(2))
    print(f"instructions per {FP8_ENTRIES} entries: {of_multiply} of a warp that multiplies, {of_convert} of one that converts")
    return 128 // FP8_ENTRIES * (2 * of_multiply + of_convert)


def kernels(data, by_name):
    symbols, strings = by_name[".symtab"], by_name[".strtab"]
    names = []
    for at in range(symbols[0], symbols[0] + symbols[1], 24):
        names.append(text_at(data, strings[0] + struct.unpack_from("<I", data, at)[0]))
    registers = {}
    at, size = by_name[".nv.info"]
    end = at + size
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        if form == 4 and attribute == REGISTERS:
            symbol, count = struct.unpack_from("<II", data, at + 4)
            registers[names[symbol]] = count
        at += 4 + (value if form == 4 else 0)
    for name, (offset, size) in by_name.items():
        if not name.startswith(".text."):
            continue
        instructions = [struct.unpack_from("<Q", data, i)[0] for i in range(offset, offset + size, 16)]
        words = [word & 0xFFF for word in instructions]
        kernel = name[len(".text.") :]
        hopper = [sum(map(words.count, HGMMA)), words.count(UTMALDG)]
        issues = issues_per_scheduler(instructions) if all(hopper) and FP8_KERNEL in kernel else 0
        local = words.count(LDL) + words.count(STL)
        yield Kernel(kernel, registers.get(kernel, 0), words.count(HMMA), local, hopper, issues)


def cubins(data):
    at = data.find(b"\x7fELF", 1)  # the file itself begins with this
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == EM_CUDA:
            yield at
        at = data.find(b"\x7fELF", at + 4)


def main():
    path, wanted = sys.argv[1], {int(word) for word in sys.argv[2:]}
    data = open(path, "rb").read()
    failures, seen, attention, wgmma, counted = [], set(), set(), set(), set()
    for at in cubins(data):
        found, flags = sections(data, at)
        arch = architecture(flags)
        for kernel in kernels(data, found):
            seen.add(arch)
            print(f"sm_{arch} registers={kernel.registers} tensor={kernel.tensor} local={kernel.local} "
                  f"hgmma={kernel.hopper[0]} utmaldg={kernel.hopper[1]} {kernel.name}")
            where = f"sm_{arch}: {kernel.name}"
            is_wgmma = "wgmma" in kernel.name
            if is_wgmma and arch != 90:  # compiled without instructions
                continue
            is_attention = "attend_" in kernel.name
            bounds = next(BOUNDS[part] for part in BOUNDS if part in kernel.name)
            max_registers, max_local = WGMMA_BOUNDS if is_wgmma else bounds
            if kernel.registers > max_registers:
                failures.append(f"{where}: {kernel.registers} registers, at most {max_registers}")
            if kernel.local > max_local:
                failures.append(f"{where}: {kernel.local} accesses to local memory, at most {max_local}")
            if is_wgmma:
                wgmma.add(arch)
                if FP8_KERNEL in kernel.name:
                    counted.add(arch)
                if not all(kernel.hopper):
                    failures.append(f"{where}: no HGMMA or no UTMALDG instruction")
                if kernel.issues is None:
                    failures.append(f"{where}: no loop that multiplies, or none that converts and copies")
                elif kernel.issues > ISSUES:
                    failures.append(f"{where}: {kernel.issues} instructions per 128 entries, at most {ISSUES}")
            elif is_attention:
                attention.add(arch)
                if not kernel.tensor:
                    failures.append(f"{where}: no tensor core instruction")
    failures += [f"sm_{arch}: no kernels were compiled for it" for arch in sorted(wanted - seen)]
    failures += [f"sm_{arch}: no attention kernel" for arch in sorted(wanted & seen - attention)]
    failures += [f"sm_{arch}: no wgmma kernel" for arch in sorted(wanted & seen & {90} - wgmma)]
    failures += [f"sm_{arch}: no kernel named {FP8_KERNEL}" for arch in sorted(wgmma - counted)]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
