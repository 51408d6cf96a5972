"""
Finds the hooks that the script has registered, and detects those that are added or removed during training. A hook is a
function that torch calls before or after a module, a gradient or a step.

torch keeps these functions in its own lists, so the walk through the script's objects does not come across them. What
they keep, such as a running norm in a closure, is carried like the state of other objects. But a resumed process has
only the hooks that the script registers at its start. Therefore each hook that is added or removed later is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from spotrun.training.python_state.encoding import HARMLESS, UntrackedChange

OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_ALL_MODULES = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
PUT_BACK = (*HARMLESS, "torch.nn.utils.prune.", "transformers.", "peft.")
"""
Prefixes of the names of Python modules whose hooks are not reported. Some of these hooks have no influence on a
training step. The others are registered again at each resume, by `weights.prune_again` or by the framework when
training starts. (When training is over, the Trainer of transformers removes its own hooks.)
"""

Hooks = Mapping[str, tuple[str, ...]]
"""
Names of the hook functions, by the path of the attribute in which torch holds them. Empty attributes are left out.
"""


class HookRoots:
    """The script's hooks, by path, from which the walk through its objects begins as well."""

    def __init__(self) -> None:
        self._registered = -1
        self._found: list[tuple[object, str]] = []

    def now(self, module: nn.Module, optimizers: Sequence[object]) -> list[tuple[object, str]]:
        """
        Return each hook, or the object whose method it is, with its path. Look for them only if one was registered.
        """
        if self._registered != RemovableHandle.next_id:
            self._registered = RemovableHandle.next_id
            held = chain(_of_modules(module), _of_optimizers(optimizers), _of_parameters(module))
            self._found = [
                (hook.__self__ if isinstance(hook, MethodType) else hook, f"{path}[{number}]")
                for path, hooks in held
                for number, hook in enumerate(hooks.values())
                if _matters(hook)
            ]
        return self._found


class TorchHooks:
    """The hooks of a module and its optimizers, as of the last comparison."""

    def __init__(self, module: nn.Module, optimizers: Sequence[object] = ()) -> None:
        self._module = module
        self._optimizers = optimizers
        self._lists = [hooks for _, hooks in chain(_of_modules(module), _of_optimizers(optimizers))]
        self._counts = list(map(len, self._lists))
        self._registered = RemovableHandle.next_id
        self._hooks = self._now()

    def changed(self, *, probe: bool) -> Iterator[UntrackedChange]:
        """
        Yield each place at which hooks were added or removed. Without `probe`, the removal of a parameter's hook may be
        overlooked: to save time, the hooks themselves are compared only if a hook was registered, or if the number of
        hooks of a module or an optimizer has changed.
        """
        counts, registered = list(map(len, self._lists)), RemovableHandle.next_id
        if not probe and (counts, registered) == (self._counts, self._registered):
            return
        before, self._hooks = self._hooks, self._now()
        self._counts, self._registered = counts, registered
        for path in sorted(before.keys() | self._hooks.keys()):
            if (now := self._hooks.get(path, ())) != before.get(path, ()):
                yield UntrackedChange(path, f"hooks that torch holds: {', '.join(now) or 'none is left'}")

    def _now(self) -> Hooks:
        held = chain(_of_modules(self._module), _of_optimizers(self._optimizers), _of_parameters(self._module))
        found = {path: tuple(_name_of(hook) for hook in hooks.values() if _matters(hook)) for path, hooks in held}
        return {path: names for path, names in found.items() if names}


def _of_modules(module: nn.Module) -> Iterator[tuple[str, Mapping[int, Any]]]:
    for name, part in module.named_modules(prefix="module"):
        for kind in OF_MODULES:
            if kind in vars(part):
                yield f"{name}.{kind}", vars(part)[kind]
    for kind in OF_ALL_MODULES:
        yield f"torch.nn.modules.module.{kind}", getattr(torch_modules, kind, {})


def _of_optimizers(optimizers: Sequence[object]) -> Iterator[tuple[str, Mapping[int, Any]]]:
    for number, optimizer in enumerate(optimizers):
        for kind in OF_OPTIMIZERS:
            yield f"optimizers[{number}].{kind}", vars(optimizer).get(kind) or {}


def _of_parameters(module: nn.Module) -> Iterator[tuple[str, Mapping[int, Any]]]:
    for name, parameter in module.named_parameters(prefix="module"):
        for kind in OF_PARAMETERS:
            yield f"{name}.{kind}", getattr(parameter, kind, None) or {}


def _matters(hook: Any) -> bool:
    return not f"{_module_of(hook)}.".startswith(PUT_BACK)


def _module_of(hook: Any) -> str:
    return str(getattr(hook, "__module__", None) or type(hook).__module__)


def _name_of(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))
