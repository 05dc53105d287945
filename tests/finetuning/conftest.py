import contextlib

import pytest
from cases import mesh_of, params_of
from prepared import prepare_words

from diffeq_former.config import Config, DataConfig
from diffeq_former.training import checkpoint, run_directory, state


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)


@pytest.fixture(scope="session")
def write_run(dataset):
    """Writes a run's folder with a checkpoint of given parameters, or random ones."""

    def write(folder, model, params=None, **sections):
        data = DataConfig(path=str(dataset.path))
        config = Config(model=model, data=data, **sections)
        folder.mkdir()
        run_directory.write(folder, config, dataset)
        saver = checkpoint.Checkpoints(folder / run_directory.CHECKPOINTS, 1, 0)
        with contextlib.closing(saver):
            params = params or params_of(model)
            saver.save(3, state.with_params(config, mesh_of(), params))
        return folder

    return write
