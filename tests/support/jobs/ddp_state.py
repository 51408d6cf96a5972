"""
A DDP training that knows nothing of spotrun: rank 0 saves into a folder, and every rank loads what it finds there.

    torchrun … ddp_state.py FOLDER DIGESTS [GO]

Each rank leaves a digest of its model and optimizer in DIGESTS. Rank 0 waits before step 7 until the file GO is there.
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, WAITS_AT = 12, 2, 6
folder, digests, go = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
path = os.path.join(folder, "last.pt")

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
first = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
print(f"rank {rank} begins at step {first}", flush=True)

for step in range(first, STEPS):
    while go and rank == 0 and step == WAITS_AT and not os.path.exists(go):
        time.sleep(0.05)
    draws = torch.Generator().manual_seed(step * 100 + rank)
    samples = torch.randn(4, 8, generator=draws)
    optimizer.zero_grad()
    (model(samples) - samples.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    if rank == 0 and (step + 1) % EVERY == 0:
        os.makedirs(folder, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)

digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
    digest.update(tensor.numpy().tobytes())
with open(os.path.join(digests, f"rank-{rank}"), "w") as file:
    file.write(digest.hexdigest())
dist.destroy_process_group()
