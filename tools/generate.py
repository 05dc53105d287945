"""Continues prompts with a run's latest checkpoint.

tools/generate.py --workdir=runs/tiny --prompt="The list" --prompt="class " --seed=1

Each prompt is printed with its continuation as plain text on stdout; a line of ---
separates the texts of several prompts. A text ends where the model ends it, before the
first --stop, or after --max_new_tokens. An empty --prompt= starts a new text. With
--stream, the text of a single prompt is printed while it is generated.

Special tokens in prompts, such as <|im_end|>, are read as text, and with
--parse_special as tokens; a prompt that begins with one then gets no other token before
it.

With --chat, each prompt is the message of a user, formatted with the chat template of
the model's tokenizer, and only the reply is printed. Requires the extra serve.

With --num_steps and --solver, other solver steps than in training are taken. With
--rtol, they adapt to the prompts, by the error that the solver (heun, midpoint, or one
of diffrax) estimates for its steps, and stay the same for the text that follows. One
JSON object is then printed on stderr: num_steps, and num_evaluations of the vector
field, by which they are found.

--draft_steps enables self-speculative decoding: the model with fewer solver steps
drafts tokens, which the full model accepts or rejects. Samples have the same
distribution as without it, and greedy decoding gives the same text. One JSON object is
then printed on stderr: drafted and accepted (numbers of tokens), acceptance (their
ratio), seconds and tokens_per_second (both including compilation).

The mesh is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1. With several processes, started as
in training, only the first one prints.
"""

import dataclasses
import operator
import sys
import time

from absl import flags

from diffeq_former import cli, json_io
from diffeq_former.cli import mesh_flags, process_flags, solver_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_PROMPTS = flags.DEFINE_multi_string(
    "prompt", None, "A text to continue; can be repeated.", required=True
)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
    "max_new_tokens", 100, "Maximum number of tokens that follow a prompt."
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "Sampling temperature; 0: greedy decoding."
)
_TOP_K = flags.DEFINE_integer(
    "top_k", 0, "Sample only from the k most likely tokens; 0: from all."
)
_TOP_P = flags.DEFINE_float(
    "top_p",
    1.0,
    "Sample only from the fewest most likely tokens with this total probability.",
)
_MIN_P = flags.DEFINE_float(
    "min_p",
    0.0,
    "Sample only from tokens at least this times as probable as the most likely one.",
)
_PRESENCE_PENALTY = flags.DEFINE_float(
    "presence_penalty",
    0.0,
    "Subtract this from the logits of tokens that the continuation already has; -2 to"
    " 2.",
)
_FREQUENCY_PENALTY = flags.DEFINE_float(
    "frequency_penalty",
    0.0,
    "Subtract this from the logit of a token for each time that the continuation"
    " already has it; -2 to 2.",
)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Seed of the sampling; prompt i (counted from 0) uses seed + i.",
    lower_bound=0,
    upper_bound=2**31,
)
_STOP = flags.DEFINE_multi_string(
    "stop", [], "A text ends before this string; can be repeated."
)
_STREAM = flags.DEFINE_bool("stream", False, "Print the text while it is generated.")
_CHAT = flags.DEFINE_bool("chat", False, "Reply to each prompt as a user's message.")
_PARSE_SPECIAL = flags.DEFINE_bool(
    "parse_special", False, "Read special tokens in prompts, as <|im_end|>, as tokens."
)
_DRAFT_STEPS = flags.DEFINE_integer(
    "draft_steps", 0, "Solver steps of the draft model; 0: no speculative decoding."
)
_DRAFT_TOKENS = flags.DEFINE_integer(
    "draft_tokens", 4, "Number of tokens to draft before the full model verifies them."
)
_RTOL = flags.DEFINE_float(
    "rtol", 0.0, "Tolerance of steps that adapt to the prompts; 0: they do not."
)
flags.adopt_module_key_flags(process_flags)
_SOLVER_FLAGS = solver_flags.define()
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.multihost import is_primary
    from diffeq_former.inference.generate import Generator
    from diffeq_former.inference.sampling import Sampling
    from diffeq_former.inference.text import continue_ids, continue_texts

    _check_flags()
    process_flags.start_from_flags()
    compilation_cache.enable()
    sampling = Sampling(
        _TEMPERATURE.value,
        _TOP_K.value,
        _TOP_P.value,
        _MIN_P.value,
        _PRESENCE_PENALTY.value,
        _FREQUENCY_PENALTY.value,
    )
    draft = _draft()
    if draft:  # check the settings before loading the checkpoint
        draft.config(_SOLVER_FLAGS.read_model(_WORKDIR.value))
    run = _SOLVER_FLAGS.load_run(_WORKDIR.value)
    model, grid = run.config.model, None
    contexts = _contexts(run)
    if _RTOL.value:
        adapted = _adapt(run, contexts)
        model, grid = adapted.config, adapted.grid
        steps = {
            "num_steps": model.num_layers,
            "num_evaluations": adapted.num_evaluations,
        }
    generator = Generator(model, run.mesh, run.tokenizer.vocab_size, draft, grid)
    printer = _Printer() if _STREAM.value and is_primary() else None
    start = time.perf_counter()
    options = {
        "max_new_tokens": _MAX_NEW_TOKENS.value,
        "seed": _SEED.value,
        "stop": _STOP.value,
        "show": printer,
        **dataclasses.asdict(sampling),
    }
    loaded = (generator, run.tokenizer, run.params)
    if contexts:
        shown = [""] * len(contexts) if _CHAT.value else _PROMPTS.value
        if printer:
            printer(0, shown[0])
        new = continue_ids(*loaded, contexts, before=[], **options)
        texts = list(map(operator.add, shown, new))
    else:
        texts = continue_texts(*loaded, _PROMPTS.value, **options)
    seconds = time.perf_counter() - start
    if is_primary():
        text = "\n---\n".join(texts)
        print(text.removeprefix(printer.text) if printer else text)
        if _RTOL.value:
            print(json_io.dumps(steps), file=sys.stderr)
        if draft:
            print(json_io.dumps(_metrics(generator, seconds)), file=sys.stderr)


