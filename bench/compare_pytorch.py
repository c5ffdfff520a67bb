#!/usr/bin/env python3
"""Times forward and backward of a model in PyTorch and in Outboard, in turns, on the same cores.

PyTorch runs in both memory layouts, and its faster one counts. All figures are medians over the turns; the ratio is that
of PyTorch's median to ours, so above 1 means that Outboard is faster.

    cargo build --release
    python bench/compare_pytorch.py --model resnet34 --batch 8 --threads 1
    python bench/compare_pytorch.py --model resnet34 --batch 32 --inference --json

Needs torch and torchvision (pip install torch torchvision). Nothing else should run on the computer meanwhile.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
import torchvision


def processor():
    """The processor's name, or its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def pin(threads):
    """Keeps this process and those it starts on as many cores as there are threads; says which."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[-threads:]
    os.sched_setaffinity(0, chosen)
    return chosen


class PyTorch:
    """A model in one memory layout."""

    def __init__(self, model, batch, image_size, layout, inference):
        torch.manual_seed(0)
        self.model = getattr(torchvision.models, model)(weights=None).to(memory_format=layout)
        self.model.train(not inference)
        images = torch.randn(batch, 3, image_size, image_size)
        self.images = images.contiguous(memory_format=layout)
        self.targets = torch.zeros(batch, dtype=torch.long)
        self.loss = torch.nn.CrossEntropyLoss()
        self.inference = inference

    def step(self):
        """Seconds of forward and backward."""
        if self.inference:
            with torch.inference_mode():
                start = time.perf_counter()
                self.model(self.images)
                return time.perf_counter() - start, 0.0
        self.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss = self.loss(self.model(self.images), self.targets)
        middle = time.perf_counter()
        loss.backward()
        return middle - start, time.perf_counter() - middle


def outboard(arguments, repetitions):
    """One run of `outboard bench step`: its last line."""
    command = [
        arguments.outboard, "bench", "step", "--json",
        "--model", arguments.model,
        "--batch", str(arguments.batch),
        "--image-size", str(arguments.image_size),
        "--threads", str(arguments.threads),
        "--conv", arguments.conv,
        "--repetitions", str(repetitions),
    ]  # fmt: skip
    if arguments.inference:
        command.append("--inference")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def medians(pairs):
    """Medians of forward, backward and their sum."""
    forward, backward = zip(*pairs)
    return {
        "forward_seconds": statistics.median(forward),
        "backward_seconds": statistics.median(backward),
        "step_seconds": statistics.median(f + b for f, b in pairs),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet34", help="a name that both torchvision and outboard know")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inference", action="store_true", help="forward alone, in evaluation mode")
    parser.add_argument("--conv", choices=["auto", "direct"], default="auto")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--outboard", default="target/release/outboard", help="the binary")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()

    cores = pin(arguments.threads)
    torch.set_num_threads(arguments.threads)
    about = {
        "model": arguments.model,
        "batch": arguments.batch,
        "image_size": arguments.image_size,
        "threads": arguments.threads,
        "inference": arguments.inference,
        "processor": processor(),
        "cores": cores,
        "torch": torch.__version__,
    }
    what = "inference" if arguments.inference else "forward and backward"
    if not arguments.json:
        print(
            f"{arguments.model}, {what}, {arguments.batch} images of {arguments.image_size} pixels, "
            f"{arguments.threads} thread(s) on {about['processor']}, torch {torch.__version__}"
        )

    layouts = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
    peers = {
        name: PyTorch(arguments.model, arguments.batch, arguments.image_size, layout, arguments.inference)
        for name, layout in layouts.items()
    }
    times = {"outboard": [], **{name: [] for name in peers}}
    for peer in peers.values():
        peer.step()
    for turn in range(arguments.rounds):
        ours = outboard(arguments, repetitions=3)
        times["outboard"].append((ours["forward_seconds"], ours.get("backward_seconds", 0.0)))
        for name, peer in peers.items():
            pairs = medians([peer.step() for _ in range(3)])
            times[name].append((pairs["forward_seconds"], pairs["backward_seconds"]))
        line = {name: round(sum(pairs[-1]), 4) for name, pairs in times.items()}
        if arguments.json:
            print(json.dumps({"event": "turn", "turn": turn, "seconds": line}), flush=True)
        else:
            print(f"turn {turn + 1}: " + ", ".join(f"{n} {s:.3f} s" for n, s in line.items()), flush=True)

    results = {name: medians(pairs) for name, pairs in times.items()}
    ours = results["outboard"]
    best = min(peers, key=lambda name: results[name]["step_seconds"])
    ratio = {key: results[best][key] / ours[key] for key in ours if ours[key] > 0}
    if arguments.json:
        done = {
            "event": "done",
            **about,
            "results": results,
            "better_layout": best,
            "speedup_forward": ratio.get("forward_seconds"),
            "speedup_backward": ratio.get("backward_seconds"),
            "speedup_vs_pytorch": ratio["step_seconds"],
        }
        print(json.dumps(done))
    else:
        print(f"{'':16}{'forward':>10}{'backward':>10}{'step':>10}")
        for name, result in results.items():
            print(f"{name:16}" + "".join(f"{result[key]:9.3f}s" for key in ours))
        print(f"{'ratio':16}" + "".join(f"{ratio.get(key, 1.0):10.2f}" for key in ours))
        print(f"Outboard is {ratio['step_seconds']:.2f}x as fast as PyTorch ({best})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
