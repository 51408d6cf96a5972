"""accelerate: prepared model, optimizer, loader and scheduler; its accumulation, a tracker, counts in collate_fn."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from torch.utils.data import DataLoader, default_collate

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


class Counts:
    """A collate function that counts its calls. What it gives depends on the count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        return default_collate(samples) * (1 + self.calls / 100)


class History(GeneralTracker):
    name = "history"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []

    @property
    def tracker(self) -> list[float]:
        return self.rows

    def store_init_configuration(self, values: dict[str, object]) -> None:
        """It tracks metrics alone."""

    def log(self, values: dict[str, float], step: int | None = None, **_: object) -> None:
        self.rows += values.values()


def main() -> None:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, log_with=History())
    accelerator.init_trackers("history")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    train, val = DataLoader(Noisy(), 5, shuffle=True, collate_fn=Counts()), DataLoader(Noisy(12), 4)
    model, optimizer, train, val, scheduler = accelerator.prepare(model, optimizer, train, val, scheduler)
    loop = Loop(accelerator, seed=11, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(losses=[])
    for _ in loop.epochs(3):
        model.train()
        for x in loop.batches(train):
            with accelerator.accumulate(model):
                loss = loss_of(model, x)
                accelerator.backward(loss)
                tick()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            s.losses.append(loss.item())
            accelerator.log({"loss": loss.item()})
            accelerator.project_configuration.iteration += 1  # as `save_state` does, which names its folder by it
            tick()
        model.eval()
        with torch.no_grad():
            s.losses.append(sum(loss_of(model, x).item() for x in loop.validation(val)))
        tick()
    kept = (s.losses, accelerator.trackers[0].rows, accelerator.save_iteration)
    done(model=model, optimizer=optimizer, scheduler=scheduler, kept=kept)


main()
