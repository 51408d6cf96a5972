"""Models and optimizers that are built in hooks, while training goes on."""

from __future__ import annotations

import copy
from collections import defaultdict

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from tests.support.trainings.datasets import WIDTH


def teacher(hook):
    """A copy of the net, made in `hook`, follows it and has a say in the loss."""

    def variant(pl, kind):
        def make(self, stage=None):
            if not hasattr(self, "teacher"):
                self.teacher = copy.deepcopy(self.net).requires_grad_(False).eval()

        class Taught(kind):
            def training_step(self, batch, batch_idx):
                loss = super().training_step(batch, batch_idx)
                return loss + nn.functional.mse_loss(self.net(batch[1]), self.teacher(batch[1]))

            def on_train_batch_end(self, outputs, batch, batch_idx):
                with torch.no_grad():
                    for old, new in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                        old.lerp_(new, 0.2)

        if hook == "on_train_epoch_start":
            return also_at_epoch_start(Taught, make), []
        if hook == "on_train_batch_start":

            def make_once(self, batch, batch_idx):
                if self.global_step == 0:
                    make(self)

            Taught.on_train_batch_start = make_once
        else:
            setattr(Taught, hook, make)
        return also_at_epoch_start(Taught, lambda self: None), []

    return variant


def average_that_comes(pl, kind):
    """A callback makes a copy of the net in a batch. It follows the net, and has a say in the loss."""

    class Averages(pl.Callback):
        average = None

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if self.average is None and trainer.global_step >= 3:
                self.average = copy.deepcopy(module.net).requires_grad_(False).eval()
            if self.average is not None:
                with torch.no_grad():
                    for old, new in zip(self.average.parameters(), module.net.parameters(), strict=True):
                        old.lerp_(new, 0.2)

    averages = Averages()

    class Taught(kind):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if averages.average is None:
                return loss
            return loss + nn.functional.mse_loss(self.net(batch[1]), averages.average(batch[1]))

    return Taught, [averages]


def also_at_epoch_start(kind, function):
    """Without what the module itself writes down there, as that is called again on a resume."""

    class Also(kind):
        def on_train_epoch_start(self):
            function(self)

    return Also


def layers_that_come(pl, kind):
    """Each epoch brings a layer, which joins the optimizer as a group of its own, before the last group."""

    def grow(self):
        if self.current_epoch == len(self.more):
            self.more.append(nn.Linear(WIDTH, WIDTH))
            optimizer = self.trainer.optimizers[0]
            optimizer.add_param_group({"params": list(self.more[-1].parameters()), "lr": 0.003})

    class Growing(kind):
        def __init__(self):
            super().__init__()
            self.more = nn.ModuleList()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            x = batch[1]
            for layer in self.more:
                x = layer(x).relu() + x
            return loss + x.square().mean()

        def configure_optimizers(self):
            return AdamW(self.net.parameters(), lr=0.01)

    return also_at_epoch_start(Growing, grow), []


def groups_that_come(hook, lr_from=0.5):
    """The optimizer begins with the last layer; `hook` adds the first one at some point."""

    def variant(pl, kind):
        class Joining(kind):
            def configure_optimizers(self):
                optimizer = AdamW(self.net[4].parameters(), lr=0.01)
                return {"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 1, 0.5)}

        class Joins(pl.Callback):
            def join(self, trainer, module):
                optimizer = trainer.optimizers[0]
                if len(optimizer.param_groups) == 1:
                    optimizer.add_param_group({"params": [module.net[1].weight], "lr": 0.004})
                    optimizer.add_param_group({"params": list(module.net[0].parameters()), "lr": 0.002})

        if hook == "on_train_batch_start":

            def at_a_step(self, trainer, module, batch, batch_idx):
                if trainer.global_step == 3:
                    self.join(trainer, module)

            Joins.on_train_batch_start = at_a_step
        else:

            def at_an_epoch(self, trainer, module):
                if trainer.current_epoch == 1:
                    self.join(trainer, module)

            setattr(Joins, hook, at_an_epoch)
        return Joining, [Joins()]

    return variant


def backbone_finetuning(pl, kind):
    """Lightning's own callback."""

    class Finetuned(kind):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + self.backbone(batch[1]).square().mean()

        def configure_optimizers(self):
            return AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)

    return Finetuned, [pl.callbacks.BackboneFinetuning(1, lambda epoch: 1.5, train_bn=False)]


