"""What to answer to a setting that does not exist: where it belongs, or what it is called here.

People bring the names of other programs. A name that exists in another table is shown there, a
common alias is translated, and anything else gets the nearest name of its own table.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator

from p2pswarm.settings.node_config import NodeConfig

SHOWN_CHARS = 60  # of a wrong name, so that the message stays one line
ALIASES = {
    "learning_rate": "lr max_lr peak_lr step_size",
    "decay_steps": "lr_decay_iters lr_decay_steps",
    "schedule": "scheduler lr_scheduler lr_scheduler_type lr_schedule",
    "warmup_steps": "warmup warmup_iters lr_warmup_steps",
    "weight_decay": "wd decay",
    "average_decay": "ema ema_decay use_ema",
    "clip_norm": "grad_clip max_grad_norm max_norm gradient_clipping",
    "epsilon": "eps adam_epsilon",
    "steps": "max_steps num_steps iterations max_iters iters",
    "stages": "num_stages pipeline_stages pp",
    "min_replicas": "replicas num_replicas",
    "layers": "n_layer n_layers num_layers depth blocks",
    "heads": "n_head n_heads num_heads",
    "d_model": "n_embd hidden_size dim width embed_dim",
    "boundary_width": "bottleneck_dim boundary_dim",
    "sequence_length": "seq_len seq_length block_size context context_length max_seq_len",
    "vocabulary": "vocab vocab_size",
    "dtype": "torch_dtype",
    "precision": "amp autocast mixed_precision compute_dtype",
    "weight_storage": "stochastic_rounding param_dtype weight_dtype",
    "microbatches": "micro_batches num_microbatches grad_accum",
    "rows": "microbatch_size micro_batch_size",
    "evaluate_every": "eval_every eval_interval eval_steps",
    "data": "dataset text corpus train_data",
    "weights": "output out out_dir save",
    "every_steps": "save_steps save_every save_interval checkpoint_every",
    "target": "checkpoint_dir checkpoint_path save_dir",
    "keep_newest": "save_total_limit keep_last",
    "resume": "resume_from resume_from_checkpoint",
    "adapter": "lora lora_config peft peft_config",
    "rank": "r lora_r lora_rank",
    "alpha": "lora_alpha",
    "rslora": "use_rslora",
    "targets": "target_modules",
    "train": "modules_to_save",
    "dropout": "lora_dropout",
    "base": "load_in_4bit load_in_8bit quantization",
    "device": "gpu cuda",
    "threads": "num_threads",
    "bootstrap": "seeds peers bootstraps initial_peers",
    "listen": "port host bind",
    "announce": "announce_address public_address",
    "identity": "key key_file",
    "log_level": "loglevel verbose",
}
"""Our names, and those of other programs."""
RENAMED = {alias: name for name, aliases in ALIASES.items() for alias in aliases.split()}
EXPLAINED = {
    **dict.fromkeys(
        ("batch_size", "global_batch_size", "train_batch_size"),
        "a step trains on microbatches times rows sequences, both in [run.batch]",
    ),
    **dict.fromkeys(
        ("epochs", "num_epochs", "epoch"),
        "a run ends after steps, in [run], however often they pass over the text",
    ),
    **dict.fromkeys(("dora", "use_dora"), "DoRA is not supported: leave it out, which gives LoRA"),
    **dict.fromkeys(
        ("split", "subset", "data_split", "dataset_name", "dataset_config", "config_name"),
        'a data set of the hub has it in its name: data = "hf:OWNER/NAME#SUBSET:SPLIT"',
    ),
    "betas": "they are beta1 and beta2 in [run.optimizer]",
}
"""What has no single name here."""


def unknown(table: str, name: str, known: list[str]) -> str:
    """The answer to `name` in `table`, whose settings are `known`; the top's table is ""."""
    path = _shown(f"{table}.{name}" if table else name)
    plain = name.lower().replace("-", "_")
    ours = RENAMED.get(plain, plain)
    if plain in EXPLAINED:
        return f"{path} is no setting: {EXPLAINED[plain]}"
    if ours in known:
        return f"{path} is no setting here (did you mean {ours}?)"
    if places := _places(ours):
        verb = "belongs" if ours == name else f"is {ours}"
        return f"{path} is no setting here: it {verb} {' or '.join(places)}"
    near = difflib.get_close_matches(name, known, 1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    return f"{path} is no setting{guess}; there are: {', '.join(known)}"


def _shown(path: str) -> str:
    text = path if path.isprintable() else repr(path)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _places(name: str) -> list[str]:
    """Return where a setting or a table of this name is, as one writes it in a file."""
    found = []
    for table, field, is_table in _settings(NodeConfig, ""):
        if field == name and is_table:
            found.append(f"at [{table}.{field}]" if table else f"at [{field}]")
        elif field == name:
            found.append(f"in [{table}]" if table else "at the top of the file, before any [table]")
    return found


def _settings(kind: type, table: str) -> Iterator[tuple[str, str, bool]]:
    """Every setting below a dataclass: its table, its name, whether it is a table itself."""
    for name, hint in typing.get_type_hints(kind).items():
        arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        tables = [arm for arm in arms if dataclasses.is_dataclass(arm)]
        yield table, name, bool(tables)
        for arm in tables:  # of a table that may be missing, the one beside None
            yield from _settings(typing.cast("type", arm), f"{table}.{name}" if table else name)
