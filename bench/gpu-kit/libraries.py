# SPDX-License-Identifier: Apache-2.0
"""Finds NVIDIA's libraries on the GPU machine, and makes the environment of the kit's programs."""
import ctypes
import glob
import os
import shutil
import site
import subprocess
import sys

KIT = os.path.dirname(os.path.abspath(__file__))
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"  # the one GPU of a run, as nvidia-smi numbers it


def library_folders():
    """Yields folders that may hold NVIDIA's libraries, in the order of preference."""
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for pattern in ("/usr/local/cuda/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"):
        yield from sorted(glob.glob(pattern), reverse=True)
    pythons = list(sys.path) + site.getsitepackages() + [site.getusersitepackages()]
    other = shutil.which("python3")
    if other and os.path.realpath(other) != os.path.realpath(sys.executable):
        listed = subprocess.run([other, "-c", "import sys; print('\\n'.join(sys.path))"], stdout=subprocess.PIPE, text=True)
        pythons += listed.stdout.split("\n")
    for folder in filter(None, pythons):
        yield from sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib")), reverse=True)
    for ldconfig in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if shutil.which(ldconfig):
            listed = subprocess.run([ldconfig, "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            yield from (os.path.dirname(line.split(" => ")[1]) for line in listed.stdout.splitlines() if " => " in line)
            break
    yield from ("/usr/local/nvidia/lib64", "/usr/local/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib")


def find_libraries(names):
    """Returns the folder of each library by name; None if it is not found."""
    found = dict.fromkeys(names)
    for folder in library_folders():
        for name in names:
            if not found[name] and os.path.exists(os.path.join(folder, name)):
                found[name] = folder
    return found


def program_environment(out, trial, say):
    """Returns the environment of the kit's programs, or exits with one sentence if a library is missing."""
    with open(os.path.join(KIT, "cuda-libraries")) as file:
        needed = file.read().split()
    found = find_libraries(needed + ["libcuda.so.1"])
    missing = [name for name in needed if not found[name]]
    if missing and not trial:
        print("run.sh: %s: not found. Install CUDA 13's cuBLASLt and NCCL (the CUDA toolkit, or Python's nvidia-cublas, "
              "nvidia-cuda-runtime and nvidia-nccl-cu13), or name their folders in LD_LIBRARY_PATH" % ", ".join(missing),
              file=sys.stderr)
        sys.exit(2)
    for name in needed:
        say("%s: %s" % (name, found[name] or "not found"))
    folders = [os.path.join(KIT, "lib")] + list(dict.fromkeys(filter(None, found.values())))
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(folders), FOREPACK_SOURCE=KIT, CK_TIMEOUT_MULTIPLIER="60",
                       XDG_CACHE_HOME=os.path.join(out, "cache"), CUDA_VISIBLE_DEVICES=GPU, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    environment.pop("FOREPACK_DATA", None)
    return environment


def nccl_version():
    """Returns NCCL's version as a number such as 23007, or 0 without NCCL."""
    with open(os.path.join(KIT, "cuda-libraries")) as file:
        names = [name for name in file.read().split() if name.startswith("libnccl")]
    for name, folder in find_libraries(names).items():
        version = ctypes.c_int(0)
        try:
            ctypes.CDLL(os.path.join(folder or "", name)).ncclGetVersion(ctypes.byref(version))
        except OSError:
            return 0
        return version.value
    return 0


def nvidia_smi(fields):
    """Returns fields of the GPU as nvidia-smi names them, None without nvidia-smi or without a GPU."""
    try:
        told = subprocess.run(["nvidia-smi", "-i", GPU, "--query-gpu=" + fields, "--format=csv,noheader,nounits"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.split("\n")[0].strip() or None if told.returncode == 0 else None
