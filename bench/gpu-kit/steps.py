# SPDX-License-Identifier: Apache-2.0
"""The steps of the GPU kit: tests, tests under compute-sanitizer, and measurements."""
import glob
import json
import os
import shutil
import sys

from libraries import KIT, nccl_version, nvidia_smi
from runner import Step

LENGTHS = os.path.join(KIT, "tests", "data", "lengths", "mmlu.txt")


def tool(name):
    """Returns the path of one of the toolkit's programs, or None."""
    return shutil.which(name) or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/" + name), reverse=True)), None)


def program(name):
    return os.path.join(KIT, "bin", name)


def test_program(name):
    return os.path.join(KIT, "tests", name + "_gpu")


class Steps:
    """All steps of one run. A trial computes on the CPU, with tiny shapes and a 64th of the tokens."""

    def __init__(self, out, trial):
        self.out, self.trial = out, trial
        self.backend, self.fp8 = ("cpu", "int8") if trial else ("cuda", "fp8")
        self.model, self.small = ("trial", "trial") if trial else ("llama-3.1-8b", "llama-3.2-1b")
        self.scale = 64 if trial else 1
        self.rounds = "1" if trial else "3"
        self.timing = ["--rounds", self.rounds] + (["--min-ms", "0", "--probe-ms", "20"] if trial
                                                   else ["--min-ms", "300", "--probe-ms", "200"])
        if trial:
            self.write_shape(self.shape("trial"), "llama-110m", num_hidden_layers=1)

    def shape(self, name):
        return os.path.join(self.out if name == "trial" else os.path.join(KIT, "bench", "shapes"), name + ".json")

    def write_shape(self, path, name, **changes):
        """Writes the shape with some keys changed, unless an earlier run did."""
        if not os.path.exists(path):
            with open(self.shape(name)) as file:
                config = json.load(file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                json.dump(dict(config, **changes), file)
        return path

    def block_shape(self):
        """The shape with a scale for each block of FP8 weights."""
        return self.write_shape(os.path.join(self.out, "blocks", "config.json"), self.model, quantization_config={
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})

    def cut_shape(self):
        """The 70B shape with as many layers as fit next to the 8B model, at most 40 because of the load time. A layer needs
        1,632 MiB and 64 MiB of KV for the prompt; 29,000 MiB are the 8B model with its KV, the 70B's embedding and head, and
        workspaces."""
        told = nvidia_smi("memory.free") or ""
        free_mib = int(told) if told.isdigit() else 65000
        layers = int((0.95 * free_mib - 29000) // 1700)
        return self.write_shape(os.path.join(self.out, "main", "config.json"), "llama-110m" if self.trial else "llama-3.1-70b",
                                num_hidden_layers=2 if self.trial else max(1, min(40, layers)))

    def tokens(self, *counts):
        return ",".join(str(max(1, count // self.scale)) for count in counts)

    # ---- tests ----

    def first(self):
        """Passes of two dummy models, whose logits are compared with those of the CPU."""
        return Step("first", 120, [test_program("check_cuda_model"), self.backend])

    def tests(self):
        for path in sorted(glob.glob(test_program("check_*"))):
            if path != test_program("check_cuda_model"):
                yield Step(os.path.basename(path), 150, [path, "cuda"])

    def again(self, step):
        """A failed test once more: with every launch waited for, and under memcheck."""
        yield Step(step.name + "-blocking", 100, step.command, environment={"CUDA_LAUNCH_BLOCKING": "1"})
        yield from self.sanitized(step.name + "-memcheck", "memcheck", step.command, 120)

    def sanitized(self, name, kind, command, seconds, environment=None):
        sanitizer = tool("compute-sanitizer")
        if sanitizer and not self.trial:
            # Tests of refused allocations provoke API errors; a failed launch is an error of the test itself.
            quiet = ["--report-api-errors", "no"] if kind == "memcheck" else []
            yield Step(name, seconds, [sanitizer, "--error-exitcode", "1", "--print-limit", "20", "--tool", kind, *quiet,
                                       *command],
                       environment=dict({"CK_FORK": "no"}, **environment or {}))

    def memcheck(self):
        for name in ("check_cuda_gemv", "check_cuda_fused", "check_cuda_backend", "check_cuda_importance", "check_cuda_rows",
                     "check_cuda_attention"):
            yield from self.sanitized("memcheck-" + name, "memcheck", [test_program(name), "cuda"], 120)

    def races(self):
        for kind in ("racecheck", "synccheck"):
            for name in ("check_cuda_attention", "check_cuda_gemv", "check_cuda_importance"):
                yield from self.sanitized("%s-%s" % (kind, name), kind, [test_program(name), "cuda"], 150)

    def two_ranks(self):
        """Two ranks on one GPU, which NCCL allows from version 2.30 on."""
        if nccl_version() >= 23000:
            yield Step("two-ranks", 90, [test_program("check_row_sampling"), "cuda"],
                       environment={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})

    # ---- measurements ----

    def bench(self, name, seconds, what, *arguments):
        return Step(name, seconds, [program("forepack-bench"), what, "--backend", self.backend, *arguments, "--json"], rows=True)

    def engine(self, name, seconds, dtype, *arguments):
        return self.bench(name, seconds, "engine", "--dtype", dtype, "--shape", self.shape(self.model), *self.timing, *arguments)

    def attention(self, name, seconds, *arguments):
        return self.bench(name, seconds, "kernels", "--attention", "--dtype", "bf16", "--shape", self.shape(self.model),
                          *self.timing, *arguments)

    def speed(self):
        tokens = self.tokens
        yield self.engine("prefill", 75, "bf16", "--prompt-tokens", tokens(1024, 8192, 16384), "--batch", "1,16",
                          "--decode-tokens", "0", "--max-num-batched-tokens", tokens(16384))
        lengths = ["--prompt-tokens", tokens(2048, 8192, 16384, 32768), "--max-num-batched-tokens", tokens(32768)]
        yield self.attention("attention-128", 45, "--head-size", "128", *lengths, "--batch", "1,8,64", "--context", tokens(1024))
        yield self.attention("attention-64", 45, "--head-size", "64", *lengths, "--context", "0")
        yield self.attention("attention-cached", 30, "--head-size", "128", "--prompt-tokens", "50", "--cached-tokens",
                             tokens(32768), "--context", "0")
        yield self.attention("attention-fp8", 30, "--head-size", "128", "--kv-cache-dtype", self.fp8, *lengths, "--batch", "1,8,64",
                             "--context", tokens(1024))
        decode = ["--prompt-tokens", "0", "--context", tokens(1024), "--decode-tokens", tokens(64)]
        yield self.engine("decode", 60, "bf16", "--batch", "1,8,32,64,256", *decode)
        for name, switch in (("decode-without-graphs", "FOREPACK_CUDA_GRAPHS"),
                             ("decode-without-early-launch", "FOREPACK_CUDA_EARLY_LAUNCH")):
            step = self.engine(name, 40, "bf16", "--batch", "1,8,64", *decode)
            step.environment[switch] = "off"
            yield step

    def serving(self):
        tokens = self.tokens
        yield self.engine("fp8", 75, self.fp8, "--batch", "1,16,64", "--context", tokens(1024), "--decode-tokens", tokens(64),
                          "--prompt-tokens", tokens(1024, 16384), "--max-num-batched-tokens", tokens(16384))
        yield self.engine("score", 75, "bf16", "--prompt-tokens", tokens(32768), "--more-tokens", "50", "--batch", "1",
                          "--decode-tokens", "0", "--max-num-batched-tokens", tokens(8192), "--score")
        for name, speculators in (("serve", "1"), ("serve-alone", "0")):
            yield Step(name, 110, [sys.executable, os.path.join(KIT, "serve.py"), "--backend", self.backend, "--shape",
                                   self.shape(self.model), "--spec-shape", self.shape(self.small), "--speculators", speculators,
                                   "--tokens", tokens(16384), "--context", tokens(1024), "--max-num-batched-tokens", "8192",
                                   *(["--batch", "1,2", "--decode-tokens", "4"] if self.trial else [])], rows=True)

    def rest(self):
        tokens = self.tokens
        yield self.bench("ttft", 120, "prefill-quality", "--task", "ttft", "--dtype", "bf16", "--shape", self.cut_shape(),
                         "--spec-shape", self.shape(self.model), "--prompt-tokens", tokens(16384), "--keep-rates", "0.1,0.3",
                         "--look-aheads", "8", "--max-num-batched-tokens", tokens(8192), "--rounds", self.rounds)
        yield self.bench("prepack", 60, "prepack", "--dtype", "bf16", "--shape", self.shape(self.small), "--lengths", LENGTHS,
                         "--limit", "8" if self.trial else "256", "--batch-size", "4" if self.trial else "64", "--policies",
                         "padded,batch", "--max-num-batched-tokens", "16384", "--rounds", self.rounds)
        yield from self.comparisons()
        whole = ["--max-num-batched-tokens", tokens(16384)]
        yield self.engine("fp8-fast", 40, self.fp8, "--fp8-fast-accum", "--batch", "1,16", "--decode-tokens", "0",
                          "--prompt-tokens", tokens(1024, 16384), *whole)
        yield self.bench("fp8-blocks", 40, "engine", "--shape", self.block_shape(), *self.timing, "--prompt-tokens",
                         tokens(16384), "--batch", "1", "--decode-tokens", "0", *whole)
        yield from self.profiles()
        yield self.bench("gemms", 120, "kernels", "--dtype", "bf16", "--shape", self.shape(self.model), "--rows",
                         tokens(1, 8, 16, 32, 64, 256, 8192), *self.timing)

    def comparisons(self):
        """The same work in PyTorch and transformers, where they are installed."""
        python = shutil.which("python3") or sys.executable
        own = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # not the kit's libraries
        device = "cpu" if self.trial else "cuda"
        yield Step("torch", 75, [python, os.path.join(KIT, "torch_bars.py"), "--shape", self.shape(self.model), "--device",
                                 device, "--rows", self.tokens(1, 8, 16, 32, 64, 256, 8192), "--tokens",
                                 self.tokens(2048, 8192, 16384, 32768)], rows=True, environment=own)
        yield Step("transformers", 75, [python, os.path.join(KIT, "transformers_padded.py"), "--shape", self.shape(self.small),
                                        "--lengths", LENGTHS, "--limit", "8" if self.trial else "256", "--batch-size",
                                        "4" if self.trial else "64", "--rounds", self.rounds, "--device", device], rows=True,
                   environment=own)

    def profiles(self):
        """Hardware counters of three kernels, one launch each, and the time of every kernel of two passes."""
        ncu = tool("ncu")
        if not ncu or self.trial:
            return
        ncu = [ncu, "--clock-control", "none"]
        shape = ["--backend", "cuda", "--dtype", "bf16", "--shape", self.shape(self.model), "--rounds", "1", "--min-ms", "0",
                 "--probe-ms", "0"]
        kernels = [program("forepack-bench"), "kernels", *shape]
        attention = ["--attention", "--head-size", "128", "--max-num-batched-tokens", "16384"]
        sections = [word for section in ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis")
                    for word in ("--section", section)]
        for name, kernel, arguments in (
                ("attention", "attend_wgmma", attention + ["--prompt-tokens", "16384", "--context", "0"]),
                ("decode", "attend_split", attention + ["--prompt-tokens", "0", "--batch", "64", "--context", "1024"]),
                ("gemv", "gemv", ["--rows", "8"])):
            yield Step("ncu-" + name, 60, [*ncu, "--kernel-name", "regex:" + kernel, "--launch-count", "1", *sections, *kernels,
                                           *arguments])
        engine = [program("forepack-bench"), "engine", *shape, "--max-num-batched-tokens", "8192"]
        # Launches of the named kernels to skip: the launches of tuning and of prompts.
        for name, kernels, skip, arguments in (
                ("decode", "gemv_kernel|attend_split|sample_kernel|embed_kernel|rope_angles", 200,
                 ["--prompt-tokens", "0", "--batch", "1", "--context", "1024", "--decode-tokens", "4"]),
                ("more", "attend_wgmma|combine_spans", 390,
                 ["--prompt-tokens", "32768", "--more-tokens", "50", "--batch", "1", "--decode-tokens", "0"])):
            yield Step("kernels-of-" + name, 60, [*ncu, "--metrics", "gpu__time_duration.sum,dram__bytes_read.sum", "--csv",
                                                  "--print-units", "base", "--kernel-name", "regex:" + kernels, "--launch-skip",
                                                  str(skip), "--launch-count", "350", *engine, *arguments],
                       environment={"FOREPACK_CUDA_GRAPHS": "off"})
