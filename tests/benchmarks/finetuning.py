"""Fine-tuning a published model, compared with transformers' Trainer, and PEFT's adapters, on the same rows.

    python tests/benchmarks/finetuning.py [--lora RANK] [--steps N] [--turns N]    # after dvc repro encode

Each trains the model that train_model.initial of params.yaml names, on the rows and in the precision of params.yaml, in
a process of its own; they take turns. The Trainer has AdamW, packed rows and no padding, and its loss is that of the
answers; chatmill compiles the layers, unless train_model.compile is false. Tokens/s are of the steps after the first;
memory is the peak of the process.
"""

import argparse
import json
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import torch
import yaml

from chatmill.conversation import LossKind
from chatmill.model.chat_model import ChatModel
from chatmill.training.distributed import SINGLE_PROCESS
from chatmill.training.hardware import choose_precision
from chatmill.training.new_model import load_initial, new_trainer
from chatmill.training.packing import Batch, read_data
from chatmill.training.plan import plan_steps
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import keep_freed_memory

DATA = Path("data/tokens"), Path("data/tokenizer"), Path("data/teacher")
NAMES = "chatmill", "transformers"


def child(name: str, lora: int | None, steps: int) -> dict[str, float]:
    """Train for some steps; the tokens a second after the first, and the peak of memory."""
    section = yaml.safe_load(Path("params.yaml").read_text())
    settings = section["train_model"] | {"threads": section["threads"], "lora_rank": lora, "steps": steps}
    settings["compile"] = settings["compile"] is not False  # auto is for a longer run than this
    parameters = TrainParameters.model_validate(settings)
    torch.set_num_threads(parameters.threads)
    keep_freed_memory()
    data = read_data(*DATA, parameters)
    plan = plan_steps(parameters, data.train, data.meta.vocab_size, SINGLE_PROCESS)
    batches = [
        phase.dataset.batches(rows, phase.rows_per_batch)
        for phase, rows in plan.steps_after(0)
        if phase is plan.phases[0]
    ]
    tokens = batches[0][0].ids.size * len(batches[0])
    times: list[float] = []
    if name == "chatmill":
        trainer, _ = new_trainer(parameters, data, plan, "cpu", SINGLE_PROCESS)
        for of_step in batches:
            trainer.step(of_step)
            times.append(perf_counter())
    else:
        assert parameters.initial is not None
        model = load_initial(parameters.initial, data.vocabulary, parameters.context)
        with_transformers(model, [one for of_step in batches for one in of_step], len(batches[0]), parameters, times)
    seconds = [end - start for start, end in pairwise(times)]
    return {"speed": tokens / median(seconds), "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def with_transformers(
    own: ChatModel, batches: list[Batch], in_step: int, parameters: TrainParameters, times: list[float]
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    fields = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    fields += ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings")
    config = LlamaConfig(**{name: getattr(own.config, name) for name in fields}, rope_theta=own.config.rope_theta)
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model.load_state_dict(own.state_dict(), assign=True, strict=False)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if parameters.lora_rank:
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        options: dict[str, Any] = {"r": parameters.lora_rank, "lora_alpha": 2 * parameters.lora_rank}
        model = get_peft_model(model, LoraConfig(**options, target_modules=every))
    rows = []
    for batch in batches:
        trained = batch.loss != LossKind.TRAINED if parameters.prompt_loss_weight == 0 else batch.loss == 0
        labels = torch.from_numpy(batch.targets).masked_fill(torch.from_numpy(trained), -100).roll(1, 1)
        labels[:, 0] = -100  # the Trainer's model shifts them
        rows += [
            {"input_ids": ids, "labels": one} for ids, one in zip(torch.from_numpy(batch.ids), labels, strict=True)
        ]

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(perf_counter())

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=len(batches[0].ids),
            gradient_accumulation_steps=in_step,
            max_steps=len(batches) // in_step,
            bf16=choose_precision(parameters.precision) == "bfloat16",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(model, arguments, train_dataset=rows, callbacks=[Clock()]).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lora", type=int, metavar="RANK")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--child", choices=NAMES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child, given.lora, given.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    for _ in range(given.turns):
        for name, results in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    for name, results in found.items():
        speeds, memory = [one["speed"] for one in results], max(one["memory"] for one in results)
        print(f"{name:14}{median(speeds):8.0f} tokens/s ({min(speeds):.0f} to {max(speeds):.0f}){memory:9.0f} MB")
    ratios = [ours["speed"] / theirs["speed"] for ours, theirs in zip(*found.values(), strict=True)]
    print(f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
