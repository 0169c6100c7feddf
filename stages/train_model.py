"""Train the chat model."""

import sys
from functools import partial
from pathlib import Path

import torch

from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.progress import log
from chatmill.pipeline.signatures import GrowingOutput, Output
from chatmill.pipeline.stage import RunInstead, on_success, stage
from chatmill.run_display import report_out_of_memory
from chatmill.soft_tokenizer.byte_embedding import use_embedding_table
from chatmill.training.distributed import choose_device_kind, join_process_group, launch, processes_to_launch
from chatmill.training.model_folder import metadata_of, sample_answers, write_model
from chatmill.training.new_model import new_trainer, trained_model
from chatmill.training.packing import read_data
from chatmill.training.plan import plan_steps
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import keep_freed_memory
from chatmill.training.training_loop import CurveFile, keep_weights, open_checkpoint, pooled_validation, train


@stage
def main(
    tokens: Path,
    tokenizer: Path,
    teacher: Path,
    external: Path,
    model: Output,
    curve: GrowingOutput,
    *,
    parameters: TrainParameters,
) -> None:
    """Write a model trained on the tokens, and its learning curve; a killed run resumes from its last checkpoint.

    `teacher` is what score_teacher wrote, and `external` the folder in which `parameters.initial` lies.
    """
    if parameters.initial is not None:
        check_external(parameters.initial, external, "train_model.initial")
    device = choose_device_kind(parameters.device)
    if (processes := processes_to_launch(parameters.processes, device)) > 1:
        raise RunInstead(partial(launch, processes, sys.argv))
    torch.set_num_threads(parameters.threads)
    keep_freed_memory()
    with report_out_of_memory(), join_process_group(device) as group:
        # The data in rows, and how they are divided into steps.
        data = read_data(tokens, tokenizer, teacher, parameters)
        plan = plan_steps(parameters, data.train, data.meta.vocab_size, group)

        # The model, and how this hardware trains it fastest; the weights to keep are chosen on validation.
        trainer, hardware = new_trainer(parameters, data, plan, device, group)
        measured_on = pooled_validation(data.validation, plan.phases[-1].rows_per_batch, group)
        kept = keep_weights(parameters, data.validation, plan, group)
        curve_file = CurveFile(curve if group.is_main_process else None, measured_on.sources.values())

        # Train, from the last checkpoint of the same parameters, inputs and code.
        checkpoint = open_checkpoint(parameters, hardware.precision, [tokens, tokenizer, teacher], group)
        train(trainer, measured_on, plan, checkpoint, curve_file, kept)

        # Write, on the main process alone.
        weights = kept.final(trainer)
        if group.is_main_process:
            trained = trained_model(trainer.model, weights, data.vocabulary)
            metadata = metadata_of(parameters, data, plan, hardware, kept.step, group, trained.config.num_hidden_layers)
            encoder = use_embedding_table(trained)
            adapter = (weights, parameters.initial) if parameters.initial and parameters.lora_rank else None
            write_model(model, trained, tokenizer, data.vocabulary, metadata, encoder, adapter)
            curve_file.complete()
            for question, answer in sample_answers(trained, data.validation.split, data.vocabulary, number=3):
                log("train_model", f"{question!r} is answered {answer!r}")
            on_success(checkpoint.remove)
