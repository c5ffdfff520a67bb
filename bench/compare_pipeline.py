#!/usr/bin/env python3
"""Trains over two processes of one core each: Outboard, torch.distributed.pipelining, and PyTorch alone, in turns.

PyTorch's pipeline runs at its best cut, schedule and memory layout, found by trying them first. All figures are medians.

    speedup_vs_torch_pipelining   its seconds a step, divided by ours
    speedup_vs_pytorch            PyTorch's on one core (gradients of the same micro-batches added up), divided by ours
    efficiency                    the shortest step that two such devices could take, divided by ours

The shortest step: one of our devices alone takes T for all micro-batches, so two do the work in T / 2. Yet the second one
can begin only when the first one has done its forward pass of one micro-batch (f), and idles until then. The two together
have T + f to fill: (T + f) / 2. T is measured in the same turns, f is stage 0's forward pass in the plan.

    cargo build --release
    python bench/compare_pipeline.py --json

Needs torch and torchvision (pip install torch torchvision), Linux and two cores. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# Candidates for PyTorch's cut: the first stage ends before this child of the network.
CUTS = ["layer2.1", "layer2.2", "layer2.3", "layer3.0", "layer3.1", "layer3.2", "layer3.3"]
SCHEDULES = ["GPipe", "1F1B"]


def say(arguments, text, **event):
    """A line for a person or for a program."""
    if arguments.json:
        print(json.dumps(event), flush=True)
    else:
        print(text, flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# --- PyTorch -----------------------------------------------------------------------------------------------------------


def torch_setup(arguments):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def units(model):
    """The network as a list of named modules, one after the other."""
    import torch

    head = [("conv1", model.conv1), ("bn1", model.bn1), ("relu", model.relu), ("maxpool", model.maxpool)]
    blocks = [
        (f"{layer}.{index}", block)
        for layer in ["layer1", "layer2", "layer3", "layer4"]
        for index, block in enumerate(getattr(model, layer))
    ]
    tail = [("avgpool", model.avgpool), ("flatten", torch.nn.Flatten()), ("fc", model.fc)]
    return head + blocks + tail


def batch(torch, arguments, layout):
    images = torch.randn(arguments.batch, 3, arguments.image_size, arguments.image_size)
    return images.contiguous(memory_format=layout), torch.zeros(arguments.batch, dtype=torch.long)


def layout_of(torch, name):
    return torch.channels_last if name == "channels_last" else torch.contiguous_format


def torch_alone(arguments):
    """Seconds of steps on one core, in the faster layout: one line of JSON."""
    torch = torch_setup(arguments)
    import torchvision

    results = {}
    for name in ["nchw", "channels_last"]:
        layout = layout_of(torch, name)
        model = getattr(torchvision.models, arguments.model)(weights=None).to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        images, targets = batch(torch, arguments, layout)
        parts = list(zip(images.chunk(arguments.micro_batches), targets.chunk(arguments.micro_batches)))
        results[name] = []
        for step in range(arguments.steps + 1):
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            for part, target in parts:
                loss = torch.nn.functional.cross_entropy(model(part), target) / len(parts)
                loss.backward()
            optimizer.step()
            if step > 0:
                results[name].append(time.perf_counter() - start)
    best = min(results, key=lambda name: statistics.median(results[name]))
    print(json.dumps({"layout": best, "seconds": results[best]}))


def torch_stage(arguments):
    """One process of PyTorch's pipeline; rank 0 prints the seconds of its steps."""
    torch = torch_setup(arguments)
    import torch.distributed as dist
    import torchvision
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank = arguments.rank
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{arguments.port}", rank=rank, world_size=2
    )
    layout = layout_of(torch, arguments.layout)
    model = getattr(torchvision.models, arguments.model)(weights=None).to(memory_format=layout)
    names = units(model)
    at = [name for name, _ in names].index(arguments.cut)

    class Relay(torch.autograd.Function):
        """Only plain tensors travel: the layout changes at the cut, both ways."""

        @staticmethod
        def forward(_, x, wanted):
            return x.contiguous(memory_format=wanted)

        @staticmethod
        def backward(_, grad):
            return grad.contiguous(), None

    class InLayout(torch.nn.Module):
        def __init__(self, wanted):
            super().__init__()
            self.wanted = wanted

        def forward(self, x):
            return Relay.apply(x, self.wanted)

    if rank == 0:
        modules = [module for _, module in names[:at]] + [InLayout(torch.contiguous_format)]
    else:
        modules = [InLayout(layout)] + [module for _, module in names[at:]]
    stage_module = torch.nn.Sequential(*modules)
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=1e-4, momentum=0.9)
    stage = PipelineStage(stage_module, rank, 2, torch.device("cpu"))
    kind = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[arguments.schedule]
    schedule = kind(stage, arguments.micro_batches, loss_fn=torch.nn.functional.cross_entropy)
    images, targets = batch(torch, arguments, layout)
    seconds = []
    for step in range(arguments.steps + 1):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=targets, losses=[])
        optimizer.step()
        dist.barrier()
        if step > 0:
            seconds.append(time.perf_counter() - start)
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps({"seconds": seconds}))


def role(arguments, name, core, *more):
    """This script again, in another role and on one core."""
    command = [
        sys.executable, __file__, "--role", name,
        "--model", arguments.model,
        "--batch", str(arguments.batch),
        "--micro-batches", str(arguments.micro_batches),
        "--image-size", str(arguments.image_size),
        *more,
    ]  # fmt: skip
    # Gloo asks the computer's name for its address otherwise.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    )


