"""TRL's side of real_model.py: SFTTrainer on a PEFT adapter, in a process with their packages.

    python bench/real_model_trl.py TASK.json FOLDER

FOLDER gets losses.json, the loss of each step, and the adapter. The chat template has marks around
what the assistant says, as TRL's own training templates have them; that it writes what the model's
own one writes, and that its labels are those of the task, is checked.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from peft import PeftModel
from trl import SFTConfig, SFTTrainer

SAYS = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
MARKED = (
    "{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
)


class Losses(transformers.TrainerCallback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """As the trainer calls it."""
        if "loss" in logs:
            self.found.append(logs["loss"])
            print(f"  TRL: step {len(self.found)}, loss {logs['loss']:.4f}", flush=True)


def marked_tokenizer(folder: str, messages: list[dict[str, str]]) -> Any:
    """The tokenizer, with a template that marks answers."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    written = tokenizer.apply_chat_template(messages, tokenize=False)
    template = tokenizer.chat_template.replace(SAYS, MARKED)
    tokenizer.chat_template = template
    if written != tokenizer.apply_chat_template(messages, tokenize=False):
        raise SystemExit("the template with marks writes another text")
    return tokenizer


def require_labels(trainer: Any, expected: list[list[int]]) -> None:
    """Raise SystemExit for a row whose labels are not ours."""
    for number, labels in enumerate(expected):
        row = trainer.data_collator([trainer.train_dataset[number]])
        theirs = row["labels"][0].tolist()
        theirs += [-100] * (len(labels) - len(theirs))
        if theirs[: len(labels)] != labels or any(x != -100 for x in theirs[len(labels) :]):
            raise SystemExit(f"row {number}: TRL's labels are others: {theirs} and not {labels}")


def main() -> None:
    """Train, and write."""
    task, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    base = transformers.AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)
    model = PeftModel.from_pretrained(base, task["adapter"], is_trainable=True)
    rates, losses = task["rates"], Losses()
    optimizer = torch.optim.AdamW(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        lr=1.0,
        betas=tuple(task["betas"]),
        eps=task["epsilon"],
        weight_decay=0.0,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rates[min(step, len(rates) - 1)]
    )
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=task["rows"],
            gradient_accumulation_steps=task["microbatches"],
            max_steps=len(rates),
            max_grad_norm=task["clip_norm"],
            max_length=None,
            assistant_only_loss=True,
            train_sampling_strategy="sequential",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list([{"messages": each} for each in task["messages"]]),
        processing_class=marked_tokenizer(task["model"], task["messages"][0]),
        optimizers=(optimizer, schedule),
        callbacks=[losses],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    require_labels(trainer, task["labels"])
    trainer.train()
    model.save_pretrained(out)
    (out / "losses.json").write_text(json.dumps(losses.found))


if __name__ == "__main__":
    main()
