"""
Gradient checkpointing with dropout, bf16 autocast, NEFTune noise, and every parameter group's decay.

Stands for: fine-tuning in little memory.
"""

import torch
from transformers import MistralConfig, MistralForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(6)
config = MistralConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=16, attention_dropout=0.1, sliding_window=None,
)  # fmt: skip
rows = torch.randint(0, 32, (44, 10))
data = [{"input_ids": row, "labels": row} for row in rows]
args = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=2,
    gradient_checkpointing=True, bf16=True, neftune_noise_alpha=5.0, weight_decay=0.1, max_grad_norm=0.5,
    save_steps=7, eval_on_start=True, eval_strategy="steps", eval_steps=6, report_to="none", use_cpu=True,
)  # fmt: skip
trainer = Trainer(MistralForCausalLM(config), args, train_dataset=data, eval_dataset=data[:8])
output = trainer.train()
trainer.save_model("final")
trainer.save_state()