def last_line(process):
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{process.args[:6]} ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def run_torch_pipeline(arguments, cores, cut, schedule, layout, steps):
    port = str(free_port())
    options = ["--port", port, "--cut", cut, "--schedule", schedule, "--layout", layout, "--steps", str(steps)]
    stages = [role(arguments, "stage", core, "--rank", str(rank), *options) for rank, core in enumerate(cores)]
    seconds = last_line(stages[0])["seconds"]
    stages[1].wait()
    return seconds


# --- Outboard ----------------------------------------------------------------------------------------------------------


def on_core(core):
    return lambda: os.sched_setaffinity(0, [core])


def train(arguments, core, cache, steps, *more):
    """A run of `outboard train`: seconds of its steps after the first, and its plan."""
    command = [
        arguments.outboard, "train", arguments.model, "--json",
        "--data", f"noise:3x{arguments.image_size}",
        "--batch", str(arguments.batch),
        "--micro-batches", str(arguments.micro_batches),
        "--steps", str(steps),
        "--threads", "1",
        "--lr", "0.0001",
        "--cache", cache,
        "--use", "all",
        *more,
    ]  # fmt: skip
    process = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=on_core(core)
    )
    events = [json.loads(line) for line in process.stdout.splitlines()]
    seconds = [event["seconds"] for event in events if event["event"] == "step"][1:]
    plan = next((event for event in events if event["event"] == "plan"), None)
    return seconds, plan


class Worker:
    """`outboard worker` on one core."""

    def __init__(self, arguments, core):
        self.process = subprocess.Popen(
            [arguments.outboard, "worker", "--listen", "127.0.0.1:0", "--threads", "1", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=on_core(core),
        )
        self.address = json.loads(self.process.stdout.readline())["address"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


# --- The comparison ----------------------------------------------------------------------------------------------------


def compare(arguments):
    import torch

    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    say(
        arguments,
        f"{arguments.model}, {arguments.batch} images of {arguments.image_size} pixels as {arguments.micro_batches} "
        f"micro-batches, two processes on cores {cores}, torch {torch.__version__}",
        event="about",
        model=arguments.model,
        batch=arguments.batch,
        micro_batches=arguments.micro_batches,
        cores=cores,
        torch=torch.__version__,
    )
    tried = {}
    for cut in CUTS:
        seconds = run_torch_pipeline(arguments, cores, cut, "GPipe", "channels_last", 1)
        tried[(cut, "GPipe", "channels_last")] = statistics.median(seconds)
    nearest = sorted(tried, key=tried.get)[:2]
    for cut, _, _ in nearest:
        for schedule, layout in [("1F1B", "channels_last"), ("GPipe", "nchw"), ("1F1B", "nchw")]:
            seconds = run_torch_pipeline(arguments, cores, cut, schedule, layout, 1)
            tried[(cut, schedule, layout)] = statistics.median(seconds)
    for (cut, schedule, layout), seconds in tried.items():
        say(
            arguments,
            f"torch pipelining, cut at {cut}, {schedule}, {layout}: {seconds:.3f} s",
            event="tried", cut=cut, schedule=schedule, layout=layout, seconds=seconds,
        )  # fmt: skip
    best = min(tried, key=tried.get)

    times = {"outboard": [], "outboard alone": [], "torch pipelining": [], "torch alone": []}
    first_forward = []
    with tempfile.TemporaryDirectory() as cache, Worker(arguments, cores[1]) as worker:
        for turn in range(arguments.rounds):
            # From 30 steps on a run is long enough to be planned with care.
            seconds, plan = train(arguments, cores[0], cache, 30, "--device", worker.address)
            times["outboard"] += seconds
            first_forward.append(plan["stages"][0]["forward_seconds"])
            times["outboard alone"] += train(arguments, cores[0], cache, arguments.steps + 1)[0]
            times["torch pipelining"] += run_torch_pipeline(arguments, cores, *best, arguments.steps)
            steps = ["--steps", str(max(1, arguments.steps // 2))]
            times["torch alone"] += last_line(role(arguments, "alone", cores[0], *steps))["seconds"]
            medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
            text = ", ".join(f"{name} {value:.3f} s" for name, value in medians.items())
            say(arguments, f"after turn {turn + 1}: {text}", event="turn", turn=turn, seconds=medians)
    result = {name: statistics.median(values) for name, values in times.items()}
    ours = result["outboard"]
    shortest = (result["outboard alone"] + statistics.median(first_forward)) / 2
    done = {
        "event": "done",
        "seconds": result,
        "torch_best": {"cut": best[0], "schedule": best[1], "layout": best[2]},
        "first_forward_seconds": statistics.median(first_forward),
        "shortest_step_seconds": shortest,
        "speedup_vs_pytorch": result["torch alone"] / ours,
        "speedup_vs_torch_pipelining": result["torch pipelining"] / ours,
        "speedup_vs_one_device": result["outboard alone"] / ours,
        "efficiency": shortest / ours,
    }
    text = (
        f"Outboard over two processes: {ours:.3f} s a step\n"
        f"  {done['speedup_vs_torch_pipelining']:.2f}x torch.distributed.pipelining ({' '.join(best)})\n"
        f"  {done['speedup_vs_pytorch']:.2f}x PyTorch on one core\n"
        f"  {done['speedup_vs_one_device']:.2f}x itself on one core\n"
        f"  {done['efficiency']:.1%} of the shortest step, {shortest:.3f} s"
    )
    say(arguments, text, **done)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet34", help="a ResNet that both torchvision and outboard know")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--steps", type=int, default=4, help="steps a turn")
    parser.add_argument("--outboard", default="target/release/outboard", help="the binary")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    # Of the processes that this script starts.
    for hidden in ["--role", "--cut", "--schedule", "--layout"]:
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ["--rank", "--port"]:
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    {None: compare, "alone": torch_alone, "stage": torch_stage}[arguments.role](arguments)


if __name__ == "__main__":
    main()
