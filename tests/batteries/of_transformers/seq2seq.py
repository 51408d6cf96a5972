"""
A small T5 learns to reverse sequences; evaluation generates, by sampling.

Stands for: examples/pytorch/summarization/run_summarization.py of transformers.
"""

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed


class Reversed(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(2, 20, (count, 6), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index].flip(0)}


def compute_metrics(prediction):
    guessed = torch.as_tensor(prediction.predictions)[:, 1:7]
    wanted = torch.as_tensor(prediction.label_ids)[:, : guessed.shape[1]]
    return {"exact": (guessed == wanted).float().mean().item(), "sum": int(guessed.clamp(min=0).sum())}


set_seed(11)
config = T5Config(
    vocab_size=20, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0, dropout_rate=0.1
)
args = Seq2SeqTrainingArguments(
    output_dir="t5",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    learning_rate=5e-3,
    predict_with_generate=True,
    generation_max_length=8,
    eval_strategy="steps",
    eval_steps=4,
    save_strategy="no",
    logging_steps=2,
    report_to="none",
    use_cpu=True,
)
model = T5ForConditionalGeneration(config)
model.generation_config.do_sample = True
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=Reversed(60, 1),
    eval_dataset={"near": Reversed(12, 2), "far": Reversed(8, 3)},
    compute_metrics=compute_metrics,
)
trainer.train()
trainer.save_model("final")
trainer.save_state()
trainer.save_metrics("test", trainer.evaluate(metric_key_prefix="test"))
