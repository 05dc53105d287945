# make demo    trains a small model on the text of Python's standard library
# make test    runs the tests: first those for one device, then those for a mesh of
#              eight; make test-all those as well that take long
# make test-hf runs those against transformers, PEFT, lm-evaluation-harness, W&B and
#              MLflow; of PyTorch it installs what pip finds: that for CPUs, a tenth of
#              the download, if PIP_EXTRA_INDEX_URL names its index
# make test-targets compiles for TPUs and NVIDIA GPUs, which it does not need
# make soak    tries random settings, damage, names, kills and load: EXAMPLES of each,
#              with the seeds from FIRST_SEED on
# make docs    builds the site of docs/ into build/site
# make lint    checks format and style
# make paper-small TEXT='text:books/*.txt'
#              trains the models of the paper's figures and tables at the size of
#              configs/paper_small.py and writes a page, PAPER/page/index.html, in some
#              hours on two cores. TEXT is a source of tools/prepare_data.py, such as novels;
#              OTHER_TEXT another to tune on; a fraction HELD_OUT of the documents of each
#              is for validation. The same command resumes it
#
# Each makes its own virtual environment first, one for each version of Python:
# make test PYTHON=python3.12

PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV ?= .venv-$(VERSION)
EXTRAS ?= test
INSTALLED := $(VENV)/installed

ifeq ($(filter 3.11 3.12 3.13,$(VERSION)),)
$(error $(PYTHON) is Python $(or $(VERSION),of unknown version); \
3.11, 3.12 or 3.13 is needed: name one with PYTHON=/path/to/python3.12)
endif

ifneq ($(filter paper-small,$(MAKECMDGOALS)),)
ifndef TEXT
$(error name a text, as make paper-small TEXT='text:books/*.txt')
endif
endif

PYTEST = $(VENV)/bin/python -m pytest --numprocesses=auto --maxprocesses=4 \
    --dist=worksteal

WITH_HF = tests/conversion/test_transformers.py tests/conversion/test_modeling.py \
    tests/inference/test_chat_template.py tests/inference/test_harness.py \
    tests/finetuning/test_peft.py tests/tools/test_benchmark_torch.py \
    tests/tools/test_harness.py tests/tools/test_readme.py \
    tests/training/test_harness_hook.py \
    tests/training/test_tracking.py

FOR_TARGETS = tests/planning tests/tools/test_plan.py \
    tests/tools/test_experiment_sizes.py tests/launch/test_files.py

PAPER ?= runs/paper-small
OTHER_TEXT ?= stdlib
HELD_OUT ?= 0.01
PAPER_FLAGS ?= --num_seeds=3 --num_parallel=2 --config.training.num_steps=500 \
    --config.training.eval_every=100 --config.training.checkpoint_every=100 \
    --full=training.num_steps=150 --full=training.eval_every=25 \
    --lora=training.num_steps=150 --lora=training.eval_every=25

EXAMPLES ?= 12
FIRST_SEED ?= 0

.PHONY: paper-small demo test test-all test-hf with-hf test-targets for-targets soak docs lint install

demo: install
	$(VENV)/bin/python tools/demo.py $(DEMO_FLAGS)

test: install
	$(PYTEST)
	$(PYTEST) --mesh

test-all: install
	$(PYTEST) -m "not soak"
	$(PYTEST) -m "not soak" --mesh

soak: install
	$(PYTEST) -m soak tests/soak --examples=$(EXAMPLES) --first_seed=$(FIRST_SEED)

test-hf:
	@$(MAKE) --no-print-directory with-hf VENV=$(VENV)-hf EXTRAS=test,hf,harness,wandb,mlflow

with-hf: install
	$(PYTEST) -m "not soak" $(WITH_HF)

test-targets:
	@$(MAKE) --no-print-directory for-targets VENV=$(VENV)-targets \
	    EXTRAS=test,plan-tpu,plan-gpu

for-targets: install
	JAX_PLATFORMS=cpu $(PYTEST) -m targets $(FOR_TARGETS)

paper-small: install
	test -e $(PAPER)/tokenizer.model || $(VENV)/bin/python tools/train_tokenizer.py \
	    --source='$(TEXT)' --vocab_size=4096 --output=$(PAPER)/tokenizer.model
	test -e $(PAPER)/data/text || $(VENV)/bin/python tools/prepare_data.py \
	    --source='$(TEXT)' --tokenizer=sentencepiece:$(PAPER)/tokenizer.model \
	    --seq_len=128 --validation_fraction=$(HELD_OUT) --output=$(PAPER)/data/text
	test -e $(PAPER)/data/other || $(VENV)/bin/python tools/prepare_data.py \
	    --source='$(OTHER_TEXT)' --tokenizer=sentencepiece:$(PAPER)/tokenizer.model \
	    --seq_len=128 --validation_fraction=$(HELD_OUT) --output=$(PAPER)/data/other
	$(VENV)/bin/python tools/experiment.py paper --config=configs/paper_small.py \
	    --config.data.path=$(PAPER)/data/text --data=$(PAPER)/data/other \
	    --output=$(PAPER) $(PAPER_FLAGS)

docs: install
	$(VENV)/bin/mkdocs build

lint: install
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

install: $(INSTALLED)

$(INSTALLED): setup.py constraints.txt
	@echo "Installing into $(VENV); this takes a minute or two."
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@
