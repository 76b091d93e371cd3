#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of the CUDA kernels in the built module, without tools of the toolkit.

For each architecture: attention uses tensor cores, and no kernel exceeds its bounds on registers and on accesses to local
memory. On Hopper the kernels named wgmma use its asynchronous tensor cores (HGMMA) and copies (UTMALDG), without any access
to local memory. Failures name the kernel.

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

# Registers per thread, and instructions that access local memory (spilled registers, dynamically indexed arrays), by
# whether the kernel is attention. Attention keeps its sums in registers and may use all of them; a few spills outside its
# loops do no harm. All other kernels are bound by memory and need many threads.
BOUNDS = {True: (255, 32), False: (128, 0)}
# A thread of a wgmma kernel starts with this many registers; its warp groups then divide those of the multiprocessor.
WGMMA_BOUNDS = (168, 0)

Kernel = collections.namedtuple("Kernel", "name registers tensor local hopper")


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
    """In the second byte since CUDA 13, whose first byte is a small number; in the first byte before."""
    return flags & 0xFF if flags & 0xFF >= 50 else flags >> 8 & 0xFF


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
        words = [struct.unpack_from("<Q", data, i)[0] & 0xFFF for i in range(offset, offset + size, 16)]
        kernel = name[len(".text.") :]
        hopper = [sum(map(words.count, HGMMA)), words.count(UTMALDG)]
        yield Kernel(kernel, registers.get(kernel, 0), words.count(HMMA), words.count(LDL) + words.count(STL), hopper)


def cubins(data):
    at = data.find(b"\x7fELF", 1)  # the file itself begins with this
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == EM_CUDA:
            yield at
        at = data.find(b"\x7fELF", at + 4)


def main():
    path, wanted = sys.argv[1], {int(word) for word in sys.argv[2:]}
    data = open(path, "rb").read()
    failures, seen, attention, wgmma = [], set(), set(), set()
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
            max_registers, max_local = WGMMA_BOUNDS if is_wgmma else BOUNDS[is_attention]
            if kernel.registers > max_registers:
                failures.append(f"{where}: {kernel.registers} registers, at most {max_registers}")
            if kernel.local > max_local:
                failures.append(f"{where}: {kernel.local} accesses to local memory, at most {max_local}")
            if is_wgmma:
                wgmma.add(arch)
                if not all(kernel.hopper):
                    failures.append(f"{where}: no HGMMA or no UTMALDG instruction")
            elif is_attention:
                attention.add(arch)
                if not kernel.tensor:
                    failures.append(f"{where}: no tensor core instruction")
    failures += [f"sm_{arch}: no kernels were compiled for it" for arch in sorted(wanted - seen)]
    failures += [f"sm_{arch}: no attention kernel" for arch in sorted(wanted & seen - attention)]
    failures += [f"sm_{arch}: no wgmma kernel" for arch in sorted(wanted & seen & {90} - wgmma)]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
