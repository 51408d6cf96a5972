"""What some scripts do beside training: each variant makes another class of a module's, and brings callbacks."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.trainings.changing import batches_that_grow, data_that_grows, hard_samples_first
from tests.support.trainings.late import LATE


class Shadow:
    """Averages of weights, kept outside of any module."""

    def __init__(self, module):
        self.weights = {name: weight.detach().clone() for name, weight in nn.Module.state_dict(module).items()}

    @torch.no_grad()
    def follow(self, module):
        for name, weight in nn.Module.state_dict(module).items():
            if weight.is_floating_point():
                self.weights[name].lerp_(weight, 0.1)


def average_as_weights(pl, kind):
    """A callback that saves its averages as the weights, as most EMA callbacks do."""

    class Average(pl.Callback):
        def on_fit_start(self, trainer, module):
            self.shadow = getattr(self, "shadow", None) or Shadow(module)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.shadow.follow(module)

        def on_save_checkpoint(self, trainer, module, checkpoint):
            checkpoint["state_dict"] = {name: weight.clone() for name, weight in self.shadow.weights.items()}
            checkpoint["decay"] = 0.9

        def on_load_checkpoint(self, trainer, module, checkpoint):
            assert checkpoint["decay"] == 0.9
            self.shadow = Shadow(module)
            self.shadow.weights = {name: weight.clone() for name, weight in checkpoint["state_dict"].items()}

        def on_train_end(self, trainer, module):
            nn.Module.load_state_dict(module, self.shadow.weights)

    return kind, [Average()]


def average_in_the_module(pl, kind):
    """The module's own hook swaps its averages in, and takes them out of what is loaded."""

    class Averaged(kind):
        def on_fit_start(self):
            self._shadow = getattr(self, "_shadow", None) or Shadow(self)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self._shadow.follow(self)

        def on_save_checkpoint(self, checkpoint):
            checkpoint["state_dict"] = {f"averaged.{name}": weight for name, weight in self._shadow.weights.items()}

        def on_load_checkpoint(self, checkpoint):
            self._shadow = Shadow(self)
            for name, weight in checkpoint["state_dict"].items():
                self._shadow.weights[name.removeprefix("averaged.")].copy_(weight)

    return Averaged, []


def adapters_only(pl, kind):
    """`state_dict` gives only the adapters, as with LoRA, though more is trained."""

    class Adapted(kind):
        strict_loading = False

        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            return {name: weight for name, weight in whole.items() if not name.startswith("net.0.")}

    return Adapted, []


def own_names(pl, kind):
    """`state_dict` and `load_state_dict` speak of other names than the module's."""

    class Named(kind):
        def state_dict(self, *args, **kwargs):
            return {f"x.{name}": weight.half() for name, weight in super().state_dict(*args, **kwargs).items()}

        def load_state_dict(self, state, strict=True):
            own = {name.removeprefix("x."): weight for name, weight in state.items()}
            return super().load_state_dict(own, strict=strict)

    return Named, []


def nearly_nothing(pl, kind):
    """To save room on disk, the hook throws away what a finished model does not need."""

    class Slim(kind):
        def on_save_checkpoint(self, checkpoint):
            for name in ("optimizer_states", "lr_schedulers", "callbacks", "loops"):
                checkpoint.pop(name)
            checkpoint["state_dict"] = {"net.0.bias": checkpoint["state_dict"]["net.0.bias"]}

        def on_load_checkpoint(self, checkpoint):
            checkpoint["lr_schedulers"] = []

    return Slim, []


def weights_of_the_start(pl, kind):
    """Pretrained weights, which each process loads when fit() begins."""

    class Pretrained(kind):
        def on_fit_start(self):
            self.net[0].load_state_dict({"weight": torch.ones(8, 6) / 9, "bias": torch.zeros(8)})

        def on_train_start(self):
            nn.init.zeros_(self.net[4].bias)

    return Pretrained, []


def pruned(pl, kind):
    """Masks grow with each epoch; what is saved is pruned for good."""
    options = {"amount": 0.2, "use_lottery_ticket_hypothesis": False, "parameter_names": ["weight"]}
    return kind, [pl.callbacks.ModelPruning("l1_unstructured", **options)]


def lottery_tickets(pl, kind):
    """After each epoch the weights that are left go back to those of the beginning."""
    return kind, [pl.callbacks.ModelPruning("l1_unstructured", amount=0.2, parameter_names=["weight"])]


def memory_that_grows(pl, kind):
    """Buffers that come, grow and change their type as training goes on, and a parameter that comes."""

    class Remembering(kind):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(0, 2))
            self.register_buffer("newest", None)
            self.register_buffer("hidden", torch.zeros(0), persistent=False)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            here = torch.tensor([[float(batch_idx), loss.item()]])
            self.memory = torch.cat([self.memory, here])[-20:]
            self.hidden = torch.cat([self.hidden, here[0]])
            self.newest = here.double()
            if self.global_step == 5:
                self.scale = nn.Parameter(torch.full((2,), 0.5), requires_grad=False)
            scale = self.scale.mean() if self.global_step > 5 else 1.0
            return loss * (1 + scale * (self.memory.mean() + self.hidden.std() + self.newest.sum()) / 100)

    return Remembering, []


def hyper_parameters_that_change(pl, kind):
    """Lightning keeps them, and the script writes to them as it goes."""

    class Annealed(kind):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"share": 1.0, "losses": []})

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.hparams.share *= 0.95
            self.hparams["losses"].append(loss.item())
            return loss * (self.hparams.share + sum(self.hparams.losses) / 100)

    return Annealed, []


def ranks_that_see_other_values(pl, kind):
    """Nobody gathers what early stopping looks at. It gets better for the first process and for no other."""

    class Seeing(kind):
        def on_validation_epoch_end(self):
            self.log("seen", -float(self.current_epoch) if self.global_rank == 0 else 0.0)

    return Seeing, [pl.callbacks.EarlyStopping("seen", patience=3)]


def epochs_cut_short(pl, kind):
    """A hook ends two of the epochs before their sixth batch."""

    class Impatient(kind):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 5 and self.current_epoch in (0, 2) else None

    return Impatient, []


VARIANTS = {
    **LATE,
    "batches that grow": batches_that_grow,
    "data that grows": data_that_grows,
    "hard samples first": hard_samples_first,
    "adapters only": adapters_only,
    "average as weights": average_as_weights,
    "average in the module": average_in_the_module,
    "epochs cut short": epochs_cut_short,
    "hyper-parameters that change": hyper_parameters_that_change,
    "lottery tickets": lottery_tickets,
    "memory that grows": memory_that_grows,
    "nearly nothing": nearly_nothing,
    "own names": own_names,
    "pruned": pruned,
    "ranks that see other values": ranks_that_see_other_values,
    "weights of the start": weights_of_the_start,
}
