"""A small GPT in mixed precision, with a GradScaler, dropout and a fused AdamW: a loop of one's own."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotrun import Loop

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products on CUDA
DEVICE = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
VOCABULARY, TOKENS, LAYERS, HEADS = 512, 64, 4, 8


class GPT(nn.Module):
    """tokens_BT to logits_BTV"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.predict = nn.Linear(width, VOCABULARY)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        length = tokens_BT.shape[1]
        mask_TT = nn.Transformer.generate_square_subsequent_mask(length, device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.places(torch.arange(length, device=tokens_BT.device))
        return self.predict(self.blocks(x_BTD, mask=mask_TT, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=1600)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(1)
    steps_N = torch.randint(1, 9, (args.sentences, 1)).cumsum(0) % VOCABULARY
    sentences_NT = (steps_N + 3 * torch.arange(TOKENS + 1)) % VOCABULARY
    model = GPT(args.width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=DEVICE == "cuda")
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**20)  # the first steps overflow: the scaler skips them
    loader = DataLoader(TensorDataset(sentences_NT), 32, shuffle=True)
    loop = Loop(seed=1, model=model, optimizer=optimizer, scaler=scaler)
    for epoch in loop.epochs(3):
        for (tokens_BT,) in loop.batches(loader):
            tokens_BT = tokens_BT.to(DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16 if DEVICE == "cpu" else torch.float16):
                logits_BTV = model(tokens_BT[:, :-1])
                loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        loop.log(loss=loss.item(), scale=scaler.get_scale())
        print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")
    torch.save(model.state_dict(), "gpt.pt")


if __name__ == "__main__":
    main()