def exchanged(hook, schedule=False):
    """In the second epoch another optimizer, of another kind, takes over."""

    def variant(pl, kind):
        class Exchanging(kind):
            def configure_optimizers(self):
                return AdamW(self.parameters(), lr=0.01)

        def exchange(self, *args):
            if self.current_epoch == 1 and type(self.trainer.optimizers[0]) is AdamW:
                optimizer = SGD(self.parameters(), lr=0.02, momentum=0.9)
                self.trainer.optimizers = [optimizer]
                if schedule:
                    config = type(self.trainer.lr_scheduler_configs[0])
                    self.trainer.strategy.lr_scheduler_configs = [config(StepLR(optimizer, 1, 0.5))]

        if schedule:

            def with_schedule(self):
                optimizer = AdamW(self.parameters(), lr=0.01)
                return [optimizer], [StepLR(optimizer, 1, 0.9)]

            Exchanging.configure_optimizers = with_schedule
        if hook == "on_train_epoch_start":
            return also_at_epoch_start(Exchanging, exchange), []
        setattr(Exchanging, hook, exchange)
        return also_at_epoch_start(Exchanging, lambda self: None), []

    return variant


class Lookahead(Optimizer):
    """Goes a part of the way to where another optimizer has come after some steps. Saves what torch saves of it."""

    def __init__(self, base, every=3):
        self.base, self.every, self.count = base, every, 0
        super().__init__(base.param_groups, base.defaults)
        self.param_groups = base.param_groups
        self.slow = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for fast, old in zip(group["params"], slow, strict=True):
                    old.lerp_(fast.detach(), 0.5)
                    fast.data.copy_(old)
        return loss


class SlowBuffers(Optimizer):
    """The same as people often write it: no call of the base's `__init__`, a state of its own, and both saved."""

    def __init__(self, base, every=3):
        self.optimizer, self.every = base, every
        self.param_groups, self.defaults = base.param_groups, base.defaults
        self.state = defaultdict(dict)
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        for group in self.param_groups:
            group["count"] = 0

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            group["count"] += 1
            if group["count"] % self.every == 0:
                for fast in group["params"]:
                    slow = self.state[fast].setdefault("slow", fast.detach().clone())
                    slow.lerp_(fast.detach(), 0.5)
                    fast.data.copy_(slow)
        return loss

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        fast = self.optimizer.state_dict()
        slow = {id(key): value for key, value in self.state.items()}
        return {"state": fast["state"], "slow_state": slow, "param_groups": fast["param_groups"]}

    def load_state_dict(self, state):
        groups = state["param_groups"]
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
        super().load_state_dict({"state": state["slow_state"], "param_groups": groups})
        self.param_groups = self.optimizer.param_groups


class Delegating(Optimizer):
    """Has no state of its own: whoever asks is given the other one's."""

    def __init__(self, base):
        self.base = base
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}

    @property
    def state(self):
        return self.base.state

    @property
    def param_groups(self):
        return self.base.param_groups

    @property
    def defaults(self):
        return self.base.defaults

    def step(self, closure=None):
        return self.base.step(closure)

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none)

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


class Both(Optimizer):
    """One optimizer for matrices and one for the rest."""

    def __init__(self, *parts):
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for part in self.parts:
            part.step()
        return loss


