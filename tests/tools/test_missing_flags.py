"""Command lines without a flag that they need: one line names it and what it takes."""

import pytest
from command_lines import MAIN

RUN = "--workdir (the run's folder)"
FOLDER = "--output (a new folder)"
CONFIG = "--config (the config of the runs)"
STUDY = "--output (the folder of all runs)"
VARY = "--vary (SECTION.FIELD=VALUE,VALUE,...)"
TUNED = "--data (prepared text to tune on)"
NEEDS = {
    ("analyze.py", "spectra"): [FOLDER],
    ("benchmark.py", "train"): ["--config (a file in configs/)"],
    ("benchmark.py", "speculation"): [
        RUN,
        "--prompt (a text to continue; may be repeated)",
        "--draft_steps (solver steps of the drafts)",
    ],
    ("convert.py", "discretise"): [
        RUN,
        FOLDER,
        "--num_steps (number of solver steps, which become layers)",
    ],
    ("convert.py", "merge_lora"): [RUN, FOLDER],
    ("evaluate.py",): [RUN],
    ("experiment.py", "ablation"): [CONFIG, STUDY, VARY],
    ("experiment.py", "finetuning"): [CONFIG, STUDY, TUNED],
    ("export_hf.py",): [RUN, FOLDER],
    ("generate.py",): [RUN, "--prompt (a text to continue; can be repeated)"],
    ("harness.py",): ["--workdir (a run's folder; may be given again)"],
    ("import_hf.py",): ["--model (the Hugging Face folder)", FOLDER],
    ("plan.py",): [
        "--target (devices: tpu:KIND:TOPOLOGY or gpu:KIND:HOSTSxGPUS)",
        "--config (a file in configs/)",
    ],
    ("plot.py", "trend"): [
        "--output (a new .png file)",
        "--comparison (the output of a comparison; one for each size)",
    ],
    ("prepare_data.py",): [
        "--source (source of the text, see above)",
        "--tokenizer (tokenizer, see above)",
        "--seq_len (sequence length in tokens)",
        "--output (a new directory)",
    ],
    ("report.py",): [RUN, "--output (a new .html file)"],
    ("serve.py",): [RUN],
    ("train_tokenizer.py",): [
        "--source (source of the text)",
        "--vocab_size (number of pieces in the vocabulary)",
        "--output (a new model file)",
    ],
    (MAIN,): ["--workdir (the run directory)", "--config (a file in configs/)"],
}


@pytest.mark.parametrize("command", NEEDS, ids=" ".join)
def test_one_line_names_what_is_missing(refused, command):
    *others, last = NEEDS[command]
    listed = f"{', '.join(others)} and {last}" if others else last
    added = " ".join(f"{need.split()[0]}=VALUE" for need in NEEDS[command])
    modes = ("analyze.py", "spectra")  # its kinds are no modes with flags of their own
    name = command[1] if command[1:] and command != modes else "this command"
    assert refused(*command) == f"{name} needs {listed}: add {added}; see --help"
