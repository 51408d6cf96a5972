"""
Ends what a training stands on at its n-th moment: a batch that a loader gives, a step of an optimizer, or an event that
callbacks of transformers are told of.

KILL_MOMENTS is a file with one kill a line: `n`, or `n VICTIM`. Each process takes the first one at its first moment.
At the n-th one it ends itself. Where there is a VICTIM, it writes its id and VICTIM into the file `.reached` beside,
and waits until somebody has taken that file away; then it ends itself if the `trainer` was meant. The process that none
is left for counts its moments into `.count`. Each step of an optimizer is a line in `.steps`, with the id of its
process.

The agent's own `sitecustomize` is first, and runs this one. SHORT_IMPORTS is a file that a script begins with.
"""

import importlib.util
import os
import signal
import sys
import time
from importlib.abc import MetaPathFinder

LOOKS_EVERY_S = 0.01


class Watch(MetaPathFinder):
    """Acts when a module of ACTS was imported, behind what the agent's own finder does then."""

    def __init__(self, moments):
        self.moments = moments
        self.found = set()

    def find_spec(self, name, path=None, target=None):
        if name not in ACTS or name in self.found:
            return None
        self.found.add(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            ACTS[name](module, self.moments)

        spec.loader.exec_module = exec_module
        return spec


class Moments:
    """Those of one process. What it has forked, such as the workers of a loader, has none."""

    def __init__(self, plan):
        self.plan = plan
        self.process = os.getpid()
        self.count = 0
        self.last, self.victim = 0, ""

    def __call__(self):
        if os.getpid() != self.process:
            return
        if not self.count:
            self.take_kill()
        self.count += 1
        if self.count == self.last:
            self.end()
        if not self.last:
            with open(f"{self.plan}.count", "w") as file:
                file.write(str(self.count))

    def take_kill(self):
        with open(self.plan) as file:
            first, *rest = file.read().splitlines() or ["0"]
        with open(self.plan, "w") as file:
            file.write("\n".join(rest))
        number, _, victim = first.partition(" ")
        self.last, self.victim = int(number), victim

    def end(self):
        if self.victim:
            self.stand_still()
        if self.victim in ("", "trainer"):
            os.kill(self.process, signal.SIGKILL)

    def stand_still(self):
        reached = f"{self.plan}.reached"
        with open(f"{reached}.new", "w") as file:
            file.write(f"{self.process} {self.victim}")
        os.rename(f"{reached}.new", reached)
        while os.path.exists(reached):
            time.sleep(LOOKS_EVERY_S)

    def step(self, *_):
        if os.getpid() == self.process:
            with open(f"{self.plan}.steps", "a") as file:
                file.write(f"{self.process}\n")
        self()


def count_steps(module, moments):
    module.register_optimizer_step_post_hook(moments.step)


def count_batches(module, moments):
    module._BaseDataLoaderIter.__next__ = counted(module._BaseDataLoaderIter.__next__, moments)


def count_events(module, moments):
    module.CallbackHandler.call_event = counted(module.CallbackHandler.call_event, moments)


def counted(function, moments):
    def call(*args, **kwargs):
        moments()
        return function(*args, **kwargs)

    return call


ACTS = {
    "torch.optim.optimizer": count_steps,
    "torch.utils.data.dataloader": count_batches,
    "transformers.trainer_callback": count_events,
}


def run_first(path):
    """Watched, as it imports torch."""
    spec = importlib.util.spec_from_file_location("fast_imports", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "KILL_MOMENTS" in os.environ:
    sys.meta_path.insert(0, Watch(Moments(os.environ["KILL_MOMENTS"])))
if "SHORT_IMPORTS" in os.environ and sys.orig_argv[1:2] and sys.orig_argv[1].endswith(".py"):
    run_first(os.environ["SHORT_IMPORTS"])
