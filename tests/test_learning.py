"""A minute of training must give a model of some quality, by the metrics of the project's own stages."""

import json

import pytest

from support.project import copy_project


@pytest.mark.slow
def test_a_minute_of_training_teaches_to_answer(tmp_path):
    project = copy_project(tmp_path, git=False)
    project.edit(
        {
            "prepare.mill.limit": 2000,
            "prepare.skills.limit": 8000,
            "train_model.width": 128,
            "train_model.steps": 500,
            "train_model.batch_size": 4096,
            "evaluate.max_tokens": 64,
            "evaluate.conversations": 200,
            "evaluate.skill_prompts": 5,
        }
    )
    project.repro("evaluate")
    found = json.loads((tmp_path / "data/metrics/evaluate.json").read_text())
    assert found["bits_per_byte"]["all"] < 0.75  # 0.67 when it was written
    assert found["skills"]["macro"] > 0.2  # 0.31 to 0.35; before training 0
    assert found["stops_rate"] > 0.9  # 0.97
