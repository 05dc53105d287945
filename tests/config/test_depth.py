"""The length of the depth interval, and the numbers of steps."""

import pytest

from diffeq_former.config import Config, ModelConfig, TrainingConfig


@pytest.mark.parametrize(
    "changes, interval, step_size",
    [
        ({}, 1.0, 1 / 12),
        ({"weights": "layer_table"}, 12.0, 1.0),
        ({"weights": "layer_table", "solver": "lie_trotter"}, 12.0, 1.0),
        ({"solver": "strang"}, 12.0, 1.0),
        ({"weights": "shared"}, 1.0, 1 / 12),
        ({"solver": "rk4", "horizon": 6.0}, 6.0, 0.5),
        ({"weights": "layer_table", "parametrization": "mup"}, 1.0, 1 / 12),
    ],
    ids=str,
)
def test_depth_interval(changes, interval, step_size):
    model = ModelConfig(**changes)
    assert (model.interval, model.step_size) == (interval, step_size)
    assert model.at_depth(24).interval == interval
    assert model.at_depth(24).step_size == interval / 24


def test_depths_of_training():
    config = Config(training=TrainingConfig(depth_steps=(8, 12, 12)))
    assert config.depths == (8, 12, 12)
    assert config.at_depth(8).model == config.model.at_depth(8)
    assert Config().depths == (12,) and Config().at_depth(12) == Config()