class Counting(AdamW):
    """Keeps a number beside its state, which its steps depend on."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            group["lr"] = 0.01 / self.steps
        return super().step(closure)


class SharpnessAware(Optimizer):
    """Two steps for each batch, with what the first has left in the state."""

    def __init__(self, parameters, kind, **options):
        super().__init__(parameters, {"rho": 0.05, **options})
        self.base_optimizer = kind(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["drift"] = self.state[p].get("drift", 0) * 0.9 + p.grad * group["rho"]
                p.add_(self.state[p]["drift"])
        self.base_optimizer.step()
        return loss

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.base_optimizer.param_groups = self.param_groups


def wrapped(make, schedule=True):
    """`make` makes the optimizer of a module."""

    def variant(pl, kind):
        class Wrapped(kind):
            def configure_optimizers(self):
                optimizer = make(self)
                return ([optimizer], [StepLR(optimizer, 1, 0.5)]) if schedule else optimizer

        return Wrapped, []

    return variant


def base(module):
    return SGD(module.parameters(), lr=0.02, momentum=0.9)


def both(module):
    matrices = [p for p in module.parameters() if p.ndim > 1]
    return Both(SGD(matrices, lr=0.02, momentum=0.9), AdamW([p for p in module.parameters() if p.ndim < 2], lr=0.01))


def schedule_that_is_exchanged(pl, kind):
    """In the second epoch another schedule takes over, of another kind, for the same optimizer."""

    def exchange(self):
        if self.current_epoch == 1:
            optimizer = self.trainer.optimizers[0]
            self.trainer.lr_scheduler_configs[0].scheduler = StepLR(optimizer, 1, 0.3)

    class Exchanging(kind):
        def configure_optimizers(self):
            optimizer = AdamW(self.parameters(), lr=0.01)
            parts = [StepLR(optimizer, 1, 0.9), StepLR(optimizer, 1, 0.8)]
            return [optimizer], [SequentialLR(optimizer, parts, [2])]

    return also_at_epoch_start(Exchanging, exchange), []


def only_in(hook, change, step=2):
    """The model is changed at a `step`, None for each, that no hook of a beginning comes back to."""

    def variant(pl, kind):
        class Forgetful(kind):
            def __init__(self):
                super().__init__()
                self.gate, self.rest = nn.ReLU(), nn.Dropout(0.5)

        def once(self, *args):
            if step in (None, self.global_step):
                change(self)

        setattr(Forgetful, hook, once)
        return Forgetful, []

    return variant


def layer(module):
    module.late = nn.Linear(2, 2)


def average_of_torch(module):
    module.average = AveragedModel(module.net)


def other_gate(module):
    module.gate = nn.GELU()


def no_rest(module):
    module.rest = None


def tied_in_a_batch(pl, kind):
    """In the middle of an epoch a part gets a second name, a copy of a layer shares its weights, and two part ways."""

    class Tying(kind):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.other.weight = self.one.weight
            self.again = None

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            x = self.one(batch[1]) + self.other(batch[1])
            return loss + (x if self.again is None else self.again(self.tail(x))).square().mean()

        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 5:
                self.again, self.tail = self.net, nn.Linear(WIDTH, WIDTH)
                self.tail.weight = self.one.weight
                self.other.weight = nn.Parameter(self.one.weight.detach().clone())

    return also_at_epoch_start(Tying, lambda self: None), []


def gates_that_change(pl, kind):
    """In the second epoch another activation takes the place of the first, and a dropout goes."""

    def change(self):
        if self.current_epoch == 1:
            self.gate, self.rest = nn.GELU(), None

    class Changing(kind):
        def __init__(self):
            super().__init__()
            self.gate, self.rest = nn.ReLU(), nn.Dropout(0.5)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            x = self.gate(self.net(batch[1]))
            return loss + (x if self.rest is None else self.rest(x)).square().mean()

    return also_at_epoch_start(Changing, change), []


class Journal:
    pass


class Stubborn(SGD):
    """Holds something that only itself could save, and takes no state."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.journal = Journal()

    def load_state_dict(self, state):
        raise KeyError("momentum")


LATE = {
    **{
        f"teacher in {hook}": teacher(hook)
        for hook in (
            "configure_model",
            "setup",
            "on_fit_start",
            "on_train_start",
            "on_train_epoch_start",
            "on_train_batch_start",
        )
    },
    **{
        f"groups in {hook}": groups_that_come(hook)
        for hook in ("on_train_epoch_start", "on_train_epoch_end", "on_train_batch_start", "on_validation_end")
    },
    "backbone finetuning": backbone_finetuning,
    "exchanged in on_train_epoch_start": exchanged("on_train_epoch_start"),
    "exchanged with its schedule": exchanged("on_train_epoch_start", schedule=True),
    "exchanged in on_train_batch_start": exchanged("on_train_batch_start"),
    "schedule that is exchanged": schedule_that_is_exchanged,
    "layers that come": layers_that_come,
    "average that comes": average_that_comes,
    "lookahead": wrapped(lambda module: Lookahead(base(module))),
    "slow buffers": wrapped(lambda module: SlowBuffers(base(module))),
    "delegating": wrapped(lambda module: Delegating(base(module))),
    "both": wrapped(both),
    "lookahead of both": wrapped(lambda module: Lookahead(both(module))),
    "sharpness aware": wrapped(lambda module: SharpnessAware(module.parameters(), SGD, lr=0.02, momentum=0.9)),
    "counting": wrapped(lambda module: Counting(module.parameters()), schedule=False),
    "tied in a batch": tied_in_a_batch,
    "gates that change": gates_that_change,
    "layer in on_train_batch_end": only_in("on_train_batch_end", layer),
    "layer in on_train_epoch_end": only_in("on_train_epoch_end", layer, step=8),
    "layer in on_train_end": only_in("on_train_end", layer, step=None),
    "average in on_train_batch_start": only_in("on_train_batch_start", average_of_torch),
    "gate in on_train_batch_end": only_in("on_train_batch_end", other_gate),
    "nothing in on_before_optimizer_step": only_in("on_before_optimizer_step", no_rest),
    "stubborn": wrapped(lambda module: Stubborn(module.parameters(), lr=0.1)),
}
