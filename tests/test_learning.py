"""A minute of training must give a model of some quality, by the metrics of the project's own stages."""

import json

import pytest

from support.project import copy_project


@pytest.mark.slow
def test_a_minute_of_training_teaches_to_answer(tmp_path):
    project = copy_project(tmp_path, git=False)
    project.edit({"prepare.mill.limit": 2000, "prepare.skills.limit": 8000})
    project.edit({"train_model.depth": 3, "train_model.width": 128})
    project.edit({"train_model.steps": 600, "train_model.batch_size": 2048})
    project.edit({"evaluate.max_tokens": 64, "evaluate.conversations": 200, "evaluate.skill_prompts": 5})
    project.repro("evaluate")
    found = json.loads((tmp_path / "data/metrics/evaluate.json").read_text())
    assert found["bits_per_byte"]["all"] < 0.65  # 0.55 when it was written
    assert found["skills"]["macro"] > 0.7  # 1.0; before training 0
    assert found["stops_rate"] > 0.9  # 1.0
