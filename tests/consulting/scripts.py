"""Training scripts as people write them, to be patched."""

PLAIN = '''"""A plain loop."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # höher geht nicht
train_loader = torch.utils.data.DataLoader(data, batch_size=64)
for epoch in range(10):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # one step
'''

NANOGPT = """import os, time, math, pickle
from contextlib import nullcontext
import torch
from model import GPTConfig, GPT

# I/O
out_dir = 'out'
eval_interval = 2000
# adamw optimizer
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
dropout = 0.0  # for pretraining 0 is good, for finetuning try 0.1+
learning_rate = 6e-4  # max learning rate
max_iters = 600000
weight_decay = 1e-1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0  # clip gradients at this value, or disable if == 0.0
decay_lr = True
warmup_iters = 2000
min_lr = 6e-5
model_args = dict(block_size=block_size, dropout=dropout)
model = GPT(GPTConfig(**model_args))
scaler = torch.cuda.amp.GradScaler(enabled=True)
optimizer = model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2), 'cuda')

def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return min_lr

while True:
    lr = get_lr(iter_num) if decay_lr else learning_rate
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr
    for micro_step in range(gradient_accumulation_steps):
        logits, loss = model(X, Y)
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
"""

TRAINER = """from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


def main():
    model = AutoModelForSequenceClassification.from_pretrained("roberta-base")
    args = TrainingArguments(
        output_dir="out",
        learning_rate=5e-5,
        per_device_train_batch_size=16,
        num_train_epochs=3,
    )
    Trainer(model=model, args=args, train_dataset=train, eval_dataset=valid).train()


if __name__ == "__main__":
    main()"""
