"""What studies hand on to the trainings that they start."""

from diffeq_former.experiments.runs import config_arguments


def test_flags_of_the_config_are_handed_on_as_one_word_each():
    words = (
        "tool --config a.py --vary=x=1 --config.seed=3 --config.training.num_steps 7"
    )
    words += " --config.model.tied_head --output out --config.model.chain_norms"
    assert config_arguments(words.split()) == [
        "--config=a.py",
        "--config.seed=3",
        "--config.training.num_steps=7",
        "--config.model.tied_head",
        "--config.model.chain_norms",
    ]
