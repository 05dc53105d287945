"""In how many solver steps each step of training integrates."""

import numpy as np

from diffeq_former.config import Config


def depth_of_step(config: Config, done: int) -> int:
    """The solver steps of the step after `done`, drawn from them and the seed."""
    c = config.training
    if done < c.depth_steps_from * c.num_steps:
        return config.model.num_layers
    draw = np.random.default_rng([config.seed, done])
    return int(draw.choice(config.depths))
