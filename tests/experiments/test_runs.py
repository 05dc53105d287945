"""What studies hand on to the trainings that they start."""

from pathlib import Path

from diffeq_former.experiments.runs import BASELINE, SHARED, Study, config_arguments
from diffeq_former.experiments.scheduler import Run


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


def test_names_of_runs_and_the_flags_that_make_them():
    """Folders of earlier versions are resumed by these names."""
    study = Study(Path("out"), ["--config=a.py"], num_parallel=1)
    wide = "model.d_model=8"
    for settings, name in (
        ((), "config,seed=0"),
        (BASELINE, "plain,seed=0"),
        (
            (wide, *BASELINE, "data.path=some/text"),
            f"plain,{wide},data.path=text,seed=0",
        ),
        (SHARED, "model.weights=shared,model.solver=lie_trotter,seed=0"),
        (("model.block=llama",), "model.block=llama,seed=0"),
    ):
        run = study.of_model(settings, 0)
        flags = [f"--config.{setting}" for setting in (*settings, "seed=0")]
        assert run == Run(Path("out", name), ("--config=a.py", *flags))
    tuned = study.tuned(run, "full,6", ["--config=full.py"])
    assert tuned.workdir == Path("out/model.block=llama,seed=0,full,6")
    assert tuned.after == run and tuned.flags == ("--config=full.py",)
