"""
A training that knows nothing of spotrun, and whose ranks each save a part of the state into one folder.

    torchrun … sharded_state.py KIND FOLDER DIGESTS [GO]

With KIND `dcp`, the model is sharded by `fully_shard`, and saved by torch.distributed.checkpoint into a folder for
each step. With `own`, each rank has a model of its own and saves it in a file of its own; only the gradients are
shared. Each rank leaves a digest of its part in DIGESTS. Rank 0 waits before step 7 until the file GO is there.
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS, EVERY, WAITS_AT = 12, 2, 6
kind, folder, digests = sys.argv[1:4]
go = sys.argv[4] if len(sys.argv) > 4 else ""

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0 if kind == "dcp" else rank)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
if kind == "dcp":
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)


def save(step):
    if kind == "dcp":
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=os.path.join(folder, f"step-{step}"))
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank-{rank}.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
    os.replace(path + ".new", path)
    dist.barrier()


def load():
    if kind == "dcp":
        places = [name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, ".metadata"))]
        step = max(int(name.removeprefix("step-")) for name in places)
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=os.path.join(folder, f"step-{step}"))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return step
    saved = torch.load(os.path.join(folder, f"rank-{rank}.pt"))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


first = load() if os.path.isdir(folder) and os.listdir(folder) else 0
print(f"rank {rank} begins at step {first}", flush=True)
for step in range(first, STEPS):
    while go and rank == 0 and step == WAITS_AT and not os.path.exists(go):
        time.sleep(0.05)
    draws = torch.Generator().manual_seed(step * 100 + rank)
    samples = torch.randn(4, 8, generator=draws)
    optimizer.zero_grad()
    (model(samples) - samples.sum(1, keepdim=True)).square().mean().backward()
    if kind == "own":
        for each in model.parameters():
            dist.all_reduce(each.grad)
    optimizer.step()
    if (step + 1) % EVERY == 0:
        save(step + 1)

digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(own.detach().numpy().tobytes())
with open(os.path.join(digests, f"rank-{rank}"), "w") as file:
    file.write(digest.hexdigest())
dist.destroy_process_group()
