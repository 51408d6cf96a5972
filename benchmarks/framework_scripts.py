"""
The same training by each framework, as a script: `script.py DOOR WIDTH BATCH STEPS`.

DOOR is the path of a socket. Every EVERY_STEPS steps the script reports there the time that they took, and stands still
until the benchmark releases it. That is in the middle between two snapshots, so that nothing is copied while it stands.
"""

from __future__ import annotations

EVERY_STEPS = 20
COMMON = f"""
import json, os, socket, sys, time
import torch
from torch import nn

DOOR, (WIDTH, BATCH, STEPS) = sys.argv[1], map(int, sys.argv[2:])
torch.manual_seed(1)
torch.set_num_threads(1)
conductor = socket.socket(socket.AF_UNIX)
conductor.connect(DOOR)
conductor = conductor.makefile("rw")
steps, began = 0, None

def clocks():
    return time.perf_counter(), time.thread_time()

def mark():
    global steps, began
    if steps % {EVERY_STEPS} == {EVERY_STEPS // 2}:
        now = clocks()
        print(json.dumps([last - first for first, last in zip(began or now, now)]), file=conductor, flush=True)
        conductor.readline()
        began = clocks()
    steps += 1

def network():
    return nn.Sequential(nn.Linear(512, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 512))

DATA = torch.utils.data.TensorDataset(torch.randn(BATCH * STEPS, 512))

def collate(rows):
    return {{"x": torch.stack([row for row, in rows])}}

def loader():
    return torch.utils.data.DataLoader(DATA, BATCH, shuffle=True, collate_fn=collate)
"""
LIGHTNING = """
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch["x"]), batch["x"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

class Clock(pl.Callback):
    def on_train_batch_start(self, *args):
        mark()

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(max_steps=STEPS, accelerator="cpu", callbacks=[Clock()], **quiet)
trainer.fit(Model(), loader())
"""
TRANSFORMERS = """
import transformers.trainer
from spotrun.transformers import entry

entry.install(transformers.trainer)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return {"loss": nn.functional.mse_loss(self.net(x), x)}

class Clock(transformers.TrainerCallback):
    def on_step_begin(self, *args, **kwargs):
        mark()

args = transformers.TrainingArguments(
    output_dir=DOOR + "-out", max_steps=STEPS, per_device_train_batch_size=BATCH, save_strategy="no",
    logging_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
)
transformers.Trainer(Model(), args, train_dataset=DATA, data_collator=collate, callbacks=[Clock()]).train()
"""
LOOP = """
from spotrun import Loop

def train(batches):
    for batch in batches:
        mark()
        loss = nn.functional.mse_loss(net(batch["x"]), batch["x"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

net = network()
optimizer = torch.optim.AdamW(net.parameters())
if "SPOTRUN_AGENT" in os.environ:
    loop = Loop(seed=1, net=net, optimizer=optimizer)
    for _ in loop.epochs(1):
        train(loop.batches(loader()))
else:
    train(loader())
"""
SCRIPTS = {
    "pytorch_lightning": COMMON + LIGHTNING,
    "transformers": COMMON + TRANSFORMERS,
    "loop": COMMON + LOOP,
}
"""Scripts by the package whose loop they use; `loop` is the script's own loop: alone it runs without any spotrun."""