def _check_flags() -> None:
    from diffeq_former.errors import UserError

    if _STREAM.value and len(_PROMPTS.value) > 1:
        raise UserError(
            f"--stream: expected one --prompt, got {len(_PROMPTS.value)}; leave it out"
            " for several"
        )
    if _PARSE_SPECIAL.value and _CHAT.value:
        raise UserError(
            "--parse_special: a chat template writes the special tokens; leave out this"
            " flag or --chat"
        )


def _contexts(run) -> list[list[int]] | None:
    """Return the token ids of chats or of prompts with special tokens, if any."""
    if _CHAT.value:
        return _chats(run)
    return _parsed(run) if _PARSE_SPECIAL.value else None


def _parsed(run) -> list[list[int]]:
    """Return the token ids of each prompt as a text with special tokens."""
    from diffeq_former.errors import UserError
    from diffeq_former.inference.prompts import read_prompt
    from diffeq_former.inference.special_tokens import SpecialTokens

    special_tokens, max_len = SpecialTokens.of(run.tokenizer), run.config.model.max_len
    try:
        return [
            read_prompt(prompt, run.tokenizer, max_len, special_tokens).ids
            for prompt in _PROMPTS.value
        ]
    except UserError as error:
        raise UserError(f"--prompt: {error}") from error


def _chats(run) -> list[list[int]]:
    """Return the token ids of each prompt as the message of a user."""
    from diffeq_former.errors import UserError, require_extra
    from diffeq_former.training import run_directory

    require_extra("serve", "jinja2")
    from diffeq_former.inference.chat_template import ChatTemplate

    template = ChatTemplate.read(run.path / run_directory.TOKENIZER, run.tokenizer)
    try:
        return [
            template.encode([{"role": "user", "content": prompt}])
            for prompt in _PROMPTS.value
        ]
    except UserError as error:
        raise UserError(f"--chat: {error}") from error


def _adapt(run, contexts: list[list[int]] | None):
    """Return the steps over depth that the run's solver chooses for the prompts."""
    from diffeq_former.inference.adaptive_steps import adapt

    if contexts:
        return adapt(run.config.model, run.params, contexts, run.mesh, _RTOL.value)
    return run.adapt(_PROMPTS.value, _RTOL.value)


def _draft():
    from diffeq_former.inference.speculative import Draft

    steps = _DRAFT_STEPS.value
    return Draft(steps, _DRAFT_TOKENS.value) if steps else None


class _Printer:
    """Prints new text as it is generated."""

    def __init__(self):
        self.text = ""  # all text printed so far

    def __call__(self, row: int, new: str) -> None:
        self.text += new
        print(new, end="", flush=True)


def _metrics(generator, seconds: float) -> dict:
    drafted, accepted = generator.counts.drafted, generator.counts.accepted
    return {
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / max(1, drafted),
        "seconds": seconds,
        "tokens_per_second": generator.counts.new / seconds,
    }


if __name__ == "__main__":
    cli.run(main)
