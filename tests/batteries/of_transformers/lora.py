"""
Adapters on a frozen model, with PEFT; the adapters alone are saved.

Stands for: the quick tour of peft, and most fine-tuning of large models.
"""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(5)
        self.first = torch.randint(0, 20, (count,), generator=generator)

    def __len__(self):
        return len(self.first)

    def __getitem__(self, index):
        ids = (self.first[index] + torch.arange(12)) % 32
        return {"input_ids": ids, "labels": ids}


set_seed(0)
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32,
    )
)  # fmt: skip
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8, lora_dropout=0.2, target_modules=["q_proj", "v_proj"]
)
model = get_peft_model(base, lora)
model.print_trainable_parameters()
args = TrainingArguments(
    output_dir="adapters",
    max_steps=30,
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    logging_steps=4,
    save_steps=10,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Counting(50))
trainer.train()
model.save_pretrained("final")
trainer.save_state()
